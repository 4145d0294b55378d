// qkv on Hopper for many tokens: the norm stages its output in BF16; then one product
// (gemm/dense_sm90.cuh) ends in bias, rotary and the append to the cache.
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/qkv/qkv_wide_end.cuh"

namespace moxie {
namespace gemm {
template <>
struct WideEnd<TurnAndAppend> {
  using Type = TurnWide;
};
}  // namespace gemm

using namespace gemm;

const char* qkv_any_bf16_gemm_sm90_refuses(const QkvParams& p) {
  if (const char* why = refuses_qkv(p)) return why;
  return refuses_product(p.weight);
}

uint64_t qkv_any_bf16_gemm_sm90_workspace(const QkvParams& p) {
  return staged_bytes(p.batch.num_tokens, p.weight.cols);
}

namespace {

template <bool kInOrder>
void run_qkv(const char* row, const QkvParams& p) {
  const int32_t tokens = p.batch.num_tokens;
  if (tokens == 0) return;
  const StagedView staged = stage_qkv(p);
  const TurnAndAppend end = qkv_end(p);
  if constexpr (!kInOrder) {
    if (multiply_in_clusters(row, p.weight, staged, tokens, end, p.launch)) return;
  }
  multiply_dense<kInOrder>(row, p.weight, staged, tokens, end, p.launch);
}

}  // namespace

void qkv_any_bf16_gemm_sm90(const QkvParams& p) { run_qkv<false>("qkv_any_bf16_gemm_sm90", p); }

void qkv_any_bf16_ordered_sm90(const QkvParams& p) {
  run_qkv<true>("qkv_any_bf16_ordered_sm90", p);
}

}  // namespace moxie
