// Which exchange between GPUs is predicted to be the cheapest.
#include "kernels/reduce/reduce.h"

#include <gtest/gtest.h>

#include <string_view>

namespace moxie {
namespace {

// The row for GPUs that is predicted to be the fastest; empty in builds without CUDA.
std::string_view fastest(int32_t num_ranks, int32_t tokens) {
  const ReduceParams params{
      .num_tokens = tokens, .hidden = 2880, .kind = LinkKind::kPeers, .num_ranks = num_ranks};
  const Row<ReduceParams>* best = nullptr;
  for (const Row<ReduceParams>& row : Op<ReduceParams>::rows()) {
    if (row.device != DeviceKind::kCuda) continue;
    if (best == nullptr || row.predict_us(params, {}) < best->predict_us(params, {})) best = &row;
  }
  return best == nullptr ? std::string_view() : best->name;
}

TEST(Reduce, ManyTokensOfThreeGpusOrMoreAreAddedInSlices) {
  if (fastest(2, 1).empty()) GTEST_SKIP() << "no CUDA";
  for (const int32_t ranks : {2, 3, 4, 8}) {
    SCOPED_TRACE(ranks);
    EXPECT_EQ(fastest(ranks, 1), "reduce_any_one_shot_peers_cuda");
    EXPECT_EQ(fastest(ranks, 64), "reduce_any_bf16_peers_cuda");
    for (const int32_t tokens : {1024, 8192})
      EXPECT_EQ(fastest(ranks, tokens), ranks == 2 ? "reduce_any_bf16_units_peers_cuda"
                                                   : "reduce_any_bf16_two_shot_peers_cuda");
  }
}

}  // namespace
}  // namespace moxie
