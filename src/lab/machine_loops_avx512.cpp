// AVX-512: 512-bit loads and FP32 multiply-add.
#include <immintrin.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

template <int kStreams>
uint64_t read_vectors(const std::byte* data, uint64_t bytes) {
  constexpr uint64_t kStride = kReadGrain / kStreams;
  __m512i sums[2 * kStreams] = {};
  for (uint64_t grain = 0; grain < bytes; grain += kReadGrain) {
    for (uint64_t at = 0; at < kStride; at += 128) {
#pragma GCC unroll 8
      for (int k = 0; k < kStreams; ++k) {
        const std::byte* from = data + grain + static_cast<uint64_t>(k) * kStride + at;
        sums[2 * k] = _mm512_xor_si512(sums[2 * k], _mm512_loadu_si512(from));
        sums[2 * k + 1] = _mm512_xor_si512(sums[2 * k + 1], _mm512_loadu_si512(from + 64));
      }
    }
  }
  for (int k = 1; k < 2 * kStreams; ++k) sums[0] = _mm512_xor_si512(sums[0], sums[k]);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, sums[0]);
  uint64_t folded = 0;
  for (uint64_t word : words) folded ^= word;
  return folded;
}

constexpr int kSums = 16;

float multiply_add_f32(int64_t num_iterations) {
  __m512 sums[kSums] = {};
  __m512 factor = _mm512_set1_ps(0.5f);
  const __m512 addend = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+v"(factor));  // it may change: else all chains are one
      sums[k] = _mm512_fmadd_ps(sums[k], factor, addend);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = _mm512_add_ps(sums[0], sums[k]);
  return _mm512_cvtss_f32(sums[0]);
}

constexpr ReadLoop kReadLoops[] = {
    {"avx512 vmovdqu64, 1 stream", kAvx512, read_vectors<1>},
    {"avx512 vmovdqu64, 8 streams", kAvx512, read_vectors<kReadStreams>}};
constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kF32, "avx512 vfmadd231ps", kAvx512, 2.0 * 16 * kSums, multiply_add_f32}};

}  // namespace

std::span<const ReadLoop> read_loops_avx512() { return kReadLoops; }
std::span<const ArithmeticLoop> arithmetic_loops_avx512() { return kArithmeticLoops; }

}  // namespace moxie
