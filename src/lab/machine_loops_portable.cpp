// Loops in plain C++, for CPUs without a row of their own; the compiler vectorises them as far as
// the base instruction set goes.
#include <array>
#include <cstring>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

uint64_t read_words(const std::byte* data, uint64_t bytes) {
  uint64_t sums[8] = {};
  for (uint64_t at = 0; at < bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, data + at, 64);
    for (int i = 0; i < 8; ++i) sums[i] ^= words[i];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

constexpr int kLanes = 32;  // enough independent sums to hide an add's latency at 4 lanes each

float multiply_add_f32(int64_t num_iterations) {
  std::array<float, kLanes> sums{};
  float factor = 0.5f;
  for (int64_t i = 0; i < num_iterations; ++i) {
    asm volatile("" : "+m"(factor));  // the factor may change: nothing can be folded
    for (float& sum : sums) sum = sum * factor + 1.0f;
  }
  float all = 0;
  for (float sum : sums) all += sum;
  return all;
}

float multiply_add_int8(int64_t num_iterations) {
  std::array<int32_t, kLanes> sums{};
  int16_t factor = 3;
  for (int64_t i = 0; i < num_iterations; ++i) {
    asm volatile("" : "+m"(factor));
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<int32_t>(factor) * static_cast<int16_t>(lane);
    }
  }
  int32_t all = 0;
  for (int32_t sum : sums) all ^= sum;
  return static_cast<float>(all);
}

constexpr ReadLoop kReadLoops[] = {{"portable 64-bit loads", kFeatureNone, read_words}};
constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kF32, "portable multiply, add", kFeatureNone, 2.0 * kLanes, multiply_add_f32},
    {NumberFormat::kInt8, "portable widening multiply, add", kFeatureNone, 2.0 * kLanes,
     multiply_add_int8},
};

}  // namespace

std::span<const ReadLoop> read_loops_portable() { return kReadLoops; }
std::span<const ArithmeticLoop> arithmetic_loops_portable() { return kArithmeticLoops; }

}  // namespace moxie
