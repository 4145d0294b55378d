// A small draft head in memory that tests change and write as safetensors or as GGUF. Names and
// orders of GGUF are written out here a second time, apart from the reader.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/testing/memory_checkpoint.h"
#include "weights/testing/gguf_writer.h"

namespace moxie {

class MemoryHead {
 public:
  /// Reads FOLDER/model.safetensors and FOLDER/config.json; CHECKs that they are sound.
  static MemoryHead read(const std::string& folder);

  nlohmann::json config;
  std::vector<MemoryTensor> tensors;

  bool is_dflash() const { return config.contains("dflash_config"); }
  MemoryTensor& at(const std::string& name);
  void add(const std::string& name, const Shape& shape, const std::vector<float>& values);
  /// Rounds all matrices of the layers, fc and lm_head to this type of GGUF and back, to F32.
  void round_to(uint32_t type);
  /// Writes config.json and model.safetensors into a folder that exists.
  void write_folder(const std::string& folder) const;

  struct GgufOptions {
    uint32_t type = 30;  ///< ggml's number, of matrices: 0 F32, 1 F16, 8 Q8_0, 30 BF16, 39 MXFP4
    /// As older converters wrote it: extract_layers of eagle3; z-lab's layer numbers and
    /// dflash.mask_token_id of dflash.
    bool is_old = false;
    std::vector<std::string> left_out;  ///< tensors by GGUF's name
    std::vector<float> rope_freqs;      ///< instead of keys of rope.scaling; empty: keys
    /// Called before the file is closed.
    std::function<void(GgufWriter*)> change;
  };
  std::string gguf(const GgufOptions& options) const;

 private:
  const nlohmann::json& layer_config() const;
};

/// A row of 32 n values as GGUF's MXFP4 blocks.
std::string mxfp4_blocks(const std::vector<float>& values);

}  // namespace moxie
