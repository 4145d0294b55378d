// unembed on Hopper for many rows of logits: the final norm of the requested tokens, staged in
// BF16, then one product (gemm/dense_sm90.cuh).
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/unembed/unembed_end.cuh"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
using namespace gemm;

const char* unembed_any_bf16_gemm_sm90_refuses(const UnembedParams& p) {
  return refuses_product(p.weight);
}

uint64_t unembed_any_bf16_gemm_sm90_workspace(const UnembedParams& p) {
  return staged_bytes(p.num_rows, p.weight.cols);
}

namespace {

template <bool kInOrder>
void run_unembed(const char* row, const UnembedParams& p) {
  if (p.num_rows == 0) return;
  const StagedView staged = stage_unembed(p);
  multiply_dense<kInOrder>(row, p.weight, staged, p.num_rows, StoreLogits{.logits = p.logits},
                           p.launch);
}

}  // namespace

void unembed_any_bf16_gemm_sm90(const UnembedParams& p) {
  run_unembed<false>("unembed_any_bf16_gemm_sm90", p);
}

void unembed_any_bf16_ordered_sm90(const UnembedParams& p) {
  run_unembed<true>("unembed_any_bf16_ordered_sm90", p);
}

}  // namespace moxie
