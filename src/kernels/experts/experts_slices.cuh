// experts on CUDA for a few tokens: gate/up, SwiGLU and down in one kernel, without an exchange of
// the hidden values between all blocks.
//
// Work is cut along the intermediate size: a piece is a unit of 64 columns of one expert that any
// token chose. A cluster of two blocks takes a run of neighbouring pieces. Gate/up makes a piece's
// hidden values for every token that chose the expert, half of them in each block, handed over in
// distributed shared memory; down multiplies them with their columns of all outputs, half of the
// outputs in each block, and adds the sums to the residual stream, where the order of the blocks
// does not matter (kernels/residual.cuh). So weights stream without a pause, each once a launch.
//
// All warps of a block but the last multiply: gate/up of pieces 0 and 1, down of 0, gate/up of 2,
// down of 1, ... The last one makes hidden values from the sums of a piece while the others are
// busy with the next.
//
// The one token of an expert takes all slots of the product (fragment_gemv.cuh); several have a
// slot each.
#pragma once

#include "kernels/experts/experts_products.cuh"
#include "kernels/route/route_choose.cuh"

namespace moxie::slices {

constexpr int kTilesOfPiece = 4;    // of gate/up, in each of the two blocks: 8 outputs each
constexpr int kMinMultipliers = 4;  // warps
constexpr int kMaxMultipliers = 15;
constexpr int kMaxPicks = 32;  // pairs of a token and a choice, and so experts, of a launch
// Pieces whose hidden values are kept: a block may be two behind the other one.
constexpr int kKept = 4;

struct Step {
  PackedMatrix gate_up, down;
  int64_t gate_up_expert_bytes, down_expert_bytes;
  const float* gate_up_bias;
  const float* down_bias;
  const float* t;  // [tokens, hidden]
  const int32_t* expert_ids;
  const float* expert_weights;
  float2* x;  // [tokens, hidden]
  float alpha, limit;
  int32_t num_tokens, hidden, top_k, num_units, num_units_down;
  // With the route step folded in, num_experts > 0; else the choices and `t` are there.
  int32_t num_experts;
  float rms_eps;
  const std::byte* parts;    // [tokens, hidden] of 4 bytes: the activations
  const float* router_bias;  // [experts]
  const float2* logits;      // [tokens, experts] without the norm's factor and the bias
  float2* next_logits;       // likewise, to be cleared
  const float* squares;      // [tokens, hidden / 16]
  int32_t* chosen_ids;       // [tokens, top_k], written for who looks on
  float* chosen_weights;
};

// Of a stage's scales 8 lanes a unit have a part; beside it in shared memory lies what the other
// lanes copy.
inline constexpr int kScaleLanes = 8 * kUnits;
template <DType F>
inline constexpr int kLaneScaleBytes = 4 * Format<F>::kScaleWords;
template <DType F>
inline constexpr int kStageWeightBytes = kUnits* kUnitBytes<F>;
template <DType F>
inline constexpr int kStageBytes = kStageWeightBytes<F> + (32 - kScaleLanes) * kLaneScaleBytes<F>;
// More start with a longer queue for the first bytes, and leave less room for the next kernels.
inline constexpr int kStages = 2;

// Keeps an address out of uniform registers: added to one there, nvcc 13.0 makes copies of it that
// are no instructions. Also keeps a value from being worked out again and again.
template <typename T>
__device__ __forceinline__ T opaque(T value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The clamped SwiGLU of one output.
__device__ __forceinline__ float swiglu(float gate, float up, float alpha, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return gate / (1.0f + __expf(-alpha * gate)) * (up + 1.0f);
}

/// An expert of the launch, and which pairs (token * top_k + choice) chose it.
template <int kTokens>
struct Pick {
  int32_t expert, count;
  uint8_t pairs[kTokens], tokens[kTokens];
};
template <int kTokens>
struct Picks {
  Pick<kTokens> of[kMaxPicks];
  int32_t ids[kMaxPicks];  // of pairs
  float weights[kMaxPicks];
  float factors[kTokens];  // of each token's activations
  int count;
};

/// Where the parts of a block's shared memory lie.
template <DType F>
struct Layout {
  int staged, hidden_values, sums, bytes;
  __host__ __device__ constexpr Layout(int num_multipliers, int num_units, int num_tokens)
      : staged(num_multipliers * kStages * kStageBytes<F>),
        hidden_values(staged + num_tokens * num_units * kInputBytes),
        sums(hidden_values + kKept * num_tokens * kInputBytes),
        // Of two pieces; a warp has parts of two tiles at most.
        bytes(sums + 2 * num_multipliers * 2 * 16 * num_tokens * 4) {}
};

/// Pieces of a cluster in turn.
struct Piece {
  int pick, unit;
  __device__ __forceinline__ Piece(const Step& p, int idx)
      : pick(idx / p.num_units_down), unit(idx - pick * p.num_units_down) {}
  __device__ __forceinline__ void next(const Step& p) {
    if (++unit == p.num_units_down) unit = 0, ++pick;
  }
};

/// What comes after what: gate/up is one piece ahead of down.
struct Order {
  int num_pieces, gate = 0, down = 0;
  __device__ __forceinline__ explicit Order(int pieces) : num_pieces(pieces) {}
  __device__ __forceinline__ bool is_done() const { return down == num_pieces; }
  __device__ __forceinline__ bool is_gate() const { return gate < num_pieces && gate < down + 2; }
};

/// What a multiplying warp does of each piece: stages of gate/up and stages of down.
struct Share {
  int num_multipliers, warp, rank, stages_of_tile;
  int gate_begin, gate_count, down_begin, down_count;
  __device__ __forceinline__ Share(const Step& p, int block_rank)
      : num_multipliers(blockDim.x / 32 - 1), warp(threadIdx.x / 32), rank(block_rank) {
    stages_of_tile = p.num_units / kUnits;
    gate_begin = gate_stage(warp);
    gate_count = gate_stage(warp + 1) - gate_begin;
    const int down_stages = p.hidden / (2 * 16 * kUnits);
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

/// The weights of a warp in the order in which it multiplies them.
template <DType F>
struct Weights {
  static constexpr int kLaneBytes = kLaneScaleBytes<F>, kScaleBytes = 8 * kLaneBytes;  // of a unit
  static_assert(kScaleLanes <= 32 && kLaneBytes <= 16);
  const std::byte* at;    // the lane's first 16 bytes of the next stage
  const std::byte* tail;  // what the lane copies of the scales
  uint32_t to_tail;       // and where it puts them in a stage
  int64_t step;           // to the next stage
  int32_t unit_step;      // from a unit of the stage to the next
  int left = 0;           // stages of the run
  Order order;
  Piece gate, down;

  __device__ __forceinline__ Weights(const Step& p, int num_pieces, int first_piece)
      : order(num_pieces), gate(p, first_piece), down(gate) {}
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
      // The other lanes copy the first of their own codes once more, to where none reads: a mask
      // takes longer.
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
  /// The next run with any stages, if there is one.
  template <int kTokens>
  __device__ __forceinline__ void advance(const Step& p, const Share& share,
                                          const Picks<kTokens>& picks) {
    while (left == 0 && !order.is_done()) {
      if (order.is_gate()) {
        start_gate(p, share, picks.of[gate.pick].expert);
      } else {
        start_down(p, share, picks.of[down.pick].expert);
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

/// A token's choice from what `out` left, by one warp.
template <int kMine, int kTokens>
__device__ __forceinline__ Choice route_token(const Step& p, int token,
                                              const float (&bias)[kMaxExperts / 32],
                                              Picks<kTokens>& picks) {
  const int lane = threadIdx.x % 32, num_tiles = p.hidden / 16;
  const float2* sums = p.logits + int64_t{token} * p.num_experts;
  const float* squares = p.squares + int64_t{token} * num_tiles;
  float2 logits[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    if (lane + 32 * i < p.num_experts) logits[i] = load_early(sums + lane + 32 * i);
  }
  // All loads of a round are on their way before the first is waited for.
  constexpr int kRound = 6;
  float square = 0;
#pragma unroll 1
  for (int first = lane; first - lane < num_tiles; first += 32 * kRound) {
    float parts[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i)
      parts[i] = first + 32 * i < num_tiles ? load_early(squares + first + 32 * i) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRound; ++i) square += parts[i];
  }
  const float factor =
      rsqrtf(__fdividef(warp_sum(square), static_cast<float>(p.hidden)) + p.rms_eps);
  if (lane == 0) picks.factors[token] = factor;
  return choose_experts<kMine>(p.num_experts, p.top_k,
                               [&](int, int i) { return whole(logits[i]) * factor + bias[i]; });
}

/// Keeps a token's choice; by the same warp.
template <int kTokens>
__device__ __forceinline__ void keep_choice(const Step& p, int token, const Choice& choice,
                                            Picks<kTokens>& picks) {
  const float weight = choice_weight(choice, p.top_k);
  const int at = token * p.top_k + static_cast<int>(threadIdx.x % 32);
  if (static_cast<int>(threadIdx.x % 32) < p.top_k) {
    picks.ids[at] = choice.id, picks.weights[at] = weight;
    if (blockIdx.x == 0) p.chosen_ids[at] = choice.id, p.chosen_weights[at] = weight;
  }
  __syncwarp();
}

/// Which experts the launch's tokens chose, each once; by one warp.
template <int kTokens>
__device__ __forceinline__ void pick_experts(const Step& p, Picks<kTokens>& picks) {
  const int lane = threadIdx.x % 32;
  const int num_pairs = kTokens == 1 ? p.top_k : p.num_tokens * p.top_k;
  int id = -1 - lane;
  if (lane < num_pairs) id = p.num_experts > 0 ? picks.ids[lane] : p.expert_ids[lane];
  if (p.num_experts == 0) {
    if (lane < num_pairs) picks.ids[lane] = id, picks.weights[lane] = p.expert_weights[lane];
    if (lane < kTokens) picks.factors[lane] = 1;
  }
  uint32_t peers = kTokens == 1 ? 1u << lane : __match_any_sync(~0u, id);
  const bool is_first = lane < num_pairs && __ffs(peers) - 1 == lane;
  const uint32_t firsts = __ballot_sync(~0u, is_first);
  if (lane == 0) picks.count = __popc(firsts);
  if (!is_first) return;
  Pick<kTokens>& pick = picks.of[__popc(firsts & ((1u << lane) - 1))];
  pick.expert = id;
  pick.count = __popc(peers);
  for (int i = 0; i < kTokens && peers != 0; ++i, peers &= peers - 1) {
    const int pair = __ffs(peers) - 1;
    pick.pairs[i] = static_cast<uint8_t>(pair);
    pick.tokens[i] = static_cast<uint8_t>(kTokens == 1 ? 0 : pair / p.top_k);
  }
}

/// x += the chosen experts' biases of down: a part of the outputs in each block, by one warp.
template <int kTokens>
__device__ void add_biases(const Step& p, const Picks<kTokens>& picks) {
  const int first = part_begin(p.hidden, gridDim.x, blockIdx.x);
  const int count = part_begin(p.hidden, gridDim.x, blockIdx.x + 1) - first;
  const int num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  for (int i = threadIdx.x % 32; i < count * num_tokens; i += 32) {
    const int token = i / count, row = first + i - token * count;
    float sum = 0;
#pragma unroll 4
    for (int n = token * p.top_k; n < (token + 1) * p.top_k; ++n)
      sum += picks.weights[n] * p.down_bias[static_cast<int64_t>(picks.ids[n]) * p.hidden + row];
    add_to_residual(p.x + static_cast<int64_t>(token) * p.hidden + row, sum);
  }
}

/// Where the blocks of a cluster meet.
///
/// What makes memory free again, in either block: the sums of piece n are written anew for n + 2,
/// after down of n, whose barrier completes when each lane of the last warp has read them.
/// The hidden values of n are written anew for n + 4 by a block that has done down of n + 2; for
/// that the other block sent its part of n + 2, so that its warps had done gate/up of n + 2, which
/// they begin after down of n.
struct Meeting {
  uint64_t barriers[kKept];  // of pieces in turn: that piece's hidden values are here
  uint64_t staged;           // the activations are here
  /// For warps of the block: the sums of the nth piece are here.
  __device__ __forceinline__ static int of_sums(int nth) { return 1 + nth % 2; }
};

/// The last warp: gate and up sums of each piece to hidden values in both blocks' shared memory. A
/// lane has one of this block's 32 columns.
template <DType F, int kTokens>
__device__ __forceinline__ void make_hidden_values(const Step& p, const Share& share,
                                                   const Picks<kTokens>& picks, int first_piece,
                                                   int num_pieces, const float* sums_of_warps,
                                                   std::byte* hidden_values, Meeting& meeting) {
  const int lane = threadIdx.x % 32, num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  const int num_warps = share.num_multipliers, all = kTilesOfPiece * share.stages_of_tile;
  // Which warps have a part of the lane's tile.
  const int from = lane / 8 * share.stages_of_tile;
  const int first_warp = ((from + 1) * num_warps - 1) / all;
  const int last_warp = ((from + share.stages_of_tile) * num_warps - 1) / all;
  const int first_part = share.gate_stage(first_warp) >= from ? 0 : 1;
  const int of_warp = 2 * 16 * num_tokens;
  Piece piece(p, first_piece);
#pragma unroll 1
  for (int nth = 0; nth < num_pieces; ++nth, piece.next(p)) {
    const Pick<kTokens>& pick = picks.of[piece.pick];
    const int count = kTokens == 1 ? 1 : pick.count;
    const float* bias = p.gate_up_bias + static_cast<int64_t>(pick.expert) * p.gate_up.rows +
                        ((2 * piece.unit + share.rank) * kTilesOfPiece + lane / 8) * 16 + lane % 8;
    const float gate_bias = load_early(bias), up_bias = load_early(bias + 8);
    uint64_t* barrier = &meeting.barriers[nth % kKept];
    barrier_wait(Meeting::of_sums(nth), blockDim.x);
    const float* of_piece = sums_of_warps + nth % 2 * (num_warps * of_warp);
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      float gate = 0, up = 0;
      const float factor = kSumScale<F> * picks.factors[pick.tokens[j]];
      const float* sums = of_piece + first_warp * of_warp + (first_part * num_tokens + j) * 16;
#pragma unroll 4
      for (int w = first_warp; w <= last_warp; ++w) {
        gate += sums[lane % 8], up += sums[lane % 8 + 8];
        sums = of_piece + (w + 1) * of_warp + j * 16;
      }
      const float value =
          swiglu(gate * factor + gate_bias, up * factor + up_bias, p.alpha, p.limit) *
          (picks.weights[pick.pairs[j]] * kActivationScale<F>);
      const float next = __shfl_down_sync(~0u, value, 1);
      if (lane % 2 != 0) continue;
      const uint32_t high = pack_bf16(value, next);
      const uint32_t low = pack_bf16(value - __uint_as_float(high << 16),
                                     next - __uint_as_float(high & 0xFFFF0000u));
      const std::byte* at = hidden_values + (nth % kKept * num_tokens + j) * kInputBytes +
                            share.rank * 128 + lane * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        send(at, barrier, r, high);
        send(at + 64, barrier, r, low);
      }
    }
    // Each lane says that it has read the sums.
    if (lane == 0) {
      expect_bytes(barrier, count * kInputBytes);
    } else {
      arrive_barrier(barrier);
    }
  }
}

/// A warp that multiplies.
template <DType F, int kTokens>
struct Multiplier {
  const Step& p;
  const Share& share;
  const Picks<kTokens>& picks;
  Weights<F>& weights;
  const std::byte* shared;
  const std::byte* staged;
  const std::byte* hidden_values;
  float* sums_of_warps;
  int num_tokens, lane, in_first_tile, num_gate_tiles;
  uint32_t ring, ring_address,
      stage = 0;  // bytes from `shared`; its address; from the ring's first

  __device__ __forceinline__ Multiplier(const Step& step, const Share& of_warp,
                                        const Picks<kTokens>& of_launch, Weights<F>& of_share,
                                        std::byte* memory, const Layout<F>& layout, int my_lane)
      : p(step),
        share(of_warp),
        picks(of_launch),
        weights(of_share),
        shared(memory),
        staged(memory + layout.staged),
        hidden_values(memory + layout.hidden_values),
        sums_of_warps(reinterpret_cast<float*>(memory + layout.sums)),
        num_tokens(kTokens == 1 ? 1 : step.num_tokens),
        lane(my_lane),
        ring(of_warp.warp * kStages * kStageBytes<F>) {
    ring_address = opaque(shared_address(shared) + ring);
    in_first_tile = share.gate_begin % share.stages_of_tile;
    num_gate_tiles = share.gate_count == 0
                         ? 0
                         : (share.gate_begin + share.gate_count - 1) / share.stages_of_tile -
                               share.gate_begin / share.stages_of_tile + 1;
  }

  /// Gate/up tiles of the nth piece, or what this warp has of them, or its stages of down.
  template <typename Product>
  __device__ __forceinline__ void multiply(Product& product, const Pick<kTokens>& pick,
                                           bool is_gate, int nth) {
    const std::byte* values = hidden_values + nth % kKept * (num_tokens * kInputBytes);
    float* my_sums =
        sums_of_warps + (nth % 2 * share.num_multipliers + share.warp) * (2 * 16 * num_tokens);
    const int num_tiles = is_gate ? num_gate_tiles : share.down_count;
    // A warp without a stage adds nothing to the tile that its neighbours share.
    if (is_gate && num_tiles == 0)
      for (int i = lane; i < 16 * num_tokens; i += 32) my_sums[i] = 0;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      int stages = 1;
      if (is_gate) {
        const int begin = tile == 0 ? in_first_tile : 0;
        stages = tile == 0 ? min(share.gate_count, share.stages_of_tile - begin)
                           : share.gate_count - (share.stages_of_tile - in_first_tile);
        product.start_row(staged + begin * (kUnits * kInputBytes), p.num_units * kInputBytes, pick);
      } else {
        product.start_column(values, pick);
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
        product.store_row(my_sums + tile * 16 * num_tokens, lane);
      } else {
        product.add_column(p.x + share.down_row(p, tile), p.hidden, pick, lane);
      }
    }
  }
};

template <DType F, int kTokens>
__global__ void __launch_bounds__(32 * (kMaxMultipliers + 1), 1)
    slice_experts(const __grid_constant__ Step p) {
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Meeting meeting;
  __shared__ Picks<kTokens> picks;
  const int num_clusters = gridDim.x / 2, cluster_idx = blockIdx.x / 2;
  const int lane = opaque(static_cast<int>(threadIdx.x % 32));
  const int num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  const Share share(p, blockIdx.x % 2);
  const int warp = share.warp;
  const bool is_multiplier = warp < share.num_multipliers;
  if (threadIdx.x < kKept) init_barrier(&meeting.barriers[threadIdx.x], 32);
  if (threadIdx.x == kKept) init_barrier(&meeting.staged);
  const Layout<F> layout(share.num_multipliers, p.num_units, num_tokens);
  std::byte* staged = shared + layout.staged;
  std::byte* hidden_values = shared + layout.hidden_values;
  auto* sums_of_warps = reinterpret_cast<float*>(shared + layout.sums);
  const int token_bytes = p.num_units * kInputBytes;
  cluster_arrive();
  // One token's pieces are known, but for their experts.
  int first_piece = 0, num_pieces = 0;
  const auto find_pieces = [&](int num_picks) {
    const int all = num_picks * p.num_units_down;
    if constexpr (kTokens == 1) {
      // The last blocks start last, on SMs that had two blocks of `out`: they have fewer.
      const int each = all / num_clusters, with_more = all - each * num_clusters;
      first_piece = cluster_idx * each + min(cluster_idx, with_more);
      num_pieces = each + (cluster_idx < with_more ? 1 : 0);
    } else {
      first_piece = part_begin(all, num_clusters, cluster_idx);
      num_pieces = part_begin(all, num_clusters, cluster_idx + 1) - first_piece;
    }
  };
  if constexpr (kTokens == 1) find_pieces(p.top_k);
  Weights<F> weights(p, num_pieces, first_piece);
  const int first_pick = weights.gate.pick;
  if (kTokens == 1 && num_pieces > 0) weights.start_gate(p, share, 0);
  // The last warp routes the one token while the others stage it.
  constexpr bool kSplit = kTokens == 1;
  const bool is_router = kSplit ? !is_multiplier : warp < num_tokens;
  float router_bias[kMaxExperts / 32] = {};
  Choice choice{};
  if (p.num_experts > 0) {
#pragma unroll
    for (int i = 0; i < kMaxExperts / 32; ++i) {
      if (is_router && lane + 32 * i < p.num_experts)
        router_bias[i] = load_early(p.router_bias + lane + 32 * i);
    }
  }
  cluster_wait();  // both blocks have their barriers

  wait_for_previous();
  launch_next();
  if (p.num_experts > 0) {
    if (threadIdx.x == (kSplit ? 0 : blockDim.x - 32)) {
      const auto bytes = static_cast<uint32_t>(num_tokens * token_bytes);
      expect_bytes(&meeting.staged, bytes);
      copy_bulk(staged, p.parts, bytes, &meeting.staged);
    }
    if (is_router) {
      if constexpr (kSplit) {
        choice = p.num_experts <= 128
                     ? route_token<4, kTokens>(p, 0, router_bias, picks)
                     : route_token<kMaxExperts / 32, kTokens>(p, 0, router_bias, picks);
        if (lane < p.top_k) picks.of[lane] = {choice.id, 1, {static_cast<uint8_t>(lane)}, {0}};
        if (lane == 0) picks.count = p.top_k;
      } else {
        for (int t = warp; t < num_tokens; t += blockDim.x / 32)
          keep_choice(p, t, route_token<kMaxExperts / 32, kTokens>(p, t, router_bias, picks),
                      picks);
      }
    }
    const int to_clear = num_tokens * p.num_experts;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < to_clear; i += gridDim.x * blockDim.x)
      p.next_logits[i] = make_float2(0, 0);
    if constexpr (!kSplit) {
      __syncthreads();
      if (warp == 0) pick_experts<kTokens>(p, picks);
    }
  } else {
    if (warp == 0) pick_experts<kTokens>(p, picks);
  }
  __syncthreads();
  // Of one token only the last warp needs the weights, and not at once.
  if (kSplit && is_router && p.num_experts > 0) keep_choice(p, 0, choice, picks);
  if constexpr (kTokens == 1) {
    if (num_pieces > 0) {
      const int64_t expert = picks.of[first_pick].expert * p.gate_up_expert_bytes;
      weights.at += expert, weights.tail += expert;
    }
  } else {
    find_pieces(picks.count);
    weights = Weights<F>(p, num_pieces, first_piece);
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
  if (p.num_experts > 0) {
    wait_cluster_barrier(&meeting.staged, 0);
  } else {
    Eight norm;
    float squares[1];
    for (int t = 0; t < num_tokens; ++t)
      stage_activations<1, false>(p.t + int64_t{t} * p.hidden, p.hidden, 0, p.num_units, 1,
                                  kActivationScale<F>, nullptr, norm, nullptr,
                                  staged + t * token_bytes, threadIdx.x, blockDim.x, squares);
    __syncthreads();
  }

  if (!is_multiplier) {
    add_biases(p, picks);
    return make_hidden_values<F, kTokens>(p, share, picks, first_piece, num_pieces, sums_of_warps,
                                          hidden_values, meeting);
  }
  Multiplier<F, kTokens> multiplier(p, share, picks, weights, shared, layout, lane);
  AloneProduct<F> alone;  // for one token, whose zeros are made once
  Order order(num_pieces);
  Piece gate(p, first_piece), down(gate);
  while (!order.is_done()) {
    const bool is_gate = order.is_gate();
    const int nth = is_gate ? order.gate : order.down;
    const Pick<kTokens>& pick = picks.of[is_gate ? gate.pick : down.pick];
    if (is_gate) {
      ++order.gate;
      gate.next(p);
    } else {
      ++order.down;
      down.next(p);
      wait_cluster_barrier(&meeting.barriers[nth % kKept], nth / kKept % 2);
    }
    if constexpr (kTokens == 1) {
      multiplier.multiply(alone, pick, is_gate, nth);
    } else if (pick.count == 1) {
      AloneProduct<F> one;
      multiplier.multiply(one, pick, is_gate, nth);
    } else {
      GroupProduct<F> many;
      multiplier.multiply(many, pick, is_gate, nth);
    }
    if (is_gate) barrier_arrive(Meeting::of_sums(nth), blockDim.x);
  }
}

constexpr int kStaticBytes = 2048;  // of a block's shared memory, at most

/// How many tokens one launch takes: 0 for shapes that this way does not serve (sizes in whole
/// stages and units, room for warps enough, sums that stay exact).
template <DType F>
int tokens_of_launch(const Step& step, const BlockLimits& limits) {
  if (step.hidden % (64 * kUnits) != 0 || step.gate_up.rows != 128 * step.num_units_down ||
      step.top_k > kMaxPicks || step.top_k * step.num_units_down + 1 > kMaxResidualAddends)
    return 0;
  const int most = std::min(kMaxTokens, kMaxPicks / step.top_k);
  for (int tokens = most; tokens > 0; --tokens) {
    if (Layout<F>(kMinMultipliers, step.num_units, tokens).bytes + kStaticBytes <=
        static_cast<int>(limits.shared_bytes))
      return tokens;
  }
  return 0;
}

template <DType F, int kTokens>
void launch_slices(const Step& step, const BlockLimits& limits, cudaStream_t stream,
                   const char* row) {
  int multipliers = kMaxMultipliers;
  const auto bytes = [&] {
    return static_cast<uint64_t>(Layout<F>(multipliers, step.num_units, step.num_tokens).bytes);
  };
  while (bytes() + kStaticBytes > limits.shared_bytes) --multipliers;
  launch_kernel(row, slice_experts<F, kTokens>, step,
                {.grid = dim3(static_cast<unsigned>(2 * std::max(1, limits.num_units / 2))),
                 .num_threads = 32 * (multipliers + 1),
                 .shared_bytes = bytes(),
                 .cluster = 2,
                 .programmatic = true},
                stream);
}

}  // namespace moxie::slices
