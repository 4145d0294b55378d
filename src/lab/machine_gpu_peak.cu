// BF16 and 8-bit products at a GPU's full rate: wgmma with one operand in registers and one in
// shared memory, nothing read or written between. Values are random from 1 to 2 with either sign:
// the fewer bits change, the less power is drawn, and zeros run at clocks that no model sees.
#include "core/cuda_archs.h"
#include "core/cuda_launch.cuh"
#include "kernels/gemm/wgmma_sm90.cuh"
#include "kernels/ptx.cuh"
#include "lab/machine_gpu_read.h"
#include "lab/machine_gpu_time.cuh"

namespace moxie {
namespace {

constexpr int kProducts = 4;  // the width of a swizzled tile of rows of 128 bytes

/// As wide as the products of each kind are made, by as many warpgroups as have room for sums.
template <GpuProducts kKind>
struct Shape;
template <>
struct Shape<GpuProducts::kBF16> {
  static constexpr int kColumns = 128, kDepth = 16, kWarpgroups = 4;
};
template <>
struct Shape<GpuProducts::kFP8> {
  static constexpr int kColumns = 144, kDepth = 32, kWarpgroups = 3;
};
constexpr int kMmaThreads = 256, kMmaChains = 16, kMmaRepeats = 8;
template <GpuProducts kKind>
constexpr double flops_an_iteration() {
  if constexpr (kKind == GpuProducts::kBF16Mma) {
    return 2.0 * 16 * 8 * 16 * kMmaChains * kMmaRepeats * (kMmaThreads / 32);
  } else {
    using S = Shape<kKind>;
    return 2.0 * 64 * S::kColumns * S::kDepth * kProducts * S::kWarpgroups;
  }
}

struct MultiplyParams {
  int num_iterations;
  float* sink;  // written only if a sum agrees with a value that the loop never makes
};

/// Bits of an operand from its number.
__device__ __forceinline__ uint32_t scrambled(uint32_t seed) {
  const uint32_t bits = seed * 2654435761u;
  return bits ^ bits >> 15;
}
/// Two BF16 values with random signs and mantissas.
__device__ __forceinline__ uint32_t random_bf16(uint32_t seed) {
  return 0x3F803F80u | (scrambled(seed) & 0x807F807Fu);
}

template <GpuProducts kKind>
__global__ void __launch_bounds__(128 * Shape<kKind>::kWarpgroups, 1)
    multiply_all(const __grid_constant__ MultiplyParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kColumns = Shape<kKind>::kColumns;
  // A word of values with random signs and mantissas; four are E5M2 in registers, E4M3 elsewhere.
  const auto random_word = [](uint32_t seed, bool is_e5m2) {
    if (kKind == GpuProducts::kBF16) return random_bf16(seed);
    const uint32_t word = scrambled(seed);
    return is_e5m2 ? 0x3C3C3C3Cu | (word & 0x83838383u) : 0x38383838u | (word & 0x87878787u);
  };
  __shared__ __align__(1024) uint32_t tile[kColumns * 32];
  for (int i = threadIdx.x; i < kColumns * 32; i += blockDim.x) tile[i] = random_word(i + 1, false);
  fence_bulk_copies();
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = random_word(4 * threadIdx.x + i + 77, true);
  float d[kColumns / 2] = {};
  const uint64_t columns = tile_descriptor(tile);
  for (int n = 0; n < p.num_iterations; ++n) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      if constexpr (kKind == GpuProducts::kBF16) {
        gemm::wgmma_bf16<kColumns>(d, a, columns + 2 * k);
      } else {
        gemm::wgmma_fp8<kColumns>(d, a, columns + 2 * k);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  float all = 0;
  for (const float value : d) all += value;
  if (all == 0.123f) *p.sink = all;  // sums are multiples of 2^-14
#endif
}

// The same by mma.sync, which every GPU since sm_80 has: eight warps, operands in registers.
__global__ void __launch_bounds__(kMmaThreads, 1)
    multiply_all_mma(const __grid_constant__ MultiplyParams p) {
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = random_bf16(6 * threadIdx.x + i + 77);
  for (int i = 0; i < 2; ++i) b[i] = random_bf16(6 * threadIdx.x + i + 81);
  float d[kMmaChains][4] = {};
  for (int n = 0; n < p.num_iterations; ++n) {
#pragma unroll
    for (int r = 0; r < kMmaRepeats; ++r) {
#pragma unroll
      for (int i = 0; i < kMmaChains; ++i) mma_in_order(d[i], a[0], a[1], a[2], a[3], b[0], b[1]);
    }
  }
  float all = 0;
  for (const auto& sums : d)
    for (const float value : sums) all += value;
  if (all == 0.123f) *p.sink = all;
}

template <GpuProducts kKind>
Result<std::vector<double>> time_products(Device& device, int passes, Stream& stream) {
  constexpr int kIterations = 40000;  // some 25 ms: long enough for the clocks to settle
  const int num_blocks = device.properties().num_units;
  std::vector<double> rates;
  constexpr int kTimes = kKind == GpuProducts::kBF16Mma ? kIterations / 4 : kIterations;
  const auto grid = dim3(static_cast<unsigned>(num_blocks));
  const auto launch = [&](cudaStream_t native) {
    const MultiplyParams params{kTimes, nullptr};
    if constexpr (kKind == GpuProducts::kBF16Mma) {
      launch_kernel("multiply_all", multiply_all_mma, params, grid, kMmaThreads, 0, native);
    } else {
      launch_kernel("multiply_all", multiply_all<kKind>, params, grid,
                    128 * Shape<kKind>::kWarpgroups, 0, native);
    }
  };
  auto seconds = time_gpu_launches(passes, stream, launch);
  if (!seconds) return fail(std::move(seconds.error()));
  for (const double s : *seconds)
    rates.push_back(kTimes * flops_an_iteration<kKind>() * num_blocks / s);
  return rates;
}

}  // namespace

Result<std::vector<double>> time_gpu_products(GpuProducts kind, Device& device, int passes,
                                              Stream& stream) {
  if (kind == GpuProducts::kBF16Mma)
    return time_products<GpuProducts::kBF16Mma>(device, passes, stream);
  if (code_for(device.properties().compute_capability) != 90) return std::vector<double>{};
  return kind == GpuProducts::kBF16 ? time_products<GpuProducts::kBF16>(device, passes, stream)
                                    : time_products<GpuProducts::kFP8>(device, passes, stream);
}

}  // namespace moxie
