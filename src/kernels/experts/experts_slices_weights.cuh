// What a warp of experts_slices.cuh copies and multiplies: pieces, its share of each, the ring of
// its weights, and the product of a stage of the ring with a token's activations.
#pragma once

#include "kernels/experts/experts_step.cuh"

namespace moxie::slices {

using namespace few_experts;

constexpr int kTilesOfPiece = 4;    // of gate/up, in each of the two blocks: 8 outputs each
constexpr int kMinMultipliers = 4;  // warps
constexpr int kMaxMultipliers = 15;
// Pieces whose hidden values are kept: one block may be two pieces behind the other.
constexpr int kKept = 4;

constexpr int kUnits = 3;  // of a stage: of one tile for gate/up, of three tiles for down

/// Bytes of one token's activations of a unit.
inline constexpr int kInputBytes = kUnitActivationBytes<1>;

/// The product of a stage with the activations of one token. The stage has three units of one tile,
/// or one unit of each of three tiles; the first two units share the slots, half of them each.
template <DType F>
struct StageProduct {
  SlotInputs<4> of_pair;
  SlotInputs<2> of_odd;
  float pair[2], odd[2];
  uint32_t own, odd_offset, step;

  /// For stages that are successive units of a tile. `inputs`: activations of the first unit.
  __device__ __forceinline__ void start_row(const std::byte* inputs) {
    start(inputs, 128 * (threadIdx.x % 32 / 8), 2 * kInputBytes, kUnits * kInputBytes);
  }
  /// For stages of three tiles. `inputs`: activations of their unit.
  __device__ __forceinline__ void start_column(const std::byte* inputs) {
    start(inputs, 128 * (threadIdx.x % 16 / 8), 0, 0);
  }
  __device__ __forceinline__ void add_stage(const std::byte* base, uint32_t stage) {
    if constexpr (F == DType::kMXFP4) {
      multiply_three(shared_address(base) + stage, own, odd_offset, of_pair, of_odd, pair, odd);
    } else {
      constexpr int kOfScale = 2 * Format<F>::kScaleWords;
      const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
      const std::byte* codes = base + stage + 16 * lane;
      const std::byte* scales =
          base + stage + kCodeBytes<F> + g * (2 * kOfScale) + q % 2 * kOfScale;
      const std::byte* inputs = base + (own - shared_address(base));
      multiply_slots<F, 2>(codes, scales + q / 2 * kUnitBytes<F>, inputs, of_pair, pair);
      multiply_slots<F, 1>(codes + 2 * kUnitBytes<F>, scales + 2 * kUnitBytes<F>,
                           inputs + odd_offset, of_odd, odd);
    }
    own += step;
  }
  /// The sums of the tile.
  __device__ __forceinline__ void store_row(float* to, int lane) const {
    const bool is_bottom = lane % 2 != 0;
    const float top = pair[0] + odd[0], bottom = pair[1] + odd[1];
    float sum = is_bottom ? bottom : top;
    sum += __shfl_xor_sync(~0u, is_bottom ? top : bottom, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 < 2) to[lane / 4 + 8 * (lane % 2)] = sum;
  }
  /// The sums of the three tiles, in each lane: row g + 8 (q % 2) of the first (q < 2) or second
  /// tile, then of the third.
  __device__ __forceinline__ float2 column_sums(int lane) const {
    const bool is_bottom = lane % 2 != 0;
    const auto sum = [&](const float(&of)[2]) {
      return (is_bottom ? of[1] : of[0]) + __shfl_xor_sync(~0u, is_bottom ? of[0] : of[1], 1);
    };
    return make_float2(sum(pair), sum(odd));
  }
  /// x += sums as column_sums() returns them.
  __device__ __forceinline__ static void add_column(float2* x, const float2& sums, int lane) {
    x += lane / 4 + 8 * (lane % 2);
    add_to_residual(x + lane % 4 / 2 * 16, sums.x * kSumScale<F>);
    if (lane % 4 < 2) add_to_residual(x + 32, sums.y * kSumScale<F>);
  }

 private:
  __device__ __forceinline__ void start(const std::byte* inputs, int of_slot, int to_odd,
                                        int of_stage) {
    const int lane = threadIdx.x % 32;
    own = shared_address(inputs) + of_slot + 64 * (lane / 4 % 2) + 16 * (lane % 4);
    odd_offset = to_odd;
    step = of_stage;
    pair[0] = pair[1] = odd[0] = odd[1] = 0;
  }
};

// In a stage, 8 lanes a unit copy scales. The other lanes copy as many bytes to memory behind the
// stage's weights, which no lane reads.
inline constexpr int kScaleLanes = 8 * kUnits;
template <DType F>
inline constexpr int kLaneScaleBytes = 4 * Format<F>::kScaleWords;
template <DType F>
inline constexpr int kStageWeightBytes = kUnits* kUnitBytes<F>;
template <DType F>
inline constexpr int kStageBytes = kStageWeightBytes<F> + (32 - kScaleLanes) * kLaneScaleBytes<F>;
// More stages would start with a longer queue before the first bytes arrive, and leave less room
// for the next kernels.
inline constexpr int kStages = 2;

// Keeps an address out of uniform registers: nvcc 13.0 emits an invalid cp.async for an address
// that is the sum of a register and a uniform register. Also keeps a value from being computed
// again and again.
template <typename T>
__device__ __forceinline__ T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The chosen experts that the matrices hold.
struct Picks {
  int32_t ids[kMaxPicks];
  float weights[kMaxPicks];
  float factor;  // of the activations
  int count;     // where this may be less than top_k
};

/// Stages of a block for this many units of the hidden size: a block has half of the outputs.
__host__ __device__ constexpr int num_stages_of_down(int num_units) {
  return num_units * 64 / (2 * 16 * kUnits);
}

/// The layout of a block's shared memory.
template <DType F>
struct Layout {
  int staged, hidden_values, sums, down_sums, bytes;
  __host__ __device__ constexpr Layout(int num_multipliers, int num_units)
      : staged(num_multipliers * kStages * kStageBytes<F>),
        hidden_values(staged + num_units * kInputBytes),
        sums(hidden_values + kKept * kInputBytes),
        // Sums of two pieces; a warp has shares of two tiles at most.
        down_sums(sums + 2 * num_multipliers * 2 * 16 * 4),
        // Each lane keeps two sums a stage.
        bytes(down_sums + num_stages_of_down(num_units) * 32 * 8) {}
};

/// A cluster's run of the pieces of so many picks. The last blocks start last, on SMs that ran two
/// blocks of `out`: they have fewer pieces.
struct Run {
  int first, count;
  __device__ __forceinline__ Run(const Step& p, int num_picks) {
    const int num_clusters = gridDim.x / 2, cluster_idx = blockIdx.x / 2;
    const int all = num_picks * p.num_units_down;
    const int each = all / num_clusters, with_more = all - each * num_clusters;
    first = cluster_idx * each + min(cluster_idx, with_more);
    count = each + (cluster_idx < with_more ? 1 : 0);
  }
};

/// The pieces of a cluster, one after another.
struct Piece {
  int pick, unit;
  __device__ __forceinline__ Piece(const Step& p, int idx)
      : pick(idx / p.num_units_down), unit(idx - pick * p.num_units_down) {}
  __device__ __forceinline__ void next(const Step& p) {
    if (++unit == p.num_units_down) unit = 0, ++pick;
  }
};

/// The order of the work: gate/up is one piece ahead of down.
struct Order {
  int num_pieces, gate = 0, down = 0;
  __device__ __forceinline__ explicit Order(int pieces) : num_pieces(pieces) {}
  __device__ __forceinline__ bool is_done() const { return down == num_pieces; }
  __device__ __forceinline__ bool is_gate() const { return gate < num_pieces && gate < down + 2; }
};

/// A warp's share of each piece: stages of gate/up and stages of down.
struct Share {
  int num_multipliers, warp, rank, stages_of_tile;
  int gate_begin, gate_count, down_begin, down_count;
  __device__ __forceinline__ Share(const Step& p, int block_rank)
      : num_multipliers(blockDim.x / 32 - 1), warp(threadIdx.x / 32), rank(block_rank) {
    stages_of_tile = p.num_units / kUnits;
    gate_begin = gate_stage(warp);
    gate_count = gate_stage(warp + 1) - gate_begin;
    const int down_stages = num_stages_of_down(p.num_units);
    down_begin = part_begin(down_stages, num_multipliers, warp);
    down_count = part_begin(down_stages, num_multipliers, warp + 1) - down_begin;
  }
  __device__ __forceinline__ int gate_stage(int of_warp) const {
    return part_begin(kTilesOfPiece * stages_of_tile, num_multipliers, of_warp);
  }
  /// The first row of a stage of down.
  __device__ __forceinline__ int down_row(const Step& p, int stage) const {
    return rank * (p.hidden / 2) + (down_begin + stage) * (16 * kUnits);
  }
};

/// The weights of a warp, in the order in which the warp multiplies by them.
template <DType F>
struct Weights {
  static constexpr int kLaneBytes = kLaneScaleBytes<F>, kScaleBytes = 8 * kLaneBytes;  // of a unit
  static_assert(kScaleLanes <= 32 && kLaneBytes <= 16);
  const std::byte* at;    // the lane's first 16 bytes of the next stage
  const std::byte* tail;  // this lane's bytes of the scales
  uint32_t to_tail;       // where they go in a stage
  int64_t step;           // to the next stage
  int32_t unit_step;      // from a unit of the stage to the next
  int left = 0;           // stages still to copy of the run
  Order order;
  Piece gate, down;

  __device__ __forceinline__ Weights(const Step& p, const Run& pieces)
      : order(pieces.count), gate(p, pieces.first), down(gate) {}
  __device__ __forceinline__ void point(const std::byte* first, int64_t unit_bytes,
                                        int64_t stage_bytes) {
    const int lane = threadIdx.x % 32;
    at = first + 16 * lane;
    step = stage_bytes;
    unit_step = static_cast<int32_t>(unit_bytes);
    if constexpr (kScaleBytes > 0) {
      const int byte = kLaneBytes * lane, in_unit = kCodeBytes<F> + byte % kScaleBytes;
      tail = first + byte / kScaleBytes * unit_bytes + in_unit;
      to_tail = byte / kScaleBytes * kUnitBytes<F> + in_unit;
      // The other lanes copy the first of their own codes once more, to memory that no lane reads:
      // masking these lanes takes longer.
      if (lane >= kScaleLanes)
        tail = at, to_tail = kStageWeightBytes<F> + kLaneBytes * (lane - kScaleLanes);
    }
  }
  __device__ __forceinline__ void start_gate(const Step& p, const Share& share, int64_t expert) {
    const int tile = (2 * gate.unit + share.rank) * kTilesOfPiece;
    point(
        p.gate_up.data + expert * p.gate_up_expert_bytes +
            (static_cast<int64_t>(tile) * p.num_units + share.gate_begin * kUnits) * kUnitBytes<F>,
        kUnitBytes<F>, kStageWeightBytes<F>);
    left = share.gate_count;
    ++order.gate;
    gate.next(p);
  }
  __device__ __forceinline__ void start_down(const Step& p, const Share& share, int64_t expert) {
    const int64_t row = static_cast<int64_t>(p.num_units_down) * kUnitBytes<F>;
    point(p.down.data + expert * p.down_expert_bytes + share.down_row(p, 0) / 16 * row +
              down.unit * kUnitBytes<F>,
          row, kUnits * row);
    left = share.down_count;
    ++order.down;
    down.next(p);
  }
  /// Goes to the next run that has stages, if there is one.
  __device__ __forceinline__ void advance(const Step& p, const Share& share, const Picks& picks) {
    while (left == 0 && !order.is_done()) {
      if (order.is_gate()) {
        start_gate(p, share, picks.ids[gate.pick]);
      } else {
        start_down(p, share, picks.ids[down.pick]);
      }
    }
  }
  __device__ __forceinline__ void copy_stage(uint32_t stage, int lane) {
    if (left == 0) return;
    const uint32_t to = stage + 16 * lane;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int v = 0; v < Format<F>::kVectors; ++v)
        copy_streamed_16(to + i * kUnitBytes<F> + 512 * v, at + i * int64_t{unit_step} + 512 * v);
    }
    if constexpr (kScaleBytes > 0) {
      copy_streamed<kLaneBytes>(stage + to_tail, tail);
      tail += step;
    }
    at += step;
    --left;
  }
};

}  // namespace moxie::slices
