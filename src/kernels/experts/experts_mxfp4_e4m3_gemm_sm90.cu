// experts on Hopper for many tokens with 8-bit operands (experts_grouped_sm90.cuh): activations in
// E4M3, weights in E5M2 into which their scales are folded (gemm/product_sm90.cuh).
//
// A token has one scale, a power of two: E4M3's own exponent reaches 15 octaves below the token's
// greatest value. Only below that would a scale for every 32 columns matter, which wgmma could not
// apply. The outputs of the first product are bounded by the clamps, limit * (limit + 1), so that
// their scale is known beforehand.
//
// Twice the rate of BF16, half the bytes of activations: 64 columns of a tile of 128 x 256 take 512
// clocks of wgmma, some 300 issue slots of each of the four schedulers for operands, and 20 KiB
// from L2. With 8,192 tokens of gpt-oss-120b, half of the experts have a few more than 256 tokens,
// and would need operands for two tiles: up to 288 are one tile.
#include <cmath>

#include "kernels/experts/experts_grouped_sm90.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/tile_model.h"

namespace moxie {
namespace {

using namespace gemm;

constexpr DType kActivation = DType::kF8E4M3;
constexpr int32_t kMostColumns = 288;
using Cut = CutOf<2, 1, false, kMostColumns, kActivation>;

// The power of two that scales the outputs below E4M3's greatest value.
float made_scale(const ExpertsParams& p) {
  return std::exp2(std::floor(std::log2(448.0f / (p.swiglu_limit * (p.swiglu_limit + 1.0f)))));
}

}  // namespace

const char* experts_mxfp4_e4m3_gemm_sm90_refuses(const ExpertsParams& p) {
  if (p.activation != DType::kMXFP8)
    return "activations in 8 bits: --activation mxfp8 asks for them";
  if (p.tile.columns != 0) return "it has one tile, 128x288";
  if (!(p.swiglu_limit > 0 && p.swiglu_limit < 1e6f)) return "SwiGLU is not clamped";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_e4m3_gemm_sm90_workspace(const ExpertsParams& p) {
  return GroupedMemory(p, kMostColumns, kActivation, nullptr).bytes;
}

void experts_mxfp4_e4m3_gemm_sm90(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  CHECK(p.gate_up.greatest_scales != nullptr && p.down.greatest_scales != nullptr,
        "scales were looked at when the model was loaded");
  const GroupedMemory memory(p, kMostColumns, kActivation, p.launch.workspace);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots_e4m3(stage_slots_of(p, memory), memory.slot_scale, p.launch.stream);
  const float scale = made_scale(p);
  launch_grouped<Cut, Cut, false, 144, 256, kMostColumns>("experts_mxfp4_e4m3_gemm_sm90", p, memory,
                                                          gate_up_task(p, memory, 1.0f, scale),
                                                          1.0f / scale);
}

}  // namespace moxie
