// What a warp of experts_slices.cuh copies and multiplies: pieces, its share of each, the ring of
// its weights, and the product of a stage of the ring with a token's activations.
#pragma once

#include "kernels/experts/experts_step.cuh"

namespace moxie::slices {

using namespace few_experts;

constexpr int kTilesOfPiece = 8;    // of gate/up, 8 outputs each: a block of a cluster has a share
constexpr int kMinMultipliers = 4;  // warps
constexpr int kMaxMultipliers = 15;
// Pieces whose hidden values are kept: one block may be two pieces behind the other.
constexpr int kKept = 4;

constexpr int kUnits = 3;  // of a stage: of one tile for gate/up, of three tiles for down

/// Bytes of one token's activations of a unit.
inline constexpr int kInputBytes = kUnitActivationBytes<1>;

// Keeps an address out of uniform registers: nvcc 13.0 emits an invalid cp.async for an address
// that is the sum of a register and a uniform register. Also keeps a value from being computed
// again and again.
template <typename T>
__device__ __forceinline__ T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The product of a stage with the activations of one token. The stage has three units of one tile,
/// or one unit of each of three tiles; the first two units share the slots, half of them each.
template <DType F>
struct StageProduct {
  SlotInputs<4> of_pair;
  SlotInputs<2> of_odd;
  float pair[2], odd[2];
  uint32_t own, step;  // address of the lane's activations, and from a stage's to the next one's
  LaneInStage in_stage;

  __device__ __forceinline__ explicit StageProduct(int lane) : in_stage(lane) {
    in_stage.pair_scales = opaque(in_stage.pair_scales);
    in_stage.odd_scales = opaque(in_stage.odd_scales);
    in_stage.slot = opaque(in_stage.slot);
  }

  /// For stages that are successive units of a tile. `inputs`: activations of the first unit.
  __device__ __forceinline__ void start_row(const std::byte* inputs, int lane) {
    own = own_inputs(inputs, lane, lane / 8);
    step = kUnits * kInputBytes;
    pair[0] = pair[1] = odd[0] = odd[1] = 0;
  }
  /// For stages of three tiles. `inputs`: activations of their unit.
  __device__ __forceinline__ void start_column(const std::byte* inputs, int lane) {
    own = own_inputs(inputs, lane, lane / 8 % 2);
    step = 0;
    if constexpr (F == DType::kMXFP4) read_three_slots(in_stage.slot, own, own, of_pair, of_odd);
  }
  /// `stage`: the address of the stage in shared memory, which begins at `base`. refill() is called
  /// when the warp has read the stage.
  template <typename Refill>
  __device__ __forceinline__ void add_stage(const std::byte* base, uint32_t stage,
                                            Refill&& refill) {
    if constexpr (F == DType::kMXFP4) {
      ThreeUnits three;
      three.read(stage, in_stage);
      if (step != 0) read_three_slots(in_stage.slot, own, own + 2 * kInputBytes, of_pair, of_odd);
      __syncwarp();
      refill();
      multiply_three(three, of_pair, of_odd, pair, odd);
    } else {
      constexpr int kOfScale = 2 * Format<F>::kScaleWords;
      const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
      const uint32_t base_address = shared_address(base);
      const std::byte* codes = base + (stage - base_address) + 16 * lane;
      const std::byte* scales =
          base + (stage - base_address) + kCodeBytes<F> + g * (2 * kOfScale) + q % 2 * kOfScale;
      const std::byte* inputs = base + (own - base_address);
      multiply_slots<F, 2>(codes, scales + q / 2 * kUnitBytes<F>, inputs, of_pair, pair);
      multiply_slots<F, 1>(codes + 2 * kUnitBytes<F>, scales + 2 * kUnitBytes<F>,
                           inputs + (step != 0 ? 2 * kInputBytes : 0), of_odd, odd);
      __syncwarp();
      refill();
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
  /// The lane's sums of three tiles so far.
  __device__ __forceinline__ void set_sums(const float4& of) {
    pair[0] = of.x, pair[1] = of.y, odd[0] = of.z, odd[1] = of.w;
  }
  __device__ __forceinline__ float4 sums() const {
    return make_float4(pair[0], pair[1], odd[0], odd[1]);
  }
  /// x += the sums of three tiles. A lane adds row g + 8 (q % 2) of the first (q < 2) or second
  /// tile, then of the third.
  __device__ __forceinline__ static void add_column(float2* x, const float4& sums, int lane) {
    const bool is_bottom = lane % 2 != 0;
    const float pair =
        (is_bottom ? sums.y : sums.x) + __shfl_xor_sync(~0u, is_bottom ? sums.x : sums.y, 1);
    const float odd =
        (is_bottom ? sums.w : sums.z) + __shfl_xor_sync(~0u, is_bottom ? sums.z : sums.w, 1);
    x += lane / 4 + 8 * (lane % 2);
    add_to_residual(x + lane % 4 / 2 * 16, pair * kSumScale<F>);
    if (lane % 4 < 2) add_to_residual(x + 32, odd * kSumScale<F>);
  }

 private:
  __device__ __forceinline__ static uint32_t own_inputs(const std::byte* inputs, int lane,
                                                        int slot) {
    return shared_address(inputs) + 128 * slot + 64 * (lane / 4 % 2) + 16 * (lane % 4);
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

/// The chosen experts that the matrices hold.
struct Picks {
  int32_t ids[kMaxPicks];
  float weights[kMaxPicks];
  float factor;  // of the activations
  int count;     // where this may be less than top_k
};

/// Stages of a block for this many units of the hidden size: a cluster's blocks share the outputs.
__host__ __device__ constexpr int num_stages_of_down(int num_units, int cluster) {
  return num_units * 64 / (cluster * 16 * kUnits);
}

/// The layout of a block's shared memory.
template <DType F>
struct Layout {
  int staged, hidden_values, sums, down_sums, bytes;
  __host__ __device__ constexpr Layout(int num_multipliers, int num_units, int cluster)
      : staged(num_multipliers * kStages * kStageBytes<F>),
        hidden_values(staged + num_units * kInputBytes),
        sums(hidden_values + kKept * kInputBytes),
        // Sums of two pieces; a warp has shares of two tiles at most.
        down_sums(sums + 2 * num_multipliers * 2 * 16 * 4),
        // Each lane keeps four sums a stage.
        bytes(down_sums + num_stages_of_down(num_units, cluster) * 32 * 16) {}
};

/// A cluster's run of the pieces of so many picks. The last blocks start last, on SMs that ran two
/// blocks of `out`: they have fewer pieces.
struct Run {
  int first, count;
  __device__ __forceinline__ Run(const Step& p, int num_picks, int cluster) {
    const int num_clusters = gridDim.x / cluster, cluster_idx = blockIdx.x / cluster;
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
  int num_multipliers, warp, rank, blocks, num_tiles, stages_of_tile;
  int gate_begin, gate_count, down_begin, down_count;
  /// `cluster`: its blocks, of which this is number block_rank.
  __device__ __forceinline__ Share(const Step& p, int block_rank, int cluster)
      : num_multipliers(blockDim.x / 32 - 1),
        warp(threadIdx.x / 32),
        rank(block_rank),
        blocks(cluster),
        num_tiles(kTilesOfPiece / cluster) {
    stages_of_tile = p.num_units / kUnits;
    gate_begin = gate_stage(warp);
    gate_count = gate_stage(warp + 1) - gate_begin;
    const int down_stages = num_stages_of_down(p.num_units, cluster);
    down_begin = part_begin(down_stages, num_multipliers, warp);
    down_count = part_begin(down_stages, num_multipliers, warp + 1) - down_begin;
  }
  __device__ __forceinline__ int gate_stage(int of_warp) const {
    return part_begin(num_tiles * stages_of_tile, num_multipliers, of_warp);
  }
  /// The first row of a stage of down.
  __device__ __forceinline__ int down_row(const Step& p, int stage) const {
    return rank * (p.hidden / blocks) + (down_begin + stage) * (16 * kUnits);
  }
};

/// The weights of a warp, in the order in which the warp multiplies by them.
template <DType F>
struct Weights {
  static constexpr int kLaneBytes = kLaneScaleBytes<F>, kScaleBytes = 8 * kLaneBytes;  // of a unit
  static_assert(kScaleLanes <= 32 && kLaneBytes <= 16);
  const std::byte* gate_first;  // the lane's first 16 bytes of the first piece of expert 0
  const std::byte* down_first;
  const std::byte* at;  // the lane's first 16 bytes of the next stage
  uint32_t unit_step;   // bytes from a unit of the stage to the next, and to the next stage's first
  int32_t to_scales;    // bytes from `at` to this lane's bytes of the scales
  int32_t id;           // of the lane's pick
  int left = 0;         // stages still to copy of the run
  Order order;
  Piece gate, down;

  __device__ __forceinline__ Weights(const Step& p, const Share& share, const Run& pieces)
      : order(pieces.count), gate(p, pieces.first), down(gate) {
    const int lane = threadIdx.x % 32;
    const int64_t row = int64_t{p.num_units_down} * kUnitBytes<F>;
    gate_first = p.gate_up.data + 16 * lane +
                 (int64_t{share.rank} * share.num_tiles * p.num_units + share.gate_begin * kUnits) *
                     kUnitBytes<F>;
    down_first = p.down.data + 16 * lane + share.down_row(p, 0) / 16 * row;
  }
  /// Where the lane's bytes of the scales go in a stage. The lanes without any copy the first of
  /// their own codes once more, to memory that no lane reads: masking these lanes takes longer.
  __device__ __forceinline__ static uint32_t scales_in_stage(int lane) {
    if (kScaleBytes == 0) return 0;
    return lane < kScaleLanes ? lane / 8 * kUnitBytes<F> + kCodeBytes<F> + kLaneBytes * (lane % 8)
                              : kStageWeightBytes<F> + kLaneBytes * (lane - kScaleLanes);
  }
  __device__ __forceinline__ void point(const std::byte* first, uint32_t unit_bytes) {
    at = first;
    unit_step = unit_bytes;
    if constexpr (kScaleBytes > 0) {
      const int lane = threadIdx.x % 32;
      to_scales = lane < kScaleLanes ? lane / 8 * static_cast<int32_t>(unit_bytes) + kCodeBytes<F> +
                                           kLaneBytes * (lane % 8) - 16 * lane
                                     : 0;
    }
  }
  __device__ __forceinline__ void start_gate(const Step& p, const Share& share, uint32_t expert) {
    point(gate_first + uint64_t{expert} * static_cast<uint32_t>(p.gate_up_expert_bytes) +
              static_cast<uint64_t>(gate.unit) *
                  static_cast<uint32_t>(kTilesOfPiece * p.num_units * kUnitBytes<F>),
          kUnitBytes<F>);
    left = share.gate_count;
    ++order.gate;
    gate.next(p);
  }
  __device__ __forceinline__ void start_down(const Step& p, const Share& share, uint32_t expert) {
    point(down_first + uint64_t{expert} * static_cast<uint32_t>(p.down_expert_bytes) +
              static_cast<uint32_t>(down.unit) * kUnitBytes<F>,
          static_cast<uint32_t>(p.num_units_down) * kUnitBytes<F>);
    left = share.down_count;
    ++order.down;
    down.next(p);
  }
  /// Goes to the next run that has stages, if there is one.
  __device__ __forceinline__ void advance(const Step& p, const Share& share) {
    while (left <= 0 && !order.is_done()) {
      const bool is_gate = order.is_gate();
      const uint32_t expert = __shfl_sync(~0u, id, is_gate ? gate.pick : down.pick);
      if (is_gate) {
        start_gate(p, share, expert);
      } else {
        start_down(p, share, expert);
      }
    }
  }
  __device__ __forceinline__ void copy_stage(uint32_t stage, int lane, uint32_t scales) {
    if (left > 0) {
      const uint32_t to = stage + 16 * lane;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
#pragma unroll
        for (int v = 0; v < Format<F>::kVectors; ++v)
          copy_streamed_16(to + i * kUnitBytes<F> + 512 * v,
                           at + uint64_t{unit_step} * i + 512 * v);
      }
      if constexpr (kScaleBytes > 0) copy_streamed<kLaneBytes>(stage + scales, at + to_scales);
    }
    at += uint64_t{unit_step} * kUnits;
    --left;
  }
};

}  // namespace moxie::slices
