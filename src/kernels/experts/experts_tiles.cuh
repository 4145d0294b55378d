// experts on CUDA for 2 to 16 tokens, MXFP4: gate/up with the clamped SwiGLU, then down with the
// weighted sum, bias and residual, each with its weights in registers (held_units.cuh).
//
// Work is the tiles of 16 rows of the experts that any token chose, in the order [pick][tile].
// Blocks are small, so that several run on an SM: while some multiply, others load. The warps of a
// block share a tile's columns and add their sums in shared memory. A block's tiles are neighbours,
// so that activations are seldom staged.
//
// Tiles of gate/up have 8 gate and 8 up rows of the same outputs. The outputs, times the weight of
// their expert, are written as the two BF16 parts that down multiplies. Down adds its sums to the
// residual stream, where order does not matter (kernels/residual.cuh). Down's blocks start as
// gate/up's blocks end, and read their first weights before they wait for the remaining blocks of
// gate/up.
#pragma once

#include "kernels/experts/experts_step.cuh"
#include "kernels/experts/tile_shares.h"
#include "kernels/gemv/held_units.cuh"

namespace moxie::tiles {

using namespace few_experts;
constexpr DType F = DType::kMXFP4;

/// The largest launch: more pairs than a warp has lanes, kernels of their own.
constexpr int kMostTokens = 16, kMostPicks = 64;
template <int kMost>
inline constexpr bool kIsLarge = kMost > kMaxTokens;

/// An expert of the launch, and which pairs (token * top_k + choice) chose it. An expert that more
/// than kMaxTokens tokens chose has two picks.
struct Pick {
  int32_t expert, count;
  uint8_t pairs[kMaxTokens], tokens[kMaxTokens];
};
template <int kMost>
struct Picks {
  static constexpr int kMax = kIsLarge<kMost> ? kMostPicks : kMaxPicks;
  Pick of[kMax];
  // Of pairs, negative for those with experts that are not held; ChosenBy has a large launch's.
  int32_t ids[kIsLarge<kMost> ? 1 : kMax];
  float weights[kMax];                                  // of pairs
  float factors[kIsLarge<kMost> ? kMost : kMaxTokens];  // of each token's activations
  int count;
  // Twice the cost of one tile of each of the picks before this one, summed; for more than kStaged
  // tokens.
  int costs_before[kMax + 1];
};
/// While a large launch's picks are made: the pairs that chose an expert, a bit each, and the
/// pairs' experts.
struct ChosenBy {
  uint32_t pairs[2][kMaxExperts];
  int32_t ids[kMostPicks];  // negative: not held
};

constexpr int kStaged = 2;  // staged tokens of a pick; the activations of others are read in place
constexpr int kBlocks = 4;  // on an SM

template <int kUnits>
inline constexpr int kMaxWarps = kUnits == 9 ? 5 : 15;

template <int kUnits, int kMost>
struct Shared {
  Picks<kMost> picks;
  __align__(16) std::byte inputs[kMaxWarps<kUnits>][kStaged][HeldUnits<kUnits>::kInputBytes];
  __align__(16) std::byte zeros[HeldUnits<kUnits>::kInputBytes];
  __align__(16) float sums[2][kMaxWarps<kUnits>][kMaxTokens][16];
  static_assert(sizeof(sums) >= sizeof(ChosenBy));

  /// In the sums' place, before there are any.
  __device__ __forceinline__ ChosenBy& chosen_by() { return *reinterpret_cast<ChosenBy*>(sums); }
};

/// The tiles of a block, one after another.
struct Walk {
  int tiles_of_pick, pick, tile, left;

  __device__ __forceinline__ Walk(int num_picks, int num_tiles) : tiles_of_pick(num_tiles) {
    const int all = num_picks * num_tiles, first = part_begin(all, gridDim.x, blockIdx.x);
    left = part_begin(all, gridDim.x, blockIdx.x + 1) - first;
    pick = first / num_tiles, tile = first - pick * num_tiles;
  }
  /// Shares of equal cost instead of equal numbers of tiles.
  template <int kMost>
  __device__ __forceinline__ Walk(const Picks<kMost>& picks, int num_tiles)
      : tiles_of_pick(num_tiles) {
    if (picks.count == 0) {
      pick = tile = left = 0;
      return;
    }
    const int lane = threadIdx.x % 32, all = picks.costs_before[picks.count] * num_tiles;
    const int before = lane < picks.count ? picks.costs_before[lane] * num_tiles : all + 1;
    int later = all + 1;
    if constexpr (kIsLarge<kMost>) {
      if (lane + 32 < picks.count) later = picks.costs_before[lane + 32] * num_tiles;
    }
    const auto find = [&](int cost, int& its_pick, int& its_tile) {
      its_pick = __popc(__ballot_sync(~0u, before <= cost)) - 1;
      if constexpr (kIsLarge<kMost>) its_pick += __popc(__ballot_sync(~0u, later <= cost));
      first_tile_from(cost, picks.costs_before, num_tiles, its_pick, its_tile);
    };
    int end_pick, end_tile;
    find(part_begin(all, gridDim.x, blockIdx.x), pick, tile);
    find(part_begin(all, gridDim.x, blockIdx.x + 1), end_pick, end_tile);
    left = (end_pick - pick) * num_tiles + end_tile - tile;
  }
  __device__ __forceinline__ void next() {
    if (++tile == tiles_of_pick) tile = 0, ++pick;
    --left;
  }
};

template <int kMost>
__device__ __forceinline__ Walk walk_of(const Picks<kMost>& picks, int num_tiles) {
  if constexpr (kMost <= kStaged) return Walk(picks.count, num_tiles);
  return Walk(picks, num_tiles);
}

/// Chooses for a token, by one warp, and publishes the choice: top_k words of an expert's number +
/// 1 and its weight, and one word of 1 and the norm's factor. All words are 0 before.
template <int kMine>
__device__ __forceinline__ void route(const Step& p, int token, float2* said,
                                      const float (&router_bias)[kMaxExperts / 32]) {
  const int lane = threadIdx.x % 32;
  float factor;
  const Choice choice = route_token<kMine>(p, token, router_bias, factor);
  const float weight = choice_weight(choice, p.top_k);
  const bool is_factor = lane == p.top_k;
  const uint32_t word = is_factor ? 1 : choice.id + 1;
  if (lane <= p.top_k) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(said + lane),
                 "l"(uint64_t{__float_as_uint(is_factor ? factor : weight)} << 32 | word)
                 : "memory");
  }
  if (lane < p.top_k) {
    p.chosen_ids[token * p.top_k + lane] = choice.id;
    p.chosen_weights[token * p.top_k + lane] = weight;
  }
}

/// Lists the held experts that the launch's tokens chose, each once; by one warp.
template <int kMost, bool kStagesMany>
__device__ __forceinline__ void pick_experts(const Step& p, Picks<kMost>& picks) {
  const int lane = threadIdx.x % 32, num_pairs = p.num_tokens * p.top_k;
  const int id = lane < num_pairs ? picks.ids[lane] : -1;
  uint32_t peers = __match_any_sync(~0u, id);
  const bool is_first = id >= 0 && __ffs(peers) - 1 == lane;
  const uint32_t firsts = __ballot_sync(~0u, is_first);
  if (lane == 0) picks.count = __popc(firsts);
  const int nth = __popc(firsts & ((1u << lane) - 1));
  if constexpr (kMost > kStaged) {
    const int cost = is_first ? tile_cost(__popc(peers), kStagesMany) : 0;
    int costs = cost;  // sum up to this lane
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int lower = __shfl_up_sync(~0u, costs, i);
      if (lane >= i) costs += lower;
    }
    if (is_first) picks.costs_before[nth] = costs - cost;
    if (lane == 31) picks.costs_before[__popc(firsts)] = costs;
  }
  if (!is_first) return;
  Pick& pick = picks.of[nth];
  pick.expert = id;
  pick.count = __popc(peers);
  for (int i = 0; i < kMaxTokens && peers != 0; ++i, peers &= peers - 1) {
    const int pair = __ffs(peers) - 1;
    pick.pairs[i] = static_cast<uint8_t>(pair);
    pick.tokens[i] = static_cast<uint8_t>(pair / p.top_k);
  }
}

/// The same for a large launch, from the pairs that chose each expert.
template <int kMost, bool kStagesMany>
__device__ __forceinline__ void pick_experts(const Step& p, Picks<kMost>& picks,
                                             const ChosenBy& chosen_by) {
  const int lane = threadIdx.x % 32, num_pairs = p.num_tokens * p.top_k;
  int num_picks = 0, cost_of_picks = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = lane + 32 * half;
    uint64_t peers = 0;
    int id = -1;
    if (pair < num_pairs) id = chosen_by.ids[pair];
    if (id >= 0) {
      peers = uint64_t{chosen_by.pairs[1][id]} << 32 | chosen_by.pairs[0][id];
    }
    // The pair itself and later ones: at most kMaxTokens of them are one pick.
    const uint64_t rest = peers >> pair << pair;
    const bool is_first = id >= 0 && __popcll(peers ^ rest) % kMaxTokens == 0;
    const int count = is_first ? min(__popcll(rest), kMaxTokens) : 0;
    const uint32_t firsts = __ballot_sync(~0u, is_first);
    const int nth = num_picks + __popc(firsts & ((1u << lane) - 1));
    const int cost = is_first ? tile_cost(count, kStagesMany) : 0;
    int costs = cost;  // sum up to this lane
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int lower = __shfl_up_sync(~0u, costs, i);
      if (lane >= i) costs += lower;
    }
    if (is_first) {
      picks.costs_before[nth] = cost_of_picks + costs - cost;
      Pick& pick = picks.of[nth];
      pick.expert = id;
      pick.count = count;
      uint64_t left = rest;
      for (int i = 0; i < count; ++i, left &= left - 1) {
        const int its_pair = __ffsll(static_cast<int64_t>(left)) - 1;
        pick.pairs[i] = static_cast<uint8_t>(its_pair);
        pick.tokens[i] = static_cast<uint8_t>(its_pair / p.top_k);
      }
    }
    num_picks += __popc(firsts);
    cost_of_picks += __shfl_sync(~0u, costs, 31);
  }
  if (lane == 0) picks.count = num_picks, picks.costs_before[num_picks] = cost_of_picks;
}

/// Waits for all tokens' choices, by one warp. Down may call this before it waits for the kernel
/// that writes them: a word that is not 0 has been written, and all words were cleared a layer
/// before.
template <int kMost, bool kStagesMany, int kUnits>
__device__ __forceinline__ void read_choices(const Step& p, Shared<kUnits, kMost>& shared) {
  const int lane = threadIdx.x % 32;
  Picks<kMost>& picks = shared.picks;
  const auto note_chosen = [&](int pair, int id) {
    shared.chosen_by().ids[pair] = id;
    if (id >= 0) atomicOr(&shared.chosen_by().pairs[pair / 32][id], 1u << pair % 32);
  };
  if (p.num_experts > 0) {
    for (int i = lane; i < p.num_tokens * (p.top_k + 1); i += 32) {
      const int token = i / (p.top_k + 1), k = i - token * (p.top_k + 1);
      uint64_t word;
      do {
        asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];"
                     : "=l"(word)
                     : "l"(p.said + token * p.num_words + k)
                     : "memory");
      } while (word == 0);
      const float value = __uint_as_float(static_cast<uint32_t>(word >> 32));
      if (k == p.top_k) {
        picks.factors[token] = value;
      } else {
        if constexpr (kIsLarge<kMost>) {
          note_chosen(token * p.top_k + k, static_cast<int>(word) - 1);
        } else {
          picks.ids[token * p.top_k + k] = static_cast<int>(word) - 1;
        }
        picks.weights[token * p.top_k + k] = value;
      }
    }
  } else {
    if constexpr (kIsLarge<kMost>) {
      for (int pair = lane; pair < p.num_tokens * p.top_k; pair += 32)
        note_chosen(pair, held_expert(p, p.expert_ids[pair])),
            picks.weights[pair] = p.expert_weights[pair];
      if (lane < kMost) picks.factors[lane] = 1;
    } else {
      if (lane < p.num_tokens * p.top_k)
        picks.ids[lane] = held_expert(p, p.expert_ids[lane]),
        picks.weights[lane] = p.expert_weights[lane];
      if (lane < kMaxTokens) picks.factors[lane] = 1;
    }
  }
  __syncwarp();
  if constexpr (kIsLarge<kMost>) {
    pick_experts<kMost, kStagesMany>(p, picks, shared.chosen_by());
  } else {
    pick_experts<kMost, kStagesMany>(p, picks);
  }
}

/// Prepares read_choices(), by the same warp.
template <int kUnits, int kMost>
__device__ __forceinline__ void clear_choices(Shared<kUnits, kMost>& shared) {
  if constexpr (kIsLarge<kMost>) {
    uint32_t* pairs = &shared.chosen_by().pairs[0][0];
#pragma unroll
    for (int i = 0; i < 2 * kMaxExperts / 32; ++i) pairs[threadIdx.x % 32 + 32 * i] = 0;
    __syncwarp();
  }
}

/// The warp's units of the block's current tile; null if no tile is left.
template <int kUnits, int kMost>
__device__ __forceinline__ const std::byte* units_at(const PackedMatrix& matrix,
                                                     int64_t expert_bytes, int units_of_row,
                                                     const Picks<kMost>& picks, const Walk& walk) {
  if (walk.left == 0) return nullptr;
  return matrix.data + picks.of[walk.pick].expert * expert_bytes +
         (int64_t{walk.tile} * units_of_row + threadIdx.x / 32 * kUnits) * kUnitBytes<F>;
}

/// Multiplies a block's tiles, of kMost tokens at most. `held` has the first tile or is about to
/// load it. input_of(pick, j): the number of the activations of the pick's j-th token. stage(input,
/// to): copies these, over the warp's units, to shared memory; with kAhead all are there from the
/// start. lane_inputs(input, staged): the lane's columns of them, from shared memory if they are
/// staged. In picks of more than kStaged tokens, the first kStaged are staged if kStagesMany.
/// early(pick, tile, i): what end(pick, tile, i, early, sum) needs besides the sums; sum(row) is of
/// token i / kEnds of the pick. end() is called for i < kEnds * count.
template <int kMost, bool kAhead, bool kStagesMany, int kUnits, int kEnds, typename InputOf,
          typename Stage, typename LaneInputs, typename Early, typename End>
__device__ __forceinline__ void multiply_tiles(const PackedMatrix& matrix, int64_t expert_bytes,
                                               int units_of_row, Walk& walk,
                                               HeldUnits<kUnits>& held,
                                               Shared<kUnits, kMost>& shared, InputOf&& input_of,
                                               Stage&& stage, LaneInputs&& lane_inputs,
                                               Early&& early, End&& end) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int i = threadIdx.x;
  int staged = -1;  // the pick whose activations the warp has staged
#pragma unroll 1
  for (int turn = 0; walk.left > 0; ++turn) {
    const int nth = walk.pick, tile = walk.tile;
    const Pick& pick = shared.picks.of[nth];
    const int count = pick.count;
    decltype(early(pick, tile, i)) known{};
    if (i < kEnds * count) known = early(pick, tile, i);
    float(&sums)[kMaxTokens][16] = shared.sums[turn % 2][warp];
    const auto staged_of = [&](int j) -> const std::byte* {
      return shared.inputs[warp][kAhead ? input_of(pick, j) : j];
    };
    if (!kAhead && (kStagesMany || count <= kStaged) && nth != staged) {
      __syncwarp();
      for (int j = 0; j < min(count, kStaged); ++j)
        stage(input_of(pick, j), shared.inputs[warp][j]);
      __syncwarp();
      staged = nth;
    }
    walk.next();
    const std::byte* next =
        units_at<kUnits>(matrix, expert_bytes, units_of_row, shared.picks, walk);
    const auto store_groups = [&]<int kGroups>(const float(&products)[kGroups][2]) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const int j = 4 * c + lane % 4;
        if (j < count) sums[j][lane / 4] = products[c][0], sums[j][lane / 4 + 8] = products[c][1];
      }
    };
    if (kMost == kStaged || count <= kStaged) {
      // One token uses the code for two: code of its own would double the size.
      const float sum = held.multiply_two(staged_of(0), count == 2 ? staged_of(1) : shared.zeros,
                                          shared.zeros, next);
      if (lane % 4 / 2 < count) sums[lane % 4 / 2][lane / 4 + 8 * (lane % 2)] = sum;
    } else if constexpr (kMost > kStaged) {
      const auto inputs_of = [&](int j) {
        return lane_inputs(input_of(pick, j), kStagesMany && j < kStaged ? staged_of(j) : nullptr);
      };
      if (kMost <= 4 || count <= 4) {
        const auto of_lane = inputs_of(min(lane / 8, count - 1));
        float products[1][2];
        held.multiply([&](int, int n) { return of_lane(n); }, products, next);
        store_groups(products);
      } else if constexpr (kMost > 4) {
        const auto first = inputs_of(lane / 8);
        const auto second = lane_inputs(input_of(pick, min(4 + lane / 8, count - 1)), nullptr);
        float products[2][2];
        held.multiply([&](int c, int n) { return c == 0 ? first(n) : second(n); }, products, next);
        store_groups(products);
      }
    }
    __syncthreads();
    for (int e = i; e < kEnds * count; e += blockDim.x) {
      if (e != i) known = early(pick, tile, e);
      end(pick, tile, e, known, [&](int row) {
        float sum = 0;
#pragma unroll 5
        for (int w = 0; w < num_warps; ++w) sum += shared.sums[turn % 2][w][e / kEnds][row];
        return sum;
      });
    }
  }
}

/// Copies a warp's share of the activations to shared memory.
template <int kBytes>
__device__ __forceinline__ void stage_parts(const std::byte* parts, std::byte* to) {
#pragma unroll
  for (int i = 16 * (threadIdx.x % 32); i < kBytes; i += 512)
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(parts + i);
}

template <int kUnits, int kMine, int kMost>
__global__ void __launch_bounds__(32 * kMaxWarps<kUnits>, kUnits == 9 ? kBlocks : 1)
    gate_up_tiles(const __grid_constant__ Step p) {
  constexpr bool kFolds = kMine > 0;
  touch_params(p);
  __shared__ Shared<kUnits, kMost> shared;
  Picks<kMost>& picks = shared.picks;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  clear_zeros(shared.zeros);
  const bool is_router = kFolds && warp == 0 && static_cast<int>(blockIdx.x) < p.num_tokens;
  float router_bias[kMaxExperts / 32] = {};
  if (is_router) load_router_bias(p, router_bias);
  if (warp == 0) clear_choices(shared);

  wait_for_previous();
  launch_next();
  if constexpr (kFolds) {
    if (is_router) {
      for (int t = blockIdx.x; t < p.num_tokens; t += gridDim.x)
        route<kMine>(p, t, p.said + t * p.num_words, router_bias);
    }
    const int to_clear = p.num_tokens * p.num_words;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < to_clear; i += gridDim.x * blockDim.x)
      p.next_logits[i] = make_float2(0, 0);
  }
  const auto stage = [&](int token, std::byte* to) {
    const int64_t at = int64_t{token} * p.hidden;
    if constexpr (kFolds) {
      stage_parts<HeldUnits<kUnits>::kInputBytes>(
          p.parts + 4 * at + warp * HeldUnits<kUnits>::kInputBytes, to);
    } else {
      Eight none;
      float squares[1];
      stage_activations<1, false>(p.t + at, p.hidden, warp * kUnits * 64, kUnits, 1,
                                  kActivationScale<F>, nullptr, none, nullptr, to, lane, 32,
                                  squares);
    }
  };
  if constexpr (kMost == kStaged) {  // all that a pick can need, before the choice is read
    for (int t = 0; t < min(p.num_tokens, kStaged); ++t) stage(t, shared.inputs[warp][t]);
  }
  if (warp == 0) read_choices<kMost, kFolds>(p, shared);
  __syncthreads();

  Walk walk = walk_of<kMost>(picks, p.gate_up.rows / 16);
  HeldUnits<kUnits> held;
  held.load(units_at<kUnits>(p.gate_up, p.gate_up_expert_bytes, p.num_units, picks, walk));
  struct Bias {
    float gate, up;
  };
  multiply_tiles<kMost, kMost == kStaged, kFolds, kUnits, 8>(
      p.gate_up, p.gate_up_expert_bytes, p.num_units, walk, held, shared,
      [](const Pick& pick, int j) { return int{pick.tokens[j]}; }, stage,
      [&](int token, const std::byte* staged) {
        const int64_t at = int64_t{token} * p.hidden;
        if constexpr (kFolds) {
          const std::byte* parts = p.parts + 4 * at + warp * HeldUnits<kUnits>::kInputBytes;
          return LanePart(staged != nullptr ? staged : parts);
        } else {
          return LaneFloats(p.t + at + warp * kUnits * 64);
        }
      },
      [&](const Pick& pick, int tile, int i) {
        const float* bias =
            p.gate_up_bias + static_cast<int64_t>(pick.expert) * p.gate_up.rows + tile * 16 + i % 8;
        return Bias{load_early(bias), load_early(bias + 8)};
      },
      [&](const Pick& pick, int tile, int i, const Bias& bias, auto&& sum) {
        const int j = i / 8, row = i % 8, pair = pick.pairs[j], output = tile * 8 + row;
        const float factor = kSumScale<F> * picks.factors[pick.tokens[j]];
        write_half<F>(p, pair, picks.weights[pair], output, sum(row) * factor + bias.gate,
                      sum(row + 8) * factor + bias.up);
      });
}

template <int kUnits, int kMost>
__global__ void __launch_bounds__(32 * kMaxWarps<kUnits>, kUnits == 9 ? kBlocks : 1)
    down_tiles(const __grid_constant__ Step p) {
  touch_params(p);
  __shared__ Shared<kUnits, kMost> shared;
  Picks<kMost>& picks = shared.picks;
  const int warp = threadIdx.x / 32;
  clear_zeros(shared.zeros);
  if (warp == 0) {
    clear_choices(shared);
    read_choices<kMost, true>(p, shared);
  }
  __syncthreads();
  Walk walk = walk_of<kMost>(picks, p.hidden / 16);
  HeldUnits<kUnits> held;
  held.load(units_at<kUnits>(p.down, p.down_expert_bytes, p.num_units_down, picks, walk));

  wait_for_previous();
  launch_next();
  multiply_tiles<kMost, false, true, kUnits, 16>(
      p.down, p.down_expert_bytes, p.num_units_down, walk, held, shared,
      [](const Pick& pick, int j) { return int{pick.pairs[j]}; },
      [&](int pair, std::byte* to) {
        stage_parts<HeldUnits<kUnits>::kInputBytes>(
            p.halves + (int64_t{pair} * p.num_units_down + warp * kUnits) * 256, to);
      },
      [&](int pair, const std::byte* staged) {
        const std::byte* halves =
            p.halves + (int64_t{pair} * p.num_units_down + warp * kUnits) * 256;
        return LanePart(staged != nullptr ? staged : halves);
      },
      [&](const Pick& pick, int tile, int i) {
        return load_early(p.down_bias + static_cast<int64_t>(pick.expert) * p.hidden + tile * 16 +
                          i % 16);
      },
      [&](const Pick& pick, int tile, int i, float bias, auto&& sum) {
        const int j = i / 16, row = i % 16;
        add_to_residual(p.x + int64_t{pick.tokens[j]} * p.hidden + tile * 16 + row,
                        sum(row) * kSumScale<F> + picks.weights[pick.pairs[j]] * bias);
      });
}

/// Units of a warp, for matrix rows of num_units; 0 if blocks of few warps cannot share them
/// evenly.
constexpr int units_of_warp(int num_units) {
  return num_units % 9 == 0 && num_units / 9 <= kMaxWarps<9> ? 9
         : num_units <= kMaxWarps<1>                         ? 1
                                                             : 0;
}

/// The most tokens of one launch.
constexpr int most_tokens(int top_k) { return std::min(kMostTokens, kMostPicks / top_k); }

/// Tokens of one launch; 0 for shapes that this kernel cannot run.
inline int tokens_of_launch(const Step& p) {
  const bool fits = p.gate_up.format == F && p.hidden % 64 == 0 &&
                    p.gate_up.rows == 128 * p.num_units_down && p.top_k < kMaxPicks &&
                    p.top_k + 1 <= kMaxResidualAddends && units_of_warp(p.num_units) > 0 &&
                    units_of_warp(p.num_units_down) > 0;
  if (!fits) return 0;
  const int few = std::min(kMaxTokens, kMaxPicks / p.top_k);
  return p.num_tokens > few && p.gate_up.num_experts <= kMaxExperts ? most_tokens(p.top_k) : few;
}

inline void launch_one(void (*kernel)(Step), const Step& p, int num_warps, int num_tiles,
                       const BlockLimits& limits, cudaStream_t stream, const char* row) {
  int blocks = 0;
  check_launched(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 32 * num_warps, 0),
                 row);
  const int most = p.num_tokens * p.top_k * num_tiles;
  launch_kernel(row, kernel, p,
                {.grid = dim3(static_cast<unsigned>(
                     std::min(most, std::min(blocks, kBlocks) * limits.num_units))),
                 .num_threads = 32 * num_warps,
                 .programmatic = true,
                 .leaves_l1 = true},
                stream);
}

inline void launch_tiles(const Step& p, const BlockLimits& limits, cudaStream_t stream,
                         const char* row) {
  const auto with_units = [](int num_units, auto&& launch) {
    const int units = units_of_warp(num_units);
    units == 9 ? launch.template operator()<9>(num_units / 9)
               : launch.template operator()<1>(num_units);
  };
  // Kernels for two, four, eight and sixteen tokens: loading instructions is much of a short
  // layer's time.
  const int most = p.num_tokens * p.top_k > kMaxPicks ? kMostTokens : p.num_tokens;
  dispatch_up_to<kStaged, 4, kMaxTokens, kMostTokens>(most, [&]<int kMost>() {
    with_units(p.num_units, [&]<int kUnits>(int num_warps) {
      dispatch_up_to<0, 4, kMaxExperts / 32>(ceil_div(p.num_experts, 32), [&]<int kMine>() {
        launch_one(gate_up_tiles<kUnits, kMine, kMost>, p, num_warps, p.gate_up.rows / 16, limits,
                   stream, row);
      });
    });
    with_units(p.num_units_down, [&]<int kUnits>(int num_warps) {
      launch_one(down_tiles<kUnits, kMost>, p, num_warps, p.hidden / 16, limits, stream, row);
    });
  });
}

}  // namespace moxie::tiles
