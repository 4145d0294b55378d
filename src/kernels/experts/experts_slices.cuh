// experts on CUDA for one token: gate/up, SwiGLU and down in one kernel. Blocks of different
// clusters exchange no hidden values.
//
// Work is cut along the intermediate size: a piece is a unit of 64 columns of one chosen expert. A
// cluster of two or four blocks takes a run of neighbouring pieces. Gate/up computes a piece's
// hidden values: each block computes a share of them and sends it to the others' shared memory.
// Down multiplies them by their columns of all outputs, of which each block has a share. Its sums
// over all pieces of a cluster stay in shared memory, where each lane has sums of its own. At the
// end they are added to the residual stream, where the order of the blocks does not matter
// (kernels/residual.cuh). So weights stream without a pause.
//
// All warps of a block but the last multiply: gate/up of pieces 0 and 1, down of 0, gate/up of 2,
// down of 1, ... The last warp makes hidden values from the sums of a piece while the others
// multiply for the next piece.
#pragma once

#include "kernels/cluster.cuh"
#include "kernels/experts/experts_slices_weights.cuh"
#include "kernels/rank_fold.cuh"

namespace moxie::slices {

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
/// Why memory may be written again, in any block: The sums of piece n are overwritten by n + 2
/// after down of n, and down of n waits until each lane of the last warp has read these sums. The
/// hidden values of n are overwritten by n + 4, by a block that has done down of n + 2. For that
/// the other blocks have sent their shares of n + 2. So their warps have done gate/up of n + 2,
/// which they begin after down of n.
struct Meeting {
  uint64_t barriers[kKept];  // for pieces in turn: the piece's hidden values have arrived
  uint64_t staged;           // the activations are staged
  /// The barrier among the block's warps: the sums of the nth piece are complete.
  __device__ __forceinline__ static int of_sums(int nth) { return 1 + nth % 2; }
};

/// The last warp: turns the gate and up sums of each piece into hidden values in all blocks'
/// shared memory. Each lane has one of this block's columns.
template <DType F, int kCluster>
__device__ __forceinline__ void make_hidden_values(const Step& p, const Share& share,
                                                   const Picks& picks, const Run& pieces,
                                                   const float* sums_of_warps,
                                                   std::byte* hidden_values, Meeting& meeting) {
  const int lane = threadIdx.x % 32;
  const int num_warps = share.num_multipliers, all = share.num_tiles * share.stages_of_tile;
  // Lanes beyond this block's columns make the last tile's once more, and send nothing.
  const int tile = min(lane / 8, share.num_tiles - 1);
  // The warps that have a share of the lane's tile.
  const int from = tile * share.stages_of_tile;
  const int first_warp = ((from + 1) * num_warps - 1) / all;
  const int last_warp = ((from + share.stages_of_tile) * num_warps - 1) / all;
  const int first_part = share.gate_stage(first_warp) >= from ? 0 : 1;
  constexpr int kOfWarp = 2 * 16;
  Piece piece(p, pieces.first);
#pragma unroll 1
  for (int nth = 0; nth < pieces.count; ++nth, piece.next(p)) {
    const float* bias =
        p.gate_up_bias + static_cast<int64_t>(picks.ids[piece.pick]) * p.gate_up.rows +
        (piece.unit * kTilesOfPiece + share.rank * share.num_tiles + tile) * 16 + lane % 8;
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
    if (lane % 2 == 0 && lane < 8 * share.num_tiles) {
      const uint32_t high = pack_bf16(value, next);
      const uint32_t low = pack_bf16(value - __uint_as_float(high << 16),
                                     next - __uint_as_float(high & 0xFFFF0000u));
      // 32 columns lie side by side, high parts before low ones.
      const int first = share.rank * 8 * share.num_tiles;
      const std::byte* at =
          hidden_values + nth % kKept * kInputBytes + first / 32 * 128 + first % 32 * 2 + lane * 2;
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
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
  Weights<F>& weights;
  const std::byte* shared;
  const std::byte* staged;
  const std::byte* hidden_values;
  float* sums_of_warps;
  float4* down_sums;  // the lane's, of the warp's first stage; the next stage's are 32 further on
  int lane, in_first_tile, num_gate_tiles;
  uint32_t scales;       // where the lane's scales go in a stage
  uint32_t stage, both;  // the address of the next stage, and the sum of both stages' addresses

  __device__ __forceinline__ Multiplier(const Step& step, const Share& of_warp,
                                        Weights<F>& of_share, std::byte* memory,
                                        const Layout<F>& layout, int my_lane)
      : p(step),
        share(of_warp),
        weights(of_share),
        shared(memory),
        staged(memory + layout.staged),
        hidden_values(memory + layout.hidden_values),
        sums_of_warps(reinterpret_cast<float*>(memory + layout.sums)),
        down_sums(reinterpret_cast<float4*>(memory + layout.down_sums) + of_warp.down_begin * 32 +
                  my_lane),
        lane(my_lane),
        scales(opaque(Weights<F>::scales_in_stage(my_lane))) {
    static_assert(kStages == 2);
    stage = opaque(shared_address(memory) + of_warp.warp * kStages * kStageBytes<F>);
    both = 2 * stage + kStageBytes<F>;
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
    if (is_gate && num_tiles == 0 && lane < 16) my_sums[lane] = 0;
    if (!is_gate) product.start_column(values, lane);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
      int stages = 1;
      if (is_gate) {
        const int begin = tile == 0 ? in_first_tile : 0;
        stages = tile == 0 ? min(share.gate_count, share.stages_of_tile - begin)
                           : share.gate_count - (share.stages_of_tile - in_first_tile);
        product.start_row(staged + begin * (kUnits * kInputBytes), lane);
      } else {
        product.set_sums(nth > 0 ? down_sums[tile * 32] : make_float4(0, 0, 0, 0));
      }
#pragma unroll 1
      for (; stages > 0; --stages) {
        wait_for_copies<kStages - 1>();
        __syncwarp();
        product.add_stage(shared, stage, [&] {
          if (weights.left <= 0) weights.advance(p, share);
          weights.copy_stage(stage, lane, scales);
          commit_copies();
        });
        stage = both - stage;
      }
      if (is_gate) {
        product.store_row(my_sums + tile * 16, lane);
      } else {
        down_sums[tile * 32] = product.sums();
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
  mail::Fold fold;
  const float* norm_weight;  // [hidden]
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
template <DType F, int kMine, bool kHoldsAll, int kCluster, typename AnyStep>
__global__ void __launch_bounds__(32 * (kMaxMultipliers + 1), 1)
    slice_experts(const __grid_constant__ AnyStep p) {
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Meeting meeting;
  __shared__ Picks picks;
  const bool folds = kHoldsAll && p.num_experts > 0;
  const int lane = opaque(static_cast<int>(threadIdx.x % 32));
  const Share share(p, blockIdx.x % kCluster, kCluster);
  const int warp = share.warp;
  const bool is_multiplier = warp < share.num_multipliers;
  if (threadIdx.x < kKept) init_barrier(&meeting.barriers[threadIdx.x], 32);
  if (threadIdx.x == kKept) init_barrier(&meeting.staged);
  const Layout<F> layout(share.num_multipliers, p.num_units, kCluster);
  std::byte* staged = shared + layout.staged;
  std::byte* hidden_values = shared + layout.hidden_values;
  auto* sums_of_warps = reinterpret_cast<float*>(shared + layout.sums);
  const int input_bytes = p.num_units * kInputBytes;
  cluster_arrive();
  // The pieces of all choices are known before the choice, their experts are not.
  Run pieces(p, kHoldsAll ? p.top_k : 0, kCluster);
  Weights<F> weights(p, share, pieces);
  const int first_pick = weights.gate.pick;
  if (pieces.count > 0) weights.start_gate(p, share, 0);
  // The last warp chooses the experts while the others stage the activations.
  float router_bias[kMaxExperts / 32] = {};
  Choice choice{};
  if (folds && !is_multiplier) load_router_bias(p, router_bias);
  cluster_wait();  // all blocks have initialised their barriers

  wait_for_previous();
  launch_next();
  constexpr bool kExchanges = mail::kFolds<AnyStep>;
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
    pieces = Run(p, num_picks, kCluster);
    weights = Weights<F>(p, share, pieces);
  } else if (pieces.count > 0) {
    weights.at += picks.ids[first_pick] * p.gate_up_expert_bytes;
  }
  weights.id = lane < num_picks ? picks.ids[lane] : 0;
  const uint32_t ring = warp * kStages * kStageBytes<F>;  // bytes from `shared`
  if (is_multiplier) {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      weights.advance(p, share);
      weights.copy_stage(opaque(shared_address(shared) + ring) + i * kStageBytes<F>, lane,
                         Weights<F>::scales_in_stage(lane));
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
    return make_hidden_values<F, kCluster>(p, share, picks, pieces, sums_of_warps, hidden_values,
                                           meeting);
  }
  Multiplier<F> multiplier(p, share, weights, shared, layout, lane);
  StageProduct<F> product(lane);  // made once, since its zeros can be reused
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
constexpr int kStaticBytes = mail::kFolds<AnyStep> ? 4096 : 2048;

/// Blocks of a cluster: two, or four where the pieces then come out more evenly.
constexpr int kFewBlocks = 2, kManyBlocks = 4;

/// Whether this kernel can run a shape: sizes in whole stages and units, room for enough warps,
/// sums that stay exact.
template <DType F>
bool suits(const Step& step, const BlockLimits& limits) {
  return step.hidden % (64 * kUnits) == 0 && step.gate_up.rows == 128 * step.num_units_down &&
         step.top_k <= kMaxPicks &&
         std::max(step.gate_up_expert_bytes, step.down_expert_bytes) <= UINT32_MAX &&
         step.top_k * step.num_units_down + 1 <= kMaxResidualAddends &&
         Layout<F>(kMinMultipliers, step.num_units, kFewBlocks).bytes + kStaticBytes<Step> <=
             static_cast<int>(limits.shared_bytes);
}

/// The warps of a block that multiply, of a kernel that suits.
template <DType F, typename AnyStep>
int num_multipliers(const AnyStep& step, const BlockLimits& limits) {
  const auto fits = [&](int count) {
    return Layout<F>(count, step.num_units, kFewBlocks).bytes + kStaticBytes<AnyStep> <=
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
         words <= kWordsOfBlock * (limits.num_units / kManyBlocks * kFewBlocks);
}

/// A kernel and how it is launched.
template <typename AnyStep>
struct SlicesLaunch {
  void (*kernel)(AnyStep) = nullptr;
  LaunchShape shape;
  /// What the busiest block multiplies, in pieces that it has alone.
  double pieces_of_block(const Step& step, int num_clusters) const {
    return static_cast<double>(ceil_div(step.top_k * step.num_units_down, num_clusters)) /
           shape.cluster;
  }
};

template <DType F, bool kHoldsAll, int kCluster, typename AnyStep>
SlicesLaunch<AnyStep> slices_launch(const AnyStep& step, const BlockLimits& limits,
                                    const Launch& launch) {
  const int multipliers = num_multipliers<F>(step, limits);
  SlicesLaunch<AnyStep> of{
      .shape = {
          .grid = dim3(static_cast<unsigned>(kCluster * std::max(1, limits.num_units / kCluster))),
          .num_threads = 32 * (multipliers + 1),
          .shared_bytes =
              static_cast<uint64_t>(Layout<F>(multipliers, step.num_units, kCluster).bytes),
          .cluster = kCluster,
          .programmatic = true,
          .leaves_l1 = launch.l1 == L1Form::kL1}};
  of.kernel = slice_experts<F, 4, kHoldsAll, kCluster, AnyStep>;
  if constexpr (kHoldsAll) {
    dispatch_up_to<4, kMaxExperts / 32>(ceil_div(step.num_experts, 32), [&]<int kMine>() {
      of.kernel = slice_experts<F, kMine, true, kCluster, AnyStep>;
    });
  }
  return of;
}

template <DType F, typename AnyStep>
void launch_slices(const AnyStep& step, bool holds_all, const BlockLimits& limits,
                   const Launch& launch, const char* row) {
  const auto run = [&](const SlicesLaunch<AnyStep>& of) {
    launch_kernel(row, of.kernel, step, of.shape, launch_stream(launch.stream));
  };
  if constexpr (!mail::kFolds<AnyStep>) {
    if (!holds_all) return run(slices_launch<F, false, kFewBlocks>(step, limits, launch));
  }
  const auto few = slices_launch<F, true, kFewBlocks>(step, limits, launch);
  if constexpr (F == DType::kMXFP4) {
    if (step.hidden % (kManyBlocks * 16 * kUnits) == 0) {
      auto many = slices_launch<F, true, kManyBlocks>(step, limits, launch);
      const double least = few.pieces_of_block(step, limits.num_units / kFewBlocks);
      // Asked for only where it may be better.
      const auto clusters = [&] {
        return clusters_at_once(row, reinterpret_cast<const void*>(many.kernel), many.shape);
      };
      if (many.pieces_of_block(step, limits.num_units / kManyBlocks) < least) {
        const int num_clusters = std::min(clusters(), limits.num_units / kManyBlocks);
        many.shape.grid = dim3(static_cast<unsigned>(kManyBlocks * num_clusters));
        if (many.pieces_of_block(step, num_clusters) < least) return run(many);
      }
    }
  }
  run(few);
}

}  // namespace moxie::slices
