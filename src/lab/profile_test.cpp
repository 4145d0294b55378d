// The profile: the rule for overlapping kernels on made-up intervals, the table of kernels against
// the sources, and a whole profile of a small model on the CPU.
#include "lab/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "core/testing/paths.h"
#include "kernels/attend/attend.h"
#include "kernels/experts/experts.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"
#include "lab/bench_runner.h"
#include "lab/kernel_table.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

int64_t sum(const WindowShares& shares) {
  return std::accumulate(shares.symbol_ns.begin(), shares.symbol_ns.end(), shares.gap_ns);
}

TEST(ShareWindow, AnEmptyWindowIsOneGap) {
  const WindowShares shares = share_window({}, 0, 100, 250);
  EXPECT_EQ(shares.gap_ns, 150);
  EXPECT_EQ(shares.longest_gap_ns, 150);
  EXPECT_EQ(shares.num_gaps, 1);
  EXPECT_EQ(share_window({}, 0, 100, 100).num_gaps, 0);
}

TEST(ShareWindow, GapsLieBeforeBetweenAndAfter) {
  const std::vector<Activity> two = {{40, 60, 1}, {10, 20, 0}};  // in no order
  const WindowShares shares = share_window(two, 2, 0, 100);
  EXPECT_EQ(shares.symbol_ns, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(shares.symbol_launches, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(shares.gap_ns, 10 + 20 + 40);
  EXPECT_EQ(shares.num_gaps, 3);
  EXPECT_EQ(shares.longest_gap_ns, 40);
  EXPECT_EQ(shares.overlap_ns, 0);
}

TEST(ShareWindow, AMomentBelongsToTheOneThatStartedFirst) {
  // 0 runs; 1 starts beside it and outlasts it; 2 starts beside both and ends before 1 does.
  const std::vector<Activity> chain = {{0, 10, 0}, {4, 18, 1}, {8, 14, 2}, {18, 20, 3}};
  const WindowShares shares = share_window(chain, 4, 0, 20);
  EXPECT_EQ(shares.symbol_ns, (std::vector<int64_t>{10, 8, 0, 2}));
  EXPECT_EQ(shares.symbol_launches, (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(shares.gap_ns, 0);
  EXPECT_EQ(shares.overlap_ns, 10) << "from 4 to 14 two or three run";
}

TEST(ShareWindow, WhatLiesOutsideIsCutOff) {
  const std::vector<Activity> some = {{0, 30, 0}, {90, 120, 1}, {200, 300, 2}};
  const WindowShares shares = share_window(some, 3, 20, 100);
  EXPECT_EQ(shares.symbol_ns, (std::vector<int64_t>{10, 10, 0}));
  EXPECT_EQ(shares.symbol_launches, (std::vector<int64_t>{0, 1, 0})) << "0 began before the window";
  EXPECT_EQ(shares.gap_ns, 60);
}

TEST(ShareWindow, RandomActivitiesAgreeWithMomentByMoment) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  for (int round = 0; round < 200; ++round) {
    constexpr int kSymbols = 4, kBegin = 20, kEnd = 160;
    std::vector<Activity> all(static_cast<size_t>(below(12)));
    for (Activity& a : all) {
      a.start_ns = below(180);
      a.end_ns = a.start_ns + below(40);
      a.symbol = below(kSymbols);
    }
    std::vector<int64_t> owned(kSymbols);
    int64_t gap = 0, overlap = 0;
    for (int64_t at = kBegin; at < kEnd; ++at) {
      const Activity* first = nullptr;
      int num_running = 0;
      for (const Activity& a : all) {
        if (a.start_ns > at || a.end_ns <= at) continue;
        ++num_running;
        if (first == nullptr || a.start_ns < first->start_ns) first = &a;
      }
      overlap += num_running > 1;
      if (first == nullptr)
        ++gap;
      else
        ++owned[static_cast<size_t>(first->symbol)];
    }
    const WindowShares shares = share_window(all, kSymbols, kBegin, kEnd);
    EXPECT_EQ(shares.symbol_ns, owned);
    EXPECT_EQ(shares.gap_ns, gap);
    EXPECT_EQ(shares.overlap_ns, overlap);
    EXPECT_EQ(sum(shares), kEnd - kBegin);
  }
}

constexpr char kAttendKernel[] = "_Z12attend_split7nothing";

// A launch with drafts that a head follows, its draw, a proposal, and a plain launch of the loop
// that was given before the one before it was taken.
TEST(ShareByDrafts, AWindowIsDividedAmongDraftsLaunchesAndTheRest) {
  const ActivityLog log{.symbols = {{"experts_row", &Op<ExpertsParams>::info},
                                    {"unembed_row", &Op<UnembedParams>::info},
                                    {"sample_row", &Op<SampleParams>::info}},
                        .activities = {{10, 30, 0},  // the launch
                                       {30, 34, 1},
                                       {35, 36, 1},
                                       {37, 45, 0},  // the head follows
                                       {46, 48, 2},
                                       {52, 55, 0},  // the head's pass
                                       {55, 56, 1},
                                       {60, 70, 0},  // the loop
                                       {70, 72, 1},
                                       {74, 75, 2},
                                       {76, 80, 0},
                                       {80, 82, 1}}};
  const LaunchMarks marks = {{MarkKind::kVerify, false, 10, 50},
                             {MarkKind::kDraft, false, 51, 58},
                             {MarkKind::kPlain, true, 59, 77},
                             {MarkKind::kPlain, true, 60, 90},
                             {MarkKind::kDraft, false, 130, 140}};
  const DraftShares shares = share_by_drafts(marks, log, 0, 100);
  EXPECT_EQ(shares.draft_ns, 46 - 36 + 58 - 51);
  EXPECT_EQ(shares.verify_ns, 40 - (46 - 36));
  EXPECT_EQ(shares.plain_ns, 90 - 59);
  EXPECT_EQ(shares.other_ns, 10 + 1 + 1 + 10);
  EXPECT_EQ(shares.num_verify, 1);
  EXPECT_EQ(shares.num_plain, 2);
  EXPECT_EQ(shares.num_proposals, 1) << "one lies outside";
  // A mark that outlasts the window is cut; without marks all is other.
  EXPECT_EQ(share_by_drafts(marks, log, 0, 20).verify_ns, 10);
  EXPECT_EQ(share_by_drafts({}, log, 0, 100).other_ns, 100);
}

TEST(MatchLaunches, TheKthKernelToStartIsOfTheKthLaunch) {
  constexpr int kFunctions[3] = {}, kStream = 0;
  const OpInfo &qkv = Op<QkvParams>::info, &out = Op<OutParams>::info;
  const std::vector<NotedLaunch> launches = {{&kFunctions[0], &qkv, &kStream},
                                             {&kFunctions[1], nullptr, &kStream},
                                             {&kFunctions[2], &out, &kStream},
                                             {&kFunctions[0], &out, &kStream}};
  const std::vector<std::string> names = {"memset", "of_two", "of_none", "of_out"};
  // In no order; a fill between them; two of a graph that started at once.
  const std::vector<DeviceRecord> records = {{{30, 35, 3}, true, 8, 4},
                                             {{10, 25, 1}, true, 3, 0},
                                             {{12, 14, 0}, false, 4, 0},
                                             {{30, 31, 2}, true, 8, 2},
                                             {{40, 50, 1, 7}, true, 9, 0}};
  const auto log = match_launches(names, records, launches);
  ASSERT_TRUE(log.has_value()) << log.error().message();
  const std::vector<ActivityLog::Symbol> symbols = {{"of_two", &qkv},
                                                    {"memset", nullptr},
                                                    {"of_none", nullptr},
                                                    {"of_out", &out},
                                                    {"of_two", &out}};
  EXPECT_EQ(log->symbols, symbols);
  ASSERT_EQ(log->activities.size(), 5u);
  EXPECT_EQ(log->activities[4].start_ns, 40);
  EXPECT_EQ(log->activities[4].end_ns, 50);
  EXPECT_EQ(log->activities[4].symbol, 4);
  EXPECT_EQ(log->activities[4].stream, 7);
}

TEST(MatchLaunches, WhatCannotBeOfTheLaunchesIsAFailure) {
  constexpr int kFunctions[2] = {}, kStreams[2] = {};
  const std::vector<std::string> names = {"first", "second"};
  const std::vector<DeviceRecord> records = {
      {{0, 5, 0}, true, 1}, {{5, 9, 1}, true, 2}, {{9, 12, 0}, true, 3}};
  const auto launches = [&](int of_third, int stream_of_third) {
    return std::vector<NotedLaunch>{{&kFunctions[0], nullptr, &kStreams[0]},
                                    {&kFunctions[1], nullptr, &kStreams[0]},
                                    {&kFunctions[of_third], nullptr, &kStreams[stream_of_third]}};
  };
  EXPECT_TRUE(match_launches(names, records, launches(0, 0)).has_value());
  const auto expect_fault = [&](const std::vector<NotedLaunch>& noted, const char* what) {
    const auto log = match_launches(names, records, noted);
    ASSERT_FALSE(log.has_value()) << what;
    EXPECT_NE(log.error().what.find(what), std::string::npos) << log.error().message();
    EXPECT_FALSE(log.error().hint.empty());
  };
  expect_fault({}, "3 kernels ran and 0 launches were noted");
  expect_fault(launches(1, 0), "launch 2 is of second, and the device ran first");
  expect_fault(launches(0, 1), "several streams");
}

TEST(KernelTable, AKernelIsOfTheOperationThatLaunchedItWhateverItsName) {
  const OpInfo& out = Op<OutParams>::info;
  for (const char* name : {kAttendKernel, "void cutlass::Kernel<int>(int)", "", "read_of_all"}) {
    EXPECT_STREQ(place_of(name, &out).step, "out") << name;
    EXPECT_EQ(place_of(name, &out).category, Category::kDense) << name;
  }
}

TEST(KernelTable, ListedKernelsCountUnderAnotherCategory) {
  // As a compiler writes it: a kernel in an unnamed namespace with a template argument there too.
  const std::string staged =
      "_ZN5moxie4gemm46_GLOBAL__N__0dee8da0_13_stage_cuda_cu_33efbf2715stage_slot_"
      "rowsILi8ELb1EEEvNS0_"
      "10StageSlotsE";
  const OpInfo& experts = Op<ExpertsParams>::info;
  EXPECT_STREQ(place_of(staged, &experts).step, "experts");
  EXPECT_EQ(place_of(staged, &experts).category, Category::kNorm);
  EXPECT_EQ(place_of("moxie::gemm::sort_by_expert(moxie::gemm::SortTask)", &experts).category,
            Category::kRouting);
  EXPECT_EQ(place_of(staged, nullptr).category, Category::kOther) << "no operation launched it";
}

TEST(KernelTable, OutsideOfOperationsAKernelIsListedOrOther) {
  EXPECT_STREQ(place_of("moxie::(anonymous namespace)::write_ids(moxie::IdsParams)", nullptr).step,
               "draft_ids");
  EXPECT_STREQ(place_of("memcpy host to device", nullptr).step, "copy");
  for (const char* name : {kAttendKernel, "void cutlass::Kernel<int>(int)", "memcpys", ""}) {
    EXPECT_STREQ(place_of(name, nullptr).step, "other") << name;
    EXPECT_EQ(place_of(name, nullptr).category, Category::kOther) << name;
  }
}

TEST(KernelTable, ShortNamesHaveNoScopesAndNamedFormats) {
  EXPECT_EQ(short_kernel_name(
                "void moxie::gemm::product_kernel<(moxie::DType)9, moxie::gemm::CutOf<2, 2, "
                "false, 128>, 64, 96, moxie::gemm::DenseProduct<moxie::gemm::AddToResidual> "
                ">(moxie::gemm::DenseProduct<moxie::gemm::AddToResidual>)"),
            "product_kernel<mxfp4, CutOf<2, 2, false, 128>, 64, 96, DenseProduct<AddToResidual> >");
}

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Whether code outside of kernels/ can launch what the file defines: the file is there, or its
// header is included there.
std::set<fs::path> outside_of_operations() {
  const fs::path src = source_dir() + "/src";
  const std::regex include(R"(#include "(kernels/[^"]*)\.\w+")");
  std::set<fs::path> found;
  for (const auto& file : fs::recursive_directory_iterator(src)) {
    const fs::path path = fs::relative(file.path(), src);
    const std::string extension = path.extension().string(), name = path.filename().string();
    if (*path.begin() == "kernels" || name.find("_test.") != name.npos || extension == ".txt")
      continue;
    found.insert(path);
    const std::string text = slurp(file.path());
    for (std::sregex_iterator at(text.begin(), text.end(), include), end; at != end; ++at)
      for (const char* code : {".cu", ".cuh"}) found.insert((*at)[1].str() + code);
  }
  return found;
}

// Kernels that only rows can launch have an operation. Any other that somebody adds and does not
// enter would turn up as "other" on a GPU only.
TEST(KernelTable, HoldsEveryKernelThatRunsOutsideOfOperations) {
  const std::regex global(R"(__global__[^;{]*?(\w+)\(const __grid_constant__)");
  const std::set<fs::path> outside = outside_of_operations();
  std::map<std::string, bool> found;  // and whether it may run outside
  for (const auto& file : fs::recursive_directory_iterator(source_dir() + "/src")) {
    const std::string extension = file.path().extension().string();
    if (extension != ".cu" && extension != ".cuh") continue;
    const bool is_outside = outside.contains(fs::relative(file.path(), source_dir() + "/src"));
    const std::string text = slurp(file.path());
    size_t num_global = 0, num_read = 0;
    for (size_t at = text.find("__global__"); at != text.npos; at = text.find("__global__", at + 1))
      ++num_global;
    for (std::sregex_iterator at(text.begin(), text.end(), global), end; at != end; ++at) {
      ++num_read;
      found[(*at)[1]] |= is_outside;
      if (!is_outside) continue;
      EXPECT_NE(place_of((*at)[1], nullptr).category, Category::kOther)
          << file.path() << ": " << (*at)[1];
    }
    EXPECT_EQ(num_read, num_global) << file.path() << ": a kernel whose name is not read";
  }
  EXPECT_GT(found.size(), 20u);
  EXPECT_TRUE(found["greatest_scales"]) << "of kernels/, and loading launches it";
  EXPECT_FALSE(found["sort_by_expert"]);
  for (const KernelEntry& entry : kernel_entries()) {
    const std::string name(entry.function);
    if (name.starts_with("mem")) continue;
    ASSERT_TRUE(found.contains(name)) << name << " is in the table and nowhere in the sources";
    EXPECT_EQ(found[name], entry.step != nullptr) << name;
  }
}

TEST(KernelTable, EveryOperationHasACategory) {
  for (const OpTable& table : all_ops()) {
    const KernelPlace place = place_of("a_row", table.op);
    EXPECT_STREQ(place.step, table.op->name);
    EXPECT_EQ(place.category, category_of(*table.op));
    EXPECT_NE(place.category, Category::kOther) << table.op->name << " has no category";
  }
}

class ProfileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tests_ = bench_tests({24}, {6}, {8}, {1, 2});
    EngineOptions options{.model = test_data() + "/goldens/nano-a",
                          .device = "cpu",
                          .threads = 2,
                          .show_progress = false};
    fit_engine(tests_, &options);
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    engine_ = std::move(*engine);
    limits_.read_gb_s = 10;
    limits_.fp32.rate = 50;
  }
  std::vector<BenchTest> tests_;
  std::unique_ptr<Engine> engine_;
  MachineLimits limits_;
};

TEST_F(ProfileTest, PartsAddUpToTheWindowAndNothingIsUnknown) {
  const auto recorder = make_step_recorder(engine_->kernels());
  const auto phases = run_profile(*engine_, tests_, 2, limits_, *recorder);
  ASSERT_TRUE(phases.has_value()) << phases.error().message();
  ASSERT_EQ(phases->size(), 4u);
  for (const PhaseProfile& phase : *phases) {
    SCOPED_TRACE(phase.test.name());
    double categories = 0, kernels = 0;
    for (const LimitedPart& part : phase.categories) categories += part.us;
    for (const KernelPart& part : phase.kernels) kernels += part.us;
    EXPECT_NEAR(categories, phase.window_us, 1e-6 * phase.window_us);
    EXPECT_NEAR(kernels + phase.category(Category::kGap).us, phase.window_us,
                1e-6 * phase.window_us);
    EXPECT_EQ(phase.category(Category::kOther).launches, 0);
    EXPECT_GT(phase.category(Category::kExperts).us, 0);
    const double layers = engine_->config().num_layers;
    const double passes = phase.is_decode() ? 1 : phase.test.streams;
    EXPECT_DOUBLE_EQ(phase.category(Category::kExperts).launches, passes * layers);
    EXPECT_EQ(phase.category(Category::kSampling).launches, phase.is_decode() ? 1 : 0);
    // The share follows from the work and the time.
    const LimitedPart& experts = phase.category(Category::kExperts);
    ASSERT_TRUE(experts.share_of_limit.has_value());
    const double limit_us = std::max(experts.work.bytes / (phase.limits.read_gb_s * 1e3),
                                     experts.work.flops / (best_peak(phase.limits).rate * 1e3));
    EXPECT_NEAR(*experts.share_of_limit, limit_us / experts.us, 1e-9);
    EXPECT_NEAR(experts.above_limit_us, std::max(0.0, experts.us - limit_us), 1e-6);
    EXPECT_EQ(phase.plain_tok_s.size(), 2u);
    EXPECT_EQ(phase.profiled_tok_s.size(), 2u);
    EXPECT_GT(phase.slow_down(), 0);
    ASSERT_EQ(phase.gates.size(), 4u);
    EXPECT_FALSE(phase.gates[2].share.has_value()) << "the CPU's rows are timed as a whole";
    EXPECT_DOUBLE_EQ(*phase.gates[3].share, phase.category(Category::kGap).share_of_time);
    EXPECT_LT(phase.last_begin_ns, phase.last_end_ns);
  }
  EXPECT_STREQ((*phases)[0].unit(), "prompt");
  EXPECT_STREQ((*phases)[1].unit(), "token");
  EXPECT_STREQ((*phases)[3].unit(), "step");
}

// Rows that multiply 8-bit integers are held against that peak, in every step and category.
TEST_F(ProfileTest, EveryStepIsHeldAgainstThePeakOfItsRow) {
  EngineOptions options{.model = test_data() + "/goldens/nano-a",
                        .device = "cpu",
                        .threads = 2,
                        .mxfp4_layers = "all",
                        .activation = "int8",
                        .show_progress = false};
  fit_engine(tests_, &options);
  const auto engine = Engine::load(options);
  ASSERT_TRUE(engine.has_value()) << engine.error().message();
  limits_.read_gb_s = 1e6;  // so that products are the limit
  limits_.int8.rate = 3;
  const auto recorder = make_step_recorder((*engine)->kernels());
  const auto phases = run_profile(**engine, {{.n_prompt = 24}}, 1, limits_, *recorder);
  ASSERT_TRUE(phases.has_value()) << phases.error().message();
  const PhaseProfile& phase = phases->front();
  double dense_us = 0;
  for (const LimitedPart& step : phase.steps) {
    if (step.work.flops == 0) continue;
    const auto row = std::ranges::find(
        phase.rows, step.name, [](const auto& count) { return std::string(count.op->name); });
    ASSERT_NE(row, phase.rows.end()) << step.name;
    const double limit_us = step.work.flops / (peak_of_row(phase.limits, row->name).rate * 1e3);
    EXPECT_NEAR(*step.share_of_limit, limit_us / step.us, 1e-9) << row->name;
    if (step.name == "qkv" || step.name == "out" || step.name == "unembed") dense_us += limit_us;
  }
  const LimitedPart& dense = phase.category(Category::kDense);
  EXPECT_NEAR(*dense.share_of_limit, dense_us / dense.us, 1e-9);
}

TEST_F(ProfileTest, TheStepsOfAProfileAreTheBenchsWork) {
  const auto recorder = make_step_recorder(engine_->kernels());
  const BenchTest test{.n_gen = 4, .depth = 8};
  const auto phases = run_profile(*engine_, {test}, 1, limits_, *recorder);
  ASSERT_TRUE(phases.has_value()) << phases.error().message();
  const auto bench = run_bench(*engine_, test, 1, limits_);
  ASSERT_TRUE(bench.has_value()) << bench.error().message();
  double bytes = 0;
  for (const LimitedPart& step : phases->front().steps) {
    if (step.name != "sample") bytes += step.work.bytes;
  }
  EXPECT_NEAR(bytes, bench->bytes_per_token, 1e-6 * bytes);
}

TEST_F(ProfileTest, EachStreamReadsItsOwnKeys) {
  const auto attend = [this](int32_t streams) {
    return least_work(*engine_,
                      {.n_gen = 1, .depth = 8, .streams = streams})[Op<AttendParams>::info];
  };
  const Work one = attend(1), three = attend(3);
  EXPECT_GT(one.bytes, 0);
  EXPECT_DOUBLE_EQ(three.bytes, 3 * one.bytes);
  EXPECT_DOUBLE_EQ(three.flops, 3 * one.flops);
}

// The embedded model with its DFlash head, which follows every launch, and with n-grams.
TEST_F(ProfileTest, WithDraftsTheWindowIsAlsoDividedByThem) {
  for (const SpecMethod method : {SpecMethod::kOff, SpecMethod::kNgram, SpecMethod::kDflash}) {
    const std::vector<BenchTest> tests = bench_tests({8}, {24}, {0}, {1});
    EngineOptions options{.device = "cpu", .threads = 2, .show_progress = false};
    options.speculation = {.method = method, .is_adaptive = false};
    if (method == SpecMethod::kNgram) options.speculation.lookup_min = 1;
    fit_engine(tests, &options);
    const auto engine = Engine::load(options);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    const auto recorder = make_step_recorder((*engine)->kernels());
    const auto phases = run_profile(**engine, tests, 2, limits_, *recorder);
    ASSERT_TRUE(phases.has_value()) << phases.error().message();
    SCOPED_TRACE(spec_method_name(method));
    EXPECT_TRUE(phases->front().by_drafts.empty()) << "a prompt";
    const PhaseProfile& decode = phases->back();
    ASSERT_EQ(decode.by_drafts.size(), method == SpecMethod::kOff ? 0u : 4u);
    if (method == SpecMethod::kOff) continue;
    double us = 0, share = 0;
    for (const TimePart& part : decode.by_drafts) us += part.us, share += part.share_of_time;
    EXPECT_NEAR(us, decode.window_us, 1e-6 * decode.window_us);
    EXPECT_NEAR(share, 1, 1e-9);
    const TimePart& draft = decode.by_drafts[0];
    const TimePart& verify = decode.by_drafts[1];
    const TimePart& plain = decode.by_drafts[2];
    EXPECT_EQ(draft.name, "draft");
    EXPECT_GT(draft.us, 0);
    EXPECT_LE(verify.launches + plain.launches, 1) << "launches a token";
    EXPECT_GT(verify.launches + plain.launches, 0);
    EXPECT_GE(draft.launches, verify.launches);
    if (method == SpecMethod::kNgram) continue;
    // A head proposes for every launch but the first, and last where one token is left.
    EXPECT_GT(verify.us, 0);
    EXPECT_GT(verify.launches, plain.launches);
    // The head's passes run on the device: their steps are part of the time.
    double head_us = 0;
    for (const LimitedPart& step : decode.steps) {
      if (step.name == "rms_norm" || step.name == "gate") head_us += step.us;
    }
    EXPECT_GT(head_us, 0);
    EXPECT_GT(draft.us, head_us);
  }
}

TEST_F(ProfileTest, TheTraceHoldsTheLastRepetition) {
  const auto recorder = make_step_recorder(engine_->kernels());
  const BenchTest test{.n_gen = 3};
  const auto phases = run_profile(*engine_, {test}, 2, limits_, *recorder);
  ASSERT_TRUE(phases.has_value()) << phases.error().message();
  const fs::path path = fs::temp_directory_path() / ("moxie_trace_" + std::to_string(::getpid()));
  ASSERT_TRUE(write_trace(*phases, path.string()).has_value());
  const Json trace = Json::parse(slurp(path));
  fs::remove(path);
  size_t num_complete = 0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++num_complete;
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_FALSE(event["cat"].get<std::string>().empty());
  }
  const auto layers = static_cast<size_t>(engine_->config().num_layers);
  EXPECT_EQ(num_complete, 3 * (5 * layers + 3)) << "embed, five a layer, unembed and sample";
  EXPECT_FALSE(write_trace(*phases, "/nowhere/at/all").has_value());
}

class CuptiRecorder : public ::testing::Test {
 protected:
  void SetUp() override { ::unsetenv("FAKE_CUPTI"); }
  void TearDown() override { ::unsetenv("FAKE_CUPTI"); }
};

TEST_F(CuptiRecorder, AMissingLibrarySaysWhatToInstall) {
  for (const char* library : {"/nowhere/libcupti.so.13", "libm.so.6"}) {
    const auto recorder = make_cupti_recorder(library);
    ASSERT_FALSE(recorder.has_value()) << library;
    EXPECT_NE(recorder.error().hint.find("cupti"), std::string::npos) << recorder.error().message();
  }
}

#ifdef MOXIE_FAKE_CUPTI
// Of the kernels that the library gives at every flush.
void note_both_launches() {
  static constexpr int kFunctions[2] = {}, kStream = 0;
  {
    const OpScope scope(&Op<AttendParams>::info);
    note_launch(&kFunctions[0], &kStream);
  }
  note_launch(&kFunctions[1], &kStream);
}

TEST_F(CuptiRecorder, RecordsBecomeActivities) {
  for (int round = 0; round < 2; ++round) {  // one after another in a process
    const auto recorder = make_cupti_recorder(MOXIE_FAKE_CUPTI);
    ASSERT_TRUE(recorder.has_value()) << recorder.error().message();
    EXPECT_TRUE((*recorder)->sees_kernels());
    ASSERT_TRUE((*recorder)->start().has_value());
    const int64_t before = clock_ns(Clock::now());
    note_both_launches();
    const auto log = (*recorder)->stop();
    ASSERT_TRUE(log.has_value()) << log.error().message();
    const std::vector<ActivityLog::Symbol> symbols = {{kAttendKernel, &Op<AttendParams>::info},
                                                      {"someone_elses", nullptr},
                                                      {"memcpy device to host", nullptr}};
    EXPECT_EQ(log->symbols, symbols);
    ASSERT_EQ(log->activities.size(), 3u);
    EXPECT_GE(log->activities[0].start_ns, before) << "on Clock's scale";
    EXPECT_EQ(log->activities[0].stream, 7);
    const int64_t begin = log->activities[0].start_ns;
    const auto shares = share_window(log->activities, 3, begin, begin + 300);
    EXPECT_EQ(shares.symbol_ns, (std::vector<int64_t>{50, 50, 30}));
    // What the start leaves from before is not in the next log.
    ASSERT_TRUE((*recorder)->start().has_value());
    note_both_launches();
    const auto next = (*recorder)->stop();
    ASSERT_TRUE(next.has_value()) << next.error().message();
    EXPECT_EQ(next->activities.size(), 3u);
    ASSERT_TRUE((*recorder)->start().has_value());
    EXPECT_FALSE((*recorder)->stop().has_value()) << "kernels that nobody launched";
  }
}

TEST_F(CuptiRecorder, ARefusalSaysWhoMayProfile) {
  ::setenv("FAKE_CUPTI", "refuses", 1);
  const auto recorder = make_cupti_recorder(MOXIE_FAKE_CUPTI);
  ASSERT_TRUE(recorder.has_value()) << recorder.error().message();
  const auto status = (*recorder)->start();
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().what.find("INSUFFICIENT_PRIVILEGES"), std::string::npos);
  EXPECT_NE(status.error().hint.find("run this as root"), std::string::npos);
}

TEST_F(CuptiRecorder, ALibraryOfAnotherVersionIsRefused) {
  ::setenv("FAKE_CUPTI", "old", 1);
  const auto recorder = make_cupti_recorder(MOXIE_FAKE_CUPTI);
  ASSERT_FALSE(recorder.has_value());
  EXPECT_NE(recorder.error().what.find("version 120000"), std::string::npos);
}

TEST_F(CuptiRecorder, LostRecordsAreAFailure) {
  ::setenv("FAKE_CUPTI", "loses", 1);
  const auto recorder = make_cupti_recorder(MOXIE_FAKE_CUPTI);
  ASSERT_TRUE(recorder.has_value()) << recorder.error().message();
  ASSERT_TRUE((*recorder)->start().has_value());
  const auto log = (*recorder)->stop();
  ASSERT_FALSE(log.has_value());
  EXPECT_NE(log.error().what.find("2 records were lost"), std::string::npos);
}
#endif

}  // namespace
}  // namespace moxie
