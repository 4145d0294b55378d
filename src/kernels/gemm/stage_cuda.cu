// Staging: a block takes a token, a warp a unit of its columns at a time, a lane a pair of columns:
// a warp reads and writes contiguous memory. The loads of all of a warp's units are issued before
// the first is used.
//
// Bytes at 8,192 tokens of 2,880 columns: normed, 94 MB of single x read, 47 MB written; slots of
// four pairs, 94 MB read, 189 MB written.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/mx_atom.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/gemm/stage_mx.cuh"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie::gemm {
namespace {

constexpr int kMaxWarps = kMaxMxWarps;
// Units that a warp holds: for the models' widths, and for the greatest widths.
constexpr int kHeld = 5, kMostHeld = 12, kMostFloatsHeld = 18;
static_assert(kMaxStagedWidth == kStagedColumns * kMaxWarps * kMostHeld);
static_assert(kMaxStagedFloatsWidth == kStagedColumns * kMaxWarps * kMostFloatsHeld);

/// The power of two that scales `greatest` to 224 (exclusive) .. 448; 1 for 0 and for values that
/// no such power scales there.
__device__ __forceinline__ float e4m3_scale(float greatest) {
  const uint32_t bits = __float_as_uint(greatest), exponent = bits >> 23;
  // 1.75 * 2^8 is the greatest E4M3.
  const uint32_t up = 127 + 8 + 127 - exponent - ((bits & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return exponent < 20 || exponent > 240 ? 1.0f : __uint_as_float(up << 23);
}

/// What a thread stages: a pair of columns of every num_warps-th unit.
template <int kCount>
struct LaneColumns {
  int lane = threadIdx.x % 32, first = threadIdx.x / 32, step = blockDim.x / 32;
  int32_t width, num_units;

  __device__ __forceinline__ explicit LaneColumns(int32_t columns)
      : width(columns), num_units(staged_units(columns)) {}
  __device__ __forceinline__ int unit(int i) const { return first + i * step; }
  __device__ __forceinline__ int column(int i) const { return kStagedColumns * unit(i) + 2 * lane; }
  __device__ __forceinline__ void load(const float* row, float2 (&pairs)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      pairs[i] = column(i) < width ? *reinterpret_cast<const float2*>(row + column(i))
                                   : make_float2(0.0f, 0.0f);
    }
  }
  __device__ __forceinline__ void store(const StagedView& to, int32_t row,
                                        const uint32_t (&words)[kCount]) const {
    std::byte* at = to.data + static_cast<int64_t>(row) * kStagedRowBytes +
                    staged_pair_offset(static_cast<uint32_t>(row), static_cast<uint32_t>(lane));
    const int64_t unit_stride = static_cast<int64_t>(to.capacity) * kStagedRowBytes;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (unit(i) < num_units) *reinterpret_cast<uint32_t*>(at + unit(i) * unit_stride) = words[i];
    }
  }
};

/// RMSNorm of a token's x, from value number `first` on, times a power of two, in BF16.
template <int kCount>
__device__ __forceinline__ void norm_words(const LaneColumns<kCount>& mine, const float* x,
                                           int64_t first, bool x_is_single,
                                           const float2 (&weight)[kCount], float rms_eps,
                                           float scale, uint32_t (&words)[kCount]) {
  __shared__ float squares[kMaxWarps];
  float4 halves[kCount];
  with_single(x_is_single, [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      halves[i] = mine.column(i) < mine.width ? load_residual<kIsSingle>(x, first + mine.column(i))
                                              : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  });
  float2 pairs[kCount];
  float square = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    pairs[i] = whole(halves[i]);
    square += pairs[i].x * pairs[i].x + pairs[i].y * pairs[i].y;
  }
  square = warp_sum(square);
  if (mine.lane == 0) squares[mine.first] = square;
  __syncthreads();
  square = warp_sum(mine.lane < mine.step ? squares[mine.lane] : 0.0f);
  const float factor = scale / sqrtf(square / static_cast<float>(mine.width) + rms_eps);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    words[i] = pack_bf16(pairs[i].x * factor * weight[i].x, pairs[i].y * factor * weight[i].y);
}

template <int kCount>
__global__ void stage_normed_rows(const __grid_constant__ StageNormed p) {
  const LaneColumns<kCount> mine(p.to.width);
  float2 weight[kCount];
  mine.load(p.norm_weight, weight);
  wait_for_previous();
  launch_next();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int64_t token = p.row_idx == nullptr ? row : p.row_idx[row];
  uint32_t words[kCount];
  norm_words(mine, p.x, token * p.to.width, p.x_is_single, weight, p.rms_eps, 1.0f, words);
  mine.store(p.to, row, words);
}

template <int kCount>
__device__ __forceinline__ void load_words(const LaneColumns<kCount>& mine, const float* row,
                                           float scale, uint32_t (&words)[kCount]) {
  float2 pairs[kCount];
  mine.load(row, pairs);
#pragma unroll
  for (int i = 0; i < kCount; ++i) words[i] = pack_bf16(scale * pairs[i].x, scale * pairs[i].y);
}

template <int kCount>
__global__ void stage_float_rows(const __grid_constant__ StageFloats p) {
  const LaneColumns<kCount> mine(p.to.width);
  wait_for_previous();
  launch_next();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  uint32_t words[kCount];
  load_words(mine, p.values + static_cast<int64_t>(row) * p.to.width, 1.0f, words);
  mine.store(p.to, row, words);
}

template <int kCount, bool kIsNormed>
__global__ void stage_slot_rows(const __grid_constant__ StageSlots p) {
  const LaneColumns<kCount> mine(p.to.width);
  [[maybe_unused]] float2 weight[kCount];
  if constexpr (kIsNormed) mine.load(p.norm_weight, weight);
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  const int32_t* slots = p.slot_of_pair + token * p.top_k;
  const int32_t slot = mine.lane < p.top_k ? slots[mine.lane] : 0;
  uint32_t words[kCount];
  if constexpr (kIsNormed) {
    norm_words(mine, p.values, token * p.to.width, p.x_is_single, weight, p.rms_eps, p.scale,
               words);
  } else {
    load_words(mine, p.values + token * p.to.width, p.scale, words);
  }
  for (int k = 0; k < p.top_k; ++k) {
    const int32_t to = __shfl_sync(~0u, slot, k);
    if (to >= 0) mine.store(p.to, to, words);
  }
}

struct StageSlotsE4m3 {
  StageSlots slots;
  float* slot_scale;
};

// A thread has every blockDim.x-th group of four columns. With a norm, `values` is x, and the
// thread holds x times the weight; the norm's factor then becomes part of the scale.
template <int kCount, bool kIsNormed>
__global__ void stage_slot_rows_e4m3(const __grid_constant__ StageSlotsE4m3 params) {
  __shared__ float greatest_of[kMaxWarps], squares[kMaxWarps];
  const StageSlots& p = params.slots;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const int num_groups = kStagedColumns / 4 * staged_units(p.to.width);
  const auto column = [](int i) { return 4 * static_cast<int>(threadIdx.x + i * blockDim.x); };
  [[maybe_unused]] float4 weight[kCount];
  if constexpr (kIsNormed) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      weight[i] = column(i) < p.to.width
                      ? *reinterpret_cast<const float4*>(p.norm_weight + column(i))
                      : float4{};
    }
  }
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  float4 values[kCount];
  const auto load = [&]<bool kIsSingle>() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      ResidualFour<kIsSingle> four = {};
      if (column(i) < p.to.width) four.load(p.values, token * p.to.width + column(i));
      values[i] = four.values();
    }
  };
  float square = 0, greatest = 0;
  if constexpr (kIsNormed) {
    with_single(p.x_is_single, load);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float4& v = values[i];
      square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      v = {v.x * weight[i].x, v.y * weight[i].y, v.z * weight[i].z, v.w * weight[i].w};
    }
    square = warp_sum(square);
    if (lane == 0) squares[warp] = square;
  } else {
    load.template operator()<true>();
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    greatest = fmaxf(fmaxf(greatest, fmaxf(fabsf(values[i].x), fabsf(values[i].y))),
                     fmaxf(fabsf(values[i].z), fabsf(values[i].w)));
  }
  greatest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(greatest)));
  if (lane == 0) greatest_of[warp] = greatest;
  const int32_t* slots = p.slot_of_pair + token * p.top_k;
  const int32_t slot = lane < p.top_k ? slots[lane] : 0;
  __syncthreads();
  greatest = lane < num_warps ? greatest_of[lane] : 0.0f;
  greatest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(greatest)));
  float factor = 1.0f;
  if constexpr (kIsNormed) {
    square = warp_sum(lane < num_warps ? squares[lane] : 0.0f);
    factor = 1.0f / sqrtf(square / static_cast<float>(p.to.width) + p.rms_eps);
  }
  float scale = e4m3_scale(greatest * factor);
  if (warp == 0 && lane < p.top_k && slot >= 0) params.slot_scale[slot] = 1.0f / scale;
  scale *= factor;
  uint32_t words[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    words[i] = pack_e4m3(values[i].x * scale, values[i].y * scale) |
               static_cast<uint32_t>(pack_e4m3(values[i].z * scale, values[i].w * scale)) << 16;
  }
  constexpr int64_t kRowBytes = staged_row_bytes(DType::kF8E4M3);
  for (int k = 0; k < p.top_k; ++k) {
    const int32_t to = __shfl_sync(~0u, slot, k);
    if (to < 0) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto group = static_cast<uint32_t>(threadIdx.x + i * blockDim.x);
      if (group >= static_cast<uint32_t>(num_groups)) continue;
      const int64_t unit = group / 16;
      *reinterpret_cast<uint32_t*>(p.to.data + (unit * p.to.capacity + to) * kRowBytes +
                                   staged_quad_offset(static_cast<uint32_t>(to), group % 16)) =
          words[i];
    }
  }
}

struct StageSlotsMx {
  StageSlots slots;
  MxElement element;
};

template <int kCount, bool kIsNormed, DType kActivation>
__global__ void stage_slot_rows_mx(const __grid_constant__ StageSlotsMx params) {
  const StageSlots& p = params.slots;
  const int lane = threadIdx.x % 32, num_groups = kStagedColumns / 8 * staged_units(p.to.width);
  wait_for_previous();
  launch_next();
  const int64_t token = blockIdx.x;
  float4 values[kCount][2];
  load_eights<kCount, kIsNormed>(p, values);
  const int32_t* slots = p.slot_of_pair + token * p.top_k;
  const int32_t slot = lane < p.top_k ? slots[lane] : 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int group = threadIdx.x + i * blockDim.x;
    const uint8_t scale = scale_of_eights(values[i], params.element);
    const int unit = group / 8;
    const auto block = static_cast<uint32_t>(group / 4 % 2), q = static_cast<uint32_t>(lane % 4);
    for (int k = 0; k < p.top_k; ++k) {
      const int32_t to = __shfl_sync(~0u, slot, k);
      if (to < 0 || group >= num_groups) continue;
      const int64_t at = int64_t{unit} * p.to.capacity + to;
      store_eight<kActivation>(p.to.data + at * staged_row_bytes(kActivation),
                               static_cast<uint32_t>(to), block, q, params.element, scale,
                               values[i][0], values[i][1]);
      if (q == 0) reinterpret_cast<uint8_t*>(p.to.scales)[kStagedScaleBytes * at + block] = scale;
    }
  }
}

// `most` holds `most_held` units a warp.
template <typename P>
void launch_rows(const char* name, void (*some)(P), void (*most)(P), const P& params,
                 int32_t num_rows, Stream* stream, int most_held = kMostHeld) {
  const StagedView& to = params.to;
  CHECK(to.width % 4 == 0 && to.width <= kStagedColumns * kMaxWarps * most_held,
        "width " + std::to_string(to.width));
  CHECK(to.capacity % kStagedRows == 0, "capacity " + std::to_string(to.capacity));
  if (num_rows == 0) return;
  const int num_units = staged_units(to.width);
  const bool is_wide = num_units > kMaxWarps * kHeld;
  launch_kernel(name, is_wide ? most : some, params,
                {.grid = dim3(static_cast<unsigned>(num_rows)),
                 .num_threads = 32 * ceil_div(num_units, is_wide ? most_held : kHeld),
                 .programmatic = true},
                launch_stream(stream));
}

}  // namespace

void stage_normed(const StageNormed& step, Stream* stream) {
  launch_rows("stage_normed", stage_normed_rows<kHeld>, stage_normed_rows<kMostHeld>, step,
              step.num_rows, stream);
}

void stage_floats(const StageFloats& step, Stream* stream) {
  launch_rows("stage_floats", stage_float_rows<kHeld>, stage_float_rows<kMostFloatsHeld>, step,
              step.num_rows, stream, kMostFloatsHeld);
}

void stage_slots(const StageSlots& step, Stream* stream) {
  CHECK(step.top_k <= 32, "top_k " + std::to_string(step.top_k));
  const auto launch = [&]<bool kIsNormed>() {
    launch_rows("stage_slots", stage_slot_rows<kHeld, kIsNormed>,
                stage_slot_rows<kMostHeld, kIsNormed>, step, step.num_tokens, stream);
  };
  if (step.norm_weight != nullptr) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
}

namespace {

void check_slots(const StageSlots& step) {
  const StagedView& to = step.to;
  CHECK(step.top_k <= 32, "top_k " + std::to_string(step.top_k));
  CHECK(to.width % 4 == 0 && to.width <= kMaxStagedWidth, "width " + std::to_string(to.width));
  CHECK(to.capacity % kStagedRows == 0, "capacity " + std::to_string(to.capacity));
}

}  // namespace

void stage_slots_mx(const StageSlots& step, DType format, Stream* stream) {
  check_slots(step);
  if (step.num_tokens == 0) return;
  constexpr int kSome = 1, kMost = kMaxStagedWidth / 8 / (32 * kMaxWarps);
  const int num_groups = kStagedColumns / 8 * staged_units(step.to.width);
  const bool is_wide = num_groups > 32 * kMaxWarps * kSome;
  const int held = is_wide ? kMost : kSome;
  const auto launch = [&]<bool kIsNormed, DType kActivation>() {
    launch_kernel("stage_slots_mx",
                  is_wide ? stage_slot_rows_mx<kMost, kIsNormed, kActivation>
                          : stage_slot_rows_mx<kSome, kIsNormed, kActivation>,
                  StageSlotsMx{step, mx_element_of(format)},
                  {.grid = dim3(static_cast<unsigned>(step.num_tokens)),
                   .num_threads = 32 * ceil_div(num_groups, 32 * held),
                   .programmatic = true},
                  launch_stream(stream));
  };
  const bool is_normed = step.norm_weight != nullptr;
  if (format == DType::kMXFP4) {
    is_normed ? launch.template operator()<true, DType::kMXFP4>()
              : launch.template operator()<false, DType::kMXFP4>();
  } else {
    is_normed ? launch.template operator()<true, DType::kMXFP8>()
              : launch.template operator()<false, DType::kMXFP8>();
  }
}

void stage_slots_e4m3(const StageSlots& step, float* slot_scale, Stream* stream) {
  const StagedView& to = step.to;
  check_slots(step);
  if (step.num_tokens == 0) return;
  constexpr int kSome = 2, kMost = kMaxStagedWidth / 4 / (32 * kMaxWarps);
  const int num_groups = kStagedColumns / 4 * staged_units(to.width);
  const bool is_wide = num_groups > 32 * kMaxWarps * kSome;
  const int held = is_wide ? kMost : kSome;
  const auto launch = [&]<bool kIsNormed>() {
    launch_kernel(
        "stage_slots_e4m3",
        is_wide ? stage_slot_rows_e4m3<kMost, kIsNormed> : stage_slot_rows_e4m3<kSome, kIsNormed>,
        StageSlotsE4m3{step, slot_scale},
        {.grid = dim3(static_cast<unsigned>(step.num_tokens)),
         .num_threads = 32 * ceil_div(num_groups, 32 * held),
         .programmatic = true},
        launch_stream(stream));
  };
  if (step.norm_weight != nullptr) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
}

}  // namespace moxie::gemm
