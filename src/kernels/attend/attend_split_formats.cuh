// The operands of attention by split keys: the fragments of keys and values in either cache format,
// and instructions that only this attention uses.
#pragma once

#include "core/formats.h"
#include "core/tensor.h"
#include "kernels/ptx.cuh"

namespace moxie::attend_split {

constexpr int kDim = 64;

// Copies 16 bytes to shared memory past L1; if not `wanted`, writes zeros and reads nothing.
__device__ __forceinline__ void copy_16(uint32_t to, const std::byte* from, bool wanted) {
  asm volatile(
      "{.reg .pred ignore; setp.eq.b32 ignore, %2, 0; "
      "cp.async.cg.shared.global [%0], [%1], 16, ignore;}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(wanted))
      : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared_8(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_4(uint32_t at, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Where a lane's fragments are in a tile: g is the lane's row of eight, c its column of four.
struct LaneOffsets {
  uint32_t k0, k1, v0, v1;
};

// A BF16 cache is multiplied in BF16. E4M3 is exact in FP16, and an instruction converts it. K
// fragments: b[step] for 16 columns of q each, of the 8 keys from 8 * n on. V fragments: b[j] for
// columns 8 i + j, i = 0..7, of the 16 keys from 16 * n on.
template <DType kFormat>
struct Format;

template <>
struct Format<DType::kBF16> {
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kKeys = 16;                           // of a tile
  static constexpr int kStageBytes = 2 * kKeys * kRowBytes;  // of a tile: K, then V
  static constexpr bool kNarrow = false;

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return pack_bf16(low, high);
  }
  static __device__ __forceinline__ float2 unpack(uint32_t x) {
    return make_float2(bits_to_f32(x << 16), bits_to_f32(x & 0xFFFF0000u));
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    mma_m16n8k16(c, a[0], a[1], a[2], a[3], b0, b1);
  }
  // Where 16-byte chunk `chunk` of row `row` is, so that the loads below have no bank conflicts.
  static __device__ __forceinline__ uint32_t k_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 128 + (chunk ^ ((row & 1) * 4)) * 16);
  }
  static __device__ __forceinline__ uint32_t v_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 128 + (chunk ^ (row & 6)) * 16);
  }
  static __device__ __forceinline__ LaneOffsets offsets(int g, int c) {
    return {k_at(g, c), k_at(g, c + 4), v_at(2 * c, g), v_at(2 * c + 1, g)};
  }
  // The place of column `column` of q in the fragments: step, lane column and pair of registers.
  static __device__ __forceinline__ int3 q_place(int column) {
    return make_int3(column / 32 * 2 + column / 4 % 2, column % 32 / 8, column / 2 % 2);
  }
  // The first of the four columns of `step` that lane column c has.
  static __device__ __forceinline__ int q_column(int step, int c) {
    return step / 2 * 32 + 8 * c + step % 2 * 4;
  }
  static __device__ __forceinline__ void load_k(uint32_t k, const LaneOffsets& at, int n,
                                                uint32_t (&b)[4][2]) {
    const uint4 left = load_shared_16(k + at.k0 + static_cast<uint32_t>(n * 1024));
    const uint4 right = load_shared_16(k + at.k1 + static_cast<uint32_t>(n * 1024));
    b[0][0] = left.x, b[0][1] = left.y, b[1][0] = left.z, b[1][1] = left.w;
    b[2][0] = right.x, b[2][1] = right.y, b[3][0] = right.z, b[3][1] = right.w;
  }
  static __device__ __forceinline__ void load_v(uint32_t v, const LaneOffsets& at, int n,
                                                uint32_t (&b)[8][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<uint32_t>(n * 2048 + half * 1024);
      const uint4 x = load_shared_16(v + at.v0 + row), y = load_shared_16(v + at.v1 + row);
      const uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        b[2 * i][half] = __byte_perm(xs[i], ys[i], 0x5410);
        b[2 * i + 1][half] = __byte_perm(xs[i], ys[i], 0x7632);
      }
    }
  }
};

template <>
struct Format<DType::kF8E4M3> {
  static constexpr int kRowBytes = kDim;
  static constexpr int kKeys = 32;
  static constexpr int kStageBytes = 2 * kKeys * kRowBytes;
  static constexpr bool kNarrow = true;  // FP16 ends at 65504: queries are scaled to fit

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
  static __device__ __forceinline__ float2 unpack(uint32_t x) {
    float2 y;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(y.x), "=f"(y.y)
        : "r"(x));
    return y;
  }
  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ __forceinline__ uint32_t k_at(int row, int chunk) {
    return static_cast<uint32_t>(row * 64 + chunk * 16);
  }
  // Two rows share a line of 128 bytes.
  static __device__ __forceinline__ uint32_t v_at(int row, int chunk) {
    const int pair = row / 2;
    const int place = (((2 * (row & 1) + (chunk >> 1)) ^ (pair & 3)) << 1) | (chunk & 1);
    return static_cast<uint32_t>(pair * 128 + place * 16);
  }
  static __device__ __forceinline__ LaneOffsets offsets(int g, int c) {
    const uint32_t half = static_cast<uint32_t>(g & 1) * 8;
    return {k_at(g, c), 0, v_at(2 * c, g / 2) + half, v_at(2 * c + 1, g / 2) + half};
  }
  static __device__ __forceinline__ int3 q_place(int column) {
    return make_int3(column / 4 % 4, column / 16, column / 2 % 2);
  }
  static __device__ __forceinline__ int q_column(int step, int c) { return 16 * c + 4 * step; }
  static __device__ __forceinline__ void load_k(uint32_t k, const LaneOffsets& at, int n,
                                                uint32_t (&b)[4][2]) {
    const uint4 x = load_shared_16(k + at.k0 + static_cast<uint32_t>(n * 512));
    widen_e4m3(x.x, b[0][0], b[0][1]);
    widen_e4m3(x.y, b[1][0], b[1][1]);
    widen_e4m3(x.z, b[2][0], b[2][1]);
    widen_e4m3(x.w, b[3][0], b[3][1]);
  }
  static __device__ __forceinline__ void load_v(uint32_t v, const LaneOffsets& at, int n,
                                                uint32_t (&b)[8][2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto row = static_cast<uint32_t>(n * 1024 + half * 512);
      const uint2 x = load_shared_8(v + at.v0 + row), y = load_shared_8(v + at.v1 + row);
      widen_e4m3(__byte_perm(x.x, y.x, 0x5140), b[0][half], b[1][half]);
      widen_e4m3(__byte_perm(x.x, y.x, 0x7362), b[2][half], b[3][half]);
      widen_e4m3(__byte_perm(x.y, y.y, 0x5140), b[4][half], b[5][half]);
      widen_e4m3(__byte_perm(x.y, y.y, 0x7362), b[6][half], b[7][half]);
    }
  }
};

// Splits x and y into high parts and remainders, packed in pairs.
template <typename F>
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
  high = F::pack(x, y);
  const float2 rounded = F::unpack(high);
  low = F::pack(x - rounded.x, y - rounded.y);
}

}  // namespace moxie::attend_split
