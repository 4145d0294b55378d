// Opens a checkpoint in any supported form and loads it: a Hugging Face directory or single
// .safetensors file, the `original/` layout, a .gguf file, the embedded model, or `synthetic:`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/weights.h"
#include "weights/fault.h"

namespace moxie {

enum class CheckpointKind : uint8_t { kHuggingFace, kOriginal, kGguf, kSynthetic };
const char* checkpoint_kind_name(CheckpointKind kind);  // "huggingface", "original", ...

/// One stored tensor, for `moxie inspect`.
struct StoredTensor {
  std::string file, name;
  std::string dtype;  ///< as the file names it: "BF16", "U8", "MXFP4", "Q8_0"
  Shape shape;
  uint64_t bytes = 0;
  std::string weight;  ///< the packed weight that it belongs to: "layers.0.qkv"; none: empty
};

struct LoadOptions {
  Mxfp4Layers mxfp4_layers;
  DenseLayers mxfp8_layers;   ///< CUDA only: kept as MXFP8; must not overlap mxfp4_layers
  bool show_progress = true;  ///< a bar with ETA on stderr when it takes over a second and is a tty
  uint64_t seed = 0;          ///< synthetic only
  Ranks ranks;                ///< a share of the model: config_of_rank() has accepted them
  int32_t rank = 0;
  /// The device whose layout layout() and packed_bytes() give; load() uses its own device's.
  DeviceKind device = DeviceKind::kCpu;
};

/// An open checkpoint: configuration known, every tensor found and checked, nothing copied yet.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  virtual CheckpointKind kind() const = 0;
  virtual const GptOssConfig& config() const = 0;
  virtual std::string path() const = 0;
  virtual std::vector<StoredTensor> tensors() const = 0;
  /// All faults of all files at once; load() refuses if there are any.
  virtual const std::vector<Fault>& faults() const = 0;
  /// Where the tokenizer is: tokenizer.json's text, or GGUF's pieces. Empty text if none.
  struct TokenizerSource {
    std::string path;                      ///< for messages
    std::string json;                      ///< tokenizer.json's text
    std::vector<std::string> gguf_tokens;  ///< GGUF: tokenizer.ggml.tokens
    std::vector<int32_t> gguf_types;
    std::vector<std::string> gguf_merges;
  };
  virtual Result<TokenizerSource> tokenizer() const = 0;
  /// Exact bytes that load() will hold on the device, before any is read.
  uint64_t packed_bytes(const LoadOptions& options) const { return layout(options).packed_bytes; }
  /// What load() will return, but without data (null pointers, no storage): formats and sizes for
  /// plans and for choosing rows. Needs a sound configuration only.
  virtual ModelWeights layout(const LoadOptions& options) const = 0;
  virtual Result<ModelWeights> load(Device& device, const LoadOptions& options) const = 0;
};

/// `model` as `--model` takes it: "embedded", a directory, a file, a repo id in the local Hugging
/// Face cache, or "synthetic:...". Fails only if the configuration cannot be read (no such path,
/// unreadable header); other faults are in faults(), so that inspect can list them all.
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& model);

}  // namespace moxie
