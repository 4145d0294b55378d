// gather between GPUs: every rank stores its logits into the memory of all others, so that each has
// all of them and draws the same tokens. Bound by the link: as words 16 bytes for three logits, as
// units for four.
#include "kernels/gather/gather_rows.h"
#include "kernels/rank_mail.cuh"

namespace moxie {
namespace {

struct GatherAllParams {
  RankMail mail;
  mail::Extent extent;
  mail::Rounds rounds;
  int32_t num_rows, words_of_row, units_of_row, vocab;
  int32_t firsts[RankMail::kMostRanks + 1];  // logits of a row, by rank; then the end
  const float* part;
  float* logits;
};

template <int kMost>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    gather_all(const __grid_constant__ GatherAllParams p) {
  wait_for_previous();
  launch_next();
  const auto place = [&](int64_t word, int64_t* row) {  // the first of the word's logits in a row
    *row = word / p.words_of_row;
    return static_cast<int32_t>(3 * (word - *row * p.words_of_row));
  };
  const int32_t width = p.firsts[p.mail.rank + 1] - p.firsts[p.mail.rank];
  const auto mine = [&](int64_t word, uint32_t(&values)[3]) {
    int64_t row;
    const int32_t at = place(word, &row);
#pragma unroll
    for (int i = 0; i < 3; ++i)
      values[i] =
          row < p.num_rows && at + i < width ? __float_as_uint(p.part[row * width + at + i]) : 0u;
  };
  struct Nothing {};
  const auto all = [&](int64_t word, const mail::Word* words, Nothing) {
    int64_t row;
    const int32_t at = place(word, &row);
    if (row >= p.num_rows) return;
#pragma unroll
    for (int32_t rank = 0; rank < kMost; ++rank) {
      if (rank >= p.mail.size) continue;
      const int32_t first = p.firsts[rank], end = p.firsts[rank + 1];
#pragma unroll
      for (int i = 0; i < 3; ++i)
        if (first + at + i < end)
          p.logits[row * p.vocab + first + at + i] = __uint_as_float(words[rank].values[i]);
    }
  };
  mail::send_and_receive<kMost>(
      p.mail, p.extent, mine, [](int64_t) { return Nothing{}; }, all);
}

// Four logits are a unit.
template <int kMost>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    gather_units(const __grid_constant__ GatherAllParams p) {
  wait_for_previous();
  launch_next();
  const int32_t width = p.firsts[p.mail.rank + 1] - p.firsts[p.mail.rank];
  const auto mine = [&](int64_t unit) {
    const int64_t row = unit / p.units_of_row;
    const auto at = static_cast<int32_t>(4 * (unit - row * p.units_of_row));
    if (at >= width) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(p.part + row * width + at);
  };
  const auto all = [&](int64_t unit, const uint4* units) {
    const int64_t row = unit / p.units_of_row;
    const auto at = static_cast<int32_t>(4 * (unit - row * p.units_of_row));
#pragma unroll
    for (int32_t rank = 0; rank < kMost; ++rank) {
      if (rank >= p.mail.size || p.firsts[rank] + at >= p.firsts[rank + 1]) continue;
      *reinterpret_cast<uint4*>(p.logits + row * p.vocab + p.firsts[rank] + at) = units[rank];
    }
  };
  mail::send_and_receive_units<kMost>(p.mail, p.rounds, mine, all);
}

GatherAllParams params_of(const GatherParams& p) {
  GatherAllParams params{};
  params.mail = *p.link->mail();
  params.num_rows = p.num_rows;
  params.vocab = p.vocab;
  params.part = p.part;
  params.logits = p.logits;
  int32_t widest = 0;
  for (int32_t rank = 0; rank < params.mail.size; ++rank) {
    const RankShare share = share_of_rank(p.vocab, kLogitUnit, rank, params.mail.size);
    params.firsts[rank] = share.first;
    params.firsts[rank + 1] = share.first + share.count;
    widest = std::max(widest, share.count);
  }
  params.words_of_row = ceil_div(widest, 3);
  params.units_of_row = ceil_div(widest, 4);
  return params;
}

}  // namespace

void gather_f32_peers_cuda(const GatherParams& p) {
  if (p.num_rows == 0) return;
  GatherAllParams params = params_of(p);
  params.extent = mail::extent_of(params.mail, int64_t{p.num_rows} * params.words_of_row);
  mail::with_most_ranks(params.mail.size, [&]<int kMost>() {
    launch_kernel("gather_f32_peers_cuda", gather_all<kMost>, params,
                  mail::shape_of(params.extent.num_blocks, p.launch),
                  launch_stream(p.launch.stream));
  });
}

void gather_f32_units_peers_cuda(const GatherParams& p) {
  if (p.num_rows == 0) return;
  GatherAllParams params = params_of(p);
  params.rounds = mail::rounds_of(params.mail, int64_t{p.num_rows} * params.units_of_row);
  mail::with_most_ranks(params.mail.size, [&]<int kMost>() {
    launch_kernel("gather_f32_units_peers_cuda", gather_units<kMost>, params,
                  mail::shape_of(params.rounds.num_blocks, p.launch),
                  launch_stream(p.launch.stream));
  });
}

}  // namespace moxie
