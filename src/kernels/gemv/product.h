// The loops around a tile product: tiles and tokens in blocks that stay in cache, and work split
// over the pool. Common code, compiled for the baseline; LaneKernels are the inner loop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "core/threads.h"
#include "kernels/gemv/lanes.h"

namespace moxie {

/// Tokens whose activations stay in the cache while tiles are read (2880 columns: 720 KiB).
inline constexpr int32_t kTokenBlock = 64;

/// Null if the lanes can multiply by this matrix, otherwise why not.
const char* product_refuses(const LaneKernels& lanes, const PackedMatrix& matrix);

/// The products for a format that suit this CPU's memory.
LaneProducts products_of_format(const LaneKernels& lanes, DType format);

/// Estimated nanoseconds of one thread for `num_weights` applied to `num_tokens`.
double product_ns(const LaneKernels& lanes, double num_weights, double num_tokens);

/// Less work than this is not worth waking a thread for.
inline constexpr double kMinPartNs = 3000;

/// Nanoseconds of a thread for a byte of weights that is in no cache.
inline constexpr double kReadNs = 0.04;

/// The most parts a thread: enough for threads of unequal speed to end together.
inline constexpr int64_t kMostParts = 32;

/// The parts to cut work into that takes one thread `total_ns`, at least 1.
inline int64_t parts_worth(const ThreadPool& pool, double total_ns) {
  return std::clamp<int64_t>(static_cast<int64_t>(total_ns / kMinPartNs), 1,
                             kMostParts * pool.num_threads());
}

/// How many of n units, which together take one thread `total_ns`, make such a part; at least 1.
inline int64_t units_of_part(const ThreadPool& pool, int64_t n, double total_ns) {
  return n == 0 ? 1 : ceil_div(n, std::min(n, parts_worth(pool, total_ns)));
}

/// Runs body(begin, end) over parts of 0..n-1, on the pool if `total_ns` of work is worth it,
/// otherwise on the caller; flush-to-zero is on in both cases.
template <typename Body>
void split_work(ThreadPool& pool, int64_t n, double total_ns, Body&& body) {
  if (n == 0) return;
  pool.share(n, units_of_part(pool, n, total_ns), body);
}

/// Calls each(row, first, last) over the units begin..end-1 of rows of `width`, one row at a time.
template <typename Each>
void for_rows(int64_t begin, int64_t end, int64_t width, Each each) {
  while (begin < end) {
    const int64_t first = begin % width, last = std::min(width, first + end - begin);
    each(static_cast<int32_t>(begin / width), static_cast<int32_t>(first),
         static_cast<int32_t>(last));
    begin += last - first;
  }
}

/// For each tile of begin..end-1 and each group of up to kMaxTileTokens tokens: calls done(tile,
/// first_token, num_tokens, y) with y[token * 16 + lane]. row_of(token) gives the token's
/// activations.
template <typename RowOf, typename Done>
void product_of_tiles(const LaneKernels& lanes, const PackedMatrix& matrix, int32_t begin,
                      int32_t end, int32_t first_token, int32_t end_token, RowOf row_of,
                      Done done) {
  const auto [product, streams, least_stream_tokens, most_stream_tokens] =
      products_of_format(lanes, matrix.format);
  const int32_t num_tokens = end_token - first_token;
  const float* x[kMaxTileTokens];
  float y[std::max(kMaxTileTokens, kTileStreams * kMaxStreamTokens) * 16];
  if (streams != nullptr && num_tokens >= least_stream_tokens && num_tokens <= most_stream_tokens) {
    for (; begin + kTileStreams <= end; begin += kTileStreams) {
      for (int32_t token = first_token; token < end_token; token += kMaxStreamTokens) {
        const int32_t count = std::min(kMaxStreamTokens, end_token - token);
        for (int32_t i = 0; i < count; ++i) x[i] = row_of(token + i);
        streams(matrix.tile(0, begin), matrix.tile_bytes(), matrix.cols, x, count, y);
        for (int32_t t = 0; t < kTileStreams; ++t)
          done(begin + t, token, count, y + 16 * t * count);
      }
    }
  }
  for (int32_t block = first_token; block < end_token; block += kTokenBlock) {
    const int32_t block_end = std::min(block + kTokenBlock, end_token);
    for (int32_t tile = begin; tile < end; ++tile) {
      for (int32_t token = block; token < block_end; token += kMaxTileTokens) {
        const int32_t count = std::min(kMaxTileTokens, block_end - token);
        for (int32_t i = 0; i < count; ++i) x[i] = row_of(token + i);
        product(matrix.tile(0, tile), matrix.cols, x, count, y);
        done(tile, token, count, y);
      }
    }
  }
}

/// Rows of activations in the form that the lanes take.
struct Activations {
  const float* data = nullptr;
  int64_t stride = 0;
  const float* row(int64_t i) const { return data + i * stride; }
};

/// Floats of scratch that prepare_rows needs for num_rows rows of cols.
inline int64_t prepared_floats(const LaneKernels& lanes, int64_t num_rows, int32_t cols) {
  return lanes.prepare == nullptr ? 0 : num_rows * (cols / 32) * lanes.prepared_floats;
}

/// x [num_rows, x_stride] itself, or its rows prepared for the lanes, written to `scratch`.
inline Activations prepare_rows(ThreadPool& pool, const LaneKernels& lanes, const float* x,
                                int64_t x_stride, int32_t num_rows, int32_t cols, float* scratch) {
  if (lanes.prepare == nullptr) return {x, x_stride};
  const int64_t stride = int64_t{cols / 32} * lanes.prepared_floats;
  split_work(pool, num_rows, 0.3 * cols * num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      lanes.prepare(x + i * x_stride, cols, scratch + i * stride);
    }
  });
  return {scratch, stride};
}

/// Time for one thread to apply the whole matrix to num_tokens.
inline double product_total_ns(const LaneKernels& lanes, const PackedMatrix& matrix,
                               int32_t num_tokens) {
  const double num_weights = matrix.num_tiles() * 16.0 * matrix.cols;
  return std::max(product_ns(lanes, num_weights, num_tokens),
                  kReadNs * static_cast<double>(matrix.expert_bytes()));
}

/// product_of_tiles over the whole matrix and num_tokens rows of activations, split over the pool
/// by tiles and blocks of tokens.
template <typename Done>
void parallel_product(ThreadPool& pool, const LaneKernels& lanes, const PackedMatrix& matrix,
                      Activations x, int32_t num_tokens, Done done) {
  // Tiles that are read side by side stay together, unless that leaves most threads without work;
  // then blocks of tokens are also shorter.
  const int32_t tiles = matrix.num_tiles();
  const bool is_small = 2 * ceil_div(tiles, kTileStreams) <= pool.num_threads();
  const int32_t group_tiles = is_small ? 1 : kTileStreams;
  const int32_t block_tokens = is_small ? kTokenBlock / 4 : kTokenBlock;
  const int64_t num_groups = ceil_div(tiles, group_tiles);
  const int64_t num_blocks = ceil_div(num_tokens, block_tokens);
  const double total_ns = product_total_ns(lanes, matrix, num_tokens);
  split_work(pool, num_groups * num_blocks, total_ns, [&](int64_t begin, int64_t end) {
    for_rows(begin, end, num_groups, [&](int32_t block, int32_t group, int32_t group_end) {
      const int32_t token = block * block_tokens;
      product_of_tiles(
          lanes, matrix, group * group_tiles, std::min(group_end * group_tiles, tiles), token,
          std::min(token + block_tokens, num_tokens), [&](int32_t i) { return x.row(i); }, done);
    });
  });
}

/// RMSNorm of each row that row_of(i) gives, to out [num_rows, n]. `Kernels` has an rms_norm:
/// LaneKernels or GemmKernels.
template <typename Kernels, typename RowOf>
void parallel_rms_norm(ThreadPool& pool, const Kernels& lanes, RowOf row_of, int32_t num_rows,
                       int32_t n, const float* weight, float eps, float* out) {
  split_work(pool, num_rows, 0.3 * n * num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      lanes.rms_norm(row_of(static_cast<int32_t>(i)), weight, n, eps, out + i * n);
    }
  });
}

}  // namespace moxie
