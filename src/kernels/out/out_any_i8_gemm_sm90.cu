// out on Hopper for thousands of tokens with both operands in 8-bit integers
// (gemm/dense_i8_sm90.cuh): attention's outputs have a scale a token, the weights a scale a row.
#include "kernels/gemm/dense_i8_sm90.cuh"
#include "kernels/out/out_end.cuh"
#include "kernels/out/out_rows.h"

namespace moxie {
namespace gemm {

/// AddToResidual of whole columns.
template <bool kIsSingle, bool kAdds = true>
struct AddLaid {
  const float* bias;
  float* x;
  int32_t rows;

  __device__ __forceinline__ void look_up(I8Columns&, int, int, int) const {}
  // A warp takes a column; a lane four rows.
  __device__ __forceinline__ void store(const I8Ended& p) const {
    constexpr int kBatch = kIsSingle ? 16 : 8;  // as registers allow
    const int in_block = static_cast<int>(threadIdx.x) % 32 * 4, row = p.first_row + in_block;
    if (row >= rows) return;
    const float4 add = __ldg(reinterpret_cast<const float4*>(bias + row));
#pragma unroll 1
    for (int first = p.warp; first < p.num_columns; first += I8Cut::kEndWarps * kBatch) {
      const int64_t at = int64_t{p.first_column + first} * rows + row;
      const int64_t stride = int64_t{I8Cut::kEndWarps} * rows;
      // All loads come before the first store: the compiler must assume that a store may change
      // what a later load reads.
      ResidualFour<kIsSingle> old[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        old[c] = {};
        if (kAdds && first + I8Cut::kEndWarps * c < p.num_columns) old[c].load(x, at + c * stride);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + I8Cut::kEndWarps * c;
        if (column >= p.num_columns) continue;
        const float4 before = old[c].values(), sum = p.sums.four(column, in_block);
        const float4 v = {before.x + sum.x + add.x, before.y + sum.y + add.y,
                          before.z + sum.z + add.z, before.w + sum.w + add.w};
        if constexpr (kIsSingle) {
          *reinterpret_cast<float4*>(x + at + c * stride) = v;
        } else {
          store_residual<false>(x, at + c * stride, make_float2(v.x, v.y));
          store_residual<false>(x, at + c * stride + 2, make_float2(v.z, v.w));
        }
      }
    }
  }
};

}  // namespace gemm

using namespace gemm;

const char* out_any_i8_gemm_sm90_refuses(const OutParams& p) {
  if (const char* why = refuses_i8(p.activation, p.weight)) return why;
  if (p.weight.rows % 4 != 0) return "rows are not a multiple of 4";
  return refuses_out(p);
}

uint64_t out_any_i8_gemm_sm90_workspace(const OutParams& p) {
  return I8ColumnsOf(p.weight, p.num_tokens, nullptr).bytes;
}

void out_any_i8_gemm_sm90(const OutParams& p) {
  if (p.num_tokens == 0) return;
  const I8ColumnsOf columns(p.weight, p.num_tokens, p.launch.workspace);
  if (p.forms.a == AForm::kBf16Staged) {
    lay_staged_i8({reinterpret_cast<std::byte*>(const_cast<float*>(p.a)),
                   round_up(p.num_tokens, kStagedRows), p.weight.cols},
                  columns.rows, p.launch.stream);
  } else {
    lay_normed_i8({.x = p.a, .width = p.weight.cols}, columns.rows, p.launch.stream);
  }
  const auto multiply = [&](const auto& end) {
    multiply_dense_i8("out_any_i8_gemm_sm90", p.weight, columns.rows, end, p.launch);
  };
  if (p.overwrites) {
    multiply(AddLaid<true, false>{p.bias, p.x, p.weight.rows});
  } else if (p.forms.x == XForm::kF32) {
    multiply(AddLaid<true>{p.bias, p.x, p.weight.rows});
  } else {
    multiply(AddLaid<false>{p.bias, p.x, p.weight.rows});
  }
}

}  // namespace moxie
