// qkv on Hopper for thousands of tokens with both operands in 8-bit integers
// (gemm/dense_i8_sm90.cuh): the norm's outputs have a scale a token, the weights a scale a row.
#include "kernels/gemm/dense_i8_sm90.cuh"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/qkv/qkv_wide_end.cuh"

namespace moxie {
using namespace gemm;

const char* qkv_any_i8_gemm_sm90_refuses(const QkvParams& p) {
  if (const char* why = refuses_i8(p.activation, p.weight)) return why;
  return refuses_qkv(p);
}

uint64_t qkv_any_i8_gemm_sm90_workspace(const QkvParams& p) {
  return I8ColumnsOf(p.weight, p.batch.num_tokens, nullptr).bytes;
}

void qkv_any_i8_gemm_sm90(const QkvParams& p) {
  const int32_t tokens = p.batch.num_tokens;
  if (tokens == 0) return;
  const I8ColumnsOf columns(p.weight, tokens, p.launch.workspace);
  lay_normed_i8({.x = p.x,
                 .norm_weight = p.norm_weight,
                 .x_is_single = p.forms.x == XForm::kF32,
                 .rms_eps = p.rms_eps,
                 .width = p.hidden},
                columns.rows, p.launch.stream);
  multiply_dense_i8("qkv_any_i8_gemm_sm90", p.weight, columns.rows,
                    TurnWide{qkv_end(p), p.weight.rows}, p.launch);
}

}  // namespace moxie
