// experts on CUDA for one token: gate/up, SwiGLU and down in one kernel without an exchange of the
// hidden values between all blocks.
//
// Work is cut along the intermediate size: an item is 64 columns of one chosen expert. A cluster of
// two blocks takes items, kItems a round: gate/up makes an item's 64 values (half of them in each
// block, handed over in distributed shared memory), down multiplies them with their 64 columns of
// all outputs (half of the outputs in each block). So weights stream without a pause from the first
// gate/up row to the last down row. What a cluster makes of each output goes to `partials`
// [cluster][hidden]; a second kernel adds these up in order, with biases and the residual.
#pragma once

#include "kernels/gemv/slice_gemv.cuh"

namespace moxie::one_token {

using namespace fragment;

constexpr int kItems = 3;        // of a round: a stage of `down` is a tile's unit of each
constexpr int kTilesOfItem = 4;  // of gate/up, in each of the two blocks: 8 outputs each
constexpr int kTilesOfRound = kItems * kTilesOfItem;
constexpr int kMinWarps = kTilesOfRound;
constexpr int kMaxWarps = 16;

struct Step {
  PackedMatrix gate_up, down;
  int64_t gate_up_expert_bytes, down_expert_bytes;
  const float* gate_up_bias;
  const float* down_bias;
  const float* t;  // [hidden]
  const int32_t* expert_ids;
  const float* expert_weights;
  float* partials;  // [clusters][hidden]
  float* x;         // [hidden]
  float alpha, limit;
  int32_t hidden, intermediate, top_k, num_units, num_units_down, num_clusters;
};

template <DType F>
inline constexpr int kStageBytes = kItems* kUnitBytes<F>;
// More start with a longer queue for the first bytes, and leave less room for the next kernels.
inline constexpr int kStages = 2;
constexpr int kMaxClusters = 128;

// Keeps an address out of uniform registers: added to one there, nvcc 13.0 makes copies of it that
// are no instructions.
__device__ __forceinline__ uint32_t opaque(uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}

// The clamped SwiGLU of one output.
__device__ __forceinline__ float swiglu(float gate, float up, float alpha, float limit) {
  gate = fminf(gate, limit);
  up = fminf(fmaxf(up, -limit), limit);
  return gate / (1.0f + __expf(-alpha * gate)) * (up + 1.0f);
}

/// Where the parts of a block's shared memory lie.
template <DType F>
struct Layout {
  int rings, staged, hidden_values, sums, bytes;
  __host__ __device__ constexpr Layout(int num_warps, int num_units)
      : rings(0),
        staged(num_warps * kStages * kStageBytes<F>),
        hidden_values(staged + num_units * kUnitActivationBytes<1>),
        sums(hidden_values + 2 * kItems * kUnitActivationBytes<1>),  // of two rounds
        bytes(sums + num_warps * 2 * 16 * 4) {}
};

/// The items of a cluster's round: its i-th is number first + i * num_clusters of all chosen
/// experts'.
struct Items {
  int first, count;
  __device__ __forceinline__ Items(const Step& p, int cluster_idx, int round) {
    first = cluster_idx + round * kItems * p.num_clusters;
    const int left = p.top_k * p.num_units_down - first;
    count = left <= 0 ? 0 : min(kItems, (left - 1) / p.num_clusters + 1);
  }
};

/// What a warp does of a round: a run of the gate/up stages of its block, then tiles of `down`.
struct Share {
  int num_warps, warp, rank, stages_of_tile, first_tile, num_tiles;
  __device__ __forceinline__ explicit Share(const Step& p, int block_rank)
      : num_warps(blockDim.x / 32), warp(threadIdx.x / 32), rank(block_rank) {
    stages_of_tile = p.num_units / kItems;
    const int tiles = (p.hidden + 15) / 16, begin = part_begin(tiles, 2, rank);
    const int half = part_begin(tiles, 2, rank + 1) - begin;
    first_tile = begin + part_begin(half, num_warps, warp);
    num_tiles = begin + part_begin(half, num_warps, warp + 1) - first_tile;
  }
  __device__ __forceinline__ int run_begin(int num_items, int of_warp) const {
    return part_begin(num_items * kTilesOfItem * stages_of_tile, num_warps, of_warp);
  }
};

/// Of which chosen expert an item is, and where its weights lie for this block.
struct Place {
  const std::byte* gate_up;  // its first tile
  const std::byte* down;     // its unit of the first tile
  int nth, expert, unit;
};
/// What is known of a place before its expert is.
template <DType F>
__device__ Place find_place(const Step& p, const Items& items, int i, int rank) {
  // An item that is not there stands for the last one, and its hidden values are zeros.
  const int item = items.first + min(i, items.count - 1) * p.num_clusters;
  Place place;
  place.nth = item / p.num_units_down;
  place.unit = item - place.nth * p.num_units_down;
  place.expert = 0;
  place.gate_up = p.gate_up.data + static_cast<int64_t>(2 * place.unit + rank) * kTilesOfItem *
                                       p.num_units * kUnitBytes<F>;
  place.down = p.down.data + place.unit * kUnitBytes<F>;
  return place;
}
__device__ __forceinline__ void find_expert(const Step& p, Place& place) {
  place.expert = p.expert_ids[place.nth];
  place.gate_up += place.expert * p.gate_up_expert_bytes;
  place.down += place.expert * p.down_expert_bytes;
}

/// A round's gate and up sums to hidden values in both blocks' shared memory, where `barrier`
/// counts them: a warp makes an item's 32 values of this block, a lane one of them.
template <DType F>
struct Finisher {
  float gate_bias = 0, up_bias = 0, weight = 0;
  int first_warp = 0, last_warp = -1, first_part = 0;

  /// Before the sums are there.
  __device__ __forceinline__ Finisher(const Step& p, const Share& share, const Items& items,
                                      const Place& place) {
    if (share.warp >= items.count) return;
    const int lane = threadIdx.x % 32, tile = share.warp * kTilesOfItem + lane / 8;
    const int column = 32 * share.rank + lane;
    const float* bias = p.gate_up_bias + static_cast<int64_t>(place.expert) * p.gate_up.rows +
                        (place.unit * 8 + column / 8) * 16 + lane % 8;
    gate_bias = load_early(bias), up_bias = load_early(bias + 8);
    weight = load_early(p.expert_weights + place.nth);
    const int all = items.count * kTilesOfItem * share.stages_of_tile;
    const int from = tile * share.stages_of_tile;
    first_warp = ((from + 1) * share.num_warps - 1) / all;
    last_warp = ((from + share.stages_of_tile) * share.num_warps - 1) / all;
    first_part = share.run_begin(items.count, first_warp) >= from ? 0 : 1;
  }
  __device__ __forceinline__ void finish(const Step& p, const Share& share, const Items& items,
                                         const float* sums_of_warps, std::byte* values,
                                         uint64_t* barrier) const {
    if (threadIdx.x == 0) expect_bytes(barrier, kItems * kUnitActivationBytes<1>);
    if (share.warp >= kItems) return;
    const int lane = threadIdx.x % 32;
    float gate = 0, up = 0;
    const float* sums = sums_of_warps + (2 * first_warp + first_part) * 16 + lane % 8;
#pragma unroll 1
    for (int w = first_warp; w <= last_warp; ++w) {
      gate += sums[0], up += sums[8];
      sums = sums_of_warps + 2 * (w + 1) * 16 + lane % 8;
    }
    const float value =
        swiglu(gate * kSumScale<F> + gate_bias, up * kSumScale<F> + up_bias, p.alpha, p.limit);
    // The values of an item that is not there are zeros.
    const float scaled = share.warp < items.count ? value * weight * kActivationScale<F> : 0.0f;
    const float next = __shfl_down_sync(~0u, scaled, 1);
    if (lane % 2 != 0) return;
    const uint32_t high = pack_bf16(scaled, next);
    const uint32_t low =
        pack_bf16(scaled - __uint_as_float(high << 16), next - __uint_as_float(high & 0xFFFF0000u));
    const uint32_t at = share.warp * kUnitActivationBytes<1> + share.rank * 128 + lane * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      send(values + at, barrier, r, high);
      send(values + at + 64, barrier, r, low);
    }
  }
};

/// The weights of a warp in the order in which it multiplies them. A stage is kItems units: of
/// gate/up neighbours, of `down` a tile's unit of each item.
template <DType F>
struct Weights {
  static constexpr int kTailLanes = 2 * Format<F>::kScaleWords;  // copy the scales of a unit
  const std::byte* first;   // the lane's 16 bytes of the first unit
  int32_t to_unit[kItems];  // from there to the others, in 16 bytes
  int32_t to_scales;        // and to what the lane copies of all units' scales
  uint32_t scales_at;       // where it puts them in a stage
  int64_t step;
  int stages_left = 0;             // of the run
  int first_item = 0;              // of the run, in gate/up
  int round = 0, next_stage = -1;  // of gate/up; behind the last comes a run of `down`

  __device__ __forceinline__ void point(const std::byte* const (&units)[kItems]) {
    const int lane = threadIdx.x % 32;
    first = units[0] + 16 * lane;
#pragma unroll
    for (int i = 0; i < kItems; ++i) to_unit[i] = static_cast<int32_t>((units[i] - units[0]) / 16);
    if constexpr (kTailLanes > 0) {
      const int of = lane / kTailLanes, at = kCodeBytes<F> + 16 * (lane % kTailLanes);
      to_scales = (of == 0 ? 0 : of == 1 ? to_unit[1] : to_unit[2]) + at / 16 - lane;
      scales_at = of * kUnitBytes<F> + at;
    }
  }
  /// The next run: of gate/up up to the end of an item, or all tiles of `down`. `first_places`: of
  /// round 0.
  __device__ __forceinline__ void next_run(const Step& p, const Share& share, const Items& items,
                                           const Place* first_places) {
    const auto place = [&](int i) {
      if (round == 0) return first_places[i];
      Place later = find_place<F>(p, items, i, share.rank);
      find_expert(p, later);
      return later;
    };
    const int end = share.run_begin(items.count, share.warp + 1);
    if (next_stage < 0) next_stage = share.run_begin(items.count, share.warp);
    const std::byte* units[kItems];
    if (next_stage < end) {
      const int of_item = kTilesOfItem * share.stages_of_tile, item = next_stage / of_item;
      const int in_item = next_stage - item * of_item, tile = in_item / share.stages_of_tile;
      const int first_unit = (in_item - tile * share.stages_of_tile) * kItems;
      first_item = item;
      units[0] = place(item).gate_up + (tile * p.num_units + first_unit) * kUnitBytes<F>;
      units[1] = units[0] + kUnitBytes<F>, units[2] = units[1] + kUnitBytes<F>;
      stages_left = min(of_item - in_item, end - next_stage);
      next_stage += stages_left;
      step = kItems * kUnitBytes<F>;
    } else {
      step = static_cast<int64_t>(p.num_units_down) * kUnitBytes<F>;
#pragma unroll
      for (int i = 0; i < kItems; ++i) units[i] = place(i).down + share.first_tile * step;
      stages_left = share.num_tiles;
      next_stage = -1;
      ++round;
    }
    point(units);
  }
  __device__ __forceinline__ void restart() { round = 0, next_stage = -1, stages_left = 0; }
  __device__ __forceinline__ void copy_stage(uint32_t stage) {
    const int lane = threadIdx.x % 32;
    const uint32_t to = stage + 16 * lane;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int v = 0; v < Format<F>::kVectors; ++v)
        copy_streamed_16(to + i * kUnitBytes<F> + 512 * v,
                         first + int64_t{to_unit[i]} * 16 + 512 * v);
    }
    if (lane < kTailLanes * kItems)
      copy_streamed_16(stage + scales_at, first + int64_t{to_scales} * 16);
    first += step;
    --stages_left;
  }
};

template <DType F>
__global__ void __launch_bounds__(32 * kMaxWarps) slice_experts(const __grid_constant__ Step p) {
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t barriers[2];  // of rounds in turn: that round's hidden values are here
  __shared__ Place bases[kItems], places[kItems];  // of the first round, without and with experts
  const int cluster_idx = blockIdx.x / 2, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const Share share(p, blockIdx.x % 2);
  const int warp = share.warp;
  if (threadIdx.x < 2) init_barrier(&barriers[threadIdx.x]);
  const Layout<F> layout(share.num_warps, p.num_units);
  std::byte* staged = shared + layout.staged;
  std::byte* hidden_values = shared + layout.hidden_values;
  auto* sums_of_warps = reinterpret_cast<float*>(shared + layout.sums);  // [warps][2][16]
  Items items(p, cluster_idx, 0);
  if (items.count > 0 && threadIdx.x < kItems)
    bases[threadIdx.x] = find_place<F>(p, items, threadIdx.x, share.rank);
  cluster_arrive();
  const uint32_t ring = shared_address(shared) + warp * kStages * kStageBytes<F>;

  // The first run, but for its expert.
  Weights<F> weights;
  cluster_wait();  // both blocks have their barriers
  __syncthreads();
  if (items.count > 0) weights.next_run(p, share, items, bases);
  const bool starts_in_gate_up = weights.round == 0;

  wait_for_previous();
  launch_next();
  if (items.count == 0) return;
  if (threadIdx.x < kItems) {
    Place place = bases[threadIdx.x];
    find_expert(p, place);
    places[threadIdx.x] = place;
  }
  Eight early, none;
  early.load(p.t, p.hidden, 0, 8 * p.num_units, threadIdx.x);
  __syncthreads();
  if (starts_in_gate_up)
    weights.first += places[weights.first_item].expert * p.gate_up_expert_bytes;
  else
    weights.restart();
  const auto fill = [&](uint32_t stage) {
    while (weights.stages_left == 0) {
      const Items of_round(p, cluster_idx, weights.round);
      if (of_round.count == 0) break;
      weights.next_run(p, share, of_round, places);
    }
    if (weights.stages_left > 0) weights.copy_stage(stage);
    commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) fill(opaque(ring + i * kStageBytes<F>));
  float squares[1];
  stage_activations<1, false>(p.t, p.hidden, 0, p.num_units, 1, kActivationScale<F>, nullptr, none,
                              &early, staged, threadIdx.x, blockDim.x, squares);
  __syncthreads();

  TileProduct<F, 1, kItems> product(staged, 1);
  const int my_row = g + 8 * (q % 2);  // what a lane has of a finished tile
  int stage = 0;                       // bytes from the ring's first
  for (int round = 0; items.count > 0; items = Items(p, cluster_idx, ++round)) {
    const int begin = share.run_begin(items.count, warp);
    const int end = share.run_begin(items.count, warp + 1);
    const int first_gate_tile = begin / share.stages_of_tile;
    const int num_gate_tiles =
        begin == end ? 0 : (end - 1) / share.stages_of_tile - first_gate_tile + 1;
    const int my_item = min(warp, items.count - 1);
    Place my_place = places[my_item];
    if (round > 0) {
      my_place = find_place<F>(p, items, my_item, share.rank);
      find_expert(p, my_place);
    }
    const Finisher<F> finisher(p, share, items, my_place);
    std::byte* values = hidden_values + round % 2 * (kItems * kUnitActivationBytes<1>);
    uint64_t* barrier = &barriers[round % 2];
    float* partial =
        p.partials + static_cast<int64_t>(cluster_idx) * p.hidden + 16 * share.first_tile + my_row;
    int row = 16 * share.first_tile + my_row;
    int tile_stage = begin - first_gate_tile * share.stages_of_tile;
    if (round > 0) __syncthreads();  // the sums of the round before have been read
    // A warp without a stage adds nothing to the tile that its neighbours share.
    if (num_gate_tiles == 0 && q < 2) sums_of_warps[warp * 2 * 16 + my_row] = 0;
    // Gate/up tiles, or what this warp has of them, then tiles of `down`.
    for (int job = -num_gate_tiles;; ++job) {
      if (job == 0) {
        __syncthreads();
        finisher.finish(p, share, items, sums_of_warps, values, barrier);
        wait_barrier(barrier, round / 2 % 2);
      }
      if (job == share.num_tiles) break;
      int stages = 1;
      if (job < 0) {
        stages = min(end - begin, share.stages_of_tile - tile_stage);
        if (job == -1 && num_gate_tiles > 1)
          stages = end - (first_gate_tile + num_gate_tiles - 1) * share.stages_of_tile;
        product.restart(staged + tile_stage * (kItems * kUnitActivationBytes<1>));
        tile_stage = 0;
      } else {
        product.restart(values);
      }
#pragma unroll 1
      for (; stages > 0; --stages) {
        wait_for_copies<kStages - 1>();
        __syncwarp();
        product.add_whole_stage(shared + warp * kStages * kStageBytes<F> + stage);
        __syncwarp();
        fill(opaque(ring + stage));
        stage += kStageBytes<F>;
        if (stage == kStages * kStageBytes<F>) stage = 0;
      }
      const float sum = product.finished_row();
      if (q >= 2) continue;
      if (job < 0) {
        sums_of_warps[(warp * 2 + job + num_gate_tiles) * 16 + my_row] = sum;
        continue;
      }
      if (row < p.hidden)
        *partial = round == 0 ? sum * kSumScale<F> : *partial + sum * kSumScale<F>;
      row += 16, partial += 16;
    }
  }
}

constexpr int kSumWarps = 16;

/// x += the clusters' partial sums, in order, and the chosen experts' weighted biases.
__global__ void __launch_bounds__(32 * kSumWarps) sum_partials(const __grid_constant__ Step p) {
  __shared__ float sums[kSumWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * 32 + lane;
  // `route` and `out` ran before the kernel before this one.
  float sum = 0, residual = 0;
  if (row < p.hidden) {
    for (int n = warp; n < p.top_k; n += kSumWarps) {
      sum +=
          p.expert_weights[n] * p.down_bias[static_cast<int64_t>(p.expert_ids[n]) * p.hidden + row];
    }
    if (warp == 0) residual = p.x[row];
  }
  wait_for_previous();
  launch_next();
  const int used = min(p.num_clusters, p.top_k * p.num_units_down);
  if (row < p.hidden) {
#pragma unroll 8
    for (int c = warp; c < used; c += kSumWarps)
      sum += p.partials[static_cast<int64_t>(c) * p.hidden + row];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || row >= p.hidden) return;
#pragma unroll
  for (int w = 0; w < kSumWarps; ++w) residual += sums[w][lane];
  p.x[row] = residual;
}

/// False, and nothing done, for shapes that this way does not serve: sizes in whole stages and
/// items, and room for the warps that an item's tiles need.
template <DType F>
bool launch_one_token(Step step, const BlockLimits& limits, cudaStream_t stream, const char* row) {
  constexpr int kOfWarp = kStages * kStageBytes<F> + 2 * 16 * 4;
  const int fixed = Layout<F>(0, step.num_units).bytes;
  const int room = (static_cast<int>(limits.shared_bytes) - fixed) / kOfWarp;
  if (room < kMinWarps || step.num_units % kItems != 0 || step.hidden % 64 != 0 ||
      step.intermediate % 64 != 0)
    return false;
  const int num_warps = std::min(room, kMaxWarps);
  step.num_clusters = std::clamp(limits.num_units / 2, 1, kMaxClusters);
  launch_kernel(row, slice_experts<F>, step,
                {.grid = dim3(static_cast<unsigned>(2 * step.num_clusters)),
                 .num_threads = 32 * num_warps,
                 .shared_bytes = static_cast<uint64_t>(Layout<F>(num_warps, step.num_units).bytes),
                 .cluster = 2,
                 .programmatic = true},
                stream);
  launch_kernel(row, sum_partials, step,
                {.grid = dim3(static_cast<unsigned>(ceil_div(step.hidden, 32))),
                 .num_threads = 32 * kSumWarps,
                 .programmatic = true},
                stream);
  return true;
}

}  // namespace moxie::one_token
