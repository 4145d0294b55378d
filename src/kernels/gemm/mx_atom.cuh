// The block-scaled products of SM120 (RTX Blackwell, GB10) as an atom that kernels are written
// over: mma.sync kind::mxf8f6f4 m16n8k32, MXFP4 weights times activations of any MX element, and
// kind::mxf4 m16n8k64, MXFP4 times MXFP4. On other GPUs the same fragments are multiplied in plain
// arithmetic: codes widened to BF16, products by mma.m16n8k16 of the same lanes, and the sums of
// each block of 32 columns times the two scales that the instruction would read, from the lanes
// that hold them.
//
// Fragments, of lane l (g = l / 4, q = l % 4):
//   k32: a register is four bytes. a[0], a[2]: row g, K 4q .. 4q + 3 and 16 more; a[1], a[3]: row
//     g + 8. b[0], b[1]: column g, the same K. An E2M1 code takes bits 5:2 of its byte, E2M3 and
//     E3M2 bits 5:0.
//   k64: a register is eight nibbles. a[0], a[2]: row g, K 8q .. 8q + 7 and 32 more; a[1], a[3]:
//     row g + 8. b[0], b[1]: column g, the same K.
//   sums: rows g, g + 8, columns 2q, 2q + 1.
//   scales: E8M0. Of A in the lanes q = 0 (row g) and q = 1 (row g + 8), of B in the lanes q = 0
//     (column g). k32 reads byte kByte of the register; k64 bytes 0 and 1, of K below and from 32.
//     The other lanes' registers are not read.
// Source: PTX ISA, warp-level matrix fragments of mma with block scaling. The instruction itself
// has run on no hardware here; the emulated atom has.
#pragma once

#include <cuda_bf16.h>

#include "core/formats.h"
#include "core/tensor.h"
#include "kernels/ptx.cuh"

namespace moxie::gemm {

#ifdef __CUDACC__

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ == 1200
#define MOXIE_HAS_MX_MMA 1
#else
#define MOXIE_HAS_MX_MMA 0
#endif

namespace mx {

#if MOXIE_HAS_MX_MMA

template <int kByteA, int kByteB, MxElement kElement>
__device__ __forceinline__ void instruction_k32(float (&sums)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2], uint32_t scale_a,
                                                uint32_t scale_b) {
#define MOXIE_MX_MMA(element)                                                              \
  asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32."    \
      "e2m1." element                                                                      \
      ".f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, " \
      "{%12, 0}, {%11}, {%13, 0};"                                                         \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a),    \
        "r"(scale_b), "n"(kByteA), "n"(kByteB))
  if constexpr (kElement == MxElement::kE4M3) {
    MOXIE_MX_MMA("e4m3");
  } else if constexpr (kElement == MxElement::kE3M2) {
    MOXIE_MX_MMA("e3m2");
  } else if constexpr (kElement == MxElement::kE2M3) {
    MOXIE_MX_MMA("e2m3");
  } else {
    MOXIE_MX_MMA("e2m1");
  }
#undef MOXIE_MX_MMA
}

__device__ __forceinline__ void instruction_k64(float (&sums)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2], uint32_t scale_a,
                                                uint32_t scale_b) {
  asm("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32."
      "ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, "
      "{0, 0};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a),
        "r"(scale_b));
}

#endif

/// How an element's codes become BF16: the bits below the sign moved so that the exponent's field
/// is BF16's, which is 2^(bias - 127) of the value, subnormals too, and then one product.
struct Widening {
  int sign_at, shift;    // of a code in the low byte of 16 bits
  uint32_t mask;         // of the magnitude, after the shift
  float factor;          // 2^(127 - bias)
  bool has_nan = false;  // 0x7F, without its sign
};
__device__ __forceinline__ constexpr Widening widening_of(MxElement element) {
  switch (element) {
    case MxElement::kE4M3:
      return {7, 4, 0x7F0, 0x1p120f, true};
    case MxElement::kE3M2:
      return {5, 5, 0x3E0, 0x1p124f};
    case MxElement::kE2M3:
      return {5, 4, 0x1F0, 0x1p126f};
    case MxElement::kE2M1:
      break;
  }
  return {3, 6, 0x1C0, 0x1p126f};
}
/// Two codes in the low bytes of both halves of `codes` as two BF16.
__device__ __forceinline__ uint32_t widen(const Widening& how, uint32_t codes) {
  const uint32_t both = 0x00010001u;
  const uint32_t signs = ((codes >> how.sign_at) & both) << 15;
  const uint32_t bits = signs | ((codes << how.shift) & (both * how.mask));
  const __nv_bfloat162 factor = __float2bfloat162_rn(how.factor);
  const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), factor);
  uint32_t made = *reinterpret_cast<const uint32_t*>(&value);
  if (how.has_nan) {
    if ((codes & 0x7Fu) == 0x7Fu) made |= 0x7FC0u;
    if ((codes & 0x7F0000u) == 0x7F0000u) made |= 0x7FC00000u;
  }
  return made;
}
/// Four codes, one a byte, as two pairs.
__device__ __forceinline__ void widen_bytes(const Widening& how, uint32_t bytes,
                                            uint32_t (&pairs)[2]) {
  pairs[0] = widen(how, __byte_perm(bytes, 0, 0x4140));
  pairs[1] = widen(how, __byte_perm(bytes, 0, 0x4342));
}
/// Eight nibbles as four pairs, in order.
__device__ __forceinline__ void widen_nibbles(uint32_t nibbles, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = nibbles >> (8 * i);
    pairs[i] = widen(widening_of(MxElement::kE2M1), (two & 0xFu) | (two & 0xF0u) << 12);
  }
}

/// sum += product * 2^(code_a + code_b - 254), NaN if a code is 255. In two factors, since both
/// scales together may pass F32's range where the result does not.
__device__ __forceinline__ void add_scaled(float& sum, float product, uint32_t code_a,
                                           uint32_t code_b) {
  const int power = static_cast<int>(code_a + code_b) - 254, half = power >> 1;
  const float first = e8m0_to_f32(static_cast<uint8_t>(half + 127));
  const float second = e8m0_to_f32(static_cast<uint8_t>(power - half + 127));
  sum += code_a == 255 || code_b == 255 ? __int_as_float(0x7FC00000) : product * first * second;
}
/// sums += a block's products times the scales: `codes_a` and `codes_b` are this lane's bytes.
__device__ __forceinline__ void add_block(float (&sums)[4], const float (&products)[4],
                                          uint32_t code_a, uint32_t code_b) {
  const int lane = threadIdx.x % 32, first = lane & ~3, column = 8 * (lane % 4);
  const uint32_t top = __shfl_sync(~0u, code_a, first),
                 bottom = __shfl_sync(~0u, code_a, first + 1);
  const uint32_t left = __shfl_sync(~0u, code_b, column);
  const uint32_t right = __shfl_sync(~0u, code_b, column + 4);
  add_scaled(sums[0], products[0], top, left);
  add_scaled(sums[1], products[1], top, right);
  add_scaled(sums[2], products[2], bottom, left);
  add_scaled(sums[3], products[3], bottom, right);
}

/// Products of one block of 32 columns: the pairs of A's rows g and g + 8 and of B's column, each
/// lane's eight values of the block in the same order of K.
__device__ __forceinline__ void multiply_pairs(float (&products)[4], const uint32_t (&top)[4],
                                               const uint32_t (&bottom)[4],
                                               const uint32_t (&column)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    mma_m16n8k16(products, top[2 * i], bottom[2 * i], top[2 * i + 1], bottom[2 * i + 1],
                 column[2 * i], column[2 * i + 1]);
  }
}

__device__ __forceinline__ void emulated_k32(MxElement element, float (&sums)[4],
                                             const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             uint32_t code_a, uint32_t code_b) {
  // An E2M1 code lies two bits higher in its byte than other codes do.
  const Widening of_weights = widening_of(MxElement::kE2M1), of_b = widening_of(element);
  const int low = element == MxElement::kE2M1 ? 2 : 0;
  uint32_t top[4], bottom[4], column[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    auto& top_half = reinterpret_cast<uint32_t(&)[2]>(top[2 * half]);
    auto& bottom_half = reinterpret_cast<uint32_t(&)[2]>(bottom[2 * half]);
    auto& column_half = reinterpret_cast<uint32_t(&)[2]>(column[2 * half]);
    widen_bytes(of_weights, a[2 * half] >> 2 & 0x0F0F0F0Fu, top_half);
    widen_bytes(of_weights, a[2 * half + 1] >> 2 & 0x0F0F0F0Fu, bottom_half);
    widen_bytes(of_b, b[half] >> low, column_half);
  }
  float products[4] = {};
  multiply_pairs(products, top, bottom, column);
  add_block(sums, products, code_a, code_b);
}

__device__ __forceinline__ void emulated_k64(float (&sums)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], uint32_t scale_a,
                                             uint32_t scale_b) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t top[4], bottom[4], column[4];
    widen_nibbles(a[2 * block], top);
    widen_nibbles(a[2 * block + 1], bottom);
    widen_nibbles(b[block], column);
    float products[4] = {};
    multiply_pairs(products, top, bottom, column);
    add_block(sums, products, scale_a >> (8 * block) & 0xFFu, scale_b >> (8 * block) & 0xFFu);
  }
}

/// sums += a block of 32 columns: bytes kByteA and kByteB of the lanes' registers are the scales.
template <int kByteA, int kByteB>
__device__ __forceinline__ void multiply_k32(MxElement element, float (&sums)[4],
                                             const uint32_t (&a)[4], const uint32_t (&b)[2],
                                             uint32_t scale_a, uint32_t scale_b) {
#if MOXIE_HAS_MX_MMA
  switch (element) {  // known when it is compiled, after inlining
    case MxElement::kE4M3:
      return instruction_k32<kByteA, kByteB, MxElement::kE4M3>(sums, a, b, scale_a, scale_b);
    case MxElement::kE3M2:
      return instruction_k32<kByteA, kByteB, MxElement::kE3M2>(sums, a, b, scale_a, scale_b);
    case MxElement::kE2M3:
      return instruction_k32<kByteA, kByteB, MxElement::kE2M3>(sums, a, b, scale_a, scale_b);
    case MxElement::kE2M1:
      return instruction_k32<kByteA, kByteB, MxElement::kE2M1>(sums, a, b, scale_a, scale_b);
  }
#else
  emulated_k32(element, sums, a, b, scale_a >> (8 * kByteA) & 0xFFu,
               scale_b >> (8 * kByteB) & 0xFFu);
#endif
}
/// sums += two blocks of 32 columns.
__device__ __forceinline__ void multiply_k64(float (&sums)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2], uint32_t scale_a,
                                             uint32_t scale_b) {
#if MOXIE_HAS_MX_MMA
  instruction_k64(sums, a, b, scale_a, scale_b);
#else
  emulated_k64(sums, a, b, scale_a, scale_b);
#endif
}

}  // namespace mx

#endif  // __CUDACC__

}  // namespace moxie::gemm
