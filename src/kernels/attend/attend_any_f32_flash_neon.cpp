// The attend tile for NEON, which every aarch64 CPU has: 4 lanes, 32 registers.
#include <arm_neon.h>

#include "kernels/attend/attend_tile_body.h"

namespace moxie {
namespace {

struct Neon {
  using Vec = float32x4_t;
  static constexpr int kLanes = 4;
  static constexpr int kScoreRows = 4, kScoreVecs = 4;
  static constexpr int kSumRows = 4, kSumVecs = 4;

  static Vec zero() { return vdupq_n_f32(0); }
  static Vec set(float x) { return vdupq_n_f32(x); }
  static Vec load(const float* at) { return vld1q_f32(at); }
  static void store(float* at, Vec x) { vst1q_f32(at, x); }
  static void storeu(float* at, Vec x) { vst1q_f32(at, x); }
  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
  static float greatest(Vec x) { return vmaxvq_f32(x); }
  static bool exceeds(Vec x, Vec limit) { return vmaxvq_u32(vcgtq_f32(x, limit)) != 0; }
  static float sum(Vec x) { return vaddvq_f32(x); }
  static float first(Vec x) { return vgetq_lane_f32(x, 0); }

  // x in the lanes for which begin <= base + lane < end, y in the others.
  static Vec where_between(Vec x, int base, int begin, int end, Vec y) {
    constexpr int32_t kCount[4] = {0, 1, 2, 3};
    const int32x4_t lane = vaddq_s32(vdupq_n_s32(base), vld1q_s32(kCount));
    const uint32x4_t inside =
        vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(inside, x, y);
  }

  // As in the AVX-512 file: Taylor to r^7, exactly 0 below -87.3.
  static Vec exp(Vec x) {
    const uint32x4_t tiny = vcltq_f32(x, set(-87.3f));
    x = vmaxq_f32(x, set(-87.3f));  // NaN stays
    const int32x4_t power = vcvtnq_s32_f32(mul(x, set(1.44269504f)));
    const Vec n = vcvtq_f32_s32(power);
    Vec r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    Vec p = set(1.0f / 5040);
    p = fma(p, r, set(1.0f / 720));
    p = fma(p, r, set(1.0f / 120));
    p = fma(p, r, set(1.0f / 24));
    p = fma(p, r, set(1.0f / 6));
    p = fma(p, r, set(0.5f));
    p = fma(p, r, set(1.0f));
    p = fma(p, r, set(1.0f));
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(power, vdupq_n_s32(127)), 23);
    const Vec value = mul(p, vreinterpretq_f32_s32(exponent));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), tiny));
  }

  // 8 elements from `i` of a row.
  static float32x4x2_t widen8(const unsigned char* row, AttendKvType type, int i) {
    if (type == AttendKvType::kF32) {
      const auto* from = reinterpret_cast<const float*>(row) + i;
      return {{vld1q_f32(from), vld1q_f32(from + 4)}};
    }
    if (type == AttendKvType::kBF16) {
      const uint16x8_t bits = vld1q_u16(reinterpret_cast<const uint16_t*>(row) + i);
      return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
               vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))}};
    }
    // E4M3 bits as FP16 bits are the value / 256 (subnormals too); 0x7F becomes an FP16 NaN.
    const uint16x8_t code = vmovl_u8(vld1_u8(row + i));
    const uint16x8_t magnitude = vandq_u16(code, vdupq_n_u16(0x7F));
    const uint16x8_t nan = vandq_u16(vceqq_u16(magnitude, vdupq_n_u16(0x7F)), vdupq_n_u16(0x7C00));
    const uint16x8_t sign = vshlq_n_u16(vandq_u16(code, vdupq_n_u16(0x80)), 8);
    const float16x8_t half =
        vreinterpretq_f16_u16(vorrq_u16(vorrq_u16(sign, nan), vshlq_n_u16(magnitude, 7)));
    return {{mul(vcvt_f32_f16(vget_low_f16(half)), set(256.0f)),
             mul(vcvt_high_f32_f16(half), set(256.0f))}};
  }
  static void widen(const unsigned char* row, AttendKvType type, int head_dim, float* out) {
    for (int i = 0; i < head_dim; i += 8) {
      const float32x4x2_t values = widen8(row, type, i);
      store(out + i, values.val[0]);
      store(out + i + 4, values.val[1]);
    }
  }

  // Column d + i gets element d + i of four neighbouring keys; st4 would write them in the other
  // order.
  static void store_columns(Vec a, Vec b, Vec c, Vec d, float* columns) {
    const Vec ac_low = vzip1q_f32(a, c), ac_high = vzip2q_f32(a, c);
    const Vec bd_low = vzip1q_f32(b, d), bd_high = vzip2q_f32(b, d);
    store(columns, vzip1q_f32(ac_low, bd_low));
    store(columns + kAttendChunk, vzip2q_f32(ac_low, bd_low));
    store(columns + 2 * kAttendChunk, vzip1q_f32(ac_high, bd_high));
    store(columns + 3 * kAttendChunk, vzip2q_f32(ac_high, bd_high));
  }
  static void load_keys(const unsigned char* const* rows, AttendKvType type, int head_dim,
                        float* columns) {
    for (int key = 0; key < kAttendChunk; key += 4) {
      for (int d = 0; d < head_dim; d += 8) {
        float32x4x2_t r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) r[i] = widen8(rows[key + i], type, d);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          store_columns(r[0].val[half], r[1].val[half], r[2].val[half], r[3].val[half],
                        columns + (d + 4 * half) * kAttendChunk + key);
        }
      }
    }
  }
};

}  // namespace

extern const AttendTileCode kAttendTileNeon = AttendTileBody<Neon>::code();

}  // namespace moxie
