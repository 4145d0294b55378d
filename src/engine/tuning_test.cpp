// Tunings: the strict reader, which of them fits, and plans that follow measured times.
#include "engine/tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/testing/paths.h"
#include "engine/engine.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kNano = test_data() + "/goldens/nano-a";

std::unique_ptr<Engine> open(const std::string& tuning) {
  auto engine = Engine::load({.model = kNano,
                              .device = "cpu",
                              .threads = 1,
                              .max_model_len = 64,
                              .max_num_seqs = 2,
                              .max_batch_tokens = 16,
                              .max_logit_rows = 16,
                              .tuning = {.file = tuning, .commit = "abc"},
                              .show_progress = false});
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

TuningKey key_of(Engine& engine) {
  return tuning_key(engine.options(), engine.device().properties(), engine.kernels(),
                    engine.config(), engine.weights(), engine.kv_dtype());
}

// Every row that may run, at a time of its own: that of `best` is least by far.
TunedLaunch launch_with(Engine& engine, const Bracket& bracket, const PlannedRow& best,
                        double noise_us) {
  TunedLaunch launch{.num_tokens = bracket.num_tokens,
                     .num_seqs = bracket.num_seqs,
                     .num_logit_rows = bracket.num_logit_rows,
                     .rows = {}};
  const auto plan = engine.model().plan_by(bracket, engine.kv_dtype(), {});
  CHECK(plan.has_value());
  const auto add = [&](const PlannedRow& row, bool is_planned) {
    const bool is_best = row.entry == best.entry && row.layer == best.layer;
    launch.rows.push_back({.layer = static_cast<int32_t>(row.layer),
                           .name = row.row.name,
                           .forms = forms_text(row.forms),
                           .predicted_us = row.predicted_us,
                           .measured_us = is_best ? 10.0 : 20.0,
                           .noise_us = noise_us,
                           .is_planned = is_planned});
  };
  add(plan->embed, true);
  add(plan->unembed, true);
  for (const auto& chain : plan->chains)
    for (const PlannedRow& row : chain) add(row, true);
  add(best, false);
  return launch;
}

// A row of a step of one layer that the plan does not have, and that covers that step alone.
PlannedRow other_row(Engine& engine, const Bracket& bracket, const char* step) {
  const auto plan = engine.model().plan_by(bracket, engine.kv_dtype(), {});
  CHECK(plan.has_value());
  for (const PlannedRow& own : plan->layer(0)) {
    if (own.row.op().name != std::string_view(step) || own.row.ops.size() > 1) continue;
    for (const PlannedRow& row : engine.model().candidates(bracket, engine.kv_dtype(), 0)) {
      if (row.row.ops == own.row.ops && row.entry != own.entry && row.forms == own.forms)
        return row;
    }
  }
  CHECK(false, "the step has one row alone");
  return {};
}

std::vector<std::string> names_of(const PassPlan& plan) {
  std::vector<std::string> names = {plan.embed.row.name, plan.unembed.row.name};
  for (size_t l = 0; l < plan.chain_of_layer.size(); ++l)
    for (const PlannedRow& row : plan.layer(l)) names.push_back(row.row.name);
  return names;
}

class TuningTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("moxie_tuning_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "deep" / "tuning.json").string(); }
  void write(const Tuning& tuning) const {
    const auto status = write_tunings(path(), {tuning});
    ASSERT_TRUE(status.has_value()) << status.error().message();
  }
  fs::path folder_;
};

Tuning some_tuning() {
  return {.key = {.device = "d",
                  .driver = "1.2",
                  .features = "f",
                  .threads = 3,
                  .commit = "c",
                  .model = "m",
                  .shapes = "s",
                  .switches = "w"},
          .launches = {{.num_tokens = 8,
                        .num_seqs = 1,
                        .num_logit_rows = 1,
                        .rows = {{.layer = 1,
                                  .name = "r",
                                  .forms = "x=f32",
                                  .tile_columns = 64,
                                  .predicted_us = 1.5,
                                  .measured_us = 2.25,
                                  .noise_us = 0.125,
                                  .is_planned = true}}}}};
}

TEST_F(TuningTest, WhatIsWrittenIsReadTheSame) {
  const std::string text = tunings_text({some_tuning(), some_tuning()});
  const auto read = parse_tunings(text, "f");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ(tunings_text(*read), text);
  const TunedRow& row = read->front().launches.front().rows.front();
  EXPECT_EQ(row.name, "r");
  EXPECT_EQ(row.measured_us, 2.25);
  EXPECT_TRUE(row.is_planned);
  write(some_tuning());
  const auto file = read_tunings(path());
  ASSERT_TRUE(file.has_value() && file->has_value());
  EXPECT_EQ(why_unfit((**file).front().key, some_tuning().key), "");
}

TEST_F(TuningTest, EveryTruncationIsRefused) {
  const std::string text = tunings_text({some_tuning()});
  for (size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_FALSE(parse_tunings(text.substr(0, size), "f").has_value()) << size;
}

TEST_F(TuningTest, FaultsNameTheMember) {
  const struct {
    const char* pointer;
    Json value;
  } kCases[] = {
      {"/form", "moxie tuning 2"},
      {"/form", nullptr},
      {"/tunings", 3},
      {"/tunings/0", "x"},
      {"/tunings/0/key", nullptr},
      {"/tunings/0/key/device", 4},
      {"/tunings/0/key/commit", std::string(5000, 'x')},
      {"/tunings/0/key/threads", -1},
      {"/tunings/0/key/threads", 1.5},
      {"/tunings/0/key/threads", 18446744073709551615u},
      {"/tunings/0/launches", Json::object()},
      {"/tunings/0/launches/0/tokens", 0},
      {"/tunings/0/launches/0/sequences", "1"},
      {"/tunings/0/launches/0/rows/0/layer", -1},
      {"/tunings/0/launches/0/rows/0/name", Json::array()},
      {"/tunings/0/launches/0/rows/0/tile", -8},
      {"/tunings/0/launches/0/rows/0/tile", "256x64"},
      {"/tunings/0/launches/0/rows/0/measured_us", -1},
      {"/tunings/0/launches/0/rows/0/measured_us", 1e300},
      {"/tunings/0/launches/0/rows/0/predicted_us", "1"},
      {"/tunings/0/launches/0/rows/0/noise_us", nullptr},
      {"/tunings/0/launches/0/rows/0/planned", 1},
  };
  for (const auto& [pointer, value] : kCases) {
    Json document = Json::parse(tunings_text({some_tuning()}));
    document[Json::json_pointer(pointer)] = value;
    const auto read = parse_tunings(document.dump(), "f");
    ASSERT_FALSE(read.has_value()) << pointer << " " << value;
    EXPECT_NE(read.error().message().find(pointer), std::string::npos) << read.error().message();
  }
  // Every member is needed, and there are no others.
  const Json whole = Json::parse(tunings_text({some_tuning()}));
  const Json members = whole.flatten();
  for (const auto& [pointer, ignored] : members.items()) {
    Json document = whole;
    const Json::json_pointer at(pointer);
    document[at.parent_pointer()].erase(at.back());
    EXPECT_FALSE(parse_tunings(document.dump(), "f").has_value()) << pointer;
    document = whole;
    document[at.parent_pointer()]["more"] = 1;
    EXPECT_FALSE(parse_tunings(document.dump(), "f").has_value()) << pointer;
  }
  Json twice = whole;
  auto& rows = twice["/tunings/0/launches/0/rows"_json_pointer];
  rows.push_back(rows[0]);
  EXPECT_FALSE(parse_tunings(twice.dump(), "f").has_value());
}

TEST_F(TuningTest, HostileTextsAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("\0\0", 2), std::string(1 << 20, '['),
        R"({"form":"moxie tuning 1","tunings":[)" + std::string(100000, '['), std::string("NaN"),
        std::string(R"({"form":"moxie tuning 1"})"), std::string("{}")}) {
    EXPECT_FALSE(parse_tunings(text, "f").has_value()) << text.substr(0, 40);
  }
}

TEST_F(TuningTest, EachMemberOfTheKeyCountsButTheModelsName) {
  const TuningKey key = some_tuning().key;
  EXPECT_EQ(why_unfit(key, key), "");
  for (const auto member : {&TuningKey::device, &TuningKey::driver, &TuningKey::features,
                            &TuningKey::commit, &TuningKey::shapes, &TuningKey::switches}) {
    TuningKey other = key;
    other.*member = "other";
    EXPECT_NE(why_unfit(other, key).find("'other'"), std::string::npos);
  }
  TuningKey other = key;
  other.threads = 4;
  EXPECT_NE(why_unfit(other, key).find("4 threads"), std::string::npos);
  other = key;
  other.model = "another path";
  EXPECT_EQ(why_unfit(other, key), "");
}

TEST_F(TuningTest, ReplacesTheTuningOfTheSameDeviceShapesAndSwitches) {
  std::vector<Tuning> tunings;
  Tuning one = some_tuning();
  replace_tuning(&tunings, one);
  one.key.commit = "later";
  replace_tuning(&tunings, one);
  ASSERT_EQ(tunings.size(), 1u);
  EXPECT_EQ(tunings.front().key.commit, "later");
  one.key.shapes = "other";
  replace_tuning(&tunings, one);
  EXPECT_EQ(tunings.size(), 2u);
}

TEST_F(TuningTest, TheKeyDependsOnShapesAndSwitches) {
  const auto engine = open("off");
  const TuningKey key = key_of(*engine);
  EXPECT_EQ(key.commit, "abc");
  EXPECT_EQ(key.threads, 1);
  EXPECT_EQ(key.driver, "none");
  EXPECT_FALSE(key.device.empty());
  GptOssConfig config = engine->config();
  ++config.vocab;
  EngineOptions options = engine->options();
  const auto& properties = engine->device().properties();
  EXPECT_NE(tuning_key(options, properties, engine->kernels(), config, engine->weights(),
                       engine->kv_dtype())
                .shapes,
            key.shapes);
  options.kernels = {"out=reference"};
  const TuningKey forced = tuning_key(options, properties, engine->kernels(), engine->config(),
                                      engine->weights(), engine->kv_dtype());
  EXPECT_EQ(forced.shapes, key.shapes);
  EXPECT_NE(forced.switches, key.switches);
}

TEST_F(TuningTest, PlansFollowATuningInWhichAnotherRowIsBetterAndOnlyThen) {
  const Bracket bracket = bracket_of(4, 1, 1), untuned = bracket_of(2, 1, 1);
  const auto plain = open("off");
  const PlannedRow other = other_row(*plain, bracket, "out");
  const auto plan_of = [](Engine& engine, const Bracket& of) {
    const auto plan = engine.model().plan_for(of, engine.kv_dtype());
    CHECK(plan.has_value());
    return *plan;
  };
  const auto planned = names_of(*plan_of(*plain, bracket));
  EXPECT_EQ(std::count(planned.begin(), planned.end(), other.row.name), 0);

  // 10 us against the plan's 20, and a noise of 5: it is taken, in the layers of its kind.
  write({.key = key_of(*plain), .launches = {launch_with(*plain, bracket, other, 5)}});
  const auto tuned = open(path());
  EXPECT_EQ(tuned->tuning().state, TuningUse::State::kUsed);
  EXPECT_NE(tuned->tuning().text().find(path()), std::string::npos);
  const auto followed = names_of(*plan_of(*tuned, bracket));
  EXPECT_GT(std::count(followed.begin(), followed.end(), other.row.name), 0);
  EXPECT_TRUE(plan_of(*tuned, bracket)->is_tuned);
  // Launches of another size keep their plan.
  EXPECT_FALSE(plan_of(*tuned, untuned)->is_tuned);
  EXPECT_EQ(names_of(*plan_of(*tuned, untuned)), names_of(*plan_of(*plain, untuned)));

  // The difference is within the noise: the plan stays.
  write({.key = key_of(*plain), .launches = {launch_with(*plain, bracket, other, 15)}});
  const auto noisy = open(path());
  EXPECT_EQ(noisy->tuning().state, TuningUse::State::kUsed);
  EXPECT_EQ(names_of(*plan_of(*noisy, bracket)), planned);

  // Of another commit: not used, and the reason is told.
  TuningKey key = key_of(*plain);
  key.commit = "def";
  write({.key = key, .launches = {launch_with(*plain, bracket, other, 5)}});
  const auto unfit = open(path());
  EXPECT_EQ(unfit->tuning().state, TuningUse::State::kUnfit);
  EXPECT_NE(unfit->tuning().text().find("'def'"), std::string::npos) << unfit->tuning().text();
  EXPECT_EQ(names_of(*plan_of(*unfit, bracket)), planned);
}

TEST_F(TuningTest, OffAndNoFileChangeNothing) {
  const auto plain = open("off");
  EXPECT_EQ(plain->tuning().text(), "off");
  const Bracket bracket = bracket_of(4, 1, 1);
  const PlannedRow other = other_row(*plain, bracket, "out");
  write({.key = key_of(*plain), .launches = {launch_with(*plain, bracket, other, 5)}});
  const auto missing = Engine::load({.model = kNano,
                                     .device = "cpu",
                                     .max_model_len = 64,
                                     .tuning = {.file = path() + ".none", .commit = "abc"},
                                     .show_progress = false});
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message().find("no such file"), std::string::npos);
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const auto logits = [&](Engine& engine) {
    const SeqId seq = engine.kv().add_sequence();
    const Chunk chunk{seq, ids, Logits::kLast};
    const auto rows = engine.step({&chunk, 1});
    CHECK(rows.has_value());
    std::vector<float> row(*rows, *rows + engine.config().vocab);
    engine.kv().free_sequence(seq);
    return row;
  };
  const auto off = open("off");
  EXPECT_EQ(logits(*plain), logits(*off));
  EXPECT_TRUE(same_rows(**plain->model().plan_for(bracket, plain->kv_dtype()),
                        **off->model().plan_for(bracket, off->kv_dtype())));
  EXPECT_FALSE((*off->model().plan_for(bracket, off->kv_dtype()))->is_tuned);
}

TEST_F(TuningTest, ABrokenFileIsNotUsed) {
  fs::create_directories(fs::path(path()).parent_path());
  for (const char* text : {"", "{", "[]", R"({"form":"moxie tuning 1","tunings":[{}]})"}) {
    std::ofstream(path(), std::ios::binary) << text;
    const auto engine = open(path());
    EXPECT_EQ(engine->tuning().state, TuningUse::State::kBroken) << text;
    EXPECT_FALSE(engine->tuning().why.empty());
    EXPECT_EQ(engine->tuning().tuning, nullptr);
  }
  fs::remove(path());
  fs::create_directories(path());
  EXPECT_EQ(open(path())->tuning().state, TuningUse::State::kBroken);
}

TEST_F(TuningTest, RowsThatNoChainCanHaveLeaveThePlanByPredictedTimes) {
  const Bracket bracket = bracket_of(4, 1, 1);
  const auto plain = open("off");
  const auto planned = names_of(**plain->model().plan_for(bracket, plain->kv_dtype()));
  TunedLaunch launch{.num_tokens = 4, .num_seqs = 1, .num_logit_rows = 1, .rows = {}};
  launch.rows.push_back({.layer = 0, .name = "no_such_row", .forms = "x=f32", .measured_us = 1});
  write({.key = key_of(*plain), .launches = {launch}});
  const auto engine = open(path());
  const auto plan = engine->model().plan_for(bracket, engine->kv_dtype());
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE((*plan)->is_tuned);
  EXPECT_EQ(names_of(**plan), planned);
}

TEST(TuningPath, FollowsTheCacheFolder) {
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", "/some/cache", 1);
  EXPECT_EQ(default_tuning_path(), "/some/cache/moxie/tuning.json");
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // to be ignored, as the specification says
  EXPECT_NE(default_tuning_path(), "relative/moxie/tuning.json");
  before == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
}

}  // namespace
}  // namespace moxie
