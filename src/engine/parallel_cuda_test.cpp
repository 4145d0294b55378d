// Several ranks on GPUs against one: the same logits but for the order of sums, the same text
// whatever happens beside a request, and what a lost rank leaves. Each rank has a GPU of its own
// where there are enough, otherwise all share one.
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "core/testing/paths.h"
#include "engine/engine.h"
#include "engine/parallel.h"
#include "engine/testing/golden_heads.h"
#include "engine/testing/loop_session.h"
#include "engine/testing/ranks.h"
#include "model/pass.h"
#include "model/write_checkpoint.h"

namespace moxie {
namespace {

// Before anything of this process uses CUDA: kernels of ranks that share a GPU wait for each other.
const int kLoadsKernelsAtOnce = setenv("CUDA_MODULE_LOADING", "EAGER", 0);

// For EngineOptions::device.
std::string gpus_of(int ranks) {
  EXPECT_EQ(kLoadsKernelsAtOnce, 0);
  if (num_cuda_devices() >= ranks) return "cuda";
  std::string shared = "cuda:0";
  for (int rank = 1; rank < ranks; ++rank) shared += ",0";
  return shared;
}

struct Case {
  const char* model;
  int ranks;
  const char* graphs = "on";
  const char* arch_limit = "none";
  bool splits_experts = false;
  const char* kernel = "";  // forced, in one rank as in several
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.ranks << " ranks" << (c.splits_experts ? " of experts" : "")
       << ", graphs " << c.graphs << ", " << c.arch_limit << " " << c.kernel;
}
// The same on one rank.
Case alone_of(Case c) {
  c.ranks = 1, c.splits_experts = false;
  return c;
}

EngineOptions options_of(const Case& c) {
  EngineOptions options{
      .model = std::string(c.model) == "embedded" ? c.model : test_data() + "/goldens/" + c.model,
      .device = gpus_of(c.ranks),
      .graphs = c.graphs,
      .arch_limit = c.arch_limit,
      .max_model_len = 256,
      .tensor_parallel = c.ranks,
      .expert_parallel = c.splits_experts,
      .show_progress = false};
  if (*c.kernel != 0) options.kernels = {c.kernel};
  return options;
}

std::unique_ptr<Engine> open(const EngineOptions& options) {
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

std::vector<float> logits_of(Engine& engine, std::span<const int32_t> ids, size_t chunk) {
  const SeqId seq = engine.kv().add_sequence();
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  std::vector<float> all(ids.size() * vocab);
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const Chunk part{seq, ids.subspan(at, std::min(chunk, ids.size() - at)), Logits::kAll};
    CHECK(engine.step({&part, 1}).has_value());
    const auto read =
        engine.read_logits(std::span(all).subspan(at * vocab, part.tokens.size() * vocab));
    CHECK(read.has_value(), read ? "" : read.error().message());
  }
  engine.kv().free_sequence(seq);
  return all;
}

class ParallelCudaTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParallelCudaTest,
                         ::testing::Values(Case{"nano-a", 2}, Case{"nano-a", 4, "off"},
                                           Case{"nano-b", 2}, Case{"nano-b", 4, "on", "sm_80"},
                                           Case{"embedded", 2}, Case{"embedded", 4, "off"},
                                           Case{"embedded", 2, "on", "sm_80"}));
// A rank's experts are 4 of 8 or 2 of 8 in nano-a, 16 of 32 in nano-b: tokens have all of their
// choices there, some or none. Rows for many tokens run in launches of any size.
INSTANTIATE_TEST_SUITE_P(RanksOfExperts, ParallelCudaTest,
                         ::testing::Values(Case{"nano-a", 2, "on", "none", true},
                                           Case{"nano-a", 4, "off", "none", true},
                                           Case{"nano-b", 2, "on", "none", true},
                                           Case{"nano-b", 4, "off", "sm_80", true},
                                           Case{"nano-a", 2, "on", "none", true, "experts=w4a16"},
                                           Case{"nano-a", 2, "on", "sm_80", true, "experts=w4a16"},
                                           Case{"nano-b", 2, "off", "none", true, "experts=w4a16"},
                                           Case{"embedded", 2, "on", "none", true},
                                           Case{"embedded", 4, "off", "none", true},
                                           Case{"embedded", 2, "on", "sm_80", true}));

// Rows for GPUs round within a layer, and two ranks round other sums than one: as far from each
// other as each is from the goldens, for which the bar is the same. Now and then that decides
// between two experts.
constexpr double kMostKl = 1e-5, kMostMeanKl = 2e-3;
// The same where rows that round to BF16 run on narrow models: they are forced, or the only ones
// that any GPU has for a rank's few columns.
constexpr double kMostRoundedKl = 1e-4;
bool rounds(const Case& c) {
  return *c.kernel != 0 || (std::string_view(c.arch_limit) == "sm_80" && c.ranks > 2);
}

TEST_P(ParallelCudaTest, TheLogitsAreThoseOfOneRank) {
  EngineOptions options = options_of(alone_of(GetParam()));
  options.max_logit_rows = 64;
  auto one = open(options);
  options = options_of(GetParam());
  options.max_logit_rows = 64;
  auto several = open(options);
  EXPECT_EQ(several->num_ranks(), GetParam().ranks);
  auto ids = tokens(150, 7);
  for (int32_t& id : ids) id %= one->config().vocab;
  const auto vocab = static_cast<size_t>(one->config().vocab);
  for (const size_t chunk : {64, 1, 9}) {
    const auto expected = logits_of(*one, ids, chunk), found = logits_of(*several, ids, chunk);
    const auto kl = kl_of_rows(expected, found, vocab);
    const double mean = std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
    const double of_most = kl[kl.size() * 9 / 10];
    std::printf("chunks of %zu: KL %.2e in the mean, 9 of 10 below %.2e\n", chunk, mean, of_most);
    EXPECT_LE(of_most, rounds(GetParam()) ? kMostRoundedKl : kMostKl) << "chunks of " << chunk;
    EXPECT_LE(mean, kMostMeanKl) << "chunks of " << chunk;
  }
  bool reduces = false;
  for (const auto& count : several->kernels().counts())
    reduces |= std::string_view(count.op->name) == "reduce" && count.launches > 0;
  EXPECT_TRUE(reduces);
}

// Layers of gpt-oss' sizes but for their number and that of experts, random weights.
std::string wide_checkpoint() {
  GptOssConfig config;
  config.num_layers = 4, config.hidden = 2880, config.intermediate = 704;
  config.num_heads = 64, config.num_kv_heads = 8, config.num_experts = 8, config.vocab = 4000;
  config.is_window = {1, 0, 1, 0};
  const auto folder = std::filesystem::path(::testing::TempDir()) / "moxie_wide_checkpoint";
  std::filesystem::remove_all(folder);
  const auto written = write_checkpoint(config, folder.string(), {.seed = 3});
  CHECK(written.has_value(), written ? "" : written.error().message());
  return folder.string();
}

uint64_t launches_of(Engine& engine, std::string_view prefix) {
  uint64_t launches = 0;
  for (const auto& count : engine.kernels().counts())
    if (std::string_view(count.name).starts_with(prefix)) launches += count.launches;
  return launches;
}

// One token: the rows that read x exchange its parts, in every layer but before the first and
// behind the last. Forcing a row of reduce leaves them out.
TEST(ParallelCuda, FoldedExchangesGiveTheLogitsOfOneRank) {
  const std::string model = wide_checkpoint();
  EngineOptions options{.model = model,
                        .device = "cuda",
                        .mxfp4_layers = "all",
                        .max_model_len = 256,
                        .show_progress = false};
  options.max_logit_rows = 64;
  const auto ids = [&] {
    auto all = tokens(60, 5);
    for (int32_t& id : all) id %= 4000;
    return all;
  }();
  auto one = open(options);
  for (const int ranks : {2, 4}) {
    options.device = gpus_of(ranks);
    options.tensor_parallel = ranks;
    for (const bool is_folded : {true, false}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, folded: " << is_folded);
      options.kernels.clear();
      if (!is_folded) options.kernels = {"reduce=reduce_any_one_shot_peers_cuda"};
      auto several = open(options);
      for (const size_t chunk : {1, 30, 1}) {
        const auto expected = logits_of(*one, ids, chunk), found = logits_of(*several, ids, chunk);
        const auto kl = kl_of_rows(expected, found, 4000);
        std::printf("%d ranks, folded %d, chunks of %zu: KL %.2e at most, 9 of 10 below %.2e\n",
                    ranks, is_folded, chunk, kl.back(), kl[kl.size() * 9 / 10]);
        EXPECT_LE(kl[kl.size() * 9 / 10], kMostKl) << "chunks of " << chunk;
      }
      EXPECT_EQ(launches_of(*several, "reduce_qkv_") > 0, is_folded);
      EXPECT_EQ(launches_of(*several, "reduce_route_experts_") > 0, is_folded);
    }
  }
  std::filesystem::remove_all(model);
}

// Many tokens: out leaves its part in BF16, experts the outputs of pairs, and they norm x
// themselves. Some tokens of two ranks: out alone leaves its part in BF16.
TEST(ParallelCuda, RoundedPartsGiveTheLogitsOfOneRank) {
  const std::string model = wide_checkpoint();
  EngineOptions options{
      .model = model, .device = "cuda", .max_model_len = 2048, .show_progress = false};
  options.max_logit_rows = 2048;
  auto ids = tokens(1500, 5);
  for (int32_t& id : ids) id %= 4000;
  auto one = open(options);
  for (const int ranks : {2, 4}) {
    options.device = gpus_of(ranks);
    options.tensor_parallel = ranks;
    auto several = open(options);
    // One token before and behind: what was left must not change what is added then.
    for (const size_t chunk : {size_t{1}, ids.size(), size_t{700}, size_t{300}, size_t{1}}) {
      const size_t count = chunk == 1 ? 40 : ids.size();
      const std::vector<int32_t> some(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
      const auto expected = logits_of(*one, some, chunk), found = logits_of(*several, some, chunk);
      const auto kl = kl_of_rows(expected, found, 4000);
      std::printf("%d ranks, chunks of %zu: KL %.2e at most, 9 of 10 below %.2e\n", ranks, chunk,
                  kl.back(), kl[kl.size() * 9 / 10]);
      EXPECT_LE(kl[kl.size() * 9 / 10], kMostRoundedKl) << "chunks of " << chunk;
    }
  }
  std::filesystem::remove_all(model);
}

// Each row for this GPU by itself, in one rank as in two, but for those between ranks, which one
// rank has not. What two ranks may differ by is how far the row is from the others' logits.
template <typename P>
void expect_the_logits_of_one_rank_by_each_row(EngineOptions options, std::span<const int32_t> ids,
                                               const std::vector<float>& expected) {
  constexpr size_t kVocab = 4000, kChunks[] = {1, 7, 64};
  constexpr bool is_of_ranks = std::is_same_v<P, ReduceParams> || std::is_same_v<P, GatherParams>;
  const auto of_most = [](const std::vector<float>& a, const std::vector<float>& b) {
    const auto kl = kl_of_rows(a, b, kVocab);
    return kl[kl.size() * 9 / 10];
  };
  int num_rows = 0;
  for (const Row<P>& row : Op<P>::rows()) {
    if (row.device != DeviceKind::kCuda) continue;
    SCOPED_TRACE(row.name);
    options.kernels = {std::string(Op<P>::info.name) + "=" + row.name};
    options.tensor_parallel = 2;
    options.device = gpus_of(2);
    auto several = Engine::load(options);
    if (!several) {
      std::printf("%s: %s\n", row.name, several.error().message().c_str());
      continue;
    }
    ++num_rows;
    const uint64_t before = launches_of(**several, row.name);
    options.tensor_parallel = 1;
    options.device = "cuda";
    if (is_of_ranks) options.kernels.clear();
    auto one = open(options);
    for (const size_t chunk : kChunks) {
      const auto of_one = logits_of(*one, ids, chunk), found = logits_of(**several, ids, chunk);
      const double most = of_most(of_one, found), of_row = of_most(expected, of_one);
      std::printf("%s, chunks of %zu: KL %.1e to one rank, whose is %.1e to other rows\n", row.name,
                  chunk, most, of_row);
      EXPECT_LE(most, std::max(kMostRoundedKl, 4 * of_row)) << "chunks of " << chunk;
    }
    EXPECT_GT(launches_of(**several, row.name), before);
  }
  EXPECT_GT(num_rows, 0) << Op<P>::info.name;
}

TEST(ParallelCuda, EachRowGivesTheLogitsOfOneRank) {
  const std::string model = wide_checkpoint();
  for (const char* mxfp4_layers : {"moe", "all"}) {
    EngineOptions options{.model = model,
                          .device = "cuda",
                          .mxfp4_layers = mxfp4_layers,
                          .max_model_len = 256,
                          .show_progress = false};
    options.max_logit_rows = 64;
    auto ids = tokens(130, 9);
    for (int32_t& id : ids) id %= 4000;
    const auto expected = logits_of(*open(options), ids, 1);
    const auto expect_all = [&]<typename... P>() {
      (expect_the_logits_of_one_rank_by_each_row<P>(options, ids, expected), ...);
    };
    expect_all.template operator()<QkvParams, AttendParams, OutParams, RouteParams, ExpertsParams,
                                   UnembedParams, ReduceParams, GatherParams>();
    options.kv_dtype = "fp8_e4m3";
    expect_the_logits_of_one_rank_by_each_row<AttendParams>(options, ids, expected);
  }
  std::filesystem::remove_all(model);
}

// Sessions with launches under way, whose tokens no host sees before the next launch.
TEST_P(ParallelCudaTest, TheDecodeLoopDrawsWhatOneRankDraws) {
  if (std::string_view(GetParam().model) != "embedded") return;  // as below
  std::vector<std::vector<std::vector<int32_t>>> found;
  for (const Case& c : {alone_of(GetParam()), GetParam()}) {
    EngineOptions options = options_of(c);
    options.max_num_seqs = options.max_logit_rows = 4;
    auto engine = open(options);
    for (int session_number = 0; session_number < 3; ++session_number) {
      LoopSession session(*engine);
      for (uint32_t i = 0; i < 4; ++i) {
        auto prompt = tokens(9 + static_cast<int32_t>(7 * i), i);
        for (int32_t& id : prompt) id %= engine->config().vocab;
        session.add(prompt, {.temperature = i % 2 == 0 ? 0.0f : 1.0f, .seed = i});
      }
      found.push_back(session.run(40));
    }
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(found[i], found[i + 3]) << "session " << i;
}

// Texts of nine: launches of several tokens round otherwise than those of one.
constexpr int kMostDifferent = 2;

TEST(ParallelServiceCudaTest, WhateverHappensBesideItARequestDrawsWhatOneRankDraws) {
  // Of a model that was trained: random ones have tokens that are equal but for rounding.
  for (const Case& c :
       {Case{"embedded", 2}, Case{"embedded", 4, "off"}, Case{"embedded", 2, "on", "none", true}}) {
    for (const SpecMethod method : {SpecMethod::kOff, SpecMethod::kNgram}) {
      SCOPED_TRACE(::testing::Message() << c.ranks << " ranks, experts " << c.splits_experts << ", "
                                        << spec_method_name(method));
      EngineOptions one = options_of(alone_of(c)), several = options_of(c);
      one.max_model_len = several.max_model_len = 96;
      one.max_batch_tokens = several.max_batch_tokens = 24;
      several.speculation = {
          .method = method, .is_adaptive = false, .lookup_min = 1, .lookup_max = 4};
      expect_the_same_draws(one, several, method == SpecMethod::kOff ? 0 : kMostDifferent);
    }
  }
}

// Launches with drafts go to all ranks beside the decode loop of requests without, and what each
// costs is measured first.
TEST(ParallelServiceCudaTest, DraftHeadsOnTheFirstRankChangeHardlyAnyText) {
  for (const Case& c : {Case{"embedded", 2}, Case{"embedded", 2, "off"}, Case{"embedded", 4}}) {
    for (const SpecMethod method : {SpecMethod::kEagle3, SpecMethod::kDflash}) {
      for (const bool is_adaptive : {false, true}) {
        SCOPED_TRACE(::testing::PrintToString(c) + ", " + spec_method_name(method) +
                     (is_adaptive ? ", adaptive" : ""));
        Case alone = c;
        alone.ranks = 1;
        EngineOptions one = options_of(alone), several = options_of(c);
        one.max_model_len = several.max_model_len = 96;
        one.max_batch_tokens = several.max_batch_tokens = 24;
        several.speculation = {.method = method, .is_adaptive = is_adaptive};
        expect_the_same_draws(one, several, kMostDifferent);
      }
    }
  }
}

// Other people's logits, of heads with an output matrix of their own and with the target's.
TEST(HeadDrafterRanksCuda, ComputesTheGoldensOnTheFirstOfTwoRanks) {
  const std::string goldens = test_data() + "/goldens/";
  // Of all heads: where rounding decides one id, those behind it differ, too.
  size_t num_ids = 0, num_equal = 0;
  for (const GoldenHead& head : kGoldenHeads) {
    SCOPED_TRACE(head.folder);
    auto golden = SafetensorsFile::open(goldens + head.folder + "/goldens.safetensors");
    ASSERT_TRUE(golden.has_value());
    EngineOptions options = golden_head_options(goldens, head);
    options.device = gpus_of(2);
    options.tensor_parallel = 2;
    const auto engine = open(options);
    const auto drafter = HeadDrafter::create(*engine);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    for (int i = 0; i < 4; ++i) {
      const std::string name = "case" + std::to_string(i) + ".";
      const auto ids = golden_values<int32_t>(*golden, name + "input_ids");
      const int32_t next = golden_values<int32_t>(*golden, name + "next_id")[0];
      const Drafted got = draft_behind(*engine, **drafter, ids, next, 16, head.num_drafts);
      const auto wanted = golden_values<int32_t>(*golden, name + "draft_ids");
      ASSERT_EQ(got.ids.size(), wanted.size());
      for (size_t k = 0; k < wanted.size(); ++k) num_equal += got.ids[k] == wanted[k];
      num_ids += wanted.size();
      int32_t num_missing = 0;
      EXPECT_LE(worst_draft_logit(*golden, name, head.method == SpecMethod::kDflash,
                                  (*drafter)->config().draft_vocab, got, &num_missing),
                0.6);
      EXPECT_EQ(num_missing, 0);
    }
    std::printf("up to %s: %zu of %zu ids equal\n", head.folder, num_equal, num_ids);
  }
  EXPECT_GE(10 * num_equal, 9 * num_ids);
}

TEST(ParallelServiceCudaTest, AfterAFaultOfARankTheServiceSaysWhatItWas) {
  expect_a_fault_ends_requests(options_of({"nano-a", 2}));
}

}  // namespace
}  // namespace moxie
