// Runs a checkpoint on the CPU with the simplest cache there is (every page of one sequence, in a
// shuffled order), for tests that compare logits. The engine's pools are tested apart.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "model/checkpoint.h"
#include "model/gpt_oss.h"

namespace moxie {

class ModelHarness {
 public:
  struct Options {
    std::vector<std::string> kernels;  // "all=reference"
    std::string activation = "auto";
    DType kv_dtype = DType::kF32;
    int32_t max_tokens = 512;  // context and launch alike
    int threads = 2;
    bool use_sinks = true;
    bool taps = false;  // x before each layer and behind the last
    LoadOptions load{.show_progress = false};
  };
  static Result<std::unique_ptr<ModelHarness>> open(const std::string& model, Options options);

  /// Logits of every token, [tokens, vocab], with the prompt cut into chunks of `chunk` tokens
  /// (0: one). `hidden`, if given, receives [layers + 1, tokens, hidden]; needs chunk 0 and
  /// taps.
  std::vector<float> logits(const std::vector<int32_t>& ids, int32_t chunk = 0,
                            std::vector<float>* hidden = nullptr);
  /// Greedy continuation through the cache, one token a launch.
  std::vector<int32_t> greedy(const std::vector<int32_t>& ids, int32_t num_tokens);

  const GptOssConfig& config() const { return checkpoint_->config(); }
  KernelChooser& kernels() { return *kernels_; }
  const ModelWeights& weights() const { return weights_; }

 private:
  // Runs tokens [begin, end) of ids and returns the logits of `rows` (indices into the launch).
  const float* launch(const std::vector<int32_t>& ids, int32_t begin, int32_t end,
                      const std::vector<int32_t>& rows);

  Options options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelWeights weights_;
  std::unique_ptr<KernelChooser> kernels_;
  std::unique_ptr<GptOss> model_;
  Buffer activations_buffer_, kv_buffer_;
  Activations activations_;
  std::vector<float> rotary_;
  std::vector<int32_t> page_table_;
  std::vector<KvLayer> kv_;
};

}  // namespace moxie
