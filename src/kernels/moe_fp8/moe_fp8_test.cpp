// moe_fp8_block_scale beyond the plain cases: routing by hand, extents, NaN codes, extreme scales,
// loads, and the definition's rule of matched outputs.
#include "kernels/moe_fp8/moe_fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/formats.h"
#include "kernels/moe_fp8/moe_fp8_case.h"
#include "kernels/moe_fp8/moe_fp8_routing.h"
#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

// Eight experts in four groups of two; two groups are kept.
struct Routing {
  std::vector<float> logits = std::vector<float>(8, 0.0f);
  std::vector<uint16_t> bias = std::vector<uint16_t>(8, 0);
  int32_t top_k = 2;

  MoeFp8Params params() const {
    return {.num_tokens = 1,
            .num_experts = 8,
            .num_local_experts = 8,
            .hidden = 128,
            .intermediate = 128,
            .num_groups = 4,
            .kept_groups = 2,
            .top_k = top_k,
            .routed_scaling_factor = 2.5f,
            .routing_logits = logits.data(),
            .routing_bias = bias.data()};
  }
  std::vector<int32_t> choose(std::vector<float>* weights = nullptr) const {
    std::vector<int32_t> experts(static_cast<size_t>(top_k));
    std::vector<float> of(static_cast<size_t>(top_k));
    choose_moe_fp8(params(), 0, experts.data(), of.data());
    if (weights != nullptr) *weights = of;
    return experts;
  }
};

TEST(MoeFp8Routing, AGroupsScoreIsTheSumOfItsTwoBest) {
  Routing r;
  // Sums: 0.99 + 0.0, 0.73 + 0.73, 0.62 + 0.5, 0.88 + 0.5. Groups 1 and 3 stay: the best expert of
  // all, in group 0, is not chosen.
  r.logits = {5, -9, 1, 1, 0.5f, 0, 2, 0};
  EXPECT_EQ(r.choose(), (std::vector<int32_t>{6, 2}));
}

TEST(MoeFp8Routing, OfEqualsTheLowerIndexWins) {
  Routing r;
  r.top_k = 3;
  EXPECT_EQ(r.choose(), (std::vector<int32_t>{0, 1, 2}));
  r.logits[5] = 1;  // group 2, then group 0
  EXPECT_EQ(r.choose(), (std::vector<int32_t>{5, 0, 1}));
}

TEST(MoeFp8Routing, TheBiasChoosesButDoesNotWeigh) {
  Routing r;
  r.logits = {0, 0, 0, 0, 0, 0, 1, 1};
  r.bias[0] = f32_to_bf16(4.0f);
  std::vector<float> weights;
  EXPECT_EQ(r.choose(&weights), (std::vector<int32_t>{0, 6}));
  const double s0 = 0.5, s6 = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(weights[0], 2.5 * s0 / (s0 + s6), 1e-6);
  EXPECT_NEAR(weights[1], 2.5 * s6 / (s0 + s6), 1e-6);
}

TEST(MoeFp8Routing, ANanLogitIsChosenAndShows) {
  Routing r;
  r.logits[7] = std::nanf("");
  std::vector<float> weights;
  EXPECT_EQ(r.choose(&weights)[0], 7);
  EXPECT_TRUE(std::isnan(weights[0]));
}

TEST(MoeFp8Shapes, FaultsAreNamed) {
  const MoeFp8Params good = Routing().params();
  EXPECT_EQ(moe_fp8_shape_fault(good), nullptr);
  const std::vector<std::function<void(MoeFp8Params&)>> faults = {
      [](auto& p) { p.num_tokens = -1; },
      [](auto& p) { p.hidden = 192; },
      [](auto& p) { p.hidden = 0; },
      [](auto& p) { p.intermediate = 64; },
      [](auto& p) { p.num_experts = 0; },
      [](auto& p) { p.num_experts = 5000; },
      [](auto& p) { p.num_local_experts = 9; },
      [](auto& p) { p.local_expert_offset = 1; },
      [](auto& p) { p.local_expert_offset = -1; },
      [](auto& p) { p.num_groups = 3; },
      [](auto& p) { p.kept_groups = 5; },
      [](auto& p) { p.top_k = 5; },
      [](auto& p) { p.top_k = 0; }};
  for (size_t i = 0; i < faults.size(); ++i) {
    MoeFp8Params p = good;
    faults[i](p);
    EXPECT_NE(moe_fp8_shape_fault(p), nullptr) << "fault " << i;
    for (const auto& row : Op<MoeFp8Params>::rows()) EXPECT_NE(row.refuses(p), nullptr) << row.name;
  }
}

// On any machine: rows of other devices are in the table, too.
TEST(MoeFp8Shapes, AnIntermediateOf8BitsMustBeAskedFor) {
  MoeFp8Params p = Routing().params();
  for (const auto& row : Op<MoeFp8Params>::rows()) {
    p.activation = DType::kBF16;
    EXPECT_EQ(why_not(row, p) == nullptr, row.activation == DType::kBF16) << row.name;
    p.activation = DType::kF8E4M3;
    EXPECT_EQ(why_not(row, p), nullptr) << row.name;
  }
}

#if defined(__x86_64__)
TEST(MoeFp8Shapes, WhereDotsAreSlowProductsStayInF32) {
  MoeFp8Params p = Routing().params();
  p.num_tokens = 901;
  const Features features = kAvx2 | kAvx512 | kAvx512Vbmi | kAvx512Bf16;
  const auto chosen = [&](const DeviceRates& rates) -> std::string {
    const KernelChooser chooser(DeviceKind::kCpu, features, KernelChoice(), rates);
    const auto row = chooser.select(p);
    return row ? (*row)->name : row.error().message();
  };
  EXPECT_EQ(chosen({}), "moe_fp8_block_scale_e4m3_bf16x2_gemm_avx512bf16");
  EXPECT_EQ(chosen({.bf16_dot_cost = 2.5}), "moe_fp8_block_scale_e4m3_f32_gemm_avx512");
  p.num_tokens = 1;  // decoding weighs more
  EXPECT_EQ(chosen({.bf16_dot_cost = 2.5}), "moe_fp8_block_scale_e4m3_bf16x2_gemm_avx512bf16");
}
#endif

TEST(MoeFp8Work, CountsPairsAndTouchedExpertsOfARouting) {
  MoeFp8Case c{.tokens = 9};
  const auto built = build(c);
  MoeFp8Params p = built.params;
  p.num_local_experts = p.num_experts, p.local_expert_offset = 0;
  EXPECT_EQ(moe_fp8_load(p).num_pairs, 9.0 * p.top_k);
  const Work work = moe_fp8_work(p, {.num_pairs = 10, .num_touched = 3});
  const double weights = 3.0 * p.hidden * p.intermediate;
  EXPECT_EQ(work.flops, 2 * 10 * weights);
  EXPECT_GT(work.bytes, 3 * weights);
  EXPECT_LT(work.bytes, 3 * weights * 1.01 + 9 * 8 * p.hidden);
}

// ---- Rows ---------------------------------------------------------------------------------------

class MoeFp8Rows : public ::testing::Test {
 protected:
  // Runs each row of this machine on the case, changed by `change`; `check` sees its output.
  void for_each_row(const MoeFp8Case& c, const std::function<void(MoeFp8Params&)>& change,
                    const std::function<void(const std::vector<double>& output,
                                             const std::vector<double>& reference)>& check) {
    auto built = build(c);
    change(built.params);
    const auto reference =
        run_row(built, row_named<MoeFp8Params>("moe_fp8_block_scale_reference"), machine_);
    for (const auto& row : Op<MoeFp8Params>::rows()) {
      if (row.device != DeviceKind::kCpu) continue;
      if (const Features missing = row.needs & ~cpu_features(); missing != 0) {
        runs_.cannot_run(row.name, missing);
        continue;
      }
      SCOPED_TRACE(row.name);
      ASSERT_EQ(row.refuses(built.params), nullptr);
      runs_.ran(row.name);
      check(run_row(built, row, machine_)[0].values, reference[0].values);
    }
  }

  TestMachine machine_;
  RowRuns runs_;
};

TEST_F(MoeFp8Rows, MatchAsTheDefinitionAsks) {
  // Scales of unit size, as the definition's workloads have them: outputs of 1e5 and more.
  const auto enlarge = [](MoeFp8Params& p) {
    const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
    for (int64_t i = 0; i < in * p.num_tokens; ++i) mutable_floats(p.hidden_states_scale)[i] *= 64;
    for (int64_t i = 0; i < p.num_local_experts * 2 * mid * in; ++i)
      mutable_floats(p.gemm1_weights_scale)[i] *= 512;
  };
  for (int32_t tokens : {1, 7, 40}) {
    for_each_row({.tokens = tokens, .hidden = 512, .intermediate = 384}, enlarge,
                 [&](const auto& output, const auto& reference) {
                   EXPECT_GE(matched_share(output, reference), 0.98);
                 });
  }
}

TEST_F(MoeFp8Rows, ANanCodeReachesItsOwnTokenOnly) {
  for (int32_t tokens : {2, 3, 4, 40}) {  // a few, and in groups
    MoeFp8Case c{.tokens = tokens};
    for_each_row(
        c,
        [](MoeFp8Params& p) {
          choose_all(p, p.local_expert_offset);
          mutable_bytes(p.hidden_states)[p.hidden + 77] = 0xFF;
        },
        [&](const auto& output, const auto&) {
          for (size_t i = 0; i < output.size(); ++i)
            ASSERT_EQ(std::isnan(output[i]), i / static_cast<size_t>(c.hidden) == 1) << i;
        });
  }
}

TEST_F(MoeFp8Rows, ANanWeightReachesItsOutputOnly) {
  for (int32_t tokens : {1, 2, 3, 4, 40}) {
    MoeFp8Case c{.tokens = tokens};
    for_each_row(
        c,
        [](MoeFp8Params& p) {
          choose_all(p, p.local_expert_offset);
          mutable_bytes(p.gemm2_weights)[5 * p.intermediate + 100] = 0x7F;
        },
        [&](const auto& output, const auto&) {
          for (size_t i = 0; i < output.size(); ++i)
            ASSERT_EQ(std::isnan(output[i]), i % static_cast<size_t>(c.hidden) == 5) << i;
        });
  }
}

TEST_F(MoeFp8Rows, TokensWithoutALocalExpertAreZeros) {
  for_each_row(
      {.tokens = 21}, [](MoeFp8Params& p) { choose_all(p, p.local_expert_offset + 8); },
      [](const auto& output, const auto&) {
        for (const double value : output) ASSERT_EQ(value, 0.0);
      });
}

TEST_F(MoeFp8Rows, AllTokensMayChooseOneLocalExpert) {
  const auto last_only = [](MoeFp8Params& p) {
    choose_all(p, p.local_expert_offset);
    p.local_expert_offset += p.num_local_experts - 1;
    p.num_local_experts = 1;
  };
  for (int32_t tokens : {1, 2, 3, 4, 5, 300}) {
    for_each_row({.tokens = tokens}, last_only, [](const auto& output, const auto& reference) {
      EXPECT_GE(matched_share(output, reference), 0.98);
      for (size_t i = 0; i < output.size(); i += 97) EXPECT_NE(output[i], 0.0) << i;
    });
  }
}

TEST_F(MoeFp8Rows, LocalExpertsMayBeTheFirstTheLastOrAll) {
  for (int32_t at : {0, 1, 2}) {
    const auto place = [&](MoeFp8Params& p) {
      if (at == 2) {
        p.num_experts = p.num_local_experts, p.num_groups = 2, p.kept_groups = 2, p.top_k = 5;
        p.local_expert_offset = 0;
      } else {
        p.local_expert_offset = at == 0 ? 0 : p.num_experts - p.num_local_experts;
      }
    };
    for_each_row({.tokens = 11}, place, [](const auto& output, const auto& reference) {
      EXPECT_GE(matched_share(output, reference), 0.98);
      EXPECT_NE(output, std::vector<double>(output.size()));
    });
  }
}

TEST_F(MoeFp8Rows, ScalesMayBeZeroHugeAndTiny) {
  for (int32_t tokens : {1, 20}) {
    for_each_row({.tokens = tokens, .hidden = 384, .intermediate = 256}, spread_scales,
                 [](const auto& output, const auto& reference) {
                   for (size_t i = 0; i < output.size(); ++i) {
                     ASSERT_TRUE(std::isfinite(output[i]));
                     // Values of 2^-60 are beside values of 2^60 in no sum of this case.
                     ASSERT_EQ(reference[i] == 0, output[i] == 0) << i;
                   }
                   EXPECT_GE(matched_share(output, reference), 0.98);
                 });
  }
}

}  // namespace
}  // namespace moxie::testing
