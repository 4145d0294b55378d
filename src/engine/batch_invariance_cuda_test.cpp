// --batch-invariant on: a token's logits alone and among others, on CUDA.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/testing/paths.h"
#include "engine/testing/batch_invariance.h"
#include "kernels/testing/row_runs.h"

namespace moxie {
namespace {

// gpt-oss-20b's layers, fewer of them, and a small vocabulary; weights are random.
std::string four_layers() {
  const std::string path = ::testing::TempDir() + "moxie-four-layers.json";
  std::ofstream(path) << R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 4, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32,
    "num_experts_per_tok": 4, "experts_per_token": 4, "vocab_size": 2048, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rms_norm_eps": 1e-05, "rope_theta": 150000.0, "max_position_embeddings": 131072,
    "initial_context_length": 4096, "swiglu_limit": 7.0, "eos_token_id": 2002,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": false}})";
  return "synthetic:" + path;
}

Result<std::unique_ptr<Engine>> load(EngineOptions options, const BatchInvarianceCase& c) {
  options.device = "cuda";
  options.max_model_len = c.length + 64;
  options.max_num_seqs = c.num_watched + c.max_others;
  options.max_batch_tokens = 1500;
  options.max_logit_rows = 1500;
  options.show_progress = false;
  return Engine::load(options);
}

class BatchInvarianceCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = load({.model = four_layers()}, {.num_watched = 1, .max_others = 1});
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    features_ = (*engine)->kernels().features();
    if ((features_ & kSm90a) == 0) GTEST_SKIP() << "needs sm_90a";
  }
  Features features_ = 0;
};

TEST_F(BatchInvarianceCuda, LogitsAreThoseOfTheTokenAlone) {
  for (const char* layers : {"moe", "all"}) {
    // Past one block of keys of the full layers, and among as many tokens as a launch takes.
    const BatchInvarianceCase c{.num_watched = 3, .length = 700, .num_rounds = 3};
    auto engine =
        load({.model = four_layers(), .mxfp4_layers = layers, .batch_invariant = "on"}, c);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    const auto found = compare_with_alone(**engine, c);
    EXPECT_EQ(found.num_differ, 0) << layers << ": " << found.first;
    EXPECT_EQ(found.num_compared, c.num_watched * c.length * c.num_rounds);
    for (const auto& count : (*engine)->kernels().counts())
      std::printf("  %-40s %lu\n", count.name.c_str(), static_cast<unsigned long>(count.launches));
  }
}

TEST_F(BatchInvarianceCuda, WithoutTheSwitchTheyAreNot) {
  const BatchInvarianceCase c{.num_watched = 1, .length = 60, .max_others = 40, .num_rounds = 2};
  auto engine = load({.model = four_layers()}, c);
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  EXPECT_GT(compare_with_alone(**engine, c).num_differ, 0)
      << "the comparison would not see a difference";
}

// Each row that says so, forced; those of attention with both caches.
TEST_F(BatchInvarianceCuda, EveryRowThatSaysSoIs) {
  testing::RowRuns runs;
  const BatchInvarianceCase c{.num_watched = 2, .length = 300, .max_others = 100, .num_rounds = 2};
  for (const OpTable& table : all_ops()) {
    for (const RowInfo& row : table.rows()) {
      if (row.device != DeviceKind::kCuda || !row.is_batch_invariant) continue;
      if (table.op == &Op<SampleParams>::info || table.op == &Op<TapParams>::info) continue;
      if (const Features missing = row.needs & ~features_; missing != 0) {
        runs.cannot_run(row.name, missing);
        continue;
      }
      std::vector<std::string> caches = {"bf16"};
      if (table.op == &Op<AttendParams>::info) caches.push_back("fp8_e4m3");
      for (const std::string& cache : caches) {
        auto engine = load({.model = four_layers(),
                            .kernels = {std::string(table.op->name) + "=" + row.name},
                            .kv_dtype = cache,
                            .batch_invariant = "on"},
                           c);
        if (!engine) {
          runs.refused(row.name, engine.error().message());
          continue;
        }
        runs.ran(row.name);
        const auto found = compare_with_alone(**engine, c);
        EXPECT_EQ(found.num_differ, 0) << row.name << ", cache " << cache << ": " << found.first;
      }
    }
  }
}

// A model whose heads and sizes other rows serve.
TEST_F(BatchInvarianceCuda, ANarrowModelToo) {
  const BatchInvarianceCase c;
  auto engine = load({.model = test_data() + "/goldens/nano-a", .batch_invariant = "on"}, c);
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  const auto found = compare_with_alone(**engine, c);
  EXPECT_EQ(found.num_differ, 0) << found.first;
}

}  // namespace
}  // namespace moxie
