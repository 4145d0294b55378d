// NEON's products of 2 x 8 by 8 x 2 bytes into four 32-bit sums.
#include <arm_neon.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kSums = 24;

float multiply_add_int8(int64_t num_iterations) {
  int32x4_t sums[kSums] = {};
  int8x16_t left = vdupq_n_s8(3);
  const int8x16_t right = vdupq_n_s8(-2);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+w"(left));  // it may change: no product can be reused
      sums[k] = vmmlaq_s32(sums[k], left, right);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = veorq_s32(sums[0], sums[k]);
  return static_cast<float>(vgetq_lane_s32(sums[0], 0));
}

constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kInt8, "neon smmla", kNeonI8mm, 2.0 * 32 * kSums, multiply_add_int8}};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_neon_i8mm() { return kArithmeticLoops; }

}  // namespace moxie
