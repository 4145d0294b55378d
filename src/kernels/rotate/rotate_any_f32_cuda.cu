// rotate on CUDA: a warp a head of a token; a lane holds both halves of the pairs that it turns.
// Bound by memory.
#include "core/cuda_launch.cuh"
#include "kernels/ptx.cuh"
#include "kernels/rotate/rotate_head.h"
#include "kernels/rotate/rotate_rows.h"
#include "kernels/rotate/store_cached.cuh"

namespace moxie {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kPairs = kMaxHeadDim / 2 / 32;  // a lane

__global__ void __launch_bounds__(kThreads) rotate(const __grid_constant__ RotateParams p) {
  const int lane = threadIdx.x % 32, half = p.head_dim / 2;
  const int num_keyed = p.num_heads + p.num_kv_heads, num_all = num_keyed + p.num_kv_heads;
  const int head =
      (p.q == nullptr ? p.num_heads : 0) + static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  const int64_t token = blockIdx.y;
  wait_for_previous();
  launch_next();
  if (head >= num_all) return;
  const float* from = p.qkv + token * p.row_stride() + head * p.head_dim;
  float top[kPairs] = {}, bottom[kPairs] = {}, square = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int dim = lane + 32 * i;
    if (dim >= half) break;
    top[i] = from[dim];
    bottom[i] = from[half + dim];
    square += top[i] * top[i] + bottom[i] * bottom[i];
  }
  const float* norm = head < p.num_heads ? p.q_norm : head < num_keyed ? p.k_norm : nullptr;
  if (norm != nullptr) {
    const float factor =
        1.0f / sqrtf(warp_sum(square) / static_cast<float>(p.head_dim) + p.rms_eps);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int dim = lane + 32 * i;
      if (dim >= half) break;
      top[i] *= factor * norm[dim];
      bottom[i] *= factor * norm[half + dim];
    }
  }
  const int32_t position = p.batch.positions[token];
  std::byte* to;
  DType dtype = DType::kF32;
  if (head < p.num_heads) {
    to = reinterpret_cast<std::byte*>(p.q + (token * p.num_heads + head) * p.head_dim);
  } else {
    dtype = p.kv.dtype;
    const int32_t logical = position / p.kv.page_tokens;
    const int64_t page =
        p.kv.page_table[int64_t{p.batch.seq_idx[token]} * p.kv.table_stride + logical];
    const int32_t kv_head = head < num_keyed ? head - p.num_heads : head - num_keyed;
    const int64_t in_page =
        int64_t{kv_head} * p.kv.page_tokens + position - logical * p.kv.page_tokens;
    const int32_t element = dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1;
    to = (head < num_keyed ? p.kv.k : p.kv.v) + page * p.kv.page_stride_bytes +
         in_page * p.head_dim * element;
  }
  const int32_t element = dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1;
  const float* turn = p.rotary.table + int64_t{position} * p.head_dim;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int dim = lane + 32 * i;
    if (dim >= half) break;
    float a = top[i], b = bottom[i];
    if (head < num_keyed) {
      const float cosine = turn[dim], sine = turn[half + dim];
      a = top[i] * cosine - bottom[i] * sine;
      b = bottom[i] * cosine + top[i] * sine;
    }
    store_cached(to + dim * element, dtype, a);
    store_cached(to + (half + dim) * element, dtype, b);
  }
}

}  // namespace

void rotate_any_f32_cuda(const RotateParams& params) {
  constexpr int32_t kMostTokens = 65535;  // of a grid's second dimension
  const int32_t num_heads = (params.q == nullptr ? 0 : params.num_heads) + 2 * params.num_kv_heads;
  for (int32_t first = 0; first < params.batch.num_tokens; first += kMostTokens) {
    RotateParams part = params;
    part.batch.num_tokens = std::min(kMostTokens, params.batch.num_tokens - first);
    part.batch.positions += first;
    part.batch.seq_idx += first;
    part.qkv += first * params.row_stride();
    if (part.q != nullptr) part.q += int64_t{first} * params.num_heads * params.head_dim;
    launch_kernel("rotate_any_f32_cuda", rotate, part,
                  {.grid = dim3(static_cast<unsigned>(ceil_div(num_heads, kWarps)),
                                static_cast<unsigned>(part.batch.num_tokens)),
                   .num_threads = kThreads,
                   .programmatic = true,
                   .leaves_l1 = params.launch.l1 == L1Form::kL1},
                  launch_stream(params.launch.stream));
  }
}

}  // namespace moxie
