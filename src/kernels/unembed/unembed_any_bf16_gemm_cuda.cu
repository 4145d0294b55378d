// unembed on any GPU for many rows: the norm of the chosen rows staged in BF16, then one product
// (gemm/product_mma.cuh).
#include "kernels/gemm/dense_mma.cuh"
#include "kernels/unembed/unembed_end.cuh"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {

using namespace gemm;

const char* unembed_any_bf16_gemm_cuda_refuses(const UnembedParams& p) {
  return refuses_product_mma(p.weight);
}

void unembed_any_bf16_gemm_cuda(const UnembedParams& p) {
  if (p.num_rows == 0) return;
  const StagedView staged = stage_unembed(p);
  multiply_dense_mma("unembed_any_bf16_gemm_cuda", p.weight, staged, p.num_rows,
                     StoreLogits{.logits = p.logits}, p.launch);
}

}  // namespace moxie
