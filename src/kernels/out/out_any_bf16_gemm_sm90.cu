// out on Hopper for many tokens: the attention's output staged in BF16 (here, or by attend itself),
// then one product (gemm/dense_sm90.cuh), which is added with its bias to the residual stream.
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/out/out_rows.h"
#include "kernels/out/out_wide_end.cuh"

namespace moxie {
namespace gemm {
template <bool kIsSingle, bool kAdds>
struct WideEnd<AddToResidual<kIsSingle, kAdds>> {
  using Type = AddWide<kIsSingle, kAdds>;
};
template <>
struct WideEnd<LeaveRounded> {
  using Type = LeaveWide;
};
}  // namespace gemm

using namespace gemm;

const char* out_any_bf16_gemm_sm90_refuses(const OutParams& p) {
  if (const char* why = refuses_out(p)) return why;
  if (p.weight.rows % 4 != 0) return "rows are not a multiple of 4";
  return refuses_product(p.weight, kMaxStagedFloatsWidth);
}

uint64_t out_any_bf16_gemm_sm90_workspace(const OutParams& p) {
  return staged_bytes(p.num_tokens, p.weight.cols);
}

namespace {

template <bool kInOrder>
void run_out(const char* row, const OutParams& p) {
  if (p.num_tokens == 0) return;
  const StagedView staged = stage_out(p);
  with_out_end<true>(p, [&](const auto& end) {
    if constexpr (!kInOrder) {
      if (multiply_in_clusters(row, p.weight, staged, p.num_tokens, end, p.launch)) return;
    }
    multiply_dense<kInOrder>(row, p.weight, staged, p.num_tokens, end, p.launch);
  });
}

}  // namespace

void out_any_bf16_gemm_sm90(const OutParams& p) { run_out<false>("out_any_bf16_gemm_sm90", p); }

void out_any_bf16_ordered_sm90(const OutParams& p) {
  run_out<true>("out_any_bf16_ordered_sm90", p);
}

}  // namespace moxie
