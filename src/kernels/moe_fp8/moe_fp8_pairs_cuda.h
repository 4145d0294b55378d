// What the CUDA rows of moe_fp8_block_scale share: the routing of tokens, their pairs with local
// experts sorted by expert, and the sum of each token's pairs.
//
// Pairs are numbered by rising expert and, within an expert, by rising token. Each expert's run of
// pairs is cut into tiles, which the products take one at a time.
#pragma once

#include "kernels/moe_fp8/moe_fp8.h"
#include "kernels/scratch.h"

namespace moxie::moe_fp8 {

/// The greatest sizes that the CUDA rows take.
inline constexpr int32_t kMostExperts = 512, kMostLocal = 256, kMostTopK = 32;

/// Whether two blocks can share a tile's weights: it is the first or second of two tiles of one
/// expert that lie side by side and have more than half of the most pairs, or alone.
enum class TileKind : int32_t { kAlone, kFirst, kSecond };

/// Pairs first to first + count - 1, all of one local expert.
struct PairTile {
  int32_t expert, first, count;
  TileKind kind;
};

/// A piece of a launch: its sizes, its tensors (those of tokens from the piece's first token on)
/// and the routing's results, in device memory.
struct Piece {
  MoeFp8Params p;             // num_tokens: of the piece
  int32_t scale_stride = 0;   // tokens of the launch, from a block of activation scales to the next
  int32_t words = 0;          // of 32 tokens
  int32_t* chosen = nullptr;  // [tokens, top_k] local experts, rising, then -1
  float* chosen_weights = nullptr;    // the same
  int32_t* pair_of_choice = nullptr;  // the same; -1: none
  int32_t* begin = nullptr;           // [local + 1] first pair of an expert
  int32_t* pair_token = nullptr;      // [pairs]
  uint32_t* bits = nullptr;           // [local, words] a bit a token
  PairTile* tiles = nullptr;
  int32_t* num_tiles = nullptr;  // [1]
  void* sums = nullptr;          // [pairs, hidden] down's outputs: F32, BF16 or FP16
  DType sums_type = DType::kF32;
  float* sum_scales = nullptr;  // for FP16: [pairs, hidden / 128]
};

/// The most pairs of `num_tokens` tokens.
int64_t most_pairs(const MoeFp8Params& params, int32_t num_tokens);

/// The most tiles of `num_tokens` tokens.
int64_t most_tiles(const MoeFp8Params& params, int32_t num_tokens, int32_t tile_pairs);

/// A piece of at most `num_tokens` tokens, with its memory from `scratch`; `tile_pairs`: the most
/// pairs of a tile.
Piece take_piece(const MoeFp8Params& params, int32_t num_tokens, int32_t tile_pairs,
                 DType sums_type, Scratch& scratch);
/// Moves the piece to tokens first to first + count - 1.
void set_tokens(const MoeFp8Params& params, int32_t first, int32_t count, Piece& piece);

/// Up to kMostFewTokens tokens in one kernel, with tiles of kFewPairs.
inline constexpr int32_t kMostFewTokens = 128, kFewPairs = 16;
void route_few(const char* row, const Piece& piece, Stream* stream);
/// Any number of tokens, with tiles of kManyPairs; the last of an expert has the rest. Of
/// pair_of_choice it writes what is none; a kernel that reads each pair writes the others.
inline constexpr int32_t kManyPairs = 128;
void route_many(const char* row, const Piece& piece, Stream* stream);

/// output = the sum of the token's pairs, each times its weight.
void add_pairs(const char* row, const Piece& piece, Stream* stream);

}  // namespace moxie::moe_fp8
