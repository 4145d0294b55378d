// --batch-invariant on: a token's logits alone and among others, on the CPU.
#include "engine/testing/batch_invariance.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/testing/paths.h"
#include "kernels/testing/row_runs.h"

namespace moxie {
namespace {

const std::string kNano = test_data() + "/goldens/nano-a";

Result<std::unique_ptr<Engine>> load(EngineOptions options, const BatchInvarianceCase& c) {
  options.device = "cpu";
  options.max_model_len = 192;
  options.max_num_seqs = c.num_watched + c.max_others;
  options.max_batch_tokens = 320;
  options.max_logit_rows = 320;
  options.show_progress = false;
  return Engine::load(options);
}

// nano-a with other numbers in its configuration; weights are random.
std::string wide_model() {
  std::ifstream file(kNano + "/config.json");
  auto config = nlohmann::json::parse(file);
  config["hidden_size"] = 2112;
  const std::string path = ::testing::TempDir() + "moxie-wide-batches.json";
  std::ofstream(path) << config;
  return "synthetic:" + path;
}

TEST(BatchInvariance, LogitsAreThoseOfTheTokenAlone) {
  for (const char* kv_dtype : {"auto", "bf16", "fp8_e4m3"}) {
    const BatchInvarianceCase c;
    auto engine = load({.model = kNano, .kv_dtype = kv_dtype, .batch_invariant = "on"}, c);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    const auto found = compare_with_alone(**engine, c);
    EXPECT_EQ(found.num_differ, 0) << kv_dtype << ": " << found.first;
    EXPECT_EQ(found.num_compared, c.num_watched * c.length * c.num_rounds);
  }
}

// Rows for many tokens and for few round differently in wide models: without the switch this shows,
// with it the same rows run in every launch.
TEST(BatchInvariance, TheSwitchDecidesInAWideModel) {
  BatchInvarianceCase c{.num_watched = 1, .length = 40, .max_others = 20, .num_rounds = 2};
  for (const char* layers : {"moe", "all"}) {
    for (const bool is_on : {false, true}) {
      auto engine = load(
          {.model = wide_model(), .mxfp4_layers = layers, .batch_invariant = is_on ? "on" : "off"},
          c);
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      const auto found = compare_with_alone(**engine, c);
      if (is_on) {
        EXPECT_EQ(found.num_differ, 0) << layers << ": " << found.first;
      } else {
        EXPECT_GT(found.num_differ, 0) << "the comparison would not see a difference";
      }
    }
  }
}

// Each row of the CPU that says so, forced.
TEST(BatchInvariance, EveryRowThatSaysSoIs) {
  testing::RowRuns runs;
  const BatchInvarianceCase c{.num_watched = 1, .length = 140, .max_others = 40, .num_rounds = 1};
  for (const OpTable& table : all_ops()) {
    for (const RowInfo& row : table.rows()) {
      if (row.device != DeviceKind::kCpu || !row.is_batch_invariant) continue;
      if (table.op == &Op<SampleParams>::info || table.op == &Op<TapParams>::info) continue;
      if (const Features missing = row.needs & ~cpu_features(); missing != 0) {
        runs.cannot_run(row.name, missing);
        continue;
      }
      for (const char* layers : {"moe", "all"}) {
        auto engine = load({.model = kNano,
                            .kernels = {std::string(table.op->name) + "=" + row.name},
                            .mxfp4_layers = layers,
                            .kv_dtype = "bf16",
                            .batch_invariant = "on"},
                           c);
        if (!engine) {
          runs.refused(row.name, engine.error().message());
          continue;
        }
        runs.ran(row.name);
        const auto found = compare_with_alone(**engine, c);
        EXPECT_EQ(found.num_differ, 0) << row.name << ", " << layers << ": " << found.first;
      }
    }
  }
}

TEST(BatchInvariance, ARowWhoseResultsDependOnTheBatchIsRefused) {
  KernelChoice choice;
  choice.set_batch_invariant(true);
  Row<OutParams> row = Op<OutParams>::rows()[0];
  EXPECT_TRUE(choice.permits(row, {}));
  row.is_batch_invariant = false;
  EXPECT_FALSE(choice.permits(row, {}));
  choice.set_batch_invariant(false);
  EXPECT_TRUE(choice.permits(row, {}));
}

TEST(BatchInvariance, EveryBracketRunsTheSameRows) {
  BatchInvarianceCase c{.num_watched = 1, .max_others = 7};
  auto engine = load({.model = wide_model(), .mxfp4_layers = "all", .batch_invariant = "on"}, c);
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  const GptOss& model = (*engine)->model();
  const auto first = model.plan_for(bracket_of(1, 1, 1), (*engine)->kv_dtype());
  ASSERT_TRUE(first.has_value());
  for (const int32_t n : {2, 7, 8, 16, 100, 320}) {
    const auto plan = model.plan_for(bracket_of(n, 1, n), (*engine)->kv_dtype());
    ASSERT_TRUE(plan.has_value());
    EXPECT_TRUE(same_rows(**first, **plan)) << n << " tokens";
  }
}

}  // namespace
}  // namespace moxie
