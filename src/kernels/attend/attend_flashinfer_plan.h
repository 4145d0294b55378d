// What the rows on FlashInfer's templates share: one kernel that turns a launch of attend into the
// arrays that FlashInfer's kernels read. It runs on the device, so that a graph may be replayed
// with other positions.
//
// FlashInfer plans on the host. Here each tile of tokens is a FlashInfer request, and tiles are in
// the order of FlashInfer's planner: the sequences with the most keys first, and the last tokens of
// each sequence first. The same kernel rounds the F32 queries to BF16. Its cost is part of the
// row's time.
#pragma once

#include "kernels/attend/attend.h"

namespace moxie {

constexpr int kFlashinferDim = 64;
constexpr int kFlashinferGroup = 8;  // query heads of a KV head

/// At most FlashinferPlanOptions::tile_tokens tokens of one sequence, and the keys that the last of
/// them sees.
struct FlashinferTile {
  int32_t first_token, num_tokens;
  int32_t first_key;  ///< where its keys begin: in the page table, or in `key_rows`
  int32_t num_keys;   ///< 0: a page that the tile needs is missing, and the answer is NaN
};

/// Arrays in the workspace, on the device.
struct FlashinferPlan {
  uint16_t* q = nullptr;            ///< [tokens, heads, 64] BF16
  FlashinferTile* tiles = nullptr;  ///< [most_tiles]; num_tiles[0] of them are used
  int32_t* num_tiles = nullptr;     ///< [1], at least 1
  /// The fields of tiles as FlashInfer's FA2 reads them, [most_tiles]; `first_key` has one element
  /// more, the size of the page table.
  int32_t *tile_idx = nullptr, *zeros = nullptr, *first_token = nullptr, *first_key = nullptr;
  bool* is_used = nullptr;
  /// For tiles that list their keys: rows of the cache, in units of a key of a head.
  int32_t* key_rows = nullptr;
  int32_t most_tiles = 0;
};

struct FlashinferPlanOptions {
  int32_t tile_tokens = 0;
  /// For kernels that read keys before the window. True: a tile's keys begin with the first that
  /// its first token sees, and `key_rows` lists each of them. False: they begin with the sequence's
  /// first key, in the page table.
  bool lists_keys = false;
};

/// Null, or why no row of this kind can run.
const char* flashinfer_refuses(const AttendParams& params);

/// A row's times. The unit is the time of the row that splits the keys, for a token of a KV head.
struct FlashinferTimes {
  double wave;    ///< of a launch, even with few items
  double item;    ///< of each further item: a tile and a head
  int32_t heads;  ///< items of a tile
};
/// The row's time relative to the row that splits the keys.
double flashinfer_cost(const AttendParams& params, int32_t tile_tokens,
                       const FlashinferTimes& times);
/// `cost`, or a little more than the wgmma row's cost where the wgmma row can run.
double behind_prefill_sm90(const AttendParams& params, double cost);
uint64_t flashinfer_workspace(const AttendParams& params, const FlashinferPlanOptions& options);
/// Launches the kernel that plans.
FlashinferPlan plan_flashinfer(const char* row, const AttendParams& params,
                               const FlashinferPlanOptions& options);

}  // namespace moxie
