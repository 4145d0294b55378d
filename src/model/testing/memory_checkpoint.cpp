// Changes of format, tensor by tensor.
#include "model/testing/memory_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/formats.h"
#include "weights/safetensors.h"
#include "weights/testing/gguf_writer.h"
#include "weights/testing/safetensors_bytes.h"

namespace moxie {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<float> floats_of(const MemoryTensor& tensor) {
  const size_t width = tensor.dtype == "F32" ? 4 : 2;
  std::vector<float> out(tensor.bytes.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, tensor.bytes.data() + width * i, 2);
    if (tensor.dtype == "F32")
      std::memcpy(&out[i], tensor.bytes.data() + 4 * i, 4);
    else
      out[i] = tensor.dtype == "BF16" ? bf16_to_f32(half) : f16_to_f32(half);
  }
  return out;
}

// Rows `order` of each expert of a tensor [experts, rows, ...].
MemoryTensor take_rows(const MemoryTensor& tensor, const std::vector<int64_t>& order) {
  MemoryTensor out = tensor;
  const int64_t num_experts = tensor.shape[0], num_rows = tensor.shape[1];
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(num_experts * num_rows);
  out.shape.dims[1] = static_cast<int64_t>(order.size());
  out.bytes.clear();
  for (int64_t e = 0; e < num_experts; ++e) {
    for (const int64_t row : order)
      out.bytes +=
          tensor.bytes.substr(static_cast<size_t>(e * num_rows + row) * row_bytes, row_bytes);
  }
  return out;
}

// Blocks [.., B, 16] of adjacent pairs with scales to GGUF's 17-byte blocks of halves.
std::string gguf_mxfp4(const MemoryTensor& blocks, const MemoryTensor& scales) {
  std::string out;
  for (size_t b = 0; b < scales.bytes.size(); ++b) {
    const auto* pairs = reinterpret_cast<const uint8_t*>(blocks.bytes.data()) + 16 * b;
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(pairs[i / 2] >> (4 * (i % 2)) & 15);
    out += scales.bytes[b];
    for (int j = 0; j < 16; ++j) out += static_cast<char>(codes[j] | codes[j + 16] << 4);
  }
  return out;
}

std::vector<int64_t> rows_from(int64_t first, int64_t count, int64_t step) {
  std::vector<int64_t> out;
  for (int64_t i = first; i < count; i += step) out.push_back(i);
  return out;
}

struct GgufEntry {
  std::string name;
  uint32_t type;
  std::vector<uint64_t> dims;
  std::string bytes;
};

// The tensors of a GGUF file, in GGUF's names, types and orders.
class GgufEntries {
 public:
  GgufEntries(const MemoryCheckpoint& source, const MemoryCheckpoint::GgufOptions& options)
      : source_(source), fused_(source.original()), options_(options) {}

  std::vector<GgufEntry> all() {
    matrix("token_embd.weight", source_.at("model.embed_tokens.weight"));
    for (int32_t i = 0; i < source_.config.num_layers; ++i) {
      attention(i);
      experts(i);
    }
    vector("output_norm.weight", source_.at("model.norm.weight"));
    matrix("output.weight", source_.at("lm_head.weight"));
    return std::move(entries_);
  }

 private:
  static std::vector<uint64_t> dims_of(const Shape& shape) {
    return {shape.dims, shape.dims + shape.rank};
  }
  void vector(const std::string& name, const MemoryTensor& tensor) {
    entries_.push_back({name, 0, dims_of(tensor.shape), bytes_of(floats_of(tensor))});
  }
  void matrix(const std::string& name, const MemoryTensor& tensor) {
    const std::vector<float> values = floats_of(tensor);
    GgufEntry entry{name, options_.dense_type, dims_of(tensor.shape), ""};
    if (entry.type == 0) entry.bytes = bytes_of(values);
    if (entry.type == 8) entry.bytes = q8_0_blocks(values);
    for (const float value : values) {
      if (entry.type == 1) entry.bytes += GgufWriter::raw(f32_to_f16(value));
      if (entry.type == 30) entry.bytes += GgufWriter::raw(f32_to_bf16(value));
    }
    entries_.push_back(std::move(entry));
  }
  void expert_matrix(const std::string& name, const std::string& hugging_face,
                     const std::vector<int64_t>& order) {
    const MemoryTensor blocks = take_rows(source_.at(hugging_face + "_blocks"), order);
    const MemoryTensor scales = take_rows(source_.at(hugging_face + "_scales"), order);
    std::vector<uint64_t> dims = dims_of(scales.shape);
    dims[2] *= 32;
    entries_.push_back({name, 39, dims, gguf_mxfp4(blocks, scales)});
  }

  void attention(int32_t layer) {
    const std::string here = fmt::format("blk.{}.", layer);
    const std::string there = fmt::format("model.layers.{}.", layer);
    const bool is_old = options_.is_old;
    vector(here + "attn_norm.weight", source_.at(there + "input_layernorm.weight"));
    vector(here + (is_old ? "attn_sinks" : "attn_sinks.weight"),
           source_.at(there + "self_attn.sinks"));
    vector(here + (is_old ? "ffn_norm.weight" : "post_attention_norm.weight"),
           source_.at(there + "post_attention_layernorm.weight"));
    std::vector<std::pair<std::string, std::string>> dense = {
        {is_old ? "attn_out" : "attn_output", "self_attn.o_proj"}, {"ffn_gate_inp", "mlp.router"}};
    if (is_old) {
      const std::string fused = fmt::format("block.{}.attn.qkv.", layer);
      matrix(here + "attn_qkv.weight", fused_.at(fused + "weight"));
      vector(here + "attn_qkv.bias", fused_.at(fused + "bias"));
    } else {
      for (const char* part : {"q", "k", "v"})
        dense.push_back({std::string("attn_") + part, fmt::format("self_attn.{}_proj", part)});
    }
    for (const auto& [ours, theirs] : dense) {
      matrix(here + ours + ".weight", source_.at(there + theirs + ".weight"));
      vector(here + ours + ".bias", source_.at(there + theirs + ".bias"));
    }
  }

  void experts(int32_t layer) {
    const std::string here = fmt::format("blk.{}.ffn_", layer);
    const std::string there = fmt::format("model.layers.{}.mlp.experts.", layer);
    const int64_t num_rows = 2 * source_.config.intermediate;
    const auto both = [&](const std::string& name, const std::vector<int64_t>& order) {
      expert_matrix(here + name + "_exps.weight", there + "gate_up_proj", order);
      vector(here + name + "_exps.bias", take_rows(source_.at(there + "gate_up_proj_bias"), order));
    };
    const std::vector<int64_t> gate = rows_from(0, num_rows, 2), up = rows_from(1, num_rows, 2);
    if (options_.is_old) {
      both("gate_up", rows_from(0, num_rows, 1));
    } else if (options_.is_merged) {
      std::vector<int64_t> gate_then_up = gate;
      gate_then_up.insert(gate_then_up.end(), up.begin(), up.end());
      both("gate_up", gate_then_up);
    } else {
      both("gate", gate);
      both("up", up);
    }
    expert_matrix(here + "down_exps.weight", there + "down_proj",
                  rows_from(0, source_.config.hidden, 1));
    vector(here + "down_exps.bias", source_.at(there + "down_proj_bias"));
  }

  MemoryCheckpoint source_, fused_;
  const MemoryCheckpoint::GgufOptions& options_;
  std::vector<GgufEntry> entries_;
};

}  // namespace

void write_gguf_keys(const GptOssConfig& config, const MemoryCheckpoint::GgufOptions& options,
                     GgufWriter* writer) {
  const std::string arch = options.is_old ? "gptoss" : "gpt-oss";
  writer->add("general.architecture", arch);
  const std::pair<const char*, int32_t> counts[] = {
      {"block_count", config.num_layers},
      {"embedding_length", config.hidden},
      {"expert_feed_forward_length", config.intermediate},
      {"attention.head_count", config.num_heads},
      {"attention.head_count_kv", config.num_kv_heads},
      {"attention.key_length", config.head_dim},
      {"attention.sliding_window", config.sliding_window},
      {"expert_count", config.num_experts},
      {"expert_used_count", config.top_k},
      {"context_length", config.max_positions},
      {"rope.scaling.original_context_length", config.rope_original_context},
  };
  for (const auto& [key, value] : counts)
    writer->add(arch + "." + key, static_cast<uint32_t>(value));
  writer->add(arch + ".attention.layer_norm_rms_epsilon", config.rms_eps);
  writer->add(arch + ".rope.freq_base", static_cast<float>(config.rope_theta));
  writer->add(arch + ".rope.scaling.type", "yarn");
  writer->add(arch + ".rope.scaling.factor", static_cast<float>(config.rope_factor));
  writer->add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_id));
  writer->add("tokenizer.ggml.padding_token_id", static_cast<uint32_t>(config.pad_id));
  for (const ConfigSwitch& one : kConfigSwitches)
    writer->pair(arch + "." + one.name, 7, GgufWriter::raw(config.*one.member));
  if (config.activation == Activation::kSwiglu) writer->add(arch + ".mlp_activation", "swiglu");
  if (options.tokens.empty()) return;
  writer->add("tokenizer.ggml.tokens", options.tokens);
  writer->add("tokenizer.ggml.token_type", options.token_types);
  writer->add("tokenizer.ggml.merges", options.merges);
}

std::string q8_0_blocks(const std::vector<float>& values) {
  std::string out;
  for (size_t b = 0; b + 32 <= values.size(); b += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(values[b + i]));
    const float scale = amax / 127.0f;
    out += GgufWriter::raw(f32_to_f16(scale));
    for (size_t i = 0; i < 32; ++i)
      out += static_cast<char>(scale > 0 ? std::lround(values[b + i] * (1.0f / scale)) : 0);
  }
  return out;
}

MemoryCheckpoint MemoryCheckpoint::read(const std::string& folder) {
  MemoryCheckpoint out;
  Result<GptOssConfig> config = parse_config_json(read_file(folder + "/config.json"), folder);
  CHECK(config.has_value(), folder);
  out.config = std::move(*config);
  const Result<SafetensorsFile> file = SafetensorsFile::open(folder + "/model.safetensors");
  CHECK(file.has_value(), folder);
  for (const FileTensor& tensor : file->tensors()) {
    out.tensors.push_back(
        {tensor.name, tensor.dtype_text, tensor.shape,
         std::string(reinterpret_cast<const char*>(file->data(tensor)), tensor.bytes)});
  }
  return out;
}

MemoryTensor& MemoryCheckpoint::at(const std::string& name) {
  for (MemoryTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  CHECK(false, "no tensor " + name);
  return tensors[0];
}

void MemoryCheckpoint::erase(const std::string& name) {
  std::erase_if(tensors, [&](const MemoryTensor& tensor) { return tensor.name == name; });
}

std::vector<float> MemoryCheckpoint::values(const std::string& name) {
  if (name.find(".experts.") == std::string::npos || name.ends_with("_bias"))
    return floats_of(at(name));
  const MemoryTensor& blocks = at(name + "_blocks");
  const MemoryTensor& scales = at(name + "_scales");
  std::vector<float> out;
  for (size_t b = 0; b < scales.bytes.size(); ++b) {
    const float scale = e8m0_to_f32(static_cast<uint8_t>(scales.bytes[b]));
    for (int i = 0; i < 32; ++i) {
      const auto byte = static_cast<uint8_t>(blocks.bytes[16 * b + static_cast<size_t>(i / 2)]);
      out.push_back(e2m1_to_f32(byte >> (4 * (i % 2)) & 15) * scale);
    }
  }
  return out;
}

std::string MemoryCheckpoint::safetensors() const {
  std::vector<TensorBytes> list;
  for (const MemoryTensor& tensor : tensors) {
    list.push_back({tensor.name, tensor.dtype, tensor.shape,
                    std::as_bytes(std::span(tensor.bytes.data(), tensor.bytes.size()))});
  }
  return safetensors_bytes(list);
}

MemoryCheckpoint MemoryCheckpoint::original() const {
  static const std::map<std::string, std::string> kNames = {
      {"input_layernorm.weight", "attn.norm.scale"},
      {"self_attn.sinks", "attn.sinks"},
      {"self_attn.o_proj.weight", "attn.out.weight"},
      {"self_attn.o_proj.bias", "attn.out.bias"},
      {"post_attention_layernorm.weight", "mlp.norm.scale"},
      {"mlp.router.weight", "mlp.gate.weight"},
      {"mlp.router.bias", "mlp.gate.bias"},
      {"mlp.experts.gate_up_proj_blocks", "mlp.mlp1_weight.blocks"},
      {"mlp.experts.gate_up_proj_scales", "mlp.mlp1_weight.scales"},
      {"mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias"},
      {"mlp.experts.down_proj_blocks", "mlp.mlp2_weight.blocks"},
      {"mlp.experts.down_proj_scales", "mlp.mlp2_weight.scales"},
      {"mlp.experts.down_proj_bias", "mlp.mlp2_bias"}};
  MemoryCheckpoint source = *this, out;
  out.config = config;
  const auto add = [&](const std::string& name, const std::string& hugging_face) {
    out.tensors.push_back(source.at(hugging_face));
    out.tensors.back().name = name;
  };
  add("embedding.weight", "model.embed_tokens.weight");
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const std::string here = fmt::format("block.{}.", i),
                      there = fmt::format("model.layers.{}.", i);
    for (const auto& [hugging_face, name] : kNames) add(here + name, there + hugging_face);
    for (const char* kind : {"weight", "bias"}) {
      MemoryTensor fused = source.at(there + "self_attn.q_proj." + kind);
      fused.name = here + "attn.qkv." + kind;
      for (const char* part : {"k", "v"})
        fused.bytes += source.at(fmt::format("{}self_attn.{}_proj.{}", there, part, kind)).bytes;
      fused.shape.dims[0] = config.qkv_width();
      out.tensors.push_back(std::move(fused));
    }
  }
  add("norm.scale", "model.norm.weight");
  add("unembedding.weight", "lm_head.weight");
  return out;
}

MemoryCheckpoint MemoryCheckpoint::with_dense_experts() const {
  MemoryCheckpoint out = *this;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    for (const char* kind : {"gate_up_proj", "down_proj"}) {
      const std::string name = fmt::format("model.layers.{}.mlp.experts.{}", i, kind);
      const std::vector<float> values = out.values(name);
      const Shape scales = out.at(name + "_scales").shape;
      const int64_t num_experts = scales[0], rows = scales[1], cols = scales[2] * 32;
      std::vector<uint16_t> dense(values.size());
      for (int64_t e = 0; e < num_experts; ++e) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t k = 0; k < cols; ++k) {
            dense[static_cast<size_t>((e * cols + k) * rows + r)] =
                f32_to_bf16(values[static_cast<size_t>((e * rows + r) * cols + k)]);
          }
        }
      }
      out.erase(name + "_blocks");
      out.erase(name + "_scales");
      out.tensors.push_back({name, "BF16", {num_experts, cols, rows}, bytes_of(dense)});
    }
  }
  return out;
}

std::vector<std::string> MemoryCheckpoint::gguf(const GgufOptions& options) const {
  const std::vector<GgufEntry> entries = GgufEntries(*this, options).all();
  std::vector<std::string> files;
  const auto num_parts = static_cast<size_t>(options.num_parts);
  for (size_t part = 0; part < num_parts; ++part) {
    GgufWriter writer;
    if (part == 0) write_gguf_keys(config, options, &writer);
    if (num_parts > 1) {
      writer.pair("split.no", 2, GgufWriter::raw(static_cast<uint16_t>(part)));
      writer.pair("split.count", 2, GgufWriter::raw(static_cast<uint16_t>(num_parts)));
      writer.pair("split.tensors.count", 5, GgufWriter::raw(static_cast<int32_t>(entries.size())));
    }
    for (size_t i = entries.size() * part / num_parts; i < entries.size() * (part + 1) / num_parts;
         ++i) {
      writer.tensor(entries[i].name, entries[i].type, entries[i].dims, entries[i].bytes);
    }
    files.push_back(writer.bytes());
  }
  return files;
}

std::string original_config_json(const GptOssConfig& config) {
  nlohmann::json json = {{"num_hidden_layers", config.num_layers},
                         {"num_experts", config.num_experts},
                         {"experts_per_token", config.top_k},
                         {"vocab_size", config.vocab},
                         {"hidden_size", config.hidden},
                         {"intermediate_size", config.intermediate},
                         {"swiglu_limit", config.swiglu_limit},
                         {"head_dim", config.head_dim},
                         {"num_attention_heads", config.num_heads},
                         {"num_key_value_heads", config.num_kv_heads},
                         {"sliding_window", config.sliding_window},
                         {"initial_context_length", config.rope_original_context},
                         {"rope_theta", config.rope_theta},
                         {"rope_scaling_factor", config.rope_factor},
                         {"rope_ntk_alpha", config.rope_beta_slow},
                         {"rope_ntk_beta", config.rope_beta_fast}};
  for (const ConfigSwitch& one : kConfigSwitches) json[one.name] = config.*one.member;
  if (config.activation == Activation::kSwiglu) json["mlp_activation"] = "swiglu";
  return json.dump();
}

}  // namespace moxie
