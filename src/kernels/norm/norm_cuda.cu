// RMSNorm on CUDA: one block a token, whose threads hold the token's values. Bound by memory.
#include "core/cuda_launch.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// kHeld: fours of columns, a thread.
template <int kHeld>
__global__ void __launch_bounds__(kThreads) rms_norm(const __grid_constant__ NormRows p) {
  constexpr bool kHoldsWeight = kHeld <= kMaxNormedWidth / 4 / kThreads;
  __shared__ float squares[kWarps];
  float4 weight[kHoldsWeight ? kHeld : 1], values[kHeld];
  const auto column_of = [](int i) { return 4 * static_cast<int>(threadIdx.x + i * kThreads); };
  const auto weight_at = [&](int column) {
    return *reinterpret_cast<const float4*>(p.weight + column);
  };
  if constexpr (kHoldsWeight) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      weight[i] =
          p.weight != nullptr && column_of(i) < p.width ? weight_at(column_of(i)) : float4{};
  }
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  with_single(p.x_form == XForm::kF32, [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      values[i] = {};
      if (column_of(i) >= p.width) continue;
      ResidualFour<kIsSingle> four;
      four.load(p.x, token * p.x_stride + column_of(i));
      values[i] = four.values();
    }
  });
  float factor = 1;
  if (p.weight != nullptr) {
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
    factor = 1.0f / sqrtf(square / static_cast<float>(p.width) + p.eps);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int column = column_of(i);
    if (column >= p.width) continue;
    float4 v = values[i];
    if (p.weight != nullptr) {
      const float4 w = kHoldsWeight ? weight[kHoldsWeight ? i : 0] : weight_at(column);
      v = {v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w};
    }
    const int64_t at = token * p.y_stride + column;
    if (p.y_form == XForm::kF32) {
      *reinterpret_cast<float4*>(p.y + at) = v;
    } else {
      store_residual<false>(p.y, at, {v.x, v.y});
      store_residual<false>(p.y, at + 2, {v.z, v.w});
    }
  }
}

}  // namespace

void rms_norm_f32_cuda(const NormRows& rows, const Launch& launch) {
  if (rows.num_tokens == 0) return;
  CHECK(rows.width % 4 == 0 && rows.x_stride % 4 == 0 && rows.y_stride % 4 == 0 &&
            rows.width <= kMaxWideNorm,
        "width " + std::to_string(rows.width));
  constexpr int kNarrow = kMaxNormedWidth / 4 / kThreads, kWide = kMaxWideNorm / 4 / kThreads;
  launch_kernel("rms_norm_f32_cuda",
                rows.width <= kMaxNormedWidth ? rms_norm<kNarrow> : rms_norm<kWide>, rows,
                {.grid = dim3(static_cast<unsigned>(rows.num_tokens)),
                 .num_threads = kThreads,
                 .programmatic = true,
                 .leaves_l1 = launch.l1 == L1Form::kL1},
                launch_stream(launch.stream));
}

}  // namespace moxie
