// The profile on a CUDA device, of models of gpt-oss's shapes, with graphs and without: every
// kernel is of an operation of the plan or in the table, and the parts add up.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/testing/paths.h"
#include "kernels/registry.h"
#include "lab/machine_gpu.h"
#include "lab/profile.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// gpt-oss-20b with two layers, one of each kind of attention.
std::string two_layers() {
  std::ifstream file(test_data() + "/goldens/nano-a/config.json");
  Json config = Json::parse(file);
  config["hidden_size"] = config["intermediate_size"] = 2880;
  config["num_attention_heads"] = 64;
  config["num_key_value_heads"] = 8;
  config["num_local_experts"] = 32;
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  config["sliding_window"] = 128;
  config["vocab_size"] = 201088;
  const fs::path path =
      fs::temp_directory_path() / ("moxie_profile_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << config.dump();
  return "synthetic:" + path.string();
}

struct Case {
  std::string mxfp4_layers, graphs;
};

// The operations whose rows ran, each once for a row that does the ones before it too.
std::set<std::string> ops_of(const std::vector<KernelChooser::Count>& counts) {
  std::set<std::string> ran, ops;
  for (const auto& count : counts) ran.insert(count.name);
  for (const RowInfo& row : all_rows())
    if (ran.contains(row.name)) ops.insert(row.op().name);
  return ops;
}

// Of kernels that serve one operation alone, parts of the names: the log says the same.
void expect_ops_by_name(const PhaseProfile& phase) {
  constexpr std::pair<const char*, const char*> kOpOf[] = {
      {"gather_rows", "embed"},     {"QkvStep", "qkv"},       {"TurnAndAppend", "qkv"},
      {"attend_", "attend"},        {"OutStep", "out"},       {"AddToResidual", "out"},
      {"route_", "route"},          {"GateUp", "experts"},    {"gate_up_", "experts"},
      {"slice_experts", "experts"}, {"head_gemv", "unembed"}, {"StoreLogits", "unembed"},
      {"find_parts", "sample"},     {"merge_parts", "sample"}};
  int num_known = 0;
  for (const KernelPart& kernel : phase.kernels) {
    for (const auto& [part, op] : kOpOf) {
      if (kernel.name.find(part) == kernel.name.npos) continue;
      ++num_known;
      EXPECT_STREQ(kernel.place.step, op) << kernel.symbol;
    }
  }
  EXPECT_GE(num_known, 4);
}

class ProfileCudaTest : public ::testing::TestWithParam<Case> {};

TEST_P(ProfileCudaTest, EveryKernelHasItsOperationAndThePartsAddUp) {
  auto recorder = make_cupti_recorder("");
  if (!recorder) GTEST_SKIP() << recorder.error().message();
  std::vector<BenchTest> tests = bench_tests({24, 1500}, {6}, {40}, {1, 4, 32});
  EngineOptions options{.model = two_layers(),
                        .device = "cuda",
                        .graphs = GetParam().graphs,
                        .mxfp4_layers = GetParam().mxfp4_layers,
                        .kv_dtype = "bf16",
                        .show_progress = false};
  fit_engine(tests, &options);
  auto engine = Engine::load(options);
  fs::remove(options.model.substr(options.model.find(':') + 1));
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  MachineLimits limits;
  limits.read_gb_s = 4000;
  const auto phases = run_profile(**engine, tests, 2, limits, **recorder);
  ASSERT_TRUE(phases.has_value()) << phases.error().message();
  for (const PhaseProfile& phase : *phases) {
    SCOPED_TRACE(phase.test.name());
    double categories = 0;
    for (const LimitedPart& part : phase.categories) categories += part.us;
    EXPECT_NEAR(categories, phase.window_us, 1e-6 * phase.window_us);
    for (const KernelPart& kernel : phase.kernels) {
      EXPECT_NE(kernel.place.category, Category::kOther) << kernel.symbol;
      EXPECT_NE(kernel.place.category, Category::kLoad) << kernel.symbol;
    }
    std::set<std::string> steps;
    for (const LimitedPart& step : phase.steps) steps.insert(step.name);
    steps.erase("copy");
    EXPECT_EQ(steps, ops_of(phase.rows));
    expect_ops_by_name(phase);
    for (const Category category : {Category::kExperts, Category::kDense, Category::kAttention}) {
      EXPECT_GE(phase.category(category).launches, 2) << category_name(category);
      EXPECT_GT(phase.category(category).us, 0) << category_name(category);
    }
    EXPECT_EQ(phase.category(Category::kSampling).launches > 0, phase.is_decode());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProfileCudaTest,
                         ::testing::Values(Case{"moe", "on"}, Case{"all", "on"},
                                           Case{"all", "off"}),
                         [](const auto& info) {
                           return info.param.mxfp4_layers + "_graphs_" + info.param.graphs;
                         });

TEST(GpuLimits, ProductsAndReadsArePlausible) {
  auto device = make_cuda_device(0);
  ASSERT_TRUE(device.has_value()) << device.error().message();
  const auto limits = measure_gpu(**device);
  ASSERT_TRUE(limits.has_value()) << limits.error().message();
  EXPECT_GT(limits->read_gb_s, 100);
  if ((*device)->properties().compute_capability != 90) return;
  EXPECT_GT(limits->bf16.rate, 300e3) << "GFLOP/s";
  EXPECT_LT(limits->bf16.rate, 1100e3) << "more than the hardware has";
  EXPECT_GT(limits->fp8.rate, 1.2 * limits->bf16.rate);
  EXPECT_LT(limits->fp8.rate, 2200e3) << "more than the hardware has";
}

}  // namespace
}  // namespace moxie
