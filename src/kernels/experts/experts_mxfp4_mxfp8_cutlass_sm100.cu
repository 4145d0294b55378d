// experts on sm_100a for many tokens with activations in MXFP8: both products by CUTLASS's
// block-scaled templates (gemm/grouped_mx_sm100.h), with a scale for every 32 columns of
// activations and of weights. Compiled only: it has run on no hardware.
//
// The instruction reads weights in another layout than the packed one. So each launch unpacks the
// weights of the experts that it chose to the workspace, first those of gate/up, then, in the same
// memory, those of down. With all 128 experts of a layer of gpt-oss-120b that reads 1.69 GB, writes
// 1.73 GB, and the products read 1.73 GB: 0.67 ms at a B200's 7.7 TB/s, whatever the number of
// tokens. The products of 8,192 tokens are 1.63 TFLOP, 0.36 ms at 4.5 PFLOP/s. gpt-oss-20b has a
// quarter of the weights and as many products. Workspace of unpacked weights: 1.15 GB and 0.29 GB.
//
// CUTLASS stores sums in BF16. The kernel after the first product adds the biases, and rounds
// hidden values to MXFP8; the kernel after the second adds biases and sums of each token's pairs.
#include "kernels/experts/experts_grouped.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/blocked_mx_cuda.h"
#include "kernels/gemm/grouped_mx_sm100.h"

namespace moxie {
namespace {

using namespace gemm;

/// Scratch of a launch. What the second product reads and writes overwrites what the first did.
struct BlockedMemory {
  SortShape shape;
  SortedPairs pairs;
  SlotGroup* groups;
  BlockedView activations;       // of gate/up, then of down
  BlockedView weights;           // likewise
  uint16_t* products = nullptr;  // likewise: [slots, gate_up.rows], [slots, hidden]
  std::byte* of_product = nullptr;
  uint64_t bytes;

  BlockedMemory(const ExpertsParams& p, std::byte* base)
      : shape{.num_tokens = p.num_tokens,
              .top_k = p.top_k,
              .num_experts = p.gate_up.num_experts,
              .tile_slots = whole_groups(p.num_tokens, p.top_k)} {
    Scratch scratch(base);
    pairs = take_sorted_pairs(shape, scratch);
    const int64_t slots = shape.capacity(), experts = shape.num_runs();
    const int32_t most_columns =
        std::max(blocked_columns(p.hidden), blocked_columns(p.intermediate));
    groups = scratch.take<SlotGroup>(slots / kSlotsAlign);
    activations.codes = take(scratch, slots * most_columns);
    activations.scales = reinterpret_cast<uint8_t*>(
        take(scratch, blocked_scale_bytes(scale_rows(shape), most_columns)));
    weights.codes = take(
        scratch, experts * std::max(blocked_code_bytes(p.gate_up), blocked_code_bytes(p.down)));
    weights.scales = reinterpret_cast<uint8_t*>(take(
        scratch, experts * std::max(blocked_scale_bytes(p.gate_up), blocked_scale_bytes(p.down))));
    products = reinterpret_cast<uint16_t*>(
        take(scratch, 2 * slots * std::max(p.gate_up.rows, p.down.rows)));
    of_product = take(scratch, static_cast<int64_t>(grouped_mx_bytes(shape.num_runs())));
    bytes = scratch.bytes();
  }

 private:
  // Aligned to 128, as TMA wants it.
  static std::byte* take(Scratch& scratch, int64_t count) {
    auto* at = scratch.take<std::byte>(count + 64);
    return reinterpret_cast<std::byte*>(round_up<uint64_t>(reinterpret_cast<uint64_t>(at), 128));
  }
};

// products = the groups' activations times a matrix.
void multiply(const char* row, const ExpertsParams& p, const BlockedMemory& memory,
              const PackedMatrix& matrix) {
  const int32_t columns = blocked_columns(matrix.cols), most_groups = memory.shape.num_runs();
  BlockedView activations = memory.activations, weights = memory.weights;
  activations.columns = weights.columns = columns;
  unpack_weights({.matrix = matrix,
                  .tiles = memory.pairs.tiles,
                  .num_tiles = memory.pairs.num_tiles,
                  .most_groups = most_groups,
                  .to = weights},
                 p.launch.stream);
  grouped_mx_product(row,
                     {.tiles = memory.pairs.tiles,
                      .num_tiles = memory.pairs.num_tiles,
                      .most_groups = most_groups,
                      .activations = activations,
                      .weights = weights,
                      .rows = matrix.rows,
                      .outputs = memory.products,
                      .memory = memory.of_product,
                      .num_sms = fragment::num_sms()},
                     p.launch.stream);
}

}  // namespace

const char* experts_mxfp4_mxfp8_cutlass_sm100_refuses(const ExpertsParams& p) {
  if (p.activation != DType::kMXFP8)
    return "activations in MXFP8: --activation mxfp8 asks for them";
  if (p.tile.columns != 0) return "it has one tile, 128x256";
  if (!holds_all_experts(p)) return "other ranks hold some of the experts";
  if (p.intermediate % kMxBlock != 0) return "the intermediate size is not a multiple of 32";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_mxfp8_cutlass_sm100_workspace(const ExpertsParams& p) {
  return BlockedMemory(p, nullptr).bytes;
}

void experts_mxfp4_mxfp8_cutlass_sm100(const ExpertsParams& p) {
  constexpr const char* kRow = "experts_mxfp4_mxfp8_cutlass_sm100";
  if (p.num_tokens == 0) return;
  const BlockedMemory memory(p, p.launch.workspace);
  Stream* stream = p.launch.stream;
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, stream);
  find_slot_groups(memory.pairs, memory.shape, memory.groups, stream);
  BlockedView inputs = memory.activations, hidden_values = memory.activations;
  inputs.columns = blocked_columns(p.hidden);
  hidden_values.columns = blocked_columns(p.intermediate);
  const bool norms = p.forms.t == TForm::kAbsent;
  stage_blocked({.slots = {.num_tokens = p.num_tokens,
                           .top_k = p.top_k,
                           .values = norms ? normed_x(p) : p.t,
                           .norm_weight = norms ? p.norm_weight : nullptr,
                           .rms_eps = p.rms_eps,
                           .x_is_single = p.forms.x == XForm::kF32,
                           .slot_of_pair = memory.pairs.slot_of_pair,
                           .to = {.width = p.hidden}},
                 .groups = memory.groups,
                 .to = inputs},
                stream);
  multiply(kRow, p, memory, p.gate_up);
  stage_swiglu({.intermediate = p.intermediate,
                .rows = p.gate_up.rows,
                .capacity = memory.pairs.capacity,
                .alpha = p.swiglu_alpha,
                .limit = p.swiglu_limit,
                .products = memory.products,
                .bias = p.gate_up_bias,
                .groups = memory.groups,
                .to = hidden_values},
               stream);
  multiply(kRow, p, memory, p.down);
  add_pairs({.num_tokens = p.num_tokens,
             .width = p.hidden,
             .top_k = p.top_k,
             .slot_of_pair = memory.pairs.slot_of_pair,
             .weights = p.expert_weights,
             .pairs = memory.products,
             .x = p.x,
             .x_is_single = p.forms.x == XForm::kF32,
             .overwrites = p.overwrites,
             .bias = p.down_bias,
             .expert_ids = p.expert_ids},
            stream);
}

}  // namespace moxie
