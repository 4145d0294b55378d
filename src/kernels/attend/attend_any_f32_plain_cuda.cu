// attend on CUDA for what the split row refuses: any head size up to 512, any group, an F32 cache.
//
// A block of four warps works for one token and one query head. Each lane makes the logit of one
// key alone; then lanes share the columns of the values. Plain F32, not written for speed.
#include "core/cuda_launch.cuh"
#include "core/formats.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/ptx.cuh"

namespace moxie {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 512;
constexpr float kLowest = -3.0e38f;  // the maximum of no keys: finite, so that no difference is NaN

struct PlainParams {
  const float* q;
  KvLayer kv;
  const float* sinks;
  float* a;
  const int32_t* positions;
  const int32_t* seq_idx;
  int32_t num_heads, group, head_dim, window;
  float scale;
};

template <DType kFormat>
__device__ __forceinline__ float load_element(const std::byte* row, int32_t i) {
  if constexpr (kFormat == DType::kF32) {
    return __ldcg(reinterpret_cast<const float*>(row) + i);
  } else if constexpr (kFormat == DType::kBF16) {
    return bf16_to_f32(__ldcg(reinterpret_cast<const unsigned short*>(row) + i));
  } else {
    static_assert(kFormat == DType::kF8E4M3, "the formats of a cache");
    return e4m3_to_f32(__ldcg(reinterpret_cast<const unsigned char*>(row) + i));
  }
}
template <DType kFormat>
constexpr int kElementBytes = kFormat == DType::kF32    ? 4
                              : kFormat == DType::kBF16 ? 2
                                                        : 1;

template <DType kFormat>
__global__ void __launch_bounds__(32 * kWarps) attend_plain(const __grid_constant__ PlainParams p) {
  __shared__ float q[kMaxDim];
  __shared__ float warp_sums[kWarps][kMaxDim];
  __shared__ float2 ml[kWarps];
  wait_for_previous();
  launch_next();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, warp = thread / 32;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t token = block / p.num_heads, head = block % p.num_heads;
  const KvLayer& kv = p.kv;
  const int64_t row = static_cast<int64_t>(block) * p.head_dim;
#pragma unroll 4
  for (int32_t i = thread; i < p.head_dim; i += 32 * kWarps) q[i] = __ldcg(p.q + row + i) * p.scale;
  __syncthreads();

  const int32_t last_key = __ldcg(p.positions + token);
  const int32_t first_key = p.window > 0 ? max(0, last_key - p.window + 1) : 0;
  const int32_t* pages =
      kv.page_table + static_cast<int64_t>(__ldcg(p.seq_idx + token)) * kv.table_stride;
  const int32_t row_bytes = p.head_dim * kElementBytes<kFormat>;
  const int64_t head_offset = static_cast<int64_t>(head / p.group) * kv.page_tokens * row_bytes;

  float o[kMaxDim / 32] = {};
  float m = kLowest, l = 0.0f;  // l: sum over this lane's keys
  for (int32_t base = first_key + 32 * warp; base <= last_key; base += 32 * kWarps) {
    const int32_t key = base + lane;
    int64_t offset = -1;
    float x = kLowest;
    if (key <= last_key) {
      const int32_t page = __ldcg(pages + key / kv.page_tokens);
      if (page < 0) {
        x = __int_as_float(0x7FC00000);  // a missing page gives NaN
      } else {
        offset = page * kv.page_stride_bytes + head_offset +
                 static_cast<int64_t>(key % kv.page_tokens) * row_bytes;
        x = 0.0f;
        for (int32_t i = 0; i < p.head_dim; ++i)
          x += q[i] * load_element<kFormat>(kv.k + offset, i);
      }
    }
    float most = fmaxf(m, x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float shrink = expf(m - most);
    m = most;
    const float weight = key <= last_key ? expf(x - most) : 0.0f;
    l = l * shrink + weight;
#pragma unroll
    for (int i = 0; i < kMaxDim / 32; ++i) o[i] *= shrink;
    for (int32_t j = 0; j < 32; ++j) {
      const float key_weight = __shfl_sync(~0u, weight, j);
      const int64_t at = __shfl_sync(~0u, offset, j);
      if (at < 0) continue;
#pragma unroll
      for (int i = 0; i < kMaxDim / 32; ++i) {
        const int32_t column = 32 * i + lane;
        if (column < p.head_dim) o[i] += key_weight * load_element<kFormat>(kv.v + at, column);
      }
    }
  }
  l = warp_sum(l);
#pragma unroll
  for (int i = 0; i < kMaxDim / 32; ++i) {
    if (32 * i + lane < p.head_dim) warp_sums[warp][32 * i + lane] = o[i];
  }
  if (lane == 0) ml[warp] = make_float2(m, l);
  __syncthreads();

  const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[head];
  float most = sink;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, ml[w].x);
  float total = expf(sink - most);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += ml[w].y * expf(ml[w].x - most);
  for (int32_t i = thread; i < p.head_dim; i += 32 * kWarps) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += warp_sums[w][i] * expf(ml[w].x - most);
    p.a[row + i] = sum / total;
  }
}

}  // namespace

const char* attend_plain_cuda_refuses(const AttendParams& params) {
  return params.head_dim > kMaxDim ? "head size is above 512" : nullptr;
}

void attend_any_f32_plain_cuda(const AttendParams& params) {
  if (params.batch.num_tokens == 0) return;
  const PlainParams plain{.q = params.q,
                          .kv = params.kv,
                          .sinks = params.sinks,
                          .a = params.a,
                          .positions = params.batch.positions,
                          .seq_idx = params.batch.seq_idx,
                          .num_heads = params.num_heads,
                          .group = params.num_heads / params.num_kv_heads,
                          .head_dim = params.head_dim,
                          .window = params.window,
                          .scale = params.scale};
  const DType dtype = params.kv.dtype;
  auto* kernel = dtype == DType::kF32    ? attend_plain<DType::kF32>
                 : dtype == DType::kBF16 ? attend_plain<DType::kBF16>
                                         : attend_plain<DType::kF8E4M3>;
  const int64_t num_blocks = int64_t{params.batch.num_tokens} * params.num_heads;
  launch_kernel("attend_any_f32_plain_cuda", kernel, plain,
                {.grid = dim3(static_cast<unsigned>(num_blocks)),
                 .num_threads = 32 * kWarps,
                 .programmatic = true},
                launch_stream(params.launch.stream));
}

}  // namespace moxie
