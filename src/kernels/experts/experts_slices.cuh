// experts on CUDA for one token: gate/up, SwiGLU and down in one kernel. Blocks of different
// clusters exchange no hidden values.
//
// Work is cut along the intermediate size: a piece is a unit of 64 columns of one chosen expert. A
// cluster of two blocks takes a run of neighbouring pieces. Gate/up computes a piece's hidden
// values: each block computes half of them and sends them to the other block's shared memory. Down
// multiplies them by their columns of all outputs; each block has half of the outputs. Its sums
// over all pieces of a cluster stay in shared memory, where each lane has sums of its own. At the
// end they are added to the residual stream, where the order of the blocks does not matter
// (kernels/residual.cuh). So weights stream without a pause.
//
// All warps of a block but the last multiply: gate/up of pieces 0 and 1, down of 0, gate/up of 2,
// down of 1, ... The last warp makes hidden values from the sums of a piece while the others
// multiply for the next piece.
#pragma once

#include "kernels/experts/experts_step.cuh"
#include "kernels/rank_fold.cuh"

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

/// Keeps the choice; called by the warp that made it.
__device__ __forceinline__ void keep_choice(const Step& p, const Choice& choice, Picks& picks) {
  const float weight = choice_weight(choice, p.top_k);
  const int lane = threadIdx.x % 32;
  if (lane < p.top_k) {
    picks.weights[lane] = weight;
    if (blockIdx.x == 0) p.chosen_ids[lane] = choice.id, p.chosen_weights[lane] = weight;
  }
  __syncwarp();
}

/// Keeps the given choices of experts that the matrices hold, by one warp.
__device__ __forceinline__ void keep_held(const Step& p, Picks& picks) {
  const int lane = threadIdx.x % 32;
  const int id = lane < p.top_k ? held_expert(p, p.expert_ids[lane]) : -1;
  const uint32_t held = __ballot_sync(~0u, id >= 0);
  const int nth = __popc(held & ((1u << lane) - 1));
  if (id >= 0) picks.ids[nth] = id, picks.weights[nth] = p.expert_weights[lane];
  if (lane == 0) picks.count = __popc(held), picks.factor = 1;
}

/// x += the picks' biases of down: each block adds its share of the outputs, by one warp.
__device__ void add_biases(const Step& p, const Picks& picks, int num_picks) {
  const int first = part_begin(p.hidden, gridDim.x, blockIdx.x);
  const int end = part_begin(p.hidden, gridDim.x, blockIdx.x + 1);
  for (int row = first + threadIdx.x % 32; row < end; row += 32) {
    float sum = 0;
#pragma unroll 4
    for (int n = 0; n < num_picks; ++n)
      sum += picks.weights[n] * p.down_bias[static_cast<int64_t>(picks.ids[n]) * p.hidden + row];
    add_to_residual(p.x + row, sum);
  }
}

/// Clears the sums of the router's products for the next layer.
__device__ __forceinline__ void clear_next_logits(const Step& p) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.num_words; i += gridDim.x * blockDim.x)
    p.next_logits[i] = make_float2(0, 0);
}

/// The barriers of a cluster.
///
/// Why memory may be written again, in either block: The sums of piece n are overwritten by n + 2
/// after down of n, and down of n waits until each lane of the last warp has read these sums. The
/// hidden values of n are overwritten by n + 4, by a block that has done down of n + 2. For that
/// the other block has sent its half of n + 2. So its warps have done gate/up of n + 2, which they
/// begin after down of n.
struct Meeting {
  uint64_t barriers[kKept];  // for pieces in turn: the piece's hidden values have arrived
  uint64_t staged;           // the activations are staged
  /// The barrier among the block's warps: the sums of the nth piece are complete.
  __device__ __forceinline__ static int of_sums(int nth) { return 1 + nth % 2; }
};

/// The last warp: turns the gate and up sums of each piece into hidden values in both blocks'
/// shared memory. Each lane has one of this block's 32 columns.
template <DType F>
__device__ __forceinline__ void make_hidden_values(const Step& p, const Share& share,
                                                   const Picks& picks, const Run& pieces,
                                                   const float* sums_of_warps,
                                                   std::byte* hidden_values, Meeting& meeting) {
  const int lane = threadIdx.x % 32;
  const int num_warps = share.num_multipliers, all = kTilesOfPiece * share.stages_of_tile;
  // The warps that have a share of the lane's tile.
  const int from = lane / 8 * share.stages_of_tile;
  const int first_warp = ((from + 1) * num_warps - 1) / all;
  const int last_warp = ((from + share.stages_of_tile) * num_warps - 1) / all;
  const int first_part = share.gate_stage(first_warp) >= from ? 0 : 1;
  constexpr int kOfWarp = 2 * 16;
  Piece piece(p, pieces.first);
#pragma unroll 1
  for (int nth = 0; nth < pieces.count; ++nth, piece.next(p)) {
    const float* bias = p.gate_up_bias +
                        static_cast<int64_t>(picks.ids[piece.pick]) * p.gate_up.rows +
                        ((2 * piece.unit + share.rank) * kTilesOfPiece + lane / 8) * 16 + lane % 8;
    const float gate_bias = load_early(bias), up_bias = load_early(bias + 8);
    uint64_t* barrier = &meeting.barriers[nth % kKept];
    barrier_wait(Meeting::of_sums(nth), blockDim.x);
    const float* of_piece = sums_of_warps + nth % 2 * (num_warps * kOfWarp);
    float gate = 0, up = 0;
    const float factor = kSumScale<F> * picks.factor;
    const float* sums = of_piece + first_warp * kOfWarp + first_part * 16;
#pragma unroll 4
    for (int w = first_warp; w <= last_warp; ++w) {
      gate += sums[lane % 8], up += sums[lane % 8 + 8];
      sums = of_piece + (w + 1) * kOfWarp;
    }
    const float value = swiglu(gate * factor + gate_bias, up * factor + up_bias, p.alpha, p.limit) *
                        (picks.weights[piece.pick] * kActivationScale<F>);
    const float next = __shfl_down_sync(~0u, value, 1);
    if (lane % 2 == 0) {
      const uint32_t high = pack_bf16(value, next);
      const uint32_t low = pack_bf16(value - __uint_as_float(high << 16),
                                     next - __uint_as_float(high & 0xFFFF0000u));
      const std::byte* at = hidden_values + nth % kKept * kInputBytes + share.rank * 128 + lane * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        send(at, barrier, r, high);
        send(at + 64, barrier, r, low);
      }
    }
    // Each lane reports that it has read the sums.
    if (lane == 0) {
      expect_bytes(barrier, kInputBytes);
    } else {
      arrive_barrier(barrier);
    }
  }
}

/// A warp that multiplies.
template <DType F>
struct Multiplier {
  const Step& p;
  const Share& share;
  const Picks& picks;
  Weights<F>& weights;
  const std::byte* shared;
  const std::byte* staged;
  const std::byte* hidden_values;
  float* sums_of_warps;
  float2* down_sums;  // the lane's, of the warp's first stage; the next stage's are 32 further on
  int lane, in_first_tile, num_gate_tiles;
  uint32_t ring, ring_address,
      stage = 0;  // bytes from `shared`; its address; from the ring's first

  __device__ __forceinline__ Multiplier(const Step& step, const Share& of_warp,
                                        const Picks& of_launch, Weights<F>& of_share,
                                        std::byte* memory, const Layout<F>& layout, int my_lane)
      : p(step),
        share(of_warp),
        picks(of_launch),
        weights(of_share),
        shared(memory),
        staged(memory + layout.staged),
        hidden_values(memory + layout.hidden_values),
        sums_of_warps(reinterpret_cast<float*>(memory + layout.sums)),
        down_sums(reinterpret_cast<float2*>(memory + layout.down_sums) + of_warp.down_begin * 32 +
                  my_lane),
        lane(my_lane),
        ring(of_warp.warp * kStages * kStageBytes<F>) {
    ring_address = opaque(shared_address(shared) + ring);
    in_first_tile = share.gate_begin % share.stages_of_tile;
    num_gate_tiles = share.gate_count == 0
                         ? 0
                         : (share.gate_begin + share.gate_count - 1) / share.stages_of_tile -
                               share.gate_begin / share.stages_of_tile + 1;
  }

  /// The warp's share of the nth piece: of its gate/up tiles, or its stages of down.
  template <typename Product>
  __device__ __forceinline__ void multiply(Product& product, bool is_gate, int nth) {
    const std::byte* values = hidden_values + nth % kKept * kInputBytes;
    float* my_sums = sums_of_warps + (nth % 2 * share.num_multipliers + share.warp) * (2 * 16);
    const int num_tiles = is_gate ? num_gate_tiles : share.down_count;
    // A warp without a stage adds nothing to the tile that it shares with its neighbours.
    if (is_gate && num_tiles == 0)
      for (int i = lane; i < 16; i += 32) my_sums[i] = 0;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      int stages = 1;
      if (is_gate) {
        const int begin = tile == 0 ? in_first_tile : 0;
        stages = tile == 0 ? min(share.gate_count, share.stages_of_tile - begin)
                           : share.gate_count - (share.stages_of_tile - in_first_tile);
        product.start_row(staged + begin * (kUnits * kInputBytes));
      } else {
        product.start_column(values);
      }
#pragma unroll 1
      for (; stages > 0; --stages) {
        wait_for_copies<kStages - 1>();
        __syncwarp();
        product.add_stage(shared, ring + stage);
        __syncwarp();
        if (weights.left == 0) weights.advance(p, share, picks);
        weights.copy_stage(ring_address + stage, lane);
        commit_copies();
        stage += kStageBytes<F>;
        if (stage == kStages * kStageBytes<F>) stage = 0;
      }
      if (is_gate) {
        product.store_row(my_sums + tile * 16, lane);
      } else {
        float2 sums = product.column_sums(lane);
        float2& kept = down_sums[tile * 32];
        if (nth > 0) sums.x += kept.x, sums.y += kept.y;
        kept = sums;
      }
    }
  }
  /// Adds down's sums over all pieces to x.
  __device__ __forceinline__ void add_down_sums() const {
#pragma unroll 1
    for (int i = 0; i < share.down_count; ++i)
      StageProduct<F>::add_column(p.x + share.down_row(p, i), down_sums[i * 32], lane);
  }
};

/// Of one of several ranks, each of which has a part of what is added to x and of the router's
/// products: the kernel exchanges them. `fold`: `more_part` are the router's products.
template <int kMost>
struct FoldedStep : Step {
  static constexpr int kMostRanks = kMost;
  mail::Fold fold;
  const float* norm_weight;  // [hidden]
};
template <typename AnyStep>
inline constexpr bool kFoldsReduce = requires(const AnyStep& step) {
  step.fold;
};

/// Words of an exchange for one thread, and for a block that sends.
constexpr int kWordsOfThread = 2, kWordsOfBlock = 64;

/// Makes x whole, stages the experts' activations and chooses the experts.
template <int kMine, int kMost>
__device__ __forceinline__ void reduce_and_route(const FoldedStep<kMost>& p, bool is_multiplier,
                                                 const float (&router_bias)[kMaxExperts / 32],
                                                 float scale, std::byte* staged, Picks& picks,
                                                 Choice& choice, uint32_t& exchanges) {
  __shared__ float logits[kMaxExperts];
  __shared__ float squares_of_warps[kMaxMultipliers + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_segments = p.hidden / 8;
  const int my_segment = threadIdx.x;
  float norm[8] = {}, square = 0;
  if (my_segment < num_segments) load_eight(p.norm_weight + 8 * my_segment, norm);
  // The columns lie as floats first where their two parts lie then, block of 32 by block.
  auto* columns = reinterpret_cast<float*>(staged);
  exchanges = mail::exchanges_before(p.fold);
  mail::fold_words<kMost, kWordsOfThread>(
      p.fold, exchanges, 0, p.fold.num_words(),
      [](int w) { return w / kWordsOfBlock == static_cast<int>(blockIdx.x); },
      [&](int i, float value) {
        if (i < p.hidden)
          columns[i] = value, square += value * value;
        else
          logits[i - p.hidden] = value;
      });
  square = warp_sum(square);
  if (lane == 0) squares_of_warps[warp] = square;
  __syncthreads();
  if (is_multiplier) {
    const int num_threads = blockDim.x - 32;
    for (int first = 32 * warp; first < num_segments; first += num_threads) {
      const int s = first + lane;
      float values[8] = {};
      if (s < num_segments) {
        load_eight(columns + 8 * s, values);
        if (s != my_segment) load_eight(p.norm_weight + 8 * s, norm);
      }
      __syncwarp();
      if (s >= num_segments) continue;
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] *= norm[k] * scale;
      uint4 high, low;
      split_parts(values, high, low);
      std::byte* to = staged + s / 4 * kBlockBytes<1> + 16 * (s % 4);
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + 64) = low;
    }
    return;
  }
  const float of_warp = lane < static_cast<int>(blockDim.x / 32) ? squares_of_warps[lane] : 0.0f;
  const float factor =
      rsqrtf(__fdividef(warp_sum(of_warp), static_cast<float>(p.hidden)) + p.rms_eps);
  choice = choose_experts<kMine>(p.num_experts, p.top_k, [&](int expert, int i) {
    return logits[expert] * factor + router_bias[i];
  });
  if (lane < p.top_k) picks.ids[lane] = choice.id;
  if (lane == 0) picks.factor = factor;
}

/// kHoldsAll: the matrices hold all experts. Else route is not folded, and how many pieces there
/// are is known with the choice.
template <DType F, int kMine, bool kHoldsAll, typename AnyStep>
__global__ void __launch_bounds__(32 * (kMaxMultipliers + 1), 1)
    slice_experts(const __grid_constant__ AnyStep p) {
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Meeting meeting;
  __shared__ Picks picks;
  const bool folds = kHoldsAll && p.num_experts > 0;
  const int lane = opaque(static_cast<int>(threadIdx.x % 32));
  const Share share(p, blockIdx.x % 2);
  const int warp = share.warp;
  const bool is_multiplier = warp < share.num_multipliers;
  if (threadIdx.x < kKept) init_barrier(&meeting.barriers[threadIdx.x], 32);
  if (threadIdx.x == kKept) init_barrier(&meeting.staged);
  const Layout<F> layout(share.num_multipliers, p.num_units);
  std::byte* staged = shared + layout.staged;
  std::byte* hidden_values = shared + layout.hidden_values;
  auto* sums_of_warps = reinterpret_cast<float*>(shared + layout.sums);
  const int input_bytes = p.num_units * kInputBytes;
  cluster_arrive();
  // The pieces of all choices are known before the choice, their experts are not.
  Run pieces(p, kHoldsAll ? p.top_k : 0);
  Weights<F> weights(p, pieces);
  const int first_pick = weights.gate.pick;
  if (pieces.count > 0) weights.start_gate(p, share, 0);
  // The last warp chooses the experts while the others stage the activations.
  float router_bias[kMaxExperts / 32] = {};
  Choice choice{};
  if (folds && !is_multiplier) load_router_bias(p, router_bias);
  cluster_wait();  // both blocks have initialised their barriers

  wait_for_previous();
  launch_next();
  constexpr bool kExchanges = kFoldsReduce<AnyStep>;
  uint32_t exchanges = 0;
  if constexpr (kExchanges)
    reduce_and_route<kMine>(p, is_multiplier, router_bias, kActivationScale<F>, staged, picks,
                            choice, exchanges);
  if (kExchanges) {
    clear_next_logits(p);
  } else if (folds) {
    if (threadIdx.x == 0) {
      expect_bytes(&meeting.staged, input_bytes);
      copy_bulk(staged, p.parts, input_bytes, &meeting.staged);
    }
    if (!is_multiplier) {
      float factor;
      choice = route_token<kMine>(p, 0, router_bias, factor);
      if (lane < p.top_k) picks.ids[lane] = choice.id;
      if (lane == 0) picks.factor = factor;
    }
    clear_next_logits(p);
  } else if (warp == 0) {
    if constexpr (kHoldsAll) {
      if (lane < p.top_k)
        picks.ids[lane] = p.expert_ids[lane], picks.weights[lane] = p.expert_weights[lane];
      if (lane == 0) picks.factor = 1;
    } else {
      keep_held(p, picks);
    }
  }
  __syncthreads();
  // Only the last warp needs the weights of the choice, and only later.
  if (!is_multiplier && folds) keep_choice(p, choice, picks);
  const int num_picks = kHoldsAll ? p.top_k : picks.count;
  if constexpr (!kHoldsAll) {
    pieces = Run(p, num_picks);
    weights = Weights<F>(p, pieces);
  } else if (pieces.count > 0) {
    const int64_t expert = picks.ids[first_pick] * p.gate_up_expert_bytes;
    weights.at += expert, weights.tail += expert;
  }
  const uint32_t ring = warp * kStages * kStageBytes<F>;  // bytes from `shared`
  if (is_multiplier) {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      weights.advance(p, share, picks);
      weights.copy_stage(opaque(shared_address(shared) + ring) + i * kStageBytes<F>, lane);
      commit_copies();
    }
  }
  if (kExchanges) {
    // Staged before the choice.
  } else if (folds) {
    wait_cluster_barrier(&meeting.staged, 0);
  } else {
    Eight norm;
    float squares[1];
    stage_activations<1, false>(p.t, p.hidden, 0, p.num_units, 1, kActivationScale<F>, nullptr,
                                norm, nullptr, staged, threadIdx.x, blockDim.x, squares);
    __syncthreads();
  }

  if (!is_multiplier) {
    if constexpr (kExchanges) {
      if (lane == 0) mail::end_fold(p.fold, exchanges);
    }
    add_biases(p, picks, num_picks);
    return make_hidden_values<F>(p, share, picks, pieces, sums_of_warps, hidden_values, meeting);
  }
  Multiplier<F> multiplier(p, share, picks, weights, shared, layout, lane);
  StageProduct<F> product;  // made once, since its zeros can be reused
  for (Order order(pieces.count); !order.is_done();) {
    const bool is_gate = order.is_gate();
    const int nth = is_gate ? order.gate++ : order.down++;
    if (!is_gate) wait_cluster_barrier(&meeting.barriers[nth % kKept], nth / kKept % 2);
    multiplier.multiply(product, is_gate, nth);
    if (is_gate) barrier_arrive(Meeting::of_sums(nth), blockDim.x);
  }
  if (pieces.count > 0) multiplier.add_down_sums();
}

/// Of a block's shared memory, at most.
template <typename AnyStep>
constexpr int kStaticBytes = kFoldsReduce<AnyStep> ? 4096 : 2048;

/// Whether this kernel can run a shape: sizes in whole stages and units, room for enough warps,
/// sums that stay exact.
template <DType F>
bool suits(const Step& step, const BlockLimits& limits) {
  return step.hidden % (64 * kUnits) == 0 && step.gate_up.rows == 128 * step.num_units_down &&
         step.top_k <= kMaxPicks && step.top_k * step.num_units_down + 1 <= kMaxResidualAddends &&
         Layout<F>(kMinMultipliers, step.num_units).bytes + kStaticBytes<Step> <=
             static_cast<int>(limits.shared_bytes);
}

/// The warps of a block that multiply, of a kernel that suits.
template <DType F, typename AnyStep>
int num_multipliers(const AnyStep& step, const BlockLimits& limits) {
  const auto fits = [&](int count) {
    return Layout<F>(count, step.num_units).bytes + kStaticBytes<AnyStep> <=
           static_cast<int>(limits.shared_bytes);
  };
  int count = kMaxMultipliers;
  while (count > kMinMultipliers && !fits(count)) --count;
  return count;
}

/// Whether the threads of a block, and the blocks of a grid, are enough for an exchange.
template <DType F, int kMost>
bool can_exchange(const FoldedStep<kMost>& step, const BlockLimits& limits) {
  const int words = step.fold.num_words();
  return words <= kWordsOfThread * 32 * (num_multipliers<F>(step, limits) + 1) &&
         words <= kWordsOfBlock * (limits.num_units / 2 * 2);
}

template <DType F, typename AnyStep>
void launch_slices(const AnyStep& step, bool holds_all, const BlockLimits& limits,
                   const Launch& launch, const char* row) {
  const int multipliers = num_multipliers<F>(step, limits);
  const auto launch_one = [&](void (*kernel)(AnyStep)) {
    launch_kernel(
        row, kernel, step,
        {.grid = dim3(static_cast<unsigned>(2 * std::max(1, limits.num_units / 2))),
         .num_threads = 32 * (multipliers + 1),
         .shared_bytes = static_cast<uint64_t>(Layout<F>(multipliers, step.num_units).bytes),
         .cluster = 2,
         .programmatic = true,
         .leaves_l1 = launch.l1 == L1Form::kL1},
        launch_stream(launch.stream));
  };
  if constexpr (!kFoldsReduce<AnyStep>) {
    if (!holds_all) return launch_one(slice_experts<F, 4, false, AnyStep>);
  }
  dispatch_up_to<4, kMaxExperts / 32>(ceil_div(step.num_experts, 32), [&]<int kMine>() {
    launch_one(slice_experts<F, kMine, true, AnyStep>);
  });
}

}  // namespace moxie::slices
