// Tuning a small model on the CPU: what is timed, and what follows. No time is asserted.
#include "lab/tune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/testing/paths.h"
#include "engine/tuning.h"

namespace moxie {
namespace {

std::unique_ptr<Engine> open() {
  auto engine = Engine::load({.model = test_data() + "/goldens/nano-a",
                              .device = "cpu",
                              .threads = 1,
                              .max_model_len = 64,
                              .max_num_seqs = 8,
                              .max_batch_tokens = 32,
                              .max_logit_rows = 8,
                              .show_progress = false});
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

TEST(Tune, NoiseIsThreeErrorsOfTheMedianDifference) {
  // Differences 1, 2, 3, 4, 5: median 3, MAD 1, error 1.2533 * 1.4826 / sqrt(5).
  const std::vector<double> planned = {10, 10, 10, 10, 10}, other = {11, 12, 13, 14, 15};
  EXPECT_NEAR(noise_of(other, planned), 3 * 1.2533 * 1.4826 / std::sqrt(5.0), 1e-9);
  // Without any spread still 1% of the planned.
  EXPECT_NEAR(noise_of({500, 500, 500}, {1000, 1000, 1000}), 10, 1e-9);
  // A drift that both share is no noise.
  EXPECT_NEAR(noise_of({110, 210, 310}, {100, 200, 300}), 2, 1e-9);
}

TEST(Tune, TimesThePlansRowsAndTheirRivals) {
  const auto engine = open();
  for (const TuneLaunch launch :
       {TuneLaunch{.num_tokens = 2, .is_decode = true}, {.num_tokens = 16, .is_decode = false}}) {
    const auto before =
        engine->model().plan_by(bracket_of(launch.num_tokens, launch.num_seqs(), launch.num_seqs()),
                                engine->kv_dtype(), {});
    ASSERT_TRUE(before.has_value());
    const auto found =
        tune_launch(*engine, launch, {.repetitions = 3, .depth = 20, .filter = 1000});
    ASSERT_TRUE(found.has_value()) << found.error().message();
    std::set<std::tuple<size_t, std::string, std::string>> seen;
    size_t num_rivals = 0;
    for (const TimedRow& timed : found->rows) {
      EXPECT_EQ(timed.us.size(), 3u) << timed.row.row.name;
      for (const double us : timed.us) EXPECT_GT(us, 0);
      EXPECT_TRUE(
          seen.emplace(timed.row.layer, timed.row.row.name, forms_text(timed.row.forms)).second);
      EXPECT_LT(timed.row.predicted_us, kReferenceUs);
      num_rivals += !timed.is_planned;
      if (!timed.is_planned) {
        EXPECT_GT(timed.noise_us, 0);
      }
    }
    EXPECT_GT(num_rivals, 0u);
    for (const auto& chain : before->chains) {
      for (const PlannedRow& row : chain) {
        EXPECT_TRUE(std::any_of(found->rows.begin(), found->rows.end(), [&](const TimedRow& t) {
          return t.is_planned && t.row.entry == row.entry && t.row.layer == row.layer;
        })) << row.row.name;
      }
    }
    // The file's launch gives the plan that was chosen.
    const auto costs = row_costs(std::make_shared<const Tuning>(
        Tuning{.key = {}, .launches = {to_tuned(*found)}}))(found->bracket);
    const auto plan =
        engine->model().plan_by(found->bracket, engine->kv_dtype(), {.cost = costs.cost});
    ASSERT_TRUE(plan.has_value());
    for (const auto& chain : plan->chains) {
      for (const PlannedRow& row : chain) {
        const auto timed =
            std::find_if(found->rows.begin(), found->rows.end(), [&](const TimedRow& t) {
              return t.row.entry == row.entry && t.row.layer == row.layer &&
                     t.row.forms == row.forms;
            });
        ASSERT_NE(timed, found->rows.end());
        EXPECT_TRUE(timed->is_chosen) << row.row.name;
      }
    }
    EXPECT_EQ(found->differs, !same_rows(*plan, *before));
    // Afterwards the engine's plans are those by predicted times.
    const auto after = engine->model().plan_for(found->bracket, engine->kv_dtype());
    ASSERT_TRUE(after.has_value());
    EXPECT_TRUE(same_rows(**after, *before));
    engine->kv().check_integrity();
    EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
  }
}

TEST(Tune, TheFilterLeavesOutOtherStepsAndSlowRows) {
  const auto engine = open();
  const TuneLaunch launch{.num_tokens = 8, .is_decode = false};
  const auto of_out =
      tune_launch(*engine, launch, {.repetitions = 3, .depth = 8, .filter = 1000, .step = "out"});
  ASSERT_TRUE(of_out.has_value());
  for (const TimedRow& timed : of_out->rows) {
    const bool does_out =
        std::any_of(timed.row.row.ops.begin(), timed.row.row.ops.end(),
                    [](const OpInfo* op) { return op->name == std::string_view("out"); });
    EXPECT_TRUE(timed.is_planned || does_out) << timed.row.row.name;
  }
  const auto all = tune_launch(*engine, launch, {.repetitions = 3, .depth = 8, .filter = 1000});
  const auto near = tune_launch(*engine, launch, {.repetitions = 3, .depth = 8, .filter = 1});
  ASSERT_TRUE(all.has_value() && near.has_value());
  EXPECT_LT(near->rows.size(), all->rows.size());
}

}  // namespace
}  // namespace moxie
