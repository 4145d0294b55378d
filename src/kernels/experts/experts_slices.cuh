// experts on CUDA for a few tokens: gate/up, SwiGLU and down in one kernel, without an exchange of
// the hidden values between all blocks.
//
// Work is cut along the intermediate size: a job is 192 columns (three units of 64) of one expert
// that any token chose. A cluster of two blocks takes a job: gate/up makes its hidden values for
// every token that chose the expert (half of them in each block, handed over in distributed shared
// memory), down multiplies them with their columns of all outputs (half of the outputs in each
// block) and adds the sums to the residual stream, where the order of the blocks does not matter
// (kernels/residual.cuh). So weights stream without a pause from the first gate/up row to the last
// down row, each once a launch.
//
// The one token of an expert takes all slots of the product (fragment_gemv.cuh); several have a
// slot each.
#pragma once

#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/residual.cuh"

namespace moxie::slices {

using namespace fragment;

constexpr int kUnits = 3;        // of a stage, and of a job's intermediate columns
constexpr int kTilesOfUnit = 4;  // of gate/up, in each of the two blocks: 8 outputs each
#ifndef VWARPS
#define VWARPS 16
#endif
constexpr int kMaxWarps = VWARPS;
constexpr int kMaxPicks = 32;  // pairs of a token and a choice, and so experts, of a launch

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
  int32_t num_tokens, hidden, top_k, num_units, num_units_down, jobs_of_expert;
};

template <DType F>
inline constexpr int kStageBytes = kUnits* kUnitBytes<F>;
// More start with a longer queue for the first bytes, and leave less room for the next kernels.
#ifndef VSTAGES
#define VSTAGES 2
#endif
#ifndef VWARPS
#define VWARPS 16
#endif
inline constexpr int kStages = VSTAGES;

// Keeps an address out of uniform registers: added to one there, nvcc 13.0 makes copies of it that
// are no instructions.
__device__ __forceinline__ uint32_t opaque(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
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
  int count;
};

/// Bytes of one token's activations, of a row of gate/up and of a job's columns of down.
inline constexpr int kUnitInputBytes = kUnitActivationBytes<1>;
inline constexpr int kJobInputBytes = kUnits * kUnitInputBytes;

/// Where the parts of a block's shared memory lie.
template <DType F, int kTokens>
struct Layout {
  int staged, hidden_values, sums, biases, bytes;
  __host__ __device__ constexpr Layout(int num_warps, int num_units, int num_tokens, int num_biases)
      : staged(num_warps * kStages * kStageBytes<F>),
        hidden_values(staged + num_tokens * num_units * kUnitInputBytes),
        sums(hidden_values + 2 * num_tokens * kJobInputBytes),  // of two jobs
        biases(sums + num_warps * 2 * 16 * num_tokens * 4),
        bytes(biases + 4 * num_biases) {}
};

/// One job: which expert's, which of its units of 64 columns.
struct Job {
  int pick, first_unit, count;  // of the picks; of units: kUnits, or what is left
  int window;                   // the first of the kUnits units that `down` reads
  __device__ __forceinline__ Job(const Step& p, int idx) {
    pick = idx / p.jobs_of_expert;
    first_unit = (idx - pick * p.jobs_of_expert) * kUnits;
    count = min(kUnits, p.num_units_down - first_unit);
    window = first_unit + count - kUnits;
  }
};

/// What a warp does of a job: a run of the gate/up stages of its block, then tiles of `down`.
struct Share {
  int num_warps, warp, rank, stages_of_tile, first_tile, num_tiles;
  __device__ __forceinline__ explicit Share(const Step& p, int block_rank)
      : num_warps(blockDim.x / 32), warp(threadIdx.x / 32), rank(block_rank) {
    stages_of_tile = p.num_units / kUnits;
    const int tiles = (p.hidden + 15) / 16, begin = part_begin(tiles, 2, rank);
    const int half = part_begin(tiles, 2, rank + 1) - begin;
    first_tile = begin + part_begin(half, num_warps, warp);
    num_tiles = begin + part_begin(half, num_warps, warp + 1) - first_tile;
  }
  __device__ __forceinline__ int run_begin(int num_units, int of_warp) const {
    return part_begin(num_units * kTilesOfUnit * stages_of_tile, num_warps, of_warp);
  }
};

/// The weights of a warp in the order in which it multiplies them, in stages of kUnits neighbouring
/// units.
template <DType F>
struct Weights {
  const std::byte* at;  // the lane's 16 bytes of the next stage
  int64_t step;
  int left = 0;          // stages of the run
  int job;               // the run's
  bool is_down = false;  // what comes after the run under way is the job's down

  __device__ __forceinline__ explicit Weights(int first_job) : job(first_job) {}
  /// The gate/up run of the job, but for its expert.
  __device__ __forceinline__ void start_gate_up(const Step& p, const Share& share) {
    const Job of(p, job);
    const int begin = share.run_begin(of.count, share.warp);
    left = share.run_begin(of.count, share.warp + 1) - begin;
    const int tile = (2 * of.first_unit + share.rank * of.count) * kTilesOfUnit;
    at = p.gate_up.data + 16 * (threadIdx.x % 32) +
         (static_cast<int64_t>(tile) * p.num_units + begin * kUnits) * kUnitBytes<F>;
    step = kStageBytes<F>;
    is_down = true;
  }
  __device__ __forceinline__ void start_down(const Step& p, const Share& share) {
    const Job of(p, job);
    step = static_cast<int64_t>(p.num_units_down) * kUnitBytes<F>;
    at = p.down.data + 16 * (threadIdx.x % 32) + share.first_tile * step +
         of.window * kUnitBytes<F>;
    left = share.num_tiles;
    is_down = false;
  }
  __device__ __forceinline__ void copy_stage(uint32_t stage) {
    constexpr int kWhole = kStageBytes<F> / 512, kRest = kStageBytes<F> % 512;
    const int lane = threadIdx.x % 32;
    const uint32_t to = stage + 16 * lane;
#pragma unroll
    for (int i = 0; i < kWhole; ++i) copy_streamed_16(to + 512 * i, at + 512 * i);
    if (lane < kRest / 16) copy_streamed_16(to + 512 * kWhole, at + 512 * kWhole);
    at += step;
    --left;
  }
};

/// The product of a tile with the activations of several tokens, a slot each; two groups of slots
/// for more than four.
template <DType F>
struct GroupProduct {
  const std::byte* of_lane[2];
  float narrow[1][2], wide[2][2];

  /// token(j): which of `inputs`, token_bytes each, the j-th token's are.
  template <typename Token>
  __device__ __forceinline__ void restart(const std::byte* inputs, int token_bytes, int count,
                                          Token&& token) {
    const int lane = threadIdx.x % 32, n = lane / 4;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j = min(4 * c + n / 2, count - 1);
      of_lane[c] = inputs + token(j) * token_bytes + 64 * (n % 2) + 16 * (lane % 4);
      narrow[0][c] = wide[0][c] = wide[1][c] = 0;
    }
  }
  __device__ __forceinline__ void add_stage(const std::byte* stage, bool is_wide) {
    constexpr int kWords = Format<F>::kScaleWords;
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::byte* at = stage + i * kUnitBytes<F>;
      Unit<F> unit;
      read_unit<F>(unit, at + 16 * lane, at + kCodeBytes<F> + g * (4 * kWords));
      const auto inputs = [&](int block, int c) {
        return *reinterpret_cast<const uint4*>(of_lane[c] + (2 * i + block) * kBlockBytes<1>);
      };
      if (is_wide) {
        multiply_unit<F, 2>(unit, inputs, wide);
      } else {
        multiply_unit<F, 1>(unit, inputs, narrow);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) of_lane[c] += kJobInputBytes;
  }
  /// Row g + 8 half of the (4 c + q)-th token.
  __device__ __forceinline__ float sum(bool is_wide, int c, int half) const {
    return is_wide ? wide[c][half] : c == 0 ? narrow[0][half] : 0.0f;
  }
};

/// A job's gate and up sums to hidden values in both blocks' shared memory, where `barrier` counts
/// them: a warp makes 32 columns of one token, a lane one of them.
template <DType F, int kTokens>
struct Finisher {
  const Step& p;
  const Share& share;
  const Job job;
  const Picks<kTokens>& picks;
  const Pick<kTokens>& pick;
  int num_tokens;
  // Of this warp's first columns, on their way before the sums are there.
  float gate_bias = 0, up_bias = 0;

  __device__ __forceinline__ Finisher(const Step& step, const Share& of_warp, int job_idx,
                                      const Picks<kTokens>& of_launch)
      : p(step),
        share(of_warp),
        job(step, job_idx),
        picks(of_launch),
        pick(of_launch.of[job.pick]) {
    num_tokens = kTokens == 1 ? 1 : pick.count;
    load(share.warp);
  }
  /// Of part number n: its columns are 32 (n % kUnits).. of the block's, its token n / kUnits.
  __device__ __forceinline__ void load(int n) {
    const int part = n % kUnits, lane = threadIdx.x % 32;
    if (part >= job.count || n / kUnits >= num_tokens) return;
    const int tile =
        (2 * job.first_unit + share.rank * job.count + part) * kTilesOfUnit + lane / 8;
    const float* bias =
        p.gate_up_bias + static_cast<int64_t>(pick.expert) * p.gate_up.rows + tile * 16 + lane % 8;
    gate_bias = load_early(bias), up_bias = load_early(bias + 8);
  }
  __device__ __forceinline__ void finish(const float* sums_of_warps, int tokens_of_sums,
                                         std::byte* values, uint64_t* barrier) {
    if (threadIdx.x == 0) expect_bytes(barrier, num_tokens * kJobInputBytes);
    const int num_parts = kUnits * num_tokens;
#pragma unroll 1
    for (int n = share.warp; n < num_parts; n += share.num_warps) {
      if (n != share.warp) load(n);
      make(n, sums_of_warps, tokens_of_sums, values, barrier);
    }
  }

 private:
  __device__ __forceinline__ void make(int n, const float* sums_of_warps, int tokens_of_sums,
                                       std::byte* values, uint64_t* barrier) const {
    const int lane = threadIdx.x % 32, part = n % kUnits, token = n / kUnits;
    float scaled = 0;
    int block = share.rank * job.count + part + 2 * (job.first_unit - job.window);
    if (part < job.count) {
      const int tile = part * kTilesOfUnit + lane / 8, from = tile * share.stages_of_tile;
      const int all = job.count * kTilesOfUnit * share.stages_of_tile;
      const int first_warp = ((from + 1) * share.num_warps - 1) / all;
      const int last_warp = ((from + share.stages_of_tile) * share.num_warps - 1) / all;
      const int first_part = share.run_begin(job.count, first_warp) >= from ? 0 : 1;
      const int of_warp = 2 * 16 * tokens_of_sums;
      float gate = 0, up = 0;
      const float* sums =
          sums_of_warps + first_warp * of_warp + (first_part * tokens_of_sums + token) * 16;
#pragma unroll 1
      for (int w = first_warp; w <= last_warp; ++w) {
        gate += sums[lane % 8], up += sums[lane % 8 + 8];
        sums = sums_of_warps + (w + 1) * of_warp + token * 16;
      }
      scaled =
          swiglu(gate * kSumScale<F> + gate_bias, up * kSumScale<F> + up_bias, p.alpha, p.limit) *
          (picks.weights[pick.pairs[kTokens == 1 ? 0 : token]] * kActivationScale<F>);
    } else {
      // The units of the window that are another job's: zeros.
      block = share.rank * (kUnits - job.count) + part - job.count;
    }
    const float next = __shfl_down_sync(~0u, scaled, 1);
    if (lane % 2 != 0) return;
    const uint32_t high = pack_bf16(scaled, next);
    const uint32_t low =
        pack_bf16(scaled - __uint_as_float(high << 16), next - __uint_as_float(high & 0xFFFF0000u));
    const std::byte* at = values + token * kJobInputBytes + block * 128 + lane * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      send(at, barrier, r, high);
      send(at + 64, barrier, r, low);
    }
  }
};

/// Which experts the launch's tokens chose, each once; by one warp.
template <int kTokens>
__device__ __forceinline__ void pick_experts(const Step& p, Picks<kTokens>& picks) {
  const int lane = threadIdx.x % 32;
  const int num_pairs = kTokens == 1 ? p.top_k : p.num_tokens * p.top_k;
  const int id = lane < num_pairs ? p.expert_ids[lane] : -1 - lane;
  if (lane < num_pairs) picks.ids[lane] = id, picks.weights[lane] = p.expert_weights[lane];
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

/// The chosen experts' biases of `down`: a part of the outputs in each block, copied while weights
/// are on their way and added to x when there is time.
struct Biases {
  float* values;  // [pairs][count]
  int first_row, count;

  __device__ __forceinline__ Biases(const Step& p, std::byte* at)
      : values(reinterpret_cast<float*>(at)),
        first_row(part_begin(p.hidden, gridDim.x, blockIdx.x)),
        count(part_begin(p.hidden, gridDim.x, blockIdx.x + 1) - first_row) {}
  __device__ __forceinline__ void copy(const Step& p, const int32_t* ids, int num_tokens) const {
    for (int i = threadIdx.x; i < count * num_tokens * p.top_k; i += blockDim.x) {
      const int pair = i / count, row = first_row + i - pair * count;
      copy_async_4(shared_address(values + i),
                   p.down_bias + static_cast<int64_t>(ids[pair]) * p.hidden + row);
    }
  }
  /// After a barrier of the block behind the copies.
  __device__ __forceinline__ void add(const Step& p, const float* weights, int num_tokens) const {
    for (int i = threadIdx.x; i < count * num_tokens; i += blockDim.x) {
      const int token = i / count, row = i - token * count;
      float sum = 0;
      for (int n = token * p.top_k; n < (token + 1) * p.top_k; ++n)
        sum += weights[n] * values[n * count + row];
      add_to_residual(p.x + static_cast<int64_t>(token) * p.hidden + first_row + row, sum);
    }
  }
};

template <DType F, int kTokens>
__global__ void __launch_bounds__(32 * kMaxWarps) slice_experts(const __grid_constant__ Step p) {
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t barriers[2];  // of jobs in turn: that job's hidden values are here
  __shared__ Picks<kTokens> picks;
  const int num_clusters = gridDim.x / 2, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int num_tokens = kTokens == 1 ? 1 : p.num_tokens;
  const Share share(p, blockIdx.x % 2);
  const int warp = share.warp;
  if (threadIdx.x < 2) init_barrier(&barriers[threadIdx.x]);
  const Layout<F, kTokens> layout(share.num_warps, p.num_units, num_tokens, 0);
  std::byte* staged = shared + layout.staged;
  std::byte* hidden_values = shared + layout.hidden_values;
  auto* sums_of_warps = reinterpret_cast<float*>(shared + layout.sums);  // [warps][2][tokens][16]
  const int token_bytes = p.num_units * kUnitInputBytes;
  cluster_arrive();
  const uint32_t ring = shared_address(shared) + warp * kStages * kStageBytes<F>;
  // The first run, but for its expert.
  Weights<F> weights(blockIdx.x / 2);
  weights.start_gate_up(p, share);
  cluster_wait();  // both blocks have their barriers

  wait_for_previous();
  launch_next();
  Eight early, none;
  early.load(p.t, p.hidden, 0, 8 * p.num_units, threadIdx.x);
  if (warp == 0) pick_experts<kTokens>(p, picks);
  __syncthreads();
  const Biases biases(p, shared + layout.biases);
  const int num_jobs = picks.count * p.jobs_of_expert;
  int job = blockIdx.x / 2;
  if (job >= num_jobs) {
    biases.copy(p, picks.ids, num_tokens);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    return biases.add(p, picks.weights, num_tokens);
  }

  weights.at += picks.of[Job(p, job).pick].expert * p.gate_up_expert_bytes;
  const auto fill = [&](uint32_t stage) {
    while (weights.left == 0) {
      if (weights.job >= num_jobs) break;
      if (weights.is_down) {
        weights.start_down(p, share);
        weights.at += picks.of[Job(p, weights.job).pick].expert * p.down_expert_bytes;
        continue;
      }
      weights.job += num_clusters;
      if (weights.job >= num_jobs) break;
      weights.start_gate_up(p, share);
      weights.at += picks.of[Job(p, weights.job).pick].expert * p.gate_up_expert_bytes;
    }
#ifdef VNOCOPY
    if (weights.left > 0) --weights.left;
#else
    if (weights.left > 0) weights.copy_stage(stage);
#endif
    commit_copies();
  };
  biases.copy(p, picks.ids, num_tokens);  // with the copies of the first stage
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) fill(opaque(ring + i * kStageBytes<F>));
  float squares[1];
#pragma unroll 2
  for (int t = 0; t < num_tokens; ++t)
    stage_activations<1, false>(p.t + static_cast<int64_t>(t) * p.hidden, p.hidden, 0, p.num_units,
                                1, kActivationScale<F>, nullptr, none, t == 0 ? &early : nullptr,
                                staged + t * token_bytes, threadIdx.x, blockDim.x, squares);
  __syncthreads();

  TileProduct<F, 1, kUnits> alone(staged, 1);
  GroupProduct<F> together;
  const int my_row = g + 8 * (q % 2);  // what a lane has of a finished tile of one token
  int stage = 0;                       // bytes from the ring's first
  for (int nth = 0; job < num_jobs; ++nth, job += num_clusters) {
    Finisher<F, kTokens> finisher(p, share, job, picks);
    const Pick<kTokens>& pick = finisher.pick;
    const int count = kTokens == 1 ? 1 : pick.count;
    const int begin = share.run_begin(finisher.job.count, warp);
    const int end = share.run_begin(finisher.job.count, warp + 1);
    const int first_gate_tile = begin / share.stages_of_tile;
    const int num_gate_tiles =
        begin == end ? 0 : (end - 1) / share.stages_of_tile - first_gate_tile + 1;
    std::byte* values = hidden_values + nth % 2 * (num_tokens * kJobInputBytes);
    uint64_t* barrier = &barriers[nth % 2];
    int row = 16 * share.first_tile;
    int tile_stage = begin - first_gate_tile * share.stages_of_tile;
    if (nth > 0) __syncthreads();  // the sums of the job before have been read
    float* my_sums = sums_of_warps + warp * 2 * 16 * num_tokens;
    // A warp without a stage adds nothing to the tile that its neighbours share.
    if (num_gate_tiles == 0) {
      for (int i = lane; i < 16 * count; i += 32) my_sums[i] = 0;
      wait_for_copies<0>();  // the biases
    }
    // Gate/up tiles, or what this warp has of them, then tiles of `down`.
    for (int tile = -num_gate_tiles;; ++tile) {
      if (tile == 0) {
        __syncthreads();
        finisher.finish(sums_of_warps, num_tokens, values, barrier);
        if (nth == 0) biases.add(p, picks.weights, num_tokens);
        wait_barrier(barrier, nth / 2 % 2);
      }
      if (tile == share.num_tiles) break;
      int stages = 1;
      if (tile < 0) {
        stages = min(end - begin, share.stages_of_tile - tile_stage);
        if (tile == -1 && num_gate_tiles > 1)
          stages = end - (first_gate_tile + num_gate_tiles - 1) * share.stages_of_tile;
        const std::byte* inputs = staged + tile_stage * kJobInputBytes;
        if (kTokens == 1 || count == 1) {
          const int token = kTokens == 1 ? 0 : pick.tokens[0];
          alone.restart(inputs + token * token_bytes);
        } else {
          together.restart(inputs, token_bytes, count,
                           [&](int j) { return pick.tokens[j]; });
        }
        tile_stage = 0;
      } else if (kTokens == 1 || count == 1) {
        alone.restart(values);
      } else {
        together.restart(values, kJobInputBytes, count, [](int j) { return j; });
      }
#pragma unroll 1
      for (; stages > 0; --stages) {
        wait_for_copies<kStages - 1>();
        __syncwarp();
        const std::byte* at = shared + warp * kStages * kStageBytes<F> + stage;
#ifdef VNOMUL
        alone.sums[0][0] += *reinterpret_cast<const float*>(at + 16 * lane);
#else
        if (kTokens == 1 || count == 1) {
          alone.add_whole_stage(at);
        } else {
          together.add_stage(at, count > 4);
        }
#endif
        __syncwarp();
        fill(opaque(ring + stage));
        stage += kStageBytes<F>;
        if (stage == kStages * kStageBytes<F>) stage = 0;
      }
      // Of gate/up the sums go to their place, of `down` to the residual stream.
      float* to = my_sums + (tile + num_gate_tiles) * 16 * num_tokens;
      if (kTokens == 1 || count == 1) {
        const float sum = alone.finished_row();
        if (tile < 0) {
          if (q < 2) to[my_row] = sum;
        } else if (q < 2 && row + my_row < p.hidden) {
          const int token = kTokens == 1 ? 0 : pick.tokens[0];
          add_to_residual(p.x + static_cast<int64_t>(token) * p.hidden + row + my_row,
                          sum * kSumScale<F>);
        }
      } else {
        const bool is_wide = count > 4;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int j = 4 * c + q;
          if (j >= count) break;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int of_tile = g + 8 * half;
            const float sum = together.sum(is_wide, c, half);
            if (tile < 0) {
              to[j * 16 + of_tile] = sum;
            } else if (row + of_tile < p.hidden) {
              add_to_residual(
                  p.x + static_cast<int64_t>(pick.tokens[j]) * p.hidden + row + of_tile,
                  sum * kSumScale<F>);
            }
          }
        }
      }
      if (tile >= 0) row += 16;
    }
  }
}

constexpr int kStaticBytes = 2048;  // of a block's shared memory, at most

inline int num_blocks(const BlockLimits& limits) { return 2 * std::max(1, limits.num_units / 2); }
inline int num_biases(const Step& step, const BlockLimits& limits, int num_tokens) {
  return ceil_div(step.hidden, num_blocks(limits)) * num_tokens * step.top_k;
}

/// How many tokens one launch takes: 0 for shapes that this way does not serve (sizes in whole
/// stages and units, room for warps enough, sums that stay exact).
template <DType F>
int tokens_of_launch(const Step& step, const BlockLimits& limits) {
  if (step.num_units % kUnits != 0 || step.hidden % 64 != 0 || step.num_units_down < kUnits ||
      step.gate_up.rows != 128 * step.num_units_down || step.top_k > kMaxPicks ||
      step.top_k * step.jobs_of_expert + 1 > kMaxResidualAddends)
    return 0;
  const int most = std::min(kMaxTokens, kMaxPicks / step.top_k);
  for (int tokens = most; tokens > 0; --tokens) {
    if (Layout<F, kMaxTokens>(kUnits * kTilesOfUnit, step.num_units, tokens,
                              num_biases(step, limits, tokens))
                .bytes +
            kStaticBytes <=
        static_cast<int>(limits.shared_bytes))
      return tokens;
  }
  return 0;
}

template <DType F, int kTokens>
void launch_slices(const Step& step, const BlockLimits& limits, cudaStream_t stream,
                   const char* row) {
  int num_warps = kMaxWarps;
  const auto bytes = [&] {
    return static_cast<uint64_t>(
        Layout<F, kTokens>(num_warps, step.num_units, step.num_tokens,
                           num_biases(step, limits, step.num_tokens))
            .bytes);
  };
  while (bytes() + kStaticBytes > limits.shared_bytes) --num_warps;
  launch_kernel(row, slice_experts<F, kTokens>, step,
                {.grid = dim3(static_cast<unsigned>(num_blocks(limits))),
                 .num_threads = 32 * num_warps,
                 .shared_bytes = bytes(),
                 .cluster = 2,
                 .programmatic = true},
                stream);
}

}  // namespace moxie::slices
