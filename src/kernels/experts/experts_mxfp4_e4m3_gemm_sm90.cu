// experts on Hopper for many tokens with 8-bit operands (experts_grouped_sm90.cuh): activations in
// E4M3, weights in E5M2 into which their scales are folded (gemm/streamed_product_sm90.cuh).
//
// A token has one scale, a power of two: E4M3's own exponent reaches 15 octaves below the token's
// greatest value. Only below that would a scale for every 32 columns matter, which wgmma could not
// apply. The outputs of the first product are bounded by the clamps, limit * (limit + 1), so that
// their scale is known beforehand.
//
// Twice the rate of BF16, half the bytes of activations. A unit of 16 rows x 64 columns is 100
// instructions of a warp to make an operand of, and 544 bytes from memory; an H200's SM does either
// in 28 clocks. With 96 columns its products take 24.
#include <algorithm>
#include <cmath>

#include "kernels/experts/experts_grouped_sm90.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/tile_model.h"

namespace moxie {
namespace {

using namespace gemm;

constexpr DType kActivation = DType::kF8E4M3;

// The power of two that scales the outputs below E4M3's greatest value.
float made_scale(const ExpertsParams& p) {
  return std::exp2(std::floor(std::log2(448.0f / (p.swiglu_limit * (p.swiglu_limit + 1.0f)))));
}

int32_t tile_columns(const ExpertsParams& p) {
  if (p.tile.columns != 0) return p.tile.columns;
  return choose_e4m3_tile(mean_pairs(p.num_tokens, p.top_k, routed_experts(p)));
}

// Calls launch<Cut, kWidths...>() for the tile of `columns` columns.
template <size_t kIdx = 0, typename Launch>
void dispatch_tile(int32_t columns, Launch&& launch) {
  constexpr E4m3Tile kTile = kE4m3Tiles[kIdx];
  using Cut = StreamedCut<kTile.columns, false, kActivation, kTile.rows / 64>;
  if (columns == kTile.columns) {
    // From kTile.few to kTile.columns.
    if constexpr (kTile.columns == 288) {
      return launch
          .template operator()<Cut, 96, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288>();
    } else if constexpr (kTile.columns == 144) {
      return launch.template operator()<Cut, 64, 80, 96, 112, 128, 144>();
    } else {
      return launch.template operator()<Cut, kTile.columns>();
    }
  }
  if constexpr (kIdx + 1 < kE4m3Tiles.size()) {
    dispatch_tile<kIdx + 1>(columns, launch);
  } else {
    CHECK(false, std::to_string(columns) + " columns");
  }
}

}  // namespace

const char* experts_mxfp4_e4m3_gemm_sm90_refuses(const ExpertsParams& p) {
  if (p.activation != DType::kMXFP8)
    return "activations in 8 bits: --activation mxfp8 asks for them";
  const bool has_tile = std::any_of(kE4m3Tiles.begin(), kE4m3Tiles.end(), [&](const E4m3Tile& t) {
    return p.tile == Tile{t.rows, t.columns};
  });
  if (p.tile.columns != 0 && !has_tile) return "it has no such tile";
  if (!(p.swiglu_limit > 0 && p.swiglu_limit < 1e6f)) return "SwiGLU is not clamped";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_e4m3_gemm_sm90_workspace(const ExpertsParams& p) {
  return GroupedMemory(p, tile_columns(p), kActivation, nullptr).bytes;
}

void experts_mxfp4_e4m3_gemm_sm90(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  CHECK(p.gate_up.greatest_scales != nullptr && p.down.greatest_scales != nullptr,
        "scales were looked at when the model was loaded");
  const int32_t tile = tile_columns(p);
  const bool has_widths = std::any_of(kE4m3Tiles.begin(), kE4m3Tiles.end(), [&](const E4m3Tile& t) {
    return t.columns == tile && t.few < t.columns;
  });
  const GroupedMemory memory(p, tile, kActivation, p.launch.workspace, has_widths);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots_e4m3(stage_slots_of(p, memory), memory.slot_scale, p.launch.stream);
  const float scale = made_scale(p);
  dispatch_tile(memory.shape.tile_slots, [&]<typename Cut, int... kWidths>() {
    launch_grouped<Cut, false, kWidths...>("experts_mxfp4_e4m3_gemm_sm90", p, memory,
                                           gate_up_task(p, memory, 1.0f, scale), 1.0f / scale);
  });
}

}  // namespace moxie
