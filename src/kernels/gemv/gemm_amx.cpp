// GemmKernels for AMX BF16: sums of 32 tokens x 32 outputs in four tiles; two tiles of activations
// and two of weights are loaded for each 32 columns.
//
// For more than 48 tokens a few blocks of weights are decoded into L1 and used for all groups
// before the next blocks; the sums go through memory in between. So a decoded panel never goes to
// L2 and back (docs/decisions/2026-11-20-amx-prefill.md). For fewer tokens, where decoding takes as
// long as multiplying, a block is decoded while the previous one is multiplied, and the sums stay
// in their tiles (docs/decisions/2026-11-22-amx-beside-neighbours.md).
#include "kernels/gemv/amx_tiles.h"
#include "kernels/gemv/gemm_body.h"

namespace moxie {
namespace {

// ---- Product ------------------------------------------------------------------------------------

constexpr int32_t kRowBytes = 64;    // of a block of activations or weights
constexpr int32_t kSumStride = 128;  // of a token's 32 sums

// Blocks decoded at a time: their panels (12 KiB), the activations of two groups and the sums of a
// few groups fit in L1.
constexpr int32_t kPanelBlocks = 6;
// Up to this many groups, tiles are decoded again for every two groups.
constexpr int32_t kFewGroups = 3;

// Loads a group's sums of the previous blocks, or zeros, into tiles 0 and 1; with kTwo also those
// of the next group into tiles 2 and 3.
template <bool kTwo>
MOXIE_INLINE void begin_sums(const float* sums, bool is_first) {
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, sums, kSumStride);
    _tile_loadd(1, sums + 16, kSumStride);
  }
  if constexpr (kTwo) {
    if (is_first) {
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(2, sums + kGroupSums, kSumStride);
      _tile_loadd(3, sums + kGroupSums + 16, kSumStride);
    }
  }
}
template <bool kTwo>
MOXIE_INLINE void store_sums(float* sums) {
  _tile_stored(0, sums, kSumStride);
  _tile_stored(1, sums + 16, kSumStride);
  if constexpr (kTwo) {
    _tile_stored(2, sums + kGroupSums, kSumStride);
    _tile_stored(3, sums + kGroupSums + 16, kSumStride);
  }
}

// Adds `num_blocks` blocks to the sums of one group, or of two, `second` after the first. Loads
// come first: a thread that shares its core has too few instructions in flight to run later loads
// beside products.
template <bool kTwo>
void add_groups(const uint16_t* group, int64_t second, const uint16_t* panel0,
                const uint16_t* panel1, int32_t num_blocks, bool is_first, float* sums,
                Ahead& ahead) {
  begin_sums<kTwo>(sums, is_first);
  for (int32_t i = 0; i < num_blocks; ++i) {
    const int32_t at = i * kBlockValues;
    _tile_loadd(4, group + at, kRowBytes);
    if constexpr (kTwo) _tile_loadd(5, group + second + at, kRowBytes);
    _tile_loadd(6, panel0 + at, kRowBytes);
    _tile_loadd(7, panel1 + at, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    read_ahead(ahead);
  }
  store_sums<kTwo>(sums);
}

// One group, or two. The sums stay in their tiles. Between the products of a block the next block
// is decoded, one tile after the products of each group or panel.
template <bool kTwo>
void multiply_few(const GemmTiles& tiles, const uint16_t* groups, int32_t num_blocks, float* sums,
                  Ahead& ahead) {
  alignas(64) uint16_t memory[2][2][kBlockValues];
  const uint16_t* panels[2][2];
  const auto find_panel = [&](int32_t block, int32_t tile) __attribute__((always_inline)) {
    if (block >= num_blocks) return;
    panels[block % 2][tile] =
        panel_of(tiles.tile[tile], tiles.is_mxfp4, tiles.cols, block, 1, memory[block % 2][tile]);
  };
  find_panel(0, 0);
  find_panel(0, 1);
  begin_sums<kTwo>(sums, true);
  for (int32_t i = 0; i < num_blocks; ++i, groups += kBlockValues) {
    const uint16_t* const* now = panels[i % 2];
    asm volatile("" ::: "memory");  // the tile loads' intrinsics do not say that they read
    _tile_loadd(4, groups, kRowBytes);
    _tile_loadd(6, now[0], kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if (kTwo) {
      _tile_loadd(7, now[1], kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    asm volatile("" ::: "memory");
    find_panel(i + 1, 0);
    asm volatile("" ::: "memory");
    if (kTwo) {
      _tile_loadd(5, groups + int64_t{num_blocks} * kBlockValues, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    } else {
      _tile_loadd(7, now[1], kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    asm volatile("" ::: "memory");
    find_panel(i + 1, 1);
    read_ahead(ahead);
  }
  store_sums<kTwo>(sums);
}

// More groups: a few blocks are decoded into L1 and used for all groups before the next blocks.
void multiply_many(const GemmTiles& tiles, const uint16_t* groups, int32_t num_groups,
                   int32_t num_blocks, float* sums, Ahead& ahead) {
  alignas(64) uint16_t memory[2][kPanelBlocks * kBlockValues];
  const int64_t group_values = int64_t{num_blocks} * kBlockValues;
  for (int32_t block = 0; block < num_blocks; block += kPanelBlocks) {
    const int32_t left = num_blocks - block;
    const int32_t count = left < kPanelBlocks ? left : kPanelBlocks;
    const uint16_t* panels[2];
    find_panels(tiles, block, count, memory[0], memory[1], panels);
    const uint16_t* from = groups + int64_t{block} * kBlockValues;
    asm volatile("" ::: "memory");  // as above
    int32_t group = 0;
    for (; group + 2 <= num_groups; group += 2) {
      add_groups<true>(from + group * group_values, group_values, panels[0], panels[1], count,
                       block == 0, sums + group * kGroupSums, ahead);
    }
    if (group < num_groups) {
      add_groups<false>(from + group * group_values, group_values, panels[0], panels[1], count,
                        block == 0, sums + group * kGroupSums, ahead);
    }
  }
}

void multiply(const GemmTiles& tiles, const uint16_t* groups, int32_t num_tokens, float* sums) {
  configure_tiles();
  const int32_t num_groups = (num_tokens + kGroupTokens - 1) / kGroupTokens;
  const int32_t num_blocks = (tiles.cols + 31) / 32;
  Ahead ahead = ahead_of(tiles, int64_t{(num_groups + 1) / 2} * num_blocks);
  if (num_groups <= kFewGroups) {
    const int64_t two_groups = int64_t{2} * num_blocks * kBlockValues;
    int32_t group = 0;
    for (; group + 2 <= num_groups; group += 2, groups += two_groups) {
      multiply_few<true>(tiles, groups, num_blocks, sums + group * kGroupSums, ahead);
    }
    if (group < num_groups) {
      multiply_few<false>(tiles, groups, num_blocks, sums + group * kGroupSums, ahead);
    }
  } else {
    multiply_many(tiles, groups, num_groups, num_blocks, sums, ahead);
  }
  _tile_release();
  asm volatile("" ::: "memory");  // the sums are read next
}

}  // namespace

const GemmKernels kGemmAmx = {.name = "amx",
                              .pack_group = pack_group,
                              .multiply = multiply,
                              .swiglu_group = swiglu_group,
                              .add_scaled = add_scaled,
                              .rms_norm = rms_norm,
                              .decode_ns = 0.03,
                              .apply_ns = 0.001,
                              .least_pairs = 4};

}  // namespace moxie
