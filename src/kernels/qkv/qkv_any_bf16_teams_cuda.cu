// qkv on any GPU for some tokens: the norm stages its output in BF16; then a product by teams
// (gemm/dense_teams.cuh) ends in bias, rotary and the append to the cache.
#include "kernels/gemm/dense_teams.cuh"
#include "kernels/qkv/qkv_end.cuh"
#include "kernels/qkv/qkv_rows.h"

namespace moxie {

using namespace gemm;

void qkv_any_bf16_teams_cuda(const QkvParams& p) {
  if (p.batch.num_tokens == 0) return;
  const StagedView staged = stage_qkv(p);
  multiply_dense_teams("qkv_any_bf16_teams_cuda", p.weight, staged, p.batch.num_tokens, qkv_end(p),
                       p.launch);
}

}  // namespace moxie
