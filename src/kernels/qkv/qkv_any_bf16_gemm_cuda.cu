// qkv on any GPU for many tokens: the norm stages its output in BF16; then one product
// (gemm/product_mma.cuh) ends in bias, rotary and the append to the cache.
#include "kernels/gemm/dense_mma.cuh"
#include "kernels/qkv/qkv_end.cuh"
#include "kernels/qkv/qkv_rows.h"

namespace moxie {

using namespace gemm;

const char* qkv_any_bf16_gemm_cuda_refuses(const QkvParams& p) {
  if (const char* why = refuses_qkv(p)) return why;
  return refuses_product_mma(p.weight);
}

void qkv_any_bf16_gemm_cuda(const QkvParams& p) {
  if (p.batch.num_tokens == 0) return;
  const StagedView staged = stage_qkv(p);
  multiply_dense_mma("qkv_any_bf16_gemm_cuda", p.weight, staged, p.batch.num_tokens, qkv_end(p),
                     p.launch);
}

}  // namespace moxie
