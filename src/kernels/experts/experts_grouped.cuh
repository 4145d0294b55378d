// What the rows of experts for many tokens share on GPUs: pairs of token and expert sorted by
// expert, their activations gathered, two grouped products, and the sums of each token's pairs.
#pragma once

#include "kernels/experts/experts.h"
#include "kernels/gemm/add_pairs_cuda.h"
#include "kernels/gemm/dense.cuh"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/scratch.h"

namespace moxie::gemm {

/// Items of the sorted pairs: each tile of the list, times each block of rows.
struct SortedItems {
  const SlotTile* tiles;
  const int32_t* num_tiles;
  int32_t row_blocks, tiles_a_block;

  __device__ __forceinline__ int count() const { return *num_tiles * row_blocks; }
  __device__ __forceinline__ Item at(int i) const {
    const int tile = i / row_blocks;
    const SlotTile t = tiles[tile];
    return {.expert = t.expert,
            .first_tile = (i - tile * row_blocks) * tiles_a_block,
            .first_column = t.first_slot,
            .num_columns = t.num_slots};
  }
  /// At least the columns of item i, and as many for all items of an expert.
  __device__ __forceinline__ int width(int i) const { return tiles[i / row_blocks].width; }
  __device__ __forceinline__ bool item(int i, Item& item) const {
    if (i / row_blocks >= *num_tiles) return false;
    item = at(i);
    return true;
  }
};

/// The biases of rows g and g + 8 of a tile of an expert, of [experts, rows of `weight`].
__device__ __forceinline__ float2 row_biases(const float* bias, const PackedMatrix& weight,
                                             int expert, int tile) {
  const int row = 16 * tile + static_cast<int>(threadIdx.x) % 32 / 4;
  const float* at = bias + int64_t{expert} * weight.rows + row;
  return make_float2(row < weight.rows ? at[0] : 0.0f, row + 8 < weight.rows ? at[8] : 0.0f);
}

/// Factors of the sums of rows g and g + 8 of a tile: the task's factor, and the rows' greatest
/// scales if scales are folded.
template <typename Cut, typename Task>
__device__ __forceinline__ float2 product_scales_of(const Task& task, int expert, int tile) {
  if constexpr (Cut::kActivation != DType::kF8E4M3)
    return make_float2(task.product_scale, task.product_scale);
  const int2 greatest = greatest_scales_of(task.weight, expert, tile);
  const auto scale = [&](int code) {
    return task.product_scale * exp2f(static_cast<float>(code - 127 - kFoldedTop));
  };
  return make_float2(scale(greatest.x), scale(greatest.y));
}

/// act = SwiGLU(W1 t + b1), staged for the second product; without its end.
struct GateUpProduct {
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  StagedView made;
  const float* bias;  // packed order
  float alpha, limit, product_scale;
  const float* slot_scale;  // E4M3 only: factors of the outputs
  float made_scale;         // of the staged outputs
  int32_t intermediate;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }

  template <typename Cut>
  __device__ __forceinline__ float activation(float gate, float up) const {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    if constexpr (Cut::kActivation == DType::kF8E4M3) {
      // tanh.approx is one special-function operation where exp and division are two. Its error is
      // 2^-12 of 1; E4M3 keeps 2^-4.
      float tangent;
      asm("tanh.approx.f32 %0, %1;" : "=f"(tangent) : "f"(0.5f * alpha * g));
      return g * (0.5f * tangent + 0.5f) * (u * made_scale + made_scale);
    }
    return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u * made_scale + made_scale);
  }
  __device__ __forceinline__ float2 biases(int expert, int tile) const {
    return row_biases(bias, weight, expert, tile);
  }
  /// Calls store(m, column, first, second) with two neighbouring outputs of a column: 8 (tile + 4
  /// m) + g / 2 * 2 and the next. biases_of(m): of rows g and g + 8 of tile + 4 m.
  template <typename Cut, int kColumns, typename Biases, typename Store>
  __device__ __forceinline__ void make(int tile, const Sums<Cut, kColumns>& sums,
                                       Biases&& biases_of, Store&& store) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int in_pair = 2 * q + g % 2;  // column whose two outputs this lane stores
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int output = 8 * (tile + 4 * m) + g;
      const bool is_real = output < intermediate;
      const float2 add = biases_of(m);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const float* d = &sums[m][4 * i];
        float first = activation<Cut>(d[0] * product_scale + add.x, d[2] * product_scale + add.y);
        float second = activation<Cut>(d[1] * product_scale + add.x, d[3] * product_scale + add.y);
        if (!is_real) first = second = 0;
        // Lanes g and g + 1 (even and odd) exchange outputs: then each has both outputs of one
        // column.
        const float theirs = __shfl_xor_sync(~0u, g % 2 == 0 ? second : first, 4);
        if (g % 2 == 0) {
          store(m, 8 * i + in_pair, first, theirs);
        } else {
          store(m, 8 * i + in_pair, theirs, second);
        }
      }
    }
  }
};

/// The second product, without its end.
struct DownProduct {
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  const float* bias;  // [experts, hidden]
  float product_scale;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }
  __device__ __forceinline__ float2 biases(int expert, int tile) const {
    return row_biases(bias, weight, expert, tile);
  }
};

/// Scratch of a launch: the sorted pairs, their activations and the outputs of both products. The
/// outputs of the second product overwrite the activations, which only the first reads.
struct GroupedMemory {
  SortShape shape;
  SortedPairs pairs;
  StagedView staged, made;
  uint16_t* pair_outputs = nullptr;  // [slots, hidden]
  float* slot_scale = nullptr;       ///< E4M3: factor of a slot's staged values
  uint64_t bytes;

  GroupedMemory(const ExpertsParams& p, int32_t tile_slots, DType activation, std::byte* base,
                bool widest_first = false)
      : shape{.num_tokens = p.num_tokens,
              .top_k = p.top_k,
              .num_experts = p.gate_up.num_experts,
              .tile_slots = tile_slots,
              .first_expert = p.first_expert,
              .widest_first = widest_first} {
    Scratch scratch(base);
    pairs = take_sorted_pairs(shape, scratch);
    const auto rows = shape.capacity();
    // Sized for BF16, since the pairs' outputs take the same memory.
    staged.data = scratch.take<std::byte>(static_cast<int64_t>(staged_bytes(rows, p.hidden)));
    made.data = scratch.take<std::byte>(
        static_cast<int64_t>(staged_bytes(rows, p.intermediate, activation)));
    staged.capacity = made.capacity = pairs.capacity;
    staged.width = p.hidden, made.width = p.intermediate;
    if (is_staged_mx(activation)) {
      for (StagedView* view : {&staged, &made})
        view->scales = scratch.take<std::byte>(int64_t{staged_units(view->width)} * view->capacity *
                                               kStagedScaleBytes);
    }
    pair_outputs = reinterpret_cast<uint16_t*>(staged.data);
    if (activation == DType::kF8E4M3) slot_scale = scratch.take<float>(rows);
    if (p.forms.reduce == ReduceForm::kRounded) {
      pairs.slot_of_pair = p.pairs.slot_of_pair;
      pair_outputs = p.pairs.outputs;
    }
    bytes = scratch.bytes();
  }
};

/// The first task, without its items.
inline GateUpProduct gate_up_task(const ExpertsParams& p, const GroupedMemory& memory,
                                  float product_scale, float made_scale = 1.0f) {
  return {.items = {},
          .weight = p.gate_up,
          .staged = memory.staged,
          .made = memory.made,
          .bias = p.gate_up_bias,
          .alpha = p.swiglu_alpha,
          .limit = p.swiglu_limit,
          .product_scale = product_scale,
          .slot_scale = memory.slot_scale,
          .made_scale = made_scale,
          .intermediate = p.intermediate};
}
/// The second task, without its items.
inline DownProduct down_task(const ExpertsParams& p, const GroupedMemory& memory,
                             float product_scale) {
  return {.items = {},
          .weight = p.down,
          .staged = memory.made,
          .bias = p.down_bias,
          .product_scale = product_scale};
}
/// How the slots' activations are staged, from t or from x, `scale` times their values.
inline StageSlots stage_slots_of(const ExpertsParams& p, const GroupedMemory& memory,
                                 float scale = 1.0f) {
  return {.num_tokens = p.num_tokens,
          .top_k = p.top_k,
          .values = p.forms.t == TForm::kAbsent ? normed_x(p) : p.t,
          .norm_weight = p.forms.t == TForm::kAbsent ? p.norm_weight : nullptr,
          .rms_eps = p.rms_eps,
          .x_is_single = p.forms.x == XForm::kF32,
          .slot_of_pair = memory.pairs.slot_of_pair,
          .scale = scale,
          .to = memory.staged};
}

/// Why grouped products cannot do these experts; null if they can.
inline const char* refuses_grouped(const ExpertsParams& p) {
  if (p.gate_up.format != DType::kMXFP4 || p.down.format != DType::kMXFP4)
    return "weights are not MXFP4";
  if (p.gate_up.num_experts > kMaxSortedExperts) return "more than 256 experts";
  if (p.top_k > kMaxTopK) return "more than 16 experts a token";
  if (p.hidden % 8 != 0) return "the hidden size is not a multiple of 8";
  return refuses_product(p.gate_up);
}
/// How each token's pairs are added up, after a second product that wrote them.
inline AddPairs added_pairs_of(const ExpertsParams& p, const GroupedMemory& memory) {
  return {.num_tokens = p.num_tokens,
          .width = p.hidden,
          .top_k = p.top_k,
          .slot_of_pair = memory.pairs.slot_of_pair,
          .weights = p.expert_weights,
          .pairs = memory.pair_outputs,
          .x = p.x,
          .x_is_single = p.forms.x == XForm::kF32,
          .overwrites = p.overwrites};
}
/// The end of a launch whose second product wrote the outputs of pairs.
inline void end_pairs(const ExpertsParams& p, const GroupedMemory& memory) {
  if (p.forms.reduce != ReduceForm::kRounded) add_pairs(added_pairs_of(p, memory), p.launch.stream);
}

}  // namespace moxie::gemm
