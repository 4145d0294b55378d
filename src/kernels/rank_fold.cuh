// reduce as part of a kernel that reads x (ReduceFold), for one token: some blocks send this rank's
// words, every block waits for all words that it reads. A word is three neighbouring values. Blocks
// that send must be among the first of the grid: no block may wait before them.
#pragma once

#include "kernels/rank_mail.cuh"
#include "kernels/reduce_fold.h"
#include "kernels/residual.cuh"

namespace moxie::mail {

inline constexpr int kValuesOfFold = 3, kMostRanksOfFold = 4;

/// A kernel's parameters. Parts are of two floats a value (kernels/residual.cuh).
struct Fold {
  RankMail mail;            // size 1: nothing is missing
  const float2* part;       // [hidden] of this rank
  const float2* more_part;  // [num_more]: values behind these, without an x; or null
  // [hidden]: x without the parts, and x with them, written. One of each is null: between the rows
  // x is of two floats a value, and within a layer of one.
  const float2* pairs;
  const float* singles;
  float2* x_pairs;
  float* x_singles;
  float2* cleared[2];  // [hidden], or null
  int32_t hidden, num_more;

  __host__ __device__ int num_words() const {
    return hidden / kValuesOfFold + (num_more + kValuesOfFold - 1) / kValuesOfFold;
  }
};

/// Whether a kernel's step adds the parts of all ranks to the x that it reads: it has a Fold.
template <typename Step>
inline constexpr bool kFolds = requires(const Step& step) {
  step.fold;
};

inline Fold fold_of(const ReduceFold& reduce, int32_t hidden) {
  Fold fold{};
  if (reduce.link != nullptr) fold.mail = *reduce.link->mail();
  fold.part = reinterpret_cast<const float2*>(reduce.part);
  for (int i = 0; i < 2; ++i) fold.cleared[i] = reinterpret_cast<float2*>(reduce.cleared[i]);
  fold.hidden = hidden;
  return fold;
}

/// Why rows cannot exchange the parts of x; null if they can.
inline const char* refuses_fold(const ReduceFold& reduce, int32_t num_tokens, int32_t hidden) {
  if (reduce.kind != LinkKind::kPeers) return "ranks are not GPUs of one process";
  if (reduce.num_ranks > kMostRanksOfFold) return "more than four ranks";
  if (num_tokens != 1) return "more than one token";
  return hidden % kValuesOfFold == 0 ? nullptr : "the hidden size is no multiple of 3";
}

/// Calls body<kMost>() for this many ranks at most.
template <typename Body>
void with_most_ranks_of_fold(const ReduceFold& reduce, Body&& body) {
  if (reduce.num_ranks <= 2) return body.template operator()<2>();
  body.template operator()<kMostRanksOfFold>();
}

#ifdef __CUDACC__

/// The number of exchanges before: read behind the wait for the previous kernel.
__device__ __forceinline__ uint32_t exchanges_before(const Fold& fold) {
  return fold.mail.size == 1 ? 0 : *reinterpret_cast<volatile uint32_t*>(fold.mail.state);
}

/// Sends this rank's word w to all ranks, itself too: other blocks read it there.
__device__ __forceinline__ void send_fold_word(const Fold& f, uint32_t chunk, int w) {
  const int at = kValuesOfFold * w;
  Word word{{}, chunk};
#pragma unroll
  for (int i = 0; i < kValuesOfFold; ++i) {
    float value = 0;
    if (at < f.hidden)
      value = whole(f.part[at + i]);
    else if (at + i < f.hidden + f.num_more)
      value = whole(f.more_part[at + i - f.hidden]);
    word.values[i] = __float_as_uint(value);
  }
  for (int32_t to = 0; to < f.mail.size; ++to)
    store_word(word_at(f.mail, to, f.mail.rank, chunk, w), word);
}

/// Waits for the words `w` of all ranks, by all threads of a warp. False after a fault.
template <int kMost, int kRounds>
__device__ __forceinline__ bool receive_fold_words(const Fold& f, uint32_t chunk,
                                                   const int (&w)[kRounds],
                                                   Word (&words)[kRounds][kMost]) {
  uint32_t looks = 0;
  uint64_t start = 0;
  // A warp's words come together: until then one lane looks for one of another rank, since the
  // looks of all threads of all blocks would hold up the words.
  if (threadIdx.x % 32 == 0) {
    const int32_t other = f.mail.rank == 0 ? 1 : 0;
    const std::byte* at = word_at(f.mail, f.mail.rank, other, chunk, w[0]);
    while (load_word(at).chunk != chunk && looks_again(f.mail, other, ++looks, &start)) {
    }
  }
  __syncwarp();
  int32_t missing;
  do {
    missing = -1;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int32_t from = 0; from < kMost; ++from) {
        words[r][from] = {{}, chunk};
        if (from < f.mail.size)
          words[r][from] = load_word(word_at(f.mail, f.mail.rank, from, chunk, w[r]));
      }
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
#pragma unroll
      for (int32_t from = 0; from < kMost; ++from)
        if (words[r][from].chunk != chunk) missing = from;
    }
    if (missing >= 0 && !looks_again(f.mail, missing, ++looks, &start)) return false;
  } while (missing >= 0);
  return true;
}

/// Exchanges the words from `first` to `end` - 1, at most kRounds for each thread of the block, and
/// calls take(i, value) for their values: those of x with all parts, and from `hidden` on the sums
/// of what has no x. `sends(w)`: this block sends the word, and writes x. After a fault nothing is
/// taken.
template <int kMost, int kRounds, typename Sends, typename Take>
__device__ __forceinline__ void fold_words(const Fold& f, uint32_t before, int first, int end,
                                           Sends&& sends, Take&& take) {
  const bool has_parts = f.mail.size > 1;
  int w[kRounds];
  bool has_word[kRounds];
  Word words[kRounds][kMost];
  float x[kRounds][kValuesOfFold];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int mine = first + threadIdx.x + r * blockDim.x;
    has_word[r] = mine < end;
    w[r] = min(mine, end - 1);  // a thread without a word waits for the last
    if (has_parts && has_word[r] && sends(w[r])) send_fold_word(f, before + 1, w[r]);
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
#pragma unroll
    for (int i = 0; i < kValuesOfFold; ++i) {
      const int at = kValuesOfFold * w[r] + i;
      x[r][i] = at >= f.hidden ? 0.0f : f.pairs != nullptr ? whole(f.pairs[at]) : f.singles[at];
    }
  }
  if (has_parts && !receive_fold_words(f, before + 1, w, words)) return;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (!has_word[r]) continue;
    const bool writes = sends(w[r]);
#pragma unroll
    for (int i = 0; i < kValuesOfFold; ++i) {
      const int at = kValuesOfFold * w[r] + i;
      if (at >= f.hidden + f.num_more) continue;
      float sum = 0;
      if (has_parts) {
        sum = __uint_as_float(words[r][0].values[i]);
#pragma unroll
        for (int32_t rank = 1; rank < kMost; ++rank)
          if (rank < f.mail.size) sum += __uint_as_float(words[r][rank].values[i]);
      }
      const float value = x[r][i] + sum;
      take(at, value);
      if (!writes || at >= f.hidden) continue;
      if (f.x_pairs != nullptr)
        f.x_pairs[at] = split_residual(value);
      else
        f.x_singles[at] = value;
    }
  }
}

/// Clears what is to be cleared; by all threads of the grid.
__device__ __forceinline__ void clear_parts(const Fold& f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < f.hidden; i += gridDim.x * blockDim.x) {
#pragma unroll
    for (float2* part : f.cleared)
      if (part != nullptr) part[i] = make_float2(0, 0);
  }
}

/// By one thread of each block, which has read the number of exchanges.
__device__ __forceinline__ void end_fold(const Fold& f, uint32_t before) {
  if (f.mail.size > 1) end_block(f.mail.state, f.mail.state + 2, before + 1);
}

#endif

}  // namespace moxie::mail
