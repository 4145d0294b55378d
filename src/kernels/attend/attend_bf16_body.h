// The attend tile with BF16 products, written once over the instruction that multiplies. Include
// this file only in attend_any_bf16_flash_<variant>.cpp; it needs AVX-512 F, BW, DQ, VL and BF16.
// All its code is in an anonymous namespace, for the reason that gemv/lanes.h gives.
//
// Queries are rounded to BF16 once a segment, weights once a chunk of 64 keys; values of BF16 and
// F8E4M3 caches are exact in BF16. Sums are F32. The denominator sums the rounded weights. So the
// normalised weights add up to exactly one, and rounding moves a result only by the spread of the
// values. One product with ones adds 32 weights.
//
// A product works on blocks: 16 rows, and 32 dimensions or 32 keys. A left matrix has blocks of 16
// rows x 32 BF16, a right matrix blocks of 16 pairs x 16 columns x 2 (1 KiB each).
//
// As in attend_tile_body.h, a row's result depends on its own position and keys only: chunks are
// cut at multiples of 64 positions, keys that a row does not see add exact zeros, and halves of a
// chunk that no row of the tile sees are skipped.
//
// `Product` has begin() and end() around a segment, and
//   multiply(a, b, num_steps, num_cols, adds, num_rows, sums, stride):
// sums[16, num_cols * 16] (rows `stride` floats apart) = or += a [num_steps] times b [num_steps,
// num_cols], added in the order of the blocks along num_steps. num_cols is even. Only the first
// num_rows rows of sums are used; multiply may write the others.
#pragma once

#include "kernels/attend/attend_tile_avx512.h"

namespace moxie {
namespace {

template <typename Product>
struct AttendBf16Body {
  using Flash = AttendTileBody<Avx512>;

  static constexpr int32_t kGroupRows = 16;
  static constexpr int32_t kHalfKeys = kAttendChunk;
  static constexpr int32_t kChunkKeys = 2 * kHalfKeys;
  static constexpr int32_t kBlockValues = 512;

  struct Memory {
    alignas(64) uint16_t q[kAttendMaxRows * kAttendMaxBf16HeadDim];  // [group, step] blocks
    alignas(64) uint16_t k[kChunkKeys * kAttendMaxBf16HeadDim];      // [32 dims, 16 keys] blocks
    alignas(64) uint16_t v[kChunkKeys * kAttendMaxBf16HeadDim];      // [32 keys, 16 dims] blocks
    // The rows of two groups alternate: addresses whose low 12 bits agree belong to one group, so
    // that no load of one group waits for stores of the other.
    alignas(64) float scores[kGroupRows][2][kChunkKeys];
    alignas(64) uint16_t weights[kGroupRows * kChunkKeys] = {};    // [32 keys] blocks
    alignas(64) float last_o[kGroupRows * kAttendMaxBf16HeadDim];  // of a group that is not full
  };

  // A chunk without the halves that no row of the tile sees.
  struct Chunk {
    int32_t first, num_halves;
    AttendChunkRows rows[2];
    int32_t num_keys() const { return num_halves * kHalfKeys; }
  };

  // False if no row of the tile sees any of the 64 keys from `first`.
  static bool find_chunk(const AttendTile& tile, int32_t first, Chunk& chunk) {
    const int32_t begin = Flash::clamp(Flash::first_seen(tile, 0), first, first + kChunkKeys);
    const int32_t end =
        Flash::clamp(tile.positions[tile.num_tokens - 1] + 1, first, first + kChunkKeys);
    if (begin >= end) return false;
    chunk.first = begin - begin % kHalfKeys;
    chunk.num_halves = (end - chunk.first + kHalfKeys - 1) / kHalfKeys;
    for (int32_t half = 0; half < chunk.num_halves; ++half) {
      const int32_t from = chunk.first + half * kHalfKeys;
      Flash::find_rows(tile, from, Flash::clamp(begin, from, from + kHalfKeys),
                       Flash::clamp(end, from, from + kHalfKeys), chunk.rows[half]);
    }
    return true;
  }

  // ---- Operands ---------------------------------------------------------------------------------

  static __m512i round_pair(__m512 low, __m512 high) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

  static void load_queries(const AttendTile& tile, uint16_t* out) {
    const int32_t num_rows = tile.num_tokens * tile.group;
    for (int32_t first = 0; first < num_rows; first += kGroupRows) {
      for (int32_t d = 0; d < tile.head_dim; d += 32) {
        for (int32_t row = first; row < first + kGroupRows; ++row, out += 32) {
          const float* q = tile.q + static_cast<int64_t>(row) * tile.head_dim + d;
          _mm512_store_si512(out, row < num_rows
                                      ? round_pair(_mm512_load_ps(q), _mm512_load_ps(q + 16))
                                      : _mm512_setzero_si512());
        }
      }
    }
  }

  // 32 elements of a cache row, from element `d`.
  template <AttendKvType kType>
  static __m512i load_cache(const unsigned char* row, int32_t d) {
    if (kType == AttendKvType::kBF16) return _mm512_loadu_si512(row + 2 * d);
    return round_pair(Avx512::widen16(row, kType, d), Avx512::widen16(row, kType, d + 16));
  }
  template <AttendKvType kType>
  static void ask_for(const unsigned char* row, int32_t d) {
    Flash::ask_for(row + (kType == AttendKvType::kBF16 ? 2 : 1) * d);
  }

  // Pairs of dimensions x keys. load_keys and load_values prefetch what they will load of `next`.
  template <AttendKvType kType>
  static void load_keys(const AttendTile& tile, const Chunk& chunk, const Chunk& next,
                        uint16_t* out) {
    const int32_t num_cols = 2 * chunk.num_halves;
    for (int32_t d = 0; d < tile.head_dim; d += 32) {
      for (int32_t col = 0; col < num_cols; ++col, out += kBlockValues) {
        const unsigned char* const* rows = chunk.rows[col / 2].k + col % 2 * 16;
        const unsigned char* const* next_rows = next.rows[col / 2].k + col % 2 * 16;
        __m512i words[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          words[i] = load_cache<kType>(rows[i], d);
          ask_for<kType>(next_rows[i], d);
        }
        Avx512::transpose(words);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_si512(out + 32 * i, words[i]);
      }
    }
  }

  // Pairs of keys x dimensions. The permutation puts dimensions 4i..4i + 3 and 16 + 4i..16 + 4i + 3
  // into 128-bit lane i, so that unpacking yields dimensions in order.
  template <AttendKvType kType>
  static void load_values(const AttendTile& tile, const Chunk& chunk, const Chunk& next,
                          uint16_t* out) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const int64_t step_values = int64_t{tile.head_dim} / 16 * kBlockValues;
    for (int32_t half = 0; half < chunk.num_halves; ++half, out += step_values) {
      for (int32_t pair = 0; pair < 16; ++pair) {
        const unsigned char* const* rows = chunk.rows[half].v + 2 * pair;
        const unsigned char* const* next_rows = next.rows[half].v + 2 * pair;
        uint16_t* to = out + 32 * pair;
        for (int32_t d = 0; d < tile.head_dim; d += 32, to += 2 * kBlockValues) {
          const __m512i even = _mm512_permutexvar_epi64(order, load_cache<kType>(rows[0], d));
          const __m512i odd = _mm512_permutexvar_epi64(order, load_cache<kType>(rows[1], d));
          ask_for<kType>(next_rows[0], d);
          ask_for<kType>(next_rows[1], d);
          _mm512_store_si512(to, _mm512_unpacklo_epi16(even, odd));
          _mm512_store_si512(to + kBlockValues, _mm512_unpackhi_epi16(even, odd));
        }
      }
    }
  }

  // ---- Softmax ----------------------------------------------------------------------------------

  // exp(logit - m), given -m log2(e): 2^x = 2^floor(x) p(x - floor(x)), p the cubic of least
  // relative error (8e-5, a 26th of what rounding to BF16 adds). Below 2^-126 it stays there.
  static __m512 weigh(__m512 logit, __m512 minus_m) {
    const __m512 x = _mm512_max_ps(_mm512_set1_ps(-126.0f),
                                   _mm512_fmadd_ps(logit, _mm512_set1_ps(1.44269504f), minus_m));
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0.07802452f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.22606716f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69583356f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.9999252f));
    return _mm512_scalef_ps(p, x);
  }

  // A logit may exceed m by this much before m rises: weights up to e^8 are as exact as weights up
  // to 1, and after the first chunk of a segment m hardly ever has to rise.
  static constexpr float kSlack = 8;

  // Turns one row's logits of a chunk into rounded weights. The row sees keys [begin, end) of the
  // chunk. `o` is the row's sum of values.
  template <int kHalves>
  static void soften(const AttendTile& tile, int32_t row, int32_t begin, int32_t end,
                     const float* scores, float* o, uint16_t* weights, const AttendPartial& out) {
    constexpr int32_t kKeys = kHalves * kHalfKeys;
    if (begin >= end) {
      for (int half = 0; half < kHalves; ++half)
        _mm512_store_si512(weights + half * kBlockValues, _mm512_setzero_si512());
      return;
    }
    const bool is_masked = end - begin < kKeys;
    __m512 logits[2 * kHalves];
    __m512 greatest = _mm512_set1_ps(kAttendLowest);
#pragma GCC unroll 4
    for (int n = 0; n < 2 * kHalves; ++n) {
      logits[n] = _mm512_load_ps(scores + 16 * n);
      if (is_masked) {
        logits[n] =
            Avx512::where_between(logits[n], 16 * n, begin, end, _mm512_set1_ps(kAttendLowest));
      }
      greatest = _mm512_max_ps(greatest, logits[n]);
    }
    if (Avx512::exceeds(greatest, _mm512_set1_ps(out.m[row] + kSlack)))
      Flash::raise(tile, row, Avx512::greatest(greatest), o, out);
    const __m512 minus_m = _mm512_set1_ps(out.m[row] * -1.44269504f);
    const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F803F80));
    float* lanes = tile.lane_sums + row * 16;
    __m512 sum = _mm512_load_ps(lanes);
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      __m512 weight[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int n = 2 * half + i;
        weight[i] = weigh(logits[n], minus_m);
        if (is_masked)
          weight[i] = Avx512::where_between(weight[i], 16 * n, begin, end, _mm512_setzero_ps());
      }
      const __m512i rounded = round_pair(weight[0], weight[1]);
      _mm512_store_si512(weights + half * kBlockValues, rounded);
      sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(rounded), ones);
    }
    _mm512_store_ps(lanes, sum);
  }

  // ---- A chunk ----------------------------------------------------------------------------------

  template <int kHalves>
  static void run_chunk(const AttendTile& tile, const Chunk& chunk, const Chunk& next,
                        Memory& memory, const AttendPartial& out) {
    if (tile.type == AttendKvType::kBF16) {
      load_keys<AttendKvType::kBF16>(tile, chunk, next, memory.k);
      load_values<AttendKvType::kBF16>(tile, chunk, next, memory.v);
    } else {
      load_keys<AttendKvType::kF8E4M3>(tile, chunk, next, memory.k);
      load_values<AttendKvType::kF8E4M3>(tile, chunk, next, memory.v);
    }
    const int32_t num_rows = tile.num_tokens * tile.group, dim = tile.head_dim;
    const int32_t num_groups = (num_rows + kGroupRows - 1) / kGroupRows;
    const int32_t last_token = tile.num_tokens - 1;
    const bool is_masked = Flash::first_seen(tile, last_token) > chunk.first ||
                           tile.positions[0] + 1 < chunk.first + chunk.num_keys();
    auto score = [&](int32_t group) {
      const int32_t left = num_rows - group * kGroupRows;
      Product::multiply(memory.q + int64_t{group} * kGroupRows * dim, memory.k, dim / 32,
                        2 * kHalves, false, left < kGroupRows ? left : kGroupRows,
                        memory.scores[0][group % 2], 2 * kChunkKeys);
    };
    // Scores are computed one group ahead: a separate multiplying unit then works during the
    // softmax.
    score(0);
    for (int32_t group = 0; group < num_groups; ++group) {
      if (group + 1 < num_groups) score(group + 1);
      const int32_t first_row = group * kGroupRows;
      const int32_t left = num_rows - first_row;
      const int32_t in_group = left < kGroupRows ? left : kGroupRows;
      float* o = in_group < kGroupRows ? memory.last_o : out.o + int64_t{first_row} * dim;
      for (int32_t i = 0; i < in_group; ++i) {
        const int32_t row = first_row + i;
        int32_t begin = 0, end = kHalves * kHalfKeys;
        if (is_masked) {
          const int32_t token = row / tile.group;
          begin = Flash::clamp(Flash::first_seen(tile, token) - chunk.first, 0, end);
          end = Flash::clamp(tile.positions[token] + 1 - chunk.first, 0, end);
        }
        soften<kHalves>(tile, row, begin, end, memory.scores[i][group % 2], o + i * dim,
                        memory.weights + 32 * i, out);
      }
      Product::multiply(memory.weights, memory.v, kHalves, dim / 16, true, in_group, o, dim);
    }
  }

  static void segment(const AttendTile& tile, int32_t first_key, int32_t end_key,
                      const AttendPartial& out) {
    Memory memory;
    const int32_t num_rows = tile.num_tokens * tile.group;
    const int32_t full_rows = num_rows - num_rows % kGroupRows;
    const int32_t last_size = (num_rows - full_rows) * tile.head_dim;
    Flash::clear(tile, out);
    if (last_size > 0) {
      for (int32_t i = 0; i < kGroupRows * tile.head_dim; i += 16)
        _mm512_store_ps(memory.last_o + i, _mm512_setzero_ps());
    }
    load_queries(tile, memory.q);
    Product::begin();
    Chunk chunks[2];
    int32_t current = 0;
    bool found = false;  // whether chunks[current] is the chunk at `first`
    for (int32_t first = first_key; first < end_key; first += kChunkKeys) {
      Chunk& chunk = chunks[current];
      if (!found && !find_chunk(tile, first, chunk)) continue;
      // The next chunk is prefetched meanwhile, past the end of the segment too: the thread
      // probably continues there.
      Chunk& after = chunks[1 - current];
      found = find_chunk(tile, first + kChunkKeys, after);
      const Chunk& next = found ? after : chunk;
      if (chunk.num_halves == 2) {
        run_chunk<2>(tile, chunk, next, memory, out);
      } else {
        run_chunk<1>(tile, chunk, next, memory, out);
      }
      current = 1 - current;
    }
    Product::end();
    float* last_o = out.o + int64_t{full_rows} * tile.head_dim;
    for (int32_t i = 0; i < last_size; i += 16)
      _mm512_store_ps(last_o + i, _mm512_load_ps(memory.last_o + i));
    Flash::sum_lanes(tile, out);
  }

  static constexpr AttendTileCode code() { return {segment, Flash::merge, Flash::finish}; }
};

}  // namespace
}  // namespace moxie
