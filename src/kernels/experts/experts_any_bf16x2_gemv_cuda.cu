// experts on CUDA for a few tokens, three rows. One token runs on the kernel of experts_slices.cuh,
// several on those of experts_tiles.cuh, if these support the sizes and the format. All else runs
// on two kernels here: gate/up with the clamped SwiGLU, then down with the weighted sum, bias and
// residual. Each expert that any token chose is read once a launch.
//
// gate_up: a team of two warps makes whole tiles (8 gate and 8 up rows of the same outputs, so that
// a lane has both); the tokens' activations are staged once a block. Its outputs, times the weight
// of their expert, are written as the two BF16 parts that `down` multiplies: `halves` [pair][unit
// of 64] [block of 32][part][32], where a pair is token * top_k + choice; of one token the pairs
// whose experts are held, one behind another. down: a cluster makes one tile of 16 outputs; its
// blocks share the experts, the warps of a block share the columns. Sums are added in distributed
// shared memory, in a fixed order.
#include "kernels/cluster.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/experts/experts_slices.cuh"
#include "kernels/experts/experts_tiles.cuh"
#include "kernels/gemv/cuda_times.h"
#include "kernels/gemv/slice_gemv.cuh"

namespace moxie {
namespace {

using namespace few_experts;

constexpr int kMaxGateUpTeams = 12, kMaxGateUpWarps = 2 * kMaxGateUpTeams;
constexpr int kDownCluster = 4, kDownWarps = 5;

// The held experts that a launch's pairs chose, each once, in the order of their first pair. Lane i
// of a warp represents pair i.
struct Chosen {
  int32_t id;       // number of this lane's expert; negative past the end and for experts not held
  uint32_t peers;   // lanes with the same expert
  uint32_t firsts;  // lanes that are the first of their expert
  int32_t num_experts;

  __device__ __forceinline__ Chosen(const Step& p, int num_pairs) {
    const int lane = threadIdx.x % 32;
    id = lane < num_pairs ? held_expert(p, p.expert_ids[lane]) : -1;
    peers = __match_any_sync(~0u, id);
    firsts = __ballot_sync(~0u, id >= 0 && __ffs(peers) - 1 == lane);
    num_experts = __popc(firsts);
  }
  /// Lane of the first pair of the i-th expert; called by the whole warp.
  __device__ __forceinline__ int first_of(int i) const {
    const uint32_t lane = threadIdx.x % 32;
    const bool is_it = (firsts >> lane & 1) != 0 && __popc(firsts & ((1u << lane) - 1)) == i;
    return __ffs(__ballot_sync(~0u, is_it)) - 1;
  }
};

template <DType F>
inline constexpr int kGateUpRingBytes = Pipeline<F>::kStages* Pipeline<F>::kStageBytes;
template <DType F>
inline constexpr int kDownStages = F == DType::kF32 ? 2 : 3;
/// With one token, a stage of `down` has the token's activations behind the weights. With more
/// tokens a lane reads the activations in place: room for all of them would leave no room for
/// warps.
template <DType F, int kTokens>
inline constexpr int kDownStageBytes = Pipeline<F>::kStageBytes +
                                       (kTokens == 1 ? 256 * Pipeline<F>::kUnroll : 0);

// A barrier of the two warps of a team.
__device__ __forceinline__ void team_barrier(int team) {
  asm volatile("bar.sync %0, 64;" ::"r"(team + 1) : "memory");
}

template <DType F, int kTokens>
__global__ void __launch_bounds__(32 * kMaxGateUpWarps)
    gate_up_gemv(const __grid_constant__ Step p) {
  constexpr int kUnroll = Pipeline<F>::kUnroll, kStages = Pipeline<F>::kStages;
  constexpr int kGroups = kGroupsOf<kTokens>;
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  const int num_warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, q = lane % 4;
  const int num_units = (p.hidden + 63) / 64;
  const auto num_tiles = static_cast<uint32_t>(p.gate_up.rows / 16);
  Ring<kStages> ring(shared + warp * kGateUpRingBytes<F>, Pipeline<F>::kStageBytes);
  std::byte* staged = shared + num_warps * kGateUpRingBytes<F>;
  // Two warps share a tile's columns; the second hands its sums to the first.
  const int num_teams = num_warps / 2, team = warp / 2, part = warp % 2;
  auto* handed = reinterpret_cast<float*>(staged + kUnitActivationBytes<kTokens> * num_units) +
                 team * (2 * kGroups * 32);
  const int num_stages = (num_units + kUnroll - 1) / kUnroll, cut = (num_stages + 1) / 2 * kUnroll;
  const int first_unit = part == 0 ? 0 : min(cut, num_units);
  const int my_units = part == 0 ? min(cut, num_units) : num_units - first_unit;

  wait_for_previous();
  launch_next();
  const Chosen chosen(p, p.num_tokens * p.top_k);
  const int num_items = chosen.num_experts * static_cast<int>(num_tiles);
  // Teams of one block take neighbouring tiles.
  const int stride = gridDim.x * num_teams;
  int item = blockIdx.x * num_teams + team;
  const int num_rounds = item < num_items ? (num_items - 1 - item) / stride + 1 : 0;

  // The copies run ahead of the products, also from one tile into the next.
  UnitCursor<F> cursor;
  int ahead_item = item, ahead_units = 0, ahead_rounds = num_rounds;
  const auto next_tile = [&] {
    const int nth = static_cast<int>(static_cast<uint32_t>(ahead_item) / num_tiles);
    const int expert = __shfl_sync(~0u, chosen.id, chosen.first_of(nth));
    cursor = UnitCursor<F>(p.gate_up, p.gate_up_expert_bytes, expert,
                           ahead_item - nth * static_cast<int>(num_tiles), first_unit);
    ahead_units = my_units;
    ahead_item += stride;
    --ahead_rounds;
  };
  const auto fill = [&](uint32_t stage) {
    if (ahead_units > 0) cursor.copy_stage(stage, ahead_units);
    ahead_units -= kUnroll;
    if (ahead_units <= 0 && ahead_rounds > 0) next_tile();
  };
  if (ahead_rounds > 0) next_tile();
  // The activations are loaded first: behind the weights they would wait for all of these.
  Eight early, none;
  early.load(p.t, p.hidden, 0, 8 * num_units, threadIdx.x);
  ring.start(fill);

  float squares[kTokens];
  stage_activations<kTokens, false>(p.t, p.hidden, 0, num_units, p.num_tokens, kActivationScale<F>,
                                    nullptr, none, &early, staged, threadIdx.x, blockDim.x,
                                    squares);
  __syncthreads();

  for (int round = 0; round < num_rounds; ++round, item += stride) {
    // What the end of the round needs is loaded before the products.
    const int nth = static_cast<int>(static_cast<uint32_t>(item) / num_tiles);
    const int tile_idx = item - nth * static_cast<int>(num_tiles), output = tile_idx * 8 + g;
    const int first = chosen.first_of(nth);
    const int expert = __shfl_sync(~0u, chosen.id, first);
    const uint32_t pairs = __shfl_sync(~0u, chosen.peers, first);
    const float* bias =
        p.gate_up_bias + static_cast<int64_t>(expert) * p.gate_up.rows + tile_idx * 16 + g;
    const float gate_bias = load_early(bias), up_bias = load_early(bias + 8);
    int pair[kGroups];
    float weight[kGroups];
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      // This lane's token, and the pair in which it chose the expert; -1: none.
      const int token = 4 * c + q;
      const uint32_t of_token =
          token < p.num_tokens ? pairs >> (token * p.top_k) & ((1u << p.top_k) - 1) : 0;
      pair[c] = of_token == 0 ? -1 : token * p.top_k + __ffs(of_token) - 1;
      if (of_token != 0) weight[c] = load_early(p.expert_weights + pair[c]);
    }

    TileProduct<F, kTokens> product(staged + first_unit * kUnitActivationBytes<kTokens>,
                                    p.num_tokens);
    for (int left = my_units; left > 0; left -= kUnroll) product.add_stage(ring.next(fill), left);
    product.finish();
    auto& sums = product.sums;
    if (part == 1) {
#pragma unroll
      for (int i = 0; i < 2 * kGroups; ++i) handed[32 * i + lane] = sums[i / 2][i % 2];
    }
    team_barrier(team);
    if (part == 0) {
#pragma unroll
      for (int i = 0; i < 2 * kGroups; ++i) sums[i / 2][i % 2] += handed[32 * i + lane];
    }
    if (round + 1 < num_rounds) team_barrier(team);  // before `handed` is written again
    if (part == 1) continue;

    if (output < p.intermediate) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        if (pair[c] < 0) continue;
        write_half<F>(p, kTokens == 1 ? nth : pair[c], weight[c], output,
                      sums[c][0] * kSumScale<F> + gate_bias, sums[c][1] * kSumScale<F> + up_bias);
      }
    }
    __syncwarp();
  }
}

template <DType F, int kTokens>
__global__ void __launch_bounds__(32 * kDownWarps) down_gemv(const __grid_constant__ Step p) {
  constexpr int kUnroll = Pipeline<F>::kUnroll, kStages = kDownStages<F>;
  constexpr int kGroups = kGroupsOf<kTokens>, kWidth = 4 * kGroups;
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ float sums_of_warps[kDownWarps][16][kWidth];
  __shared__ float sums_of_blocks[kDownCluster][16][kWidth];  // the first block's are read
  ClusterOfBlocks cluster;
  cluster.arrive();
  const int rank = cluster.rank(), tile = blockIdx.x / kDownCluster;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  constexpr int kStageBytes = kDownStageBytes<F, kTokens>;
  Ring<kStages> ring(shared + warp * kStages * kStageBytes, kStageBytes);
  const int num_stages = (p.num_units_down + kUnroll - 1) / kUnroll;
  const int begin = part_begin(num_stages, kDownWarps, warp) * kUnroll;
  const int num_units =
      min(p.num_units_down, part_begin(num_stages, kDownWarps, warp + 1) * kUnroll) - begin;

  // `route` ran two kernels before this one, so that its choices may be read before the wait.
  const Chosen chosen(p, num_tokens * p.top_k);
  const int num_rounds =
      rank < chosen.num_experts ? (chosen.num_experts - 1 - rank) / kDownCluster + 1 : 0;
  // The copies of weights and the copies of activations each walk over the rounds' units: the first
  // weights start before the wait, the activations after it.
  struct Walk {
    int nth, unit, rounds;
  };
  UnitCursor<F> cursor;
  Walk weights{rank, 0, num_units > 0 ? num_rounds : 0}, inputs = weights;
  const auto step_on = [&](Walk& walk) {
    walk.unit += kUnroll;
    if (walk.unit >= num_units) walk.unit = 0, walk.nth += kDownCluster, --walk.rounds;
  };
  const auto fill_weights = [&](uint32_t stage) {
    if (weights.rounds == 0) return;
    if (weights.unit == 0) {
      const int expert = __shfl_sync(~0u, chosen.id, chosen.first_of(weights.nth));
      cursor = UnitCursor<F>(p.down, p.down_expert_bytes, expert, tile, begin);
    }
    cursor.copy_stage(stage, num_units - weights.unit);
    step_on(weights);
  };
  const std::byte* halves = p.halves + begin * 256;
  const auto fill_inputs = [&](uint32_t stage) {
    if (kTokens > 1 || inputs.rounds == 0) return;
    // One token's outputs lie in the order of the chosen experts; units are contiguous, 16 lanes
    // each.
    const int count = num_units - inputs.unit;
    const uint32_t to = stage + Pipeline<F>::kStageBytes + 16 * lane;
    const std::byte* from =
        halves + 256 * (inputs.nth * p.num_units_down + inputs.unit) + 16 * lane;
#pragma unroll
    for (int i = 0; i < (kUnroll + 1) / 2; ++i) {
      if (2 * i + lane / 16 < min(count, kUnroll)) copy_async_16(to + 512 * i, from + 512 * i);
    }
    step_on(inputs);
  };
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) fill_weights(ring.address + i * kStageBytes);
  // This thread's output, and what its block adds to it besides products: the biases of the block's
  // own experts; in the first block also the residual, which `out`, before `route`, wrote last.
  static_assert(32 * kDownWarps >= 16 * kMaxTokens, "an output a thread");
  const int my_row = threadIdx.x % 16, my_token = threadIdx.x / 16, my_output = 16 * tile + my_row;
  const bool is_output = my_token < num_tokens && my_output < p.hidden;
  struct Term {
    float weight, bias;
  };
  const auto bias_of = [&](int nth) {
    const int first = chosen.first_of(nth);
    const int64_t expert = __shfl_sync(~0u, chosen.id, first);
    const uint32_t pairs = __shfl_sync(~0u, chosen.peers, first);
    const uint32_t of_token = is_output ? pairs >> (my_token * p.top_k) & ((1u << p.top_k) - 1) : 0;
    Term term{0, 0};
    if (of_token != 0) {
      term.weight = load_early(p.expert_weights + my_token * p.top_k + __ffs(of_token) - 1);
      term.bias = load_early(p.down_bias + expert * p.hidden + my_output);
    }
    return term;
  };
  float2* my_x = p.x + static_cast<int64_t>(my_token) * p.hidden + my_output;
  Term first_bias{0, 0};
  float residual = 0;
  if (num_rounds > 0) first_bias = bias_of(rank);
  if (rank == 0 && is_output) residual = whole(load_early(my_x));

  wait_for_previous();
  launch_next();
  ring.start(fill_inputs);  // the first group holds all weights so far

  TileProduct<F, kTokens> product(nullptr, num_tokens);
  auto& sums = product.sums;
  const auto fill = [&](uint32_t stage) {
    fill_weights(stage);
    fill_inputs(stage);
  };
  for (int round = 0; round < num_rounds; ++round) {
    if constexpr (kTokens == 1) {
      for (int unit = 0; unit < num_units; unit += kUnroll) {
        const std::byte* stage = ring.next(fill);
        product.read_from(stage + Pipeline<F>::kStageBytes);
        product.add_stage(stage, num_units - unit);
      }
    } else {
      // The activations of this lane's column; null: the token did not choose the expert.
      const std::byte* from[kGroups] = {};
      const uint32_t pairs =
          __shfl_sync(~0u, chosen.peers, chosen.first_of(rank + round * kDownCluster));
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const int token = 4 * c + g / 2;
        const uint32_t of_token =
            token < num_tokens ? pairs >> (token * p.top_k) & ((1u << p.top_k) - 1) : 0;
        if (of_token == 0) continue;
        const int pair = token * p.top_k + __ffs(of_token) - 1;
        from[c] = halves + 256 * (pair * p.num_units_down) + 64 * (g % 2) + 16 * q;
      }
      for (int unit = 0; unit < num_units; unit += kUnroll) {
        uint4 activations[kUnroll][2][kGroups] = {};
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
          for (int c = 0; c < kGroups; ++c) {
            if (from[c] == nullptr || unit + i >= num_units) continue;
            const std::byte* at = from[c] + 256 * (unit + i);
            activations[i][0][c] = *reinterpret_cast<const uint4*>(at);
            activations[i][1][c] = *reinterpret_cast<const uint4*>(at + 128);
          }
        }
        const std::byte* at = ring.next(fill);
        const std::byte* codes = at + 16 * lane;
        const std::byte* scales = at + kCodeBytes<F> + lane / 4 * (4 * Format<F>::kScaleWords);
#pragma unroll
        for (int i = 0; i < kUnroll; ++i) {
          if (i > 0 && unit + i >= num_units) break;
          Unit<F> of_unit;
          read_unit<F>(of_unit, codes + i * kUnitBytes<F>, scales + i * kUnitBytes<F>);
          multiply_unit<F, kGroups>(
              of_unit, [&](int block, int c) { return activations[i][block][c]; }, sums);
        }
      }
    }
  }
  product.finish();

#pragma unroll
  for (int c = 0; c < kGroups; ++c) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sums_of_warps[warp][g + 8 * half][4 * c + q] = sums[c][half];
  }
  float added = residual + first_bias.weight * first_bias.bias;
  for (int round = 1; round < num_rounds; ++round) {
    const Term term = bias_of(rank + round * kDownCluster);
    added += term.weight * term.bias;
  }
  cluster.wait();  // no block writes to a block that has not begun
  __syncthreads();
  if (is_output) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kDownWarps; ++w) sum += sums_of_warps[w][my_row][my_token];
    cluster.in_block(&sums_of_blocks[0][0][0], 0)[(rank * 16 + my_row) * kWidth + my_token] =
        sum * kSumScale<F> + added;
  }
  cluster.arrive();
  if (rank != 0) return;  // the rest reads only the first block's own memory
  cluster.wait();
  if (is_output) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kDownCluster; ++r) sum += sums_of_blocks[r][my_row][my_token];
    *my_x = split_residual(sum);
  }
}

// The kernels' parameters for `num_tokens` tokens from `first` on.
Step step_of(const ExpertsParams& p, int32_t first, int32_t num_tokens) {
  const RouteFold& fold = p.fold;
  const int64_t pair = int64_t{first} * p.top_k, row = int64_t{first} * p.hidden;
  Step step{.gate_up = p.gate_up,
            .down = p.down,
            .gate_up_expert_bytes = p.gate_up.expert_bytes(),
            .down_expert_bytes = p.down.expert_bytes(),
            .gate_up_bias = p.gate_up_bias,
            .down_bias = p.down_bias,
            .t = p.t + row,
            .expert_ids = p.expert_ids + pair,
            .expert_weights = p.expert_weights + pair,
            .x = reinterpret_cast<float2*>(p.x) + row,
            .alpha = p.swiglu_alpha,
            .limit = p.swiglu_limit,
            .num_tokens = num_tokens,
            .hidden = p.hidden,
            .top_k = p.top_k,
            .num_units = p.gate_up.num_units(),
            .num_units_down = p.down.num_units(),
            .num_experts = 0,
            .num_words = 0,
            .rms_eps = fold.rms_eps,
            .parts = nullptr,
            .router_bias = fold.bias,
            .logits = nullptr,
            .next_logits = nullptr,
            .squares = nullptr,
            .chosen_ids = nullptr,
            .chosen_weights = nullptr,
            .halves = p.launch.workspace,
            .said = nullptr,
            .intermediate = p.intermediate,
            .first_expert = p.first_expert};
  if (p.forms.router == RouterForm::kSums) {
    const int64_t word = int64_t{first} * fold.words_of_token();
    auto* logits = reinterpret_cast<float2*>(fold.sums) + word;
    step.num_experts = fold.weight.rows;
    step.num_words = fold.words_of_token();
    step.logits = logits;
    step.next_logits = reinterpret_cast<float2*>(fold.next_sums) + word;
    step.said = logits + step.num_experts;
    step.parts = fold.parts + 4 * row;
    step.squares = fold.squares + row / 16;
    step.chosen_ids = p.expert_ids + pair;
    step.chosen_weights = p.expert_weights + pair;
  }
  return step;
}

// Room for a group of tokens of a launch.
uint64_t halves_bytes(const ExpertsParams& p, int32_t num_tokens) {
  return 256ull * static_cast<uint64_t>(num_tokens) * p.top_k * p.down.num_units();
}
// The same for the largest group.
uint64_t halves_bytes(const ExpertsParams& p) {
  return halves_bytes(p, std::min(kMaxTokens, kMaxPicks / p.top_k));
}

// Columns past the intermediate size are read as padding of the last unit.
void clear_padding(const ExpertsParams& p, cudaStream_t stream, const char* row) {
  if (p.intermediate % 64 != 0)
    check_launched(cudaMemsetAsync(p.launch.workspace, 0, halves_bytes(p), stream), row);
}

template <DType F, int kTokens>
void launch_experts(const Step& step, const BlockLimits& limits, cudaStream_t stream) {
  constexpr const char* kRow = "experts_any_bf16x2_gemv_cuda";
  // All tiles of all chosen experts at once, if a block has enough warps for that.
  const uint64_t staged = static_cast<uint64_t>(kUnitActivationBytes<kTokens>) *
                          static_cast<uint64_t>(step.gate_up.num_units());
  const int wanted = ceil_div(step.gate_up.num_tiles() * step.top_k, limits.num_units);
  const uint64_t a_team = 2 * kGateUpRingBytes<F> + 4 * 2 * kGroupsOf<kTokens> * 32;
  const int room = static_cast<int>((limits.shared_bytes - staged) / a_team);
  const int num_teams = std::clamp(std::min(wanted, room), 1, kMaxGateUpTeams);
  launch_kernel(kRow, gate_up_gemv<F, kTokens>, step,
                {.grid = dim3(static_cast<unsigned>(limits.num_units)),
                 .num_threads = 64 * num_teams,
                 .shared_bytes = staged + a_team * static_cast<uint64_t>(num_teams),
                 .programmatic = true},
                stream);
  launch_kernel(kRow, down_gemv<F, kTokens>, step,
                {.grid = dim3(static_cast<unsigned>(step.down.num_tiles() * kDownCluster)),
                 .num_threads = 32 * kDownWarps,
                 .shared_bytes = static_cast<uint64_t>(kDownWarps * kDownStages<F> *
                                                       kDownStageBytes<F, kTokens>),
                 .cluster = kDownCluster,
                 .programmatic = true},
                stream);
}

}  // namespace

const char* experts_any_bf16x2_gemv_cuda_refuses(const ExpertsParams& p) {
  // Up to so many tokens a format of fewer bits would gain nothing. In narrow models MXFP8 gains
  // nothing for any number.
  const bool is_rounded = p.activation != DType::kBF16 &&
                          (p.activation != DType::kMXFP8 || p.hidden >= kLeastGemmHidden);
  if (is_rounded && p.num_tokens > kGroupOfMxfp4)
    return "activations in an MX format are asked for: not from 17 tokens on";
  if (p.top_k > 16) return "more than 16 experts a token";
  if (p.gate_up.format != p.down.format) return "gate/up and down differ in format";
  if (p.forms.router == RouterForm::kSums && p.fold.weight.rows > kMaxExperts)
    return "more than 256 experts";
  if (p.forms.router == RouterForm::kSums && !holds_all_experts(p))
    return "the weights hold a part of the experts that it would choose among";
  if (const char* why = refuses_matrix(p.gate_up)) return why;
  return refuses_matrix(p.down);
}

uint64_t experts_any_bf16x2_gemv_cuda_workspace(const ExpertsParams& p) { return halves_bytes(p); }

void experts_any_bf16x2_gemv_cuda(const ExpertsParams& p) {
  const cudaStream_t stream = launch_stream(p.launch.stream);
  const BlockLimits limits = block_limits(p.launch);
  clear_padding(p, stream, "experts_any_bf16x2_gemv_cuda");
  dispatch_format(p.gate_up.format, [&]<DType F>() {
    const int group =
        std::min(tokens_that_fit(limits.shared_bytes, p.gate_up.num_units(), kGateUpRingBytes<F>),
                 kMaxPicks / p.top_k);
    for (int32_t first = 0; first < p.num_tokens; first += group) {
      const Step step = step_of(p, first, std::min(group, p.num_tokens - first));
      dispatch_tokens(step.num_tokens,
                      [&]<int kTokens>() { launch_experts<F, kTokens>(step, limits, stream); });
    }
  });
}

const char* experts_any_bf16x2_slices_cuda_refuses(const ExpertsParams& p) {
  if (p.num_tokens != 1) return "more than one token";
  if (const char* why = experts_any_bf16x2_gemv_cuda_refuses(p)) return why;
  const Step step = step_of(p, 0, 1);
  bool suits = false;
  dispatch_format(p.gate_up.format,
                  [&]<DType F>() { suits = slices::suits<F>(step, block_limits(p.launch)); });
  return suits ? nullptr
               : "the hidden size is no multiple of 192, the intermediate of 64, or a slice does "
                 "not fit shared memory";
}

void experts_any_bf16x2_slices_cuda(const ExpertsParams& p) {
  constexpr const char* kRow = "experts_any_bf16x2_slices_cuda";
  clear_padding(p, launch_stream(p.launch.stream), kRow);
  dispatch_format(p.gate_up.format, [&]<DType F>() {
    slices::launch_slices<F>(step_of(p, 0, 1), holds_all_experts(p), block_limits(p.launch),
                             p.launch, kRow);
  });
}

namespace {
template <int kMost>
slices::FoldedStep<kMost> folded_step(const ExpertsParams& p) {
  slices::FoldedStep<kMost> step{step_of(p, 0, 1), mail::fold_of(p.reduce, p.hidden),
                                 p.fold.norm_weight};
  step.fold.singles = p.folded_x;
  step.fold.x_pairs = reinterpret_cast<float2*>(p.reduce.x);
  step.fold.more_part = step.logits;
  step.fold.num_more = step.num_experts;
  return step;
}
}  // namespace

const char* reduce_route_experts_mxfp4_bf16x2_slices_cuda_refuses(const ExpertsParams& p) {
  if (const char* why = mail::refuses_fold(p.reduce, p.num_tokens, p.hidden)) return why;
  if (p.gate_up.format != DType::kMXFP4) return "not MXFP4";
  if (const char* why = experts_any_bf16x2_slices_cuda_refuses(p)) return why;
  return slices::can_exchange<DType::kMXFP4>(folded_step<2>(p), block_limits(p.launch))
             ? nullptr
             : "more values than the threads of a block exchange";
}

void reduce_route_experts_mxfp4_bf16x2_slices_cuda(const ExpertsParams& p) {
  mail::with_most_ranks_of_fold(p.reduce, [&]<int kMost>() {
    slices::launch_slices<DType::kMXFP4>(folded_step<kMost>(p), true, block_limits(p.launch),
                                         p.launch, "reduce_route_experts_mxfp4_bf16x2_slices_cuda");
  });
}

const char* experts_mxfp4_bf16x2_tiles_cuda_refuses(const ExpertsParams& p) {
  if (const char* why = experts_any_bf16x2_gemv_cuda_refuses(p)) return why;
  return tiles::tokens_of_launch(step_of(p, 0, p.num_tokens)) > 0
             ? nullptr
             : "not MXFP4, or sizes that no warp's units divide";
}

uint64_t experts_mxfp4_bf16x2_tiles_cuda_workspace(const ExpertsParams& p) {
  return halves_bytes(p, tiles::most_tokens(p.top_k));
}

void experts_mxfp4_bf16x2_tiles_cuda(const ExpertsParams& p) {
  constexpr const char* kRow = "experts_mxfp4_bf16x2_tiles_cuda";
  const cudaStream_t stream = launch_stream(p.launch.stream);
  clear_padding(p, stream, kRow);
  const int group = tiles::tokens_of_launch(step_of(p, 0, p.num_tokens));
  for (int32_t first = 0; first < p.num_tokens; first += group) {
    const Step step = step_of(p, first, std::min(group, p.num_tokens - first));
    tiles::launch_tiles(step, block_limits(p.launch), stream, kRow);
  }
}

}  // namespace moxie
