// out on any GPU for some tokens: the attention's output staged in BF16 (here, or by attend
// itself), then a product by teams (gemm/dense_teams.cuh), which is added with its bias to the
// residual stream.
#include "kernels/gemm/dense_teams.cuh"
#include "kernels/out/out_end.cuh"
#include "kernels/out/out_rows.h"

namespace moxie {

using namespace gemm;

void out_any_bf16_teams_cuda(const OutParams& p) {
  if (p.num_tokens == 0) return;
  const StagedView staged = stage_out(p);
  with_out_end<false>(p, [&](const auto& end) {
    multiply_dense_teams("out_any_bf16_teams_cuda", p.weight, staged, p.num_tokens, end, p.launch);
  });
}

}  // namespace moxie
