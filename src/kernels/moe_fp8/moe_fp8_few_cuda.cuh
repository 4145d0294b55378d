// What the kernels for few tokens share: rings of weights in shared memory, products in FP16, which
// holds every E4M3 value, and the intermediate in FP16 with a power of two for 16 columns.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>

#include "kernels/moe_fp8/moe_fp8_exponents.cuh"
#include "kernels/ptx.cuh"

namespace moxie::moe_fp8 {
namespace {

constexpr int kRows = 16;       // rows of weights of an item, and columns of an exponent
constexpr int kRowBytes = 128;  // of a row in a ring: a block of scales

/// A warp's ring of kSlots slots of kRingRows rows of 128 bytes. Copies take eight lanes a row;
/// lane (g, q) reads 16 bytes of row g, as mma's first operand wants them. The swizzle keeps both
/// free of bank conflicts.
template <int kSlots, int kRingRows>
class RowRing {
 public:
  static constexpr uint64_t kBytes = uint64_t{kSlots} * kRingRows * kRowBytes;

  __device__ explicit RowRing(std::byte* of_warps) : base_(of_warps + threadIdx.x / 32 * kBytes) {
    const int lane = threadIdx.x % 32;
    even_ = shared_address(base_) + place(lane / 8, lane % 8);
    odd_ = shared_address(base_) + place(4 + lane / 8, lane % 8) - 4 * kRowBytes;
  }
  /// Where this lane copies to, of rows `row` (a multiple of 4) to row + 3.
  __device__ uint32_t target(int slot, int row) const {
    return (row / 4 % 2 == 0 ? even_ : odd_) + (slot * kRingRows + row) * kRowBytes;
  }
  /// This lane's 16 bytes of rows `row` (a multiple of 8) to row + 7, chunks `chunk` to chunk + 3.
  __device__ uint4 get(int slot, int row, int chunk) const {
    const int lane = threadIdx.x % 32;
    return *reinterpret_cast<const uint4*>(base_ + slot * kRingRows * kRowBytes +
                                           place(row + lane / 4, chunk + lane % 4));
  }

 private:
  static __device__ int place(int row, int chunk) {
    return row * kRowBytes + ((chunk ^ (row & 1) << 2 ^ (row >> 1 & 3)) << 4);
  }
  std::byte* base_;
  uint32_t even_, odd_;
};

__device__ __forceinline__ void add_product(float (&sum)[4], uint32_t top, uint32_t bottom,
                                            const uint32_t (&x)[2]) {
  uint32_t top_low, top_high, bottom_low, bottom_high;
  widen_e4m3(top, top_low, top_high);
  widen_e4m3(bottom, bottom_low, bottom_high);
  mma_f16(sum, top_low, bottom_low, top_high, bottom_high, x[0], x[1]);
}
/// sum += 16 rows x 8 pairs over 64 columns. The columns of a lane's chunks are permuted alike in
/// weights and activations.
__device__ __forceinline__ void add_products(float (&sum)[4], const uint4& top, const uint4& bottom,
                                             const uint4& x) {
  const uint32_t tops[4] = {top.x, top.y, top.z, top.w};
  const uint32_t bottoms[4] = {bottom.x, bottom.y, bottom.z, bottom.w};
  const uint32_t codes[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t wide[2];
    widen_e4m3(codes[i], wide[0], wide[1]);
    add_product(sum, tops[i], bottoms[i], wide);
  }
}

/// silu(gate) * up, as FP16 on the exponent of the kRows rows that neighbouring lanes have.
struct MiddleValue {
  __half h;
  uint8_t exponent;
};
__device__ __forceinline__ MiddleValue middle_value(float up, float gate) {
  const float h = gate / (1.0f + __expf(-gate)) * up;
  uint32_t greatest = __float_as_uint(h) & 0x7FFFFFFFu;
#pragma unroll
  for (int offset = kRows / 2; offset > 0; offset /= 2)
    greatest = max(greatest, __shfl_xor_sync(~0u, greatest, offset));
  const int exponent = exponent_of(greatest);
  return {__float2half_rn(h * power_to_top(exponent)), static_cast<uint8_t>(exponent)};
}

/// The intermediate of 8 pairs and 128 columns as mma's second operand.
struct Middle {
  uint4 words[4];
  uint2 exponents;  // of eight times 16 columns

  __device__ void load(const __half* h, const uint8_t* of_columns) {
    exponents = __ldg(reinterpret_cast<const uint2*>(of_columns));
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = __ldg(reinterpret_cast<const uint4*>(h + 64 * (i / 2) + 8 * (i % 2)));
  }
  /// Puts all columns on the greatest exponent, which it returns. This lane's words have those of
  /// numbers q and 4 + q.
  __device__ int align(uint32_t (&aligned)[2][4][2]) const {
    const int q = threadIdx.x % 4;
    uint32_t most = __vmaxu4(exponents.x, exponents.y);
    most = __vmaxu4(most, most >> 16);
    most = max(most & 255, most >> 8 & 255);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t own = (half == 0 ? exponents.x : exponents.y) >> (8 * q) & 255;
      const int less = static_cast<int>(most - own);  // divide by 2^less
      const int bits = less < 15 ? (15 - less) << 10 : less < 25 ? 1 << (24 - less) : 0;
      const __half2 by = __half2half2(__ushort_as_half(static_cast<unsigned short>(bits)));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4& from = words[2 * half + i / 4];
        const uint32_t word = i % 4 == 0   ? from.x
                              : i % 4 == 1 ? from.y
                              : i % 4 == 2 ? from.z
                                           : from.w;
        const __half2 product = __hmul2(*reinterpret_cast<const __half2*>(&word), by);
        aligned[half][i / 2][i % 2] = *reinterpret_cast<const uint32_t*>(&product);
      }
    }
    return static_cast<int>(most);
  }
};

}  // namespace
}  // namespace moxie::moe_fp8
