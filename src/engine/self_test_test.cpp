// The self-test at start: faults planted in rows of the CPU are found, the rows are left out, and
// what was found is kept.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "core/testing/paths.h"
#include "engine/engine.h"
#include "kernels/testing/planted_rows.h"

namespace moxie::testing {
namespace {

namespace fs = std::filesystem;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A model in which 2 layers and heads of 64 stand for gpt-oss's, and files of its own.
class SelfTestCase : public ::testing::Test {
 protected:
  SelfTestCase() {
    fs::create_directories(folder_);
    clear_planted();
  }
  ~SelfTestCase() override {
    clear_planted();
    fs::remove_all(folder_);
  }

  std::string file() const { return folder_ / "self-test.json"; }

  Result<SelfTestResult> run(const std::string& mode = "auto", const std::string& commit = "abc",
                             const std::vector<std::string>& forced = {}) {
    KernelChoice choice;
    for (const std::string& kernel : forced) CHECK(choice.add(kernel).has_value());
    const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), choice);
    return run_self_test({.options = {.mode = mode, .file = file(), .commit = commit},
                          .device = device_.get(),
                          .properties = device_->properties(),
                          .kernels = kernels,
                          .config = checkpoint_->config(),
                          .formats = layout_,
                          .kv_dtype = DType::kBF16,
                          .max_tokens = 64});
  }
  SelfTestUse use(const std::string& mode = "auto", const std::string& commit = "abc") {
    auto result = run(mode, commit);
    CHECK(result.has_value(), result ? "" : result.error().message());
    return result->use;
  }

  // The row of the step in the sound plan for one token.
  template <typename P>
  std::string planned(int32_t num_tokens = 1) const {
    const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), {});
    const GptOss model(checkpoint_->config(), layout_, {}, kernels_of(kernels));
    const auto plan = model.plan_for(bracket_of(num_tokens, 1, 1), DType::kBF16);
    CHECK(plan.has_value());
    if (&Op<P>::info == &Op<EmbedParams>::info) return (*plan)->embed.row.name;
    if (&Op<P>::info == &Op<UnembedParams>::info) return (*plan)->unembed.row.name;
    for (const PlannedRow& row : (*plan)->layer(0))
      if (&row.row.op() == &Op<P>::info) return row.row.name;
    CHECK(false, Op<P>::info.name);
    return {};
  }

  // The fault is found in the planned row of its step, alone; the row is out, what stands in its
  // place is proven, and strict refuses.
  template <typename P>
  void expect_found(std::function<void(void (*run)(const P&), P params)> fault) {
    const std::string row = planned<P>();
    expect_found_in<P>(row, std::move(fault));
  }
  template <typename P>
  void expect_found_in(const std::string& row,
                       std::function<void(void (*run)(const P&), P params)> fault) {
    plant_in<P>(row, std::move(fault));
    const SelfTestUse found = use();
    ASSERT_EQ(found.faults.size(), 1u) << found.text();
    EXPECT_EQ(found.faults[0].row, row) << found.faults[0].what;
    EXPECT_TRUE(found.faults[0].beside.empty());
    EXPECT_FALSE(found.faults[0].stays);
    EXPECT_FALSE(found.planned.contains(row));
    EXPECT_TRUE(found.all_proven()) << found.text();
    EXPECT_NE(found.text().find("left out: " + row), std::string::npos) << found.text();
    fs::remove(file());
    const auto strict = run("strict");
    ASSERT_FALSE(strict.has_value());
    EXPECT_NE(strict.error().message().find(row), std::string::npos) << strict.error().message();
    std::printf("  %s: %s\n", found.faults[0].launch.c_str(), found.faults[0].what.c_str());
  }

  static KernelChooser& kernels_of(const KernelChooser& kernels) {
    return const_cast<KernelChooser&>(kernels);  // plans count nothing
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("moxie_self_test_" + std::to_string(::getpid()));
  std::unique_ptr<Checkpoint> checkpoint_ =
      std::move(open_checkpoint("synthetic:gpt-oss-20b").value());
  ModelWeights layout_ = checkpoint_->layout({});
  std::unique_ptr<Device> device_ = make_cpu_device(2);
};

TEST_F(SelfTestCase, ProvesASoundMachineOnce) {
  const SelfTestUse first = use();
  EXPECT_TRUE(first.all_proven()) << first.text();
  EXPECT_TRUE(first.faults.empty()) << first.text();
  EXPECT_TRUE(first.untested.empty());
  EXPECT_EQ(first.num_tested, first.num_chains);
  EXPECT_GT(first.seconds, 0);
  EXPECT_EQ(first.proven(planned<QkvParams>()), true);
  EXPECT_EQ(first.proven("tap_f32_copy_portable"), false);
  const SelfTestUse second = use();
  EXPECT_TRUE(second.all_proven()) << second.text();
  EXPECT_EQ(second.num_tested, 0u);
  EXPECT_EQ(second.seconds, 0);
  EXPECT_EQ(second.num_chains, first.num_chains);
  std::printf("  %s\n  %s\n", first.text().c_str(), second.text().c_str());
}

TEST_F(SelfTestCase, TestsAgainWithAnotherBinary) {
  use();
  EXPECT_GT(use("auto", "another commit").num_tested, 0u);
  EXPECT_EQ(use().num_tested, 0u) << "the results of both are kept";
}

TEST_F(SelfTestCase, OffRunsNothingAndSaysNothing) {
  const SelfTestUse off = use("off");
  EXPECT_EQ(off.text(), "off");
  EXPECT_EQ(off.proven(planned<QkvParams>()), std::nullopt);
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_FALSE(run("perhaps").has_value());
}

TEST_F(SelfTestCase, StrictTakesASoundMachine) { EXPECT_TRUE(use("strict").all_proven()); }

TEST_F(SelfTestCase, AFailedRowStaysOutInLaterStarts) {
  const std::string row = planned<OutParams>();
  plant_in<OutParams>(row, [](auto run, OutParams p) {
    run(p);
    p.x[0] += 1;
  });
  EXPECT_TRUE(use().all_proven());
  clear_planted();
  const SelfTestUse later = use();
  ASSERT_EQ(later.faults.size(), 1u);
  EXPECT_TRUE(later.faults[0].is_kept);
  EXPECT_FALSE(later.planned.contains(row));
  EXPECT_EQ(later.num_tested, 0u);
  EXPECT_FALSE(run("strict").has_value());
}

TEST_F(SelfTestCase, AForcedRowThatFailsStaysAndIsNotProven) {
  const std::string row = planned<QkvParams>();
  plant_in<QkvParams>(row, [](auto run, QkvParams p) {
    p.rms_eps += 1;
    run(p);
  });
  const auto result = run("auto", "abc", {"qkv=" + row});
  ASSERT_TRUE(result.has_value());
  ASSERT_FALSE(result->use.faults.empty());
  EXPECT_TRUE(result->use.faults[0].stays);
  EXPECT_EQ(result->use.proven(row), false);
  EXPECT_NE(result->use.text().find("NOT PROVEN"), std::string::npos) << result->use.text();
  EXPECT_FALSE(run("strict", "abc", {"qkv=" + row}).has_value());
}

TEST_F(SelfTestCase, ReferenceRowsStandInForAStepWhoseRowsAllFail) {
  Planted<RouteParams>::fault = [](auto run, RouteParams p) {
    run(p);
    p.expert_weights[0] *= 1.5f;
  };
  const SelfTestUse found = use();
  EXPECT_GE(found.faults.size(), 1u);
  EXPECT_TRUE(found.planned.contains("route_reference"));
  EXPECT_TRUE(found.all_proven());
}

TEST_F(SelfTestCase, ARowIsComparedOnceInAPlaceAndLaunch) {
  const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), {});
  const GptOss model(checkpoint_->config(), layout_, {}, kernels_of(kernels));
  const auto plan = model.plan_for(bracket_of(5, 1, 1), DType::kBF16);
  ASSERT_TRUE(plan.has_value());
  for (const bool once : {false, true}) {
    clear_planted();
    const auto test = SelfTest::create({.device = *device_,
                                        .features = cpu_features(),
                                        .config = checkpoint_->config(),
                                        .formats = layout_,
                                        .compares_once = once},
                                       *device_);
    ASSERT_TRUE(test.has_value());
    const auto finds_fault = [&](const SelfTestLaunch& launch) {
      return (*test)->run(**plan, launch).value().fault.has_value();
    };
    EXPECT_FALSE(finds_fault({5, 1}));
    plant_in<OutParams>(planned<OutParams>(5), [](auto run, OutParams p) {
      run(p);
      p.x[0] += 1;
    });
    EXPECT_EQ(finds_fault({5, 1}), !once);
    EXPECT_EQ(finds_fault({5, 5}), !once) << "out sees no sequences";
    EXPECT_TRUE(finds_fault({6, 1})) << "another launch";
    clear_planted();
    plant_in<QkvParams>(planned<QkvParams>(5), [](auto run, QkvParams p) {
      run(p);
      p.q[0] += 1;
    });
    EXPECT_TRUE(finds_fault({5, 3})) << "qkv sees sequences";
    clear_planted();
    plant_in<OutParams>(planned<OutParams>(5), [](auto run, OutParams p) {
      run(p);
      p.x[0] = kNan;
    });
    EXPECT_TRUE(finds_fault({5, 1})) << "NaN would hide what comes after";
  }
}

TEST_F(SelfTestCase, ABrokenFileIsLostAndWrittenAnew) {
  { std::ofstream(file()) << "{\"form\": \"moxie self-test 1\", \"tests\": 3}"; }
  EXPECT_GT(use().num_tested, 0u);
  EXPECT_EQ(use().num_tested, 0u);
}

TEST_F(SelfTestCase, AnEngineAnswersWithoutTheRow) {
  const std::string model = test_data() + "/goldens/nano-a";
  const auto load = [&](const std::string& mode) {
    return Engine::load({.model = model,
                         .device = "cpu",
                         .threads = 2,
                         .max_model_len = 64,
                         .max_batch_tokens = 16,
                         .self_test = {.mode = mode, .file = file(), .commit = "abc"},
                         .show_progress = false});
  };
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7};
  const auto rows_of = [&](Engine& engine) {
    CHECK(engine.generate(prompt, {.temperature = 0, .max_tokens = 3}).has_value());
    std::set<std::string> names;
    for (const auto& count : engine.kernels().counts()) names.insert(count.name);
    return names;
  };
  auto sound = load("auto");
  ASSERT_TRUE(sound.has_value()) << sound.error().message();
  EXPECT_GT((*sound)->timeline().self_test_s, 0);
  const auto sound_rows = rows_of(**sound);
  const auto qkv = std::ranges::find_if(sound_rows, [](auto& n) { return n.starts_with("qkv_"); });
  const std::string row = *qkv;
  for (const std::string& name : sound_rows)
    EXPECT_EQ((*sound)->self_test().proven(name), true) << name;
  fs::remove(file());
  plant_in<QkvParams>(row, [](auto run, QkvParams p) {
    run(p);
    p.q[0] = kNan;
  });
  auto without = load("auto");
  ASSERT_TRUE(without.has_value());
  EXPECT_FALSE(rows_of(**without).contains(row));
  auto strict = load("strict");
  ASSERT_FALSE(strict.has_value());
  EXPECT_NE(strict.error().message().find(row), std::string::npos);
  auto off = load("off");
  ASSERT_TRUE(off.has_value());
  EXPECT_TRUE(rows_of(**off).contains(row));
}

// ---- Planted faults -----------------------------------------------------------------------------

TEST_F(SelfTestCase, FindsTheEmbeddingOfAnotherTokenBehindTheLast) {
  expect_found<EmbedParams>([](auto run, EmbedParams p) {
    run(p);
    const int64_t hidden = p.table.cols, last = p.num_tokens - 1;
    if (last > 0) std::copy_n(p.x + (last - 1) * hidden, hidden, p.x + last * hidden);
  });
}

TEST_F(SelfTestCase, FindsASwappedFragment) {
  expect_found<QkvParams>([](auto run, QkvParams p) {
    run(p);
    std::swap_ranges(p.q, p.q + 8, p.q + 8);
  });
}

TEST_F(SelfTestCase, FindsARotationThatIsOnePositionAhead) {
  expect_found<QkvParams>([](auto run, QkvParams p) {
    p.rotary.table += p.head_dim;
    --p.rotary.max_positions;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsAKeyThatIsNotWritten) {
  expect_found<QkvParams>([](auto run, QkvParams p) {
    --p.batch.num_tokens;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsAValueInAnotherSequencesPage) {
  expect_found<QkvParams>([](auto run, QkvParams p) {
    run(p);
    if (p.batch.num_seqs == 1) return;
    const int64_t at = p.kv.offset(p.kv.page_of(1, 0), 0, 0, p.head_dim);
    std::memset(p.kv.v + at, 0, 2);
  });
}

TEST_F(SelfTestCase, FindsAWindowThatIsOneTooLong) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    if (p.window > 0) ++p.window;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsAWindowThatIsOneTooShort) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    if (p.window > 0) --p.window;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsALostSink) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    p.sinks = nullptr;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsALostScale) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    p.scale = 1;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsANanInOnePlaceOfLargeLaunches) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    run(p);
    if (p.batch.num_tokens > 16) p.a[5 * p.num_heads * p.head_dim + 77] = kNan;
  });
}

TEST_F(SelfTestCase, FindsARowThatDependsOnItsBatch) {
  expect_found<AttendParams>([](auto run, AttendParams p) {
    if (p.batch.num_seqs > 1) p.scale *= 0.99f;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsALostResidual) {
  expect_found<OutParams>([](auto run, OutParams p) {
    std::fill_n(p.x, int64_t{p.num_tokens} * p.weight.rows, 0.0f);
    run(p);
  });
}

TEST_F(SelfTestCase, FindsASkippedTailOfTheHiddenSize) {
  expect_found<OutParams>([](auto run, OutParams p) {
    const std::vector<float> before(p.x, p.x + int64_t{p.num_tokens} * p.weight.rows);
    run(p);
    const int32_t whole = p.weight.rows / 128 * 128;
    ASSERT_LT(whole, p.weight.rows) << "the test model is not as ragged as the model";
    for (int64_t token = 0; token < p.num_tokens; ++token)
      std::copy_n(before.data() + token * p.weight.rows + whole, p.weight.rows - whole,
                  p.x + token * p.weight.rows + whole);
  });
}

TEST_F(SelfTestCase, FindsALostBias) {
  expect_found<OutParams>([](auto run, OutParams p) {
    const std::vector<float> zeros(static_cast<size_t>(p.weight.rows));
    p.bias = zeros.data();
    run(p);
  });
}

// What a race without a fence leaves: some values are of the launch before.
TEST_F(SelfTestCase, FindsValuesOfTheLaunchBefore) {
  static std::vector<float> last;
  last.clear();
  expect_found<OutParams>([](auto run, OutParams p) {
    run(p);
    const size_t count = static_cast<size_t>(p.weight.rows);
    const std::vector<float> now(p.x, p.x + count);
    if (last.size() == count) std::copy_n(last.begin() + 32, 16, p.x + 32);
    last = now;
  });
}

TEST_F(SelfTestCase, FindsTiesThatGoToTheHigherIndex) {
  expect_found<RouteParams>([](auto run, RouteParams p) {
    run(p);
    for (int32_t i = 0; i + 1 < p.num_tokens * p.top_k; ++i)
      if (i % p.top_k != p.top_k - 1 && p.expert_weights[i] == p.expert_weights[i + 1])
        std::swap(p.expert_ids[i], p.expert_ids[i + 1]);
  });
}

TEST_F(SelfTestCase, FindsWeightsThatAreNotNormalised) {
  expect_found<RouteParams>([](auto run, RouteParams p) {
    run(p);
    for (int32_t i = 0; i < p.num_tokens * p.top_k; ++i) p.expert_weights[i] *= 0.999f;
  });
}

TEST_F(SelfTestCase, FindsAWrongExpertOfTheLastToken) {
  expect_found<RouteParams>([](auto run, RouteParams p) {
    run(p);
    int32_t& id = p.expert_ids[p.num_tokens * p.top_k - 1];
    if (p.num_tokens == 5) id = (id + 1) % p.weight.rows;
  });
}

TEST_F(SelfTestCase, FindsExpertsWithEachOthersWeights) {
  expect_found<ExpertsParams>([](auto run, ExpertsParams p) {
    std::vector<float> weights(p.expert_weights, p.expert_weights + p.num_tokens * p.top_k);
    std::swap(weights[0], weights[static_cast<size_t>(p.top_k) - 1]);
    p.expert_weights = weights.data();
    run(p);
  });
}

TEST_F(SelfTestCase, FindsAShiftedScaleOfOneExpert) {
  expect_found<ExpertsParams>([](auto run, ExpertsParams p) {
    std::vector<float> weights(p.expert_weights, p.expert_weights + p.num_tokens * p.top_k);
    for (size_t i = 0; i < weights.size(); ++i)
      if (p.expert_ids[i] == 5) weights[i] *= 2;
    p.expert_weights = weights.data();
    run(p);
  });
}

TEST_F(SelfTestCase, FindsASwigluWithoutItsClamp) {
  expect_found<ExpertsParams>([](auto run, ExpertsParams p) {
    p.swiglu_limit = 1e30f;
    run(p);
  });
}

TEST_F(SelfTestCase, FindsAnotherRowOfLogits) {
  expect_found<UnembedParams>([](auto run, UnembedParams p) {
    std::vector<int32_t> rows(p.row_idx, p.row_idx + p.num_rows);
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    p.row_idx = rows.data();
    run(p);
  });
}

TEST_F(SelfTestCase, FindsLogitsThatAreNotWritten) {
  expect_found<UnembedParams>([](auto run, UnembedParams p) {
    const float before = p.logits[p.weight.rows - 1];
    run(p);
    p.logits[p.weight.rows - 1] = before;
  });
}

// Rows of sample are chosen by themselves.
TEST_F(SelfTestCase, FindsAGreedyDrawThatTakesTheHigherOfTwoEqualIds) {
  const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), {});
  const auto row = kernels.select(SampleParams{.num_rows = 8, .vocab = 201088});
  ASSERT_TRUE(row.has_value());
  expect_found_in<SampleParams>((*row)->name, [](auto run, SampleParams p) {
    run(p);
    for (int32_t r = 0; r < p.num_rows; ++r) {
      const float* const logits = p.logits + int64_t{r} * p.vocab;
      for (int32_t id = p.vocab - 1; p.requests[r].temperature == 0 && id >= 0; --id)
        if (logits[id] == logits[p.answers[r].token]) {
          p.answers[r].token = id;
          break;
        }
    }
  });
}

TEST_F(SelfTestCase, FindsAnIgnoredTopK) {
  const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), {});
  const auto row = kernels.select(SampleParams{.num_rows = 8, .vocab = 201088});
  ASSERT_TRUE(row.has_value());
  expect_found_in<SampleParams>((*row)->name, [](auto run, SampleParams p) {
    std::vector<SampleRequest> requests(p.requests, p.requests + p.num_rows);
    for (SampleRequest& request : requests) request.top_p = 1, request.top_k = 0, request.min_p = 0;
    p.requests = requests.data();
    run(p);
  });
}

}  // namespace
}  // namespace moxie::testing
