// The code of a tile, written once over a vector type `V` and compiled once for each instruction
// set. `V` is in an unnamed namespace of the including file, so that every instance is private to
// that file: the linker can never use one instruction set's code for another.
//
// V has kLanes, kScoreRows x kScoreVecs (accumulators of q k) and kSumRows x kSumVecs (of p v)
// that fit its registers, zero, set, load, store, add, mul, fma, max, exceeds (in any lane),
// greatest, sum, where_between, exp, load_keys, widen.
//
// The result of a row depends on its own position and keys only, not on its tile: keys are cut at
// multiples of the chunk and the segment, masked keys add exact zeros, and every row has its own
// chain of operations.
#pragma once

#include "kernels/attend/attend_tile.h"

namespace moxie {

inline constexpr float kAttendLowest = -3.402823466e38f;

/// The addresses of a chunk's keys and values; keys that no token sees point to rows of zeros.
struct AttendChunkRows {
  const unsigned char* k[kAttendChunk];
  const unsigned char* v[kAttendChunk];
};

alignas(64) static constexpr unsigned char kAttendZeroRow[4 * kAttendMaxHeadDim] = {};

template <typename V>
struct AttendTileBody {
  // The addresses of keys first..first + chunk - 1. Some token sees keys [begin, end).
  static void find_rows(const AttendTile& tile, int32_t first, int32_t begin, int32_t end,
                        AttendChunkRows& rows) {
    int32_t page_idx = begin / tile.page_tokens;
    int32_t in_page = begin % tile.page_tokens;
    for (int32_t i = 0; i < kAttendChunk; ++i) {
      if (first + i < begin || first + i >= end) {
        rows.k[i] = rows.v[i] = kAttendZeroRow;
        continue;
      }
      const int64_t at = tile.pages[page_idx] * tile.page_stride_bytes + in_page * tile.row_bytes;
      rows.k[i] = tile.k + at;
      rows.v[i] = tile.v + at;
      if (++in_page == tile.page_tokens) in_page = 0, ++page_idx;
    }
  }

  // scores[r, key] = q[r] . k[key] for kRows rows.
  template <int kRows>
  static void score(const AttendTile& tile, int32_t row) {
    const float* q = tile.q + static_cast<int64_t>(row) * tile.head_dim;
    float* out = tile.scores + static_cast<int64_t>(row) * kAttendChunk;
    constexpr int kVecs = V::kScoreVecs;
    for (int strip = 0; strip < kAttendChunk; strip += kVecs * V::kLanes) {
      typename V::Vec sums[kRows][kVecs];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n) sums[r][n] = V::zero();
      for (int d = 0; d < tile.head_dim; ++d) {
        typename V::Vec keys[kVecs];
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n)
          keys[n] = V::load(tile.k_columns + d * kAttendChunk + strip + n * V::kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const typename V::Vec query = V::set(q[r * tile.head_dim + d]);
#pragma GCC unroll 4
          for (int n = 0; n < kVecs; ++n) sums[r][n] = V::fma(query, keys[n], sums[r][n]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n)
          V::store(out + r * kAttendChunk + strip + n * V::kLanes, sums[r][n]);
    }
  }

  // o[r] += sum over keys [begin, end) of the chunk of p[r, key] v[key], for kRows rows and
  // kVecs vectors of the head from `d`.
  template <int kRows, int kVecs>
  static void add_values(const AttendTile& tile, int32_t row, int32_t d, int32_t begin, int32_t end,
                         float* o) {
    const int64_t dim = tile.head_dim;
    float* out = o + row * dim + d;
    const float* weights = tile.scores + static_cast<int64_t>(row) * kAttendChunk;
    typename V::Vec sums[kRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) sums[r][n] = V::load(out + r * dim + n * V::kLanes);
    for (int32_t key = begin; key < end; ++key) {
      typename V::Vec values[kVecs];
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n)
        values[n] = V::load(tile.v_rows + key * dim + d + n * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const typename V::Vec weight = V::set(weights[r * kAttendChunk + key]);
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n) sums[r][n] = V::fma(weight, values[n], sums[r][n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) V::store(out + r * dim + n * V::kLanes, sums[r][n]);
  }

  template <int kRows>
  static void add_values_rows(const AttendTile& tile, int32_t row, int32_t begin, int32_t end,
                              float* o) {
    constexpr int kStrip = V::kSumVecs * V::kLanes;
    int32_t d = 0;
    for (; d + kStrip <= tile.head_dim; d += kStrip)
      add_values<kRows, V::kSumVecs>(tile, row, d, begin, end, o);
    for (; d < tile.head_dim; d += V::kLanes) add_values<kRows, 1>(tile, row, d, begin, end, o);
  }

  // Turns one row's logits of a chunk into weights. The row sees keys [begin, end) of the chunk.
  static void soften(const AttendTile& tile, int32_t row, int32_t begin, int32_t end,
                     const AttendPartial& out) {
    constexpr int kVecs = kAttendChunk / V::kLanes;
    float* scores = tile.scores + static_cast<int64_t>(row) * kAttendChunk;
    if (begin >= end) {
      for (int n = 0; n < kVecs; ++n) V::store(scores + n * V::kLanes, V::zero());
      return;
    }
    typename V::Vec logits[kVecs];
    typename V::Vec greatest = V::set(kAttendLowest);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) {
      logits[n] = V::load(scores + n * V::kLanes);
      if (end - begin < kAttendChunk)
        logits[n] = V::where_between(logits[n], n * V::kLanes, begin, end, V::set(kAttendLowest));
      greatest = V::max(greatest, logits[n]);
    }
    if (V::exceeds(greatest, V::set(out.m[row]))) {
      float* o = out.o + static_cast<int64_t>(row) * tile.head_dim;
      raise(tile, row, V::greatest(greatest), o, out);
    }
    const typename V::Vec m = V::set(-out.m[row]);
    float* lanes = tile.lane_sums + row * 16;
    typename V::Vec sum = V::load(lanes);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) {
      typename V::Vec weight = V::exp(V::add(logits[n], m));
      if (end - begin < kAttendChunk)
        weight = V::where_between(weight, n * V::kLanes, begin, end, V::zero());
      V::store(scores + n * V::kLanes, weight);
      sum = V::add(sum, weight);
    }
    V::store(lanes, sum);
  }

  // Raises m to a greater logit: scales down the row's sums so far. `o` is the row's sum of values.
  static void raise(const AttendTile& tile, int32_t row, float m, float* o,
                    const AttendPartial& out) {
    const float before = out.m[row];
    out.m[row] = m;
    if (before == kAttendLowest) return;  // the sums are zeros
    const typename V::Vec factor = V::exp(V::set(before - m));
    float* lanes = tile.lane_sums + row * 16;
    V::store(lanes, V::mul(V::load(lanes), factor));
    for (int32_t d = 0; d < tile.head_dim; d += V::kLanes)
      V::store(o + d, V::mul(V::load(o + d), factor));
  }

  static int32_t first_seen(const AttendTile& tile, int32_t token) {
    const int32_t first = tile.positions[token] - tile.window + 1;
    return tile.window == 0 || first < 0 ? 0 : first;
  }
  static int32_t clamp(int32_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : value;
  }

  // Prefetches a line of a later chunk: pages are too short for the hardware to detect the stream.
  // It goes to L2, since all the pages of a head share a few sets of L1. A few prefetches at a time
  // are issued between other work, since a core that issues many at once stalls.
  static void ask_for(const unsigned char* at) { __builtin_prefetch(at, 0, 2); }
  static void ask_for_rows(const AttendTile& tile, const unsigned char* const* rows, int32_t begin,
                           int32_t end) {
    for (int32_t i = begin; i < end; ++i)
      for (int64_t at = 0; at < tile.row_bytes; at += 64) ask_for(rows[i] + at);
  }

  static void chunk(const AttendTile& tile, const AttendChunkRows& rows,
                    const AttendChunkRows& next, int32_t first, int32_t begin, int32_t end,
                    const AttendPartial& out) {
    const int32_t num_rows = tile.num_tokens * tile.group;
    V::load_keys(rows.k, tile.type, tile.head_dim, tile.k_columns);
    int32_t row = 0;
    for (; row + V::kScoreRows <= num_rows; row += V::kScoreRows) score<V::kScoreRows>(tile, row);
    for (; row + 2 <= num_rows; row += 2) score<2>(tile, row);
    for (; row < num_rows; ++row) score<1>(tile, row);

    row = 0;
    for (int32_t token = 0; token < tile.num_tokens; ++token) {
      const int32_t seen_begin = clamp(first_seen(tile, token) - first, 0, kAttendChunk);
      const int32_t seen_end = clamp(tile.positions[token] + 1 - first, 0, kAttendChunk);
      for (int32_t i = 0; i < tile.group; ++i, ++row) {
        ask_for_rows(tile, next.k, row * kAttendChunk / num_rows,
                     (row + 1) * kAttendChunk / num_rows);
        soften(tile, row, seen_begin, seen_end, out);
      }
    }

    const int32_t from = begin - first, to = end - first;
    for (int32_t key = from; key < to; ++key) {
      ask_for_rows(tile, next.v, key, key + 1);
      V::widen(rows.v[key], tile.type, tile.head_dim, tile.v_rows + key * tile.head_dim);
    }
    row = 0;
    for (; row + V::kSumRows <= num_rows; row += V::kSumRows)
      add_values_rows<V::kSumRows>(tile, row, from, to, out.o);
    for (; row < num_rows; ++row) add_values_rows<1>(tile, row, from, to, out.o);
  }

  // The state with no key added.
  static void clear(const AttendTile& tile, const AttendPartial& out) {
    const int32_t num_rows = tile.num_tokens * tile.group;
    const int64_t size = static_cast<int64_t>(num_rows) * tile.head_dim;
    for (int64_t i = 0; i < size; i += V::kLanes) V::store(out.o + i, V::zero());
    for (int32_t row = 0; row < num_rows; ++row) {
      out.m[row] = kAttendLowest;
      for (int i = 0; i < 16; i += V::kLanes) V::store(tile.lane_sums + row * 16 + i, V::zero());
    }
  }
  static void sum_lanes(const AttendTile& tile, const AttendPartial& out) {
    for (int32_t row = 0; row < tile.num_tokens * tile.group; ++row)
      out.l[row] = V::sum(V::load(tile.lane_sums + row * 16));
  }

  static void segment(const AttendTile& tile, int32_t first_key, int32_t end_key,
                      const AttendPartial& out) {
    clear(tile, out);
    const int32_t begin = first_seen(tile, 0);
    const int32_t end = tile.positions[tile.num_tokens - 1] + 1;
    AttendChunkRows rows[2];
    int32_t current = 0;
    bool found = false;  // whether rows[current] are the rows of the chunk at `first`
    for (int32_t first = first_key; first < end_key; first += kAttendChunk) {
      const int32_t chunk_begin = clamp(begin, first, first + kAttendChunk);
      const int32_t chunk_end = clamp(end, first, first + kAttendChunk);
      if (chunk_begin >= chunk_end) continue;
      if (!found) find_rows(tile, first, chunk_begin, chunk_end, rows[current]);
      // Past the end of the segment too: the thread probably continues there.
      const int32_t next = first + kAttendChunk;
      found = next < end;
      AttendChunkRows& after = rows[1 - current];
      if (found) find_rows(tile, next, next, clamp(end, next, next + kAttendChunk), after);
      chunk(tile, rows[current], found ? after : rows[current], first, chunk_begin, chunk_end, out);
      current = 1 - current;
    }
    sum_lanes(tile, out);
  }

  static void merge(const AttendPartial& total, const AttendPartial& part, int32_t num_rows,
                    int32_t head_dim) {
    for (int32_t row = 0; row < num_rows; ++row) {
      const float m = total.m[row] > part.m[row] ? total.m[row] : part.m[row];
      const typename V::Vec keep = V::exp(V::set(total.m[row] - m));
      const typename V::Vec take = V::exp(V::set(part.m[row] - m));
      total.m[row] = m;
      total.l[row] =
          V::first(V::fma(take, V::set(part.l[row]), V::mul(keep, V::set(total.l[row]))));
      float* o = total.o + static_cast<int64_t>(row) * head_dim;
      const float* p = part.o + static_cast<int64_t>(row) * head_dim;
      for (int32_t d = 0; d < head_dim; d += V::kLanes)
        V::store(o + d, V::fma(take, V::load(p + d), V::mul(keep, V::load(o + d))));
    }
  }

  static void finish(const AttendPartial& total, int32_t row, int32_t head_dim, const float* sink,
                     float* out) {
    float factor = 1.0f, denominator = total.l[row];
    if (sink != nullptr) {
      const float m = total.m[row] > *sink ? total.m[row] : *sink;
      factor = V::first(V::exp(V::set(total.m[row] - m)));
      denominator = denominator * factor + V::first(V::exp(V::set(*sink - m)));
    }
    const typename V::Vec scale = V::set(factor / denominator);
    const float* o = total.o + static_cast<int64_t>(row) * head_dim;
    for (int32_t d = 0; d < head_dim; d += V::kLanes)
      V::storeu(out + d, V::mul(V::load(o + d), scale));
  }

  static constexpr AttendTileCode code() { return {segment, merge, finish}; }
};

}  // namespace moxie
