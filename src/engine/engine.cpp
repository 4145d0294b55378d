// Chooses the device, loads a model there and runs launches of it; generate.cpp makes text.
#include "engine/engine.h"

#include <fmt/format.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <charconv>
#include <future>

#include "core/clock.h"
#include "core/device_cpu.h"
#include "engine/parallel.h"
#include "engine/tokenizer_source.h"
#include "model/fold_scales_cuda.h"
#include "model/loader.h"
#include "model/rotary_table.h"
#include "model/shard.h"

namespace moxie {
namespace {

std::string exceeds(std::string_view what, int64_t found, int64_t limit) {
  return fmt::format("{} {} where {} fit", found, what, limit);
}

}  // namespace

PlanRequest plan_request(const EngineOptions& options, const LoadOptions& load, DType kv_dtype) {
  return {.load = load,
          .kv_dtype = kv_dtype,
          .max_model_len = options.max_model_len,
          .max_num_seqs = options.max_num_seqs,
          .max_batch_tokens = options.max_batch_tokens,
          .max_logit_rows = options.max_logit_rows,
          .num_taps = options.taps.size(),
          .kv_cache_bytes = options.kv_cache_bytes};
}

Engine::Engine() = default;
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  engine->options_ = options;
  const auto start = std::chrono::steady_clock::now();
  const auto timed = [](double* seconds, auto&& part) {
    const auto begin = std::chrono::steady_clock::now();
    Status status = part();
    *seconds = seconds_since(begin);
    return status;
  };
  StartupTimeline& t = engine->timeline_;
  double weights_s = 0, memory_s = 0;
  Status status = timed(&t.open_s, [&] { return engine->open_model(); });
  if (status) status = engine->divide();
  if (status) status = engine->open_head();
  if (status) status = timed(&t.plan_s, [&] { return engine->open_device(); });
  if (status) status = timed(&weights_s, [&] { return engine->load_model(); });
  if (status) status = timed(&memory_s, [&] { return engine->make_memory(); });
  if (status) status = timed(&t.graphs_s, [&] { return engine->make_decode_loop(); });
  if (status) status = engine->load_tokenizer();
  if (!status) return fail(std::move(status.error()));
  t.ready_s = seconds_since(start);
  return engine;
}

Status Engine::open_model() {
  auto checkpoint = open_checkpoint(options_.model);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  checkpoint_ = std::move(*checkpoint);
  if (const auto& faults = checkpoint_->faults(); !faults.empty()) {
    std::string more = faults.size() > 1 ? fmt::format(" (and {} more)", faults.size() - 1) : "";
    return fail(faults.front().message() + more, checkpoint_->path(),
                "`moxie inspect " + options_.model + "` lists all faults");
  }
  auto mxfp4 = DenseLayers::parse(options_.mxfp4_layers, "--mxfp4-layers");
  if (!mxfp4) return fail(std::move(mxfp4.error()));
  auto mxfp8 = DenseLayers::parse(options_.mxfp8_layers, "--mxfp8-layers");
  if (!mxfp8) return fail(std::move(mxfp8.error()));
  load_options_ = {.mxfp4_layers = *mxfp4,
                   .mxfp8_layers = *mxfp8,
                   .show_progress = options_.show_progress,
                   .seed = options_.seed};
  return {};
}

// Among ranks.
Status Engine::divide() {
  const int n = options_.tensor_parallel;
  if (options_.expert_parallel && n == 1)
    return fail("there is one rank", "--enable-expert-parallel", "--tensor-parallel-size 2");
  if (n > 1 && options_.speculation.method != SpecMethod::kOff &&
      options_.speculation.method != SpecMethod::kNgram)
    return fail("draft heads run on one rank only", "--tensor-parallel-size", "--spec ngram, off");
  load_options_.ranks = {.size = n, .splits_experts = options_.expert_parallel};
  auto config = config_of_rank(checkpoint_->config(), load_options_.ranks, 0);
  if (!config) return fail(std::move(config.error()));
  rank_config_ = std::move(*config);
  return {};
}

// The taps and the memory plan depend on the head.
Status Engine::open_head() {
  auto head = open_draft_head(options_.speculation, options_.model, *checkpoint_);
  if (!head) return fail(std::move(head.error()));
  draft_checkpoint_ = std::move(*head);
  if (draft_checkpoint_ == nullptr) return {};
  CHECK(options_.taps.empty(), "taps are the head's");
  options_.taps = draft_checkpoint_->config().boundaries;
  return {};
}

Status Engine::open_device() {
  const std::string& name = options_.device;
  if (options_.graphs != "on" && options_.graphs != "off") {
    return fail("unknown value '" + options_.graphs + "'", "--graphs", "on or off");
  }
  const int n = options_.tensor_parallel;
  if (n > 1 && name != "cpu")
    return fail("several ranks run on the CPU only", "--tensor-parallel-size", "--device cpu");
  if (name == "cuda" || name.starts_with("cuda:")) {
    if (auto status = open_gpu(name); !status) return status;
  } else if (name == "cpu" || name == "auto") {
    if (name == "cpu" || !open_usable_gpu()) {
      device_ = n > 1                                ? make_rank_device(options_.threads, 0, n)
                : options_.shared_threads != nullptr ? make_cpu_device(*options_.shared_threads)
                                                     : make_cpu_device(options_.threads);
      load_options_.device = DeviceKind::kCpu;
      if (auto status = make_kernels(); !status) return status;
    }
  } else {
    return fail("unknown device '" + name + "'", "--device", "cpu, cuda, cuda:N or auto");
  }
  auto stream = device_->make_stream();
  if (!stream) return fail(std::move(stream.error()));
  stream_ = std::move(*stream);
  auto kv_dtype = choose_kv_dtype(options_.kv_dtype, config(), *kernels_, options_.max_model_len,
                                  options_.max_num_seqs, options_.kv_cache_bytes);
  if (!kv_dtype) return fail(std::move(kv_dtype.error()));
  kv_dtype_ = *kv_dtype;
  return {};
}

Status Engine::open_gpu(const std::string& name) {
  int index = 0;
  if (name.size() > 5) {
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), index);
    if (error != std::errc{} || end != name.data() + name.size()) {
      return fail("unknown device '" + name + "'", "--device", "cpu, cuda, cuda:N or auto");
    }
  }
  auto device = make_cuda_device(index);
  if (!device) return fail(std::move(device.error()));
  device_ = std::move(*device);
  load_options_.device = DeviceKind::kCuda;
  return make_kernels();
}

// For `--device auto`: opens the first GPU that this build has code for, if every step has a row
// for this model there. Else returns false and logs the reason, except on a machine without an
// NVIDIA driver, which lacks nothing.
bool Engine::open_usable_gpu() {
  std::string why;
  const int num_usable = num_cuda_devices(&why);
  if (num_usable == 0) {
    if (has_cuda_driver()) log_warn("running on the CPU: " + why);
    return false;
  }
  constexpr int kMaxDevices = 64;
  for (int i = 0; i < kMaxDevices && device_ == nullptr; ++i) {
    auto device = make_cuda_device(i);
    if (device)
      device_ = std::move(*device);
    else if (why.empty())  // the last one says only that there are no more
      why = device.error().message();
  }
  Status status = fail(why);
  if (device_ != nullptr) {
    load_options_.device = DeviceKind::kCuda;
    status = make_kernels();
    if (status) {
      const ModelWeights layout = checkpoint_->layout(load_options_);
      auto kv_dtype =
          choose_kv_dtype(options_.kv_dtype, config(), *kernels_, options_.max_model_len,
                          options_.max_num_seqs, options_.kv_cache_bytes);
      status = kv_dtype ? GptOss(config(), layout, {}, *kernels_).check_rows(*kv_dtype)
                        : Status(fail(kv_dtype.error()));
    }
    if (status) return true;
  }
  log_warn("running on the CPU: " + status.error().message());
  device_.reset();
  return false;
}

Result<KernelChoice> kernel_choice(const EngineOptions& options, Features features) {
  KernelChoice choice;
  for (const std::string& assignment : options.kernels) {
    if (auto status = choice.add(assignment); !status) return fail(std::move(status.error()));
  }
  if (auto status = choice.set_tile(options.tile); !status) return fail(std::move(status.error()));
  if (auto status = choice.set_activation(options.activation); !status)
    return fail(std::move(status.error()));
  if ((features & kSm90a) == 0) {
    if (choice.tile_columns() != 0)
      return fail("no row of this device takes a tile", "--tile", "auto leaves it to the rows");
    if (options.activation == "mxfp8")
      return fail("no row of this device takes activations in 8-bit floats", "--activation",
                  "auto, or bf16");
  }
  if (choice.int8() && (features & kInt8Features) == 0)
    return fail("no row of this device takes activations in 8-bit integers", "--activation",
                "auto, or bf16");
  if (options.batch_invariant != "on" && options.batch_invariant != "off")
    return fail("unknown value '" + options.batch_invariant + "'", "--batch-invariant", "on, off");
  choice.set_batch_invariant(options.batch_invariant == "on");
  return choice;
}

Status Engine::make_kernels() {
  const bool is_cpu = device_->kind() == DeviceKind::kCpu;
  if (options_.arch_limit != "none" && options_.arch_limit != "sm_80")
    return fail("unknown value '" + options_.arch_limit + "'", "--arch-limit", "none, sm_80");
  if (options_.arch_limit != "none" && is_cpu)
    return fail("it limits the rows of GPUs; this is a CPU", "--arch-limit");
  DeviceRates rates = rates_of(device_->kind(), device_->properties());
  Features features =
      is_cpu ? cpu_features() : cuda_features(device_->properties().compute_capability);
  if (options_.arch_limit == "sm_80") {
    features &= kCudaAny;
    rates.bf16_gflops = rates.mma_gflops;
  }
  auto choice = kernel_choice(options_, features);
  if (!choice) return fail(std::move(choice.error()));
  kernels_ = std::make_unique<KernelChooser>(device_->kind(), features, std::move(*choice), rates);
  return {};
}

Status Engine::load_model() {
  if (auto fine = check_load_options(load_options_, device_->kind()); !fine) return fine;
  const auto start = std::chrono::steady_clock::now();
  const ModelWeights layout = checkpoint_->layout(load_options_);
  const GptOss shape(rank_config_, layout, {}, *kernels_);
  // Before loading: the formats alone tell whether a step has no row.
  if (auto status = shape.check_rows(kv_dtype_); !status) return status;
  PlanRequest request = plan_request(options_, load_options_, kv_dtype_);
  request.draft = draft_checkpoint_.get();
  request.speculation = options_.speculation;
  const auto n = static_cast<uint64_t>(options_.tensor_parallel);  // ranks share the memory
  plan_ = plan_memory(*checkpoint_, request, device_->properties().available_bytes / n, *kernels_);
  if (!plan_.fits) {
    return fail(fmt::format("needs {}, {} is free", format_bytes(plan_.total_bytes),
                            format_bytes(plan_.available_bytes)),
                options_.model, plan_.advice);
  }
  options_.max_batch_tokens = plan_.max_batch_tokens;
  if (draft_checkpoint_ != nullptr)
    draft_options_ =
        draft_head_options(draft_checkpoint_->config(), options_.speculation,
                           kv_shape(config(), kv_dtype_), plan_.pages.full, plan_.max_model_len,
                           plan_.max_batch_tokens, options_.max_num_seqs, device_->kind());
  auto tuning = find_tuning(options_, tuning_key(options_, device_->properties(), *kernels_,
                                                 rank_config_, layout, kv_dtype_));
  if (!tuning) return fail(std::move(tuning.error()));
  tuning_ = std::move(*tuning);
  timeline_.plan_s += seconds_since(start);
  return options_.self_test.mode == "off" ? load_weights() : load_weights_and_test();
}

// On a GPU the test runs beside the loading. Rows that fail are known before the first launch.
Status Engine::load_weights_and_test() {
  LoadOptions whole = load_options_;
  whole.ranks = {};
  const ModelWeights layout = checkpoint_->layout(whole);
  SelfTestRequest request{.options = options_.self_test,
                          .device = device_.get(),
                          .properties = device_->properties(),
                          .kernels = *kernels_,
                          .config = config(),
                          .formats = layout,
                          .kv_dtype = kv_dtype_,
                          .use_sinks = options_.sinks,
                          .taps = options_.taps,
                          .max_tokens = options_.max_batch_tokens};
  if (tuning_.tuning != nullptr) {
    request.costs = row_costs(tuning_.tuning);
    request.workspace_bytes =
        activation_bytes(config(), layout, kv_dtype_, *kernels_, options_.max_batch_tokens,
                         options_.max_logit_rows, options_.taps.size())
            .workspace;
  }
  // On a CPU before: beside the weights its memory would come on top of what was planned. Other
  // ranks take the choice that it leaves.
  if (device_->kind() == DeviceKind::kCpu) {
    const auto start = std::chrono::steady_clock::now();
    auto status = follow_test(run_self_test(request));
    timeline_.self_test_wait_s = seconds_since(start);
    return status ? load_weights() : status;
  }
  auto test = std::async(std::launch::async, [&] { return run_self_test(request); });
  Status loaded = load_weights();
  const auto waits = std::chrono::steady_clock::now();
  auto tested = test.get();
  timeline_.self_test_wait_s = seconds_since(waits);
  if (!loaded) return loaded;
  return follow_test(std::move(tested));
}

Status Engine::follow_test(Result<SelfTestResult> tested) {
  if (!tested) return fail(std::move(tested.error()));
  self_test_ = std::move(tested->use);
  timeline_.self_test_s = self_test_.seconds;
  kernels_ = std::make_unique<KernelChooser>(kernels_->device(), kernels_->features(),
                                             std::move(tested->choice), kernels_->rates());
#ifdef __GLIBC__
  ::malloc_trim(0);  // the test's models, which the memory plan does not count
#endif
  return {};
}

Status Engine::load_weights() {
  if (options_.tensor_parallel > 1) ranks_ = RankGroup::start(rank_setup());
  auto weights = checkpoint_->load(*device_, load_options_);
  if (!weights) return fail(std::move(weights.error()));
  weights_ = std::move(*weights);
  if (kernels_->activation() == DType::kF8E4M3) {
    if (auto status = fold_scales_cuda(*device_, *stream_, weights_); !status) return status;
  }
  if (ranks_ != nullptr)
    if (auto status = ranks_->loaded(); !status) return status;
  const StartupTimeline& loaded = weights_.timeline;
  timeline_.read_s = loaded.read_s;
  timeline_.copy_s = loaded.copy_s;
  timeline_.repack_s = loaded.repack_s;
  timeline_.weights_s = loaded.weights_s;
  timeline_.read_bytes = loaded.read_bytes;
  return {};
}

RankSetup Engine::rank_setup() const {
  return {.checkpoint = checkpoint_.get(),
          .load = load_options_,
          .threads = options_.threads,
          .choice = kernels_->choice(),
          .features = kernels_->features(),
          .rates = kernels_->rates(),
          .kv_dtype = kv_dtype_,
          .use_sinks = options_.sinks,
          .max_model_len = plan_.max_model_len,
          .max_num_seqs = options_.max_num_seqs,
          .max_batch_tokens = plan_.max_batch_tokens,
          .max_logit_rows = options_.max_logit_rows,
          .num_full_pages = static_cast<int32_t>(plan_.pages.full),
          .num_window_pages = static_cast<int32_t>(plan_.pages.window),
          .table_stride = table_stride()};
}

Status Engine::make_memory() {
  const GptOssConfig& config = rank_config_;
  const int32_t max_len = plan_.max_model_len;
  auto rotary = make_rotary_table(*device_, *stream_, yarn_frequencies(config), max_len);
  if (!rotary) return fail(std::move(rotary.error()));
  rotary_buffer_ = std::move(*rotary);
  model_ = std::make_unique<GptOss>(config, weights_, Rotary{rotary_buffer_.as<float>(), max_len},
                                    *kernels_, options_.sinks, options_.taps,
                                    ranks_ == nullptr ? nullptr : &ranks_->link());
  const auto bytes =
      activation_bytes(config, weights_, kv_dtype_, *kernels_, options_.max_batch_tokens,
                       options_.max_logit_rows, options_.taps.size());
  if (tuning_.tuning != nullptr) model_->set_row_costs(row_costs(tuning_.tuning), bytes.workspace);
  if (auto status = model_->check_rows(kv_dtype_, options_.max_batch_tokens); !status)
    return status;

  auto activations = device_->allocate(bytes.total() + 16 * 256);
  if (!activations) return fail(std::move(activations.error()));
  Arena arena(std::move(*activations));
  activations_ =
      make_activations(config, bytes, options_.max_batch_tokens, options_.max_logit_rows, arena);
  activation_buffer_ = arena.release();

  const KvShape shape = kv_shape(config, kv_dtype_);
  auto kv = KvCache::create(*device_, *stream_, shape, config.is_window,
                            static_cast<int32_t>(plan_.pages.full),
                            static_cast<int32_t>(plan_.pages.window));
  if (!kv) return fail(std::move(kv.error()));
  kv_ = std::move(*kv);
  if (ranks_ != nullptr) {
    kv_->set_on_copy(
        [this](PageKind kind, int32_t from, int32_t to) { ranks_->copy_page(kind, from, to); });
  }

  auto arrays = LaunchArrays::create(*device_, {.num_tokens = options_.max_batch_tokens,
                                                .num_seqs = options_.max_num_seqs,
                                                .num_logit_rows = options_.max_logit_rows,
                                                .table_stride = table_stride()});
  if (!arrays) return fail(std::move(arrays.error()));
  launch_arrays_ = std::move(*arrays);
  if (device_->kind() != DeviceKind::kCpu) device_requests_.emplace(*device_, config.vocab);
  return stream_->synchronize();
}

Status Engine::make_decode_loop() {
  auto loop = DecodeLoop::create(
      {.device = *device_,
       .stream = *stream_,
       .model = *model_,
       .kv = *kv_,
       .kernels = *kernels_,
       .activations = activations_,
       .max_model_len = plan_.max_model_len,
       .max_streams =
           std::min({options_.max_num_seqs, activations_.max_logit_rows, DecodeLoop::kMostStreams}),
       .use_graphs = options_.graphs == "on",
       .skips_taps = draft_checkpoint_ != nullptr});
  if (!loop) return fail(std::move(loop.error()));
  decode_loop_ = std::move(*loop);
  if (options_.speculation.method != SpecMethod::kOff && device_->kind() != DeviceKind::kCpu)
    graphs_ = std::make_unique<GraphCache>(*device_, *stream_, *kernels_, options_.graphs == "on");
  if (auto status = decode_loop_->prepare(1); !status) return status;
  return stream_->synchronize();
}

// The most entries of a sequence's block table in a launch.
int32_t Engine::table_stride() const {
  return ceil_div(plan_.max_model_len, KvShape{}.page_tokens);
}

Status Engine::load_tokenizer() {
  auto tokenizer = tokenizer_of(*checkpoint_);
  if (!tokenizer) return fail(std::move(tokenizer.error()));
  tokenizer_ = std::move(*tokenizer);
  stop_ids_.clear();
  if (tokenizer_) stop_at_ends_of(*tokenizer_);
  if (stop_ids_.empty() && config().eos_id >= 0) stop_ids_.push_back(config().eos_id);
  return {};
}

void Engine::stop_at_ends_of(const Tokenizer& tokenizer) {
  stop_ids_.clear();
  for (const char* name : {"<|return|>", "<|call|>", "<|endoftext|>"}) {
    if (auto id = tokenizer.special_id(name)) stop_ids_.push_back(*id);
  }
}

Status Engine::check_limits(std::span<const Chunk> chunks) const {
  int64_t num_tokens = 0, num_rows = 0;
  for (const Chunk& chunk : chunks) {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    num_tokens += count;
    if (chunk.logits != Logits::kNone) num_rows += chunk.logits == Logits::kAll ? count : count > 0;
    const int64_t end = kv_->num_tokens(chunk.seq) + count;
    if (end > plan_.max_model_len) {
      return fail(exceeds("tokens in a sequence,", end, plan_.max_model_len), "context",
                  "a shorter prompt, or a greater --max-model-len");
    }
    for (const int32_t id : chunk.tokens) {
      if (id < 0 || id >= config().vocab) {
        return fail(fmt::format("token id {}, vocabulary of {}", id, config().vocab), "input");
      }
    }
  }
  if (num_tokens > options_.max_batch_tokens) {
    return fail(exceeds("tokens in one launch,", num_tokens, options_.max_batch_tokens), "step");
  }
  const bool on_cpu = device_->kind() == DeviceKind::kCpu;
  if (!on_cpu && std::cmp_greater(chunks.size(), options_.max_num_seqs)) {
    return fail(exceeds("sequences in one launch,", static_cast<int64_t>(chunks.size()),
                        options_.max_num_seqs),
                "step");
  }
  if (num_rows > options_.max_logit_rows) {
    return fail(exceeds("rows of logits,", num_rows, options_.max_logit_rows), "step");
  }
  return {};
}

Result<const float*> Engine::step(std::span<const Chunk> chunks) {
  if (auto status = check_limits(chunks); !status) return fail(std::move(status.error()));
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (kv_->append(chunks[c].seq, static_cast<int32_t>(chunks[c].tokens.size()))) continue;
    for (size_t d = 0; d < c; ++d) {  // all or nothing
      const auto count = static_cast<int32_t>(chunks[d].tokens.size());
      const auto undo = kv_->truncate(chunks[d].seq, kv_->num_tokens(chunks[d].seq) - count);
      CHECK(undo.has_value());
    }
    return fail("no free pages in the KV cache", "step", "fewer streams or shorter contexts");
  }
  build(chunks, &host_arrays_);
  auto logits = run(host_arrays_);
  for (const Chunk& chunk : chunks) kv_->release_window(chunk.seq);
  return logits;
}

// On CUDA whole tables of a long context would take the host and the copy as long as the rest of a
// launch's arrays. Rows of attention divide keys among blocks by the stride, so that it is fixed
// where logits must not depend on the batch.
void Engine::build(std::span<const Chunk> chunks, HostArrays* arrays) const {
  if (device_->kind() == DeviceKind::kCpu) return build_arrays(chunks, *kv_, 0, arrays);
  int32_t stride = table_stride();
  if (!kernels_->choice().batch_invariant()) {
    int32_t longest = 1;
    for (const Chunk& chunk : chunks) longest = std::max(longest, kv_->num_tokens(chunk.seq));
    stride = GraphCache::table_stride(ceil_div(longest, kv_->shape().page_tokens), stride);
  }
  build_arrays(chunks, *kv_, stride, arrays);
}

Result<const float*> Engine::run(const HostArrays& arrays) {
  auto placed = launch_arrays_->place(arrays, *kv_, *stream_, &layers_);
  if (!placed) return fail(std::move(placed.error()));
  Batch& batch = *placed;
  last_rows_ = batch.num_logit_rows;
  // Tokens with their drafts: few, and the same numbers of them again and again.
  const bool in_graph = graphs_ != nullptr && batch.ragged.num_tokens <= GraphCache::kMostTokens;
  const bool follows_in_graph = in_graph && follower_ != nullptr && !follower_->reads_host_arrays();
  Status status;
  if (in_graph) {
    batch.ragged.num_visible_keys = 0;  // not part of the key
    // A head's passes have drafts in the first place.
    const GraphCache::Key key{0, batch.ragged.num_tokens, batch.ragged.num_seqs, last_rows_,
                              arrays.table_stride};
    status = graphs_->run(key, [&] {
      model_->forward(batch, layers_, activations_, *stream_);
      if (follows_in_graph) static_cast<void>(follow(arrays, batch.ragged));
    });
  } else {
    status = forward(arrays, batch);
  }
  if (status && follower_ != nullptr && !follows_in_graph) status = follow(arrays, batch.ragged);
  if (!status) return fail(std::move(status.error()));
  return activations_.logits;
}

// On all ranks.
Status Engine::forward(const HostArrays& arrays, const Batch& batch) {
  if (ranks_ == nullptr) {
    model_->forward(batch, layers_, activations_, *stream_);
    return {};
  }
  if (auto launched = ranks_->launch(arrays); !launched) return launched;
  auto status =
      clear_parts(activations_, rank_config_, batch.ragged.num_tokens, *device_, *stream_);
  model_->forward(batch, layers_, activations_, *stream_);
  if (auto others = ranks_->finish(); status) status = std::move(others);
  return status;
}

uint64_t Engine::weights_bytes() const {
  return weights_.packed_bytes + (ranks_ == nullptr ? 0 : ranks_->weights_bytes());
}

Status Engine::synchronize() {
  auto status = stream_->synchronize();
  return status && ranks_ != nullptr ? ranks_->link().status() : status;
}

// A follower's pages are the full layers'.
Status Engine::follow(const HostArrays& arrays, const Ragged& placed) {
  const auto full = std::find(config().is_window.begin(), config().is_window.end(), 0);
  CHECK(full != config().is_window.end());
  const auto layer = static_cast<size_t>(full - config().is_window.begin());
  return follower_->follow(arrays, placed, layers_[layer]);
}

Status Engine::sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) {
  CHECK(static_cast<int32_t>(requests.size()) == last_rows_ && answers.size() == requests.size());
  SampleParams params{.launch = {.device = kernels_->device(),
                                 .stream = stream_.get(),
                                 .workspace = activations_.workspace,
                                 .workspace_bytes = activations_.workspace_bytes},
                      .num_rows = last_rows_,
                      .vocab = config().vocab,
                      .logits = activations_.logits,
                      .requests = requests.data(),
                      .answers = answers.data(),
                      .all_plain = std::all_of(requests.begin(), requests.end(), is_plain)};
  if (!device_requests_) {
    kernels_->run(params);
    return {};
  }
  if (auto status = device_requests_->place(requests, *stream_); !status) return status;
  params.requests = device_requests_->requests();
  params.answers = device_requests_->answers();
  kernels_->run(params);
  return device_requests_->read(answers, *stream_);
}

Status Engine::begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests) {
  if (auto status = decode_loop_->end(); !status) return status;
  const auto has_lists = [](const SampleRequest& request) {
    return request.num_bias > 0 || request.num_history > 0 || request.allowed_mask != nullptr;
  };
  if (device_requests_ && std::any_of(requests.begin(), requests.end(), has_lists)) {
    if (auto status = device_requests_->place(requests, *stream_); !status) return status;
    requests = device_requests_->placed();
  }
  return decode_loop_->begin(first, requests);
}

Status Engine::read_logits(std::span<float> logits) {
  CHECK(logits.size() <= static_cast<size_t>(last_rows_) * static_cast<size_t>(config().vocab));
  auto status =
      device_->copy_to_host(logits.data(), activations_.logits, logits.size_bytes(), *stream_);
  return status ? stream_->synchronize() : status;
}

const float* Engine::tap(size_t tap) const {
  CHECK(tap < options_.taps.size());
  return activations_.taps + static_cast<int64_t>(tap) * activations_.max_tokens * config().hidden;
}

Status Engine::read_tap(size_t tap, std::span<float> x) {
  CHECK(std::cmp_less_equal(x.size(), int64_t{activations_.max_tokens} * config().hidden));
  auto status = device_->copy_to_host(x.data(), this->tap(tap), x.size_bytes(), *stream_);
  return status ? stream_->synchronize() : status;
}

}  // namespace moxie
