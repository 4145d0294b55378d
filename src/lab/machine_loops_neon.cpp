// NEON, which every aarch64 CPU has: 128-bit loads, FP32 multiply-add.
#include <arm_neon.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

template <int kStreams>
uint64_t read_vectors(const std::byte* data, uint64_t bytes) {
  constexpr uint64_t kStride = kReadGrain / kStreams;
  uint64x2_t sums[kStreams] = {};
  for (uint64_t grain = 0; grain < bytes; grain += kReadGrain) {
    for (uint64_t at = 0; at < kStride; at += 64) {
#pragma GCC unroll 8
      for (int k = 0; k < kStreams; ++k) {
        const auto* from = reinterpret_cast<const uint64_t*>(
            data + grain + static_cast<uint64_t>(k) * kStride + at);
        const uint64x2_t low = veorq_u64(vld1q_u64(from), vld1q_u64(from + 2));
        const uint64x2_t high = veorq_u64(vld1q_u64(from + 4), vld1q_u64(from + 6));
        sums[k] = veorq_u64(sums[k], veorq_u64(low, high));
      }
    }
  }
  for (int k = 1; k < kStreams; ++k) sums[0] = veorq_u64(sums[0], sums[k]);
  return vgetq_lane_u64(sums[0], 0) ^ vgetq_lane_u64(sums[0], 1);
}

constexpr int kSums = 24;  // 4 a cycle, latency 4; with factor and addend within 32 registers

float multiply_add_f32(int64_t num_iterations) {
  float32x4_t sums[kSums] = {};
  float32x4_t factor = vdupq_n_f32(0.5f);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+w"(factor));  // it may change: no product can be reused
      sums[k] = vfmaq_f32(sums[k], factor, factor);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = vaddq_f32(sums[0], sums[k]);
  return vgetq_lane_f32(sums[0], 0);
}

constexpr ReadLoop kReadLoops[] = {{"neon ldr q, 1 stream", kNeon, read_vectors<1>},
                                   {"neon ldr q, 8 streams", kNeon, read_vectors<kReadStreams>}};
constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kF32, "neon fmla", kNeon, 2.0 * 4 * kSums, multiply_add_f32}};

}  // namespace

std::span<const ReadLoop> read_loops_neon() { return kReadLoops; }
std::span<const ArithmeticLoop> arithmetic_loops_neon() { return kArithmeticLoops; }

}  // namespace moxie
