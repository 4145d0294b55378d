// MXFP4 weights loaded straight from memory to registers, and their products: without a ring and
// without copies through shared memory, so that warps wait for the loads only. A warp holds
// neighbouring units of one tile; the warps of a block share a tile. Such blocks are small, so that
// several run on an SM: while some multiply, others load.
//
// The operands are those of fragment_gemv.cuh: activations as two BF16 parts, [block of 32
// columns][part][32]; one token takes all slots of the product, several take a slot each.
#pragma once

#include "kernels/gemv/fragment_gemv.cuh"

namespace moxie::fragment {

/// A load of data that is read once: no line of it stays in L1.
__device__ __forceinline__ uint4 load_streamed_16(const std::byte* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_streamed_4(const std::byte* at) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
__device__ __forceinline__ uint32_t load_streamed_2(const std::byte* at) {
  uint16_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(at));
  return v;
}

/// A token's activations as a lane reads them for several tokens at once: (n) is its column of the
/// product over the nth block of 32, from the two parts.
struct LanePart {
  const std::byte* own;
  __device__ __forceinline__ explicit LanePart(const std::byte* parts)
      : own(parts + threadIdx.x % 32 / 4 % 2 * 64 + 16 * (threadIdx.x % 4)) {}
  __device__ __forceinline__ uint4 operator()(int n) const {
    return *reinterpret_cast<const uint4*>(own + n * kBlockBytes<1>);
  }
};
/// The same from floats.
struct LaneFloats {
  const float* own;
  __device__ __forceinline__ explicit LaneFloats(const float* values)
      : own(values + 8 * (threadIdx.x % 4)) {}
  __device__ __forceinline__ uint4 operator()(int n) const {
    float v[8];
    load_eight(own + 32 * n, v);
#pragma unroll
    for (float& value : v) value *= kActivationScale<DType::kMXFP4>;
    uint4 high, low;
    split_parts(v, high, low);
    return threadIdx.x % 32 / 4 % 2 == 0 ? high : low;
  }
};

/// Called by all threads of a block.
template <int kBytes>
__device__ __forceinline__ void clear_zeros(std::byte (&zeros)[kBytes]) {
  for (int i = 16 * threadIdx.x; i < kBytes; i += 16 * blockDim.x)
    *reinterpret_cast<uint4*>(zeros + i) = {};
}

/// The lane's share of kUnits neighbouring units of a tile. Two neighbours share the slots; an odd
/// unit after them uses slots 0 and 1.
template <int kUnits>
struct HeldUnits {
  static constexpr DType F = DType::kMXFP4;
  static constexpr int kPairs = (kUnits + 1) / 2;  // with the odd unit
  uint4 codes[kUnits];
  uint32_t scales[kPairs];  // of the lane's slot: rows g (low byte) and g + 8
  __device__ __forceinline__ static constexpr int units_of(int pair) {
    return 2 * pair + 1 < kUnits ? 2 : 1;
  }

  /// Starts the loads of the units from `first` on; null: loads nothing.
  __device__ __forceinline__ void load(const std::byte* first) {
    if (first == nullptr) return;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const std::byte* of_lane = first + 16 * lane;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) codes[u] = load_streamed_16(of_lane + u * kUnitBytes<F>);
    const std::byte* of_block = first + kCodeBytes<F> + 4 * g + 2 * (q % 2);
    const std::byte* of_slot = of_block + q / 2 * kUnitBytes<F>;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair)
      scales[pair] =
          load_streamed_2((units_of(pair) == 2 ? of_slot : of_block) + 2 * pair * kUnitBytes<F>);
  }

  /// Bytes of one token's activations of the units.
  static constexpr int kInputBytes = kUnits * kUnitActivationBytes<1>;

  // The products below start the loads of `next` after they have used the last weights, before they
  // add up the lanes' sums.

  /// The units times one token: row g + 8 (q % 2); both lanes of a row have its sum. In shared
  /// memory: `inputs`, the activations from the units' first column on, and as many zeros.
  __device__ __forceinline__ float multiply(const std::byte* inputs, const std::byte* zeros,
                                            const std::byte* next) {
    const int lane = threadIdx.x % 32, slot = lane / 8;
    // Of four blocks of columns, a lane's column reads the block of its slot, and zeros for the
    // others.
    const std::byte* from[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      from[k] =
          slot == k ? inputs + 16 * (lane % 4) + 64 * (lane / 4 % 2) + kBlockBytes<1> * k : zeros;
    float sums[2] = {};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int count = units_of(pair);
      float products[2][4] = {};
#pragma unroll
      for (int block = 0; block < 2; ++block) {
#pragma unroll
        for (int u = 0; u < count; ++u) {
          const uint4 b =
              *reinterpret_cast<const uint4*>(from[2 * u + block] + 4 * pair * kBlockBytes<1>);
          multiply_block(codes[2 * pair + u], block, b, products[u]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float product = products[0][2 * half] + products[0][2 * half + 1];
        if (count == 2) product += products[1][2 * half] + products[1][2 * half + 1];
        sums[half] += product * scale(scales[pair], half);
      }
    }
    load(next);
    const bool is_bottom = lane % 2 != 0;
    float sum = is_bottom ? sums[1] : sums[0];
    sum += __shfl_xor_sync(~0u, is_bottom ? sums[0] : sums[1], 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }

  /// The units times two tokens: row g + 8 (q % 2) of token q / 2.
  __device__ __forceinline__ float multiply_two(const std::byte* first, const std::byte* second,
                                                const std::byte* zeros, const std::byte* next) {
    const int lane = threadIdx.x % 32, slot = lane / 8, q = lane % 4;
    // Slots 0 and 1 are the first token's, for the two blocks of a unit; 2 and 3 the second's.
    const std::byte* own = (slot < 2 ? first : second) + 16 * q + 64 * (lane / 4 % 2);
    const std::byte* from[2] = {slot % 2 == 0 ? own : zeros,
                                slot % 2 == 1 ? own + kBlockBytes<1> : zeros};
    float sums[2] = {};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int count = units_of(pair);
      // A lane has loaded the scales of one unit of a pair, and needs those of both.
      const uint32_t other = count == 2 ? __shfl_xor_sync(~0u, scales[pair], 2) : 0;
#pragma unroll
      for (int u = 0; u < count; ++u) {
        float products[4] = {};
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const uint4 b = *reinterpret_cast<const uint4*>(from[block] +
                                                          (2 * pair + u) * kUnitActivationBytes<1>);
          multiply_block(codes[2 * pair + u], block, b, products);
        }
        const uint32_t both = count == 1 || q / 2 == u ? scales[pair] : other;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          sums[half] += (products[2 * half] + products[2 * half + 1]) * scale(both, half);
      }
    }
    load(next);
    const bool is_bottom = lane % 2 != 0;
    return (is_bottom ? sums[1] : sums[0]) + __shfl_xor_sync(~0u, is_bottom ? sums[0] : sums[1], 1);
  }

  /// The units times several tokens: sums[c][half] of lane (g, q) is row g + 8 half of token 4 c +
  /// q. inputs(c, n): the lane's activations of token 4 c + g / 2, nth block of the units.
  template <int kGroups, typename Inputs>
  __device__ __forceinline__ void multiply(Inputs&& inputs, float (&sums)[kGroups][2],
                                           const std::byte* next) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) sums[c][0] = sums[c][1] = 0;
#pragma unroll
    for (int i = 0; i < 2 * kUnits; ++i) {
      const int u = i / 2, block = i % 2, pair = u / 2;
      Unit<F> unit;
      unit.codes[0] = codes[u];
      uint32_t top[4], bottom[4];
      decode(unit, block, 0, 0, top);
      decode(unit, block, 1, 0, bottom);
      // The lane of the block's slot has the block's scales.
      const int slot = units_of(pair) == 2 ? i % 4 : block;
      const uint32_t both = __shfl_sync(~0u, scales[pair], 4 * g + slot);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const uint4 b = inputs(c, i);
        float products[4] = {};
        mma_m16n8k16(products, top[0], bottom[0], top[1], bottom[1], b.x, b.y);
        mma_m16n8k16(products, top[2], bottom[2], top[3], bottom[3], b.z, b.w);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          sums[c][half] += (products[2 * half] + products[2 * half + 1]) * scale(both, half);
      }
    }
    load(next);
  }

 private:
  __device__ __forceinline__ static void multiply_block(const uint4& of_unit, int block,
                                                        const uint4& b, float (&products)[4]) {
    Unit<F> unit;
    unit.codes[0] = of_unit;
    uint32_t top[4], bottom[4];
    decode(unit, block, 0, 0, top);
    decode(unit, block, 1, 0, bottom);
    mma_m16n8k16(products, top[0], bottom[0], top[1], bottom[1], b.x, b.y);
    mma_m16n8k16(products, top[2], bottom[2], top[3], bottom[3], b.z, b.w);
  }
  __device__ __forceinline__ static float scale(uint32_t both, int half) {
    return __uint_as_float((both >> (8 * half) & 0xFFu) << 23);
  }
};

}  // namespace moxie::fragment
