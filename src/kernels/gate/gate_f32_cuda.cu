// gate on CUDA: four outputs a thread. Bound by memory.
#include "core/cuda_launch.cuh"
#include "kernels/gate/gate_rows.h"

namespace moxie {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ float gated(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

__global__ void __launch_bounds__(kThreads) multiply_gate(const __grid_constant__ GateParams p) {
  wait_for_previous();
  launch_next();
  const int column = 4 * static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (column >= p.width) return;
  const int64_t token = blockIdx.y;
  const float* from = p.gate_up + token * 2 * p.width + column;
  const float4 g = *reinterpret_cast<const float4*>(from);
  const float4 u = *reinterpret_cast<const float4*>(from + p.width);
  *reinterpret_cast<float4*>(p.y + token * p.width + column) = {gated(g.x, u.x), gated(g.y, u.y),
                                                                gated(g.z, u.z), gated(g.w, u.w)};
}

}  // namespace

const char* gate_f32_cuda_refuses(const GateParams& p) {
  return p.width % 4 == 0 ? nullptr : "columns are not a multiple of 4";
}

void gate_f32_cuda(const GateParams& params) {
  constexpr int32_t kMostTokens = 65535;  // of a grid's second dimension
  for (int32_t first = 0; first < params.num_tokens; first += kMostTokens) {
    GateParams part = params;
    part.num_tokens = std::min(kMostTokens, params.num_tokens - first);
    part.gate_up += int64_t{first} * 2 * params.width;
    part.y += int64_t{first} * params.width;
    launch_kernel("gate_f32_cuda", multiply_gate, part,
                  {.grid = dim3(static_cast<unsigned>(ceil_div(params.width, 4 * kThreads)),
                                static_cast<unsigned>(part.num_tokens)),
                   .num_threads = kThreads,
                   .programmatic = true,
                   .leaves_l1 = params.launch.l1 == L1Form::kL1},
                  launch_stream(params.launch.stream));
  }
}

}  // namespace moxie
