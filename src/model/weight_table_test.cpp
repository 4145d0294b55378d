// The table of weights: every entry and every format is written, read, inspected, planned and
// loaded alike; what is missing is named, and what a model may lack is not missed. Bytes come back
// as they were written, each tensor's different from every other's, so that a weight that a walker
// leaves out or mistakes for another shows.
#include "model/weight_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "core/packing.h"
#include "model/loader.h"
#include "model/testing/files.h"
#include "model/testing/harness.h"
#include "model/testing/host_cuda_device.h"
#include "model/testing/mean_kl.h"
#include "model/testing/memory_checkpoint.h"
#include "model/testing/small_config.h"
#include "model/write_checkpoint.h"
#include "weights/testing/gguf_writer.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

constexpr FileFormat kFormats[] = {FileFormat::kHuggingFace, FileFormat::kOriginal,
                                   FileFormat::kGguf, FileFormat::kOldGguf};

bool is_gguf(FileFormat format) {
  return format == FileFormat::kGguf || format == FileFormat::kOldGguf;
}

// A model with everything that a model may lack.
GptOssConfig test_config() {
  GptOssConfig config = small_config();
  for (const ConfigSwitch& one : kConfigSwitches) config.*one.member = true;
  config.eos_id = 3, config.pad_id = 4;
  return config;
}

// A model without anything that a model may lack.
GptOssConfig bare_config() {
  GptOssConfig config = test_config();
  config.num_experts = config.top_k = 1;
  for (const ConfigSwitch& one : kConfigSwitches) config.*one.member = false;
  return config;
}

// Every tensor of a checkpoint in a format, as the table says: random values, no two alike.
struct Files {
  FileFormat format;
  GptOssConfig config;
  std::vector<MemoryTensor> tensors;
  std::vector<std::string> owners;  // name of the weight, by tensor

  // In the first or the last way of storing each weight.
  bool is_first_way;

  Files(FileFormat of, const GptOssConfig& with, bool first_way = false)
      : format(of), config(with), is_first_way(first_way) {
    for_each_weight(config, [&](const Weight& weight) {
      if (!weight.is_present) return;
      std::string last;
      for (const PartInFile& part : parts_of(weight)) {
        if (part.tensor != last) add(weight, part);
        last = part.tensor;
      }
    });
  }

  std::vector<PartInFile> parts_of(const Weight& weight) const {
    return parts_in_file(weight, format, [this](const std::string&) { return is_first_way; });
  }

  void add(const Weight& weight, const PartInFile& tensor) {
    const auto count = static_cast<size_t>(tensor.shape.num_elements());
    const bool is_expert = weight.entry->types == StoredTypes::kExperts;
    if (!is_expert || is_gguf(format)) {
      std::string bytes;
      for (size_t i = 0; i < count; ++i) bytes += GgufWriter::raw(f32_to_bf16(value()));
      return push(weight, tensor.tensor, "BF16", tensor.shape, bytes);
    }
    const Shape scales{tensor.shape[0], tensor.shape[1], tensor.shape[2] / kMxBlock};
    const Shape blocks{scales[0], scales[1], scales[2], 16};
    std::string codes(count / 2, '\0'), exponents(count / kMxBlock, '\0');
    for (char& c : codes) c = static_cast<char>(next() >> 20);
    for (char& c : exponents) c = static_cast<char>(120 + next() % 8);
    push(weight, tensor.tensor + std::string(format_names(format).blocks), "U8", blocks, codes);
    push(weight, tensor.tensor + std::string(format_names(format).scales), "U8", scales, exponents);
  }

  void push(const Weight& weight, const std::string& name, const char* dtype, const Shape& shape,
            const std::string& bytes) {
    tensors.push_back({name, dtype, shape, bytes});
    owners.push_back(weight.name());
  }

  uint32_t next() { return state = state * 1664525u + 1013904223u; }
  float value() {
    return static_cast<float>(static_cast<int32_t>(next() >> 8) - (1 << 23)) * 1e-6f;
  }
  uint32_t state = 1;

  // The path of a checkpoint of all tensors but the one named.
  std::string write_to(const fs::path& folder, const std::string& without = {}) const {
    fs::remove_all(folder);
    MemoryCheckpoint kept;
    kept.config = config;
    for (const MemoryTensor& tensor : tensors)
      if (tensor.name != without) kept.tensors.push_back(tensor);
    if (is_gguf(format)) {
      write(folder / "m.gguf", gguf_of(kept));
      return (folder / "m.gguf").string();
    }
    write(folder / "model.safetensors", kept.safetensors());
    write(folder / "config.json",
          format == FileFormat::kOriginal ? original_config_json(config) : config_json(config));
    return folder.string();
  }

  std::string gguf_of(const MemoryCheckpoint& kept) const {
    GgufWriter writer;
    write_gguf_keys(config, {.is_old = format == FileFormat::kOldGguf}, &writer);
    for (const MemoryTensor& tensor : kept.tensors) {
      const std::vector<uint64_t> dims(tensor.shape.dims, tensor.shape.dims + tensor.shape.rank);
      writer.tensor(tensor.name, 30, dims, tensor.bytes);
    }
    return writer.bytes();
  }
};

std::string all_faults(const Checkpoint& checkpoint) {
  std::string text;
  for (const Fault& fault : checkpoint.faults()) text += fault.message() + "\n";
  return text;
}

std::unique_ptr<Checkpoint> open(const std::string& path) {
  auto checkpoint = open_checkpoint(path);
  CHECK(checkpoint.has_value(), checkpoint ? "" : checkpoint.error().message());
  return std::move(*checkpoint);
}

// A packed row of a weight: row r of part p.
int32_t packed_row(const Weight& weight, const GptOssConfig& config, DeviceKind kind, int p,
                   int32_t r) {
  const bool is_cpu = kind == DeviceKind::kCpu;
  if (weight.is_gate_up()) return is_cpu ? gate_up_packed_row(r, p) : fragment_gate_up_row(r, p);
  for (int before = 0; before < p; ++before) r += weight.part_rows[before];
  if (is_cpu || weight.is_vector() || weight.entry->order == PackedRowOrder::kNatural) return r;
  for (int32_t packed = r / config.head_dim * config.head_dim;; ++packed)
    if (fragment_qkv_row(packed, config.head_dim) == r) return packed;
}

double element(const Weight& weight, const ModelWeights& weights, int32_t e, int32_t row,
               int32_t k) {
  double out = 0;
  visit_place(weight, weights,
              Overloaded{[&](const RowTable& table) {
                           uint16_t bits = 0;
                           std::memcpy(&bits, table.data + row * table.row_bytes() + 2 * k, 2);
                           out = bf16_to_f32(bits);
                         },
                         [&](const PackedMatrix& matrix) {
                           out = matrix.layout == PackedLayout::kRows16
                                     ? packed_value(matrix.expert(e), row, k)
                                     : fragment_value(matrix.expert(e), row, k);
                         },
                         [&](const float* vector) { out = vector[e * weight.rows + row]; }});
  return out;
}

// Every element of every weight against the files' bytes; zeros where the model has none.
void expect_holds(const Files& files, const ModelWeights& weights,
                  DeviceKind kind = DeviceKind::kCpu) {
  std::map<std::string, const MemoryTensor*> by_name;
  for (const MemoryTensor& tensor : files.tensors) by_name[tensor.name] = &tensor;
  const auto stored = [&](const Weight& weight, const PartInFile& part, int32_t e, int32_t r,
                          int32_t k) -> double {
    const int64_t cols = std::max(weight.cols, 1);
    const int64_t rows = part.shape[weight.entry->is_per_expert ? 1 : 0];
    const int64_t i = (e * rows + part.first + int64_t{r} * part.step) * cols + k;
    if (by_name.count(part.tensor) > 0) {
      uint16_t bits = 0;
      std::memcpy(&bits, by_name[part.tensor]->bytes.data() + 2 * i, 2);
      return bf16_to_f32(bits);
    }
    const FormatNames& names = format_names(files.format);
    const auto byte = [&](std::string_view suffix, int64_t at) {
      const MemoryTensor* tensor = by_name.at(part.tensor + std::string(suffix));
      return static_cast<uint8_t>(tensor->bytes.at(static_cast<size_t>(at)));
    };
    const int code = byte(names.blocks, i / 2) >> (4 * (i % 2)) & 15;
    return double{e2m1_to_f32(static_cast<uint8_t>(code))} *
           e8m0_to_f32(byte(names.scales, i / kMxBlock));
  };
  for_each_weight(files.config, [&](const Weight& weight) {
    if (weight.is_null()) {
      visit_place(weight, weights,
                  Overloaded{[](const float* vector) { EXPECT_EQ(vector, nullptr); },
                             [](const auto&) { ADD_FAILURE(); }});
      return;
    }
    const std::vector<PartInFile> parts = files.parts_of(weight);
    int64_t num_wrong = 0;
    for (int32_t e = 0; e < weight.num_experts; ++e)
      for (int p = 0; p < weight.num_parts; ++p)
        for (int32_t r = 0; r < weight.part_rows[p]; ++r)
          for (int32_t k = 0; k < std::max(weight.cols, 1); ++k) {
            const double want =
                weight.is_present ? stored(weight, parts[static_cast<size_t>(p)], e, r, k) : 0.0;
            num_wrong += element(weight, weights, e, packed_row(weight, files.config, kind, p, r),
                                 k) != want;
          }
    EXPECT_EQ(num_wrong, 0) << weight.name();
  });
}

class EveryFormat : public testing::TestWithParam<FileFormat> {};
std::string format_name(const testing::TestParamInfo<FileFormat>& info) {
  constexpr const char* kNames[] = {"HuggingFace", "Original", "Gguf", "OldGguf"};
  return kNames[info.index];
}
INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(kFormats), format_name);

void expect_agreement(const Files& files) {
  const auto checkpoint = open(files.write_to(fresh_folder()));
  EXPECT_EQ(all_faults(*checkpoint), "");
  for (const ConfigSwitch& one : kConfigSwitches)
    EXPECT_EQ(checkpoint->config().*one.member, files.config.*one.member) << one.name;
  // What inspect shows: each tensor, and the weight that it is part of.
  const std::vector<StoredTensor> listed = checkpoint->tensors();
  ASSERT_EQ(listed.size(), files.tensors.size());
  for (size_t i = 0; i < listed.size(); ++i) {
    const auto at = std::find_if(listed.begin(), listed.end(), [&](const StoredTensor& tensor) {
      return tensor.name == files.tensors[i].name;
    });
    ASSERT_NE(at, listed.end()) << files.tensors[i].name;
    EXPECT_EQ(at->weight, files.owners[i]) << at->name;
    EXPECT_EQ(at->shape, files.tensors[i].shape) << at->name;
  }
  const auto cpu = make_cpu_device(2);
  HostCudaDevice cuda;
  for (Device* device : {cpu.get(), static_cast<Device*>(&cuda)}) {
    const LoadOptions options{.show_progress = false, .device = device->kind()};
    auto loaded = checkpoint->load(*device, options);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    EXPECT_EQ(checkpoint->packed_bytes(options), loaded->packed_bytes);
    EXPECT_EQ(loaded->packed_bytes, loaded->storage[0].bytes());
    expect_holds(files, *loaded, device->kind());
  }
}

TEST_P(EveryFormat, WritesReadsInspectsPlansAndLoadsAlike) {
  for (const bool is_first_way : {false, true}) {
    expect_agreement(Files(GetParam(), test_config(), is_first_way));
    expect_agreement(Files(GetParam(), bare_config(), is_first_way));
  }
}

TEST_P(EveryFormat, NamesEachTensorThatIsMissingAndEachThatTheModelLacks) {
  const GptOssConfig whole = test_config();
  const Files files(GetParam(), whole);
  const fs::path folder = fresh_folder();
  for (size_t i = 0; i < files.tensors.size(); ++i) {
    const std::string& name = files.tensors[i].name;
    const auto checkpoint = open(files.write_to(folder, name));
    if (is_gguf(GetParam()) && name == "token_embd.weight") continue;  // it tells the vocabulary
    ASSERT_EQ(checkpoint->faults().size(), 1u) << name << '\n' << all_faults(*checkpoint);
    EXPECT_EQ(checkpoint->faults()[0].tensor, name);
    EXPECT_EQ(checkpoint->faults()[0].found, "no such tensor");
    const auto device = make_cpu_device(1);
    EXPECT_FALSE(checkpoint->load(*device, {.show_progress = false}).has_value());
  }
  // The configuration says that the model lacks a weight: its tensors must not be there.
  for (const ConfigSwitch& one : kConfigSwitches) {
    Files lacking = files;
    lacking.config.*one.member = false;
    if (!lacking.config.faults().empty()) continue;
    const auto checkpoint = open(lacking.write_to(folder));
    std::set<std::string> named;
    for (const Fault& fault : checkpoint->faults()) named.insert(fault.tensor);
    for_each_weight(lacking.config, [&](const Weight& weight) {
      for (size_t i = 0; i < files.tensors.size(); ++i) {
        if (files.owners[i] != weight.name()) continue;
        EXPECT_EQ(named.contains(files.tensors[i].name), !weight.is_present) << weight.name();
      }
    });
  }
}

// Each weight that may be absent, left out alone.
TEST_P(EveryFormat, LoadsWithoutEachWeightThatAModelMayLack) {
  const auto device = make_cpu_device(1);
  for (const ConfigSwitch& one : kConfigSwitches) {
    GptOssConfig config = test_config();
    config.num_experts = config.top_k = 1;
    config.*one.member = false;
    const Files files(GetParam(), config);
    const auto checkpoint = open(files.write_to(fresh_folder()));
    EXPECT_EQ(all_faults(*checkpoint), "") << one.name;
    auto loaded = checkpoint->load(*device, {.show_progress = false});
    ASSERT_TRUE(loaded.has_value()) << one.name << loaded.error().message();
    expect_holds(files, *loaded);
  }
}

TEST(WeightTable, SaysWhatIsPossible) {
  std::set<std::string_view> names;
  std::set<std::pair<FileFormat, std::string_view>> tensors;
  for (const WeightEntry& entry : weight_table()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_NE(entry.parts[0], nullptr) << entry.name;
    EXPECT_EQ(std::holds_alternative<const float * LayerWeights::*>(entry.place) ||
                  std::holds_alternative<const float * ModelWeights::*>(entry.place),
              entry.cols == nullptr)
        << entry.name;
    const bool is_of_experts = entry.shard == ShardAxis::kExperts || entry.name == "down_bias";
    EXPECT_EQ(is_of_experts, entry.is_per_expert) << entry.name;
    EXPECT_FALSE(entry.shard == ShardAxis::kColumns && entry.cols == nullptr) << entry.name;
    EXPECT_FALSE(entry.absent == Absent::kNone && (entry.cols != nullptr || entry.has == nullptr))
        << entry.name;
    for (const FileFormat format : kFormats) {
      bool is_named = false;
      for (const StoredAs& way : entry.stored) {
        if ((way.formats & static_cast<uint8_t>(format)) == 0) continue;
        is_named = true;
        // The same tensor is never two weights.
        for (const std::string_view name : way.names) {
          if (name.empty() || way.parts != PartsIn::kOwn) continue;
          EXPECT_TRUE(tensors.insert({format, name}).second) << name;
        }
      }
      EXPECT_TRUE(is_named) << entry.name;
    }
  }
}

// The places that the walk visits are all the places that there are.
TEST(WeightTable, HasAnEntryForEveryMember) {
  const GptOssConfig config = test_config();
  ModelWeights weights;
  std::vector<std::byte> memory(
      lay_out_weights(config, packed_formats(config, {}, {}), DeviceKind::kCpu, nullptr, &weights));
  lay_out_weights(config, packed_formats(config, {}, {}), DeviceKind::kCpu, memory.data(),
                  &weights);
  // Members of the two structs by their sizes: a member without an entry stays a null pointer.
  EXPECT_NE(weights.embedding.data, nullptr);
  EXPECT_NE(weights.final_norm, nullptr);
  EXPECT_NE(weights.head.data, nullptr);
  size_t bytes = 0;
  for_each_weight(config, [&](const Weight& weight) {
    if (weight.layer != 0) return;
    visit_place(weight, weights, [&](const auto& place) { bytes += sizeof place; });
  });
  EXPECT_EQ(bytes, sizeof(LayerWeights));
}

TEST(WeightTable, WriterAndMakerHaveTheTensorsOfTheTable) {
  for (const GptOssConfig& config : {test_config(), bare_config()}) {
    const fs::path folder = fresh_folder();
    ASSERT_TRUE(write_checkpoint(config, (folder / "written").string(), {.seed = 7}).has_value());
    const auto written = open((folder / "written").string());
    EXPECT_EQ(all_faults(*written), "");
    const Files files(FileFormat::kHuggingFace, config);
    std::map<std::string, std::string> expected, found;
    for (size_t i = 0; i < files.tensors.size(); ++i)
      expected[files.tensors[i].name] = files.tensors[i].shape.to_string();
    for (const StoredTensor& tensor : written->tensors())
      found[tensor.name] = tensor.shape.to_string();
    EXPECT_EQ(found, expected);
    // What is made in place is as large, and each weight that the model has is as the entry says.
    write(folder / "config.json", config_json(config));
    const auto made = open("synthetic:" + (folder / "config.json").string());
    const auto device = make_cpu_device(2);
    auto weights = made->load(*device, {.show_progress = false});
    ASSERT_TRUE(weights.has_value()) << weights.error().message();
    EXPECT_EQ(weights->packed_bytes, written->packed_bytes({}));
    EXPECT_EQ(weights->packed_bytes, made->packed_bytes({}));
    for_each_weight(config, [&](const Weight& weight) {
      if (weight.is_null()) return;
      const double first = element(weight, *weights, 0, 0, 0);
      if (weight.is_vector() || !weight.is_present) {
        EXPECT_EQ(first, weight.is_present ? weight.entry->made : 0.0) << weight.name();
      } else {
        EXPECT_NE(element(weight, *weights, 0, 0, 1), element(weight, *weights, 0, 0, 2))
            << weight.name();
      }
    });
  }
}

// Zeros and null pointers are what the rows take: those chosen agree with the reference.
TEST(WeightTable, AModelWithoutWhatItMayLackRuns) {
  GptOssConfig config = bare_config();
  config.hidden = 192, config.num_heads = 8;
  const fs::path folder = fresh_folder();
  ASSERT_TRUE(write_checkpoint(config, (folder / "m").string(), {.seed = 2}).has_value());
  const std::vector<int32_t> ids = {5, 17, 300, 2, 2, 41, 499, 0, 8, 123, 77, 6};
  std::vector<float> logits[2];
  for (int i = 0; i < 2; ++i) {
    ModelHarness::Options options;
    if (i == 0) options.kernels = {"all=reference"};
    auto harness = ModelHarness::open((folder / "m").string(), options);
    ASSERT_TRUE(harness.has_value()) << harness.error().message();
    logits[i] = (*harness)->logits(ids);
  }
  EXPECT_LT(mean_kl(logits[0], logits[1], static_cast<size_t>(config.vocab)), 1e-4);
}

TEST(WeightTable, PlainSwigluIsReadAndPlannedAndNotLoadedYet) {
  GptOssConfig config = test_config();
  config.activation = Activation::kSwiglu;
  for (const FileFormat format : kFormats) {
    const auto checkpoint = open(Files(format, config).write_to(fresh_folder()));
    EXPECT_EQ(checkpoint->config().activation, Activation::kSwiglu);
    EXPECT_EQ(all_faults(*checkpoint), "");
    EXPECT_GT(checkpoint->packed_bytes({}), 0u);
    const auto device = make_cpu_device(1);
    const auto loaded = checkpoint->load(*device, {.show_progress = false});
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("no row of experts computes plain SwiGLU yet"),
              std::string::npos)
        << loaded.error().message();
  }
}

TEST(WeightTable, ConfigurationRefusesWhatItCannotMean) {
  GptOssConfig config = test_config();
  config.mlp_router = false;
  ASSERT_EQ(config.faults().size(), 1u);
  EXPECT_EQ(config.faults()[0], "mlp_router: found false, expected true with more than one expert");
  std::string text = config_json(test_config());
  text.insert(text.find('{') + 1, "\"mlp_activation\": \"gelu\", \"attention_sinks\": 1,");
  const auto parsed = parse_config_json(text, "config.json");
  ASSERT_FALSE(parsed.has_value());
  for (const char* part : {"mlp_activation: found \"gelu\", expected \"clamped_swiglu\" or",
                           "attention_sinks: found 1, expected true or false"})
    EXPECT_NE(parsed.error().message().find(part), std::string::npos) << parsed.error().message();
}

}  // namespace
}  // namespace moxie
