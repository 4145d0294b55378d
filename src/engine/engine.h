// A loaded model with its device, cache, tokenizer and kernel chooser: launches, draws, and one
// answer at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/rank_world.h"
#include "engine/draft_counts.h"
#include "engine/drafter.h"
#include "engine/plan.h"
#include "engine/rank_runner.h"
#include "engine/self_test_use.h"
#include "engine/speculation.h"
#include "engine/tuning.h"
#include "kernels/sample/sample.h"
#include "model/checkpoint.h"
#include "model/draft_head.h"
#include "model/gpt_oss.h"
#include "text/bpe.h"

namespace moxie {

class RankGroup;
class RankMeeting;
struct RankSetup;
class ThreadPool;

/// How a model is loaded and run; strings have the form of the flags' values.
struct EngineOptions {
  std::string model = "embedded";
  std::string device = "auto";       ///< cpu, cuda, cuda:N, cuda:N,M,... (a rank each), auto
  std::string graphs = "on";         ///< CUDA: decode by graphs; off: the same kernels one by one
  int threads = 0;                   ///< 0: one a usable core
  std::vector<std::string> kernels;  ///< STEP=NAME
  std::string tile = "auto";         ///< CUDA: tile of the experts' products (parse_tile)
  std::string mxfp4_layers = "moe";
  std::string mxfp8_layers;       ///< CUDA only
  std::string kv_dtype = "auto";  ///< see choose_kv_dtype
  std::string activation = "auto";
  std::string arch_limit = "none";      ///< CUDA: sm_80: rows that any GPU since sm_80 can run
  std::string batch_invariant = "off";  ///< on: a token's logits do not depend on the batch
  int32_t max_model_len = 0;  ///< tokens of context; 0: as many as fit, at most kDefaultContext
  int32_t max_num_seqs = 1;
  int32_t max_batch_tokens = 0;  ///< of a launch; 0: what suits the device (plan.h)
  int32_t max_logit_rows = 1;
  /// Bytes of both pools of the cache. 0: as many pages as max_num_seqs sequences of max_model_len
  /// need. kAutoKvBytes: the size that a server takes (plan.h).
  uint64_t kv_cache_bytes = 0;
  /// Of a process that a launcher started with others, a rank each, on the CPU; nothing: it is
  /// alone.
  std::optional<RankWorld> world;
  int tensor_parallel = 1;       ///< ranks that share the model: GPUs; on a CPU, of threads
  bool expert_parallel = false;  ///< ranks have whole experts, instead of columns of each
  /// On GPUs: the first rank alone, which takes what it sends for what the others would
  /// (make_mirrored_link). For the times of a rank's kernels.
  bool mirrors_ranks = false;
  bool sinks = true;
  std::vector<int32_t> taps;       ///< layers before which x is copied out (GptOss): read_tap()
  SpeculationOptions speculation;  ///< for make_drafter()
  TuningOptions tuning;            ///< off: plans by predicted times
  SelfTestOptions self_test;       ///< off: rows run unproven
  uint64_t seed = 0;               ///< of synthetic weights
  bool show_progress = true;
  /// CPU: those of another engine, which outlives this one and is idle meanwhile; null: its own.
  ThreadPool* shared_threads = nullptr;
};

/// The GPUs that `device` names by number, "cuda:0,1"; none, if it names none so. Fails on what is
/// no device.
Result<std::vector<int>> named_gpus(const std::string& device);
/// The GPU of each rank, should they run on GPUs: those that `device` names, whose number is then
/// that of the ranks, or the first.
Result<std::vector<int>> gpus_of_ranks(EngineOptions* options);
/// The GPU of a rank that is a process, of `num_gpus` that it sees: the one with its number among
/// the ranks of this host, or among those that `device` names, or the only one named. Nothing: it
/// runs on the CPU.
Result<std::optional<int>> gpu_of_process(const std::string& device, const RankWorld& world,
                                          int num_gpus);

/// What the switches say of rows, on a device with these features. Fails if no row of the device
/// can follow a switch.
Result<KernelChoice> kernel_choice(const EngineOptions& options, Features features);

/// The memory plan's request for an engine with these options.
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
  int32_t min_tokens = 0;            ///< stop tokens are forbidden until so many are drawn
  std::vector<int32_t> allowed_ids;  ///< only these are drawn; empty: all
};

enum class FinishReason : uint8_t { kStop, kLength, kAborted, kError };
inline constexpr int kNumFinishReasons = 4;
const char* finish_reason_name(FinishReason reason);

/// Seconds of prefill and decode, and the tokens they processed.
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
  DraftCounts drafts;
};

/// Is told of every launch, in the thread that runs it, once its forward pass has been given to the
/// device: the taps hold x of the launch's tokens. `placed` are the same arrays in the device's
/// memory, and `full` is a view of the cache with their table of full pages.
class LaunchFollower {
 public:
  virtual ~LaunchFollower() = default;
  virtual Status follow(const HostArrays& arrays, const Ragged& placed, const KvLayer& full) = 0;
  /// Whether follow() reads `arrays`. One that does not, and does not wait either, can be part of a
  /// graph.
  virtual bool reads_host_arrays() const { return true; }
};

class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Plans the memory, fails if the model does not fit, then loads. In a world of processes it
  /// waits for all of them.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  /// For processes that are not rank 0, which use nothing else of an engine: runs what rank 0
  /// orders until that ends. Fails if a rank is lost.
  Status follow_first_rank();

  /// One launch: appends each chunk to its sequence. Returns the logits asked for, in order,
  /// [rows, vocab], in device memory; valid until the next launch. Fails, changing nothing, if
  /// cache pages run out or the launch is larger than planned. On CUDA the launch may still run
  /// when this returns; sample, read_logits and synchronize wait for it and report its fault.
  Result<const float*> step(std::span<const Chunk> chunks);
  /// step() in two halves, for a loop that builds one launch while another runs: build() writes the
  /// arrays, run() launches them. The caller has reserved the pages of the chunks' tokens (the last
  /// of their sequences), checks the limits of step() and releases window pages. build() may run on
  /// another thread beside run() and sample(), which must not overlap each other. `arrays` must not
  /// change before its launch has run.
  void build(std::span<const Chunk> chunks, HostArrays* arrays) const;
  Result<const float*> run(const HostArrays& arrays);
  /// Draws one token from each row of logits of the last launch and waits for the answers. The
  /// requests' arrays lie in host memory.
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers);
  /// Begins a session of decode_loop() with `first`, a launch of one token a sequence. The caller
  /// owns the sequences' pages. No launch of an earlier session may be unread. The requests' arrays
  /// lie in host memory.
  Status begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests);
  /// The session's next launch, as DecodeLoop::launch(), on all ranks.
  Status decode_next(const HostArrays& next);
  /// Whether decode_loop().next() would return without waiting. Fails after a fault, of any rank.
  Result<bool> decoded();
  /// Ends the session, as DecodeLoop::end(), on all ranks.
  Status end_decoding();
  /// Waits for the last launch and copies its logits from the first row on: rows * vocab values.
  Status read_logits(std::span<float> logits);
  /// Waits for the last launch and copies to the host what tap `tap` (an index into
  /// EngineOptions::taps) holds, from the launch's first token on: tokens * hidden values.
  Status read_tap(size_t tap, std::span<float> x);
  /// What tap `tap` holds of the last launch, in device memory: [tokens, hidden].
  const float* tap(size_t tap) const;
  /// Launches of step() and run() are followed from now on; null: no longer. The launches of the
  /// decode loop are not.
  void set_follower(LaunchFollower* follower) { follower_ = follower; }
  /// The head that EngineOptions::speculation names, open; null: none.
  const DraftCheckpoint* draft_checkpoint() const { return draft_checkpoint_.get(); }
  /// The sizes that the head's memory was planned with.
  const DraftHead::Options& draft_options() const { return draft_options_; }
  /// Waits for everything given to the device.
  Status synchronize();

  /// Answers one prompt, with the launches of a service that has this request alone (step_loop.h):
  /// prefill in chunks of max_batch_tokens, then one token a launch, or several with a drafter.
  /// Each draft takes one of max_logit_rows. `on_token` is called for each token and returns false
  /// to stop.
  using OnToken = std::function<bool(const SampleAnswer&)>;
  Result<Generated> generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                             const OnToken& on_token = {}, const Drafting& drafting = {});

  const GptOssConfig& config() const { return checkpoint_->config(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  ///< null if the model has none
  KernelChooser& kernels() { return *kernels_; }
  const GptOss& model() const { return runner_->model(); }
  /// What the last launch left between steps, in device memory.
  const Activations& activations() const { return runner_->activations(); }
  KvCache& kv() { return runner_->kv(); }
  const KvCache& kv() const { return runner_->kv(); }
  /// Decodes several sequences at once without waiting for the host. Its sessions begin, go on and
  /// end by this engine's functions.
  DecodeLoop& decode_loop() { return runner_->decode_loop(); }
  /// Graphs of small launches outside the decode loop: null where nothing drafts.
  GraphCache* graphs() { return runner_->graphs(); }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  const MemoryPlan& plan() const { return plan_; }
  const EngineOptions& options() const { return options_; }
  DType kv_dtype() const { return kv_dtype_; }
  /// That rows of a launch may use.
  uint64_t workspace_bytes() const { return activations().workspace_bytes; }
  const ModelWeights& weights() const { return weights_; }
  /// Of all ranks of this process.
  uint64_t weights_bytes() const;
  int num_ranks() const { return options_.tensor_parallel; }
  RankGroup* ranks() { return ranks_.get(); }  ///< the others; null: one rank
  double load_seconds() const { return timeline_.ready_s; }
  /// How long each stage of the start took.
  const StartupTimeline& timeline() const { return timeline_; }
  /// What became of EngineOptions::tuning.
  const TuningUse& tuning() const { return tuning_; }
  /// What became of EngineOptions::self_test.
  const SelfTestUse& self_test() const { return self_test_; }
  /// Tokens that end an answer: harmony's stop tokens and the configuration's eos.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  /// Stops at the stop tokens of `tokenizer`, which replaces the model's own. To be called before
  /// anything is generated.
  void stop_at_ends_of(const Tokenizer& tokenizer);

 private:
  Engine();
  Status open_model();
  Status check_mirror() const;
  Status divide();
  Status set_rank_config();
  Status open_head();
  Status open_device();
  Status open_gpus();
  bool open_usable_gpu();
  Status make_kernels();
  Status load_model();
  Status load_weights();
  Status load_weights_and_test();
  LoadOptions whole_load_options() const;
  Status follow_test(Result<SelfTestResult> tested);
  Status meet_ranks();
  Status make_runner();
  RankSizes rank_sizes() const;
  RankLink* link();
  RankSetup rank_setup();
  Status ranks_status(Status of_device) const;
  Status follow(const HostArrays& arrays, const Ragged& placed);
  int32_t table_stride() const;
  Status load_tokenizer();
  Status check_limits(std::span<const Chunk> chunks) const;

  EngineOptions options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<DraftCheckpoint> draft_checkpoint_;
  DraftHead::Options draft_options_;
  LaunchFollower* follower_ = nullptr;
  LoadOptions load_options_;
  GptOssConfig rank_config_;  // of the first rank; of all, if it is alone
  std::unique_ptr<KernelChooser> kernels_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ModelWeights weights_;
  MemoryPlan plan_;
  DType kv_dtype_ = DType::kBF16;
  StartupTimeline timeline_;
  TuningUse tuning_;
  SelfTestUse self_test_;
  std::vector<int32_t> stop_ids_;
  RankSizes sizes_;
  std::vector<int> gpus_;                 // by rank, should they run on GPUs
  std::unique_ptr<RankMeeting> meeting_;  // of a world of processes
  std::unique_ptr<RankLink> gpu_link_;    // between the processes' GPUs; null: they have none
  std::unique_ptr<RankGroup> ranks_;      // the others, for the first; null: one rank
  std::unique_ptr<RankRunner> runner_;

  HostArrays host_arrays_;  // of one launch; reused
  int32_t last_rows_ = 0;
};

}  // namespace moxie
