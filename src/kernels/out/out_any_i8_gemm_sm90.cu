// out on Hopper for thousands of tokens with both operands in 8-bit integers
// (gemm/dense_i8_sm90.cuh): attention's outputs have a scale a token, the weights a scale a row.
#include "kernels/gemm/dense_i8_sm90.cuh"
#include "kernels/out/out_rows.h"
#include "kernels/out/out_wide_end.cuh"

namespace moxie {
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
    multiply(AddWide<true, false>{{p.bias, p.x}, p.weight.rows});
  } else if (p.forms.x == XForm::kF32) {
    multiply(AddWide<true>{{p.bias, p.x}, p.weight.rows});
  } else {
    multiply(AddWide<false>{{p.bias, p.x}, p.weight.rows});
  }
}

}  // namespace moxie
