// Draft heads in GGUF draft what the heads that they were converted from draft. The files are
// written by the tests; no published one was read.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/testing/paths.h"
#include "engine/testing/golden_heads.h"
#include "model/testing/files.h"
#include "model/testing/gguf_heads.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";
// P-EAGLE has no form in GGUF.
constexpr GoldenHead kHeads[] = {kGoldenHeads[0], kGoldenHeads[1], kGoldenHeads[3]};

EngineOptions options_for(const GoldenHead& head, const std::string& path) {
  EngineOptions options = golden_head_options(kGoldens, head);
  options.device = "cpu";
  options.threads = 2;
  options.kv_dtype = "f32";
  options.speculation.head = path;
  return options;
}

// What the head drafts behind each prompt of the goldens.
std::vector<Drafted> drafts_of(const GoldenHead& head, const std::string& path, size_t num_cases,
                               DraftConfig* config = nullptr) {
  auto golden = SafetensorsFile::open(kGoldens + head.folder + "/goldens.safetensors");
  CHECK(golden.has_value(), head.folder);
  auto engine = Engine::load(options_for(head, path));
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  auto drafter = HeadDrafter::create(**engine);
  CHECK(drafter.has_value(), drafter ? "" : drafter.error().message());
  if (config != nullptr) *config = (*drafter)->config();
  std::vector<Drafted> all;
  for (size_t i = 0; i < num_cases; ++i) {
    const std::string name = "case" + std::to_string(i) + ".";
    all.push_back(
        draft_behind(**engine, **drafter, golden_values<int32_t>(*golden, name + "input_ids"),
                     golden_values<int32_t>(*golden, name + "next_id")[0], 64, head.num_drafts));
  }
  return all;
}

void expect_same(const std::vector<Drafted>& a, const std::vector<Drafted>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids) << i;
    EXPECT_FALSE(a[i].ids.empty());
    EXPECT_EQ(a[i].logits, b[i].logits) << i;
  }
}

void expect_same_config(const DraftConfig& a, const DraftConfig& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.boundaries, b.boundaries);
  EXPECT_EQ(a.takes_final_norm, b.takes_final_norm);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.intermediate, b.intermediate);
  EXPECT_EQ(a.num_layers, b.num_layers);
  EXPECT_EQ(a.num_heads, b.num_heads);
  EXPECT_EQ(a.num_kv_heads, b.num_kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab, b.vocab);
  EXPECT_EQ(a.draft_vocab, b.draft_vocab);
  EXPECT_EQ(a.rms_eps, b.rms_eps);
  EXPECT_EQ(a.norm_before_residual, b.norm_before_residual);
  EXPECT_EQ(a.norm_before_fc, b.norm_before_fc);
  EXPECT_EQ(a.fc_norm, b.fc_norm);
  EXPECT_EQ(a.norm_output, b.norm_output);
  EXPECT_EQ(a.windows, b.windows);
  EXPECT_EQ(a.block, b.block);
  EXPECT_EQ(a.mask_id, b.mask_id);
  EXPECT_EQ(a.num_drafts, b.num_drafts);
  EXPECT_EQ(a.rotary.inverse, b.rotary.inverse);
  EXPECT_EQ(a.rotary.concentration, b.rotary.concentration);
}

class GgufHeads : public testing::TestWithParam<GoldenHead> {
 protected:
  GgufHeads() : folder_(fresh_folder()) {}
  MemoryHead source() const { return MemoryHead::read(kGoldens + GetParam().folder); }
  std::string gguf(const MemoryHead& head, const MemoryHead::GgufOptions& options) const {
    const fs::path path = folder_ / "head.gguf";
    write(path, head.gguf(options));
    return path.string();
  }
  std::string folder(const MemoryHead& head) const {
    const fs::path path = folder_ / "head";
    fs::create_directories(path);
    head.write_folder(path.string());
    return path.string();
  }
  const fs::path folder_;
};

TEST_P(GgufHeads, DraftWhatTheSameHeadInSafetensorsDrafts) {
  DraftConfig wanted_config;
  const auto wanted = drafts_of(GetParam(), kGoldens + GetParam().folder, 4, &wanted_config);
  auto golden = SafetensorsFile::open(kGoldens + GetParam().folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value());
  const bool is_dflash = GetParam().method == SpecMethod::kDflash;
  for (const uint32_t type : {0u, 30u}) {
    DraftConfig config;
    const auto got = drafts_of(GetParam(), gguf(source(), {.type = type}), 4, &config);
    expect_same(got, wanted);
    expect_same_config(config, wanted_config);
    EXPECT_EQ(config.form, "GGUF");
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string name = "case" + std::to_string(i) + ".";
      EXPECT_EQ(got[i].ids, golden_values<int32_t>(*golden, name + "draft_ids"));
      int32_t num_missing = 0;
      EXPECT_LE(
          worst_draft_logit(*golden, name, is_dflash, config.draft_vocab, got[i], &num_missing),
          2e-3);
      EXPECT_EQ(num_missing, 0);
    }
  }
}

// Q8_0 and MXFP4 are read exactly: as the values that they stand for.
TEST_P(GgufHeads, OfQuantisedMatricesAreReadExactly) {
  MemoryHead head = source();
  std::erase_if(head.tensors, [](const auto& one) { return one.name == "embed_tokens.weight"; });
  const auto unrounded = drafts_of(GetParam(), folder(head), 2);
  for (const uint32_t type : {8u, 39u}) {
    MemoryHead rounded = head;
    rounded.round_to(type);
    const auto got = drafts_of(GetParam(), gguf(head, {.type = type}), 2);
    expect_same(got, drafts_of(GetParam(), folder(rounded), 2));
    EXPECT_NE(got.front().logits, unrounded.front().logits);
  }
}

TEST_P(GgufHeads, OfOlderFilesAreTheSame) {
  const auto wanted = drafts_of(GetParam(), kGoldens + GetParam().folder, 1);
  expect_same(drafts_of(GetParam(), gguf(source(), {.is_old = true}), 1), wanted);
}

// Biases of queries and keys lie as the rows do.
TEST_P(GgufHeads, WithBiasesOfAttentionDraftTheSame) {
  MemoryHead head = source();
  uint32_t seed = 1;
  for (int32_t layer = 0; layer < (head.is_dflash() ? 3 : 1); ++layer) {
    for (const char* part : {"q", "k", "v", "o"}) {
      const std::string name = "layers." + std::to_string(layer) + ".self_attn." + part + "_proj.";
      std::erase_if(head.tensors, [&](const auto& one) { return one.name == name + "bias"; });
      const int64_t rows = head.at(name + "weight").shape[0];
      std::vector<float> bias;
      for (int64_t i = 0; i < rows; ++i)
        bias.push_back(static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 8) /
                           static_cast<float>(1 << 24) -
                       0.5f);
      head.add(name + "bias", {rows}, bias);
    }
  }
  const auto wanted = drafts_of(GetParam(), folder(head), 2);
  expect_same(drafts_of(GetParam(), gguf(head, {.type = 0}), 2), wanted);
  EXPECT_NE(wanted.front().logits,
            drafts_of(GetParam(), kGoldens + GetParam().folder, 1).front().logits);
}

INSTANTIATE_TEST_SUITE_P(Heads, GgufHeads, testing::ValuesIn(kHeads), [](const auto& info) {
  std::string name = info.param.folder;
  std::erase(name, '-');
  return name;
});

// The rows of the embedding are gathered as they lie.
TEST(GgufHead, OfAnEmbeddingInQ8DraftsNearlyTheSame) {
  const GoldenHead& eagle3 = kHeads[0];
  MemoryHead head = MemoryHead::read(kGoldens + eagle3.folder);
  const MemoryTensor& table = head.at("embed_tokens.weight");
  std::vector<float> values;
  for (size_t i = 0; i < table.bytes.size() / 2; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, table.bytes.data() + 2 * i, 2);
    values.push_back(bf16_to_f32(bits));
  }
  MemoryHead::GgufOptions options{.left_out = {"token_embd.weight"}};
  options.change = [&](GgufWriter* writer) {
    writer->tensor("token_embd.weight", 8, {512, 192}, q8_0_blocks(values));
  };
  const fs::path path = fresh_folder() / "head.gguf";
  write(path, head.gguf(options));
  const auto wanted = drafts_of(eagle3, kGoldens + eagle3.folder, 1);
  const auto got = drafts_of(eagle3, path.string(), 1);
  double worst = 0;
  for (const auto& [position, logits] : wanted.front().logits)
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::fabs(double{logits[i]} - got.front().logits.at(position)[i]));
  EXPECT_GT(worst, 0);
  EXPECT_LT(worst, 0.5);  // the logits are of units
}

// Ids outside the vocabulary are found when the tensor is read.
TEST(GgufHead, WithATargetIdOutsideTheVocabularyIsRefused) {
  for (const int64_t id : {int64_t{512}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    MemoryHead head = MemoryHead::read(kGoldens + kHeads[0].folder);
    const int64_t offset = id - (id == INT64_MIN ? 0 : 7);
    const size_t at = id == INT64_MIN ? 0 : 7;
    std::memcpy(head.at("d2t").bytes.data() + 8 * at, &offset, 8);
    const fs::path path = fresh_folder() / "head.gguf";
    write(path, head.gguf({}));
    auto engine = Engine::load(options_for(kHeads[0], path.string()));
    ASSERT_TRUE(engine.has_value()) << engine.error().message();
    const auto drafter = HeadDrafter::create(**engine);
    ASSERT_FALSE(drafter.has_value());
    EXPECT_NE(drafter.error().message().find("outside the target's vocabulary"), std::string::npos)
        << drafter.error().message();
  }
}

}  // namespace
}  // namespace moxie
