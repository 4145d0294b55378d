// The attend tile with BF16 products by AVX-512 BF16: sums of 8 rows x 32 columns in 16 registers,
// enough to hide the latency of vdpbf16ps.
#include "kernels/attend/attend_bf16_body.h"

namespace moxie {
namespace {

struct Avx512Bf16 {
  static void begin() {}
  static void end() {}

  static void multiply(const uint16_t* a, const uint16_t* b, int32_t num_steps, int32_t num_cols,
                       bool adds, int32_t num_rows, float* sums, int32_t stride) {
    for (int32_t col = 0; col < num_cols; col += 2) {
      const uint16_t* from = b + col * 512;
      float* out = sums + col * 16;
      int32_t row = 0;
      for (; row + 8 <= num_rows; row += 8)
        add_rows<8>(a + 32 * row, from, num_steps, num_cols * 512, adds, out + row * stride,
                    stride);
      for (; row < num_rows; ++row)
        add_rows<1>(a + 32 * row, from, num_steps, num_cols * 512, adds, out + row * stride,
                    stride);
    }
  }

 private:
  // kRows rows x 32 columns.
  template <int kRows>
  static void add_rows(const uint16_t* a, const uint16_t* b, int32_t num_steps, int32_t b_step,
                       bool adds, float* sums, int32_t stride) {
    __m512 acc[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = adds ? _mm512_load_ps(sums + r * stride) : _mm512_setzero_ps();
      acc[r][1] = adds ? _mm512_load_ps(sums + r * stride + 16) : _mm512_setzero_ps();
    }
    for (int32_t step = 0; step < num_steps; ++step, a += 512, b += b_step) {
#pragma GCC unroll 4
      for (int pair = 0; pair < 16; ++pair) {
        const auto b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(b + 32 * pair));
        const auto b1 = reinterpret_cast<__m512bh>(_mm512_load_si512(b + 512 + 32 * pair));
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          int32_t word;
          __builtin_memcpy(&word, a + 32 * r + 2 * pair, 4);
          const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
          acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
          acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(sums + r * stride, acc[r][0]);
      _mm512_store_ps(sums + r * stride + 16, acc[r][1]);
    }
  }
};

}  // namespace

extern const AttendTileCode kAttendTileAvx512Bf16 = AttendBf16Body<Avx512Bf16>::code();

}  // namespace moxie
