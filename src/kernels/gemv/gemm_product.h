// The loops around GemmKernels: activations packed once, each pair of tiles decoded once for up to
// 256 tokens, work split over the pool. Common code, compiled for the baseline.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "core/threads.h"
#include "kernels/gemv/gemm.h"
#include "kernels/gemv/product.h"

namespace moxie {

/// Launches of fewer tokens are left to the rows for few tokens, which are no slower and round
/// less.
inline constexpr int32_t kLeastGemmTokens = 16;

/// Null if the product can take this matrix, otherwise why not.
const char* gemm_refuses(const PackedMatrix& matrix);

/// Estimated nanoseconds of one thread, comparable with product_ns: for decoding `num_weights` once
/// and applying each to num_tokens.
double gemm_ns(const GemmKernels& gemm, double num_weights, double num_tokens);

/// The cost of a row: gemm_ns, or more than any other row's cost if rounding the activations gains
/// too little for its loss: with fewer than `least_tokens` tokens, or fewer than 1,024 columns.
double gemm_cost(const GemmKernels& gemm, double num_weights, double num_tokens,
                 double least_tokens, int32_t cols);

/// BF16 values of one packed group.
inline int64_t group_values(int32_t cols) { return int64_t{kGroupTokens} * round_up(cols, 32); }

/// Packs rows row_of(0..num_rows - 1) as groups, split over the pool.
template <typename RowOf>
void pack_groups(ThreadPool& pool, const GemmKernels& gemm, RowOf row_of, int32_t num_rows,
                 int32_t cols, uint16_t* groups) {
  const int32_t num_groups = ceil_div(num_rows, kGroupTokens);
  split_work(pool, num_groups, 0.2 * num_rows * cols, [&](int64_t begin, int64_t end) {
    const float* rows[kGroupTokens];
    for (int64_t group = begin; group < end; ++group) {
      const auto first = static_cast<int32_t>(group) * kGroupTokens;
      const int32_t count = std::min(kGroupTokens, num_rows - first);
      for (int32_t i = 0; i < count; ++i) rows[i] = row_of(first + i);
      gemm.pack_group(rows, count, cols, groups + group * group_values(cols));
    }
  });
}

/// Calls done(group, sums) for each group of `num_tokens` packed tokens times tiles 2 * pair and 2
/// * pair + 1 (zeros past the last) of one expert's matrix; sums are [16 tokens, 32 outputs].
template <typename Done>
void multiply_tile_pair(const GemmKernels& gemm, const PackedMatrix& matrix, int32_t pair,
                        const uint16_t* groups, int32_t num_tokens, Done done) {
  const int64_t tile_bytes = matrix.tile_bytes();
  GemmTiles tiles{.is_mxfp4 = matrix.format == DType::kMXFP4, .cols = matrix.cols};
  tiles.tile[0] = matrix.tile(0, 2 * pair);
  if (2 * pair + 1 < matrix.num_tiles()) tiles.tile[1] = tiles.tile[0] + tile_bytes;
  tiles.next = tiles.tile[0] + 2 * tile_bytes;  // probably what this thread reads next
  tiles.next_bytes = 2 * tile_bytes;
  alignas(64) float sums[kMaxGroups * kGroupSums];
  const int32_t num_groups = ceil_div(num_tokens, kGroupTokens);
  for (int32_t first = 0; first < num_groups; first += kMaxGroups) {
    const int32_t count = std::min(kMaxGroups, num_groups - first);
    gemm.multiply(tiles, groups + first * group_values(matrix.cols),
                  std::min(count * kGroupTokens, num_tokens - first * kGroupTokens), sums);
    tiles.next_bytes = 0;
    for (int32_t i = 0; i < count; ++i) done(first + i, sums + i * kGroupSums);
  }
}

/// Calls done(first_output, token, sums) with 32 outputs of a token, for the whole matrix and
/// `num_tokens` packed tokens. The work is split over the pool by pairs of tiles and by chunks of
/// tokens that stay in L2.
template <typename Done>
void parallel_gemm(ThreadPool& pool, const GemmKernels& gemm, const PackedMatrix& matrix,
                   const uint16_t* groups, int32_t num_tokens, Done done) {
  constexpr int32_t kChunkTokens = kMaxGroups * kGroupTokens;
  const int64_t num_pairs = ceil_div(matrix.num_tiles(), 2);
  const double ns = gemm_ns(gemm, static_cast<double>(matrix.rows) * matrix.cols, num_tokens);
  split_work(pool, num_pairs * ceil_div(num_tokens, kChunkTokens), ns,
             [&](int64_t begin, int64_t end) {
               for (int64_t unit = begin; unit < end; ++unit) {
                 const auto pair = static_cast<int32_t>(unit % num_pairs);
                 const auto chunk = static_cast<int32_t>(unit / num_pairs) * kChunkTokens;
                 const int32_t in_chunk = std::min(kChunkTokens, num_tokens - chunk);
                 multiply_tile_pair(gemm, matrix, pair,
                                    groups + chunk / kGroupTokens * group_values(matrix.cols),
                                    in_chunk, [&](int32_t group, const float* sums) {
                                      const int32_t first = group * kGroupTokens;
                                      const int32_t last = std::min(first + kGroupTokens, in_chunk);
                                      for (int32_t i = first; i < last; ++i) {
                                        done(pair * 32, chunk + i, sums + (i - first) * 32);
                                      }
                                    });
               }
             });
}

}  // namespace moxie
