// unembed on CUDA for one row: norm and head, tiles of 16 vocabulary entries streamed through a
// ring in shared memory.
//
// The last warp of a block copies tiles in bulk. The others, its team, share the columns of each
// tile: what a warp multiplies by is the same for all tiles and stays in registers. The last warp
// adds their sums up, writes the logits and fills the slot again.
//
// All warps of a block work at one rate, and a block has about 100 KB on their way: so blocks end
// closer together than where each warp has tiles of its own, and memory is read faster.
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

using namespace fragment;

constexpr const char* kRowName = "unembed_any_bf16x2_stream_cuda";
constexpr int kMostTeam = 15;
// More bytes on their way to an SM, and slots in which a tile begins elsewhere in a line of memory
// than in the tiles before, are read more slowly.
constexpr int kMostSlots = 4;
constexpr int kUnitsOfWarp = 3;  // of a tile

/// A slot of the ring has kUnits units of a tile for each warp of the team. A batch has about 100
/// KB: smaller ones read memory more slowly, and larger ones let blocks end further apart.
template <DType F>
struct SlotShape {
  static constexpr int kUnits = F == DType::kMXFP4 ? kUnitsOfWarp : 1;
  static constexpr int kSlotsOfTile = kUnitsOfWarp / kUnits;
  static constexpr int kTilesOfBatch = F == DType::kMXFP4 ? 4 : F == DType::kBF16 ? 1 : 2;
  static constexpr int kWarpBytes = kUnits * kUnitBytes<F>;  // of a slot
};

struct StreamStep {
  PackedMatrix weight;
  const float* x;  // [tokens, hidden], two floats a value or one
  bool x_is_single;
  const int32_t* row_idx;    // [1]
  const float* norm_weight;  // [hidden]
  float* logits;             // [vocab]
  float rms_eps;
  int32_t hidden, num_tiles, num_slots;
};

/// The slots of a block in turn: of which tile, and of which of its parts. A block takes every
/// gridDim.x-th batch. By one thread.
template <DType F>
struct SlotCursor {
  using S = SlotShape<F>;
  int num_tiles, batch = static_cast<int>(blockIdx.x);
  int tile, end, part = 0;  // end: of the batch

  __device__ __forceinline__ explicit SlotCursor(const StreamStep& p) : num_tiles(p.num_tiles) {
    enter();
  }
  /// False: no slot is left.
  __device__ __forceinline__ bool has_slot() const { return tile < end; }
  __device__ __forceinline__ void advance() {
    if (++part < S::kSlotsOfTile) return;
    part = 0;
    if (++tile < end) return;
    batch += static_cast<int>(gridDim.x);
    enter();
  }

 private:
  __device__ __forceinline__ void enter() {
    tile = batch * S::kTilesOfBatch;
    end = min(tile + S::kTilesOfBatch, num_tiles);
  }
};

/// What a warp of the team multiplies by, and its product with its part of a tile.
template <DType F>
struct TeamProduct {
  using S = SlotShape<F>;
  SlotInputs<2> of_unit[S::kSlotsOfTile];
  __device__ __forceinline__ TeamProduct(const std::byte* staged, int team, int warp, int lane) {
    const std::byte* own = staged + lane / 8 * 128 + lane / 4 % 2 * 64 + lane % 4 * 16;
#pragma unroll
    for (int part = 0; part < S::kSlotsOfTile; ++part)
      read_slots(own + (part * team + warp) * kUnitActivationBytes<1>, of_unit[part]);
  }
  __device__ __forceinline__ void add(int part, const std::byte* at, int lane, float (&sums)[2]) {
    constexpr int kOfScale = 2 * Format<F>::kScaleWords;
    const std::byte* scales = at + kCodeBytes<F> + lane / 4 * (2 * kOfScale) + lane % 2 * kOfScale;
    multiply_slots<F, 1>(at + 16 * lane, scales, of_unit[part], sums);
  }
};
template <>
struct TeamProduct<DType::kMXFP4> {
  LaneInStage in_stage;
  SlotInputs<4> of_pair;
  SlotInputs<2> of_odd;
  __device__ __forceinline__ TeamProduct(const std::byte* staged, int, int warp, int lane)
      : in_stage(lane) {
    const uint32_t own = shared_address(staged) + warp * kUnitsOfWarp * kUnitActivationBytes<1> +
                         in_stage.slot * 128 + lane / 4 % 2 * 64 + lane % 4 * 16;
    read_three_slots(in_stage.slot, own, own + 2 * kUnitActivationBytes<1>, of_pair, of_odd);
  }
  __device__ __forceinline__ void add(int, const std::byte* at, int, float (&sums)[2]) {
    ThreeUnits three;
    three.read(shared_address(at), in_stage);
    float pair[2] = {}, odd[2] = {};
    multiply_three(three, of_pair, of_odd, pair, odd);
    sums[0] = pair[0] + odd[0], sums[1] = pair[1] + odd[1];
  }
};

template <DType F>
__global__ void __launch_bounds__(32 * (kMostTeam + 1), 1)
    stream_head(const __grid_constant__ StreamStep p) {
  using S = SlotShape<F>;
  touch_params(p);
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t filled[kMostSlots], multiplied[kMostSlots];
  __shared__ int tiles[kMostSlots];  // of the slots; -1: none is left
  __shared__ float squares[kMostTeam];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int team = static_cast<int>(blockDim.x) / 32 - 1, num_slots = p.num_slots;
  const bool is_last_warp = warp == team;
  const uint32_t slot_bytes = team * S::kWarpBytes;
  std::byte* const staged = shared + num_slots * slot_bytes;
  auto* const sums_of_team =
      reinterpret_cast<float*>(staged + team * kUnitsOfWarp * kUnitActivationBytes<1>);
  SlotCursor<F> cursor(p);
  const auto fill = [&](int slot) {
    tiles[slot] = cursor.has_slot() ? cursor.tile : -1;
    if (!cursor.has_slot()) return arrive_barrier(&filled[slot]);
    expect_bytes(&filled[slot], slot_bytes);
    copy_bulk_streamed(
        shared + slot * slot_bytes,
        p.weight.data + (int64_t{cursor.tile} * S::kSlotsOfTile + cursor.part) * slot_bytes,
        slot_bytes, &filled[slot]);
    cursor.advance();
  };
  if (is_last_warp && lane == 0) {
    for (int i = 0; i < num_slots; ++i)
      init_barrier(&filled[i]), init_barrier(&multiplied[i], 32 * team);
    for (int i = 0; i < num_slots; ++i) fill(i);
  }
  // A warp of the team stages 24 segments of eight columns.
  constexpr int kSegments = 8 * kUnitsOfWarp;
  const int segment = kSegments * warp + lane;
  const bool has_segment = !is_last_warp && lane < kSegments;
  float norm[8] = {}, v[8] = {};
  if (has_segment) load_eight(p.norm_weight + 8 * segment, norm);
  const int64_t first = int64_t{p.row_idx[0]} * p.hidden + 8 * segment;
  wait_for_previous();
  launch_next();

  if (has_segment) {
    if (p.x_is_single) {
      load_eight(p.x + first, v);
    } else {
      load_eight(reinterpret_cast<const float2*>(p.x) + first, v);
    }
  }
  if (!is_last_warp) {
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      square += v[i] * v[i];
      v[i] *= norm[i] * kActivationScale<F>;
    }
    if (has_segment) {
      uint4 high, low;
      split_parts(v, high, low);
      std::byte* to = staged + segment / 4 * kBlockBytes<1> + segment % 4 * 16;
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + 64) = low;
    }
    square = warp_sum(square);
    if (lane == 0) squares[warp] = square;
  }
  __syncthreads();

  int slot = 0;
  uint32_t phase = 0;
  const auto go_on = [&] {
    if (++slot == num_slots) slot = 0, phase ^= 1;
  };
  if (!is_last_warp) {
    TeamProduct<F> product(staged, team, warp, lane);
    for (;;) {
      float sums[2] = {};
#pragma unroll
      for (int part = 0; part < S::kSlotsOfTile; ++part) {
        wait_barrier(&filled[slot], phase);
        if (part == 0 && tiles[slot] < 0) return;
        product.add(part, shared + slot * slot_bytes + warp * S::kWarpBytes, lane, sums);
        if (part == S::kSlotsOfTile - 1) {
          const bool is_bottom = lane % 2 != 0;
          float sum = is_bottom ? sums[1] : sums[0];
          sum += __shfl_xor_sync(~0u, is_bottom ? sums[0] : sums[1], 1);
          sum += __shfl_xor_sync(~0u, sum, 2);
          if (lane % 4 < 2)
            sums_of_team[(slot * team + warp) * 16 + lane / 4 + 8 * (lane % 2)] = sum;
        }
        fence_bulk_copies();
        arrive_barrier(&multiplied[slot]);
        go_on();
      }
    }
  }

  float sum_of_squares = 0;
  for (int w = 0; w < team; ++w) sum_of_squares += squares[w];
  const float factor =
      kSumScale<F> * rsqrtf(sum_of_squares / static_cast<float>(p.hidden) + p.rms_eps);
  // A lane adds up a row's sums of half of the team.
  constexpr int kHalfTeam = (kMostTeam + 1) / 2;
  const int row = lane % 16, first_warp = lane / 16 * kHalfTeam;
  for (;;) {
    int tile = 0;
#pragma unroll
    for (int part = 0; part < S::kSlotsOfTile; ++part) {
      if (part == 0) {
        wait_barrier(&filled[slot], phase);
        tile = tiles[slot];
        if (tile < 0) return;
      }
      wait_barrier(&multiplied[slot], phase);
      float sums[kHalfTeam];
      if (part == S::kSlotsOfTile - 1) {
        const float* of_tile = sums_of_team + (slot * team + first_warp) * 16 + row;
#pragma unroll
        for (int w = 0; w < kHalfTeam; ++w)
          sums[w] = first_warp + w < team ? of_tile[16 * w] : 0.0f;
      }
      __syncwarp();  // all lanes have read what the slot's next filling changes
      if (lane == 0) fill(slot);
      __syncwarp();
      if (part == S::kSlotsOfTile - 1) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kHalfTeam; ++w) sum += sums[w];
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (lane < 16 && 16 * tile + row < p.weight.rows) p.logits[16 * tile + row] = sum * factor;
      }
      go_on();
    }
  }
}

template <DType F>
void launch_head(StreamStep step, const Launch& launch) {
  const BlockLimits limits = block_limits(launch);
  using S = SlotShape<F>;
  const int team = step.weight.num_units() / kUnitsOfWarp;
  const uint64_t staged = uint64_t{kUnitsOfWarp} * kUnitActivationBytes<1> * team;
  const uint64_t a_slot = static_cast<uint64_t>(team) * (S::kWarpBytes + 16 * sizeof(float));
  constexpr uint64_t kOfBlock = 2048;  // static shared memory, and what the device takes
  step.num_slots = static_cast<int32_t>(
      std::min<uint64_t>(kMostSlots, (limits.shared_bytes - kOfBlock - staged) / a_slot));
  CHECK(step.num_slots >= 2, "a ring of two slots fits on every device with clusters");
  launch_kernel(kRowName, stream_head<F>, step,
                {.grid = dim3(static_cast<unsigned>(limits.num_units)),
                 .num_threads = 32 * (team + 1),
                 .shared_bytes = staged + a_slot * static_cast<uint64_t>(step.num_slots),
                 .programmatic = true,
                 .leaves_l1 = launch.l1 == L1Form::kL1},
                launch_stream(launch.stream));
}

}  // namespace

const char* unembed_any_bf16x2_stream_cuda_refuses(const UnembedParams& p) {
  if (p.weight.format == DType::kF32) return "weights in F32";
  if (p.hidden % (64 * kUnitsOfWarp) != 0 || p.hidden > 64 * kUnitsOfWarp * kMostTeam)
    return "hidden is not a multiple of 192 up to 2880";
  return refuses_matrix(p.weight);
}

void unembed_any_bf16x2_stream_cuda(const UnembedParams& p) {
  for (int32_t row = 0; row < p.num_rows; ++row) {
    const StreamStep step{.weight = p.weight,
                          .x = p.x,
                          .x_is_single = p.forms.x == XForm::kF32,
                          .row_idx = p.row_idx + row,
                          .norm_weight = p.norm_weight,
                          .logits = p.logits + static_cast<int64_t>(row) * p.weight.rows,
                          .rms_eps = p.rms_eps,
                          .hidden = p.hidden,
                          .num_tiles = p.weight.num_tiles(),
                          .num_slots = 0};
    dispatch_format(p.weight.format, [&]<DType F>() {
      if constexpr (F != DType::kF32) launch_head<F>(step, p.launch);
    });
  }
}

}  // namespace moxie
