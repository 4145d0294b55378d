// Checkpoints: the same packed bytes through every format, values against the stored ones, and what
// load() does with formats and --mxfp4-layers.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/packing.h"
#include "core/testing/paths.h"
#include "model/embedded.h"
#include "model/testing/files.h"
#include "model/testing/memory_checkpoint.h"
#include "model/weight_table.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";

// A fresh folder for one test.
struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<Checkpoint> checkpoint;
  ModelWeights weights;
  std::string bytes() const {
    return {reinterpret_cast<const char*>(weights.storage[0].data()), weights.packed_bytes};
  }
};

Loaded load(const std::string& model, const Mxfp4Layers& mxfp4 = {}) {
  Loaded out{.device = make_cpu_device(2)};
  Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint(model);
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message();
    return out;
  }
  out.checkpoint = std::move(*checkpoint);
  for (const Fault& fault : out.checkpoint->faults()) ADD_FAILURE() << fault.message();
  const LoadOptions options{.mxfp4_layers = mxfp4, .show_progress = false};
  Result<ModelWeights> weights = out.checkpoint->load(*out.device, options);
  if (!weights) {
    ADD_FAILURE() << weights.error().message();
    return out;
  }
  out.weights = std::move(*weights);
  EXPECT_EQ(out.checkpoint->packed_bytes(options), out.weights.packed_bytes);
  EXPECT_EQ(out.checkpoint->layout(options).head.format, out.weights.head.format);
  return out;
}

class Formats : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    source_ = MemoryCheckpoint::read(kGoldens + GetParam());
    expected_ = load(kGoldens + GetParam()).bytes();
    folder_ = fresh_folder();
  }
  void expect_same(const fs::path& model, CheckpointKind kind) {
    const Loaded loaded = load(model.string());
    ASSERT_NE(loaded.checkpoint, nullptr);
    EXPECT_EQ(loaded.checkpoint->kind(), kind);
    EXPECT_EQ(loaded.checkpoint->config().rope_original_context,
              source_.config.rope_original_context);
    EXPECT_EQ(loaded.checkpoint->config().sliding_window, source_.config.sliding_window);
    ASSERT_EQ(loaded.weights.packed_bytes, expected_.size());
    EXPECT_TRUE(loaded.bytes() == expected_) << model;
  }
  MemoryCheckpoint source_;
  std::string expected_;
  fs::path folder_;
};

TEST_P(Formats, SingleFile) {
  expect_same(kGoldens + GetParam() + "/model.safetensors", CheckpointKind::kHuggingFace);
}

TEST_P(Formats, ShardsWithAnIndex) {
  nlohmann::json index;
  const size_t num_tensors = source_.tensors.size();
  for (size_t shard = 0; shard < 3; ++shard) {
    // Shards are numbered from 0 while the last part counts otherwise: only the index knows names.
    const std::string name = "model-0000" + std::to_string(shard) + "-of-00002.safetensors";
    MemoryCheckpoint part;
    for (size_t i = num_tensors * shard / 3; i < num_tensors * (shard + 1) / 3; ++i) {
      part.tensors.push_back(source_.tensors[i]);
      index["weight_map"][source_.tensors[i].name] = name;
    }
    write(folder_ / name, part.safetensors());
  }
  write(folder_ / "model.safetensors.index.json", index.dump());
  write(folder_ / "config.json", config_json(source_.config));
  expect_same(folder_, CheckpointKind::kHuggingFace);
}

TEST_P(Formats, OriginalInAFolderOfItsOwnOrBelow) {
  write(folder_ / "original/model.safetensors", source_.original().safetensors());
  write(folder_ / "original/config.json", original_config_json(source_.config));
  write(folder_ / "tokenizer.json", "{}");
  expect_same(folder_, CheckpointKind::kOriginal);
  expect_same(folder_ / "original", CheckpointKind::kOriginal);
  EXPECT_EQ(load((folder_ / "original").string()).checkpoint->tokenizer()->json, "{}");
}

TEST_P(Formats, GgufWithGateAndUpApart) {
  write(folder_ / "model.gguf", source_.gguf({})[0]);
  expect_same(folder_ / "model.gguf", CheckpointKind::kGguf);
  expect_same(folder_, CheckpointKind::kGguf);
}

TEST_P(Formats, GgufWithGateAndUpMerged) {
  write(folder_ / "model.gguf", source_.gguf({.is_merged = true})[0]);
  expect_same(folder_ / "model.gguf", CheckpointKind::kGguf);
}

TEST_P(Formats, GgufOfTheOldArchitecture) {
  write(folder_ / "model.gguf", source_.gguf({.is_old = true})[0]);
  expect_same(folder_ / "model.gguf", CheckpointKind::kGguf);
}

TEST_P(Formats, GgufInParts) {
  const std::vector<std::string> parts = source_.gguf({.num_parts = 3});
  for (size_t i = 0; i < 3; ++i)
    write(folder_ / ("m-0000" + std::to_string(i + 1) + "-of-00003.gguf"), parts[i]);
  expect_same(folder_ / "m-00001-of-00003.gguf", CheckpointKind::kGguf);
  expect_same(folder_ / "m-00003-of-00003.gguf", CheckpointKind::kGguf);
  expect_same(folder_, CheckpointKind::kGguf);
}

INSTANTIATE_TEST_SUITE_P(Nano, Formats, testing::Values("nano-a", "nano-b"),
                         [](const auto& info) { return std::string(info.param, 5, 1); });

// Every element of rows [0, rows) equals values[row(r) * cols + k].
template <typename RowOf>
void expect_rows(const PackedMatrix& matrix, const std::vector<float>& values, int64_t rows,
                 RowOf&& packed_row) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), rows * matrix.cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int32_t k = 0; k < matrix.cols; ++k) {
      ASSERT_EQ(packed_value(matrix, packed_row(static_cast<int32_t>(r)), k),
                values[static_cast<size_t>(r * matrix.cols + k)])
          << "row " << r << ", column " << k;
    }
  }
}

std::vector<float> slice(const std::vector<float>& values, int64_t part, int64_t num_parts) {
  const auto count = static_cast<int64_t>(values.size()) / num_parts;
  return {values.begin() + part * count, values.begin() + (part + 1) * count};
}

const auto kSameRow = [](int32_t r) { return r; };

TEST(Load, HoldsEveryValueOfALayerWhereKernelsLookForIt) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const Loaded loaded = load(kGoldens + "nano-a");
  const GptOssConfig& config = source.config;
  const std::string at = "model.layers.3.";
  const LayerWeights& layer = loaded.weights.layers[3];

  std::vector<float> qkv = source.values(at + "self_attn.q_proj.weight");
  std::vector<float> bias = source.values(at + "self_attn.q_proj.bias");
  for (const char* part : {"k_proj", "v_proj"}) {
    const std::vector<float> more = source.values(at + "self_attn." + part + ".weight");
    const std::vector<float> more_bias = source.values(at + "self_attn." + part + ".bias");
    qkv.insert(qkv.end(), more.begin(), more.end());
    bias.insert(bias.end(), more_bias.begin(), more_bias.end());
  }
  EXPECT_EQ(layer.qkv.format, DType::kBF16);
  expect_rows(layer.qkv, qkv, config.qkv_width(), kSameRow);
  for (size_t i = 0; i < bias.size(); ++i) ASSERT_EQ(layer.qkv_bias[i], bias[i]) << i;
  expect_rows(layer.out, source.values(at + "self_attn.o_proj.weight"), config.hidden, kSameRow);
  expect_rows(layer.router, source.values(at + "mlp.router.weight"), config.num_experts, kSameRow);
  const std::vector<float> sinks = source.values(at + "self_attn.sinks");
  for (size_t i = 0; i < sinks.size(); ++i) ASSERT_EQ(layer.sinks[i], sinks[i]) << i;

  const std::vector<float> gate_up = source.values(at + "mlp.experts.gate_up_proj");
  const std::vector<float> gate_up_bias = source.values(at + "mlp.experts.gate_up_proj_bias");
  const std::vector<float> down = source.values(at + "mlp.experts.down_proj");
  const std::vector<float> down_bias = source.values(at + "mlp.experts.down_proj_bias");
  EXPECT_EQ(layer.gate_up.format, DType::kMXFP4);
  const auto gate_up_row = [](int32_t r) { return gate_up_packed_row(r / 2, r % 2); };
  for (int32_t e = 0; e < config.num_experts; ++e) {
    expect_rows(layer.gate_up.expert(e), slice(gate_up, e, config.num_experts),
                2 * config.intermediate, gate_up_row);
    expect_rows(layer.down.expert(e), slice(down, e, config.num_experts), config.hidden, kSameRow);
    for (int32_t r = 0; r < 2 * config.intermediate; ++r) {
      ASSERT_EQ(layer.gate_up_bias[e * layer.gate_up.rows + gate_up_row(r)],
                gate_up_bias[static_cast<size_t>(e * 2 * config.intermediate + r)]);
    }
    for (int32_t r = 0; r < config.hidden; ++r) {
      ASSERT_EQ(layer.down_bias[e * config.hidden + r],
                down_bias[static_cast<size_t>(e * config.hidden + r)]);
    }
  }
  expect_rows(loaded.weights.head, source.values("lm_head.weight"), config.vocab, kSameRow);
  const std::vector<float> table = source.values("model.embed_tokens.weight");
  for (size_t i = 0; i < table.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, loaded.weights.embedding.data + 2 * i, 2);
    ASSERT_EQ(bf16_to_f32(bits), table[i]) << i;
  }
}

TEST(Load, DenseExpertsKeepBf16) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  write(folder / "model.safetensors", source.with_dense_experts().safetensors());
  write(folder / "config.json", config_json(source.config));
  const Loaded loaded = load(folder.string());
  const LayerWeights& layer = loaded.weights.layers[1];
  EXPECT_EQ(layer.gate_up.format, DType::kBF16);
  EXPECT_EQ(layer.down.format, DType::kBF16);
  const int32_t num_experts = source.config.num_experts;
  const std::vector<float> gate_up = source.values("model.layers.1.mlp.experts.gate_up_proj");
  const std::vector<float> down = source.values("model.layers.1.mlp.experts.down_proj");
  for (int32_t e = 0; e < num_experts; ++e) {
    expect_rows(layer.gate_up.expert(e), slice(gate_up, e, num_experts),
                2 * source.config.intermediate,
                [](int32_t r) { return gate_up_packed_row(r / 2, r % 2); });
    expect_rows(layer.down.expert(e), slice(down, e, num_experts), source.config.hidden, kSameRow);
  }
}

class GgufDense : public testing::TestWithParam<uint32_t> {};

TEST_P(GgufDense, KeepsTheStoredFormat) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  write(folder / "m.gguf", source.gguf({.dense_type = GetParam()})[0]);
  const Loaded loaded = load((folder / "m.gguf").string());
  const DType format = GetParam() == 8 ? DType::kQ8_0 : DType::kF32;
  EXPECT_EQ(loaded.weights.head.format, format);
  EXPECT_EQ(loaded.weights.embedding.format, format);
  EXPECT_EQ(loaded.weights.layers[0].qkv.format, format);
  EXPECT_EQ(loaded.weights.layers[0].router.format, format);
  std::vector<float> values = source.values("lm_head.weight");
  if (GetParam() == 1) {
    for (float& value : values) value = f16_to_f32(f32_to_f16(value));
  } else if (GetParam() == 8) {
    const std::string blocks = q8_0_blocks(values);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t scale = 0;
      std::memcpy(&scale, blocks.data() + 34 * (i / 32), 2);
      values[i] = f16_to_f32(scale) *
                  static_cast<float>(static_cast<int8_t>(blocks[34 * (i / 32) + 2 + i % 32]));
    }
    EXPECT_EQ(std::memcmp(loaded.weights.embedding.data,
                          q8_0_blocks(source.values("model.embed_tokens.weight")).data(),
                          static_cast<size_t>(loaded.weights.embedding.bytes())),
              0);
  }
  expect_rows(loaded.weights.head, values, source.config.vocab, kSameRow);
}
INSTANTIATE_TEST_SUITE_P(Types, GgufDense, testing::Values(0u, 1u, 8u),
                         [](const auto& info) { return "type_" + std::to_string(info.param); });

TEST(Load, PartsOfDifferentFormatsBecomeF32) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  MemoryTensor& k = source.at("model.layers.0.self_attn.k_proj.weight");
  const std::vector<float> values = source.values(k.name);
  k.dtype = "F32";
  k.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  const fs::path folder = fresh_folder();
  write(folder / "model.safetensors", source.safetensors());
  write(folder / "config.json", config_json(source.config));
  const Loaded loaded = load(folder.string());
  EXPECT_EQ(loaded.weights.layers[0].qkv.format, DType::kF32);
  EXPECT_EQ(loaded.weights.layers[1].qkv.format, DType::kBF16);
  const PackedMatrix& qkv = loaded.weights.layers[0].qkv;
  EXPECT_EQ(packed_value(qkv, source.config.q_width() + 5, 17),
            values[static_cast<size_t>(5 * source.config.hidden + 17)]);
}

TEST(Load, QuantisesTheLayersThatAreNamed) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const Result<Mxfp4Layers> named = Mxfp4Layers::parse("moe,qkv,lm_head");
  ASSERT_TRUE(named);
  const Loaded loaded = load(kGoldens + "nano-a", *named);
  EXPECT_EQ(loaded.weights.layers[2].qkv.format, DType::kMXFP4);
  EXPECT_EQ(loaded.weights.layers[2].out.format, DType::kBF16);
  EXPECT_EQ(loaded.weights.layers[2].router.format, DType::kBF16);
  EXPECT_EQ(loaded.weights.head.format, DType::kMXFP4);
  std::vector<float> values = source.values("lm_head.weight");
  for (size_t b = 0; b < values.size(); b += 32) {
    uint8_t codes[32];
    const float scale = e8m0_to_f32(quantize_mxfp4(&values[b], codes));
    for (size_t i = 0; i < 32; ++i) values[b + i] = e2m1_to_f32(codes[i]) * scale;
  }
  expect_rows(loaded.weights.head, values, source.config.vocab, kSameRow);
}

TEST(Load, ParsesTheNamesOfLayers) {
  EXPECT_TRUE(Mxfp4Layers::parse("all")->lm_head);
  EXPECT_TRUE(Mxfp4Layers::parse("moe,o")->o);
  EXPECT_FALSE(Mxfp4Layers::parse("moe")->qkv);
  EXPECT_TRUE(Mxfp4Layers::parse(""));
  EXPECT_FALSE(Mxfp4Layers::parse("moe,head"));
  EXPECT_FALSE(Mxfp4Layers::parse("qkv,"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(key)) return std::stoull(line.substr(key.size() + 1)) * 1024;
  return 0;
}

TEST(Load, PeakMemoryStaysBelow1Point1TimesThePackedSize) {
  // Large against a process's own needs, yet quick: 60 MB of random experts.
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  {
    GptOssConfig& config = source.config;
    config.num_layers = 2;
    config.is_window.resize(2);
    config.hidden = config.intermediate = 512;
    config.num_experts = 64;
    config.vocab = 4096;
    source.tensors.clear();
    const auto add = [&](const std::string& name, const char* dtype, Shape shape, size_t width) {
      const auto bytes = static_cast<size_t>(shape.num_elements()) * width;
      source.tensors.push_back({name, dtype, shape, std::string(bytes, '\x3c')});
    };
    for_each_weight(config, [&](const Weight& weight) {
      for (const auto& [name, shape] : tensors_in_file(weight, FileFormat::kHuggingFace)) {
        if (weight.entry->types != StoredTypes::kExperts) {
          add(name, "BF16", shape, 2);
          continue;
        }
        const int64_t blocks = shape[2] / 32;
        add(name + "_blocks", "U8", {shape[0], shape[1], blocks, 16}, 1);
        add(name + "_scales", "U8", {shape[0], shape[1], blocks}, 1);
      }
    });
    write(folder / "model.safetensors", source.safetensors());
    write(folder / "config.json", config_json(config));
    source.tensors.clear();
    source.tensors.shrink_to_fit();
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const uint64_t before = status_bytes("VmRSS:"), reset_peak = status_bytes("VmHWM:");
  const Loaded loaded = load(folder.string());
  const uint64_t peak = status_bytes("VmHWM:");
  fs::remove_all(folder);
  ASSERT_GT(loaded.weights.packed_bytes, uint64_t{50} << 20);
  ASSERT_GT(before, 0u) << "no VmRSS in /proc/self/status";
  // Whether peaks can be measured here is judged by what was read before the load alone: the load's
  // own peak excuses nothing.
  if (reset_peak > before + (uint64_t{4} << 20)) GTEST_SKIP() << "the peak does not start anew";
  EXPECT_LT(static_cast<double>(peak - before),
            1.1 * static_cast<double>(loaded.weights.packed_bytes));
}
#endif

TEST(Synthetic, HasTrueShapesAndFiniteValues) {
  const Loaded loaded = load("synthetic:" + kGoldens + "nano-a/config.json");
  EXPECT_EQ(loaded.checkpoint->kind(), CheckpointKind::kSynthetic);
  EXPECT_EQ(loaded.checkpoint->tensors().size(), 3u + 17 * 4);
  const Loaded real = load(kGoldens + "nano-a");
  EXPECT_EQ(loaded.weights.packed_bytes, real.weights.packed_bytes);
  const Loaded small =
      load("synthetic:" + kGoldens + "nano-a/config.json", *Mxfp4Layers::parse("all"));
  EXPECT_EQ(small.weights.head.format, DType::kMXFP4);
  EXPECT_LT(small.weights.packed_bytes, real.weights.packed_bytes);
}

TEST(Synthetic, IsKnownBeforeItIsMade) {
  const Result<std::unique_ptr<Checkpoint>> large = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(large);
  EXPECT_EQ((*large)->config().num_experts, 128);
  // The published payload, 60.77 GiB, and F32 vectors in place of BF16 ones.
  const double packed = static_cast<double>((*large)->packed_bytes({}));
  EXPECT_GT(packed, 60.77 * (1 << 30));
  EXPECT_LT(packed, 61.0 * (1 << 30));
  EXPECT_FALSE(open_checkpoint("synthetic:gpt-5"));
}

TEST(Synthetic, IsRefusedWhereItDoesNotFit) {
  const Result<std::unique_ptr<Checkpoint>> large = open_checkpoint("synthetic:gpt-oss-120b");
  const std::unique_ptr<Device> device = make_cpu_device(1);
  if (device->properties().available_bytes > (*large)->packed_bytes({})) GTEST_SKIP();
  const Result<ModelWeights> weights = (*large)->load(*device, {});
  ASSERT_FALSE(weights);
  EXPECT_NE(weights.error().message().find("the weights need 65.33 GB"), std::string::npos);
}

TEST(Embedded, OpensOrSaysThatThereIsNone) {
  const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint("embedded");
  if (embedded_model().weights.empty()) {
    ASSERT_FALSE(checkpoint);
    EXPECT_NE(checkpoint.error().message().find("carries no embedded model"), std::string::npos);
    return;
  }
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_TRUE((*checkpoint)->faults().empty());
  EXPECT_FALSE((*checkpoint)->tokenizer()->json.empty());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(embedded_model().weights.data()) % 64, 0u);
  EXPECT_EQ(load("embedded").bytes(), load(source_dir() + "/models/tiny").bytes());
}

TEST(Gguf, HandsOutTheTokenizersTables) {
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const fs::path folder = fresh_folder();
  MemoryCheckpoint::GgufOptions options;
  options.tokens = {"a", "b", "<|end|>"};
  options.token_types = {1, 1, 3};
  options.merges = {"a b"};
  write(folder / "m.gguf", source.gguf(options)[0]);
  const Loaded loaded = load((folder / "m.gguf").string());
  const auto tokenizer = loaded.checkpoint->tokenizer();
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->gguf_tokens, options.tokens);
  EXPECT_EQ(tokenizer->gguf_types, options.token_types);
  EXPECT_EQ(tokenizer->gguf_merges, options.merges);
  EXPECT_TRUE(tokenizer->json.empty());
}

class HubCache : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fresh_folder();
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) ::unsetenv(name);
  }
  void TearDown() override { ::unsetenv("HF_HUB_CACHE"), ::unsetenv("HF_HOME"); }
  // As the hub's client lays it out: blobs, and snapshots of links to them.
  void make_repo(const fs::path& hub) {
    const fs::path repo = hub / "models--org--tiny.1";
    for (const char* revision : {"aaaa", "bbbb"}) {
      fs::create_directories(repo / "snapshots" / revision);
      for (const char* file : {"config.json", "model.safetensors"})
        fs::create_symlink(kGoldens + "nano-a/" + file, repo / "snapshots" / revision / file);
    }
    write(repo / "refs/main", "aaaa\n");
  }
  fs::path folder_;
};

TEST_F(HubCache, FindsTheSnapshotThatMainNames) {
  make_repo(folder_ / "hub");
  ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  const Loaded loaded = load("org/tiny.1");
  EXPECT_TRUE(loaded.checkpoint->path().ends_with("snapshots/aaaa"));
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", folder_.c_str(), 1);
  EXPECT_TRUE(open_checkpoint("org/tiny.1"));
}

TEST_F(HubCache, NamesTheFoldersSearched) {
  ::setenv("HF_HUB_CACHE", "/one/hub", 1);
  ::setenv("HF_HOME", "/two", 1);
  const Result<std::unique_ptr<Checkpoint>> checkpoint = open_checkpoint("openai/gpt-oss-20b");
  ASSERT_FALSE(checkpoint);
  const std::string message = checkpoint.error().message();
  EXPECT_NE(message.find("/one/hub/models--openai--gpt-oss-20b"), std::string::npos) << message;
  EXPECT_NE(message.find("/two/hub/models--openai--gpt-oss-20b"), std::string::npos) << message;
}

TEST_F(HubCache, SaysWhatAPathThatIsNoneLacks) {
  EXPECT_NE(open_checkpoint("/no/such/model").error().message().find("no such file"),
            std::string::npos);
  EXPECT_NE(open_checkpoint(folder_.string()).error().message().find("neither config.json"),
            std::string::npos);
  EXPECT_FALSE(open_checkpoint(""));
  write(folder_ / "notes.txt", "hello");
  EXPECT_NE(open_checkpoint((folder_ / "notes.txt").string()).error().message().find("neither a"),
            std::string::npos);
}

}  // namespace
}  // namespace moxie
