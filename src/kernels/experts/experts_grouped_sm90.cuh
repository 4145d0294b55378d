// What the rows of experts for many tokens share on Hopper: pairs of token and expert sorted by
// expert, their activations gathered, then two grouped products (gemm/product_sm90.cuh). The first
// ends in bias and clamped SwiGLU and stages its outputs for the second. For few tokens the second
// adds weighted outputs to the residual stream; these sums do not depend on the order of the
// additions (residual.cuh), so that every run gives the same bits. For many tokens, and in the
// ordered row, it writes each pair's outputs in BF16, and the next kernel adds them up token by
// token: half the bytes, and no additions in memory.
#pragma once

#include "kernels/experts/experts.h"
#include "kernels/gemm/add_pairs_cuda.h"
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/scratch.h"

namespace moxie::gemm {

/// Items of the sorted pairs: each tile of the list, times each block of rows.
struct SortedItems {
  const SlotTile* tiles;
  const int32_t* num_tiles;
  int32_t row_blocks, tiles_a_block;

  __device__ __forceinline__ bool item(int i, Item& item) const {
    const int tile = i / row_blocks;
    if (tile >= *num_tiles) return false;
    const SlotTile t = tiles[tile];
    item = {.expert = t.expert,
            .first_tile = (i - tile * row_blocks) * tiles_a_block,
            .first_column = t.first_slot,
            .num_columns = t.num_slots};
    return true;
  }
};

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

/// act = SwiGLU(W1 t + b1), staged for the second product.
struct GateUp {
  /// Shared memory of the warpgroups that make a unit together: in BF16 a unit has eight tiles. In
  /// E4M3 a warpgroup makes its half of a unit, and no other warpgroup waits for that half.
  template <typename Cut>
  static constexpr int kSharedBytes =
      (Cut::kActivation == DType::kF8E4M3 ? 1 : 2) * Cut::kMostColumns* Cut::kRowBytes;
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  StagedView made;
  const float* bias;  // packed order
  float alpha, limit, product_scale;
  const float* slot_scale;  // E4M3 only, like made_scale: factors of the outputs
  float made_scale;
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
    return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + 1.0f);
  }
  /// Calls store(m, column, first, second) with two neighbouring outputs of a column: 8 (tile + 4
  /// m) + g / 2 * 2 and the next. scales(i): factors of columns 8 i + 2 q and the next, on top of
  /// the rows' factors.
  template <typename Cut, int kColumns, typename Scales, typename Store>
  __device__ __forceinline__ void make(const Item& item, int tile, const Sums<Cut, kColumns>& sums,
                                       Scales&& scales, Store&& store) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int in_pair = 2 * q + g % 2;  // column whose two outputs this lane stores
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int output = 8 * (tile + 4 * m) + g;
      const bool is_real = output < intermediate;
      const float* at = bias + int64_t{item.expert} * weight.rows + 16 * (tile + 4 * m) + g;
      const float gate_bias = is_real ? at[0] : 0, up_bias = is_real ? at[8] : 0;
      const float2 rows = product_scales_of<Cut>(*this, item.expert, tile + 4 * m);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const float* d = &sums[m][4 * i];
        const float2 scale = scales(i);
        float first = activation<Cut>(d[0] * (rows.x * scale.x) + gate_bias,
                                      d[2] * (rows.y * scale.x) + up_bias);
        float second = activation<Cut>(d[1] * (rows.x * scale.y) + gate_bias,
                                       d[3] * (rows.y * scale.y) + up_bias);
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
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    if constexpr (Cut::kActivation == DType::kF8E4M3) {
      return finish_e4m3<Cut, kColumns>(item, tile, sums, shared);
    }
    const int g = threadIdx.x % 32 / 4;
    constexpr int kThreads = 128 * (2 / Cut::kRowTiles);
    const int unit = tile / 8, region = unit - item.first_tile / 8;
    const bool is_first = (threadIdx.x - 128) % kThreads == 0;
    std::byte* rows = shared + region * Cut::kMostColumns * 128;
    if (is_first) wait_for_bulk_reads();  // of the previous item
    barrier_wait(1 + region, kThreads);
    make<Cut, kColumns>(
        item, tile, sums, [](int) { return make_float2(1.0f, 1.0f); },
        [&](int m, uint32_t row, float first, float second) {
          const uint32_t chunk = (tile / 4 + m) % 2 * 4 + g / 2;
          *reinterpret_cast<uint32_t*>(rows + 128 * row + 16 * (chunk ^ row % 8) + 4 * (tile % 4)) =
              pack_bf16(first, second);
        });
    fence_bulk_copies();
    barrier_wait(1 + region, kThreads);
    if (is_first && 64 * unit < intermediate) {
      const uint32_t num_rows = (item.num_columns + 7) / 8 * 8;
      store_bulk(made.data + (int64_t{unit} * made.capacity + item.first_column) * 128, rows,
                 128 * num_rows);
    }
  }
  // Four tiles are a block of 32 outputs: in each staged row two neighbouring chunks of the unit's
  // four.
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish_e4m3(const Item& item, int tile,
                                              const Sums<Cut, kColumns>& sums,
                                              std::byte* shared) const {
    static_assert(Cut::kRowTiles == 1 && !Cut::kSplitsK);
    constexpr int kRowBytes = Cut::kRowBytes, kHalfBytes = kRowBytes / 2;
    const int q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1;
    const uint32_t block = tile / 4 % 2;
    std::byte* rows = shared + group * Cut::kMostColumns * kHalfBytes;
    const auto* column_scales = reinterpret_cast<const float2*>(slot_scale + item.first_column);
    barrier_wait(1 + group, 128);  // until the previous item is stored
    make<Cut, kColumns>(
        item, tile, sums,
        [&](int i) {
          float2 own = make_float2(0.0f, 0.0f);
          if (8 * i < item.num_columns) own = __ldg(column_scales + 4 * i + q);
          return own;
        },
        [&](int, uint32_t row, float first, float second) {
          const uint32_t chunk = g / 4 ^ row / 2 % 2;
          *reinterpret_cast<uint16_t*>(rows + kHalfBytes * row + 16 * chunk + 4 * (tile % 4) +
                                       g / 2 % 2 * 2) = pack_e4m3(first, second);
        });
    barrier_wait(1 + group, 128);
    const int unit = tile / 8;
    if (64 * unit >= intermediate) return;
    std::byte* to = made.data + (int64_t{unit} * made.capacity + item.first_column) * kRowBytes;
    for (uint32_t i = thread; i < 2u * item.num_columns; i += 128) {
      const uint32_t row = i / 2, chunk = (2 * block ^ (row / 2 % 4 & 2u)) + i % 2;
      *reinterpret_cast<uint4*>(to + kRowBytes * row + 16 * chunk) =
          *reinterpret_cast<const uint4*>(rows + 16 * i);
    }
  }
  __device__ __forceinline__ void drain() const { wait_for_bulk_stores(); }
};

/// What DownPairs and DownAdds share.
struct DownProduct {
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  const float* bias;  // [experts, hidden]
  float product_scale;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }
  /// The biases of rows g and g + 8 of a tile.
  __device__ __forceinline__ float2 row_bias(int expert, int tile) const {
    const int row = 16 * tile + static_cast<int>(threadIdx.x) % 32 / 4;
    const float* at = bias + int64_t{expert} * weight.rows + row;
    return make_float2(row < weight.rows ? at[0] : 0.0f, row + 8 < weight.rows ? at[8] : 0.0f);
  }
};

/// pairs = W2 act + b2 of each slot, in BF16 (add_pairs_cuda.h).
struct DownPairs : DownProduct {
  uint16_t* pairs;  // [slots, hidden]
  /// Columns that a warpgroup stores at a time.
  template <typename Cut>
  static constexpr int kStep = Cut::kMostColumns <= 144 ? Cut::kMostColumns : 128;
  template <typename Cut>
  static constexpr int kSharedBytes = Cut::kWarpgroups* kStep<Cut>* kStagedRowBytes;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    static_assert(!Cut::kSplitsK && kColumns % 16 == 0);
    constexpr int kColumnsAtATime = kStep<Cut>;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
    std::byte* rows = shared + group * kColumnsAtATime * kStagedRowBytes;
    // Where this lane's row of an 8 x 8 matrix goes: the four matrices are two blocks of 8 columns
    // times both halves of the tile.
    const uint32_t in_block = lane % 8, half_of_lane = lane / 8 % 2, block_of_lane = lane / 16;
    const uint32_t lane_at = shared_address(rows) +
                             (8 * block_of_lane + in_block) * kStagedRowBytes +
                             16 * ((2 * (tile % 4) + half_of_lane) ^ in_block);
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int unit = tile / 4 + m;
      const float2 scale = product_scales_of<Cut>(*this, item.expert, tile + 4 * m);
      const float2 add = row_bias(item.expert, tile + 4 * m);
#pragma unroll
      for (int first = 0; first < kColumns; first += kColumnsAtATime) {
        if (first >= item.num_columns) break;
        barrier_wait(1 + group, 128);  // the previous columns are stored
#pragma unroll
        for (int i = first / 8; i < min(first + kColumnsAtATime, kColumns) / 8; i += 2) {
          const float* d = &sums[m][4 * i];
          uint32_t words[4];
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            const float* of = d + 4 * block;
            words[2 * block] = pack_bf16(of[0] * scale.x + add.x, of[1] * scale.x + add.x);
            words[2 * block + 1] = pack_bf16(of[2] * scale.y + add.y, of[3] * scale.y + add.y);
          }
          store_transposed(lane_at + (8 * i - first) * kStagedRowBytes, words);
        }
        barrier_wait(1 + group, 128);
        // Eight lanes store a column, eight rows each.
        const int thread = threadIdx.x % 128, chunk = thread % 8, row = 64 * unit + 8 * chunk;
        if (row >= weight.rows) continue;
        const int count = min(kColumnsAtATime, item.num_columns - first);
        uint16_t* to = pairs + int64_t{item.first_column + first} * weight.rows + row;
        for (int column = thread / 8; column < count; column += 16) {
          *reinterpret_cast<uint4*>(to + int64_t{column} * weight.rows) =
              *reinterpret_cast<const uint4*>(rows + column * kStagedRowBytes +
                                              16 * (chunk ^ column % 8));
        }
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
};

/// x += weight (W2 act + b2) of each pair.
struct DownAdds : DownProduct {
  template <typename Cut>
  static constexpr int kSharedBytes = 0;
  const int32_t* slot_token;  // -1: none
  const float* slot_weight;
  float2* x;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte*) const {
    static_assert(Cut::kRowTiles == 1 && Cut::kActivation == DType::kBF16);
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int hidden = weight.rows;
    const float2 add = row_bias(item.expert, tile);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const int column = 8 * i + 2 * q, slot = item.first_column + column;
      if (column >= item.num_columns) continue;
      const int2 tokens = __ldg(reinterpret_cast<const int2*>(slot_token + slot));
      const float2 weights = __ldg(reinterpret_cast<const float2*>(slot_weight + slot));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * tile + g + 8 * half;
        if (row >= hidden) continue;
        const float* d = &sums[0][4 * i + 2 * half];
        const float row_add = half == 0 ? add.x : add.y;
        const float2 made =
            make_float2(d[0] * product_scale + row_add, d[1] * product_scale + row_add);
        if (tokens.x >= 0)
          add_to_residual(x + int64_t{tokens.x} * hidden + row, weights.x * made.x);
        if (tokens.y >= 0)
          add_to_residual(x + int64_t{tokens.y} * hidden + row, weights.y * made.y);
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
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

  GroupedMemory(const ExpertsParams& p, int32_t tile_slots, DType activation, std::byte* base)
      : shape{.num_tokens = p.num_tokens,
              .top_k = p.top_k,
              .num_experts = p.gate_up.num_experts,
              .tile_slots = tile_slots} {
    Scratch scratch(base);
    pairs = take_sorted_pairs(shape, scratch);
    const auto rows = shape.capacity();
    // Sized for BF16, since the pairs' outputs take the same memory.
    staged.data = scratch.take<std::byte>(static_cast<int64_t>(staged_bytes(rows, p.hidden)));
    made.data = scratch.take<std::byte>(
        static_cast<int64_t>(staged_bytes(rows, p.intermediate, activation)));
    staged.capacity = made.capacity = pairs.capacity;
    staged.width = p.hidden, made.width = p.intermediate;
    pair_outputs = reinterpret_cast<uint16_t*>(staged.data);
    if (activation == DType::kF8E4M3) slot_scale = scratch.take<float>(rows);
    bytes = scratch.bytes();
  }
};

/// Launches both products, with tiles cut as GateUpCut and DownCut, in kernels of kWidths. kAdds:
/// the second product adds to x. down_scale: product_scale of the second. gate_up: the first task,
/// without its items.
template <typename GateUpCut, typename DownCut, bool kAdds, int... kWidths>
void launch_grouped(const char* name, const ExpertsParams& p, const GroupedMemory& memory,
                    const GateUp& gate_up, float down_scale) {
  const SortedPairs& pairs = memory.pairs;
  const auto launch = [&]<typename Cut>(auto task) {
    task.items = {.tiles = pairs.tiles,
                  .num_tiles = pairs.num_tiles,
                  .row_blocks = ceil_div(task.weight.rows, Cut::kRows),
                  .tiles_a_block = Cut::kRows / 16};
    const int64_t most_items = int64_t{pairs.max_tiles} * task.items.row_blocks;
    launch_product<DType::kMXFP4, Cut, kWidths...>(name, task, most_items,
                                                   launch_stream(p.launch.stream));
  };
  launch.template operator()<GateUpCut>(gate_up);
  const DownProduct down{.items = {},
                         .weight = p.down,
                         .staged = memory.made,
                         .bias = p.down_bias,
                         .product_scale = down_scale};
  if constexpr (kAdds) {
    launch.template operator()<DownCut>(
        DownAdds{{down}, pairs.slot_token, pairs.slot_weight, reinterpret_cast<float2*>(p.x)});
  } else {
    launch.template operator()<DownCut>(DownPairs{{down}, memory.pair_outputs});
    add_pairs({.num_tokens = p.num_tokens,
               .width = p.hidden,
               .top_k = p.top_k,
               .slot_of_pair = pairs.slot_of_pair,
               .weights = p.expert_weights,
               .pairs = memory.pair_outputs,
               .x = p.x,
               .x_is_single = p.forms.x == XForm::kF32},
              p.launch.stream);
  }
}
/// The first task, without its items.
inline GateUp gate_up_task(const ExpertsParams& p, const GroupedMemory& memory, float product_scale,
                           float made_scale = 1.0f) {
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
/// How the slots' activations are staged, from t or from x.
inline StageSlots stage_slots_of(const ExpertsParams& p, const GroupedMemory& memory) {
  return {.num_tokens = p.num_tokens,
          .top_k = p.top_k,
          .values = p.forms.t == TForm::kAbsent ? p.x : p.t,
          .norm_weight = p.forms.t == TForm::kAbsent ? p.norm_weight : nullptr,
          .rms_eps = p.rms_eps,
          .x_is_single = p.forms.x == XForm::kF32,
          .slot_of_pair = memory.pairs.slot_of_pair,
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

}  // namespace moxie::gemm
