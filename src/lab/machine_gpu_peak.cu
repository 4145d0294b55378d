// BF16 products at a GPU's full rate: wgmma with one operand in registers and one in shared memory,
// nothing read or written between. Values are random from 1 to 2 with either sign: the fewer bits
// change, the less power is drawn, and zeros run at clocks that no model sees.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/wgmma_sm90.cuh"
#include "lab/machine_gpu_read.h"
#include "lab/machine_gpu_time.cuh"

namespace moxie {
namespace {

constexpr int kColumns = 128;
constexpr int kWarpgroups = 4;
constexpr int kThreads = 128 * kWarpgroups;
constexpr int kProducts = 4;  // of 64 x kColumns x 16: the width of a swizzled tile
constexpr double kFlopsAnIteration = 2.0 * 64 * kColumns * 16 * kProducts * kWarpgroups;

struct MultiplyParams {
  int num_iterations;
  float* sink;  // written only if a sum agrees with a value that the loop never makes
};

__global__ void __launch_bounds__(kThreads, 1)
    multiply_all(const __grid_constant__ MultiplyParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // Two BF16 values with random signs and mantissas.
  const auto random_pair = [](uint32_t seed) {
    const uint32_t bits = seed * 2654435761u;
    return 0x3F803F80u | ((bits ^ bits >> 15) & 0x807F807Fu);
  };
  __shared__ __align__(1024) uint32_t tile[kColumns * 32];
  for (int i = threadIdx.x; i < kColumns * 32; i += kThreads) tile[i] = random_pair(i + 1);
  fence_shared_writes();
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = random_pair(4 * threadIdx.x + i + 77);
  float d[kColumns / 2] = {};
  const uint64_t columns = tile_descriptor(tile);
  for (int n = 0; n < p.num_iterations; ++n) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kProducts; ++k) gemm::wgmma_bf16<kColumns>(d, a, columns + 2 * k);
    wgmma_commit();
    wgmma_wait<0>();
  }
  float all = 0;
  for (const float value : d) all += value;
  if (all == 0.123f) *p.sink = all;  // sums are multiples of 2^-14
#endif
}

}  // namespace

Result<std::vector<double>> time_gpu_products(Device& device, int passes, Stream& stream) {
  if (device.properties().compute_capability != 90) return std::vector<double>{};
  constexpr int kIterations = 40000;  // some 25 ms: long enough for the clocks to settle
  const int num_blocks = device.properties().num_units;
  std::vector<double> rates;
  const auto launch = [&](cudaStream_t native) {
    launch_kernel("multiply_all", multiply_all, MultiplyParams{kIterations, nullptr},
                  dim3(static_cast<unsigned>(num_blocks)), kThreads, 0, native);
  };
  auto seconds = time_gpu_launches(passes, stream, launch);
  if (!seconds) return fail(std::move(seconds.error()));
  for (const double s : *seconds) rates.push_back(kIterations * kFlopsAnIteration * num_blocks / s);
  return rates;
}

}  // namespace moxie
