// A checkpoint that lies in files (or in the binary): safetensors in both layouts, and GGUF.
#pragma once

#include "model/checkpoint_open.h"
#include "model/stored_weights.h"

namespace moxie {

class FileCheckpoint final : public Checkpoint {
 public:
  using ReadTokenizer = std::function<Result<TokenizerSource>()>;
  /// Takes a reader's tensors and matches them with the table of weights. `config_where` names the
  /// configuration's file in faults.
  FileCheckpoint(FileFormat format, std::string path, GptOssConfig config,
                 const std::string& config_where, std::vector<TensorFile> files, FaultList faults,
                 ReadTokenizer tokenizer);

  CheckpointKind kind() const override { return kind_; }
  const GptOssConfig& config() const override { return config_; }
  std::string path() const override { return path_; }
  std::vector<StoredTensor> tensors() const override;
  const std::vector<Fault>& faults() const override { return faults_.all(); }
  Result<TokenizerSource> tokenizer() const override { return tokenizer_(); }
  ModelWeights layout(const LoadOptions& options) const override;
  Result<ModelWeights> load(Device& device, const LoadOptions& options) const override;

 private:
  CheckpointKind kind_;
  std::string path_;
  GptOssConfig config_;
  StoredWeights stored_;
  FaultList faults_;
  ReadTokenizer tokenizer_;  ///< called when the tokenizer is asked for
};

}  // namespace moxie
