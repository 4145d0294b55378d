// A small Hugging Face checkpoint in memory that tests change, damage and write in other formats.
// Names and orders of the formats are written out here a second time, apart from the loader.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"
#include "model/config.h"

namespace moxie {

struct MemoryTensor {
  std::string name, dtype;  ///< dtype as safetensors names it
  Shape shape;
  std::string bytes;
};

class MemoryCheckpoint {
 public:
  /// Reads FOLDER/model.safetensors and FOLDER/config.json; CHECKs that they are sound.
  static MemoryCheckpoint read(const std::string& folder);

  std::vector<MemoryTensor> tensors;
  GptOssConfig config;

  MemoryTensor& at(const std::string& name);
  void erase(const std::string& name);
  /// Elements of a BF16, F16 or F32 tensor, or of expert matrix `name` (without _blocks).
  std::vector<float> values(const std::string& name);

  std::string safetensors() const;
  /// The `original/` layout: fused qkv, other names.
  MemoryCheckpoint original() const;
  /// Experts as dense BF16 [E, in, out] instead of blocks and scales.
  MemoryCheckpoint with_dense_experts() const;

  struct GgufOptions {
    bool is_merged = false;
    bool is_old = false;       ///< architecture "gptoss": fused qkv, gate and up rows in turn
    uint32_t dense_type = 30;  ///< ggml's number: 0 F32, 1 F16, 8 Q8_0, 30 BF16
    int num_parts = 1;
    std::vector<std::string> tokens, merges;
    std::vector<int32_t> token_types;
  };
  /// One file a part.
  std::vector<std::string> gguf(const GgufOptions& options) const;
};

class GgufWriter;
/// The keys of a GGUF file of a configuration.
void write_gguf_keys(const GptOssConfig& config, const MemoryCheckpoint::GgufOptions& options,
                     GgufWriter* writer);

/// original/config.json of a configuration.
std::string original_config_json(const GptOssConfig& config);

/// Q8_0 blocks of a row of values: FP16 scale amax / 127, 32 int8.
std::string q8_0_blocks(const std::vector<float>& values);

}  // namespace moxie
