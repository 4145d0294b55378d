// sample of plain rows on CUDA (is_plain): the blocks of a first kernel each find the best id of a
// share of a row, and one block a row of a second finds the best of those and moves the row's
// stream on. Where ranks have a part of the ids each, the second also exchanges what wins in each
// rank.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/rank_mail.cuh"
#include "kernels/sample/advance.cuh"
#include "kernels/sample/sample_keys.cuh"
#include "kernels/sample/sample_rows.h"

namespace moxie {
namespace {

using namespace sampling;

// Few rows are cut into small shares, so that computing the noise of a row's ids is spread over the
// whole device. Many rows are cut into larger ones: 256 rows of 201,088 ids are 206 MB, 45 us of an
// H200's memory, and what ends a share costs as much as reading a small one.
constexpr int kPartThreads = 256, kPartBlocks = 3;  // blocks an SM, so that reads fill memory
constexpr int kMergeThreads = 512;
constexpr int kIdsAThread = 4, kIdsAThreadOfMany = 16;
constexpr int32_t kManyRows = 16;
constexpr int ids_a_thread(int32_t num_rows) {
  return num_rows < kManyRows ? kIdsAThread : kIdsAThreadOfMany;
}

struct Part {
  uint64_t best;    // key of the greatest logit; 0: none above -inf
  uint64_t winner;  // key of the logit that wins the draw within the part
};

struct PlainLaunch {
  const float* logits;            // [rows, width]
  const SampleRequest* requests;  // [rows]
  SampleAnswer* answers;          // [rows]
  Part* parts;                    // [rows, num_parts]
  int32_t first_id, width;        // ids of the logits
  int32_t num_parts;
  RankMail mail;          // of ranks that have a part of the ids each
  AdvanceParams advance;  // without counters: draw only
};

// The greatest value of the block's threads, for all of them.
template <int kBlockThreads>
__device__ uint64_t block_max(uint64_t value) {
  __shared__ uint64_t by_warp[kBlockThreads / 32];
  const Max max_of;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = max_of(value, __shfl_xor_sync(~0u, value, offset));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = by_warp[threadIdx.x % (kBlockThreads / 32)];
#pragma unroll
  for (int offset = kBlockThreads / 64; offset > 0; offset /= 2) {
    value = max_of(value, __shfl_xor_sync(~0u, value, offset));
  }
  return value;
}

// An upper bound of a word's noise, without a logarithm: -log(-log(u)) is at most -log(1 - u), and
// 1 - u is at least 2^-n, where n - 1 is the number of leading ones of the word.
__device__ float noise_bound(uint32_t word) {
  return static_cast<float>(__clz(static_cast<int>(~word)) + 1) * 0.69315f + 1e-4f;
}

// An upper bound of the score of an id at this distance to a best logit; -inf if it is hopeless.
__device__ float promise_of(float distance, uint32_t word) {
  return distance >= kHopeless ? distance + noise_bound(word) : -INFINITY;
}

// The key of a score in the draw: noise plus the distance to a best logit; 0 if the id is hopeless.
__device__ uint64_t score_of(const SampleRequest& request, float z, int32_t id, float best) {
  const float distance = (z - best) / request.temperature;
  return distance >= kHopeless ? key_of(distance + gumbel(request.seed, request.step, id), id) : 0;
}

template <int kIds>
__global__ void __launch_bounds__(kPartThreads, kPartBlocks)
    find_parts(const __grid_constant__ PlainLaunch p) {
  wait_for_previous();
  launch_next();
  const SampleRequest& request = p.requests[blockIdx.y];
  const bool greedy = !(request.temperature >= kGreedyTemperature);
  const float* row = p.logits + static_cast<int64_t>(blockIdx.y) * p.width - p.first_id;
  const int32_t first = p.first_id + static_cast<int32_t>(blockIdx.x) * (kIds * kPartThreads) +
                        static_cast<int32_t>(threadIdx.x);
  const int32_t end = p.first_id + p.width;
  float z[kIds];
#pragma unroll
  for (int i = 0; i < kIds; ++i) {
    const int32_t id = first + i * kPartThreads;
    z[i] = id < end ? row[id] : -INFINITY;
  }
  // The first of a thread's greatest.
  float greatest = -INFINITY;
  int32_t id_of_greatest = 0;
#pragma unroll
  for (int i = 0; i < kIds; ++i) {
    z[i] = clean(z[i]);
    if (z[i] > greatest) greatest = z[i], id_of_greatest = first + i * kPartThreads;
  }
  const uint64_t best =
      block_max<kPartThreads>(greatest > -INFINITY ? key_of(greatest, id_of_greatest) : 0);
  if (!greedy && best != 0) {
    // Logarithms only for ids that can still win: first for the id of each thread with the greatest
    // bound, then for those whose bound exceeds the best score of the warp.
    const float best_value = value_of(best);
    uint32_t word[kIds];
    float(&distance)[kIds] = z;
    int most = 0;
    float most_promise = -INFINITY;
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      distance[i] = (z[i] - best_value) / request.temperature;
      word[i] = sample_word(request.seed, request.step, first + i * kPartThreads);
      const float promise = promise_of(distance[i], word[i]);
      if (promise > most_promise) most = i, most_promise = promise;
    }
    uint64_t score = 0;
    float least = -INFINITY;
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll
      for (int i = 0; i < kIds; ++i) {
        const float promise = promise_of(distance[i], word[i]);
        if ((i == most) != (pass == 0) || !(promise >= least) || promise == -INFINITY) continue;
        score = Max()(score, key_of(distance[i] + gumbel_of(word[i]), first + i * kPartThreads));
      }
      uint64_t of_warp = score;
#pragma unroll
      for (int offset = 16; pass == 0 && offset > 0; offset /= 2) {
        of_warp = Max()(of_warp, __shfl_xor_sync(~0u, of_warp, offset));
      }
      if (of_warp != 0) least = value_of(of_warp);
    }
    const uint64_t of_block = block_max<kPartThreads>(score);
    // All keys differ, so that one thread holds the greatest; it writes what the merge needs.
    if (of_block == score && score != 0) {
      p.parts[static_cast<int64_t>(blockIdx.y) * p.num_parts + blockIdx.x].winner =
          key_of(clean(row[id_of(score)]), id_of(score));
    }
  }
  if (threadIdx.x == 0) {
    // The merging kernel reads the counters, in blocks that end at different times.
    if (p.advance.counters != nullptr && blockIdx.x == 0 && blockIdx.y == 0) {
      ++p.advance.counters->number;
      ++p.advance.counters->round;
    }
    Part& part = p.parts[static_cast<int64_t>(blockIdx.y) * p.num_parts + blockIdx.x];
    part.best = best;
    if (greedy || best == 0) part.winner = best;
  }
}

// What wins a row of this launch's logits. Every thread of the block calls it and gets it.
struct Winner {
  uint64_t best;   // key of the greatest logit; 0: none above -inf
  uint64_t score;  // key of the winner's score in the draw; greedy: best
  float z;         // the winner's logit, in the thread that asked for it
};
__device__ Winner winner_of(const PlainLaunch& p, const SampleRequest& request) {
  const bool greedy = !(request.temperature >= kGreedyTemperature);
  const Part* parts = p.parts + static_cast<int64_t>(blockIdx.x) * p.num_parts;
  Winner found{};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.num_parts; i += kMergeThreads)
    found.best = Max()(found.best, parts[i].best);
  found.best = block_max<kMergeThreads>(found.best);
  found.score = found.best;
  if (greedy || found.best == 0) {
    found.z = value_of(found.best);
    return found;
  }
  uint64_t score = 0;
  float z = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.num_parts; i += kMergeThreads) {
    const uint64_t winner = parts[i].winner;
    if (winner == 0) continue;
    const uint64_t of_part =
        score_of(request, value_of(winner), id_of(winner), value_of(found.best));
    if (of_part > score) score = of_part, z = value_of(winner);
  }
  found.score = block_max<kMergeThreads>(score);
  __shared__ float z_of_winner;
  // All keys differ, so that one thread holds the greatest.
  if (found.score == score && score != 0) z_of_winner = z;
  __syncthreads();
  found.z = z_of_winner;
  return found;
}

/// The entry of this block's stream, for the thread that moves it on.
__device__ AdvanceEntry entry_of(const PlainLaunch& p) {
  if (p.advance.counters == nullptr || threadIdx.x != 0) return {};
  AdvanceEntry entry = load_entry(p.advance, static_cast<int32_t>(blockIdx.x));
  --entry.counters.number, --entry.counters.round;  // find_parts has counted this launch
  return entry;
}
__device__ void move_on(const PlainLaunch& p, const AdvanceEntry& entry, int32_t drawn) {
  if (p.advance.counters == nullptr || threadIdx.x != 0) return;
  advance_row(p.advance, entry, static_cast<int32_t>(blockIdx.x), drawn);
}

/// `winner`: a key; 0: none. Returns the token.
__device__ int32_t answer_row(SampleAnswer& answer, uint64_t winner) {
  if (threadIdx.x < kMaxTopLogprobs) {
    answer.top_ids[threadIdx.x] = 0;
    answer.top_logprobs[threadIdx.x] = 0;
  }
  const int32_t token = winner == 0 ? 0 : id_of(winner);
  if (threadIdx.x == 0) {
    answer.token = token;
    answer.logprob = 0;
    answer.rank = 0;
    answer.num_top = 0;
  }
  return token;
}

__global__ void __launch_bounds__(kMergeThreads)
    merge_parts(const __grid_constant__ PlainLaunch p) {
  wait_for_previous();
  launch_next();
  const AdvanceEntry entry = entry_of(p);
  const Winner winner = winner_of(p, p.requests[blockIdx.x]);
  move_on(p, entry, answer_row(p.answers[blockIdx.x], winner.score));
}

// The same over the ids of all ranks: a row is a word, whose values are the greatest logit of a
// rank, the logit and the id of its winner. Every rank scores all winners.
template <int kMost>
__global__ void __launch_bounds__(kMergeThreads)
    merge_ranks(const __grid_constant__ PlainLaunch p) {
  constexpr uint32_t kNoId = ~0u;
  wait_for_previous();
  launch_next();
  const RankMail& m = p.mail;
  const uint32_t before = *reinterpret_cast<volatile uint32_t*>(m.state);
  const SampleRequest& request = p.requests[blockIdx.x];
  const bool greedy = !(request.temperature >= kGreedyTemperature);
  const Winner mine = winner_of(p, request);
  __shared__ uint64_t winner;
  __shared__ bool is_sound;
  if (threadIdx.x == 0) {
    const bool has_id = mine.score != 0;
    const mail::Word own{{f32_to_bits(value_of(mine.best)), f32_to_bits(mine.z),
                          has_id ? static_cast<uint32_t>(id_of(mine.score)) : kNoId},
                         before + 1};
    mail::send_word(m, own, blockIdx.x);
    mail::Word words[kMost];
    is_sound = mail::receive_words(m, own, blockIdx.x, words);
    float best = -INFINITY;
    for (int32_t rank = 0; rank < m.size; ++rank)
      if (words[rank].values[2] != kNoId) best = fmaxf(best, bits_to_f32(words[rank].values[0]));
    winner = 0;
    for (int32_t rank = 0; rank < m.size; ++rank) {
      if (words[rank].values[2] == kNoId) continue;
      const float z = bits_to_f32(words[rank].values[1]);
      const auto id = static_cast<int32_t>(words[rank].values[2]);
      winner = Max()(winner, greedy ? key_of(z, id) : score_of(request, z, id, best));
    }
  }
  __syncthreads();
  SampleAnswer& answer = p.answers[blockIdx.x];
  move_on(p, entry_of(p), is_sound ? answer_row(answer, winner) : answer.token);
  mail::end_kernel(m.state, m.state + 2, before + 1);
}

// Of a row: those of this launch.
int32_t width_of(const SampleParams& params) {
  return params.kind == LinkKind::kNone ? params.vocab : params.part_width;
}
int32_t num_parts(const SampleParams& params, int32_t num_rows) {
  return ceil_div(width_of(params), kPartThreads * ids_a_thread(num_rows));
}

/// Finds the parts' winners; returns what the merging kernel takes.
PlainLaunch find(const char* row, const SampleParams& params) {
  const PlainLaunch launch{
      .logits = params.logits,
      .requests = params.requests,
      .answers = params.answers,
      .parts = reinterpret_cast<Part*>(params.launch.workspace),
      .first_id = params.first_id,
      .width = width_of(params),
      .num_parts = num_parts(params, params.num_rows),
      .mail = params.link == nullptr ? RankMail() : *params.link->mail(),
      .advance = params.advance == nullptr ? AdvanceParams() : *params.advance};
  launch_kernel(row,
                ids_a_thread(params.num_rows) == kIdsAThread ? find_parts<kIdsAThread>
                                                             : find_parts<kIdsAThreadOfMany>,
                launch,
                {.grid = dim3(static_cast<unsigned>(launch.num_parts),
                              static_cast<unsigned>(params.num_rows)),
                 .num_threads = kPartThreads,
                 .programmatic = true},
                launch_stream(params.launch.stream));
  return launch;
}
LaunchShape merge_shape(const SampleParams& params) {
  return {.grid = dim3(static_cast<unsigned>(params.num_rows)),
          .num_threads = kMergeThreads,
          .programmatic = true};
}

}  // namespace

uint64_t sample_plain_workspace(const SampleParams& params) {
  const auto bytes = [&](int32_t num_rows) {
    return sizeof(Part) * static_cast<uint64_t>(num_rows) *
           static_cast<uint64_t>(num_parts(params, num_rows));
  };
  // The parts of fewer rows may be more.
  return std::max(bytes(params.num_rows), bytes(std::min(params.num_rows, kManyRows - 1)));
}

void sample_plain(const char* row, const SampleParams& params) {
  const PlainLaunch launch = find(row, params);
  launch_kernel(row, merge_parts, launch, merge_shape(params), launch_stream(params.launch.stream));
}

const char* sample_f32_gumbel_peers_cuda_refuses(const SampleParams& params) {
  if (params.kind != LinkKind::kPeers) return "ranks are not GPUs of one process";
  if (!params.all_plain) return "a request needs more than each rank's winner";
  if (params.num_rows > RankMail::kWords) return "more rows than a rank has words";
  return params.vocab > kMaxVocab ? "the vocabulary is larger than 1048576" : nullptr;
}

void sample_f32_gumbel_peers_cuda(const SampleParams& params) {
  if (params.num_rows == 0) return;
  constexpr const char* kRow = "sample_f32_gumbel_peers_cuda";
  const PlainLaunch launch = find(kRow, params);
  mail::with_most_ranks(launch.mail.size, [&]<int kMost>() {
    launch_kernel(kRow, merge_ranks<kMost>, launch, merge_shape(params),
                  launch_stream(params.launch.stream));
  });
}

}  // namespace moxie
