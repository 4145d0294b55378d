// experts on Hopper for many tokens in BF16 (experts_grouped_sm90.cuh): tiles of 8 to 256 tokens,
// which the tile model chooses. Those of 256 are multiplied in wide blocks (experts_wide_sm90.cuh).
//
// 8,192 tokens of gpt-oss-120b, a layer: 1.63 TFLOP; 1.7 GB of weights, 0.19 GB of activations in
// and as many between the products, 0.75 GB added to x.
#include "kernels/experts/experts_rows.h"
#include "kernels/experts/experts_wide_sm90.cuh"
#include "kernels/gemm/tile_model.h"

namespace moxie {
namespace {

using namespace gemm;

/// Whether tiles have the width of their tokens, and the outputs of pairs are written.
constexpr bool has_widths(int32_t columns) { return columns > 64; }
/// Whether a tile's products are those of wide blocks; others are streamed.
constexpr bool is_wide(int32_t columns) { return columns == WideBlock::kColumns; }

/// Calls launch<kColumns>() for the tile of `columns` columns.
template <bool kInOrder, size_t kIdx = 0, typename Launch>
void dispatch_tile(int32_t columns, Launch&& launch) {
  constexpr GroupedTile kTile = kGroupedTiles[kIdx];
  if constexpr (!kInOrder || kTile.is_ordered) {
    if (columns == kTile.columns) return launch.template operator()<kTile.columns>();
  }
  if constexpr (kIdx + 1 < kGroupedTiles.size()) {
    dispatch_tile<kInOrder, kIdx + 1>(columns, launch);
  } else {
    CHECK(false, std::to_string(columns) + " columns");
  }
}

template <bool kInOrder>
int32_t experts_tile(const ExpertsParams& p) {
  if (p.tile.columns != 0) return p.tile.columns;
  return choose_tile(mean_pairs(p.num_tokens, p.top_k, routed_experts(p)), kInOrder).columns;
}

template <bool kInOrder>
uint64_t workspace_of(const ExpertsParams& p) {
  return GroupedMemory(p, experts_tile<kInOrder>(p), DType::kBF16, nullptr).bytes;
}

template <bool kInOrder>
void run_experts(const char* row, const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  const int32_t tile = experts_tile<kInOrder>(p);
  const GroupedMemory memory(p, tile, DType::kBF16, p.launch.workspace, has_widths(tile));
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  dispatch_tile<kInOrder>(memory.shape.tile_slots, [&]<int kColumns>() {
    if constexpr (is_wide(kColumns)) {
      stage_slots(stage_slots_of(p, memory), p.launch.stream);
      launch_wide_experts<48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256>(row, p,
                                                                                            memory);
    } else {
      // kInOrder: every column is multiplied alike.
      using Cut = StreamedCut<kColumns, !kInOrder && kColumns <= 16>;
      constexpr DType F = DType::kMXFP4;
      constexpr float kRaise = kStreamedRaise<F, Cut>, kScale = kStreamedScale<F, Cut>;
      stage_slots(stage_slots_of(p, memory, kRaise), p.launch.stream);
      const auto launch = [&]<int... kWidths>() {
        launch_grouped<Cut, !has_widths(kColumns) && !kInOrder, kWidths...>(
            row, p, memory, gate_up_task(p, memory, kScale, kRaise), kScale);
      };
      if constexpr (has_widths(kColumns)) {
        launch.template operator()<32, 48, 64, 80, 96>();
      } else {
        launch.template operator()<kColumns>();
      }
    }
  });
}

bool has_tile(const ExpertsParams& p, bool ordered) {
  return (p.tile.rows == 0 || p.tile.rows == kGroupedTileRows) &&
         (p.tile.columns == 0 || is_grouped_tile(p.tile.columns, ordered));
}

// MXFP8 lets other rows run, which only gain in launches of many tokens.
const char* refuses_activation(const ExpertsParams& p) {
  return p.activation == DType::kBF16 || p.activation == DType::kMXFP8
             ? nullptr
             : "activations in six or four bits are asked for";
}

}  // namespace

const char* experts_mxfp4_bf16_gemm_sm90_refuses(const ExpertsParams& p) {
  if (const char* why = refuses_activation(p)) return why;
  if (!has_tile(p, false)) return "it has no such tile";
  if (p.forms.x == XForm::kF32 && !has_widths(experts_tile<false>(p)))
    return "tiles of few columns add to x from many blocks: two floats a value";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_bf16_gemm_sm90_workspace(const ExpertsParams& p) {
  return workspace_of<false>(p);
}

void experts_mxfp4_bf16_gemm_sm90(const ExpertsParams& p) {
  run_experts<false>("experts_mxfp4_bf16_gemm_sm90", p);
}

const char* experts_mxfp4_bf16_ordered_sm90_refuses(const ExpertsParams& p) {
  if (const char* why = refuses_activation(p)) return why;
  if (!has_tile(p, true)) return "it has no such tile";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_bf16_ordered_sm90_workspace(const ExpertsParams& p) {
  return workspace_of<true>(p);
}

void experts_mxfp4_bf16_ordered_sm90(const ExpertsParams& p) {
  run_experts<true>("experts_mxfp4_bf16_ordered_sm90", p);
}

}  // namespace moxie
