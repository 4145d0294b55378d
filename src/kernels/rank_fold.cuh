// reduce as part of a kernel that reads x (ReduceFold), for one token: some blocks send this rank's
// words, every block waits for all words that it reads. A word is three neighbouring values. Blocks
// that send must be among the first of the grid: no block may wait before them.
#pragma once

#include "kernels/rank_mail.cuh"
#include "kernels/reduce/reduce_fold.h"
#include "kernels/residual.cuh"

namespace moxie::mail {

inline constexpr int kValuesOfFold = 3, kMostRanksOfFold = 4;

/// A kernel's parameters. Values are of two floats (kernels/residual.cuh).
struct Fold {
  RankMail mail;            // size 1: nothing is missing
  const float2* part;       // [hidden] of this rank
  const float2* more_part;  // [num_more]: values behind these, without an x; or null
  const float2* before;     // [hidden]: x without the parts
  float2* x;                // [hidden], written
  float2* cleared[2];       // [hidden], or null
  int32_t hidden, num_more;

  __host__ __device__ int num_words() const {
    return hidden / kValuesOfFold + (num_more + kValuesOfFold - 1) / kValuesOfFold;
  }
};

inline Fold fold_of(const ReduceFold& reduce, const float* before, int32_t hidden) {
  Fold fold{};
  if (reduce.link != nullptr) fold.mail = *reduce.link->mail();
  fold.part = reinterpret_cast<const float2*>(reduce.part);
  fold.before = reinterpret_cast<const float2*>(before);
  fold.x = reinterpret_cast<float2*>(reduce.x);
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

/// Exchanges the words from `first` to `end` - 1, at most kRounds for each thread of the block, and
/// calls take(i, value) for their values: those of x with all parts, and from `hidden` on the sums
/// of what has no x. `sends(w)`: this block sends the word, and writes x. After a fault nothing is
/// taken.
template <int kMost, int kRounds, typename Sends, typename Take>
__device__ __forceinline__ void fold_words(const Fold& f, uint32_t before, int first, int end,
                                           Sends&& sends, Take&& take) {
  const bool has_parts = f.mail.size > 1;
  const int num_values = f.hidden + f.num_more;
  int64_t places[kRounds];
  bool has_word[kRounds];
  Word own[kRounds], words[kRounds][kMost];
  float x[kRounds][kValuesOfFold];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const int w = first + threadIdx.x + r * blockDim.x;
    has_word[r] = w < end;
    places[r] = min(w, end - 1);  // a thread without a word waits for the last
    own[r].chunk = before + 1;
    const int at = kValuesOfFold * static_cast<int>(places[r]);
#pragma unroll
    for (int i = 0; i < kValuesOfFold; ++i) {
      float part = 0;
      x[r][i] = 0;
      if (at + i < num_values) {
        const bool is_x = at < f.hidden;
        if (has_parts) part = whole(is_x ? f.part[at + i] : f.more_part[at + i - f.hidden]);
        if (is_x) x[r][i] = whole(f.before[at + i]);
      }
      own[r].values[i] = __float_as_uint(part);
    }
  }
  if (has_parts) {
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
      if (has_word[r] && sends(static_cast<int>(places[r]))) send_word(f.mail, own[r], places[r]);
    if (!receive_words(f.mail, own, places, words)) return;
  }
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (!has_word[r]) continue;
    const int at = kValuesOfFold * static_cast<int>(places[r]);
    const bool writes = at < f.hidden && sends(static_cast<int>(places[r]));
#pragma unroll
    for (int i = 0; i < kValuesOfFold; ++i) {
      float sum = 0;
      if (has_parts) {
        sum = __uint_as_float(words[r][0].values[i]);
#pragma unroll
        for (int32_t rank = 1; rank < kMost; ++rank)
          if (rank < f.mail.size) sum += __uint_as_float(words[r][rank].values[i]);
      }
      if (at + i >= num_values) continue;
      const float value = x[r][i] + sum;
      take(at + i, value);
      if (writes) f.x[at + i] = split_residual(value);
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
