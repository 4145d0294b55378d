// RMSNorm on CUDA: one block a token; its threads hold the token's values. Limited by memory.
#include "core/cuda_launch.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kHeld = kMaxNormedWidth / 4 / kThreads;  // fours of columns, a thread

__global__ void __launch_bounds__(kThreads) rms_norm(const __grid_constant__ RmsNormParams p) {
  __shared__ float squares[kWarps];
  float4 weight[kHeld], values[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = 4 * static_cast<int>(threadIdx.x + i * kThreads);
    weight[i] = column < p.hidden ? *reinterpret_cast<const float4*>(p.weight + column) : float4{};
  }
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  with_single(p.x_is_single, [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int column = 4 * static_cast<int>(threadIdx.x + i * kThreads);
      values[i] = {};
      if (column >= p.hidden) continue;
      ResidualFour<kIsSingle> four;
      four.load(p.x, token * p.hidden + column);
      values[i] = four.values();
    }
  });
  float square = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    square += values[i].x * values[i].x + values[i].y * values[i].y + values[i].z * values[i].z +
              values[i].w * values[i].w;
  }
  square = warp_sum(square);
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = square;
  __syncthreads();
  square = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) square += squares[i];
  const float factor = 1.0f / sqrtf(square / static_cast<float>(p.hidden) + p.eps);
  float* y = p.y + token * p.hidden;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = 4 * static_cast<int>(threadIdx.x + i * kThreads);
    const float4 &v = values[i], &w = weight[i];
    if (column < p.hidden) {
      *reinterpret_cast<float4*>(y + column) = {v.x * factor * w.x, v.y * factor * w.y,
                                                v.z * factor * w.z, v.w * factor * w.w};
    }
  }
}

}  // namespace

void rms_norm_f32_cuda(const RmsNormParams& params, Stream* stream) {
  if (params.num_tokens == 0) return;
  CHECK(params.hidden % 4 == 0 && params.hidden <= kMaxNormedWidth,
        "hidden " + std::to_string(params.hidden));
  launch_kernel("rms_norm_f32_cuda", rms_norm, params,
                {.grid = dim3(static_cast<unsigned>(params.num_tokens)),
                 .num_threads = kThreads,
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace moxie
