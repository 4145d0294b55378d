// Draft heads against other people's logits, and what a head may and may not change: no text, no
// draft by a chunk's size or a prefix found, and nothing at all if its files are damaged.
#include "engine/head_drafter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "core/testing/paths.h"
#include "engine/service.h"
#include "engine/testing/golden_heads.h"
#include "engine/testing/tokens.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";

EngineOptions options_for(const GoldenHead& head) {
  EngineOptions options = golden_head_options(kGoldens, head);
  options.device = "cpu";
  options.threads = 2;
  return options;
}

std::unique_ptr<Engine> open(const EngineOptions& options) {
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

class Goldens : public testing::TestWithParam<GoldenHead> {};

TEST_P(Goldens, AreWhatTheHeadComputes) {
  const GoldenHead& head = GetParam();
  auto golden = SafetensorsFile::open(kGoldens + head.folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value());
  for (const bool reference : {true, false}) {
    EngineOptions options = options_for(head);
    if (reference) options.kernels = {"all=reference"};
    options.kv_dtype = "f32";
    const auto engine = open(options);
    const auto drafter = HeadDrafter::create(*engine);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    const bool is_dflash = head.method == SpecMethod::kDflash;
    const int32_t vocab = (*drafter)->config().draft_vocab;
    for (const size_t chunk : {64, 16, 5}) {
      for (int i = 0; i < 4; ++i) {
        const std::string name = "case" + std::to_string(i) + ".";
        const auto ids = golden_values<int32_t>(*golden, name + "input_ids");
        const int32_t next = golden_values<int32_t>(*golden, name + "next_id")[0];
        const Drafted got = draft_behind(*engine, **drafter, ids, next, chunk, head.num_drafts);
        EXPECT_EQ(got.ids, golden_values<int32_t>(*golden, name + "draft_ids")) << i;
        int32_t num_missing = 0;
        EXPECT_LE(worst_draft_logit(*golden, name, is_dflash, vocab, got, &num_missing), 2e-3)
            << head.folder << " case " << i << " chunk " << chunk;
        EXPECT_EQ(num_missing, 0);
      }
    }
  }
}

// The features are the first rank's x, and the target's output matrix is whole there.
TEST_P(Goldens, AreWhatTheHeadComputesOnTheFirstOfSeveralRanks) {
  const GoldenHead& head = GetParam();
  auto golden = SafetensorsFile::open(kGoldens + head.folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value());
  for (const int ranks : {2, 4}) {
    EngineOptions options = options_for(head);
    options.kv_dtype = "f32";
    options.tensor_parallel = ranks;
    const auto engine = open(options);
    const auto drafter = HeadDrafter::create(*engine);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    for (int i = 0; i < 4; ++i) {
      const std::string name = "case" + std::to_string(i) + ".";
      const auto ids = golden_values<int32_t>(*golden, name + "input_ids");
      const int32_t next = golden_values<int32_t>(*golden, name + "next_id")[0];
      const Drafted got = draft_behind(*engine, **drafter, ids, next, 16, head.num_drafts);
      EXPECT_EQ(got.ids, golden_values<int32_t>(*golden, name + "draft_ids")) << i;
      int32_t num_missing = 0;
      EXPECT_LE(worst_draft_logit(*golden, name, head.method == SpecMethod::kDflash,
                                  (*drafter)->config().draft_vocab, got, &num_missing),
                2e-3)
          << ranks << " ranks, case " << i;
      EXPECT_EQ(num_missing, 0);
    }
  }
}

// Greedy or seeded, one sequence: the text is that without a head.
TEST_P(Goldens, ChangeNoText) {
  const GoldenHead& head = GetParam();
  EngineOptions plain_options = options_for(head);
  plain_options.speculation = {};
  const auto plain = open(plain_options);
  for (const char* dtype : {"bf16", "mxfp4"}) {
    EngineOptions options = options_for(head);
    options.speculation.dtype = dtype;
    const auto engine = open(options);
    int32_t max_drafts = 0;
    auto drafter = make_drafter(*engine, &max_drafts);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    EXPECT_EQ(max_drafts, head.num_drafts);
    for (const float temperature : {0.0f, 1.0f}) {
      const SamplingOptions sampling{
          .temperature = temperature, .seed = 7, .max_tokens = 60, .ignore_eos = true};
      const auto prompt = tokens(70, 3);
      const auto wanted = plain->generate(prompt, sampling);
      const auto got = engine->generate(prompt, sampling, {},
                                        {.drafter = drafter->get(), .max_drafts = max_drafts});
      ASSERT_TRUE(wanted.has_value() && got.has_value());
      EXPECT_EQ(got->ids, wanted->ids) << dtype << " " << temperature;
    }
  }
}

// What a drafter proposed, by request.
class Recorder : public Drafter {
 public:
  explicit Recorder(Drafter& drafter) : drafter_(drafter) {}
  bool shares_device() const override { return drafter_.shares_device(); }
  void propose(const Ask& ask) override { propose_all({&ask, 1}); }
  void propose_all(std::span<const Ask> asks) override {
    drafter_.propose_all(asks);
    for (const Ask& ask : asks) drafts[ask.request].push_back(*ask.drafts);
  }
  void observe(RequestId request, std::span<const int32_t> tokens, int32_t accepted) override {
    drafter_.observe(request, tokens, accepted);
  }
  void forget(RequestId request) override { drafter_.forget(request); }
  std::map<RequestId, std::vector<std::vector<int32_t>>> drafts;

 private:
  Drafter& drafter_;
};

// A prompt found in the prefix cache is drafted behind as one that was computed, and so are prompts
// cut into chunks beside others.
TEST_P(Goldens, DraftTheSameBehindACachedPrefixAndBesideOthers) {
  EngineOptions options = options_for(GetParam());
  options.max_num_seqs = 6;
  options.max_batch_tokens = 48;
  options.kv_dtype = "f32";
  const auto engine = open(options);
  int32_t max_drafts = 0;
  auto drafter = make_drafter(*engine, &max_drafts);
  ASSERT_TRUE(drafter.has_value());
  Recorder recorder(**drafter);
  auto service =
      Service::create(*engine, {.drafting = {.drafter = &recorder, .max_drafts = max_drafts}});
  struct Answer {
    std::vector<int32_t> ids;
    std::promise<Finish> end;
  };
  const auto submit = [&](size_t prompt, Answer* answer) {
    ServiceRequest request{.prompt = tokens(90, static_cast<uint32_t>(prompt)),
                           .sampling = {.temperature = 0, .max_tokens = 20, .ignore_eos = true}};
    request.sink = [answer](const RequestUpdate& update) {
      for (const SampleAnswer& token : update.tokens) answer->ids.push_back(token.token);
      if (update.finish != nullptr) answer->end.set_value(*update.finish);
    };
    const auto id = service->submit(std::move(request));
    CHECK(id.has_value());
    return *id;
  };
  Answer first;
  const RequestId alone = submit(1, &first);
  first.end.get_future().wait();
  std::vector<std::unique_ptr<Answer>> others;
  std::vector<RequestId> again;
  for (size_t i = 0; i < 6; ++i) {
    others.push_back(std::make_unique<Answer>());
    const RequestId id = submit(i % 3 == 0 ? 1 : 10 + i, others.back().get());
    if (i % 3 == 0) again.push_back(id);
  }
  for (size_t i = 0; i < others.size(); ++i) {
    const Finish end = others[i]->end.get_future().get();
    if (i % 3 != 0) continue;
    EXPECT_EQ(others[i]->ids, first.ids);
    EXPECT_GT(end.cache.hit_tokens, 0);
  }
  service->stop();
  ASSERT_FALSE(recorder.drafts.at(alone).empty());
  for (const RequestId id : again) {
    // Beside others a launch may leave less room: the drafts are then fewer.
    for (size_t i = 0; i < std::min(recorder.drafts[id].size(), recorder.drafts[alone].size());
         ++i) {
      const auto& a = recorder.drafts[alone][i];
      const auto& b = recorder.drafts[id][i];
      const size_t n = std::min(a.size(), b.size());
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()))
          << "round " << i;
    }
  }
  EXPECT_EQ(engine->kv().num_free_full_pages(), engine->kv().num_full_pages());
  engine->kv().check_integrity();
}

// Records what the head proposes, by the number of tokens before it, and proposes the truth
// instead, right up to a place that changes.
class Spoiler : public Drafter {
 public:
  Spoiler(Drafter& drafter, std::vector<int32_t> truth, bool is_right)
      : drafter_(drafter), truth_(std::move(truth)), is_right_(is_right) {}
  bool shares_device() const override { return drafter_.shares_device(); }
  void propose(const Ask& ask) override {
    drafter_.propose(ask);
    const size_t n = ask.tokens.size();
    proposed[n] = *ask.drafts;
    if (!is_right_) return ask.drafts->clear();
    ++num_rounds_;
    for (size_t i = 0; i < ask.drafts->size(); ++i) {
      if (n + i >= truth_.size()) return ask.drafts->resize(i);
      const bool is_spoiled = i >= num_rounds_ % (ask.drafts->size() + 1);
      (*ask.drafts)[i] = is_spoiled ? (truth_[n + i] + 1) % 500 : truth_[n + i];
    }
  }
  void observe(RequestId, std::span<const int32_t>, int32_t accepted) override {
    num_accepted += accepted;
  }
  void forget(RequestId) override {}
  std::map<size_t, std::vector<int32_t>> proposed;
  int64_t num_accepted = 0;

 private:
  Drafter& drafter_;
  const std::vector<int32_t> truth_;
  const bool is_right_;
  size_t num_rounds_ = 0;
};

// What a head proposes depends on the text before alone: not on how many of its drafts were
// accepted on the way there.
TEST_P(Goldens, ProposeTheSameHoweverManyDraftsWereAccepted) {
  EngineOptions options = options_for(GetParam());
  options.kv_dtype = "f32";
  const auto engine = open(options);
  int32_t max_drafts = 0;
  auto drafter = make_drafter(*engine, &max_drafts);
  ASSERT_TRUE(drafter.has_value());
  const auto prompt = tokens(61, 9);
  const SamplingOptions sampling{.temperature = 0, .max_tokens = 80, .ignore_eos = true};
  Spoiler one_by_one(**drafter, {}, false);
  const auto plain =
      engine->generate(prompt, sampling, {}, {.drafter = &one_by_one, .max_drafts = max_drafts});
  ASSERT_TRUE(plain.has_value());
  auto truth = prompt;
  truth.insert(truth.end(), plain->ids.begin(), plain->ids.end());
  Spoiler spoiler(**drafter, truth, true);
  const auto got =
      engine->generate(prompt, sampling, {}, {.drafter = &spoiler, .max_drafts = max_drafts});
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->ids, plain->ids);
  EXPECT_GT(spoiler.num_accepted, 20);
  EXPECT_LT(spoiler.proposed.size(), one_by_one.proposed.size());
  for (const auto& [n, drafts] : spoiler.proposed) {
    const auto& alone = one_by_one.proposed.at(n);
    const auto count = static_cast<std::ptrdiff_t>(std::min(drafts.size(), alone.size()));
    EXPECT_TRUE(std::equal(drafts.begin(), drafts.begin() + count, alone.begin())) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, Goldens, testing::ValuesIn(kGoldenHeads), [](const auto& info) {
  std::string name = info.param.folder;
  std::erase(name, '-');
  return name;
});

// A copy of a golden head's folder that a test may damage.
class DamagedHead {
 public:
  explicit DamagedHead(const char* folder)
      : path_(fs::temp_directory_path() / ("moxie-head-" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(fs::path(kGoldens) / folder / name, path_ / name);
  }
  ~DamagedHead() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string weights() const { return (path_ / "model.safetensors").string(); }
  nlohmann::json config() const {
    std::ifstream file(path_ / "config.json");
    return nlohmann::json::parse(file);
  }
  void write(const nlohmann::json& config) const {
    std::ofstream(path_ / "config.json") << config.dump();
  }

 private:
  fs::path path_;
};

std::string refusal(const EngineOptions& options) {
  auto engine = Engine::load(options);
  if (!engine) return engine.error().message();
  auto drafter = HeadDrafter::create(**engine);
  return drafter ? "" : drafter.error().message();
}

TEST(DraftHeads, ThatDoNotFitAreRefusedWithTheReason) {
  using Json = nlohmann::json;
  struct Case {
    const char* why;
    std::function<void(const DamagedHead&, Json*)> damage;
  };
  const Case cases[] = {
      {"wide", [](const DamagedHead&, Json* c) { (*c)["hidden_size"] = 256; }},
      {"vocabulary", [](const DamagedHead&, Json* c) { (*c)["vocab_size"] = 600; }},
      {"layers", [](const DamagedHead&, Json* c) { (*c)["num_target_layers"] = 36; }},
      {"layer id",
       [](const DamagedHead&, Json* c) {
         (*c)["dflash_config"]["target_layer_ids"] = {1, 2, 9};
       }},
      {"mask_token_id",
       [](const DamagedHead&, Json* c) { (*c)["dflash_config"]["mask_token_id"] = 512; }},
      {"projector_type",
       [](const DamagedHead&, Json* c) { (*c)["dflash_config"]["projector_type"] = "mlp"; }},
      {"full_attention",
       [](const DamagedHead&, Json* c) {
         (*c)["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
         (*c)["sliding_window"] = 64;
       }},
      {"dspark", [](const DamagedHead&, Json* c) { (*c)["speculators_model_type"] = "dspark"; }},
      {"configuration says", [](const DamagedHead&, Json* c) { (*c)["intermediate_size"] = 208; }},
      {"no tensor layers.3", [](const DamagedHead&, Json* c) { (*c)["num_hidden_layers"] = 4; }},
      {"rope_type", [](const DamagedHead&, Json* c) { (*c)["rope_scaling"]["rope_type"] = "x"; }},
      {"block_size", [](const DamagedHead&, Json* c) { (*c)["block_size"] = -6; }},
      {"heads", [](const DamagedHead&, Json* c) { (*c)["num_key_value_heads"] = 5; }},
      {"no JSON object", [](const DamagedHead& head,
                            Json*) { std::ofstream(head.path() + "/config.json") << "[1, 2"; }},
      {"config.json",
       [](const DamagedHead& head, Json*) { fs::remove(head.path() + "/config.json"); }},
      {".safetensors", [](const DamagedHead& head, Json*) { fs::remove(head.weights()); }},
      {"", [](const DamagedHead& head,
              Json*) { fs::resize_file(head.weights(), fs::file_size(head.weights()) / 2); }},
  };
  for (const Case& c : cases) {
    const DamagedHead head("spec-dflash-nano-a");
    Json config = head.config();
    const Json before = config;
    c.damage(head, &config);
    if (config != before) head.write(config);
    EngineOptions options = options_for(kGoldenHeads[3]);
    options.speculation.head = head.path();
    const std::string why = refusal(options);
    EXPECT_FALSE(why.empty()) << c.why;
    EXPECT_NE(why.find(c.why), why.npos) << why;
  }
  EngineOptions options = options_for(kGoldenHeads[3]);
  options.speculation.method = SpecMethod::kEagle3;
  EXPECT_NE(refusal(options).find("this is a DFlash head"), std::string::npos);
  options.speculation.head = options.model;
  EXPECT_NE(refusal(options).find("no draft head that is known"), std::string::npos);
}

// What is drafted with the embedding in a file is what is drafted with a mask that has it.
TEST(DraftHeads, TakeTheEmbeddingOfTheirMaskFromAFile) {
  const GoldenHead& dflash = kGoldenHeads[3];
  const DamagedHead by_id(dflash.folder);
  const std::string by_file = by_id.path() + "/by_file";
  write_heads_with_other_masks(kGoldens, by_id.path(), by_file);
  const auto drafts_of = [&](const std::string& head) {
    EngineOptions options = options_for(dflash);
    options.kv_dtype = "f32";
    options.speculation.head = head;
    const auto engine = open(options);
    const auto drafter = HeadDrafter::create(*engine);
    CHECK(drafter.has_value(), drafter ? "" : drafter.error().message());
    return draft_behind(*engine, **drafter, tokens(40, 5), 77, 64, dflash.num_drafts);
  };
  const Drafted wanted = drafts_of(by_id.path());
  const Drafted got = drafts_of(by_file);
  EXPECT_FALSE(wanted.logits.empty());
  EXPECT_EQ(got.logits, wanted.logits);
  EXPECT_EQ(got.ids, wanted.ids);
  EXPECT_NE(got.logits, drafts_of(kGoldens + dflash.folder).logits);

  EngineOptions options = options_for(dflash);
  options.speculation.head = by_file;
  const std::string file = by_file + "/mask_embedding.pt";
  std::ofstream(file, std::ios::binary) << torch_bytes(std::vector<float>(191));
  EXPECT_NE(refusal(options).find("holds 191 values, the head is 192 wide"), std::string::npos);
  std::ofstream(file, std::ios::binary) << torch_bytes(std::vector<float>(193));
  EXPECT_NE(refusal(options).find("holds 193 values, more than 192"), std::string::npos);
  std::ofstream(file, std::ios::binary) << "no archive";
  EXPECT_NE(refusal(options).find("is no zip archive"), std::string::npos);
}

// Weights that are no numbers draft nonsense, and the text stays right.
TEST(DraftHeads, OfNansChangeNoText) {
  for (const GoldenHead& golden : kGoldenHeads) {
    const DamagedHead head(golden.folder);
    {
      std::fstream file(head.weights(), std::ios::in | std::ios::out | std::ios::binary);
      const std::vector<uint16_t> nans(200000, 0x7FC0);
      file.seekp(-400000, std::ios::end);
      file.write(reinterpret_cast<const char*>(nans.data()), 400000);
    }
    EngineOptions options = options_for(golden);
    options.speculation.head = head.path();
    const auto engine = open(options);
    int32_t max_drafts = 0;
    auto drafter = make_drafter(*engine, &max_drafts);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    const SamplingOptions sampling{.temperature = 0, .max_tokens = 30, .ignore_eos = true};
    const auto prompt = tokens(40, 5);
    const auto wanted = engine->generate(prompt, sampling);
    const auto got = engine->generate(prompt, sampling, {},
                                      {.drafter = drafter->get(), .max_drafts = max_drafts});
    ASSERT_TRUE(wanted.has_value() && got.has_value());
    EXPECT_EQ(got->ids, wanted->ids) << golden.folder;
  }
}

}  // namespace
}  // namespace moxie
