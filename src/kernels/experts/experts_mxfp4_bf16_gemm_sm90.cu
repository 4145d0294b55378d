// experts on Hopper for many tokens in BF16 (experts_grouped_sm90.cuh): tiles of 8 to 144 tokens,
// which the tile model chooses.
//
// 8,192 tokens of gpt-oss-120b, a layer: 1.63 TFLOP; 1.7 GB of weights, 0.19 GB of activations in
// and as many between the products, 0.75 GB added to x.
#include "kernels/experts/experts_grouped_sm90.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/tile_model.h"

namespace moxie {
namespace {

using namespace gemm;

/// How a tile's products are cut. For few columns both are cut alike, and streamed. For more, down
/// has blocks of 192 rows, since 2,880 is 15 times 192. kInOrder: every column is multiplied alike.
template <int kMany_, bool kInOrder>
struct Grouping {
  static constexpr int kMany = kMany_;
  static constexpr bool kIsStreamed = kMany <= kMostStreamedColumns;
  static constexpr int kMostColumns = std::max(kMany, WideCut::kMostColumns);
  using FewCut = StreamedCut<kMany, !kInOrder && kMany <= 16>;
  using GateUpCut = std::conditional_t<kIsStreamed, FewCut, CutOf<2, 2, false, kMostColumns>>;
  using DownCut = std::conditional_t<kIsStreamed, FewCut, CutOf<3, 1, false, kMostColumns>>;
};

/// Calls launch<Grouping>() for the tile of `columns` columns.
template <bool kInOrder, size_t kIdx = 0, typename Launch>
void dispatch_tile(int32_t columns, Launch&& launch) {
  constexpr GroupedTile kTile = kGroupedTiles[kIdx];
  if constexpr (!kInOrder || kTile.is_ordered) {
    if (columns == kTile.columns)
      return launch.template operator()<Grouping<kTile.columns, kInOrder>>();
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
  const GroupedMemory memory(p, tile, DType::kBF16, p.launch.workspace,
                             tile > kMostStreamedColumns);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  dispatch_tile<kInOrder>(memory.shape.tile_slots, [&]<typename G>() {
    constexpr DType F = DType::kMXFP4;
    float raise = 1.0f, scale = kProductScale<F>;
    if constexpr (G::kIsStreamed) {
      raise = kStreamedRaise<F, typename G::FewCut>;
      scale = kStreamedScale<F, typename G::FewCut>;
    }
    stage_slots(stage_slots_of(p, memory, raise), p.launch.stream);
    const auto launch = [&]<int... kWidths>() {
      launch_grouped<typename G::GateUpCut, typename G::DownCut, G::kIsStreamed && !kInOrder,
                     kWidths...>(row, p, memory, gate_up_task(p, memory, scale, raise), scale);
    };
    if constexpr (G::kIsStreamed) {
      launch.template operator()<G::kMany>();
    } else if constexpr (G::kMostColumns <= 128) {
      launch.template operator()<48, 64, 80, 96, 112, 128>();
    } else {
      launch.template operator()<48, 64, 80, 96, 112, 128, 144>();
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
  if (p.forms.x == XForm::kF32 && experts_tile<false>(p) <= kMostStreamedColumns)
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
