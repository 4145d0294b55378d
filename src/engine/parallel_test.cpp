// Several ranks against one: the same logits but for the order of sums, the same text, whatever
// happens beside a request; and what is refused.
#include "engine/parallel.h"

#include <gtest/gtest.h>

#include "core/testing/paths.h"
#include "engine/engine.h"
#include "engine/service.h"
#include "engine/testing/ranks.h"
#include "engine/testing/tokens.h"

namespace moxie {
namespace {

struct Case {
  std::string model;
  int ranks;
  bool splits_experts;
  const char* kernels;
  double most_kl = 1e-9;
};

// In F32 throughout; rows of experts that a machine prefers may round activations to 16 bits.
constexpr const char* kF32 = "experts=experts_any_f32_gemv_portable";
constexpr double kRoundedKl = 1e-7;
constexpr const char* kReference = "all=reference";

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ", " << c.ranks << " ranks" << (c.splits_experts ? " of experts" : "") << ", "
       << c.kernels;
}

EngineOptions options_of(const Case& c) {
  EngineOptions options{
      .model = c.model == "embedded" ? c.model : test_data() + "/goldens/" + c.model,
      .device = "cpu",
      .threads = 2,
      .kv_dtype = "f32",
      .max_model_len = 256,
      .tensor_parallel = c.ranks,
      .expert_parallel = c.splits_experts,
      .show_progress = false};
  if (std::string_view(c.kernels) != "auto") options.kernels = {c.kernels};
  return options;
}

std::unique_ptr<Engine> open(const EngineOptions& options) {
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

// The logits of all tokens, in launches of `chunk` tokens.
std::vector<float> logits_of(Engine& engine, std::span<const int32_t> ids, size_t chunk) {
  std::vector<float> all;
  const SeqId seq = engine.kv().add_sequence();
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const Chunk part{seq, ids.subspan(at, std::min(chunk, ids.size() - at)), Logits::kAll};
    const auto logits = engine.step({&part, 1});
    CHECK(logits.has_value(), logits ? "" : logits.error().message());
    all.insert(all.end(), *logits, *logits + part.tokens.size() * vocab);
  }
  engine.kv().free_sequence(seq);
  return all;
}

// The GPU of a process, "the CPU", or the error.
std::string gpu_of(const char* device, int32_t local_rank, int32_t local_size, int num_gpus) {
  const auto gpu = gpu_of_process(
      device, {.size = 8, .local_rank = local_rank, .local_size = local_size}, num_gpus);
  if (!gpu) return gpu.error().message();
  return *gpu ? std::to_string(**gpu) : "the CPU";
}

TEST(GpuOfAProcess, IsTheOneWithItsNumberOrTheOneThatIsNamed) {
  for (const char* device : {"auto", "cuda"}) {
    EXPECT_EQ(gpu_of(device, 0, 2, 2), "0");
    EXPECT_EQ(gpu_of(device, 1, 2, 2), "1");
    EXPECT_EQ(gpu_of(device, 0, 1, 4), "0");
  }
  EXPECT_EQ(gpu_of("cuda:3", 1, 2, 1), "3");  // each may see its own GPUs only
  EXPECT_EQ(gpu_of("cuda:2,5", 1, 2, 8), "5");
  EXPECT_EQ(gpu_of("cpu", 1, 2, 2), "the CPU");
  EXPECT_EQ(gpu_of("auto", 1, 2, 0), "the CPU");
  EXPECT_EQ(gpu_of("cuda", 1, 2, 0), "1");  // opening it says why there is none
}

TEST(GpuOfAProcess, MoreRanksThanGpusAreRefused) {
  const auto expect_in = [](const std::string& error, const char* text) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  expect_in(gpu_of("cuda", 0, 2, 1), "2 ranks on this host, 1 GPU (");
  expect_in(gpu_of("auto", 3, 4, 2), "4 ranks on this host, 2 GPUs (");
  expect_in(gpu_of("cuda:0,1", 0, 3, 8), "3 ranks on this host, 2 GPUs (");
  expect_in(gpu_of("cuda:1,1", 0, 2, 8), "cuda:1,1 names GPU 1 twice");
  expect_in(gpu_of("gpu", 0, 2, 8), "unknown device 'gpu'");
}

class ParallelTest : public testing::TestWithParam<Case> {};

TEST_P(ParallelTest, TheLogitsAreThoseOfOneRank) {
  const Case& c = GetParam();
  Case alone = c;
  alone.ranks = 1, alone.splits_experts = false;
  EngineOptions options = options_of(alone);
  options.max_logit_rows = 64;
  auto one = open(options);
  options = options_of(c);
  options.max_logit_rows = 64;
  auto several = open(options);
  EXPECT_EQ(several->num_ranks(), c.ranks);
  auto ids = tokens(150, 7);
  for (int32_t& id : ids) id %= one->config().vocab;
  const auto vocab = static_cast<size_t>(one->config().vocab);
  for (const size_t chunk : {64, 1, 9}) {
    const auto expected = logits_of(*one, ids, chunk), found = logits_of(*several, ids, chunk);
    EXPECT_LE(greatest_kl(expected, found, vocab), c.most_kl) << "chunks of " << chunk;
  }
  // Ranks ran their own rows.
  bool reduces = false;
  for (const auto& count : several->kernels().counts())
    reduces |= std::string_view(count.op->name) == "reduce" && count.launches > 0;
  EXPECT_TRUE(reduces);
}

TEST_P(ParallelTest, ASequenceThatIsForkedGoesOnAlike) {
  const Case& c = GetParam();
  Case alone = c;
  alone.ranks = 1, alone.splits_experts = false;
  std::vector<std::vector<float>> found;
  for (const Case& now : {alone, c}) {
    EngineOptions options = options_of(now);
    options.max_num_seqs = 4;
    auto engine = open(options);
    const SeqId seq = engine->kv().add_sequence();
    auto ids = tokens(21, 3);  // the last page is shared, and not full
    for (int32_t& id : ids) id %= engine->config().vocab;
    const Chunk first{seq, ids, Logits::kLast};
    ASSERT_TRUE(engine->step({&first, 1}).has_value());
    const auto fork = engine->kv().fork(seq);
    ASSERT_TRUE(fork.has_value());
    for (const SeqId next : {*fork, seq}) {
      const std::vector<int32_t> more = {next == seq ? 5 : 6, 7};
      const Chunk chunk{next, more, Logits::kLast};
      const auto logits = engine->step({&chunk, 1});
      ASSERT_TRUE(logits.has_value());
      found.emplace_back(*logits, *logits + engine->config().vocab);
    }
  }
  for (const size_t i : {0, 1}) {
    EXPECT_LE(greatest_kl(found[i], found[i + 2], found[i].size()), c.most_kl);
    EXPECT_GT(greatest_kl(found[i], found[1 - i], found[i].size()), 1e-6) << "they differ";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, ParallelTest,
    testing::Values(Case{"nano-a", 2, false, kF32}, Case{"nano-a", 4, false, kF32},
                    Case{"nano-a", 2, true, kF32}, Case{"nano-a", 4, true, kF32},
                    Case{"nano-a", 4, false, kReference}, Case{"nano-a", 4, true, kReference},
                    Case{"nano-b", 4, false, kF32}, Case{"nano-b", 2, true, "auto", kRoundedKl},
                    Case{"embedded", 2, false, kF32}, Case{"embedded", 4, true, kF32},
                    Case{"embedded", 8, false, "auto", kRoundedKl}));

void expect_the_draws_of_one_rank(const Case& c, const SpeculationOptions& speculation) {
  EngineOptions several = options_of(c);
  several.max_model_len = 96;
  several.max_batch_tokens = 24;
  EngineOptions one = several;
  one.tensor_parallel = 1;
  one.expert_parallel = false;
  several.speculation = speculation;
  expect_the_same_draws(one, several);
}

// With prefixes in the cache, too few pages for all (so that requests give way and come again),
// others that are cancelled, and drafts.
TEST(ParallelServiceTest, WhateverHappensBesideItARequestDrawsWhatOneRankDraws) {
  for (const auto& [c, method] : {std::pair{Case{"nano-a", 2, false, kReference}, SpecMethod::kOff},
                                  {{"nano-a", 2, true, kReference}, SpecMethod::kNgram},
                                  {{"nano-a", 4, false, kReference}, SpecMethod::kNgram}}) {
    SCOPED_TRACE(testing::PrintToString(c) + ", drafts " + spec_method_name(method));
    SpeculationOptions speculation{.method = method, .is_adaptive = false};
    speculation.lookup_min = 1, speculation.lookup_max = 4;
    expect_the_draws_of_one_rank(c, speculation);
  }
}

// The embedded heads multiply by the target's output matrix; the other has one of its own, and
// fewer ids.
TEST(ParallelServiceTest, DraftHeadsOnTheFirstRankChangeNoText) {
  for (const auto& [c, method, head] :
       {std::tuple{Case{"embedded", 2, false, kF32}, SpecMethod::kEagle3, ""},
        {Case{"embedded", 4, false, kF32}, SpecMethod::kDflash, ""},
        {Case{"embedded", 2, true, kF32}, SpecMethod::kDflash, ""},
        {Case{"embedded", 4, true, kF32}, SpecMethod::kEagle3, ""},
        {Case{"nano-a", 2, false, kReference}, SpecMethod::kEagle3, "spec-eagle3-nano-a"}}) {
    SCOPED_TRACE(testing::PrintToString(c) + ", drafts " + spec_method_name(method));
    SpeculationOptions speculation{.method = method, .is_adaptive = false};
    if (*head != '\0') speculation.head = test_data() + "/goldens/" + head;
    expect_the_draws_of_one_rank(c, speculation);
  }
}

// 503 from then on: no request waits for a rank that is gone.
TEST(ParallelServiceTest, AfterAFaultOfARankTheServiceSaysWhatItWas) {
  EngineOptions options = options_of({"nano-a", 2, false, "auto"});
  expect_a_fault_ends_requests(options);
}

TEST(ParallelRefusals, NameTheSwitchAndTheNumber) {
  const auto refused = [](const EngineOptions& options) {
    auto engine = Engine::load(options);
    return engine ? std::string() : engine.error().message();
  };
  EngineOptions options = options_of({"nano-a", 3, false, "auto"});
  EXPECT_NE(refused(options).find("8 heads do not divide among 3 ranks"), std::string::npos);
  EXPECT_NE(refused(options).find("--tensor-parallel-size"), std::string::npos);
  options = options_of({"nano-a", 8, false, "auto"});  // 160 columns: five blocks
  EXPECT_NE(refused(options).find("160 columns of an expert do not divide among 8"),
            std::string::npos);
  options = options_of({"nano-a", 1, true, "auto"});
  EXPECT_NE(refused(options).find("--enable-expert-parallel"), std::string::npos);
  options = options_of({"nano-a", 2, false, "auto"});
  options.device = "cuda:0";
  EXPECT_NE(refused(options).find("cuda:0 names 1 GPU, there are 2 ranks"), std::string::npos);
  for (const char* device : {"gpu", "cuda:", "cuda:0,", "cuda:x", "cuda:0;1", "cuda:-1"}) {
    options.device = device;
    EXPECT_NE(refused(options).find("unknown device"), std::string::npos) << device;
  }
  options = options_of({"nano-a", 2, false, "auto"});
  options.mirrors_ranks = true;
  EXPECT_NE(refused(options).find("--mirror-ranks: for ranks on GPUs only"), std::string::npos);
  options.device = "cuda:0,1";
  EXPECT_NE(refused(options).find("cuda:0,1 names several GPUs"), std::string::npos);
  options = options_of({"nano-a", 1, false, "auto"});
  options.mirrors_ranks = true;
  EXPECT_NE(refused(options).find("there is one rank"), std::string::npos);
}

TEST(CoresOfRanks, ShareThemOrAreOneEach) {
  const std::vector<UsableCore> four = {{0, 0}, {2, 0}, {1, 1}, {3, 1}};
  EXPECT_EQ(cores_of_rank(four, 0, 2), (std::vector<UsableCore>{{0, 0}, {2, 0}}));
  EXPECT_EQ(cores_of_rank(four, 1, 2), (std::vector<UsableCore>{{1, 1}, {3, 1}}));
  EXPECT_EQ(cores_of_rank(four, 2, 3), (std::vector<UsableCore>{{1, 1}, {3, 1}}));
  for (int32_t rank = 0; rank < 8; ++rank)
    EXPECT_EQ(cores_of_rank(four, rank, 8),
              (std::vector<UsableCore>{four[static_cast<size_t>(rank) / 2]}));
}

}  // namespace
}  // namespace moxie
