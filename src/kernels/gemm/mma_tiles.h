// Chooses the tile of the grouped products by mma.sync (product_mma.cuh) from a device's size and
// rates: blocks of 128 rows times a number of tokens of an expert.
//
// A tile's time is the longer of reading its weights, at an SM's share of memory's rate, and of
// making operands of them and multiplying. Further tiles of the same expert find the weights in L2.
// As in tile_model.h the number of tokens of an expert is random around the mean.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/gemm/tile_model.h"

namespace moxie::gemm {

inline constexpr int32_t kMmaTileRows = 128;
inline constexpr std::array<int32_t, 4> kMmaTileColumns = {16, 32, 64, 128};
/// "128x64"
std::string mma_tile_name(int32_t columns);

struct TileDevice {
  int32_t num_sms;
  double read_gb_s;           ///< 1e9 bytes a second
  double mma_gflops;          ///< BF16 products by mma.sync
  double operand_gb_s_of_sm;  ///< packed weights of which an SM makes operands
};

/// Microseconds of the weights of a tile's rows times `num_tokens` of one expert, in tiles of up to
/// `columns`.
double mma_tile_us(int32_t columns, int32_t num_tokens, const TileDevice& device);

/// What the row of experts by mma.sync takes on every device: the least columns that hold the mean
/// number of tokens of an expert and a half.
int32_t mma_tile_by_rule(double mean);
/// For experts with `mean` tokens on average: the rule's tile, unless another gains more than the
/// model can be wrong by. The reason names the rule's tile where it is left.
TileChoice choose_mma_tile(double mean, const TileDevice& device);

}  // namespace moxie::gemm
