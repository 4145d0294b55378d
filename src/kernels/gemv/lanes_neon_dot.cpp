// LaneKernels for NEON with the dot product of bytes (FEAT_DotProd): MXFP4 weights times
// activations in fixed point of 16 or 8 bits.
//
// lanes_fixed_body.h describes the activations. A weight becomes the signed byte 2 w (-12 to 12) by
// one table look-up; sdot multiplies four signed by four signed bytes and adds the products to a
// 32-bit sum, so that no correction is needed. A block of 512 weights takes 64 instructions to
// decode and 64 a token, where F32 takes 128 multiply-adds a token, besides decoding.
#include <arm_neon.h>

#include "kernels/gemv/lanes_fixed_body.h"

namespace moxie {
namespace {

// Four rows of a block: the sums of products with each byte of a token's activations.
template <int32_t W>
struct RowSums {
  int32x4_t of[W];
};

// sums[n] += 8 columns, from 8 kGroup, of four rows. A lane holds 4 columns of a row in its low
// nibbles and the next 4 in its high ones.
template <int32_t W, int32_t N, int32_t kGroup>
MOXIE_INLINE void add_group(const std::byte* rows, const float* const* x, int32_t i,
                            RowSums<W>* sums) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t table = vld1q_s8(kTwice);
  const uint8x16_t codes = vld1q_u8(reinterpret_cast<const uint8_t*>(rows + 64 * kGroup));
  const int8x16_t low = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(0x0F)));
  const int8x16_t high = vqtbl1q_s8(table, vshrq_n_u8(codes, 4));
#pragma GCC unroll 4
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
    constexpr int kHalf = kGroup / 2 * 16, kWord = kGroup % 2 * 2;
#pragma GCC unroll 2
    for (int32_t w = 0; w < W; ++w) {
      const int8x16_t bytes = vld1q_s8(from.bytes[w] + kHalf);
      sums[n].of[w] = vdotq_laneq_s32(sums[n].of[w], low, bytes, kWord);
      sums[n].of[w] = vdotq_laneq_s32(sums[n].of[w], high, bytes, kWord + 1);
    }
  }
}

template <int32_t W, int32_t N>
void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums) {
  // A loop, not unrolled: otherwise the scheduler moves all loads ahead and runs out of registers.
#pragma GCC unroll 1
  for (int32_t part = 0; part < kParts; ++part) {
    RowSums<W> rows[N] = {};
    const std::byte* from_rows = block + 16 + 16 * part;
    add_group<W, N, 0>(from_rows, x, i, rows);
    add_group<W, N, 1>(from_rows, x, i, rows);
    add_group<W, N, 2>(from_rows, x, i, rows);
    add_group<W, N, 3>(from_rows, x, i, rows);
    // As Mxfp4Format::scale, in four instructions.
    uint32_t codes;
    __builtin_memcpy(&codes, block + 4 * part, 4);
    const uint32x4_t exponents = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(codes))));
    const float32x4_t factor = vreinterpretq_f32_u32(vshlq_n_u32(exponents, 23));
#pragma GCC unroll 4
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock<W>*>(x[n])[i];
      int32x4_t total = rows[n].of[0];
      if constexpr (W == 2) total = vaddq_s32(vshlq_n_s32(total, 8), rows[n].of[1]);
      sums[n * kParts + part] += factor * from.half_scale * vcvtq_f32_s32(total);
    }
  }
}

}  // namespace

// Costs are counted, not measured: two vector pipes at 3 GHz.
const LaneKernels kLanesNeonDotI16 = fixed_lanes<2, 0>("neondot_i16", kMaxTileTokens, 0.02, 0.02);
const LaneKernels kLanesNeonDotI8 = fixed_lanes<1, 0>("neondot_i8", kMaxTileTokens, 0.02, 0.01);

}  // namespace moxie
