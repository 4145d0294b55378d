// MoeFp8Kernels for AMX BF16: sums of 16 rows x 16 tokens in a tile, two halves of a strip by two
// groups at once.
#include "kernels/gemv/amx_tiles.h"
#include "kernels/moe_fp8/moe_fp8_bf16_body.h"

namespace moxie {
namespace {

constexpr int32_t kWeightStride = kBlock * 2, kRowBytes = 64;  // bytes of a row of a tile's source

// Products of a block, with kTwo of a second group, into tiles 0 to 3: [group][half].
template <bool kTwo>
MOXIE_INLINE void multiply_block(const MoeFp8Strip& strip, const MoeFp8Groups& groups,
                                 int32_t group, int32_t block, const uint16_t* weights) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t part = 0; part < groups.num_parts; ++part) {
    const uint16_t* first = packed_block(groups, strip.cols, group, part, block);
    const uint16_t* second =
        kTwo ? packed_block(groups, strip.cols, group + 1, part, block) : nullptr;
#pragma GCC unroll 4
    for (int32_t k = 0; k < kBlock; k += 32) {
      _tile_loadd(4, weights + k, kWeightStride);
      _tile_loadd(5, weights + 16 * kBlock + k, kWeightStride);
      _tile_loadd(6, first + k * kMoeFp8Group, kRowBytes);
      if constexpr (kTwo) _tile_loadd(7, second + k * kMoeFp8Group, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (kTwo) {
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
}

template <bool kTwo>
void add_groups(const MoeFp8Strip& strip, const MoeFp8Groups& groups, int32_t group, int32_t block,
                const uint16_t* weights, float* sums) {
  alignas(64) float products[2][kMoeFp8GroupSums];
  multiply_block<kTwo>(strip, groups, group, block, weights);
  _tile_stored(0, products[0], kRowBytes);
  _tile_stored(1, products[0] + 16 * kMoeFp8Group, kRowBytes);
  if constexpr (kTwo) {
    _tile_stored(2, products[1], kRowBytes);
    _tile_stored(3, products[1] + 16 * kMoeFp8Group, kRowBytes);
  }
  asm volatile("" ::: "memory");  // the tile stores' intrinsics do not say that they write
  for (int32_t g = 0; g < (kTwo ? 2 : 1); ++g) {
    Vec of_tokens;
    token_scales(groups, strip.cols, group + g, block, of_tokens);
    for (int32_t row = 0; row < kMoeFp8Strip; ++row) {
      const int32_t at = row * kMoeFp8Group;
      Vec of_row;
      load(products[g] + at, of_row);
      add_scaled_row(of_row, of_tokens, strip.scales[row / 16][block],
                     sums + g * kMoeFp8GroupSums + at);
    }
  }
}

void multiply(const MoeFp8Strip& strip, const MoeFp8Groups& groups, float* sums) {
  alignas(64) uint16_t weights[kMoeFp8Strip * kBlock];
  const int32_t num_groups = (groups.num_tokens + kMoeFp8Group - 1) / kMoeFp8Group;
  __builtin_memset(sums, 0, sizeof(float) * kMoeFp8GroupSums * static_cast<size_t>(num_groups));
  configure_tiles();
  for (int32_t block = 0; block < strip.cols / kBlock; ++block) {
    decode_strip(strip, block, weights);
    asm volatile("" ::: "memory");  // the tile loads' intrinsics do not say that they read
    int32_t group = 0;
    for (; group + 2 <= num_groups; group += 2)
      add_groups<true>(strip, groups, group, block, weights, sums + group * kMoeFp8GroupSums);
    if (group < num_groups)
      add_groups<false>(strip, groups, group, block, weights, sums + group * kMoeFp8GroupSums);
  }
  _tile_release();
}

}  // namespace

const MoeFp8Kernels kMoeFp8Amx = {.name = "amx",
                                  .is_bf16 = true,
                                  .most_few = kMoeFp8MostFew,
                                  .multiply = multiply,
                                  .multiply_few = multiply_few_bf16,
                                  .swiglu = swiglu_bf16x2,
                                  .add_outputs = add_outputs,
                                  .decode_ns = 0.045,
                                  .apply_ns = 0.002};

}  // namespace moxie
