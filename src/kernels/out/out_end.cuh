// The end of out's products over many tokens: they are added with their bias to the residual
// stream.
#pragma once

#include "kernels/gemm/dense.cuh"
#include "kernels/out/out.h"

namespace moxie::gemm {

/// kIsSingle: x is single (residual.cuh). A template parameter, since a kernel with both forms
/// spills registers. kAdds: false stores the sums alone.
template <bool kIsSingle, bool kAdds = true>
struct AddToResidual {
  const float* bias;
  float* x;

  template <typename Cut>
  __device__ __forceinline__ void store(const SumsTile& sums, int tile, int rows, int first_column,
                                        int num_columns) const {
    // Eight lanes store a column, two rows each.
    const int lane = threadIdx.x % 32, in_tile = lane % 8 * 2, row = 16 * tile + in_tile;
    if (row >= rows) return;
    const float2 row_bias = *reinterpret_cast<const float2*>(bias + row);
    constexpr bool kIsTight = Cut::kWarpgroups > 2 || (Cut::kMostColumns > 128 && !kIsSingle);
    constexpr int kBatch = HasRoomAtEnd<Cut> ? 16 : kIsTight ? 4 : 8;  // as registers allow
#pragma unroll 1
    for (int first = lane / 8; first < num_columns; first += 4 * kBatch) {
      const int64_t at = int64_t{first_column + first} * rows + row;
      const int64_t stride = int64_t{4} * rows;  // of four columns
      // All loads come before the first store: the compiler must assume that a store may change
      // what a later load reads.
      float4 old[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        old[c] = {};
        if (kAdds && first + 4 * c < num_columns)
          old[c] = load_residual<kIsSingle>(x, at + c * stride);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 4 * c;
        if (column >= num_columns) continue;
        const float2 before = whole(old[c]);
        store_residual<kIsSingle>(
            x, at + c * stride,
            make_float2(before.x + sums.at(column, in_tile) + row_bias.x,
                        before.y + sums.at(column, in_tile + 1) + row_bias.y));
      }
    }
  }
};

/// The sums and their bias, in BF16 (ReduceForm::kRounded, kSent).
struct LeaveRounded {
  const float* bias;
  uint16_t *to, *other;  // other: null, or in another GPU's memory

  template <typename Cut>
  __device__ __forceinline__ void store(const SumsTile& sums, int tile, int rows, int first_column,
                                        int num_columns) const {
    // As in AddToResidual.
    const int lane = threadIdx.x % 32, in_tile = lane % 8 * 2, row = 16 * tile + in_tile;
    if (row >= rows) return;
    const float2 add = *reinterpret_cast<const float2*>(bias + row);
    for (int column = lane / 8; column < num_columns; column += 4) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(sums.at(column, in_tile) + add.x,
                                                       sums.at(column, in_tile + 1) + add.y);
      const int64_t at = int64_t{first_column + column} * rows + row;
      *reinterpret_cast<__nv_bfloat162*>(to + at) = two;
      if (other != nullptr) *reinterpret_cast<__nv_bfloat162*>(other + at) = two;
    }
  }
};

/// What no product over many tokens takes.
inline const char* refuses_out(const OutParams& p) {
  if (p.weight.rows % 2 != 0) return "rows are odd";
  if (p.overwrites && p.forms.x != XForm::kF32) return "x of two floats is not overwritten";
  return nullptr;
}
/// The attention's output, staged in the workspace unless attend has staged it.
inline StagedView stage_out(const OutParams& p) {
  StagedView staged = dense_columns(p.weight, p.num_tokens, p.launch);
  if (p.forms.a == AForm::kBf16Staged) {
    staged.data = reinterpret_cast<std::byte*>(const_cast<float*>(p.a));
  } else {
    stage_floats({.num_rows = p.num_tokens, .values = p.a, .to = staged}, p.launch.stream);
  }
  return staged;
}
/// Calls multiply(end). kMayRound: the row takes ReduceForm::kRounded and kSent.
template <bool kMayRound, typename Multiply>
void with_out_end(const OutParams& p, Multiply&& multiply) {
  if constexpr (kMayRound) {
    if (leaves_rounded(p.forms.reduce))
      return multiply(LeaveRounded{.bias = p.bias, .to = p.rounded, .other = p.rounded_of_other});
  }
  if (p.overwrites) {
    multiply(AddToResidual<true, false>{.bias = p.bias, .x = p.x});
  } else if (p.forms.x == XForm::kF32) {
    multiply(AddToResidual<true>{.bias = p.bias, .x = p.x});
  } else {
    multiply(AddToResidual<false>{.bias = p.bias, .x = p.x});
  }
}

}  // namespace moxie::gemm
