// The body of every variant of LaneKernels, written once over the widest vector that the including
// file's flags allow. Include this file only in lanes_<variant>.cpp.
//
// All its code is in an anonymous namespace, since each variant needs a copy of its own (lanes.h
// says why). A Format decodes "groups" of columns, as its layout interleaves them (core/packing.h),
// into one vector a column; 16 rows are kParts vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/gemv/lanes.h"
#include "kernels/vectors_body.h"

namespace moxie {
namespace {

constexpr int32_t kParts = 16 / kLanes;
// As many sums as fit in the registers beside the decoded weights: of tokens, or of several blocks
// of fewer tokens.
constexpr int32_t kChains = kLanes == 16 ? 8 : 4;

// ---- Formats ----------------------------------------------------------------------------------

struct F32Format {
  static constexpr int32_t kGroupCols = 1;
  static constexpr bool kHasScale = false;
  static constexpr int64_t kBlockBytes = 64 * 32;
  MOXIE_INLINE void decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
    load(block + 64 * group + sizeof(Vec) * part, w[0]);
  }
  MOXIE_INLINE void scale(const std::byte*, int32_t, Vec&) {}
};

struct Bf16Format {
  static constexpr int32_t kGroupCols = 2;
  static constexpr bool kHasScale = false;
  static constexpr int64_t kBlockBytes = 64 * 16;
  MOXIE_INLINE void decode(const std::byte* block, int32_t group, int32_t part, Vec* w) {
    IntVec pair;
    load(block + 64 * group + sizeof(Vec) * part, pair);
    w[0] = reinterpret_cast<Vec>(pair << 16);
    w[1] = reinterpret_cast<Vec>(pair & static_cast<int32_t>(0xFFFF0000u));
  }
  MOXIE_INLINE void scale(const std::byte*, int32_t, Vec&) {}
};

struct Q8Format {
  static constexpr int32_t kGroupCols = 4;
  static constexpr bool kHasScale = true;
  static constexpr int64_t kBlockBytes = 544;
  MOXIE_INLINE void decode(const std::byte* block, int32_t group, int32_t part, Vec* w);
  MOXIE_INLINE void scale(const std::byte* block, int32_t part, Vec& factor);
};

struct Mxfp4Format {
  static constexpr int32_t kGroupCols = 8;
  static constexpr bool kHasScale = true;
  static constexpr int64_t kBlockBytes = 272;
  MOXIE_INLINE void decode(const std::byte* block, int32_t group, int32_t part, Vec* w);
  // The exponent code is the F32 exponent field. Code 0 (2^-127) gives 0, as flush-to-zero would.
  MOXIE_INLINE void scale(const std::byte* block, int32_t part, Vec& factor) {
    IntVec codes;
#pragma GCC unroll 16
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      codes[lane] = static_cast<int32_t>(block[kLanes * part + lane]);
    }
    factor = reinterpret_cast<Vec>(codes << 23);
  }
};

// Distance of prefetches before the loads: the hardware's prefetcher stops at a page's end, and
// restarting it costs a memory latency every 4 KiB of weights. Two pages if one tile is read at a
// time; one page if several are read side by side, where prefetches past their ends go to the next
// tiles. Past the matrix's end a prefetch does nothing. On x86 to L2: L1's few outstanding misses
// are for the loads, and a Zen 4 core reads a quarter faster this way.
constexpr int32_t kAheadAlone = 8192, kAheadOfStreams = 4096;
#if defined(__x86_64__)
constexpr int kPrefetchLocality = 2;
#else
constexpr int kPrefetchLocality = 3;
#endif
// The distance from the block at byte `at` of one of T tiles side by side to the block prefetched
// with it.
template <int32_t T>
MOXIE_INLINE int64_t prefetch_offset(int64_t at, int64_t tile_bytes) {
  if constexpr (T == 1) return kAheadAlone;
  return kAheadOfStreams + (at + kAheadOfStreams < tile_bytes ? 0 : (T - 1) * tile_bytes);
}
template <typename Format, int32_t kStep = 64>
MOXIE_INLINE void prefetch_block(const std::byte* block) {
#pragma GCC unroll 32
  for (int32_t at = 0; at < Format::kBlockBytes; at += kStep) {
    __builtin_prefetch(block + at, 0, kPrefetchLocality);
  }
}

// ---- Products ---------------------------------------------------------------------------------

// Adds `B` blocks of 32 columns (or one shorter block: num_groups) of one part to sums[0..N *
// kParts). Each block's columns are summed in order into a chain of the block, and the chains are
// added in the order of the blocks. This order is the same for any N and B, so that a token's
// result does not depend on its neighbours. Several blocks at once keep enough chains in flight to
// hide the adder's latency.
template <typename Format, int32_t N, int32_t B>
MOXIE_INLINE void add_blocks(const std::byte* block, int32_t part, int32_t num_groups,
                             const float* const* x, int32_t k, Vec* sums) {
  constexpr int32_t kCols = Format::kGroupCols;
  Vec chains[N][B] = {};
  for (int32_t group = 0; group < num_groups; ++group) {
#pragma GCC unroll 4
    for (int32_t b = 0; b < B; ++b) {
      Vec w[kCols];
      Format::decode(block + b * Format::kBlockBytes, group, part, w);
#pragma GCC unroll 8
      for (int32_t c = 0; c < kCols; ++c) {
#pragma GCC unroll 8
        for (int32_t n = 0; n < N; ++n) chains[n][b] += w[c] * x[n][k + 32 * b + kCols * group + c];
      }
    }
  }
#pragma GCC unroll 4
  for (int32_t b = 0; b < B; ++b) {
    Vec factor = {};
    Format::scale(block + b * Format::kBlockBytes, part, factor);
#pragma GCC unroll 8
    for (int32_t n = 0; n < N; ++n) {
      if constexpr (Format::kHasScale)
        sums[n * kParts + part] += factor * chains[n][b];
      else
        sums[n * kParts + part] += chains[n][b];
    }
  }
}

template <typename Format, int32_t N>
MOXIE_INLINE void product_of(const std::byte* tile, int32_t cols, const float* const* x, float* y) {
  // BF16 of one token is read in the order of addresses, which the hardware's prefetcher detects:
  // prefetching one line in four is enough to take it past the ends of pages.
  constexpr bool kInOrder = N == 1 && std::is_same_v<Format, Bf16Format>;
  constexpr int32_t kBlocks = kInOrder ? 1 : kChains / N < 4 ? kChains / N : 4;
  constexpr int32_t kStep = kInOrder ? 256 : 64;
  constexpr int32_t kGroups = 32 / Format::kGroupCols;
  Vec sums[N * kParts] = {};
  const std::byte* block = tile;
  int32_t k = 0;
  for (; k + 32 * kBlocks <= cols; k += 32 * kBlocks, block += kBlocks * Format::kBlockBytes) {
#pragma GCC unroll 4
    for (int32_t b = 0; b < kBlocks; ++b)
      prefetch_block<Format, kStep>(block + b * Format::kBlockBytes + kAheadAlone);
#pragma GCC unroll 4
    for (int32_t part = 0; part < kParts; ++part) {
      add_blocks<Format, N, kBlocks>(block, part, kGroups, x, k, sums);
    }
  }
  for (; k + 32 <= cols; k += 32, block += Format::kBlockBytes) {
#pragma GCC unroll 4
    for (int32_t part = 0; part < kParts; ++part) {
      add_blocks<Format, N, 1>(block, part, kGroups, x, k, sums);
    }
  }
  if constexpr (!Format::kHasScale) {
    if (k < cols) {
#pragma GCC unroll 4
      for (int32_t part = 0; part < kParts; ++part) {
        add_blocks<Format, N, 1>(block, part, (cols - k) / Format::kGroupCols, x, k, sums);
      }
    }
  }
#pragma GCC unroll 32
  for (int32_t i = 0; i < N * kParts; ++i) store(y + kLanes * i, sums[i]);
}

template <typename Format>
void tile_product(const std::byte* tile, int32_t cols, const float* const* x, int32_t num_tokens,
                  float* y) {
  int32_t token = 0;
  while (token < num_tokens) {
    const int32_t left = num_tokens - token;
    const float* const* from = x + token;
    float* to = y + 16 * token;
    if (kChains >= 8 && left >= 8) {
      if constexpr (kChains >= 8) product_of<Format, 8>(tile, cols, from, to);
      token += 8;
    } else if (left >= 4) {
      product_of<Format, 4>(tile, cols, from, to);
      token += 4;
    } else if (left >= 2) {
      product_of<Format, 2>(tile, cols, from, to);
      token += 2;
    } else {
      product_of<Format, 1>(tile, cols, from, to);
      token += 1;
    }
  }
}

// As product_of, for T tiles side by side, one block of each in turn.
template <typename Format, int32_t N, int32_t T>
MOXIE_INLINE void streams_of(const std::byte* tiles, int64_t tile_bytes, int32_t cols,
                             const float* const* x, float* y) {
  constexpr int32_t kGroups = 32 / Format::kGroupCols;
  // Wide blocks (BF16) of one token: prefetching every other line is enough, and prefetching all
  // would delay the loads; a Zen 4 core with fast memory reads a quarter faster this way.
  constexpr int32_t kStep = N == 1 && Format::kBlockBytes >= 1024 ? 128 : 64;
  Vec sums[T][N * kParts] = {};
  int64_t at = 0;
  int32_t k = 0;
  for (; k + 32 <= cols; k += 32, at += Format::kBlockBytes) {
    const int64_t ahead = prefetch_offset<T>(at, tile_bytes);
#pragma GCC unroll 8
    for (int32_t t = 0; t < T; ++t) {
      const std::byte* block = tiles + t * tile_bytes + at;
      prefetch_block<Format, kStep>(block + ahead);
#pragma GCC unroll 4
      for (int32_t part = 0; part < kParts; ++part)
        add_blocks<Format, N, 1>(block, part, kGroups, x, k, sums[t]);
    }
  }
  if constexpr (!Format::kHasScale) {
    if (k < cols) {
#pragma GCC unroll 8
      for (int32_t t = 0; t < T; ++t) {
#pragma GCC unroll 4
        for (int32_t part = 0; part < kParts; ++part) {
          add_blocks<Format, N, 1>(tiles + t * tile_bytes + at, part,
                                   (cols - k) / Format::kGroupCols, x, k, sums[t]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t t = 0; t < T; ++t) {
#pragma GCC unroll 32
    for (int32_t i = 0; i < N * kParts; ++i) store(y + 16 * N * t + kLanes * i, sums[t][i]);
  }
}

template <typename Format>
void streams_product(const std::byte* tiles, int64_t tile_bytes, int32_t cols,
                     const float* const* x, int32_t num_tokens, float* y) {
  switch (num_tokens) {
    case 1:
      return streams_of<Format, 1, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 2:
      return streams_of<Format, 2, kTileStreams>(tiles, tile_bytes, cols, x, y);
    case 3:
      return streams_of<Format, 3, kTileStreams>(tiles, tile_bytes, cols, x, y);
    default:
      return streams_of<Format, 4, kTileStreams>(tiles, tile_bytes, cols, x, y);
  }
}

// ---- Norm, activation and sums ------------------------------------------------------------------

void rms_norm(const float* x, const float* weight, int32_t n, float eps, float* out) {
  Vec chains[4] = {};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int32_t c = 0; c < 4; ++c) {
      Vec v;
      load(x + i + kLanes * c, v);
      chains[c] += v * v;
    }
  }
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (int32_t c = 0; c < 4; ++c) {
    for (int32_t lane = 0; lane < kLanes; ++lane) sum += chains[c][lane];
  }
  const auto factor = static_cast<float>(1.0 / __builtin_sqrt(sum / n + eps));
  for (i = 0; i + kLanes <= n; i += kLanes) {
    Vec v, w;
    load(x + i, v);
    load(weight + i, w);
    store(out + i, v * factor * w);
  }
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void swiglu(const float* gate, const float* up, float alpha, float limit, float* out) {
  const Vec top = Vec{} + limit;
  for (int32_t part = 0; part < kParts; ++part) {
    Vec g, u, e;
    load(gate + kLanes * part, g);
    load(up + kLanes * part, u);
    lesser(g, top, g);
    lesser(u, top, u);
    u = -u;
    lesser(u, top, u);
    u = -u;
    exp_lanes(g * -alpha, e);
    store(out + kLanes * part, g / (e + 1.0f) * (u + 1.0f));
  }
}

void add_scaled(const float* y, const float* bias, float weight, int32_t n, float* x) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec sum, from, b;
    load(x + i, sum);
    load(y + i, from);
    load(bias + i, b);
    store(x + i, sum + (from + b) * weight);
  }
  for (; i < n; ++i) x[i] += (y[i] + bias[i]) * weight;
}

}  // namespace
}  // namespace moxie
