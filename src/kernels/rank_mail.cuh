// Words between ranks on GPUs: a word is 16 bytes, 12 of values and the number of the chunk that
// they belong to. A rank stores its words straight into the memory of the others and reads its own
// until the chunk's number is there, so that neither a fence nor a second message is needed: a
// store of 16 bytes is seen whole.
//
// A chunk is RankMail::kWords words at most, and chunks alternate between two places. A thread that
// has read chunk n from all ranks knows that the same thread of each of them has read chunk n - 1,
// so that it may overwrite it. For that every rank gives word w to the same thread, and a kernel of
// several chunks fills each: send_and_receive() does both.
//
// For many values numbers beside them cost a quarter of the link, and a thread that waits for every
// word leaves it idle: send_and_receive_units() stores 16 bytes of values at once, and a block's
// number, its flag, behind a block's round of them. Rounds alternate between four places, since a
// block sends the next before it waits for the last. A flag that a block awaits is ahead by fewer
// rounds than there are places: one that looks further ahead is old, of a kernel with more blocks.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda_launch.cuh"
#include "core/rank_link.h"
#include "core/rank_mail.h"
#include "kernels/op.h"

namespace moxie::mail {

inline constexpr int kThreads = 256, kBlocksOfSm = RankMail::kBlocksOfUnit;

/// The chunks of `count` words, and the blocks of a kernel that exchanges them.
struct Extent {
  int64_t words_of_chunk = 0;
  int32_t num_chunks = 0, num_blocks = 0;
};
inline Extent extent_of(const RankMail& mail, int64_t num_words) {
  const int64_t chunks = ceil_div(num_words, RankMail::kWords);
  const int64_t words = chunks > 1 ? RankMail::kWords : num_words;
  return {
      words, static_cast<int32_t>(chunks),
      static_cast<int32_t>(std::min<int64_t>(mail.num_blocks, ceil_div<int64_t>(words, kThreads)))};
}
/// The rounds of a kernel that exchanges `num_units` units, and its blocks; `of_block`: of a block
/// in a round.
struct Rounds {
  int64_t num_units = 0;
  int32_t num_rounds = 0, num_blocks = 0;
};
inline Rounds rounds_of(const RankMail& mail, int64_t num_units,
                        int64_t of_block = RankMail::kUnitsOfBlock) {
  const int64_t pieces = ceil_div(num_units, of_block);
  const int64_t rounds = ceil_div<int64_t>(pieces, mail.num_blocks);
  return {num_units, static_cast<int32_t>(rounds),
          static_cast<int32_t>(ceil_div<int64_t>(pieces, rounds))};
}

#ifdef __CUDACC__

struct Word {
  uint32_t values[3];  // three floats, or six in BF16
  uint32_t chunk;
};

__device__ __forceinline__ void store_word(std::byte* at, const Word& word) {
  asm volatile(
      "{\n .reg .b128 w;\n .reg .b64 lo, hi;\n"
      " mov.b64 lo, {%1, %2};\n mov.b64 hi, {%3, %4};\n mov.b128 w, {lo, hi};\n"
      " st.relaxed.sys.global.b128 [%0], w;\n}" ::"l"(at),
      "r"(word.values[0]), "r"(word.values[1]), "r"(word.values[2]), "r"(word.chunk)
      : "memory");
}
__device__ __forceinline__ Word load_word(const std::byte* at) {
  uint32_t a, b, c, chunk;
  asm volatile(
      "{\n .reg .b128 w;\n .reg .b64 lo, hi;\n ld.relaxed.sys.global.b128 w, [%4];\n"
      " mov.b128 {lo, hi}, w;\n mov.b64 {%0, %1}, lo;\n mov.b64 {%2, %3}, hi;\n}"
      : "=r"(a), "=r"(b), "=r"(c), "=r"(chunk)
      : "l"(at)
      : "memory");
  return {{a, b, c}, chunk};
}

/// What rank `from` sends to rank `to`, in the memory of that.
__device__ __forceinline__ std::byte* box_at(const RankMail& m, int32_t to, int32_t from) {
  return m.boxes[to] + from * RankMail::kBytesOfRank;
}
/// Where rank `from`'s word lies in the memory of rank `to`.
__device__ __forceinline__ std::byte* word_at(const RankMail& m, int32_t to, int32_t from,
                                              uint32_t chunk, int64_t word) {
  const int64_t slot = chunk % RankMail::kSlots;
  return box_at(m, to, from) + 16 * (slot * RankMail::kWords + word);
}

/// Whether a thread that has looked in vain `looks` times shall look again; if not, all ranks end.
__device__ __forceinline__ bool looks_again(const RankMail& m, int32_t awaited, uint32_t looks,
                                            uint64_t* start) {
  if (looks % 1024 != 0) return true;
  if (*reinterpret_cast<volatile uint32_t*>(m.fault) != 0) return false;
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (*start == 0) *start = now;
  if (now - *start < m.patience_ns) return true;
  atomicCAS_system(m.fault, 0u, static_cast<uint32_t>(awaited) + 1);
  return false;
}

/// Stores a rank's word w of a chunk into the memory of all others.
__device__ __forceinline__ void send_word(const RankMail& m, const Word& own, int64_t w) {
  for (int32_t to = 0; to < m.size; ++to)
    if (to != m.rank) store_word(word_at(m, to, m.rank, own.chunk, w), own);
}
/// Waits for the word w of every other rank; `words` by rank. False after a fault.
template <int kMost>
__device__ __forceinline__ bool receive_words(const RankMail& m, const Word& own, int64_t w,
                                              Word (&words)[kMost]) {
  uint32_t looks = 0;
  uint64_t start = 0;
  int32_t missing;
  do {
    missing = -1;
#pragma unroll
    for (int32_t from = 0; from < kMost; ++from) {
      words[from] = {};
      if (from >= m.size || from == m.rank) continue;
      words[from] = load_word(word_at(m, m.rank, from, own.chunk, w));
      if (words[from].chunk != own.chunk) missing = from;
    }
    if (missing >= 0 && !looks_again(m, missing, ++looks, &start)) return false;
  } while (missing >= 0);
#pragma unroll
  for (int32_t from = 0; from < kMost; ++from) {
#pragma unroll
    for (int v = 0; v < 3; ++v)  // by value: else the array would lie in memory
      words[from].values[v] = from == m.rank ? own.values[v] : words[from].values[v];
  }
  return true;
}

/// A block's thread that comes here last of all blocks' sets the number; all have read it by then.
__device__ __forceinline__ void end_block(uint32_t* number, uint32_t* ended, uint32_t value) {
  if (atomicInc(ended, gridDim.x - 1) == gridDim.x - 1)
    *reinterpret_cast<volatile uint32_t*>(number) = value;
}
/// The same, called by all threads.
__device__ __forceinline__ void end_kernel(uint32_t* number, uint32_t* ended, uint32_t value) {
  __syncthreads();
  if (threadIdx.x == 0) end_block(number, ended, value);
}

/// Exchanges words with all ranks, from all threads of a kernel of extent.num_blocks blocks. For
/// every word w of all chunks, padding of the last one included: `mine(w, values)` makes this
/// rank's; `early(w)` loads what is needed besides, while words are on their way; `all(w, words,
/// early)` gets those of every rank by its number, its own too. After a fault `all` is not called
/// any more. `kMost`: ranks, of which there may be fewer.
template <int kMost, typename Mine, typename Early, typename All>
__device__ __forceinline__ void send_and_receive(const RankMail& m, const Extent& extent,
                                                 Mine&& mine, Early&& early, All&& all) {
  const uint32_t before = *reinterpret_cast<volatile uint32_t*>(m.state);
  const int64_t first = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t stride = gridDim.x * int64_t{kThreads};  // mostly, a thread has one word
  bool is_sound = true;
  for (int32_t c = 0; c < extent.num_chunks; ++c) {
    const uint32_t chunk = before + static_cast<uint32_t>(c) + 1;
    const int64_t base = c * extent.words_of_chunk;
    for (int64_t w = first; w < extent.words_of_chunk && is_sound; w += stride) {
      Word words[kMost], own{.chunk = chunk};
      mine(base + w, own.values);
      send_word(m, own, w);
      const auto more = early(base + w);
      is_sound = receive_words(m, own, w, words);
      if (is_sound) all(base + w, words, more);
    }
  }
  end_kernel(m.state, m.state + 2, before + static_cast<uint32_t>(extent.num_chunks));
}

__device__ __forceinline__ void store_flag(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_flag(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

/// Where this block's units of a round from rank `from` lie in the memory of rank `to`.
__device__ __forceinline__ uint4* units_at(const RankMail& m, int32_t to, int32_t from,
                                           uint32_t round) {
  const int64_t slot = round % RankMail::kUnitSlots;
  return reinterpret_cast<uint4*>(box_at(m, to, from) + RankMail::kUnitsAt) +
         (slot * RankMail::kMostBlocks + blockIdx.x) * RankMail::kUnitsOfBlock;
}
enum Flag : int32_t { kOfValues, kOfSums };  // of RankMail::kFlags
__device__ __forceinline__ uint32_t* flag_at(const RankMail& m, Flag flag, int32_t to,
                                             int32_t from) {
  return reinterpret_cast<uint32_t*>(box_at(m, to, from) + RankMail::kFlagsAt) +
         flag * RankMail::kMostBlocks + blockIdx.x;
}
/// Whether the calling thread has the flags of a rank: that of its own number, but for this rank's.
__device__ __forceinline__ bool has_flags(const RankMail& m) {
  const auto other = static_cast<int32_t>(threadIdx.x);
  return other < m.size && other != m.rank;
}
/// Tells every rank that the units of the round, which all threads of this block have stored, are
/// there.
__device__ __forceinline__ void leave_flags(const RankMail& m, Flag flag, uint32_t round) {
  __syncthreads();
  if (!has_flags(m)) return;
  __threadfence_system();
  store_flag(flag_at(m, flag, static_cast<int32_t>(threadIdx.x), m.rank), round);
}
/// Waits for the round's units of all ranks, for this block. False, in all threads: a rank has been
/// awaited in vain.
__device__ __forceinline__ bool await_flags(const RankMail& m, Flag flag, uint32_t round) {
  bool is_sound = true;
  if (has_flags(m)) {
    const auto other = static_cast<int32_t>(threadIdx.x);
    const uint32_t* at = flag_at(m, flag, m.rank, other);
    uint32_t looks = 0;
    uint64_t start = 0;
    while (is_sound && load_flag(at) - round >= uint32_t{RankMail::kUnitSlots})
      is_sound = looks_again(m, other, ++looks, &start);
  }
  return __syncthreads_and(is_sound) != 0;
}

/// Exchanges units of 16 bytes with all ranks, from all threads of a kernel of rounds.num_blocks
/// blocks. `mine(u)` makes this rank's unit u; `all(u, units)` gets those of every rank by its
/// number. After a fault `all` is not called any more.
template <int kMost, typename Mine, typename All>
__device__ __forceinline__ void send_and_receive_units(const RankMail& m, const Rounds& rounds,
                                                       Mine&& mine, All&& all) {
  constexpr int kUnits = RankMail::kUnitsOfBlock / kThreads;  // of a thread in a round
  const uint32_t before = *reinterpret_cast<volatile uint32_t*>(m.state + 1);
  const auto unit_of = [&](int32_t r, int i) {
    return (int64_t{r} * gridDim.x + blockIdx.x) * RankMail::kUnitsOfBlock + i * kThreads +
           threadIdx.x;
  };
  const auto send_round = [&](int32_t r, uint4(&own)[kUnits]) {
    const uint32_t round = before + static_cast<uint32_t>(r) + 1;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (unit_of(r, i) < rounds.num_units) own[i] = mine(unit_of(r, i));
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit_of(r, i) >= rounds.num_units) continue;
      for (int32_t to = 0; to < m.size; ++to)
        if (to != m.rank) units_at(m, to, m.rank, round)[i * kThreads + threadIdx.x] = own[i];
    }
    leave_flags(m, kOfValues, round);
  };
  uint4 own[kUnits], next[kUnits];
  send_round(0, own);
  for (int32_t r = 0; r < rounds.num_rounds; ++r) {
    if (r + 1 < rounds.num_rounds) send_round(r + 1, next);
    const uint32_t round = before + static_cast<uint32_t>(r) + 1;
    if (!await_flags(m, kOfValues, round)) break;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (unit_of(r, i) >= rounds.num_units) continue;
      uint4 units[kMost];
#pragma unroll
      for (int32_t from = 0; from < kMost; ++from) {
        if (from >= m.size) continue;
        units[from] = from == m.rank
                          ? own[i]
                          : __ldcg(units_at(m, m.rank, from, round) + i * kThreads + threadIdx.x);
      }
      all(unit_of(r, i), units);
    }
#pragma unroll
    for (int i = 0; i < kUnits; ++i) own[i] = next[i];
  }
  end_kernel(m.state + 1, m.state + 2, before + static_cast<uint32_t>(rounds.num_rounds));
}

#endif

/// Calls body<kMost>() for this many ranks.
template <typename Body>
void with_most_ranks(int32_t size, Body&& body) {
  if (size <= 2) return body.template operator()<2>();
  if (size <= 4) return body.template operator()<4>();
  body.template operator()<RankMail::kMostRanks>();
}

/// How the kernel of an exchange is launched.
inline LaunchShape shape_of(int32_t num_blocks, const Launch& launch) {
  return {.grid = dim3(static_cast<unsigned>(num_blocks)),
          .num_threads = kThreads,
          .programmatic = true,
          .leaves_l1 = launch.l1 == L1Form::kL1};
}

}  // namespace moxie::mail
