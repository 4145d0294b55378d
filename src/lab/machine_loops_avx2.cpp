// AVX2 with FMA: 256-bit loads, FP32 multiply-add, INT8 pairs through 16-bit sums.
#include <immintrin.h>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

template <int kStreams>
uint64_t read_vectors(const std::byte* data, uint64_t bytes) {
  constexpr uint64_t kStride = kReadGrain / kStreams;
  __m256i sums[kStreams] = {};
  for (uint64_t grain = 0; grain < bytes; grain += kReadGrain) {
    for (uint64_t at = 0; at < kStride; at += 64) {
#pragma GCC unroll 8
      for (int k = 0; k < kStreams; ++k) {
        const auto* from = reinterpret_cast<const __m256i*>(
            data + grain + static_cast<uint64_t>(k) * kStride + at);
        sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256(from));
        sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256(from + 1));
      }
    }
  }
  for (int k = 1; k < kStreams; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

constexpr int kSums = 12;  // 2 a cycle, latency 4 or 5; with factor and addend within 16 registers

float multiply_add_f32(int64_t num_iterations) {
  __m256 sums[kSums] = {};
  __m256 factor = _mm256_set1_ps(0.5f);
  const __m256 addend = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; ++k) {
      asm volatile("" : "+x"(factor));  // it may change: else all chains are one
      sums[k] = _mm256_fmadd_ps(sums[k], factor, addend);
    }
  }
  for (int k = 1; k < kSums; ++k) sums[0] = _mm256_add_ps(sums[0], sums[k]);
  return _mm256_cvtss_f32(sums[0]);
}

float multiply_add_int8(int64_t num_iterations) {
  __m256i sums[kSums - 4] = {};
  __m256i left = _mm256_set1_epi8(3), right = _mm256_set1_epi8(-2);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < num_iterations; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < kSums - 4; ++k) {
      asm volatile("" : "+x"(left));  // the factor may change: no product can be reused
      const __m256i pairs = _mm256_maddubs_epi16(left, right);
      sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs, ones));
    }
  }
  for (int k = 1; k < kSums - 4; ++k) sums[0] = _mm256_xor_si256(sums[0], sums[k]);
  return static_cast<float>(_mm256_cvtsi256_si32(sums[0]));
}

constexpr ReadLoop kReadLoops[] = {{"avx2 vmovdqu, 1 stream", kAvx2, read_vectors<1>},
                                   {"avx2 vmovdqu, 8 streams", kAvx2, read_vectors<kReadStreams>}};
constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kF32, "avx2 vfmadd231ps", kAvx2, 2.0 * 8 * kSums, multiply_add_f32},
    {NumberFormat::kInt8, "avx2 vpmaddubsw, vpmaddwd, vpaddd", kAvx2, 2.0 * 32 * (kSums - 4),
     multiply_add_int8},
};

}  // namespace

std::span<const ReadLoop> read_loops_avx2() { return kReadLoops; }
std::span<const ArithmeticLoop> arithmetic_loops_avx2() { return kArithmeticLoops; }

}  // namespace moxie
