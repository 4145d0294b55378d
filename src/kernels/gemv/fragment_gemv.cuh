// The inner loop of the CUDA decode rows: weights in kFragment16x32 are streamed from memory
// through shared memory, converted to BF16 and multiplied by mma.m16n8k16 with F32 sums.
//
// Activations enter as two BF16 parts, high and low (their sum has 16 bits), in neighbouring
// columns of the instruction. With few tokens these columns would otherwise be unused, so that
// 16-bit activations cost nothing; F32 activations lose 2^-17 of themselves. A pair of columns is a
// slot; column group c has four slots. With several tokens, slot i of group c is token 4 c + i. One
// token takes all four slots of its group, for four successive blocks of 32 columns of the weights;
// each block is zero in the other blocks' slots. The instruction adds to all slots at once, so that
// four blocks need one multiplication by their scales (each lane has one block's scale) instead of
// four. After the product, lane (g, q) holds rows g and g + 8 of slot q.
//
// In shared memory the parts are stored as [block of 32 columns][kTokens][part][32] BF16, so that a
// lane reads its eight values of a block as one vector. Kernels are compiled for 1, 4 and 8 tokens
// (kTokens); with fewer tokens the other columns repeat the last token, and their sums are not
// used.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/fragment.h"
#include "core/tensor.h"
#include "kernels/gemv/few_tokens.h"
#include "kernels/ptx.cuh"
#include "kernels/residual.cuh"

namespace moxie::fragment {

/// The greatest number of tokens of one kernel launch; rows loop over groups of kMaxTokens.
inline constexpr int kMaxTokens = 8;
/// Groups of eight columns of the product.
template <int kTokens>
inline constexpr int kGroupsOf = (kTokens + 3) / 4;
/// Staged activations: bytes of a block of 32 columns, and of a unit.
template <int kTokens>
inline constexpr int kBlockBytes = 128 * kTokens;
template <int kTokens>
inline constexpr int kUnitActivationBytes = 2 * kBlockBytes<kTokens>;

template <DType F>
struct Format;
/// kExponent: activations are scaled by 2^kExponent before they are rounded, because codes as BF16
/// are 2^-kUnit of their values; sums are multiplied by 2^(kUnit - kExponent) at the end.
template <>
struct Format<DType::kMXFP4> {
  static constexpr int kVectors = 1, kScaleWords = 1, kParts = 1, kExponent = 96, kUnit = 126;
};
template <>
struct Format<DType::kMXFP8> {
  static constexpr int kVectors = 2, kScaleWords = 1, kParts = 1, kExponent = 96, kUnit = 120;
};
template <>
struct Format<DType::kQ8_0> {
  static constexpr int kVectors = 2, kScaleWords = 2, kParts = 1, kExponent = 0, kUnit = 0;
};
template <>
struct Format<DType::kBF16> {
  static constexpr int kVectors = 4, kScaleWords = 0, kParts = 1, kExponent = 0, kUnit = 0;
};
template <>
struct Format<DType::kF32> {  // two BF16 parts of each weight: 2^-17 of it is lost
  static constexpr int kVectors = 8, kScaleWords = 0, kParts = 2, kExponent = 0, kUnit = 0;
};

constexpr float power_of_two(int exponent) {
  float value = 1;
  for (int i = 0; i < exponent; ++i) value *= 2;
  for (int i = 0; i > exponent; --i) value /= 2;
  return value;
}
template <DType F>
inline constexpr float kActivationScale = power_of_two(Format<F>::kExponent);
template <DType F>
inline constexpr float kSumScale = power_of_two(Format<F>::kUnit - Format<F>::kExponent);

/// What a lane holds of one unit of 16 rows x 64 columns.
template <DType F>
struct Unit {
  uint4 codes[Format<F>::kVectors];
  uint32_t scales[Format<F>::kScaleWords > 0 ? Format<F>::kScaleWords : 1];
};

template <DType F>
inline constexpr int kCodeBytes = 512 * Format<F>::kVectors;
template <DType F>
inline constexpr int kUnitBytes = kCodeBytes<F> + 32 * Format<F>::kScaleWords;

/// Reads the lane's share of one unit from shared memory: its codes, or codes and scales.
template <DType F>
__device__ __forceinline__ void read_codes(Unit<F>& unit, const std::byte* codes) {
#pragma unroll
  for (int i = 0; i < Format<F>::kVectors; ++i)
    unit.codes[i] = *reinterpret_cast<const uint4*>(codes + 512 * i);
}
template <DType F>
__device__ __forceinline__ void read_unit(Unit<F>& unit, const std::byte* codes,
                                          const std::byte* scales) {
  read_codes<F>(unit, codes);
#pragma unroll
  for (int i = 0; i < Format<F>::kScaleWords; ++i)
    unit.scales[i] = *reinterpret_cast<const uint32_t*>(scales + 4 * i);
}

/// The eight weights of row g + 8 half in block `block`, columns 8q.., as four BF16 pairs. `part`
/// is always 0 except for F32.
template <DType F>
__device__ __forceinline__ void decode(const Unit<F>& unit, int block, int half, int part,
                                       uint32_t pairs[4]) {
  if constexpr (F == DType::kMXFP4) {
    const uint4& c = unit.codes[0];
    const uint32_t w = block == 0 ? (half == 0 ? c.x : c.y) : (half == 0 ? c.z : c.w);
    fragment_mxfp4_pairs(w, pairs);
  } else if constexpr (F == DType::kMXFP8) {
    const uint4& c = unit.codes[half];
    const uint32_t words[2] = {block == 0 ? c.x : c.z, block == 0 ? c.y : c.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t t = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
      pairs[i] = (t & 0x80008000u) | ((t >> 4) & 0x07F007F0u);
    }
  } else if constexpr (F == DType::kQ8_0) {
    const uint4& c = unit.codes[half];
    const uint32_t words[2] = {block == 0 ? c.x : c.z, block == 0 ? c.y : c.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int shift = 16 * (i % 2);
      pairs[i] = pack_bf16(static_cast<float>(static_cast<int8_t>(words[i / 2] >> shift)),
                           static_cast<float>(static_cast<int8_t>(words[i / 2] >> (shift + 8))));
    }
  } else if constexpr (F == DType::kBF16) {
    const uint4& c = unit.codes[2 * block + half];
    pairs[0] = c.x, pairs[1] = c.y, pairs[2] = c.z, pairs[3] = c.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& c = unit.codes[2 * (2 * block + half) + i / 2];
      const float low = __uint_as_float(i % 2 == 0 ? c.x : c.z);
      const float high = __uint_as_float(i % 2 == 0 ? c.y : c.w);
      pairs[i] = pack_bf16(low, high);
      if (part == 1) {
        pairs[i] = pack_bf16(low - __uint_as_float(pairs[i] << 16),
                             high - __uint_as_float(pairs[i] & 0xFFFF0000u));
      }
    }
  }
}

template <DType F>
__device__ __forceinline__ float scale_of(const Unit<F>& unit, int block, int half) {
  if constexpr (Format<F>::kScaleWords == 1) {
    const int byte = 2 * block + half;
    const uint32_t bits = byte < 3 ? unit.scales[0] << (23 - 8 * byte) : unit.scales[0] >> 1;
    return __uint_as_float(bits & 0x7F800000u);
  } else if constexpr (Format<F>::kScaleWords == 2) {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(unit.scales[block] >> (16 * half))));
  } else {
    return 1.0f;
  }
}

/// sums[c][half] of a lane += rows g + 8 half of the unit times the activations of token 4 c + q.
/// activations(block, c) gives the lane's eight values of the block for column group c.
template <DType F, int kGroups, typename Activations>
__device__ __forceinline__ void multiply_unit(const Unit<F>& unit, Activations&& activations,
                                              float (&sums)[kGroups][2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    float products[kGroups][4] = {};
    uint4 b[kGroups];
#pragma unroll
    for (int c = 0; c < kGroups; ++c) b[c] = activations(block, c);
#pragma unroll
    for (int part = 0; part < Format<F>::kParts; ++part) {
      uint32_t top[4], bottom[4];
      decode(unit, block, 0, part, top);
      decode(unit, block, 1, part, bottom);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        mma_m16n8k16(products[c], top[0], bottom[0], top[1], bottom[1], b[c].x, b[c].y);
        mma_m16n8k16(products[c], top[2], bottom[2], top[3], bottom[3], b[c].z, b[c].w);
      }
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[c][half] +=
            (products[c][2 * half] + products[c][2 * half + 1]) * scale_of(unit, block, half);
      }
    }
  }
}

/// Rows g and g + 8 of the scales of one block.
template <DType F>
struct RowScales {
  float top = 1.0f, bottom = 1.0f;
  __device__ __forceinline__ explicit RowScales(const std::byte* at) {
    if constexpr (Format<F>::kScaleWords == 1) {
      top = __uint_as_float(static_cast<uint32_t>(at[0]) << 23);
      bottom = __uint_as_float(static_cast<uint32_t>(at[1]) << 23);
    } else if constexpr (Format<F>::kScaleWords == 2) {
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(at));
      top = both.x, bottom = both.y;
    }
  }
};

/// The activations of one token as a lane's operand, for kBlocks successive blocks of columns: the
/// activations of the block of the lane's slot, zeros for the other blocks.
template <int kBlocks>
struct SlotInputs {
  uint4 block[kBlocks] = {};
};

/// `own`: the lane's eight activations of its slot's block.
template <int kBlocks>
__device__ __forceinline__ void read_slots(const std::byte* own, SlotInputs<kBlocks>& inputs) {
  const int lane = threadIdx.x % 32, g = lane / 4, slot = g / 2;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    if (slot == i) inputs.block[i] = *reinterpret_cast<const uint4*>(own);
  }
}

/// sums[half] of a lane += rows g + 8 half of kUnits units (1 or 2) at `codes` times one token, for
/// the block of the lane's slot.
template <DType F, int kUnits>
__device__ __forceinline__ void multiply_slots(const std::byte* codes, const std::byte* scales,
                                               const SlotInputs<2 * kUnits>& inputs,
                                               float (&sums)[2]) {
  float products[4] = {};
#pragma unroll
  for (int i = 0; i < 2 * kUnits; ++i) {
    Unit<F> unit;
    read_codes<F>(unit, codes + i / 2 * kUnitBytes<F>);
    const uint4& b = inputs.block[i];
#pragma unroll
    for (int part = 0; part < Format<F>::kParts; ++part) {
      uint32_t top[4], bottom[4];
      decode(unit, i % 2, 0, part, top);
      decode(unit, i % 2, 1, part, bottom);
      mma_m16n8k16(products, top[0], bottom[0], top[1], bottom[1], b.x, b.y);
      mma_m16n8k16(products, top[2], bottom[2], top[3], bottom[3], b.z, b.w);
    }
  }
  const RowScales<F> scale(scales);
  sums[0] += (products[0] + products[1]) * scale.top;
  sums[1] += (products[2] + products[3]) * scale.bottom;
}
/// The same, which reads the inputs first.
template <DType F, int kUnits>
__device__ __forceinline__ void multiply_slots(const std::byte* codes, const std::byte* scales,
                                               const std::byte* own, SlotInputs<2 * kUnits>& inputs,
                                               float (&sums)[2]) {
  read_slots(own, inputs);
  multiply_slots<F, kUnits>(codes, scales, inputs, sums);
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
/// Loads into `v` if wanted; otherwise `v` is unchanged.
__device__ __forceinline__ void load_shared_16_if(bool is_wanted, uint32_t at, uint4& v) {
  asm volatile(
      "{.reg .pred wanted; setp.ne.u32 wanted, %4, 0; "
      "@wanted ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "r"(static_cast<uint32_t>(is_wanted)), "r"(at));
}
__device__ __forceinline__ float load_shared_e8m0(uint32_t at) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(at));
  return __uint_as_float(byte << 23);
}

/// Where a lane reads in a stage of three units of MXFP4: bytes from the stage's first.
struct LaneInStage {
  uint32_t codes, pair_scales, odd_scales;
  int slot;
  __device__ __forceinline__ explicit LaneInStage(int lane)
      : codes(16 * lane),
        odd_scales(kCodeBytes<DType::kMXFP4> + lane / 4 * 4 + lane % 2 * 2),
        slot(lane / 8) {
    pair_scales = odd_scales + lane % 4 / 2 * kUnitBytes<DType::kMXFP4>;
  }
};

/// What a lane holds of such a stage. The first two units share the slots.
struct ThreeUnits {
  Unit<DType::kMXFP4> units[3];
  float pair_scale[2], odd_scale[2];  // of the lane's rows g and g + 8
  /// `stage`: an address in shared memory.
  __device__ __forceinline__ void read(uint32_t stage, const LaneInStage& at) {
    constexpr uint32_t kUnit = kUnitBytes<DType::kMXFP4>;
#pragma unroll
    for (int u = 0; u < 3; ++u) units[u].codes[0] = load_shared_16(stage + at.codes + u * kUnit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      pair_scale[half] = load_shared_e8m0(stage + at.pair_scales + half);
      odd_scale[half] = load_shared_e8m0(stage + at.odd_scales + 2 * kUnit + half);
    }
  }
};

/// Reads the activations of the lane's slot: `pair` are the address of the first two units', `odd`
/// of the third's.
__device__ __forceinline__ void read_three_slots(int slot, uint32_t pair, uint32_t odd,
                                                 SlotInputs<4>& of_pair, SlotInputs<2>& of_odd) {
#pragma unroll
  for (int i = 0; i < 4; ++i) load_shared_16_if(slot == i, pair, of_pair.block[i]);
#pragma unroll
  for (int i = 0; i < 2; ++i) load_shared_16_if(slot == i, odd, of_odd.block[i]);
}

/// pair[half] += the first two units times one token; odd[half] += the third, in slots 0 and 1.
/// Each unit has its own chain of products, so that a warp waits little.
__device__ __forceinline__ void multiply_three(const ThreeUnits& three,
                                               const SlotInputs<4>& of_pair,
                                               const SlotInputs<2>& of_odd, float (&pair)[2],
                                               float (&odd)[2]) {
  float products[3][4] = {};
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t top[3][4], bottom[3][4];
#pragma unroll
    for (int u = 0; u < 3; ++u) {
      const uint4& b = u < 2 ? of_pair.block[2 * u + block] : of_odd.block[block];
      decode(three.units[u], block, 0, 0, top[u]);
      decode(three.units[u], block, 1, 0, bottom[u]);
      mma_in_order(products[u], top[u][0], bottom[u][0], top[u][1], bottom[u][1], b.x, b.y);
    }
#pragma unroll
    for (int u = 0; u < 3; ++u) {
      const uint4& b = u < 2 ? of_pair.block[2 * u + block] : of_odd.block[block];
      mma_in_order(products[u], top[u][2], bottom[u][2], top[u][3], bottom[u][3], b.z, b.w);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    pair[half] += ((products[0][2 * half] + products[0][2 * half + 1]) +
                   (products[1][2 * half] + products[1][2 * half + 1])) *
                  three.pair_scale[half];
    odd[half] += (products[2][2 * half] + products[2][2 * half + 1]) * three.odd_scale[half];
  }
}

/// Eight consecutive values to their two BF16 parts.
__device__ __forceinline__ void split_parts(const float (&v)[8], uint4& high, uint4& low) {
  uint32_t h[4], l[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    h[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
    l[i] = pack_bf16(v[2 * i] - __uint_as_float(h[i] << 16),
                     v[2 * i + 1] - __uint_as_float(h[i] & 0xFFFF0000u));
  }
  high = {h[0], h[1], h[2], h[3]};
  low = {l[0], l[1], l[2], l[3]};
}

__device__ __forceinline__ void load_eight(const float* at, float (&v)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(at);
  const float4 b = *reinterpret_cast<const float4*>(at + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/// The same for the residual stream.
__device__ __forceinline__ void load_eight(const float2* at, float (&v)[8]) {
  const auto* pairs = reinterpret_cast<const float4*>(at);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 two = pairs[i];
    v[2 * i] = two.x + two.y, v[2 * i + 1] = two.z + two.w;
  }
}

/// Eight consecutive values of a thread's first segment, loaded before they are needed.
struct Eight {
  float v[8];
  __device__ __forceinline__ void load(const float* values, int32_t width, int first_column,
                                       int num_segments, int thread) {
    const int k = first_column + 8 * thread;
    if (thread < num_segments && k < width) load_eight(values + k, v);
  }
};

/// Writes columns [first, first + 64 num_units) of `num_tokens` rows of x (floats, or float2 of the
/// residual stream; row length `width`, zeros past its end) into `tile`, times `factor` and, with
/// kNorm, times the norm's weight. The threads are `thread`, `thread` + num_threads, ... `norm`
/// holds the norm weights of the thread's first segment; `early`, if not null, that segment's
/// values of token 0. With kNorm, adds each token's x^2 to squares[token].
template <int kTokens, bool kNorm, typename X>
__device__ __forceinline__ void stage_activations(const X* x, int32_t width, int first,
                                                  int num_units, int num_tokens, float factor,
                                                  const float* norm_weight, Eight& norm,
                                                  const Eight* early, std::byte* tile, int thread,
                                                  int num_threads, float (&squares)[kTokens]) {
  const int num_segments = 8 * num_units;
  for (int s = thread; s < num_segments; s += num_threads) {
    const int k = first + 8 * s;
    const bool inside = k < width;
    if (kNorm && s != thread && inside) load_eight(norm_weight + k, norm.v);
    std::byte* to = tile + (s / 4) * kBlockBytes<kTokens> + 16 * (s % 4);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= num_tokens) break;
      float v[8] = {};
      if (early != nullptr && t == 0 && s == thread) {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = inside ? early->v[i] : 0.0f;
      } else if (inside) {
        load_eight(x + static_cast<int64_t>(t) * width + k, v);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if constexpr (kNorm) {
          squares[t] += v[i] * v[i];
          v[i] = inside ? v[i] * (norm.v[i] * factor) : 0.0f;
        } else {
          v[i] *= factor;
        }
      }
      uint4 high, low;
      split_parts(v, high, low);
      *reinterpret_cast<uint4*>(to + 128 * t) = high;
      *reinterpret_cast<uint4*>(to + 128 * t + 64) = low;
    }
  }
}

/// A load that is issued here; the thread waits for it only where the value is used.
__device__ __forceinline__ float load_early(const float* at) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(at));
  return value;
}

__device__ __forceinline__ float2 load_early(const float2* at) {
  float2 value;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(at));
  return value;
}

/// Brings all of a kernel's parameters into the constant cache before the wait for the previous
/// kernel: a miss after that wait would lengthen the chain.
template <typename P>
__device__ __forceinline__ void touch_params(const P& params) {
  static_assert(sizeof(P) % 4 == 0);
  const auto* words = reinterpret_cast<const uint32_t*>(&params);
#pragma unroll
  for (unsigned i = 0; i < sizeof(P) / 4; i += 16) asm volatile("" ::"r"(words[i]));
  asm volatile("" ::"r"(words[sizeof(P) / 4 - 1]));
}

/// How a warp's weights pass through shared memory: kStages stages of kUnroll neighbouring units
/// each. The units of a stage are multiplied together, so that their chains of instructions
/// overlap. 2880 columns are 15 stages of MXFP4.
template <DType F>
struct Pipeline {
  static constexpr int kUnroll = ring_shape(F).units_a_stage, kStages = ring_shape(F).num_stages;
  static constexpr int kStageBytes = kUnroll * kUnitBytes<F>;
};

/// The address of the next unit of a tile.
template <DType F>
struct UnitCursor {
  const std::byte* at;
  UnitCursor() = default;
  __device__ __forceinline__ UnitCursor(const PackedMatrix& matrix, int64_t expert_bytes,
                                        int32_t expert, int32_t tile, int32_t unit) {
    const int32_t num_units = (matrix.cols + 63) / 64;
    at = matrix.data + expert * expert_bytes +
         (static_cast<int64_t>(tile) * num_units + unit) * kUnitBytes<F>;
  }
  /// Copies the next units to a stage; `count` units are left in the tile.
  __device__ __forceinline__ void copy_stage(uint32_t stage, int count) {
    using P = Pipeline<F>;
    constexpr int kCopies = (P::kStageBytes + 511) / 512;
    const int lane_bytes = 16 * static_cast<int>(threadIdx.x % 32);
    const int bytes = min(count, P::kUnroll) * kUnitBytes<F>;
    if (count >= P::kUnroll) {
#pragma unroll
      for (int i = 0; i < P::kStageBytes / 512; ++i)
        copy_streamed_16(stage + lane_bytes + 512 * i, at + lane_bytes + 512 * i);
      if (P::kStageBytes % 512 != 0 && lane_bytes < P::kStageBytes % 512)
        copy_streamed_16(stage + lane_bytes + 512 * (kCopies - 1),
                         at + lane_bytes + 512 * (kCopies - 1));
    } else {
#pragma unroll 1
      for (int i = lane_bytes; i < bytes; i += 512) copy_streamed_16(stage + i, at + i);
    }
    // After a partial stage the caller moves to the next tile.
    at += P::kStageBytes;
  }
  __device__ __forceinline__ void skip(int num_units) { at += num_units * kUnitBytes<F>; }
};

/// The stages of one warp, used in turn. All are filled at the start; then, while one stage is
/// multiplied, the stage before it is filled again. Every filling is one group of copies, committed
/// even if it is empty, so that the wait can count groups.
template <int kStages>
struct Ring {
  std::byte* base;
  uint32_t address;
  int stage_bytes, offset = 0, last = -1;

  __device__ __forceinline__ Ring(std::byte* at, int bytes_of_a_stage)
      : base(at), address(shared_address(at)), stage_bytes(bytes_of_a_stage) {}
  /// fill(address) for every stage.
  template <typename Fill>
  __device__ __forceinline__ void start(Fill&& fill) {
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) {
      fill(address + i * stage_bytes);
      commit_copies();
    }
  }
  /// Waits, for all lanes, until the next stage is filled, then refills the previous one.
  template <typename Fill>
  __device__ __forceinline__ const std::byte* next(Fill&& fill) {
    wait_for_copies<kStages - 2>();
    __syncwarp();
    if (last >= 0) {
      fill(address + last);
      commit_copies();
    }
    const std::byte* stage = base + offset;
    last = offset;
    offset += stage_bytes;
    if (offset == kStages * stage_bytes) offset = 0;
    return stage;
  }
  /// Discards the filled stages, before another start.
  __device__ __forceinline__ void restart() {
    __syncwarp();
    offset = 0;
    last = -1;
  }
};

/// The product of a warp's tile with the activations of a launch's tokens, a stage at a time.
/// `staged`: the block's activations of the first unit. After finish(), sums[c][half] of lane (g,
/// q) is row g + 8 half of token 4 c + q (with one token, of that token in every lane).
template <DType F, int kTokens, int kUnits = Pipeline<F>::kUnroll>
struct TileProduct {
  static constexpr int kGroups = kGroupsOf<kTokens>;
  const std::byte* of_lane[kGroups];
  float sums[kGroups][2] = {};
  // One token only: the operands of a stage's pairs of units, and of the odd unit after them.
  SlotInputs<4> of_pair;
  SlotInputs<2> of_odd;

  __device__ __forceinline__ TileProduct(const std::byte* staged, int num_tokens) {
    const int lane = threadIdx.x % 32, n = lane / 4, slot = n / 2;
    const std::byte* at = staged + 64 * (n % 2) + 16 * (lane % 4);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      // With one token, slots are blocks. Blocks are as far apart as tokens within a block.
      of_lane[c] = at + 128 * (kTokens == 1 ? slot : min(4 * c + slot, num_tokens - 1));
    }
  }
  /// Adds the first `count` units of a stage, at most kUnits; the next call continues kUnits units
  /// on.
  __device__ __forceinline__ void add_stage(const std::byte* stage, int count) {
    if (count >= kUnits) {
      if constexpr (kTokens == 1) {
#pragma unroll
        for (int i = 0; i + 1 < kUnits; i += 2) multiply<2>(stage, i);
        if constexpr (kUnits % 2 == 1) multiply<1>(stage, kUnits - 1);
      } else {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) multiply<1>(stage, i);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < count; ++i) multiply<1>(stage, i);
    }
#pragma unroll
    for (int c = 0; c < kGroups; ++c) of_lane[c] += kUnits * kUnitActivationBytes<kTokens>;
  }
  /// Adds all kUnits units of a stage.
  __device__ __forceinline__ void add_whole_stage(const std::byte* stage) {
    add_stage(stage, kUnits);
  }
  /// One token: the sum of row g + 8 (q % 2) over all slots.
  __device__ __forceinline__ float finished_row() const {
    const bool is_bottom = threadIdx.x % 2 != 0;
    float sum = is_bottom ? sums[0][1] : sums[0][0];
    sum += __shfl_xor_sync(~0u, is_bottom ? sums[0][0] : sums[0][1], 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }
  /// Starts another tile (one token): the activations of its first unit.
  __device__ __forceinline__ void restart(const std::byte* staged) {
    static_assert(kTokens == 1);
    sums[0][0] = sums[0][1] = 0;
    read_from(staged);
  }
  /// If stages bring activations of their own (one token): the activations of the next stage.
  __device__ __forceinline__ void read_from(const std::byte* staged) {
    static_assert(kTokens == 1);
    const int lane = threadIdx.x % 32, n = lane / 4;
    of_lane[0] = staged + 128 * (n / 2) + 64 * (n % 2) + 16 * (lane % 4);
  }
  __device__ __forceinline__ void finish() {
    if constexpr (kTokens == 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[0][half] += __shfl_xor_sync(~0u, sums[0][half], 1);
        sums[0][half] += __shfl_xor_sync(~0u, sums[0][half], 2);
      }
    }
  }

 private:
  template <int kCount>
  __device__ __forceinline__ void multiply(const std::byte* stage, int i) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    constexpr int kWords = Format<F>::kScaleWords;
    const std::byte* unit_at = stage + i * kUnitBytes<F>;
    const std::byte* codes = unit_at + 16 * lane;
    const std::byte* scales = unit_at + kCodeBytes<F> + g * (4 * kWords);
    if constexpr (kTokens == 1) {
      const uint32_t unit = kCount == 2 ? q / 2 : 0;
      const std::byte* scale = scales + unit * kUnitBytes<F> + q % 2 * (2 * kWords);
      const std::byte* own = of_lane[0] + i * kUnitActivationBytes<1>;
      if constexpr (kCount == 2) {
        multiply_slots<F, 2>(codes, scale, own, of_pair, sums[0]);
      } else {
        multiply_slots<F, 1>(codes, scale, own, of_odd, sums[0]);
      }
    } else {
      Unit<F> unit;
      read_unit<F>(unit, codes, scales);
      multiply_unit<F, kGroups>(
          unit,
          [&](int block, int c) {
            return *reinterpret_cast<const uint4*>(of_lane[c] +
                                                   (2 * i + block) * kBlockBytes<kTokens>);
          },
          sums);
    }
  }
};

/// The beginning of part `i` of `count` things cut into `parts` nearly equal runs.
__device__ __forceinline__ int part_begin(int count, int parts, int i) { return count * i / parts; }

}  // namespace moxie::fragment
