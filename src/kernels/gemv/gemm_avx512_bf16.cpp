// GemmKernels for AVX-512 BF16: sums of 8 tokens x 32 outputs in 16 registers, enough to hide the
// latency of vdpbf16ps. Each pair of columns loads two vectors of weights (16 outputs each) and
// broadcasts the tokens' pairs of activations.
//
// As in gemm_amx.cpp, a few blocks of weights are decoded into L1 and used for all tokens before
// the next blocks. Another token costs only its own products: there is no group to fill.
#include "kernels/gemv/gemm_body.h"

namespace moxie {
namespace {

constexpr int32_t kPassTokens = 8;

// Blocks decoded at a time: their panels (12 KiB), the tokens' activations and the sums of a pass
// fit in L1.
constexpr int32_t kPanelBlocks = 6;

// Adds `num_blocks` blocks to the sums of `N` tokens of a group.
template <int32_t N>
void add_tokens(const uint16_t* tokens, const uint16_t* panel0, const uint16_t* panel1,
                int32_t num_blocks, bool is_first, float* sums) {
  __m512 acc[N][2];
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    acc[n][0] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * n);
    acc[n][1] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(sums + 32 * n + 16);
  }
  for (int32_t i = 0; i < num_blocks * kBlockValues; i += kBlockValues) {
#pragma GCC unroll 4
    for (int32_t pair = 0; pair < 16; ++pair) {
      const auto w0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel0 + i + 32 * pair));
      const auto w1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel1 + i + 32 * pair));
#pragma GCC unroll 8
      for (int32_t n = 0; n < N; ++n) {
        int32_t word;
        __builtin_memcpy(&word, tokens + i + 32 * n + 2 * pair, 4);
        const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
        acc[n][0] = _mm512_dpbf16_ps(acc[n][0], w0, x);
        acc[n][1] = _mm512_dpbf16_ps(acc[n][1], w1, x);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t n = 0; n < N; ++n) {
    _mm512_store_ps(sums + 32 * n, acc[n][0]);
    _mm512_store_ps(sums + 32 * n + 16, acc[n][1]);
  }
}

using AddTokens = void (*)(const uint16_t*, const uint16_t*, const uint16_t*, int32_t, bool,
                           float*);
constexpr AddTokens kAddTokens[kPassTokens + 1] = {nullptr,       add_tokens<1>, add_tokens<2>,
                                                   add_tokens<3>, add_tokens<4>, add_tokens<5>,
                                                   add_tokens<6>, add_tokens<7>, add_tokens<8>};

void multiply(const GemmTiles& tiles, const uint16_t* groups, int32_t num_tokens, float* sums) {
  alignas(64) uint16_t memory[2][kPanelBlocks * kBlockValues];
  const int32_t num_blocks = (tiles.cols + 31) / 32;
  const int64_t group_values = int64_t{num_blocks} * kBlockValues;
  const int32_t num_passes = (num_tokens + kPassTokens - 1) / kPassTokens;
  const int32_t num_panels = (num_blocks + kPanelBlocks - 1) / kPanelBlocks;
  Ahead ahead = ahead_of(tiles, int64_t{num_passes} * num_panels);
  for (int32_t block = 0; block < num_blocks; block += kPanelBlocks) {
    const int32_t left = num_blocks - block;
    const int32_t count = left < kPanelBlocks ? left : kPanelBlocks;
    const uint16_t* panels[2];
    find_panels(tiles, block, count, memory[0], memory[1], panels);
    for (int32_t token = 0; token < num_tokens; token += kPassTokens) {
      const int32_t in_pass = num_tokens - token < kPassTokens ? num_tokens - token : kPassTokens;
      const uint16_t* from = groups + token / kGroupTokens * group_values +
                             int64_t{block} * kBlockValues + token % kGroupTokens * 32;
      kAddTokens[in_pass](from, panels[0], panels[1], count, block == 0, sums + token * 32);
      read_ahead(ahead);
    }
  }
}

}  // namespace

const GemmKernels kGemmAvx512Bf16 = {.name = "avx512_bf16",
                                     .pack_group = pack_group,
                                     .multiply = multiply,
                                     .swiglu_group = swiglu_group,
                                     .add_scaled = add_scaled,
                                     .rms_norm = rms_norm,
                                     .decode_ns = 0.04,
                                     .apply_ns = 0.0105,
                                     .least_pairs = 16};

}  // namespace moxie
