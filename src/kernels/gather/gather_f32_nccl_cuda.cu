// gather between processes with a GPU each: every rank gives as many logits a row as the rank with
// the most has, those that it lacks as zeros, since NCCL gathers arrays of one size.
#include "kernels/gather/gather_rows.h"
#include "kernels/rank_gather.cuh"

namespace moxie {
namespace {

constexpr int32_t kMostRanks = 64;

struct GatheredLogits {
  RankGatherMarks marks;
  float* places;
  int32_t rank, num_ranks;
  int32_t num_rows, widest, vocab;
  int32_t firsts[kMostRanks + 1];  // logits of a row, by rank; then the end
  const float* part;
  float* logits;
};

__global__ void __launch_bounds__(nccl::kThreads)
    place_logits(const __grid_constant__ GatheredLogits p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 0);
  const int64_t count = int64_t{p.num_rows} * p.widest;
  const int32_t width = p.firsts[p.rank + 1] - p.firsts[p.rank];
  float* const place = p.places + p.rank * count;
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < count;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    const int64_t row = i / p.widest, at = i - row * p.widest;
    place[i] = at < width ? p.part[row * width + at] : 0.0f;
  }
}

__global__ void __launch_bounds__(nccl::kThreads)
    spread_logits(const __grid_constant__ GatheredLogits p) {
  wait_for_previous();
  launch_next();
  nccl::note(p.marks, 1);
  const int64_t count = int64_t{p.num_rows} * p.widest;
  for (int64_t i = blockIdx.x * int64_t{nccl::kThreads} + threadIdx.x; i < count;
       i += gridDim.x * int64_t{nccl::kThreads}) {
    const int64_t row = i / p.widest, at = i - row * p.widest;
    for (int32_t rank = 0; rank < p.num_ranks; ++rank)
      if (p.firsts[rank] + at < p.firsts[rank + 1])
        p.logits[row * p.vocab + p.firsts[rank] + at] = p.places[rank * count + i];
  }
}

GatheredLogits params_of(const GatherParams& p) {
  GatheredLogits params{};
  params.marks = p.link->gather()->marks();
  params.places = reinterpret_cast<float*>(p.link->gather()->places());
  params.rank = p.link->rank();
  params.num_ranks = p.link->size();
  CHECK(params.num_ranks <= kMostRanks);
  params.vocab = p.vocab;
  for (int32_t rank = 0; rank < params.num_ranks; ++rank) {
    const RankShare share = share_of_rank(p.vocab, kLogitUnit, rank, params.num_ranks);
    params.firsts[rank] = share.first;
    params.firsts[rank + 1] = share.first + share.count;
    params.widest = std::max(params.widest, share.count);
  }
  return params;
}

}  // namespace

// In pieces of as many rows as a place holds.
void gather_f32_nccl_cuda(const GatherParams& p) {
  GatheredLogits params = params_of(p);
  const int64_t row_bytes = int64_t{4} * params.widest;
  const auto most = static_cast<int32_t>(static_cast<int64_t>(RankGather::kPlaceBytes) / row_bytes);
  CHECK(most > 0, "a row of logits is larger than a rank's place");
  for (int32_t at = 0; at < p.num_rows; at += most) {
    params.num_rows = std::min(most, p.num_rows - at);
    params.part = p.part + int64_t{at} * p.part_width;
    params.logits = p.logits + int64_t{at} * p.vocab;
    nccl::exchange("gather_f32_nccl_cuda", *p.link->gather(),
                   static_cast<uint64_t>(params.num_rows * row_bytes),
                   int64_t{params.num_rows} * params.widest, place_logits, spread_logits, params,
                   p.launch);
  }
}

}  // namespace moxie
