// NEON's products of 2 x 4 by 4 x 2 BF16 values into four FP32 sums.
#include <arm_neon.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kSums = 24;

float multiply_add_bf16(int64_t num_iterations) {
  float32x4_t sums[kSums] = {};
  bfloat16x8_t left = vreinterpretq_bf16_u16(vdupq_n_u16(0x3EAB));         // about a third
  const bfloat16x8_t right = vreinterpretq_bf16_u16(vdupq_n_u16(0xBE13));  // a seventh
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+w"(left));  // it may change: no product can be reused
      sums[k] = vbfmmlaq_f32(sums[k], left, right);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = vaddq_f32(sums[0], sums[k]);
  return vgetq_lane_f32(sums[0], 0);
}

constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kBF16, "neon bfmmla", kNeonBf16, 2.0 * 16 * kSums, multiply_add_bf16}};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_neon_bf16() { return kArithmeticLoops; }

}  // namespace moxie
