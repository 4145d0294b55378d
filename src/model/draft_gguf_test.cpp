// The configuration of draft heads in GGUF, and the files that are refused: damaged ones, and those
// of other heads. The files are written by the tests; no published one was read.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <numbers>

#include "core/testing/paths.h"
#include "model/draft_checkpoint.h"
#include "model/testing/files.h"
#include "model/testing/gguf_heads.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";

class GgufHead : public testing::Test {
 protected:
  GgufHead() : target_(*parse_target()) {}
  static Result<GptOssConfig> parse_target() {
    std::ifstream file(kGoldens + "nano-a/config.json");
    return parse_config_json({std::istreambuf_iterator<char>(file), {}}, "nano-a");
  }
  Result<DraftCheckpoint> open(const std::string& bytes, int32_t offset = -1) const {
    return DraftCheckpoint::open_gguf(
        MappedFile::borrow("h.gguf", std::as_bytes(std::span(bytes.data(), bytes.size()))), target_,
        offset);
  }
  std::string refusal(const std::string& bytes) const {
    const auto head = open(bytes);
    return head ? "" : head.error().message();
  }
  std::string refusal(const MemoryHead& head,
                      const std::function<void(GgufWriter*)>& change) const {
    MemoryHead::GgufOptions options;
    options.change = change;
    return refusal(head.gguf(options));
  }
  std::vector<int32_t> boundaries(MemoryHead head, const std::vector<int32_t>& ids, bool is_old,
                                  int32_t num_layers, int32_t offset = -1) {
    target_.num_layers = num_layers;
    head.config["dflash_config"]["target_layer_ids"] = ids;
    const std::string bytes = head.gguf({.is_old = is_old});
    const auto opened = open(bytes, offset);
    EXPECT_TRUE(opened.has_value()) << opened.error().message();
    return opened ? opened->config().boundaries : std::vector<int32_t>{};
  }
  GptOssConfig target_;
  const MemoryHead dflash_ = MemoryHead::read(kGoldens + "spec-dflash-nano-a");
  const MemoryHead eagle3_ = MemoryHead::read(kGoldens + "spec-eagle3-nano-a");
};

// is_old writes the numbers as they are and dflash.mask_token_id; else 1 is added to them.
TEST_F(GgufHead, LayersOfDflashAreBoundariesOrOutputsByTheRulesOfTheDocument) {
  using Ids = std::vector<int32_t>;
  // The converter's boundaries.
  EXPECT_EQ(boundaries(dflash_, {1, 9, 20}, false, 24), (Ids{2, 10, 21}));
  EXPECT_EQ(boundaries(dflash_, {1, 11, 21}, false, 24), (Ids{2, 12, 22}));
  // z-lab's numbers, told by the key, and by their first and last whatever the key says.
  EXPECT_EQ(boundaries(dflash_, {1, 9, 20}, true, 24), (Ids{2, 10, 21}));
  EXPECT_EQ(boundaries(dflash_, {1, 11, 21}, true, 24), (Ids{2, 12, 22}));
  EXPECT_EQ(boundaries(dflash_, {0, 10, 20}, false, 24), (Ids{2, 12, 22}));
  EXPECT_EQ(boundaries(dflash_, {2, 12, 22}, true, 24), (Ids{2, 12, 22}));
  // The field decides, whatever the file says.
  EXPECT_EQ(boundaries(dflash_, {1, 11, 21}, true, 24, 0), (Ids{1, 11, 21}));
  EXPECT_EQ(boundaries(dflash_, {1, 11, 20}, false, 24, 1), (Ids{3, 13, 22}));
}

TEST_F(GgufHead, LayersOfEagle3AreBoundaries) {
  const std::string bytes = eagle3_.gguf({});
  EXPECT_EQ(open(bytes)->config().boundaries, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(open(bytes, 1)->config().boundaries, (std::vector<int32_t>{2, 3, 4}));
}

// llama3's frequencies are a tensor in GGUF, and keys in config.json.
TEST_F(GgufHead, RopeFreqsDivideTheFrequencies) {
  MemoryHead head = eagle3_;
  auto& layer = head.config["transformer_layer_config"];
  const double theta = 500000, factor = 8, original = 64;
  layer["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", theta},
      {"factor", factor},        {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", original}};
  std::vector<float> divisors;
  for (int i = 0; i < 32; ++i) {
    const double turns = original / (2 * std::numbers::pi * std::pow(theta, 2.0 * i / 64));
    const double smooth = (turns - 1) / 3;
    divisors.push_back(static_cast<float>(turns > 4   ? 1
                                          : turns < 1 ? factor
                                                      : 1 / ((1 - smooth) / factor + smooth)));
  }
  const fs::path folder = fresh_folder();
  head.write_folder(folder.string());
  const auto wanted = DraftCheckpoint::open(folder.string(), target_);
  ASSERT_TRUE(wanted.has_value()) << wanted.error().message();
  const std::string bytes = head.gguf({.rope_freqs = divisors});
  const auto got = open(bytes);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  ASSERT_EQ(got->config().rotary.inverse.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    const double inverse = wanted->config().rotary.inverse[i];
    EXPECT_NEAR(got->config().rotary.inverse[i], inverse, 1e-6 * inverse) << i;
  }
  EXPECT_NE(divisors.front(), divisors.back());
  divisors[3] = 0;
  EXPECT_NE(refusal(head.gguf({.rope_freqs = divisors})).find("rope_freqs.weight[3] is 0"),
            std::string::npos);
  divisors.resize(16, 1);
  EXPECT_NE(refusal(head.gguf({.rope_freqs = divisors})).find("not 32 F32 values"),
            std::string::npos);
}

TEST_F(GgufHead, IsFoundInAFolderOfItsOwn) {
  const fs::path folder = fresh_folder();
  write(folder / "head.gguf", dflash_.gguf({}));
  EXPECT_TRUE(DraftCheckpoint::open(folder.string(), target_).has_value());
  write(folder / "other.gguf", dflash_.gguf({}));
  const auto two = DraftCheckpoint::open(folder.string(), target_);
  ASSERT_FALSE(two.has_value());
  EXPECT_NE(two.error().message().find("holds 2 .gguf files"), std::string::npos);
}

TEST_F(GgufHead, ThatDoesNotFitIsRefusedWithTheReason) {
  struct Case {
    const char* why;
    std::function<void(MemoryHead*, MemoryHead::GgufOptions*)> damage;
  };
  const auto key = [](const char* name, uint32_t value) {
    return [=](MemoryHead*, MemoryHead::GgufOptions* options) {
      options->change = [=](GgufWriter* writer) { writer->add(name, value); };
    };
  };
  const auto leave_out = [](const char* name) {
    return [=](MemoryHead*, MemoryHead::GgufOptions* options) { options->left_out = {name}; };
  };
  const auto tensor = [](const char* name, uint32_t type, uint64_t count) {
    return [=](MemoryHead*, MemoryHead::GgufOptions* options) {
      options->change = [=](GgufWriter* writer) {
        writer->tensor(name, type, {count}, std::string(count * (type == 0 ? 4 : 1), '\0'));
      };
    };
  };
  const Case cases[] = {
      {"target_hidden_size: found 256",
       [](MemoryHead* head, auto*) { head->config["hidden_size"] = 256; }},
      {"vocabulary has 600 ids", [](MemoryHead* head, auto*) { head->config["vocab_size"] = 600; }},
      {"layer id 10 does not fit",
       [](MemoryHead* head, auto*) {
         head->config["dflash_config"]["target_layer_ids"] = {1, 2, 9};
       }},
      {"no mask_token_id in the vocabulary",
       [](MemoryHead* head, auto*) { head->config["dflash_config"]["mask_token_id"] = 512; }},
      {"no tensor fc.weight", leave_out("fc.weight")},
      {"no tensor enc.output_norm.weight", leave_out("enc.output_norm.weight")},
      {"no tensor blk.1.ffn_up.weight", leave_out("blk.1.ffn_up.weight")},
      {"no tensor blk.3.attn_norm.weight",
       [](MemoryHead* head, auto*) { head->config["num_hidden_layers"] = 4; }},
      {"has no place in the configuration",
       [](MemoryHead* head, auto*) { head->config["num_hidden_layers"] = 2; }},
      {"blk.0.ffn_gate.weight is [192, 192], the configuration says [208, 192]",
       [](MemoryHead* head, auto*) { head->config["intermediate_size"] = 208; }},
      {"blk.0.attn_sinks.weight belongs to a kind", tensor("blk.0.attn_sinks.weight", 0, 6)},
      {"markov_w1.weight belongs to a kind", tensor("markov_w1.weight", 0, 6)},
      {"dflash.selector_rank", key("dflash.selector_rank", 8)},
      {"dflash.conv_kernel_size", key("dflash.conv_kernel_size", 2)},
      {"dflash.rope.scaling.attn_factor", key("dflash.rope.scaling.attn_factor", 2)},
      {"is one of 3 parts", key("split.count", 3)},
      {"layer_types", key("dflash.attention.sliding_window", 64)},
      {"block_size is below 2", [](MemoryHead* head, auto*) { head->config["block_size"] = 1; }},
      {"sizes of layers", [](MemoryHead* head, auto*) { head->config["num_key_value_heads"] = 5; }},
      {"dflash.rope.scaling.type",
       [](MemoryHead* head, auto*) { head->config["rope_scaling"]["rope_type"] = "longrope"; }},
      {"dflash.rope.scaling.type: found another kind",
       [](MemoryHead*, MemoryHead::GgufOptions* options) {
         options->rope_freqs.assign(32, 1.0f);  // without the key that is a text
         options->change = [](GgufWriter* writer) {
           writer->add("dflash.rope.scaling.type", uint32_t{2});
         };
       }},
      {"dflash.attention.head_count: found 4000000000",
       [](MemoryHead* head, auto*) { head->config["num_attention_heads"] = 4000000000u; }},
      {"found nan, expected a number",
       [](MemoryHead* head, auto*) {
         head->config["rms_norm_eps"] = std::numeric_limits<double>::quiet_NaN();
       }},
  };
  ASSERT_EQ(refusal(dflash_.gguf({})), "");
  for (const Case& one : cases) {
    MemoryHead head = dflash_;
    MemoryHead::GgufOptions options;
    one.damage(&head, &options);
    const std::string why = refusal(head.gguf(options));
    EXPECT_NE(why.find(one.why), why.npos) << one.why << ": " << why;
  }
}

TEST_F(GgufHead, OfEagle3ThatDoesNotFitIsRefusedWithTheReason) {
  ASSERT_EQ(refusal(eagle3_.gguf({})), "");
  EXPECT_NE(refusal(eagle3_.gguf({.left_out = {"d2t"}})).find("no tensor d2t"), std::string::npos);
  EXPECT_NE(refusal(eagle3_.gguf({.left_out = {"output.weight"}})).find("no tensor output.weight"),
            std::string::npos);
  EXPECT_NE(refusal(eagle3_.gguf({.left_out = {"enc.output_norm.weight"}}))
                .find("no tensor enc.output_norm.weight"),
            std::string::npos);
  EXPECT_NE(refusal(eagle3_.gguf({.left_out = {"fc.weight"}})).find("no tensor fc.weight"),
            std::string::npos);
  const std::string q_norm = refusal(eagle3_, [](GgufWriter* writer) {
    writer->tensor("blk.0.attn_q_norm.weight", 0, {64}, std::string(256, '\0'));
  });
  EXPECT_NE(q_norm.find("blk.0.attn_q_norm.weight belongs to a kind"), std::string::npos) << q_norm;
  const std::string width = refusal(eagle3_, [](GgufWriter* writer) {
    writer->add("eagle3.rope.scaling.yarn_ext_factor", 0.5f);
  });
  EXPECT_NE(width.find("yarn_ext_factor: found 0.5, expected 1"), std::string::npos) << width;
  MemoryHead no_norm = eagle3_;
  no_norm.config["norm_before_fc"] = false;
  EXPECT_EQ(refusal(no_norm.gguf({})), "");  // the tensor says it, where the key is absent
  const std::string contradiction = refusal(no_norm, [](GgufWriter* writer) {
    writer->pair("eagle3.norm_before_fc", 7, std::string(1, '\0'));
  });
  EXPECT_NE(contradiction.find("norm_before_fc: found false"), std::string::npos) << contradiction;
}

TEST_F(GgufHead, OfAnotherTypeOrArchitectureIsRefusedByName) {
  const std::string q4 = refusal(dflash_.gguf(
      {.left_out = {"fc.weight"}, .change = [](GgufWriter* writer) {
         writer->tensor("fc.weight", 2, {192, 576}, std::string(192 * 576 / 32 * 18, '\0'));
       }}));
  EXPECT_NE(q4.find("fc.weight is Q4_0, not BF16, F16, F32, Q8_0, MXFP4"), std::string::npos) << q4;
  const std::string norm = refusal(
      dflash_.gguf({.left_out = {"output_norm.weight"}, .change = [](GgufWriter* writer) {
                      writer->tensor("output_norm.weight", 8, {192}, std::string(6 * 34, '\0'));
                    }}));
  EXPECT_NE(norm.find("output_norm.weight is Q8_0, not BF16, F16, F32"), std::string::npos) << norm;
  for (const char* architecture : {"llama", "dflash-draft", "gpt-oss"}) {
    GgufWriter writer;
    writer.add("general.architecture", architecture);
    EXPECT_NE(refusal(writer.bytes()).find(std::string("\"") + architecture + "\""),
              std::string::npos);
  }
  EXPECT_FALSE(refusal("GGUF").empty());
  EXPECT_FALSE(refusal("").empty());
  EXPECT_FALSE(refusal("no head").empty());
}

// Cut anywhere, a file is refused; nothing behind its end is read.
TEST_F(GgufHead, CutOffAnywhereIsRefused) {
  for (const MemoryHead* head : {&dflash_, &eagle3_}) {
    const std::string whole = head->gguf({});
    for (size_t length = 0; length < whole.size(); length += length < 6000 ? 61 : 30011) {
      // On the heap, so that sanitizers see a byte too many.
      const std::string cut = whole.substr(0, length);
      EXPECT_FALSE(refusal(cut).empty()) << length;
    }
  }
}

}  // namespace
}  // namespace moxie
