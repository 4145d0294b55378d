// Damaged checkpoints: each damage yields a fault that names file, tensor, found and expected;
// load() refuses; nothing ends the process.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/testing/paths.h"
#include "model/checkpoint.h"
#include "model/testing/files.h"
#include "model/testing/memory_checkpoint.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";

std::string messages_of(const Checkpoint& checkpoint) {
  std::string out;
  for (const Fault& fault : checkpoint.faults()) out += fault.message() + "\n";
  return out;
}

struct Damage {
  const char* name;
  std::function<void(MemoryCheckpoint&)> change;
  std::vector<std::string> messages;  // each is part of a fault's message
};

void resize(MemoryTensor& tensor, Shape shape, size_t bytes) {
  tensor.shape = shape;
  tensor.bytes.resize(bytes);
}

std::vector<Damage> damages() {
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  const std::string experts = "model.layers.2.mlp.experts.";
  const std::string file = "model.safetensors: ";
  return {
      {"missing",
       [=](auto& m) { m.erase(q); },
       {file + q + ": found no such tensor, expected BF16, F16 or F32 [512, 192]"}},
      {"two_missing",
       [=](auto& m) {
         m.erase("lm_head.weight");
         m.erase(experts + "down_proj_scales");
       },
       {file + "lm_head.weight: found no such tensor, expected BF16, F16 or F32 [512, 192]",
        file + experts + "down_proj_scales: found no such tensor, expected U8 [8, 192, 5]"}},
      {"experts_missing",
       [=](auto& m) {
         m.erase(experts + "down_proj_scales");
         m.erase(experts + "down_proj_blocks");
       },
       {experts + "down_proj_blocks: found no such tensor, expected U8 [8, 192, 5, 16]",
        experts + "down_proj_scales: found no such tensor"}},
      {"extra",
       [=](auto& m) {
         MemoryTensor extra = m.at(q);
         extra.name = "model.layers.4.self_attn.q_proj.weight";
         m.tensors.push_back(extra);
       },
       {file + "model.layers.4.self_attn.q_proj.weight: found a tensor that the model does not "
               "have (BF16 [512, 192]), expected no such tensor"}},
      {"wrong_dtype",
       [=](auto& m) {
         m.at(q).dtype = "U8";
         resize(m.at(q), {512, 192}, 512 * 192);
       },
       {file + q + ": found the dtype U8, expected the dtype BF16, F16 or F32"}},
      {"blocks_of_wrong_dtype",
       [=](auto& m) { m.at(experts + "down_proj_blocks").dtype = "I8"; },
       {experts + "down_proj_blocks: found the dtype I8, expected the dtype U8"}},
      {"wrong_shape",
       [=](auto& m) {
         resize(m.at(q), {192, 512}, 512 * 192 * 2);
       },
       {file + q + ": found the shape [192, 512], expected the shape [512, 192]"}},
      {"wrong_rank",
       [=](auto& m) { resize(m.at(q), {512 * 192}, 512 * 192 * 2); },
       {file + q + ": found the shape [98304], expected the shape [512, 192]"}},
      {"vector_too_long",
       [=](auto& m) { resize(m.at("model.norm.weight"), {193}, 2 * 193); },
       {file + "model.norm.weight: found the shape [193], expected the shape [192]"}},
      {"configuration_with_fewer_layers",
       [=](auto& m) {
         m.config.num_layers = 3;
         m.config.is_window.resize(3);
       },
       {"model.layers.3.input_layernorm.weight: found a tensor that the model does not have"}},
      {"absurd_configuration",
       [=](auto& m) { m.config.num_experts = 1 << 30; },
       {"config.json: num_local_experts: found 1073741824, expected 1 to 4096"}},
      {"negative_configuration",
       [=](auto& m) { m.config.hidden = -192; },
       {"config.json: hidden_size: found -192, expected 32 to 65536"}},
      {"configuration_does_not_divide",
       [=](auto& m) { m.config.num_kv_heads = 3; },
       {"config.json: num_attention_heads: found 8, expected a multiple of 3"}},
  };
}

class CheckpointDamage : public testing::TestWithParam<Damage> {};

TEST_P(CheckpointDamage, IsNamedAndRefused) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  GetParam().change(source);
  const fs::path folder = fresh_folder();
  write(folder / "model.safetensors", source.safetensors());
  write(folder / "config.json", config_json(source.config));
  const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(folder.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const std::string messages = messages_of(**checkpoint);
  for (const std::string& part : GetParam().messages)
    EXPECT_NE(messages.find(part), std::string::npos) << part << "\nin\n" << messages;
  EXPECT_EQ((*checkpoint)->tensors().size(), source.tensors.size());
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const Result<ModelWeights> weights = (*checkpoint)->load(*device, {.show_progress = false});
  ASSERT_FALSE(weights);
  EXPECT_NE(weights.error().message().find("inspect"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(All, CheckpointDamage, testing::ValuesIn(damages()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CheckpointDamage, OneDamageGivesOneFault) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  source.erase("model.layers.1.self_attn.q_proj.weight");
  const fs::path folder = fresh_folder();
  write(folder / "model.safetensors", source.safetensors());
  write(folder / "config.json", config_json(source.config));
  EXPECT_EQ((*open_checkpoint(folder.string()))->faults().size(), 1u);
}

TEST(CheckpointDamage, NoCutOfTheFileEndsTheProcess) {
  const std::string bytes = MemoryCheckpoint::read(kGoldens + "nano-a").safetensors();
  const fs::path folder = fresh_folder();
  fs::copy(kGoldens + "nano-a/config.json", folder / "config.json");
  for (const size_t keep : {size_t{0}, size_t{7}, size_t{8}, size_t{100}, size_t{5000},
                            bytes.size() / 2, bytes.size() - 1}) {
    write(folder / "model.safetensors", bytes.substr(0, keep));
    const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(folder.string());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    EXPECT_FALSE((*checkpoint)->faults().empty()) << keep;
    const std::unique_ptr<Device> device = make_cpu_device(1);
    EXPECT_FALSE((*checkpoint)->load(*device, {.show_progress = false}));
    (*checkpoint)->packed_bytes({});
    (*checkpoint)->tensors();
  }
}

TEST(CheckpointDamage, AFileShortenedAfterOpeningIsRefused) {
  const fs::path folder = fresh_folder();
  fs::copy(kGoldens + "nano-a", folder, fs::copy_options::recursive);
  const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(folder.string());
  ASSERT_TRUE(checkpoint);
  fs::resize_file(folder / "model.safetensors", 100000);
  const std::unique_ptr<Device> device = make_cpu_device(1);
  const Result<ModelWeights> weights = (*checkpoint)->load(*device, {.show_progress = false});
  ASSERT_FALSE(weights);
  EXPECT_NE(weights.error().message().find("shortened"), std::string::npos);
}

TEST(CheckpointDamage, NanScalesAreFoundAtLoad) {
  const fs::path folder = fresh_folder();
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  // Expert 3, row 7, block 2 of 5.
  source.at("model.layers.2.mlp.experts.down_proj_scales").bytes[(3 * 192 + 7) * 5 + 2] = '\xff';
  source.at("model.layers.0.mlp.experts.gate_up_proj_scales").bytes[0] = '\xff';
  write(folder / "model.safetensors", source.safetensors());
  write(folder / "config.json", config_json(source.config));
  write(folder / "m.gguf", source.gguf({})[0]);
  const std::unique_ptr<Device> device = make_cpu_device(2);
  const auto error_of = [&](const fs::path& model) {
    const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(model.string());
    EXPECT_TRUE((*checkpoint)->faults().empty());
    const Result<ModelWeights> weights = (*checkpoint)->load(*device, {.show_progress = false});
    return weights ? "no error" : weights.error().message();
  };
  const std::string split = error_of(folder);
  EXPECT_NE(split.find("model.safetensors: model.layers.2.mlp.experts.down_proj_scales: found the "
                       "scale byte 255 (NaN) in expert 3, row 7, expected scales of 0 to 254"),
            std::string::npos)
      << split;
  EXPECT_NE(split.find("model.layers.0.mlp.experts.gate_up_proj_scales: found the scale byte 255"),
            std::string::npos);
  const std::string gguf = error_of(folder / "m.gguf");
  EXPECT_NE(
      gguf.find("blk.2.ffn_down_exps.weight: found the scale byte 255 (NaN) in expert 3, row 7"),
      std::string::npos)
      << gguf;
}

class IndexDamage : public testing::Test {
 protected:
  void SetUp() override {
    source_ = MemoryCheckpoint::read(kGoldens + "nano-a");
    folder_ = fresh_folder();
    const size_t half = source_.tensors.size() / 2;
    for (size_t i = 0; i < source_.tensors.size(); ++i) {
      parts_[i < half ? 0 : 1].tensors.push_back(source_.tensors[i]);
      index_["weight_map"][source_.tensors[i].name] = i < half ? "a.safetensors" : "b.safetensors";
    }
  }
  std::string messages() {
    write(folder_ / "config.json", config_json(source_.config));
    if (write_a_) write(folder_ / "a.safetensors", parts_[0].safetensors());
    write(folder_ / "b.safetensors", parts_[1].safetensors());
    write(folder_ / "model.safetensors.index.json", index_.dump());
    const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(folder_.string());
    return checkpoint ? messages_of(**checkpoint) : "error: " + checkpoint.error().message();
  }
  bool write_a_ = true;
  MemoryCheckpoint source_, parts_[2];
  nlohmann::json index_;
  fs::path folder_;
};

TEST_F(IndexDamage, SoundShardsHaveNoFault) { EXPECT_EQ(messages(), ""); }

TEST_F(IndexDamage, MissingShard) {
  write_a_ = false;
  EXPECT_NE(messages().find("a.safetensors: found a file that cannot be opened: No such file"),
            std::string::npos)
      << messages();
}

TEST_F(IndexDamage, TensorThatTheShardLacks) {
  const std::string name = parts_[0].tensors[3].name;
  parts_[0].erase(name);
  EXPECT_NE(messages().find("a.safetensors: " + name + ": found no such tensor"), std::string::npos)
      << messages();
}

TEST_F(IndexDamage, TensorThatTheIndexLacks) {
  const std::string name = parts_[0].tensors[3].name;
  index_["weight_map"].erase(name);
  EXPECT_NE(messages().find(name + ": found no entry, expected the file a.safetensors"),
            std::string::npos)
      << messages();
}

TEST_F(IndexDamage, TensorInTwoShards) {
  parts_[1].tensors.push_back(parts_[0].tensors[3]);
  EXPECT_NE(messages().find("b.safetensors: " + parts_[0].tensors[3].name + ": found the name in "),
            std::string::npos)
      << messages();
}

TEST_F(IndexDamage, PathThatLeadsElsewhere) {
  index_["weight_map"][parts_[0].tensors[3].name] = "../a.safetensors";
  EXPECT_NE(messages().find("found the file \"../a.safetensors\", expected the name of a file"),
            std::string::npos)
      << messages();
}

TEST_F(IndexDamage, NoWeightMap) {
  index_ = {{"metadata", 1}};
  EXPECT_NE(messages().find("index.json: found no weight_map"), std::string::npos) << messages();
}

TEST(GgufCheckpointDamage, IsNamed) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  const auto messages = [&](const std::string& bytes) {
    write(folder / "m.gguf", bytes);
    const Result<std::unique_ptr<Checkpoint>> checkpoint =
        open_checkpoint((folder / "m.gguf").string());
    return checkpoint ? messages_of(**checkpoint) : "error: " + checkpoint.error().message();
  };
  const std::string whole = source.gguf({})[0];
  EXPECT_EQ(messages(whole), "");
  EXPECT_NE(messages(whole.substr(0, whole.size() - 1000)).find("m.gguf: output.weight: found"),
            std::string::npos);
  EXPECT_NE(messages(whole.substr(0, 300)).find("error: "), std::string::npos);
  EXPECT_NE(messages("GGUF").find("error: "), std::string::npos);
  // Other tensor sizes than the keys say.
  source.config.intermediate = 128;
  std::string other = whole;
  const std::string key = "expert_feed_forward_length";
  other[other.find(key) + key.size() + 4] = static_cast<char>(128);
  EXPECT_NE(messages(other).find("blk.0.ffn_gate_exps.weight: found the shape [8, 160, 192], "
                                 "expected the shape [8, 128, 192]"),
            std::string::npos)
      << messages(other);
  std::string llama = whole;
  llama.replace(llama.find("gpt-oss"), 7, "gpt-neo");
  EXPECT_NE(messages(llama).find("found the architecture \"gpt-neo\""), std::string::npos);
}

TEST(GgufCheckpointDamage, PartsThatAreMissingOrDoNotBelong) {
  const MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  const std::vector<std::string> parts = source.gguf({.num_parts = 3});
  write(folder / "m-00001-of-00003.gguf", parts[0]);
  write(folder / "m-00003-of-00003.gguf", parts[2]);
  const auto messages = [&](const char* name) {
    const Result<std::unique_ptr<Checkpoint>> checkpoint =
        open_checkpoint((folder / name).string());
    return checkpoint ? messages_of(**checkpoint) : "error: " + checkpoint.error().message();
  };
  EXPECT_NE(
      messages("m-00001-of-00003.gguf").find("m-00002-of-00003.gguf: found a file that cannot"),
      std::string::npos);
  write(folder / "m-00002-of-00003.gguf", parts[2]);
  EXPECT_NE(messages("m-00001-of-00003.gguf").find("split.no: found 2, expected 1"),
            std::string::npos);
  write(folder / "alone.gguf", parts[0]);
  EXPECT_NE(messages("alone.gguf").find("split.count: found 3"), std::string::npos);
}

}  // namespace
}  // namespace moxie
