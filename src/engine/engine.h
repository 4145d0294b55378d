// A loaded model with its device, cache, tokenizer and chooser of kernels, and one answer of it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decode_loop.h"
#include "engine/device_requests.h"
#include "engine/drafter.h"
#include "engine/kv.h"
#include "engine/launch_arrays.h"
#include "engine/plan.h"
#include "kernels/sample/sample.h"
#include "model/checkpoint.h"
#include "model/gpt_oss.h"
#include "text/bpe.h"

namespace moxie {

/// The switches that decide how a model is loaded and run; strings as the flags take them.
struct EngineOptions {
  std::string model = "embedded";
  std::string device = "auto";       ///< cpu, cuda, cuda:N, auto
  std::string graphs = "on";         ///< CUDA: decode by graphs; off: the same kernels one by one
  int threads = 0;                   ///< 0: one a usable core
  std::vector<std::string> kernels;  ///< STEP=NAME
  std::string tile = "auto";         ///< CUDA: of the experts' products, as parse_tile takes it
  std::string mxfp4_layers = "moe";
  std::string mxfp8_layers;       ///< CUDA only
  std::string kv_dtype = "auto";  ///< as choose_kv_dtype takes it
  std::string activation = "auto";
  std::string batch_invariant = "off";  ///< on: a token's logits do not depend on the batch
  int32_t max_model_len = 0;            ///< 0: as much as fits, at most kDefaultContext
  int32_t max_num_seqs = 1;
  int32_t max_batch_tokens = 0;  ///< of a launch; 0: what suits the device (plan.h)
  int32_t max_logit_rows = 1;
  /// Of both pools of the cache; 0: as many pages as max_num_seqs sequences of max_model_len need,
  /// kAutoKvBytes: what a server takes (plan.h).
  uint64_t kv_cache_bytes = 0;
  bool sinks = true;
  std::vector<int32_t> taps;  ///< where passes hand out x (GptOss): read_tap()
  uint64_t seed = 0;          ///< of synthetic weights
  bool show_progress = true;
};

/// What the switches say of rows, on a device with these features; or the switch that no row of the
/// device can follow.
Result<KernelChoice> kernel_choice(const EngineOptions& options, Features features);

/// What decides the memory that an engine takes.
PlanRequest plan_request(const EngineOptions& options, const LoadOptions& load, DType kv_dtype);

/// How tokens are drawn. Names and meanings are OpenAI's and vLLM's.
struct SamplingOptions {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f, min_p = 0.0f;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t num_logprobs = -1;  ///< -1: none
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;  ///< 0: to the end of the context
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids;     ///< besides the model's own
  int32_t min_tokens = 0;            ///< stop tokens are forbidden before as many are drawn
  std::vector<int32_t> allowed_ids;  ///< no other is drawn; empty: all
};

enum class FinishReason : uint8_t { kStop, kLength, kAborted, kError };
inline constexpr int kNumFinishReasons = 4;
const char* finish_reason_name(FinishReason reason);

/// Seconds by part, and what they did.
struct Timing {
  double load_s = 0, prefill_s = 0, decode_s = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  double prefill_tok_s() const { return prefill_s > 0 ? prompt_tokens / prefill_s : 0; }
  double decode_tok_s() const {  // the first token belongs to the prefill
    return decode_s > 0 && completion_tokens > 1 ? (completion_tokens - 1) / decode_s : 0;
  }
};

struct Generated {
  std::vector<int32_t> ids;  ///< a stop token, if one ended it, included
  FinishReason reason = FinishReason::kStop;
  Timing timing;
};

class Engine {
 public:
  /// Plans, refuses what does not fit before loading, loads.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);

  /// One launch: appends each chunk to its sequence. Returns the logits asked for, in order,
  /// [rows, vocab], in device memory until the next launch. Fails if cache pages run out (nothing
  /// is changed then) or the launch is larger than planned. On CUDA the launch may still be
  /// running: its fault is reported by what waits for it (sample, read_logits, synchronize).
  Result<const float*> step(std::span<const Chunk> chunks);
  /// step() in its parts, for a loop that builds one launch while another runs: the chunks have
  /// been appended to their sequences, which hold room for them at their ends; build() writes the
  /// arrays, run() launches them. Limits as for step(), but checked by the caller. Window pages are
  /// not released. build() may run beside run() and sample(), which take one launch after another;
  /// `arrays` must not change before its launch has run.
  void build(std::span<const Chunk> chunks, HostArrays* arrays) const;
  Result<const float*> run(const HostArrays& arrays);
  /// Draws one token from each row of logits of the last launch; waits for the answers. The
  /// requests' arrays lie in the host's memory.
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers);
  /// Begins a session of decode_loop() with a launch of one token a sequence, whose pages the
  /// caller keeps; of the last session no step may be on its way. The requests' arrays lie in the
  /// host's memory.
  Status begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests);
  /// Waits for the last launch and copies its first logits to the host: rows times vocab values.
  Status read_logits(std::span<float> logits);
  /// Waits for the last launch and copies to the host what tap number `tap` of EngineOptions::taps
  /// handed out of its first tokens: tokens times hidden values.
  Status read_tap(size_t tap, std::span<float> x);
  /// Waits for everything given to the device.
  Status synchronize() { return stream_->synchronize(); }

  /// Runs a prompt to its end, as a service does that has this request alone (step_loop.h): prefill
  /// in chunks of max_batch_tokens, then a token a step, or with a drafter several; each draft
  /// takes one of max_logit_rows. `on_token` sees every token as it comes and returns false to
  /// stop.
  using OnToken = std::function<bool(const SampleAnswer&)>;
  Result<Generated> generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                             const OnToken& on_token = {}, const Drafting& drafting = {});

  const GptOssConfig& config() const { return checkpoint_->config(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  ///< null if the model has none
  KernelChooser& kernels() { return *kernels_; }
  const GptOss& model() const { return *model_; }
  KvCache& kv() { return *kv_; }
  /// Decoding of several sequences at once without the host on the path.
  DecodeLoop& decode_loop() { return *decode_loop_; }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const MemoryPlan& plan() const { return plan_; }
  const EngineOptions& options() const { return options_; }
  DType kv_dtype() const { return kv_dtype_; }
  uint64_t weights_bytes() const { return weights_.packed_bytes; }
  double load_seconds() const { return timeline_.ready_s; }
  /// How long the start took, part by part.
  const StartupTimeline& timeline() const { return timeline_; }
  /// Tokens that end a generation: the harmony set by name, and the configuration's eos.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  /// Those of a tokenizer that is used in place of the model's own; before anything is generated.
  void stop_at_ends_of(const Tokenizer& tokenizer);

 private:
  Engine() = default;
  Status open_model();
  Status open_device();
  Status open_gpu(const std::string& name);
  bool open_usable_gpu();
  Status make_kernels();
  Status load_model();
  Status make_memory();
  Status make_rotary();
  Status make_decode_loop();
  int32_t table_stride() const;
  Status load_tokenizer();
  Status check_limits(std::span<const Chunk> chunks) const;

  EngineOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Checkpoint> checkpoint_;
  LoadOptions load_options_;
  std::unique_ptr<KernelChooser> kernels_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ModelWeights weights_;
  MemoryPlan plan_;
  DType kv_dtype_ = DType::kBF16;
  StartupTimeline timeline_;
  std::vector<int32_t> stop_ids_;
  Buffer rotary_buffer_, activation_buffer_;
  Activations activations_;
  std::unique_ptr<GptOss> model_;
  std::unique_ptr<KvCache> kv_;

  std::unique_ptr<DecodeLoop> decode_loop_;

  HostArrays host_arrays_;  // one launch's, reused
  std::optional<LaunchArrays> launch_arrays_;
  std::vector<KvLayer> layers_;
  std::optional<DeviceRequests> device_requests_;  // CUDA only
  int32_t last_rows_ = 0;
};

}  // namespace moxie
