// Kernels that make block-scaled operands: limited by memory.
//
// Unpacking: a warp takes 16 rows x 128 columns at a time, two units. A lane's word of eight codes
// becomes eight nibbles in the order of K; four neighbouring lanes exchange their words, so that
// each stores 16 bytes of a row and a row's 64 bytes are stored at once. Bytes a layer of
// gpt-oss-120b with all 128 experts: 1.69 GB read, 1.73 GB written.
#include "core/cuda_launch.cuh"
#include "core/fragment.h"
#include "kernels/gemm/blocked_mx_cuda.h"
#include "kernels/gemm/stage_mx.cuh"
#include "kernels/ptx.cuh"

namespace moxie::gemm {
namespace {

constexpr int kFindThreads = 128;
constexpr int kUnpackWarps = 8;
constexpr int kSpans = 2;  // of 128 columns, that a warp unpacks at once
constexpr int kMostSwigluThreads = 512;

struct FindTask {
  SortedPairs sorted;
  SlotGroup* groups;
};

// A block a group; the last block clears what is behind the last group.
__global__ void __launch_bounds__(kFindThreads) find_groups(const __grid_constant__ FindTask p) {
  wait_for_previous();
  launch_next();
  const int32_t num_tiles = *p.sorted.num_tiles, number = static_cast<int32_t>(blockIdx.x);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (blockIdx.x + 1 == gridDim.x) {
    int32_t end = 0;
    if (num_tiles > 0) {
      const SlotTile last = p.sorted.tiles[num_tiles - 1];
      end = (last.first_slot + last.num_slots + kSlotsAlign - 1) / kSlotsAlign;
    }
    for (int32_t i = end + thread; i < p.sorted.capacity / kSlotsAlign; i += kFindThreads)
      p.groups[i] = {0, 0, 0};
    return;
  }
  if (number >= num_tiles) return;
  const SlotTile tile = p.sorted.tiles[number];
  const int32_t first_row = first_scale_row(number, tile.first_slot);
  for (int32_t slot = kSlotsAlign * thread; slot < tile.num_slots;
       slot += kSlotsAlign * kFindThreads) {
    p.groups[(tile.first_slot + slot) / kSlotsAlign] = {tile.expert, first_row + slot,
                                                        min(kSlotsAlign, tile.num_slots - slot)};
  }
}

/// Eight E2M1 codes of a packed word as nibbles in the order of K.
__device__ __forceinline__ uint32_t nibbles_of(uint32_t word) {
  uint32_t pairs[4], nibbles = 0;
  fragment_mxfp4_pairs(word, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = (pairs[i] >> 12 & 0x00080008u) | (pairs[i] >> 6 & 0x00070007u);
    nibbles |= ((two | two >> 12) & 0xFFu) << (8 * i);
  }
  return nibbles;
}

/// Four lanes' four words each: word i of lane q becomes word q of lane i.
__device__ __forceinline__ void transpose_words(uint32_t (&words)[4]) {
  const uint32_t q = threadIdx.x % 4;
#pragma unroll
  for (uint32_t bit = 1; bit < 4; bit *= 2) {
    const bool is_upper = (q & bit) != 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t other =
          __shfl_xor_sync(~0u, is_upper ? words[i] : words[i | bit], static_cast<int>(bit));
      (is_upper ? words[i] : words[i | bit]) = other;
    }
  }
}

struct UnpackTask {
  UnpackWeights step;
  int64_t expert_bytes, code_bytes, scale_bytes;  // of an expert, and of a group's result
  int32_t num_units, num_spans, spans_a_tile, num_warps;
};

__global__ void __launch_bounds__(32 * kUnpackWarps)
    unpack_experts(const __grid_constant__ UnpackTask p) {
  constexpr int kUnitBytes = 544, kCodeBytes = 512;
  constexpr uint32_t kOne = 0x7F7F7F7Fu;  // scales of 1, of padding
  wait_for_previous();
  launch_next();
  const int group = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x) * kUnpackWarps + static_cast<int>(threadIdx.x) / 32;
  if (group >= *p.step.num_tiles || i >= p.num_warps) return;
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, q = lane % 4;
  const int tile = i / p.spans_a_tile, first = i % p.spans_a_tile * kSpans;
  const std::byte* units = p.step.matrix.data +
                           int64_t{p.step.tiles[group].expert} * p.expert_bytes +
                           int64_t{tile} * p.num_units * kUnitBytes;
  uint4 codes[2 * kSpans];
  uint32_t scales[2 * kSpans];
#pragma unroll
  for (int u = 0; u < 2 * kSpans; ++u) {
    const int unit = 2 * first + u;
    codes[u] = {}, scales[u] = kOne;
    if (unit >= p.num_units) continue;
    const std::byte* at = units + int64_t{unit} * kUnitBytes;
    codes[u] = __ldg(reinterpret_cast<const uint4*>(at + 16 * lane));
    scales[u] = __ldg(reinterpret_cast<const uint32_t*>(at + kCodeBytes + 4 * g));
  }
  const int32_t columns = p.step.to.columns;
  std::byte* to = p.step.to.codes + group * p.code_bytes;
  uint8_t* to_scales = p.step.to.scales + group * p.scale_bytes;
#pragma unroll
  for (int span = 0; span < kSpans; ++span) {
    if (first + span >= p.num_spans) break;
    const uint4 &left = codes[2 * span], &right = codes[2 * span + 1];
    const uint32_t left_scales = scales[2 * span], right_scales = scales[2 * span + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * tile + g + 8 * half;
      // Blocks of 32 columns of the row: eight columns each, of this lane.
      uint32_t words[4] = {
          nibbles_of(half == 0 ? left.x : left.y), nibbles_of(half == 0 ? left.z : left.w),
          nibbles_of(half == 0 ? right.x : right.y), nibbles_of(half == 0 ? right.z : right.w)};
      transpose_words(words);
      if (row >= p.step.matrix.rows) continue;  // the same for all of 8 rows
      *reinterpret_cast<uint4*>(to + int64_t{row} * (columns / 2) + 64 * (first + span) +
                                16 * q) = {words[0], words[1], words[2], words[3]};
      if (q == half) {
        *reinterpret_cast<uint32_t*>(to_scales +
                                     blocked_scale_offset(row, 4 * (first + span), columns)) =
            __byte_perm(left_scales, right_scales, half == 0 ? 0x6420 : 0x7531);
      }
    }
  }
}

/// Four scales, of a block of 32 columns each, from sixteen neighbouring lanes: the word of the
/// first, in all of them.
__device__ __forceinline__ uint32_t gather_scales(uint8_t scale) {
  uint32_t word = uint32_t{scale} << (8 * (threadIdx.x / 4 % 4));
  word |= __shfl_xor_sync(~0u, word, 4);
  return word | __shfl_xor_sync(~0u, word, 8);
}

/// Eight values of a block as E4M3 codes, times 2^(127 - scale) in two factors
/// (mx_activation_code()).
__device__ __forceinline__ uint2 round_eight(const float4 (&eight)[2], uint8_t scale) {
  const int up = 127 - scale, half = up / 2;
  const float first = __uint_as_float(static_cast<uint32_t>(127 + half) << 23);
  const float second = __uint_as_float(static_cast<uint32_t>(127 + up - half) << 23);
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4& v = eight[i];
    words[i] = pack_e4m3(v.x * first * second, v.y * first * second) |
               uint32_t{pack_e4m3(v.z * first * second, v.w * first * second)} << 16;
  }
  return make_uint2(words[0], words[1]);
}

template <int kCount, bool kIsNormed>
__global__ void stage_rows_blocked(const __grid_constant__ StageBlocked step) {
  const StageSlots& p = step.slots;
  const int lane = threadIdx.x % 32, columns = step.to.columns;
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  float4 values[kCount][2];
  load_eights<kCount, kIsNormed>(p, values);
  int32_t slot = 0, row = 0;
  if (lane < p.top_k) {
    slot = p.slot_of_pair[token * p.top_k + lane];
    row = step.groups[slot / kSlotsAlign].first_row + slot % kSlotsAlign;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int group = threadIdx.x + i * blockDim.x;
    const uint8_t scale = scale_of_eights(values[i], MxElement::kE4M3);
    const uint2 made = round_eight(values[i], scale);
    const uint32_t four = gather_scales(scale);
    for (int k = 0; k < p.top_k; ++k) {
      const int32_t to = __shfl_sync(~0u, slot, k), scale_row = __shfl_sync(~0u, row, k);
      if (8 * group >= columns) continue;
      *reinterpret_cast<uint2*>(step.to.codes + int64_t{to} * columns + 8 * group) = made;
      if (lane % 16 == 0) {
        *reinterpret_cast<uint32_t*>(step.to.scales +
                                     blocked_scale_offset(scale_row, group / 4, columns)) = four;
      }
    }
  }
}

__device__ __forceinline__ float4 unpack_four(uint32_t low, uint32_t high) {
  return make_float4(__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF0000u),
                     __uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000u));
}
__device__ __forceinline__ float swiglu(float gate, float up, float alpha, float limit) {
  const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
  return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + 1.0f);
}

// A block takes eight slots of one expert, a thread eight outputs at a time.
__global__ void __launch_bounds__(kMostSwigluThreads)
    stage_swiglu_rows(const __grid_constant__ StageSwiglu p) {
  wait_for_previous();
  launch_next();
  const SlotGroup slots = p.groups[blockIdx.x];
  if (slots.num_slots == 0) return;
  const int lane = threadIdx.x % 32, columns = p.to.columns;
  const int64_t first_slot = int64_t{kSlotsAlign} * blockIdx.x;
  for (int first = 0; 8 * first < columns; first += static_cast<int>(blockDim.x)) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool is_real = 8 * i < p.intermediate;
    // Gate, then up, of eight outputs: 16 neighbouring packed rows.
    float4 biases[4] = {};
    if (is_real) {
      const auto* bias =
          reinterpret_cast<const float4*>(p.bias + int64_t{slots.expert} * p.rows + 16 * i);
#pragma unroll
      for (int k = 0; k < 4; ++k) biases[k] = __ldg(bias + k);
    }
    for (int j = 0; j < slots.num_slots; ++j) {
      const int64_t slot = first_slot + j;
      float4 made[2] = {};
      if (is_real) {
        const auto* at = reinterpret_cast<const uint4*>(p.products + slot * p.rows + 16 * i);
        const uint4 gates = at[0], ups = at[1];
        const float4 of_gate[2] = {unpack_four(gates.x, gates.y), unpack_four(gates.z, gates.w)};
        const float4 of_up[2] = {unpack_four(ups.x, ups.y), unpack_four(ups.z, ups.w)};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float4 &gate = of_gate[half], &up = of_up[half];
          const float4 &b = biases[half], &c = biases[2 + half];
          made[half] = {swiglu(gate.x + b.x, up.x + c.x, p.alpha, p.limit),
                        swiglu(gate.y + b.y, up.y + c.y, p.alpha, p.limit),
                        swiglu(gate.z + b.z, up.z + c.z, p.alpha, p.limit),
                        swiglu(gate.w + b.w, up.w + c.w, p.alpha, p.limit)};
        }
      }
      const uint8_t scale = scale_of_eights(made, MxElement::kE4M3);
      const uint2 codes = round_eight(made, scale);
      const uint32_t four = gather_scales(scale);
      if (8 * i >= columns) continue;
      *reinterpret_cast<uint2*>(p.to.codes + slot * columns + 8 * i) = codes;
      if (lane % 16 == 0) {
        *reinterpret_cast<uint32_t*>(
            p.to.scales + blocked_scale_offset(slots.first_row + j, i / 4, columns)) = four;
      }
    }
  }
}

}  // namespace

void find_slot_groups(const SortedPairs& sorted, const SortShape& shape, SlotGroup* groups,
                      Stream* stream) {
  CHECK(shape.tile_slots >= shape.num_pairs(), "a tile holds a whole group");
  launch_kernel("find_slot_groups", find_groups, FindTask{sorted, groups},
                {.grid = dim3(static_cast<unsigned>(shape.num_runs() + 1)),
                 .num_threads = kFindThreads,
                 .programmatic = true},
                launch_stream(stream));
}

void unpack_weights(const UnpackWeights& step, Stream* stream) {
  const PackedMatrix& m = step.matrix;
  CHECK(m.format == DType::kMXFP4 && m.layout == PackedLayout::kFragment16x32);
  CHECK(m.rows % 8 == 0 && step.to.columns == blocked_columns(m.cols),
        std::to_string(m.rows) + " x " + std::to_string(step.to.columns));
  if (step.most_groups == 0) return;
  const int32_t num_spans = step.to.columns / kBlockedColumns;
  UnpackTask task{.step = step,
                  .expert_bytes = m.expert_bytes(),
                  .code_bytes = blocked_code_bytes(m),
                  .scale_bytes = blocked_scale_bytes(m),
                  .num_units = m.num_units(),
                  .num_spans = num_spans,
                  .spans_a_tile = ceil_div(num_spans, kSpans),
                  .num_warps = m.num_tiles() * ceil_div(num_spans, kSpans)};
  launch_kernel("unpack_weights", unpack_experts, task,
                {.grid = dim3(static_cast<unsigned>(ceil_div(task.num_warps, kUnpackWarps)),
                              static_cast<unsigned>(step.most_groups)),
                 .num_threads = 32 * kUnpackWarps,
                 .programmatic = true},
                launch_stream(stream));
}

void stage_blocked(const StageBlocked& step, Stream* stream) {
  const int32_t width = step.slots.to.width, columns = step.to.columns;
  CHECK(step.slots.top_k <= 32, "top_k " + std::to_string(step.slots.top_k));
  CHECK(width % 4 == 0 && width <= kMaxStagedWidth && columns == blocked_columns(width),
        "width " + std::to_string(width));
  if (step.slots.num_tokens == 0) return;
  constexpr int kSome = 1, kMost = kMaxStagedWidth / 8 / (32 * kMaxMxWarps);
  const int num_groups = columns / 8;
  const bool is_wide = num_groups > 32 * kMaxMxWarps * kSome;
  const auto launch = [&]<bool kIsNormed>() {
    launch_kernel(
        "stage_blocked",
        is_wide ? stage_rows_blocked<kMost, kIsNormed> : stage_rows_blocked<kSome, kIsNormed>, step,
        {.grid = dim3(static_cast<unsigned>(step.slots.num_tokens)),
         .num_threads = 32 * ceil_div(num_groups, 32 * (is_wide ? kMost : kSome)),
         .programmatic = true},
        launch_stream(stream));
  };
  step.slots.norm_weight != nullptr ? launch.template operator()<true>()
                                    : launch.template operator()<false>();
}

void stage_swiglu(const StageSwiglu& step, Stream* stream) {
  CHECK(step.intermediate % 8 == 0 && step.to.columns == blocked_columns(step.intermediate),
        "intermediate size " + std::to_string(step.intermediate));
  CHECK(
      step.rows >= 2 * step.intermediate && step.rows % 8 == 0 && step.capacity % kSlotsAlign == 0,
      "rows " + std::to_string(step.rows));
  if (step.capacity == 0) return;
  launch_kernel("stage_swiglu", stage_swiglu_rows, step,
                {.grid = dim3(static_cast<unsigned>(step.capacity / kSlotsAlign)),
                 .num_threads = std::min(kMostSwigluThreads, round_up(step.to.columns / 8, 32)),
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace moxie::gemm
