// embed on CUDA: one block a token, four columns a thread. A gather of whole rows, bound by memory;
// exact, since every format is exact in F32.
#include "core/cuda_launch.cuh"
#include "core/formats.h"
#include "kernels/embed/embed_rows.h"

namespace moxie {
namespace {

constexpr int kThreads = 256;

struct GatherParams {
  const int32_t* token_ids;  // [tokens]
  const std::byte* table;    // [vocab] rows of row_bytes
  float* x;                  // [tokens, cols], two floats a value or one
  bool x_is_single;
  int64_t row_bytes;
  int32_t cols;
  float* cleared;  // [tokens, num_cleared]
  int32_t num_cleared;
};

// Columns i .. i + 3 of a row; i is a multiple of 4.
template <DType kFormat>
__device__ float4 load_columns(const std::byte* row, int32_t i) {
  if constexpr (kFormat == DType::kF32) {
    return *reinterpret_cast<const float4*>(row + int64_t{4} * i);
  } else if constexpr (kFormat == DType::kBF16) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(row + int64_t{2} * i);
    return make_float4(bits_to_f32(pairs.x << 16), bits_to_f32(pairs.x & 0xFFFF0000u),
                       bits_to_f32(pairs.y << 16), bits_to_f32(pairs.y & 0xFFFF0000u));
  } else {
    static_assert(kFormat == DType::kQ8_0, "a block is an FP16 scale and 32 int8: 34 bytes");
    // Blocks are aligned to two bytes only.
    const auto* block = reinterpret_cast<const uint16_t*>(row + int64_t{34} * (i / 32));
    const float scale = f16_to_f32(block[0]);
    const uint32_t low = block[1 + (i % 32) / 2], high = block[2 + (i % 32) / 2];
    return make_float4(scale * static_cast<float>(static_cast<int8_t>(low & 0xFFu)),
                       scale * static_cast<float>(static_cast<int8_t>(low >> 8)),
                       scale * static_cast<float>(static_cast<int8_t>(high & 0xFFu)),
                       scale * static_cast<float>(static_cast<int8_t>(high >> 8)));
  }
}

template <DType kFormat>
__global__ void __launch_bounds__(kThreads) gather_rows(const __grid_constant__ GatherParams p) {
  wait_for_previous();
  launch_next();
  const std::byte* row = p.table + p.token_ids[blockIdx.x] * p.row_bytes;
  for (int32_t i = threadIdx.x; i < p.num_cleared; i += kThreads)
    p.cleared[static_cast<int64_t>(blockIdx.x) * p.num_cleared + i] = 0;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * p.cols;
  for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < p.cols; i += 4 * kThreads) {
    // Exact; `out`, the first to add to the value, splits it.
    const float4 v = load_columns<kFormat>(row, i);
    if (p.x_is_single) {
      *reinterpret_cast<float4*>(p.x + first + i) = v;
      continue;
    }
    auto* pairs = reinterpret_cast<float4*>(p.x + 2 * (first + i));
    pairs[0] = make_float4(v.x, -0.0f, v.y, -0.0f);
    pairs[1] = make_float4(v.z, -0.0f, v.w, -0.0f);
  }
}

}  // namespace

void embed_any_f32_gather_cuda(const EmbedParams& params) {
  if (params.num_tokens == 0) return;
  const RowTable& table = params.table;
  CHECK(reinterpret_cast<uintptr_t>(table.data) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(params.x) % 16 == 0,
        "embed wants its table and output aligned to 16 bytes");
  const GatherParams gather{.token_ids = params.token_ids,
                            .table = table.data,
                            .x = params.x,
                            .x_is_single = params.forms.x == XForm::kF32,
                            .row_bytes = table.row_bytes(),
                            .cols = table.cols,
                            .cleared = params.cleared,
                            .num_cleared = params.num_cleared};
  auto* kernel = table.format == DType::kF32    ? gather_rows<DType::kF32>
                 : table.format == DType::kBF16 ? gather_rows<DType::kBF16>
                                                : gather_rows<DType::kQ8_0>;
  launch_kernel("embed_any_f32_gather_cuda", kernel, gather,
                {.grid = dim3(static_cast<unsigned>(params.num_tokens)),
                 .num_threads = kThreads,
                 .programmatic = true,
                 .leaves_l1 = params.launch.l1 == L1Form::kL1},
                launch_stream(params.launch.stream));
}

}  // namespace moxie
