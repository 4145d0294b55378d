// Chooses the device, loads a model there and runs launches of it; generate.cpp makes text.
#include "engine/engine.h"

#include <fmt/format.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <future>

#include "core/clock.h"
#include "core/device_cpu.h"
#include "engine/parallel.h"
#include "engine/rank_meeting.h"
#include "engine/tokenizer_source.h"
#include "model/eight_bits_cuda.h"
#include "model/loader.h"

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
// Other processes with GPUs end when all have done the last exchange.
Engine::~Engine() {
  if (gpu_link_ != nullptr) meeting_->say_end();
}

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
  if (status) status = timed(&memory_s, [&] { return engine->make_runner(); });
  if (status) status = timed(&t.graphs_s, [&] { return engine->decode_loop().prepare(1); });
  // Not before: where NCCL connects at first use, the ranks record the graph together.
  if (status && engine->ranks_ != nullptr) status = engine->ranks_->loaded();
  if (status) status = engine->stream_->synchronize();
  if (status) status = engine->load_tokenizer();
  if (!status) {
    const std::string why = status.error().message();
    if (engine->meeting_ != nullptr)
      engine->meeting_->end_with_fault(why);
    else if (engine->options_.world)
      RankMeeting::stay_away(*engine->options_.world, why);
    return fail(std::move(status.error()));
  }
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

// The taps, the memory plan and what the first rank loads depend on the head, which no other rank
// has.
Status Engine::open_head() {
  if (options_.world && options_.world->rank > 0) return {};
  auto head = open_draft_head(options_.speculation, options_.model, *checkpoint_);
  if (!head) return fail(std::move(head.error()));
  draft_checkpoint_ = std::move(*head);
  if (draft_checkpoint_ == nullptr) return {};
  CHECK(options_.taps.empty(), "taps are the head's");
  options_.taps = draft_checkpoint_->config().boundaries;
  load_options_.ranks.first_holds_unembed = takes_target_unembed(*draft_checkpoint_);
  return {};
}

Status Engine::open_device() {
  if (options_.graphs != "on" && options_.graphs != "off") {
    return fail("unknown value '" + options_.graphs + "'", "--graphs", "on or off");
  }
  const bool is_auto = options_.device == "auto";
  if (options_.device != "cpu" && !is_auto) {
    if (auto status = open_gpus(); !status) return status;
  } else if (!is_auto || !open_usable_gpu()) {
    if (options_.mirrors_ranks)
      return fail("for ranks on GPUs only", "--mirror-ranks", "--device cuda");
    // Those of this host share its cores.
    const int n = options_.world ? options_.world->local_size : options_.tensor_parallel;
    const int local_rank = options_.world ? options_.world->local_rank : 0;
    device_ = n > 1 ? make_rank_device(options_.threads, local_rank, n)
              : options_.shared_threads != nullptr ? make_cpu_device(*options_.shared_threads)
                                                   : make_cpu_device(options_.threads);
    load_options_.device = DeviceKind::kCpu;
    if (auto status = make_kernels(); !status) return status;
  }
  if (options_.mirrors_ranks)
    log_warn(
        fmt::format("the first of {} ranks runs alone: times have no links between GPUs in "
                    "them, and tokens are not the model's",
                    options_.tensor_parallel));
  auto stream = device_->make_stream();
  if (!stream) return fail(std::move(stream.error()));
  stream_ = std::move(*stream);
  auto kv_dtype = choose_kv_dtype(options_.kv_dtype, config(), *kernels_, options_.max_model_len,
                                  options_.max_num_seqs, options_.kv_cache_bytes);
  if (!kv_dtype) return fail(std::move(kv_dtype.error()));
  kv_dtype_ = *kv_dtype;
  return {};
}

// divide() has made the list.
Status Engine::open_gpus() {
  auto device = open_gpu_of_rank(gpus_, 0);
  if (!device) return fail(std::move(device.error()));
  device_ = std::move(*device);
  load_options_.device = DeviceKind::kCuda;
  if (const auto sharing = std::ranges::count(gpus_, gpus_.front()); sharing > 1)
    log_warn(fmt::format("{} ranks share a GPU, {} multiprocessors each: slower than one rank",
                         sharing, device_->properties().num_units));
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
  if (options_.tensor_parallel > num_usable && !options_.mirrors_ranks) {
    log_warn(fmt::format("running on the CPU: {} ranks, {} GPU{}", options_.tensor_parallel,
                         num_usable, num_usable == 1 ? "" : "s"));
    return false;
  }
  const int most_devices = options_.tensor_parallel > 1 ? 1 : 64;
  for (int i = 0; i < most_devices && device_ == nullptr; ++i) {
    auto device = make_cuda_device(i);
    if (device)
      device_ = std::move(*device), gpus_.front() = i;
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
      status = kv_dtype ? GptOss(rank_config_, layout, {}, *kernels_).check_rows(*kv_dtype)
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
  const gemm::Tile tile = choice.tile();
  const bool has_tiles =
      tile.rows == gemm::kGroupedTileRows ? (features & kSm90a) != 0 : (features & kCudaAny) != 0;
  if (tile.columns != 0 && !has_tiles) {
    return fail("no row of this device has the tile " + gemm::tile_name(tile), "--tile",
                "auto leaves it to the rows");
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
  load_options_.ranks.link = !options_.world ? link_between(device_->kind())
                             : is_cpu        ? LinkKind::kSockets
                                             : LinkKind::kNccl;
  load_options_.ranks.has_taps = !options_.taps.empty();
  if (auto status = set_rank_config(); !status) return status;
  if (options_.arch_limit != "none" && options_.arch_limit != "sm_80")
    return fail("unknown value '" + options_.arch_limit + "'", "--arch-limit", "none, sm_80");
  if (options_.arch_limit != "none" && is_cpu)
    return fail("it limits the rows of GPUs; this is a CPU", "--arch-limit");
  DeviceRates rates = rates_of(device_->kind(), device_->properties());
  Features features =
      is_cpu ? cpu_features() : cuda_features(device_->properties().compute_capability);
  if (options_.arch_limit == "sm_80") {
    features &= kCudaAny | kNoMxProducts;
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
  // Ranks on a CPU share its memory.
  const auto n = static_cast<uint64_t>(device_->kind() != DeviceKind::kCpu ? 1
                                       : options_.world ? options_.world->local_size
                                                        : options_.tensor_parallel);
  plan_ = plan_memory(*checkpoint_, request, device_->properties().available_bytes / n, *kernels_);
  if (!plan_.fits) {
    return fail(fmt::format("needs {}, {} is free", format_bytes(plan_.total_bytes),
                            format_bytes(plan_.available_bytes)),
                options_.model, plan_.advice);
  }
  if (options_.max_model_len > plan_.max_model_len) {
    log_warn(fmt::format("--max-model-len {}: the model has {} positions, no more are planned",
                         options_.max_model_len, plan_.max_model_len));
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
  sizes_ = rank_sizes();
  if (options_.world)
    if (auto status = meet_ranks(); !status) return status;
  timeline_.plan_s += seconds_since(start);
  return options_.self_test.mode == "off" ? load_weights() : load_weights_and_test();
}

LoadOptions Engine::whole_load_options() const {
  LoadOptions whole = load_options_;
  whole.ranks = {};
  whole.rank = 0;
  return whole;
}

// On a GPU the test runs beside the loading. Rows that fail are known before the first launch.
Status Engine::load_weights_and_test() {
  const ModelWeights layout = checkpoint_->layout(whole_load_options());
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
  // On a CPU before: beside the weights its memory would come on top of what was planned. With
  // ranks as well: the others take the choice that it leaves.
  if (device_->kind() == DeviceKind::kCpu || num_ranks() > 1) {
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
  if (options_.world && options_.world->rank == 0)
    ranks_ = RankGroup::of_processes(*meeting_, config().vocab);
  if (!options_.world && num_ranks() > 1) {
    auto ranks = RankGroup::start(rank_setup());
    if (!ranks) return fail(std::move(ranks.error()));
    ranks_ = std::move(*ranks);
  }
  auto weights = checkpoint_->load(*device_, load_options_);
  if (!weights) return fail(std::move(weights.error()));
  weights_ = std::move(*weights);
  if (link() != nullptr) link()->set_weights_bytes(weights_.packed_bytes);
  if (takes_eight_bits(*kernels_)) {
    if (auto status = add_eight_bits_cuda(*device_, *stream_, weights_); !status) return status;
  }
  const StartupTimeline& loaded = weights_.timeline;
  timeline_.read_s = loaded.read_s;
  timeline_.copy_s = loaded.copy_s;
  timeline_.repack_s = loaded.repack_s;
  timeline_.weights_s = loaded.weights_s;
  timeline_.read_bytes = loaded.read_bytes;
  return {};
}

Status Engine::make_runner() {
  auto runner = RankRunner::create({.device = *device_,
                                    .stream = *stream_,
                                    .kernels = *kernels_,
                                    .config = rank_config_,
                                    .weights = weights_,
                                    .link = gpu_link_ != nullptr ? gpu_link_.get() : link()},
                                   sizes_);
  if (!runner) return fail(std::move(runner.error()));
  runner_ = std::move(*runner);
  if (ranks_ == nullptr) return {};
  kv().set_on_copy(
      [this](PageKind kind, int32_t from, int32_t to) { ranks_->copy_page(kind, from, to); });
  return {};
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
    const int64_t end = kv().num_tokens(chunk.seq) + count;
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
    if (kv().append(chunks[c].seq, static_cast<int32_t>(chunks[c].tokens.size()))) continue;
    for (size_t d = 0; d < c; ++d) {  // all or nothing
      const auto count = static_cast<int32_t>(chunks[d].tokens.size());
      const auto undo = kv().truncate(chunks[d].seq, kv().num_tokens(chunks[d].seq) - count);
      CHECK(undo.has_value());
    }
    return fail("no free pages in the KV cache", "step", "fewer streams or shorter contexts");
  }
  build(chunks, &host_arrays_);
  auto logits = run(host_arrays_);
  for (const Chunk& chunk : chunks) kv().release_window(chunk.seq);
  return logits;
}

// On CUDA whole tables of a long context would take the host and the copy as long as the rest of a
// launch's arrays. Rows of attention divide keys among blocks by the stride, so that it is fixed
// where logits must not depend on the batch.
void Engine::build(std::span<const Chunk> chunks, HostArrays* arrays) const {
  if (device_->kind() == DeviceKind::kCpu) return build_arrays(chunks, kv(), 0, arrays);
  int32_t stride = table_stride();
  if (!kernels_->choice().batch_invariant()) {
    int32_t longest = 1;
    for (const Chunk& chunk : chunks) longest = std::max(longest, kv().num_tokens(chunk.seq));
    stride = GraphCache::table_stride(ceil_div(longest, kv().shape().page_tokens), stride);
  }
  build_arrays(chunks, kv(), stride, arrays);
}

Result<const float*> Engine::run(const HostArrays& arrays) {
  last_rows_ = static_cast<int32_t>(arrays.logit_rows.size());
  if (ranks_ != nullptr)
    if (auto status = ranks_->launch(arrays); !status) return fail(std::move(status.error()));
  RankRunner::Follow follow;
  if (follower_ != nullptr)
    follow = [this](const HostArrays& of, const Ragged& placed) {
      return this->follow(of, placed);
    };
  auto status =
      runner_->run(arrays, follow, follower_ != nullptr && !follower_->reads_host_arrays());
  if (ranks_ != nullptr)
    if (auto others = ranks_->finish(); !others) status = std::move(others);
  if (!status) return fail(std::move(status.error()));
  return activations().logits;
}

Status Engine::synchronize() { return ranks_status(stream_->synchronize()); }

// A follower's pages are the full layers'. It may take memory or load code, for which a driver may
// wait for every GPU of the process: by then all ranks must have given theirs the launch.
Status Engine::follow(const HostArrays& arrays, const Ragged& placed) {
  if (ranks_ != nullptr)
    if (auto status = ranks_->finish(); !status) return status;
  const auto full = std::find(config().is_window.begin(), config().is_window.end(), 0);
  CHECK(full != config().is_window.end());
  const auto layer = static_cast<size_t>(full - config().is_window.begin());
  return follower_->follow(arrays, placed, runner_->layers()[layer]);
}

Status Engine::sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) {
  CHECK(static_cast<int32_t>(requests.size()) == last_rows_ && answers.size() == requests.size());
  SampleParams params{.launch = kernels_->launch(stream_.get(), activations().workspace,
                                                 activations().workspace_bytes),
                      .num_rows = last_rows_,
                      .vocab = config().vocab,
                      .logits = activations().logits,
                      .requests = requests.data(),
                      .answers = answers.data(),
                      .all_plain = std::all_of(requests.begin(), requests.end(), is_plain)};
  DeviceRequests* const placed = runner_->device_requests();
  if (placed == nullptr) {
    kernels_->run(params);
    return {};
  }
  if (auto status = placed->place(requests, *stream_); !status) return status;
  params.requests = placed->requests();
  params.answers = placed->answers();
  kernels_->run(params);
  return ranks_status(placed->read(answers, *stream_));
}

Status Engine::begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests) {
  if (ranks_ != nullptr)
    if (auto status = ranks_->begin_decoding(first, requests); !status) return status;
  auto status = runner_->begin_decoding(first, requests);
  if (ranks_ != nullptr)  // the requests' arrays are the caller's
    if (auto others = ranks_->finish(); !others) status = std::move(others);
  return status;
}

Status Engine::decode_next(const HostArrays& next) {
  if (ranks_ != nullptr)
    if (auto status = ranks_->decode_next(next); !status) return status;
  return decode_loop().launch(next);
}

Result<bool> Engine::decoded() {
  auto ready = decode_loop().is_ready();
  if (ready && !*ready) return false;
  auto status = ranks_status(ready ? Status{} : Status(fail(ready.error())));
  if (!status) return fail(std::move(status.error()));
  return true;
}

Status Engine::end_decoding() {
  if (ranks_ != nullptr) ranks_->end_decoding();
  auto status = decode_loop().end();
  if (ranks_ != nullptr)
    if (auto others = ranks_->finish(); !others) status = std::move(others);
  return status;
}

Status Engine::read_logits(std::span<float> logits) {
  CHECK(logits.size() <= static_cast<size_t>(last_rows_) * static_cast<size_t>(config().vocab));
  auto status =
      device_->copy_to_host(logits.data(), activations().logits, logits.size_bytes(), *stream_);
  return status ? synchronize() : status;
}

const float* Engine::tap(size_t tap) const {
  CHECK(tap < options_.taps.size());
  const Activations& act = activations();
  return act.taps + static_cast<int64_t>(tap) * act.max_tokens * config().hidden;
}

Status Engine::read_tap(size_t tap, std::span<float> x) {
  CHECK(std::cmp_less_equal(x.size(), int64_t{activations().max_tokens} * config().hidden));
  auto status = device_->copy_to_host(x.data(), this->tap(tap), x.size_bytes(), *stream_);
  return status ? stream_->synchronize() : status;
}

}  // namespace moxie
