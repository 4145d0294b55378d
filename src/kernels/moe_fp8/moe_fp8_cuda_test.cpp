// The CUDA rows of moe_fp8_block_scale against the reference row on the CPU: by the definition's
// rule of matched outputs, over shapes, numbers of tokens and routings, and exactly where zeros or
// NaN are due.
#include <functional>
#include <string_view>

#include "kernels/moe_fp8/moe_fp8_case.h"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/op_testers.h"
#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

using Change = std::function<void(MoeFp8Params&)>;

// Outputs so large that the absolute tolerance lets none of them pass; gates stay as they are.
void enlarge(MoeFp8Params& p) {
  const int64_t blocks = int64_t{p.hidden / kFp8Block} * (p.intermediate / kFp8Block);
  for (int64_t i = 0; i < p.num_local_experts * blocks; ++i)
    mutable_floats(p.gemm2_weights_scale)[i] *= 4096;
}
// The groups of the models that the definition comes from: the kernels' special path.
void route_in_8_groups(MoeFp8Params& p) { p.num_groups = 8, p.kept_groups = 4; }

// FP16 in the middle leaves 1 to 2.5% of the outputs of such small shapes off by more than 1%; at
// the definition's shape it is 0.3 to 1.5%.
// Three deviations more allow for few outputs.
double least_matched(size_t num_outputs) {
  constexpr double kOff = 0.03;
  return 1 - kOff - 3 * std::sqrt(kOff * (1 - kOff) / static_cast<double>(num_outputs));
}

// The row for the fewest tokens takes no more, and a limited number of choices.
bool may_refuse(const Row<MoeFp8Params>& row, const MoeFp8Params& p) {
  return row.name == std::string_view("moe_fp8_block_scale_e4m3_f16_stream_sm90") &&
         (p.num_tokens > 16 ||
          p.num_tokens * std::min(p.top_k, p.num_local_experts) > (p.num_tokens > 8 ? 128 : 64));
}

class MoeFp8Cuda : public CudaTest {
 protected:
  inline static SuiteRowRuns runs_;
  static void SetUpTestSuite() { runs_.begin(); }
  static void TearDownTestSuite() { runs_.end(); }

  template <typename T>
  void to_device(const T*& values, int64_t count) {
    values = upload(std::vector<T>(values, values + count));
  }

  // The outputs of a row with exactly the workspace that it asks for.
  std::vector<double> run_on_device(const Row<MoeFp8Params>& row, MoeFp8Params p) {
    const int64_t tokens = p.num_tokens, local = p.num_local_experts;
    const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
    to_device(p.routing_logits, tokens * p.num_experts);
    to_device(p.routing_bias, p.num_experts);
    to_device(p.hidden_states, tokens * p.hidden);
    to_device(p.hidden_states_scale, in * tokens);
    to_device(p.gemm1_weights, local * 2 * p.intermediate * p.hidden);
    to_device(p.gemm1_weights_scale, local * 2 * mid * in);
    to_device(p.gemm2_weights, local * p.hidden * p.intermediate);
    to_device(p.gemm2_weights_scale, local * in * mid);
    const DeviceArray output = poisoned<uint16_t>(static_cast<uint64_t>(tokens * p.hidden));
    const uint64_t bytes = row.workspace(p);
    const DeviceArray workspace = poisoned<std::byte>(bytes);
    p.output = output.buffer.as<uint16_t>();
    p.launch = launch();
    p.launch.workspace = workspace.buffer.data();
    p.launch.workspace_bytes = bytes;
    row.run(p);
    std::vector<double> values;
    for (const uint16_t bits : download<uint16_t>(output)) values.push_back(bf16_to_f32(bits));
    download<std::byte>(workspace);  // checks the guard behind the workspace
    free_uploads();
    return values;
  }

  // Runs each row that this device can run on the case, changed by `change`; `check` sees its
  // output. Rows with an intermediate in E4M3 run where `change` asks for it, and no other rows.
  void for_each_row(const MoeFp8Case& c, const Change& change,
                    const std::function<void(const std::vector<double>& output,
                                             const std::vector<double>& reference)>& check) {
    SCOPED_TRACE(c.name());
    auto built = build(c);
    change(built.params);
    const auto reference =
        run_row(built, row_named<MoeFp8Params>("moe_fp8_block_scale_reference"), machine_);
    for (const auto& row : Op<MoeFp8Params>::rows()) {
      if (row.device != DeviceKind::kCuda) continue;
      if (row.activation != built.params.activation) continue;
      if (const Features missing = row.needs & ~features(); missing != 0) {
        runs_->cannot_run(row.name, missing);
        continue;
      }
      SCOPED_TRACE(row.name);
      if (const char* why = row.refuses(built.params)) {
        ASSERT_TRUE(may_refuse(row, built.params)) << why;
        continue;
      }
      runs_->ran(row.name);
      check(run_on_device(row, built.params), reference[0].values);
    }
  }
  // Expects nearly all outputs matched, and most of each token's: a wrong expert shows.
  void expect_matched(const MoeFp8Case& c, const Change& change = enlarge) {
    for_each_row(c, change, [&](const auto& output, const auto& reference) {
      ASSERT_EQ(output.size(), reference.size());
      if (output.empty()) return;
      EXPECT_GE(matched_share(output, reference), least_matched(output.size()));
      const auto hidden = static_cast<size_t>(c.hidden);
      size_t num_wrong = 0, first_wrong = 0;
      for (size_t at = 0; at < output.size(); at += hidden) {
        size_t num_matched = 0;
        for (size_t i = at; i < at + hidden; ++i)
          num_matched += is_matched(output[i], reference[i]);
        if (num_matched >= hidden * 4 / 5) continue;
        if (num_wrong++ == 0) first_wrong = at / hidden;
      }
      EXPECT_EQ(num_wrong, 0u) << "tokens, the first is " << first_wrong;
    });
  }

  TestMachine machine_;
};

TEST_F(MoeFp8Cuda, PlainCasesMatch) {
  for (const MoeFp8Case& c : OpTester<MoeFp8Case>::plain_cases()) expect_matched(c);
}

TEST_F(MoeFp8Cuda, AnyNumberOfTokensMatches) {
  for (const int32_t tokens : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 80, 128, 129, 901}) {
    expect_matched({.tokens = tokens, .hidden = 384, .intermediate = 256, .experts = 256},
                   [](MoeFp8Params& p) {
                     enlarge(p);
                     route_in_8_groups(p);
                   });
  }
}

// Blocks that do not fill the warps that share them, or a kernel's last item.
TEST_F(MoeFp8Cuda, ShapesMatch) {
  for (const int32_t tokens : {1, 5, 13, 70, 300}) {
    for (const auto& [hidden, intermediate] : std::vector<std::pair<int32_t, int32_t>>{
             {128, 128}, {128, 1152}, {1152, 128}, {640, 384}, {2048, 512}, {2048, 2176}}) {
      expect_matched({.tokens = tokens,
                      .hidden = hidden,
                      .intermediate = intermediate,
                      .experts = 16,
                      .top_k = 4});
    }
  }
}

// The shape of the definition, and every expert touched.
TEST_F(MoeFp8Cuda, FewTokensOnManyExpertsMatch) {
  expect_matched({.tokens = 2, .hidden = 7168, .intermediate = 2048, .experts = 8, .top_k = 4});
  for (const int32_t tokens : {1, 4, 8, 16}) {
    expect_matched({.tokens = tokens, .hidden = 512, .intermediate = 384, .experts = 64},
                   [](MoeFp8Params& p) {
                     enlarge(p);
                     route_in_8_groups(p);
                     p.top_k = 8;
                   });
  }
}

// Tiles of every width of products, alone and side by side.
TEST_F(MoeFp8Cuda, AllTokensOnOneExpertMatch) {
  for (const int32_t tokens : {2, 8, 9, 16, 17, 33, 64, 65, 90, 100, 128, 192, 193, 300, 500}) {
    expect_matched({.tokens = tokens}, [](MoeFp8Params& p) {
      enlarge(p);
      choose_all(p, p.local_expert_offset);
      p.local_expert_offset += p.num_local_experts - 1;
      p.num_local_experts = 1;
    });
  }
}

TEST_F(MoeFp8Cuda, RoutingsMatch) {
  for (const int32_t tokens : {5, 16, 37}) {
    for (const int32_t num_groups : {1, 2, 8, 32}) {
      for (const int32_t kept : {1, num_groups}) {
        expect_matched({.tokens = tokens, .experts = 32}, [&](MoeFp8Params& p) {
          enlarge(p);
          p.num_groups = num_groups, p.kept_groups = kept;
          p.top_k = std::min(11, kept * p.num_experts / num_groups);
        });
      }
    }
  }
  // 512 experts, and 32 choices of 256.
  for (const int32_t tokens : {2, 12, 40}) {
    expect_matched({.tokens = tokens, .experts = 512}, enlarge);
    expect_matched({.tokens = tokens, .experts = 256, .top_k = 32}, [](MoeFp8Params& p) {
      enlarge(p);
      route_in_8_groups(p);
    });
  }
  // Equal scores, most of them negative.
  for (const int32_t tokens : {8, 50}) {
    expect_matched({.tokens = tokens, .experts = 256}, [](MoeFp8Params& p) {
      enlarge(p);
      route_in_8_groups(p);
      for (int64_t i = 0; i < int64_t{p.num_tokens} * p.num_experts; ++i) {
        mutable_floats(p.routing_logits)[i] = std::round(p.routing_logits[i]);
      }
      for (int32_t e = 0; e < p.num_experts; ++e)
        mutable_words(p.routing_bias)[e] = f32_to_bf16(e % 3 == 0 ? -0.5f : -2.0f);
    });
  }
}

TEST_F(MoeFp8Cuda, ANanLogitShowsInItsTokenOnly) {
  for (const int32_t tokens : {6, 12, 40}) {
    for (const int32_t experts : {32, 256}) {
      for_each_row(
          {.tokens = tokens, .experts = experts},
          [&](MoeFp8Params& p) {
            if (experts == 256) route_in_8_groups(p);
            for (const float sign : {1.0f, -1.0f}) {
              const int32_t token = sign > 0 ? 3 : tokens - 1;
              mutable_floats(p.routing_logits)[token * p.num_experts + p.local_expert_offset + 1] =
                  std::copysign(std::nanf(""), sign);
            }
          },
          [&](const auto& output, const auto& reference) {
            size_t num_nan = 0;
            for (size_t i = 0; i < output.size(); ++i) {
              ASSERT_EQ(std::isnan(output[i]), std::isnan(reference[i])) << i;
              num_nan += std::isnan(output[i]);
            }
            EXPECT_EQ(num_nan, output.size() / static_cast<size_t>(tokens) * 2);
          });
    }
  }
}

TEST_F(MoeFp8Cuda, ANanCodeReachesItsOwnTokenOnly) {
  for (const auto& [code, tokens] : std::vector<std::pair<uint8_t, int32_t>>{
           {0x7F, 40}, {0xFF, 40}, {0x7F, 2}, {0xFF, 8}, {0x7F, 12}}) {
    const MoeFp8Case c{.tokens = tokens};
    for_each_row(
        c,
        [&, nan = code](MoeFp8Params& p) {
          choose_all(p, p.local_expert_offset);
          mutable_bytes(p.hidden_states)[p.hidden + 77] = nan;
        },
        [&](const auto& output, const auto&) {
          for (size_t i = 0; i < output.size(); ++i)
            ASSERT_EQ(std::isnan(output[i]), i / static_cast<size_t>(c.hidden) == 1) << i;
        });
  }
}

TEST_F(MoeFp8Cuda, ANanWeightReachesItsOutputOnly) {
  for (const int32_t tokens : {1, 15, 40}) {
    const MoeFp8Case c{.tokens = tokens};
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

TEST_F(MoeFp8Cuda, ATokenBeyondF32LeavesOthersAlone) {
  for (const int32_t tokens : {3, 14, 40}) {
    const MoeFp8Case c{.tokens = tokens};
    for_each_row(
        c,
        [](MoeFp8Params& p) {
          enlarge(p);
          choose_all(p, p.local_expert_offset);
          for (int32_t block = 0; block < p.hidden / kFp8Block; ++block)
            mutable_floats(p.hidden_states_scale)[block * p.num_tokens + 1] = 0x1p127f;
        },
        [&](const auto& output, const auto& reference) {
          const auto hidden = static_cast<size_t>(c.hidden);
          double num_matched = 0;
          for (size_t i = 0; i < output.size(); ++i) {
            if (i / hidden == 1) continue;
            ASSERT_TRUE(std::isfinite(output[i])) << i;
            num_matched += is_matched(output[i], reference[i]);
          }
          const size_t others = output.size() - hidden;
          EXPECT_GE(num_matched, least_matched(others) * static_cast<double>(others));
          EXPECT_FALSE(std::isfinite(output[hidden]));
        });
  }
}

TEST_F(MoeFp8Cuda, TokensWithoutALocalExpertAreZeros) {
  for (const int32_t tokens : {1, 8, 16, 21, 200}) {
    for_each_row(
        {.tokens = tokens}, [](MoeFp8Params& p) { choose_all(p, p.local_expert_offset + 8); },
        [](const auto& output, const auto&) {
          for (const double value : output) ASSERT_EQ(value, 0.0);
        });
  }
}

TEST_F(MoeFp8Cuda, ScalesMayBeZeroHugeAndTiny) {
  for (const int32_t tokens : {1, 6, 12, 20, 200}) {
    for_each_row({.tokens = tokens, .hidden = 384, .intermediate = 256}, spread_scales,
                 [](const auto& output, const auto& reference) {
                   for (size_t i = 0; i < output.size(); ++i) {
                     ASSERT_TRUE(std::isfinite(output[i]));
                     ASSERT_EQ(reference[i] == 0, output[i] == 0) << i;
                   }
                   EXPECT_GE(matched_share(output, reference), least_matched(output.size()));
                 });
  }
}

// At the tolerances that the authors of such rows use: 0.1, 20% and 85% of the outputs.
TEST_F(MoeFp8Cuda, ARequantisedIntermediateMatchesLoosely) {
  for (const int32_t tokens : {0, 1, 40, 300, 901}) {
    for (const auto& [hidden, intermediate] :
         std::vector<std::pair<int32_t, int32_t>>{{256, 128}, {1152, 128}, {640, 384}}) {
      for_each_row(
          {.tokens = tokens,
           .hidden = hidden,
           .intermediate = intermediate,
           .experts = 16,
           .top_k = 4},
          [](MoeFp8Params& p) {
            enlarge(p);
            p.activation = DType::kF8E4M3;
          },
          [](const auto& output, const auto& reference) {
            double num_matched = 0;
            for (size_t i = 0; i < output.size(); ++i) {
              const double error = std::fabs(output[i] - reference[i]);
              num_matched += error <= 0.1 || error <= 0.2 * std::fabs(reference[i]);
            }
            EXPECT_GE(num_matched, 0.85 * static_cast<double>(output.size()));
          });
    }
  }
}

TEST_F(MoeFp8Cuda, ARequantisedNanReachesItsOwnTokenOnly) {
  const MoeFp8Case c{.tokens = 200};
  for_each_row(
      c,
      [](MoeFp8Params& p) {
        p.activation = DType::kF8E4M3;
        choose_all(p, p.local_expert_offset);
        mutable_bytes(p.hidden_states)[p.hidden + 77] = 0x7F;
      },
      [&](const auto& output, const auto&) {
        for (size_t i = 0; i < output.size(); ++i)
          ASSERT_EQ(std::isnan(output[i]), i / static_cast<size_t>(c.hidden) == 1) << i;
      });
}

// So many tokens that every row runs pieces.
TEST_F(MoeFp8Cuda, PiecesOfALargeLaunchMatch) {
  expect_matched({.tokens = 16390, .hidden = 128, .intermediate = 128, .experts = 8, .top_k = 4});
}

TEST_F(MoeFp8Cuda, ExtentsBeyondTheKernelsAreRefused) {
  const std::vector<Change> changes = {
      [](auto& p) { p.num_experts = 528; },
      [](auto& p) {
        p.num_experts = 512;
        p.num_local_experts = 257, p.local_expert_offset = 0;
      },
      [](auto& p) { p.num_groups = 1, p.kept_groups = 1, p.top_k = 33; },
      [](auto& p) { p.hidden = 192; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    MoeFp8Params p = MoeFp8Case{.experts = 64}.sizes();
    changes[i](p);
    for (const auto& row : Op<MoeFp8Params>::rows()) {
      if (row.device != DeviceKind::kCuda) continue;
      EXPECT_NE(row.refuses(p), nullptr) << row.name << ", change " << i;
    }
  }
}

}  // namespace
}  // namespace moxie::testing
