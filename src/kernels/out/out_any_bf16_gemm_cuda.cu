// out on any GPU for many tokens: the attention's output staged in BF16 (here, or by attend
// itself), then one product (gemm/product_mma.cuh), which is added with its bias to the residual
// stream.
#include "kernels/gemm/dense_mma.cuh"
#include "kernels/out/out_end.cuh"
#include "kernels/out/out_rows.h"

namespace moxie {

using namespace gemm;

const char* out_any_bf16_gemm_cuda_refuses(const OutParams& p) {
  if (const char* why = refuses_product_mma(p.weight, kMaxStagedFloatsWidth)) return why;
  return refuses_out(p);
}

void out_any_bf16_gemm_cuda(const OutParams& p) {
  if (p.num_tokens == 0) return;
  const StagedView staged = stage_out(p);
  with_out_end<true>(p, [&](const auto& end) {
    multiply_dense_mma("out_any_bf16_gemm_cuda", p.weight, staged, p.num_tokens, end, p.launch);
  });
}

}  // namespace moxie
