// The products of experts_slices.cuh: a stage of weights with the activations of an expert's
// tokens.
#pragma once

#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/residual.cuh"

namespace moxie::slices {

using namespace fragment;

constexpr int kUnits = 3;  // of a stage: neighbours in gate/up; of three tiles in down

/// Bytes of one token's activations of a unit.
inline constexpr int kInputBytes = kUnitActivationBytes<1>;

/// The product of a stage with the activations of one token: of one tile and three units of it, or
/// of one unit of three tiles, of which the first two have half of the slots each.
template <DType F>
struct AloneProduct {
  SlotInputs<4> of_pair;
  SlotInputs<2> of_odd;
  float pair[2], odd[2];
  uint32_t own, odd_offset, step;

  /// Stages that have units of a tile in turn; `inputs`: of the first unit, a token after another.
  template <typename P>
  __device__ __forceinline__ void start_row(const std::byte* inputs, int token_bytes,
                                            const P& pick) {
    const int token = sizeof(pick.tokens) == 1 ? 0 : pick.tokens[0];
    start(inputs + token * token_bytes, 128 * (threadIdx.x % 32 / 8), 2 * kInputBytes,
          kUnits * kInputBytes);
  }
  /// Stages that have tiles; `inputs`: of their unit, by the pick's tokens.
  template <typename P>
  __device__ __forceinline__ void start_column(const std::byte* inputs, const P&) {
    start(inputs, 128 * (threadIdx.x % 16 / 8), 0, 0);
  }
  __device__ __forceinline__ void add_stage(const std::byte* base, uint32_t stage) {
    if constexpr (F == DType::kMXFP4) {
      multiply_three(shared_address(base) + stage, own, odd_offset, of_pair, of_odd, pair, odd);
    } else {
      constexpr int kOfScale = 2 * Format<F>::kScaleWords;
      const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
      const std::byte* codes = base + stage + 16 * lane;
      const std::byte* scales =
          base + stage + kCodeBytes<F> + g * (2 * kOfScale) + q % 2 * kOfScale;
      const std::byte* inputs = base + (own - shared_address(base));
      multiply_slots<F, 2>(codes, scales + q / 2 * kUnitBytes<F>, inputs, of_pair, pair);
      multiply_slots<F, 1>(codes + 2 * kUnitBytes<F>, scales + 2 * kUnitBytes<F>,
                           inputs + odd_offset, of_odd, odd);
    }
    own += step;
  }
  /// The sums of the tile: [tokens][16].
  __device__ __forceinline__ void store_row(float* to, int lane) const {
    const bool is_bottom = lane % 2 != 0;
    const float top = pair[0] + odd[0], bottom = pair[1] + odd[1];
    float sum = is_bottom ? bottom : top;
    sum += __shfl_xor_sync(~0u, is_bottom ? top : bottom, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 < 2) to[lane / 4 + 8 * (lane % 2)] = sum;
  }
  /// Adds the sums of the three tiles to x.
  template <typename P>
  __device__ __forceinline__ void add_column(float2* x, int hidden, const P& pick, int lane) const {
    if constexpr (sizeof(pick.tokens) > 1) x += static_cast<int64_t>(pick.tokens[0]) * hidden;
    // A lane has row g + 8 (q % 2) of the first (q < 2) or second tile, and for q < 2 of the third.
    x += lane / 4 + 8 * (lane % 2);
    const bool is_bottom = lane % 2 != 0;
    const auto sum = [&](const float(&of)[2]) {
      return (is_bottom ? of[1] : of[0]) + __shfl_xor_sync(~0u, is_bottom ? of[0] : of[1], 1);
    };
    const float first = sum(pair), last = sum(odd);
    add_to_residual(x + lane % 4 / 2 * 16, first * kSumScale<F>);
    if (lane % 4 < 2) add_to_residual(x + 32, last * kSumScale<F>);
  }

 private:
  __device__ __forceinline__ void start(const std::byte* inputs, int of_slot, int to_odd,
                                        int of_stage) {
    const int lane = threadIdx.x % 32;
    own = shared_address(inputs) + of_slot + 64 * (lane / 4 % 2) + 16 * (lane % 4);
    odd_offset = to_odd;
    step = of_stage;
    pair[0] = pair[1] = odd[0] = odd[1] = 0;
  }
};

/// The same with the activations of several tokens, a slot each; two groups of slots for more than
/// four.
template <DType F>
struct GroupProduct {
  const std::byte* of_lane[2];
  int unit_step;
  float sums[kUnits][2][2];  // [unit or tile][group][half]

  int count;

  template <typename P>
  __device__ __forceinline__ void start_row(const std::byte* inputs, int token_bytes,
                                            const P& pick) {
    start(pick.count, kInputBytes, [&](int j) { return inputs + pick.tokens[j] * token_bytes; });
  }
  template <typename P>
  __device__ __forceinline__ void start_column(const std::byte* inputs, const P& pick) {
    start(pick.count, 0, [&](int j) { return inputs + j * kInputBytes; });
  }
  __device__ __forceinline__ void add_stage(const std::byte* base, uint32_t at_stage) {
    constexpr int kWords = Format<F>::kScaleWords;
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::byte* at = base + at_stage + i * kUnitBytes<F>;
      Unit<F> unit;
      read_unit<F>(unit, at + 16 * lane, at + kCodeBytes<F> + g * (4 * kWords));
      const auto inputs = [&](int block, int c) {
        return *reinterpret_cast<const uint4*>(of_lane[c] + i * unit_step + block * kBlockBytes<1>);
      };
      if (count > 4) {
        multiply_unit<F, 2>(unit, inputs, sums[i]);
      } else {
        float narrow[1][2] = {{sums[i][0][0], sums[i][0][1]}};
        multiply_unit<F, 1>(unit, inputs, narrow);
        sums[i][0][0] = narrow[0][0], sums[i][0][1] = narrow[0][1];
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) of_lane[c] += kUnits * unit_step;
  }
  __device__ __forceinline__ void store_row(float* to, int lane) const {
    for_own_rows(lane, [&](int j, int row, int c, int half) {
      to[16 * j + row] = sums[0][c][half] + sums[1][c][half] + sums[2][c][half];
    });
  }
  template <typename P>
  __device__ __forceinline__ void add_column(float2* x, int hidden, const P& pick, int lane) const {
    for_own_rows(lane, [&](int j, int row, int c, int half) {
      float2* of_token = x + static_cast<int64_t>(pick.tokens[j]) * hidden + row;
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        add_to_residual(of_token + 16 * i, sums[i][c][half] * kSumScale<F>);
    });
  }

 private:
  /// of_token(j): the activations of the j-th token. `bytes`: from a unit of a stage to the next; 0
  /// if they have the same columns.
  template <typename Token>
  __device__ __forceinline__ void start(int num_tokens, int bytes, Token&& of_token) {
    const int lane = threadIdx.x % 32, n = lane / 4;
    count = num_tokens;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      of_lane[c] = of_token(min(4 * c + n / 2, count - 1)) + 64 * (n % 2) + 16 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) sums[i][c][0] = sums[i][c][1] = 0;
    }
    unit_step = bytes;
  }
  template <typename Visit>
  __device__ __forceinline__ void for_own_rows(int lane, Visit&& visit) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int j = 4 * c + lane % 4;
      if (j >= count) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) visit(j, lane / 4 + 8 * half, c, half);
    }
  }
};

}  // namespace moxie::slices
