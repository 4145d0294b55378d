// RMSNorm on CUDA: one block a token; the second reading of x comes from the first-level cache.
#include "core/cuda_launch.cuh"
#include "kernels/norm/norm_cuda.cuh"
#include "kernels/norm/norm_cuda.h"

namespace moxie {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) rms_norm(const __grid_constant__ RmsNormParams p) {
  __shared__ float scratch[kThreads / 32];
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.hidden;
  float* y = p.y + static_cast<int64_t>(blockIdx.x) * p.hidden;
  const float factor = rms_factor<kThreads>(x, p.hidden, p.eps, scratch);
  for (int32_t i = 4 * static_cast<int32_t>(threadIdx.x); i < p.hidden; i += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    const float4 w = *reinterpret_cast<const float4*>(p.weight + i);
    *reinterpret_cast<float4*>(y + i) =
        make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
  }
}

}  // namespace

void rms_norm_f32_cuda(const RmsNormParams& params, Stream* stream) {
  if (params.num_tokens == 0) return;
  CHECK(params.hidden % 4 == 0, "hidden " + std::to_string(params.hidden));
  launch_kernel("rms_norm_f32_cuda", rms_norm, params,
                dim3(static_cast<unsigned>(params.num_tokens)), kThreads, 0, launch_stream(stream));
}

}  // namespace moxie
