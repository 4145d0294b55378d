// GGUF's names, orders and keys of heads, as llama.cpp's converters write them.
#include "model/testing/gguf_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "core/formats.h"
#include "core/packing.h"
#include "weights/safetensors.h"
#include "weights/testing/safetensors_bytes.h"

namespace moxie {
namespace {

using Json = nlohmann::json;

std::vector<float> floats_of(const MemoryTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.shape.num_elements()));
  CHECK(tensor.dtype == "BF16" || tensor.dtype == "F32", tensor.name);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    if (tensor.dtype == "F32")
      std::memcpy(&out[i], tensor.bytes.data() + 4 * i, 4);
    else
      std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
    if (tensor.dtype == "BF16") out[i] = bf16_to_f32(half);
  }
  return out;
}

std::string stored(const std::vector<float>& values, uint32_t type) {
  if (type == 8) return q8_0_blocks(values);
  if (type == 39) return mxfp4_blocks(values);
  std::string out;
  for (const float value : values) {
    if (type == 0) out += GgufWriter::raw(value);
    if (type == 1) out += GgufWriter::raw(f32_to_f16(value));
    if (type == 30) out += GgufWriter::raw(f32_to_bf16(value));
  }
  return out;
}

// LlamaModel.permute: halves of each head of attention become pairs.
std::vector<float> interleaved(const std::vector<float>& values, const Shape& shape,
                               int64_t num_heads) {
  const int64_t rows = shape[0], cols = shape.rank > 1 ? shape[1] : 1;
  const int64_t half = rows / num_heads / 2;
  std::vector<float> out;
  for (int64_t head = 0; head < num_heads; ++head) {
    for (int64_t i = 0; i < half; ++i) {
      for (int64_t part = 0; part < 2; ++part) {
        const auto row = values.begin() + ((head * 2 + part) * half + i) * cols;
        out.insert(out.end(), row, row + cols);
      }
    }
  }
  return out;
}

std::string gguf_name(const std::string& name, bool is_dflash) {
  static const std::map<std::string, std::string> kParts = {
      {"input_layernorm", "attn_norm"},
      {"hidden_norm", "attn_norm_2"},
      {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  if (name == "hidden_norm.weight" && is_dflash) return "enc.output_norm.weight";
  if (name == "input_norm.weight") return "enc.output_norm.weight";
  if (name == "norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  if (name == "embed_tokens.weight") return "token_embd.weight";
  if (!name.starts_with("layers.")) return name;
  const size_t dot = name.find('.', 7), end = name.rfind('.');
  return "blk." + name.substr(7, dot - 7) + "." + kParts.at(name.substr(dot + 1, end - dot - 1)) +
         name.substr(end);
}

void boolean(GgufWriter* writer, const std::string& key, bool value) {
  writer->pair(key, 7, std::string(1, value ? '\1' : '\0'));
}

}  // namespace

std::string mxfp4_blocks(const std::vector<float>& values) {
  std::string out;
  for (size_t at = 0; at + 32 <= values.size(); at += 32) {
    uint8_t codes[32];
    out += static_cast<char>(quantize_mxfp4(&values[at], codes));
    for (int j = 0; j < 16; ++j) out += static_cast<char>(codes[j] | codes[j + 16] << 4);
  }
  return out;
}

MemoryHead MemoryHead::read(const std::string& folder) {
  MemoryHead head;
  std::ifstream config(folder + "/config.json");
  head.config = Json::parse(config);
  const auto file = SafetensorsFile::open(folder + "/model.safetensors");
  CHECK(file.has_value(), folder);
  for (const FileTensor& tensor : file->tensors())
    head.tensors.push_back(
        {tensor.name, tensor.dtype_text, tensor.shape,
         std::string(reinterpret_cast<const char*>(file->data(tensor)), tensor.bytes)});
  return head;
}

const Json& MemoryHead::layer_config() const {
  return config.contains("transformer_layer_config") ? config["transformer_layer_config"] : config;
}

MemoryTensor& MemoryHead::at(const std::string& name) {
  for (MemoryTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  CHECK(false, name);
}

void MemoryHead::add(const std::string& name, const Shape& shape,
                     const std::vector<float>& values) {
  tensors.push_back({name, "F32", shape, stored(values, 0)});
}

void MemoryHead::round_to(uint32_t type) {
  for (MemoryTensor& tensor : tensors) {
    if (tensor.shape.rank != 2 || tensor.name == "embed_tokens.weight") continue;
    std::vector<float> values = floats_of(tensor);
    const std::string blocks = stored(values, type);
    const StoredRows rows{
        .kind = type == 39 ? StoredRows::Kind::kMxfp4Gguf : StoredRows::Kind::kQ8_0,
        .data = reinterpret_cast<const std::byte*>(blocks.data()),
        .cols = static_cast<int32_t>(values.size())};
    CHECK(type == 8 || type == 39);
    rows.read_row(0, values.data());
    tensor.dtype = "F32";
    tensor.bytes = stored(values, 0);
  }
}

void MemoryHead::write_folder(const std::string& folder) const {
  std::vector<TensorBytes> list;
  for (const MemoryTensor& tensor : tensors)
    list.push_back({tensor.name, tensor.dtype, tensor.shape,
                    std::as_bytes(std::span(tensor.bytes.data(), tensor.bytes.size()))});
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << safetensors_bytes(list);
  std::ofstream(folder + "/config.json") << config.dump();
}

std::string MemoryHead::gguf(const GgufOptions& options) const {
  const Json& layer = layer_config();
  const std::string arch = is_dflash() ? "dflash" : "eagle3";
  GgufWriter writer;
  const auto count = [&](const char* name, const Json& value) {
    writer.add(arch + "." + name, value.get<uint32_t>());
  };
  const auto number = [&](const char* name, const Json& value) {
    writer.add(arch + "." + name, value.get<float>());
  };
  writer.add("general.architecture", arch);
  count("block_count", layer["num_hidden_layers"]);
  count("context_length", layer["max_position_embeddings"]);
  count("embedding_length", layer["hidden_size"]);
  count("feed_forward_length", layer["intermediate_size"]);
  count("attention.head_count", layer["num_attention_heads"]);
  count("attention.head_count_kv", layer["num_key_value_heads"]);
  count("attention.key_length", layer["head_dim"]);
  count("attention.value_length", layer["head_dim"]);
  count("rope.dimension_count", layer["head_dim"]);
  count("vocab_size", layer["vocab_size"]);
  count("target_hidden_size", layer["hidden_size"]);
  number("attention.layer_norm_rms_epsilon", layer["rms_norm_eps"]);
  const Json rope = layer.value("rope_scaling", layer.value("rope_parameters", Json::object()));
  number("rope.freq_base", rope.contains("rope_theta") ? rope["rope_theta"] : layer["rope_theta"]);
  if (options.rope_freqs.empty()) {
    writer.add(arch + ".rope.scaling.type", rope["rope_type"].get<std::string>());
    number("rope.scaling.factor", rope["factor"]);
    count("rope.scaling.original_context_length", rope["original_max_position_embeddings"]);
    number("rope.scaling.yarn_beta_fast", rope["beta_fast"]);
    number("rope.scaling.yarn_beta_slow", rope["beta_slow"]);
  } else {
    writer.tensor("rope_freqs.weight", 0, {options.rope_freqs.size()},
                  stored(options.rope_freqs, 0));
  }
  const Json eagle = config.value("eagle_config", config);
  if (is_dflash()) {
    auto ids = config["dflash_config"]["target_layer_ids"].get<std::vector<int32_t>>();
    if (!options.is_old)
      for (int32_t& id : ids) ++id;
    writer.add("dflash.target_layers", ids);
    count("block_size", config["block_size"]);
    writer.add(options.is_old ? "dflash.mask_token_id" : "tokenizer.ggml.mask_token_id",
               config["dflash_config"]["mask_token_id"].get<uint32_t>());
  } else {
    writer.add(options.is_old ? "eagle3.extract_layers" : "eagle3.target_layers",
               eagle["eagle_aux_hidden_state_layer_ids"].get<std::vector<int32_t>>());
    boolean(&writer, "eagle3.norm_before_residual", eagle.value("norm_before_residual", false));
    if (eagle.value("norm_before_fc", false)) boolean(&writer, "eagle3.norm_before_fc", true);
  }
  for (const MemoryTensor& tensor : tensors) {
    const std::string name = gguf_name(tensor.name, is_dflash());
    const auto& left_out = options.left_out;
    if (name == "t2d" || std::find(left_out.begin(), left_out.end(), name) != left_out.end())
      continue;
    const std::vector<uint64_t> dims(tensor.shape.dims, tensor.shape.dims + tensor.shape.rank);
    if (name == "d2t") {  // absolute ids, where safetensors has offsets
      std::string ids;
      for (int64_t i = 0; i < tensor.shape[0]; ++i) {
        int64_t offset = 0;
        std::memcpy(&offset, tensor.bytes.data() + 8 * i, 8);
        ids += GgufWriter::raw(i + offset);
      }
      writer.tensor(name, 27, dims, ids);
      continue;
    }
    std::vector<float> values = floats_of(tensor);
    const bool is_query = name.find("attn_q.") != name.npos;
    if (!is_dflash() && (is_query || name.find("attn_k.") != name.npos))
      values = interleaved(
          values, tensor.shape,
          layer[is_query ? "num_attention_heads" : "num_key_value_heads"].get<int64_t>());
    const bool is_matrix = tensor.shape.rank == 2;
    const bool is_table = name == "token_embd.weight";
    const uint32_t type = is_table && options.type == 39 ? 30 : is_matrix ? options.type : 0;
    writer.tensor(name, type, dims, stored(values, type));
  }
  if (options.change) options.change(&writer);
  return writer.bytes();
}

}  // namespace moxie
