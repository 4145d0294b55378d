// The engine against itself: however prompts are cut and mixed with others, the logits are the
// same.
#include "engine/engine.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/testing/paths.h"
#include "engine/testing/loop_session.h"
#include "engine/testing/stand_in_drafter.h"
#include "engine/testing/tokens.h"
#include "engine/tokenizer_source.h"

namespace moxie {
namespace {

const std::string kNano = test_data() + "/goldens/nano-a";

std::unique_ptr<Engine> open(EngineOptions options) {
  options.model = options.model == "embedded" ? kNano : options.model;
  options.show_progress = false;
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

// Logits after the last token of `ids`, alone, in one launch.
std::vector<float> alone(Engine& engine, const std::vector<int32_t>& ids) {
  const SeqId seq = engine.kv().add_sequence();
  const Chunk chunk{seq, ids, Logits::kLast};
  const auto logits = engine.step({&chunk, 1});
  CHECK(logits.has_value(), logits ? "" : logits.error().message());
  std::vector<float> row(*logits, *logits + engine.config().vocab);
  engine.kv().free_sequence(seq);
  return row;
}

double difference(const float* a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

TEST(EngineTest, ATileThatNoRowTakesIsAnError) {
  for (const auto& [tile, why] : {std::pair{"256x64", "no row of this device has the tile 256x64"},
                                  {"128x64", "no row of this device has the tile 128x64"},
                                  {"256x63", "auto, 128x16, 128x32"}}) {
    auto engine = Engine::load({.model = kNano,
                                .device = "cpu",
                                .tile = tile,
                                .max_model_len = 64,
                                .show_progress = false});
    ASSERT_FALSE(engine.has_value()) << tile;
    EXPECT_NE(engine.error().message().find(why), std::string::npos) << engine.error().message();
    EXPECT_NE(engine.error().message().find("--tile"), std::string::npos);
  }
}

TEST(EngineTest, ALimitOfTheArchitectureIsForGpus) {
  const std::pair<const char*, const char*> cases[] = {{"sm_80", "GPU"}, {"sm_75", "sm_80"}};
  for (const auto& [limit, said] : cases) {
    EngineOptions options{.model = kNano, .device = "cpu", .show_progress = false};
    options.arch_limit = limit;
    const auto engine = Engine::load(options);
    ASSERT_FALSE(engine.has_value()) << limit;
    EXPECT_NE(engine.error().message().find("--arch-limit"), std::string::npos);
    EXPECT_NE(engine.error().message().find(said), std::string::npos) << engine.error().message();
  }
}

TEST(EngineTest, ActivationsAreThoseAskedForOrAnError) {
  const auto load = [](const char* activation) {
    return Engine::load({.model = kNano,
                         .device = "cpu",
                         .activation = activation,
                         .max_model_len = 64,
                         .show_progress = false});
  };
  const auto unknown = load("int9");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message().find("int8"), std::string::npos) << unknown.error().message();
  EXPECT_NE(unknown.error().message().find("--activation"), std::string::npos);
  for (const char* activation : {"mxfp8", "mxfp6", "mxfp6_e3m2", "mxfp4"}) {
    auto engine = load(activation);
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    alone(**engine, {1, 2, 3});
    for (const auto& count : (*engine)->kernels().counts())
      EXPECT_EQ(count.name.find("_mx_") != std::string::npos, count.op == &Op<ExpertsParams>::info)
          << count.name;
  }
  const bool can_int8 = (cpu_features() & kInt8Features) != 0;
  for (const bool is_int8 : {false, true}) {
    auto engine = load(is_int8 ? "int8" : "auto");
    ASSERT_EQ(engine.has_value(), can_int8 || !is_int8);
    if (!engine.has_value()) continue;
    alone(**engine, {1, 2, 3});
    int num_rows = 0;
    for (const auto& count : (*engine)->kernels().counts()) {
      if (count.op != &Op<ExpertsParams>::info) continue;
      ++num_rows;
      EXPECT_EQ(count.name.find("_i8_") != std::string::npos, is_int8) << count.name;
    }
    EXPECT_GT(num_rows, 0);
  }
}

TEST(EngineTest, TapsHandOutWhatTheChunksLeave) {
  const std::vector<int32_t> ids = tokens(40, 3), taps = {3, 0, 4};
  const auto tapped = [&](size_t chunk) {
    auto engine = open({.model = kNano,
                        .kernels = {"all=reference"},
                        .max_model_len = 64,
                        .max_batch_tokens = 64,
                        .taps = taps});
    const auto hidden = static_cast<size_t>(engine->config().hidden);
    const SeqId seq = engine->kv().add_sequence();
    std::vector<std::vector<float>> x(taps.size());
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const size_t count = std::min(chunk, ids.size() - at);
      const Chunk part{seq, std::span(ids).subspan(at, count), Logits::kNone};
      EXPECT_TRUE(engine->step({&part, 1}).has_value());
      for (size_t i = 0; i < taps.size(); ++i) {
        std::vector<float> of_part(count * hidden);
        EXPECT_TRUE(engine->read_tap(i, of_part).has_value());
        x[i].insert(x[i].end(), of_part.begin(), of_part.end());
      }
    }
    EXPECT_EQ(engine->kernels().counts().back().name, "tap_reference");
    return x;
  };
  const auto whole = tapped(ids.size());
  EXPECT_EQ(whole, tapped(1));
  EXPECT_EQ(whole, tapped(7));
  EXPECT_NE(whole[0], whole[1]);
  EXPECT_NE(whole[0], whole[2]);
}

TEST(EngineTest, AFewTokensAtATimeInAWideModelAgreeWithTheReference) {
  std::ifstream file(kNano + "/config.json");
  auto config = nlohmann::json::parse(file);
  config["hidden_size"] = 2112;
  const std::string path = testing::TempDir() + "moxie-wide.json";
  std::ofstream(path) << config;
  const std::vector<int32_t> ids = tokens(24, 5);
  EngineOptions options{
      .model = "synthetic:" + path, .device = "cpu", .threads = 3, .max_model_len = 64};
  auto engine = open(options);
  options.kernels = {"all=reference"};
  auto reference = open(options);
  const auto size = static_cast<size_t>(engine->config().vocab);
  const SeqId seq = engine->kv().add_sequence(), expected_seq = reference->kv().add_sequence();
  size_t done = 0;
  for (const size_t count : {1, 1, 2, 1, 3, 8, 1, 7}) {
    const auto piece = std::span(ids).subspan(done, count);
    const Chunk chunk{seq, piece, Logits::kLast},
        expected_chunk{expected_seq, piece, Logits::kLast};
    const auto logits = engine->step({&chunk, 1}), expected = reference->step({&expected_chunk, 1});
    ASSERT_TRUE(logits.has_value() && expected.has_value());
    double greatest = 0;
    for (size_t i = 0; i < size; ++i)
      greatest = std::max(greatest, std::fabs(double{(*expected)[i]}));
    // Activations are rounded to 2^-16, to 2^-8 in the launch of eight, and its keys stay.
    const double rounding = done < 8 ? 0x1p-12 : 0x1p-5;
    EXPECT_LT(difference(*logits, {*expected, *expected + size}), rounding * greatest)
        << count << " tokens from " << done << ", greatest " << greatest;
    done += count;
  }
  EXPECT_EQ(done, ids.size());
}

// Several prompts fed in random pieces, in random company, with sequences ending and beginning
// anew: each prompt's last logits must be those it has alone.
TEST(EngineTest, AnySplitAndAnyMixGivesTheSameLogits) {
  auto engine =
      open({.max_model_len = 96, .max_num_seqs = 4, .max_batch_tokens = 96, .max_logit_rows = 4});
  ::setenv("RC_PARAMS", "max_success=25", 0);  // each case is some dozens of forward passes
  const bool held = rc::check("ragged batches", [&] {
    struct Running {
      SeqId seq;
      std::vector<int32_t> ids;
      size_t done = 0;
    };
    std::vector<Running> running;
    int started = 0, finished = 0;
    uint32_t seed = *rc::gen::arbitrary<uint32_t>();
    while (finished < 3) {
      while (running.size() < 3 && started < 3) {
        const int32_t length = *rc::gen::inRange(1, 90);
        running.push_back({engine->kv().add_sequence(), tokens(length, seed++)});
        ++started;
      }
      std::vector<Chunk> chunks;
      std::vector<size_t> ends;
      size_t room = 96;
      for (size_t r = 0; r < running.size(); ++r) {
        Running& run = running[r];
        const size_t left = std::min(run.ids.size() - run.done, room);
        if (left == 0) continue;
        const auto count = static_cast<size_t>(*rc::gen::inRange(1, static_cast<int>(left) + 1));
        chunks.push_back({run.seq, std::span(run.ids).subspan(run.done, count), Logits::kLast});
        run.done += count;
        room -= count;
        ends.push_back(r);
      }
      const auto logits = engine->step(chunks);
      RC_ASSERT(logits.has_value());
      const std::vector<float> rows(*logits, *logits + chunks.size() * engine->config().vocab);
      engine->kv().check_integrity();
      for (size_t c = 0; c < chunks.size(); ++c) {
        const Running& run = running[ends[c]];
        const std::vector<int32_t> so_far(run.ids.begin(), run.ids.begin() + run.done);
        RC_ASSERT(difference(&rows[c * engine->config().vocab], alone(*engine, so_far)) < 1e-3);
      }
      std::erase_if(running, [&](const Running& run) {
        if (run.done < run.ids.size()) return false;
        engine->kv().free_sequence(run.seq);
        ++finished;
        return true;
      });
    }
    RC_ASSERT(engine->kv().num_free_full_pages() == engine->kv().num_full_pages());
    RC_ASSERT(engine->kv().num_free_window_pages() == engine->kv().num_window_pages());
  });
  EXPECT_TRUE(held);
}

TEST(EngineTest, TooManyTokensAreRefusedAndNothingIsLost) {
  auto engine = open({.max_model_len = 64, .max_num_seqs = 2, .max_batch_tokens = 64});
  const SeqId seq = engine->kv().add_sequence();
  const auto ids = tokens(65, 1);
  const Chunk long_chunk{seq, ids, Logits::kLast};
  EXPECT_FALSE(engine->step({&long_chunk, 1}).has_value());
  const std::vector<int32_t> bad = {1, 512};
  const Chunk bad_chunk{seq, bad, Logits::kLast};
  const auto refused = engine->step({&bad_chunk, 1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("512"), std::string::npos);
  EXPECT_EQ(engine->kv().num_tokens(seq), 0);
  engine->kv().check_integrity();
}

TEST(EngineTest, GenerationIsDeterministicByPromptAndSeed) {
  auto engine = open({.max_model_len = 128, .max_batch_tokens = 32});
  const auto prompt = tokens(50, 9);
  const auto draw = [&](uint64_t seed) {
    return engine->generate(prompt, {.seed = seed, .max_tokens = 20, .ignore_eos = true})->ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  EXPECT_EQ(draw(1).size(), 20u);
}

TEST(EngineTest, GenerationStopsWhereItIsTold) {
  auto engine = open({.max_model_len = 128});
  const auto prompt = tokens(10, 3);
  const SamplingOptions greedy{.temperature = 0, .max_tokens = 30, .ignore_eos = true};
  const auto all = engine->generate(prompt, greedy)->ids;
  auto stopping = greedy;
  stopping.stop_ids = {all[4]};
  const auto stopped = engine->generate(prompt, stopping);
  EXPECT_EQ(stopped->reason, FinishReason::kStop);
  EXPECT_EQ(stopped->ids.back(), all[4]);
  int seen = 0;
  const auto aborted =
      engine->generate(prompt, greedy, [&](const SampleAnswer&) { return ++seen < 3; });
  EXPECT_EQ(aborted->reason, FinishReason::kAborted);
  EXPECT_EQ(aborted->ids.size(), 3u);
  auto open_ended = greedy;
  open_ended.max_tokens = 0;  // to the end of the context
  EXPECT_EQ(engine->generate(prompt, open_ended)->ids.size(), 118u);
  EXPECT_EQ(engine->generate(prompt, open_ended)->reason, FinishReason::kLength);
  EXPECT_FALSE(engine->generate({}, greedy).has_value());
}

TEST(EngineTest, LogitBiasForcesAndForbids) {
  auto engine = open({.max_model_len = 64});
  const auto prompt = tokens(5, 4);
  const auto forced = engine->generate(
      prompt,
      {.temperature = 0, .logit_bias = {{77, 100.0f}}, .max_tokens = 3, .ignore_eos = true});
  EXPECT_EQ(forced->ids, (std::vector<int32_t>{77, 77, 77}));
}

TEST(EngineTest, LeastTokensAndAllowedIdsBindGenerationToo) {
  auto engine = open({.max_model_len = 64});
  const auto prompt = tokens(5, 4);
  const std::vector<int32_t> allowed = {40, 41, 42};
  SamplingOptions sampling{.seed = 3, .max_tokens = 20, .stop_ids = {41}, .allowed_ids = allowed};
  const auto early = engine->generate(prompt, sampling)->ids;
  EXPECT_EQ(early.back(), 41);
  ASSERT_LT(early.size(), 12u);
  sampling.min_tokens = 12;
  const auto late = engine->generate(prompt, sampling)->ids;
  EXPECT_GE(late.size(), 13u);
  for (size_t i = 0; i < late.size(); ++i) {
    EXPECT_EQ(std::count(allowed.begin(), allowed.end(), late[i]), 1);
    EXPECT_TRUE(i >= 12 || late[i] != 41) << i;
  }
  sampling.allowed_ids = {512};  // no id of the vocabulary
  EXPECT_FALSE(engine->generate(prompt, sampling).has_value());
}

TEST(EngineTest, HoweverAnAnswerIsDraftedItIsTheSame) {
  auto engine = open({.kernels = {"all=reference"}, .max_model_len = 128, .max_logit_rows = 5});
  const auto prompt = tokens(20, 4);
  for (const SamplingOptions& wish :
       {SamplingOptions{.temperature = 0}, SamplingOptions{.presence_penalty = 0.5f, .seed = 4},
        SamplingOptions{.top_k = 9, .num_logprobs = 2, .seed = 5}}) {
    SamplingOptions sampling = wish;
    sampling.max_tokens = 40;
    sampling.ignore_eos = true;
    const auto plain = engine->generate(prompt, sampling)->ids;
    auto whole = prompt;
    whole.insert(whole.end(), plain.begin(), plain.end());
    for (const auto manner : {StandInDrafter::Manner::kRight, StandInDrafter::Manner::kAnyOf}) {
      StandInDrafter drafter([&](RequestId) { return whole; }, engine->config().vocab, manner, 3);
      const Drafting drafting{.drafter = &drafter, .max_drafts = 4};
      engine->kernels().reset_counts();
      EXPECT_EQ(engine->generate(prompt, sampling, {}, drafting)->ids, plain);
      int64_t num_draws = 0;
      for (const auto& count : engine->kernels().counts()) {
        if (count.op == &Op<SampleParams>::info) num_draws += count.launches;
      }
      EXPECT_LT(num_draws, 40);
      if (manner == StandInDrafter::Manner::kRight) {
        EXPECT_EQ(num_draws, 1 + 8);
      }
      // Stopped by who reads it, in the middle of what a step has drawn.
      int seen = 0;
      StandInDrafter again([&](RequestId) { return whole; }, engine->config().vocab, manner, 9);
      const auto stopped =
          engine->generate(prompt, sampling, [&](const SampleAnswer&) { return ++seen < 7; },
                           {.drafter = &again, .max_drafts = 4});
      EXPECT_EQ(stopped->reason, FinishReason::kAborted);
      EXPECT_EQ(stopped->ids, std::vector<int32_t>(plain.begin(), plain.begin() + 7));
      engine->kv().check_integrity();
      EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
      EXPECT_EQ(engine->kv().num_free_window_pages(), engine->kv().num_window_pages());
    }
  }
}

TEST(EngineTest, ACacheWithoutPagesIsAnErrorAndNotTheEnd) {
  auto engine = open({.max_model_len = 128});
  const SeqId other = engine->kv().add_sequence();  // someone else holds a part of the pages
  const SamplingOptions greedy{.temperature = 0, .max_tokens = 100, .ignore_eos = true};
  ASSERT_TRUE(engine->kv().append(other, 64));
  for (const int32_t num_prompt : {20, 90}) {
    const auto refused = engine->generate(tokens(num_prompt, 6), greedy);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message().find("no free pages"), std::string::npos);
  }
  engine->kv().free_sequence(other);
  engine->kv().check_integrity();
  EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
  EXPECT_EQ(engine->generate(tokens(20, 6), greedy)->ids.size(), 100u);
}

TEST(DecodeLoopTest, DrawsWhatGenerateDrawsForEveryNumberOfStreams) {
  auto engine =
      open({.max_model_len = 256, .max_num_seqs = 8, .max_batch_tokens = 64, .max_logit_rows = 8});
  constexpr int32_t kTokens = 150;  // the window gives pages back
  std::vector<std::vector<int32_t>> prompts, expected;
  const auto request_of = [](size_t i) {
    return SampleRequest{
        .temperature = i % 2 == 0 ? 0.0f : 1.0f, .num_logprobs = i % 3 == 2 ? 2 : -1, .seed = i};
  };
  for (size_t i = 0; i < 8; ++i) {
    prompts.push_back(tokens(static_cast<int32_t>(14 + 7 * i), static_cast<uint32_t>(40 + i)));
    const SamplingOptions sampling{.temperature = request_of(i).temperature,
                                   .num_logprobs = request_of(i).num_logprobs,
                                   .seed = i,
                                   .max_tokens = kTokens,
                                   .ignore_eos = true};
    expected.push_back(engine->generate(prompts.back(), sampling)->ids);
  }
  for (size_t num_streams = 1; num_streams <= 8; ++num_streams) {
    LoopSession session(*engine);
    for (size_t i = 0; i < num_streams; ++i) session.add(prompts[i], request_of(i));
    // Twice, so that a session goes on where another ended, and what was drawn beyond is dropped.
    auto drawn = session.run(50);
    EXPECT_EQ(engine->decode_loop().num_in_flight(), 0);
    const auto more = session.run(kTokens - 50);
    for (size_t i = 0; i < num_streams; ++i) {
      drawn[i].insert(drawn[i].end(), more[i].begin(), more[i].end());
      EXPECT_EQ(drawn[i], expected[i]) << i << " of " << num_streams;
      EXPECT_EQ(engine->kv().num_tokens(session.seq(i)),
                static_cast<int32_t>(prompts[i].size()) - 1 + kTokens);
    }
  }
}

TEST(DecodeLoopTest, GivenTokensAreRunInPlaceOfDrawnOnes) {
  auto engine = open({.max_model_len = 128});
  const auto ids = tokens(60, 6);
  std::vector<int32_t> best;  // after each of the last 40 tokens
  for (size_t n = 20; n < ids.size(); ++n) {
    const auto row = alone(*engine, {ids.begin(), ids.begin() + static_cast<int64_t>(n)});
    best.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
  }
  LoopSession session(*engine);
  session.add(std::span(ids).first(20), {});
  EXPECT_EQ(session.run(best.size(), std::span(ids).subspan(20)).front(), best);
}

TEST(DecodeLoopTest, LogProbabilitiesComeWithTheTokens) {
  auto engine = open({.max_model_len = 128});
  const auto prompt = tokens(20, 9);
  SamplingOptions sampling{
      .temperature = 0, .num_logprobs = 3, .max_tokens = 6, .ignore_eos = true};
  std::vector<SampleAnswer> expected;
  ASSERT_TRUE(engine->generate(prompt, sampling, [&](const SampleAnswer& answer) {
    expected.push_back(answer);
    return true;
  }));
  LoopSession session(*engine);
  session.add(prompt, {.num_logprobs = 3});
  for (size_t n = 0; n < expected.size(); ++n) {
    ASSERT_TRUE((n == 0 ? session.begin() : session.launch()).has_value());
    const auto answers = session.next();
    ASSERT_TRUE(answers.has_value());
    EXPECT_EQ(answers->front().token, expected[n].token);
    EXPECT_NEAR(answers->front().logprob, expected[n].logprob, 1e-4);
    EXPECT_EQ(answers->front().top_ids[2], expected[n].top_ids[2]);
  }
}

TEST(PlanTest, AutoContextShrinksToWhatFits) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-20b");
  ASSERT_TRUE(checkpoint.has_value());
  const KernelChooser kernels(DeviceKind::kCpu, cpu_features(), {});
  const MemoryPlan roomy = plan_memory(**checkpoint, {}, uint64_t{64} << 30, kernels);
  EXPECT_TRUE(roomy.fits);
  EXPECT_EQ(roomy.max_model_len, kDefaultContext);
  const MemoryPlan tight =
      plan_memory(**checkpoint, {}, roomy.total_bytes - (uint64_t{200} << 20), kernels);
  EXPECT_TRUE(tight.fits);
  EXPECT_LT(tight.max_model_len, kDefaultContext);
  const MemoryPlan none = plan_memory(**checkpoint, {}, uint64_t{4} << 30, kernels);
  EXPECT_FALSE(none.fits);
  EXPECT_FALSE(none.advice.empty());
  uint64_t sum = 0;
  for (const PlanPart& part : roomy.parts) sum += part.bytes;
  EXPECT_EQ(sum, roomy.total_bytes);
}

// The bytes of a decode token that the specification derives for both models, in GB.
TEST(PlanTest, DecodeBytesAreThePublishedOnes) {
  const auto gigabytes = [](const std::string& model, Mxfp4Layers layers) {
    auto checkpoint = open_checkpoint(model);
    const ModelWeights layout = (*checkpoint)->layout({.mxfp4_layers = layers});
    return decode_work((*checkpoint)->config(), layout, DType::kBF16, 0, 1).bytes / 1e9;
  };
  const Mxfp4Layers all{.qkv = true, .o = true, .lm_head = true};
  EXPECT_NEAR(gigabytes("synthetic:gpt-oss-120b", {}), 5.00, 0.03);
  EXPECT_NEAR(gigabytes("synthetic:gpt-oss-120b", all), 2.75, 0.03);
  EXPECT_NEAR(gigabytes("synthetic:gpt-oss-20b", {}), 3.71, 0.03);
  EXPECT_NEAR(gigabytes("synthetic:gpt-oss-20b", all), 1.92, 0.03);
}

TEST(PlanTest, DistinctExpertsFollowTheClosedForm) {
  EXPECT_DOUBLE_EQ(expected_distinct_experts(128, 4, 1), 4.0);
  EXPECT_NEAR(expected_distinct_experts(128, 4, 8), 28.7, 0.1);
  EXPECT_NEAR(expected_distinct_experts(32, 4, 64), 32.0, 0.1);
}

}  // namespace
}  // namespace moxie
