// LaneKernels for NEON with the dot product of bytes (FEAT_DotProd): MXFP4 weights times
// activations in 16-bit fixed point.
//
// lanes_fixed_body.h says what becomes of activations. A weight becomes the signed byte 2 w (-12 to
// 12) by one table look-up; sdot multiplies four signed by four signed bytes and adds them to a
// 32-bit sum, so that nothing is to be corrected. A block of 512 weights takes 64 instructions to
// decode and 64 a token, where F32 takes 128 multiply-adds a token and a decoding of its own.
#include <arm_neon.h>

#include "kernels/gemv/lanes_fixed_body.h"

namespace moxie {
namespace {

void prepare(const float* x, int32_t cols, float* out) {
  auto* block = reinterpret_cast<PreparedBlock*>(out);
  for (int32_t k = 0; k < cols; k += 32, ++block) {
    float32x4_t greatest = vdupq_n_f32(0);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) greatest = vmaxq_f32(greatest, vabsq_f32(vld1q_f32(x + k + 4 * i)));
    const float amax = vmaxvq_f32(greatest);
    const float inverse = amax > 0 ? kGreatestFixed / amax : 0.0f;
    block->half_scale = amax * (0.5f / kGreatestFixed);
    block->correction = 0;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      // Nearest even; v + 128 has lo + 128 in its low byte and hi above it.
      const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + k + 8 * i), inverse));
      const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + k + 8 * i + 4), inverse));
      const int16x8_t v = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
      vst1_s8(block->lo + 8 * i, vmovn_s16(v));
      vst1_s8(block->hi + 8 * i, vshrn_n_s16(vaddq_s16(v, vdupq_n_s16(128)), 8));
    }
  }
}

// Four rows of a block: the sums of products with the high and with the low bytes of a token.
struct RowSums {
  int32x4_t hi, lo;
};

// sums[n] += 8 columns, from 8 kGroup, of four rows. A lane holds 4 columns of a row in its low
// nibbles and the next 4 in its high ones.
template <int32_t N, int32_t kGroup>
MOXIE_INLINE void add_group(const std::byte* rows, const float* const* x, int32_t i,
                            RowSums* sums) {
  constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t table = vld1q_s8(kTwice);
  const uint8x16_t codes = vld1q_u8(reinterpret_cast<const uint8_t*>(rows + 64 * kGroup));
  const int8x16_t low = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(0x0F)));
  const int8x16_t high = vqtbl1q_s8(table, vshrq_n_u8(codes, 4));
#pragma GCC unroll 4
  for (int32_t n = 0; n < N; ++n) {
    const auto& from = reinterpret_cast<const PreparedBlock*>(x[n])[i];
    constexpr int kHalf = kGroup / 2 * 16, kWord = kGroup % 2 * 2;
    const int8x16_t hi = vld1q_s8(from.hi + kHalf), lo = vld1q_s8(from.lo + kHalf);
    sums[n].hi = vdotq_laneq_s32(sums[n].hi, low, hi, kWord);
    sums[n].lo = vdotq_laneq_s32(sums[n].lo, low, lo, kWord);
    sums[n].hi = vdotq_laneq_s32(sums[n].hi, high, hi, kWord + 1);
    sums[n].lo = vdotq_laneq_s32(sums[n].lo, high, lo, kWord + 1);
  }
}

template <int32_t N>
void add_block(const std::byte* block, const float* const* x, int32_t i, Vec* sums) {
  // A loop, not unrolled: else the scheduler moves all loads ahead and has no registers for them.
#pragma GCC unroll 1
  for (int32_t part = 0; part < kParts; ++part) {
    RowSums rows[N] = {};
    const std::byte* from_rows = block + 16 + 16 * part;
    add_group<N, 0>(from_rows, x, i, rows);
    add_group<N, 1>(from_rows, x, i, rows);
    add_group<N, 2>(from_rows, x, i, rows);
    add_group<N, 3>(from_rows, x, i, rows);
    // As Mxfp4Format::scale, in four instructions.
    uint32_t codes;
    __builtin_memcpy(&codes, block + 4 * part, 4);
    const uint32x4_t exponents = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(codes))));
    const float32x4_t factor = vreinterpretq_f32_u32(vshlq_n_u32(exponents, 23));
#pragma GCC unroll 4
    for (int32_t n = 0; n < N; ++n) {
      const auto& from = reinterpret_cast<const PreparedBlock*>(x[n])[i];
      const int32x4_t total = vaddq_s32(vshlq_n_s32(rows[n].hi, 8), rows[n].lo);
      sums[n * kParts + part] += factor * from.half_scale * vcvtq_f32_s32(total);
    }
  }
}

}  // namespace

const LaneKernels kLanesNeonDot = {.name = "neon_dot",
                                   .prepare = prepare,
                                   .f32 = {},
                                   .bf16 = {},
                                   .q8_0 = {},
                                   .mxfp4 = {fixed_product, fixed_streams},
                                   .rms_norm = rms_norm,
                                   .swiglu = swiglu,
                                   // Counted, not measured: two vector pipes at 3 GHz.
                                   .decode_ns = 0.02,
                                   .apply_ns = 0.02};

}  // namespace moxie
