// reduce between processes with a GPU each: NCCL gathers all parts on every rank, which adds them
// in the order of ranks, so that all get the same bits. Sums of NCCL's own would round in an order
// that depends on the rank.
#include <cuda_bf16.h>

#include "kernels/rank_gather.cuh"
#include "kernels/reduce/reduce_rows.h"
#include "kernels/residual.cuh"

namespace moxie {
namespace {

struct GatheredSum {
  RankGatherMarks marks;
  std::byte* places;
  int32_t rank, num_ranks;
  int64_t count;  // of values
  const float* part;
  float* next_part;
  float* x;
};

// A place's values in F32, one at a time.
template <bool kIsSingle>
__global__ void __launch_bounds__(nccl::kThreads)
    place_part(const __grid_constant__ GatheredSum p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 0);
  float* const place = reinterpret_cast<float*>(p.places) + p.rank * p.count;
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < p.count;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    if constexpr (kIsSingle)
      place[i] = p.part[i];
    else
      place[i] = whole(reinterpret_cast<const float2*>(p.part)[i]);
  }
}

template <bool kIsSingle>
__global__ void __launch_bounds__(nccl::kThreads)
    add_placed(const __grid_constant__ GatheredSum p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 1);
  const float* const parts = reinterpret_cast<const float*>(p.places);
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < p.count;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    float sum = parts[i];
    for (int32_t rank = 1; rank < p.num_ranks; ++rank) sum += parts[rank * p.count + i];
    if constexpr (kIsSingle) {
      p.x[i] += sum;
      if (p.next_part != nullptr) p.next_part[i] = 0;
    } else {
      auto* const x = reinterpret_cast<float2*>(p.x);
      x[i] = split_residual(whole(x[i]) + sum);
      if (p.next_part != nullptr) reinterpret_cast<float2*>(p.next_part)[i] = make_float2(0, 0);
    }
  }
}

// A place's values in BF16, four at a time.
template <bool kIsSingle>
__global__ void __launch_bounds__(nccl::kThreads)
    place_rounded(const __grid_constant__ GatheredSum p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 0);
  uint2* const place = reinterpret_cast<uint2*>(p.places) + p.rank * (p.count / 4);
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < p.count / 4;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    ResidualFour<kIsSingle> part;
    part.load(p.part, 4 * i);
    const float4 v = part.values();
    uint2 rounded;
    auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&rounded);
    pairs[0] = __floats2bfloat162_rn(v.x, v.y);
    pairs[1] = __floats2bfloat162_rn(v.z, v.w);
    place[i] = rounded;
  }
}

__device__ __forceinline__ float4 four_of(const uint2& rounded) {
  const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&rounded);
  const float2 low = __bfloat1622float2(pairs[0]), high = __bfloat1622float2(pairs[1]);
  return make_float4(low.x, low.y, high.x, high.y);
}

template <bool kIsSingle>
__device__ __forceinline__ void store_four(float* values, int64_t at, float4 v) {
  store_residual<kIsSingle>(values, at, make_float2(v.x, v.y));
  store_residual<kIsSingle>(values, at + 2, make_float2(v.z, v.w));
}

template <bool kIsSingle>
__global__ void __launch_bounds__(nccl::kThreads)
    add_rounded(const __grid_constant__ GatheredSum p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 1);
  const uint2* const parts = reinterpret_cast<const uint2*>(p.places);
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < p.count / 4;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    float4 sum = four_of(parts[i]);
    for (int32_t rank = 1; rank < p.num_ranks; ++rank) {
      const float4 v = four_of(parts[rank * (p.count / 4) + i]);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    ResidualFour<kIsSingle> x;
    x.load(p.x, 4 * i);
    float4 v = x.values();
    v.x += sum.x, v.y += sum.y, v.z += sum.z, v.w += sum.w;
    store_four<kIsSingle>(p.x, 4 * i, v);
    if (p.next_part != nullptr) store_four<kIsSingle>(p.next_part, 4 * i, make_float4(0, 0, 0, 0));
  }
}

struct Kernels {
  void (*place)(GatheredSum);
  void (*add)(GatheredSum);
};

// In pieces of as many values as a place holds.
void run(const char* row, const ReduceParams& p, int64_t value_bytes, int64_t values_of_thread,
         const Kernels& kernels) {
  RankGather& gather = *p.link->gather();
  const int64_t floats_of_x = p.forms.x == XForm::kF32 ? 1 : 2;
  const int64_t most = static_cast<int64_t>(RankGather::kPlaceBytes) / value_bytes;
  const int64_t count = int64_t{p.num_tokens} * p.hidden;
  for (int64_t at = 0; at < count; at += most) {
    const GatheredSum params{
        .marks = gather.marks(),
        .places = gather.places(),
        .rank = p.link->rank(),
        .num_ranks = p.link->size(),
        .count = std::min(most, count - at),
        .part = p.part + at * floats_of_x,
        .next_part = p.next_part == nullptr ? nullptr : p.next_part + at * floats_of_x,
        .x = p.x + at * floats_of_x};
    nccl::exchange(row, gather, static_cast<uint64_t>(params.count * value_bytes),
                   params.count / values_of_thread, kernels.place, kernels.add, params, p.launch);
  }
}

}  // namespace

void reduce_any_nccl_cuda(const ReduceParams& p) {
  run("reduce_any_nccl_cuda", p, sizeof(float), 1,
      p.forms.x == XForm::kF32 ? Kernels{place_part<true>, add_placed<true>}
                               : Kernels{place_part<false>, add_placed<false>});
}

void reduce_any_bf16_nccl_cuda(const ReduceParams& p) {
  run("reduce_any_bf16_nccl_cuda", p, sizeof(__nv_bfloat16), 4,
      p.forms.x == XForm::kF32 ? Kernels{place_rounded<true>, add_rounded<true>}
                               : Kernels{place_rounded<false>, add_rounded<false>});
}

}  // namespace moxie
