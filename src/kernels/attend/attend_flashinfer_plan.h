// What the rows on FlashInfer's templates share: one kernel that turns a launch of attend into what
// those kernels read, on the device, so that a graph may be replayed with other positions.
//
// FlashInfer plans on the host; here a tile of tokens is a request of its own, listed in the order
// of FlashInfer's planner: sequences with the most keys first, and of each its last tokens first.
// Queries come as F32 and are rounded to BF16 beside it. What this costs is part of the row's time.
#pragma once

#include "kernels/attend/attend.h"

namespace moxie {

constexpr int kFlashinferDim = 64;
constexpr int kFlashinferGroup = 8;  // query heads of a KV head

/// Up to so many tokens of one sequence, and the keys that its last token sees.
struct FlashinferTile {
  int32_t first_token, num_tokens;
  int32_t first_key;  ///< where its keys begin: in the page table, or in `key_rows`
  int32_t num_keys;   ///< 0: a page that is needed is missing, and the answer is NaN
};

/// Parts of the workspace. On the device.
struct FlashinferPlan {
  uint16_t* q = nullptr;            ///< [tokens, heads, 64] BF16
  FlashinferTile* tiles = nullptr;  ///< [most_tiles], of which num_tiles[0] are used
  int32_t* num_tiles = nullptr;     ///< [1], at least 1
  /// The fields of tiles as FlashInfer's FA2 wants them, [most_tiles]; `first_key` has one more,
  /// the size of the page table.
  int32_t *tile_idx = nullptr, *zeros = nullptr, *first_token = nullptr, *first_key = nullptr;
  bool* is_used = nullptr;
  /// For tiles that name their keys one by one: rows of the cache, in units of a key of a head.
  int32_t* key_rows = nullptr;
  int32_t most_tiles = 0;
};

struct FlashinferPlanOptions {
  int32_t tile_tokens = 0;
  /// Keys begin with the first that the tile's first token sees, each with a row of `key_rows`;
  /// else with the sequence's first, in the page table. For kernels that touch keys before the
  /// window.
  bool lists_keys = false;
};

/// Null, or why no row of this kind can run.
const char* flashinfer_refuses(const AttendParams& params);

/// What a row takes, in units of what the row that splits the keys takes for a token of a KV head.
struct FlashinferTimes {
  double wave;    ///< of a launch, however few its items are
  double item;    ///< of a further item: a tile and a head
  int32_t heads;  ///< items of a tile
};
/// Relative to the split row.
double flashinfer_cost(const AttendParams& params, int32_t tile_tokens,
                       const FlashinferTimes& times);
/// `cost`, or a little more than the wgmma row's where that one can run.
double behind_prefill_sm90(const AttendParams& params, double cost);
uint64_t flashinfer_workspace(const AttendParams& params, const FlashinferPlanOptions& options);
/// Launches the kernel.
FlashinferPlan plan_flashinfer(const char* row, const AttendParams& params,
                               const FlashinferPlanOptions& options);

}  // namespace moxie
