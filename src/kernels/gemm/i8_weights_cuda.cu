// Limited by memory: qkv of gpt-oss-120b in BF16 is 29 MB, and its integers are 15 MB.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/dense.cuh"
#include "kernels/gemm/i8_scale.cuh"
#include "kernels/gemm/i8_weights_cuda.h"
#include "kernels/gemv/fragment_gemv.cuh"

namespace moxie::gemm {
namespace {

// Weights: a block takes a tile of 16 rows, a warp every 16th unit.
constexpr int kWeightWarps = 16, kUnitsOfWarp = kMostI8Columns / 64 / kWeightWarps;

struct LayWeights {
  PackedMatrix weight;
  I8Rows to;
};

/// The factor that decoding leaves out.
template <DType F>
inline constexpr float kUnitFactor = fragment::power_of_two(fragment::Format<F>::kUnit);
/// A decoded pair of weights, times their scale.
template <DType F>
__device__ __forceinline__ float2 weights_of(uint32_t pair, float scale) {
  // In this order: the factor times a great scale would overflow.
  return make_float2(__uint_as_float(pair << 16) * kUnitFactor<F> * scale,
                     __uint_as_float(pair & 0xFFFF0000u) * kUnitFactor<F> * scale);
}

template <DType F>
__global__ void __launch_bounds__(32 * kWeightWarps)
    lay_weight_rows_i8(const __grid_constant__ LayWeights p) {
  __shared__ uint32_t greatest[16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
  const int tile = static_cast<int>(blockIdx.x), num_units = (p.weight.cols + 63) / 64;
  const std::byte* units =
      p.weight.data + int64_t{tile} * num_units * fragment::kUnitBytes<F> + 16 * lane;
  if (threadIdx.x < 16) greatest[threadIdx.x] = 0;
  __syncthreads();
  fragment::Unit<F> held[kUnitsOfWarp];
#pragma unroll
  for (int i = 0; i < kUnitsOfWarp; ++i) {
    const int u = warp + i * kWeightWarps;
    held[i] = {};
    if (u >= num_units) continue;
    const std::byte* unit = units + int64_t{u} * fragment::kUnitBytes<F>;
    fragment::read_codes<F>(held[i], unit);
    if constexpr (fragment::Format<F>::kScaleWords == 1) {
      held[i].scales[0] =
          *reinterpret_cast<const uint32_t*>(unit - 16 * lane + fragment::kCodeBytes<F> + 4 * g);
    }
  }
  // Calls use(pairs, scale, half, unit, block) for each block of columns and each of both rows.
  const auto for_each_block = [&](auto&& use) {
#pragma unroll
    for (int i = 0; i < kUnitsOfWarp; ++i) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t pairs[4];
          fragment::decode<F>(held[i], block, half, 0, pairs);
          use(pairs, fragment::scale_of<F>(held[i], block, half), half, warp + i * kWeightWarps,
              block);
        }
      }
    }
  };
  uint32_t most[2] = {0, 0};  // as bits, of which NaN's are greatest
  for_each_block([&](const uint32_t(&pairs)[4], float scale, int half, int, int) {
    uint32_t magnitudes = 0;
#pragma unroll
    for (const uint32_t pair : pairs) magnitudes = __vmaxu2(magnitudes, pair & 0x7FFF7FFFu);
    const float2 both = weights_of<F>(magnitudes, scale);
    most[half] = max(most[half], max(__float_as_uint(both.x), __float_as_uint(both.y)));
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    most[half] = max(most[half], __shfl_xor_sync(~0u, most[half], 1));
    most[half] = max(most[half], __shfl_xor_sync(~0u, most[half], 2));
    if (q == 0) atomicMax(&greatest[g + 8 * half], most[half]);
  }
  __syncthreads();
  // A power of two keeps MXFP4 as it is, down to three octaves below the row's greatest value.
  const auto scale_of = scale_for<F == DType::kMXFP4>;
  const float factors[2] = {scale_of(greatest[g]).factor, scale_of(greatest[g + 8]).factor};
  const int row = 16 * tile + static_cast<int>(threadIdx.x);
  if (threadIdx.x < 16 && row < p.to.rows) p.to.scales[row] = scale_of(greatest[threadIdx.x]).scale;
  for_each_block([&](const uint32_t(&pairs)[4], float scale, int half, int unit, int block) {
    const int to_row = 16 * tile + g + 8 * half, column = 64 * unit + 32 * block + 8 * q;
    if (to_row >= p.to.rows || column >= p.to.stride) return;
    float2 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = weights_of<F>(pairs[i], scale * factors[half]);
    *reinterpret_cast<uint2*>(p.to.data + int64_t{to_row} * p.to.stride + column) = make_uint2(
        pack_four(v[0].x, v[0].y, v[1].x, v[1].y), pack_four(v[2].x, v[2].y, v[3].x, v[3].y));
  });
}

}  // namespace

uint64_t i8_weights_bytes(const PackedMatrix& weight) {
  if (refuses_product(weight, kMostI8Columns) != nullptr) return 0;
  Scratch sizes(nullptr);
  const I8Rows rows(weight.rows, weight.cols, sizes);
  return sizes.bytes();
}

void lay_weights_i8(PackedMatrix& weight, std::byte* memory, Stream* stream) {
  CHECK(refuses_product(weight, kMostI8Columns) == nullptr, "rows and columns that are laid out");
  Scratch scratch(memory);
  const I8Rows rows(weight.rows, weight.cols, scratch);
  dispatch_product(weight.format, [&]<DType F>() {
    launch_kernel(
        "lay_weights_i8", lay_weight_rows_i8<F>, LayWeights{weight, rows},
        {.grid = dim3(static_cast<unsigned>(weight.num_tiles())), .num_threads = 32 * kWeightWarps},
        launch_stream(stream));
  });
  weight.integers = rows.data;
  weight.integer_scales = rows.scales;
}

}  // namespace moxie::gemm
