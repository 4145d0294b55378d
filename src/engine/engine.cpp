// Loads a model and runs launches of it.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <random>

#include "engine/tokenizer_source.h"

namespace moxie {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string exceeds(std::string_view what, int64_t found, int64_t limit) {
  return fmt::format("{} {} where {} fit", found, what, limit);
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAborted:
      return "abort";
  }
  return "stop";
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  engine->options_ = options;
  const auto start = std::chrono::steady_clock::now();
  if (auto status = engine->open_device(); !status) return fail(std::move(status.error()));
  if (auto status = engine->load_model(); !status) return fail(std::move(status.error()));
  if (auto status = engine->make_memory(); !status) return fail(std::move(status.error()));
  if (auto status = engine->load_tokenizer(); !status) return fail(std::move(status.error()));
  engine->load_seconds_ = seconds_since(start);
  return engine;
}

Status Engine::open_device() {
  const std::string& name = options_.device;
  if (name == "cuda" || name.starts_with("cuda:")) {
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
  } else if (name == "cpu" || name == "auto") {
    // auto: the CPU until the CUDA tables hold a row for every step.
    device_ = make_cpu_device(options_.threads);
  } else {
    return fail("unknown device '" + name + "'", "--device", "cpu, cuda, cuda:N or auto");
  }
  auto stream = device_->make_stream();
  if (!stream) return fail(std::move(stream.error()));
  stream_ = std::move(*stream);

  KernelChoice choice;
  for (const std::string& assignment : options_.kernels) {
    if (auto status = choice.add(assignment); !status) return status;
  }
  const Features features = device_->kind() == DeviceKind::kCpu
                                ? cpu_features()
                                : cuda_features(device_->properties().compute_capability);
  kernels_ = std::make_unique<KernelChooser>(device_->kind(), features, choice);
  if (options_.activation != "bf16" && options_.activation != "auto") {
    return fail("no row takes " + options_.activation + " activations", "--activation",
                "bf16 (BF16 or wider) is what the rows of this build take");
  }
  return {};
}

Status Engine::load_model() {
  auto checkpoint = open_checkpoint(options_.model);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  checkpoint_ = std::move(*checkpoint);
  if (const auto& faults = checkpoint_->faults(); !faults.empty()) {
    std::string more = faults.size() > 1 ? fmt::format(" (and {} more)", faults.size() - 1) : "";
    return fail(faults.front().message() + more, checkpoint_->path(),
                "`moxie inspect " + options_.model + "` lists all faults");
  }
  auto mxfp4 = Mxfp4Layers::parse(options_.mxfp4_layers);
  if (!mxfp4) return fail(std::move(mxfp4.error()));
  const LoadOptions load{
      .mxfp4_layers = *mxfp4, .show_progress = options_.show_progress, .seed = options_.seed};

  auto kv_dtype = choose_kv_dtype(options_.kv_dtype, checkpoint_->config(), *kernels_,
                                  options_.max_model_len, options_.max_num_seqs);
  if (!kv_dtype) return fail(std::move(kv_dtype.error()));
  kv_dtype_ = *kv_dtype;
  plan_ = plan_memory(*checkpoint_,
                      {.load = load,
                       .kv_dtype = kv_dtype_,
                       .max_model_len = options_.max_model_len,
                       .max_num_seqs = options_.max_num_seqs,
                       .max_batch_tokens = options_.max_batch_tokens,
                       .max_logit_rows = options_.max_logit_rows},
                      device_->properties().available_bytes, *kernels_);
  if (!plan_.fits) {
    return fail(fmt::format("needs {}, {} is free", format_bytes(plan_.total_bytes),
                            format_bytes(plan_.available_bytes)),
                options_.model, plan_.advice);
  }
  auto weights = checkpoint_->load(*device_, load);
  if (!weights) return fail(std::move(weights.error()));
  weights_ = std::move(*weights);
  return {};
}

Status Engine::make_memory() {
  const GptOssConfig& config = checkpoint_->config();
  const int32_t max_len = plan_.max_model_len;

  auto rotary = device_->allocate(4ull * static_cast<uint64_t>(max_len) * config.head_dim);
  if (!rotary) return fail(std::move(rotary.error()));
  rotary_buffer_ = std::move(*rotary);
  // Through a small piece of host memory, so that the peak holds one table and not two.
  constexpr int32_t kPiece = 1024;
  std::vector<float> piece(static_cast<size_t>(kPiece) * config.head_dim);
  for (int32_t first = 0; first < max_len; first += kPiece) {
    const int32_t count = std::min(kPiece, max_len - first);
    fill_rotary_table(config, first, count, piece.data());
    const uint64_t row_bytes = 4ull * config.head_dim;
    if (auto status = device_->copy_from_host(rotary_buffer_.data() + first * row_bytes,
                                              piece.data(), count * row_bytes, *stream_);
        !status) {
      return status;
    }
    if (auto status = stream_->synchronize(); !status) return status;
  }

  model_ = std::make_unique<GptOss>(config, weights_, Rotary{rotary_buffer_.as<float>(), max_len},
                                    *kernels_, options_.sinks);
  if (auto status = model_->check_rows(kv_dtype_); !status) return status;

  const auto bytes = activation_bytes(config, weights_, kv_dtype_, *kernels_,
                                      options_.max_batch_tokens, options_.max_logit_rows);
  auto activations = device_->allocate(bytes.total() + 16 * 256);
  if (!activations) return fail(std::move(activations.error()));
  Arena arena(std::move(*activations));
  activations_ =
      make_activations(config, bytes, options_.max_batch_tokens, options_.max_logit_rows, arena);
  activation_buffer_ = arena.release();

  const KvShape shape = kv_shape(config, kv_dtype_);
  const int32_t chunk = std::min(options_.max_batch_tokens, max_len);
  auto kv = KvCache::create(
      *device_, *stream_, shape, config.is_window,
      static_cast<int32_t>(options_.max_num_seqs * shape.full_pages(max_len)),
      static_cast<int32_t>(options_.max_num_seqs * shape.window_pages(max_len, chunk)));
  if (!kv) return fail(std::move(kv.error()));
  kv_ = std::move(*kv);
  return {};
}

Status Engine::load_tokenizer() {
  auto tokenizer = tokenizer_of(*checkpoint_);
  if (!tokenizer) return fail(std::move(tokenizer.error()));
  tokenizer_ = std::move(*tokenizer);
  stop_ids_.clear();
  if (tokenizer_) {
    for (const char* name : {"<|return|>", "<|call|>", "<|endoftext|>"}) {
      if (auto id = tokenizer_->special_id(name)) stop_ids_.push_back(*id);
    }
  }
  if (stop_ids_.empty() && config().eos_id >= 0) stop_ids_.push_back(config().eos_id);
  return {};
}

Result<const float*> Engine::step(std::span<const Chunk> chunks) {
  Scratch& s = scratch_;
  s.token_ids.clear();
  s.positions.clear();
  s.seq_idx.clear();
  s.logit_rows.clear();
  s.row_offsets.assign(1, 0);
  int64_t num_tokens = 0, visible = 0;
  int32_t longest = 0;
  for (const Chunk& chunk : chunks) num_tokens += static_cast<int64_t>(chunk.tokens.size());
  if (num_tokens > options_.max_batch_tokens) {
    return fail(exceeds("tokens in one launch,", num_tokens, options_.max_batch_tokens), "step");
  }
  for (size_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    const int32_t start = kv_->num_tokens(chunk.seq);
    const auto count = static_cast<int32_t>(chunk.tokens.size());
    if (start + count > plan_.max_model_len) {
      return fail(exceeds("tokens in a sequence,", start + count, plan_.max_model_len), "context",
                  "a shorter prompt, or a greater --max-model-len");
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = chunk.tokens[i];
      if (id < 0 || id >= config().vocab) {
        return fail(fmt::format("token id {}, vocabulary of {}", id, config().vocab), "input");
      }
      const bool wanted =
          chunk.logits == Logits::kAll || (chunk.logits == Logits::kLast && i + 1 == count);
      if (wanted) s.logit_rows.push_back(static_cast<int32_t>(s.token_ids.size()));
      s.token_ids.push_back(id);
      s.positions.push_back(start + i);
      s.seq_idx.push_back(static_cast<int32_t>(c));
      visible += start + i + 1;
    }
    s.row_offsets.push_back(static_cast<int32_t>(s.token_ids.size()));
    longest = std::max(longest, start + count);
  }
  if (static_cast<int64_t>(s.logit_rows.size()) > options_.max_logit_rows) {
    return fail(exceeds("rows of logits,", s.logit_rows.size(), options_.max_logit_rows), "step");
  }
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (kv_->append(chunks[c].seq, static_cast<int32_t>(chunks[c].tokens.size()))) continue;
    for (size_t d = 0; d < c; ++d) {  // all or nothing
      const auto undo = kv_->truncate(chunks[d].seq, s.positions[s.row_offsets[d]]);
      CHECK(undo.has_value());
    }
    return fail("no free pages in the KV cache", "step", "fewer streams or shorter contexts");
  }

  const int32_t stride = ceil_div(longest, kv_->shape().page_tokens);
  const size_t table_size = chunks.size() * static_cast<size_t>(stride);
  s.full_tables.assign(table_size, -1);
  s.window_tables.assign(table_size, -1);
  for (size_t c = 0; c < chunks.size(); ++c) {
    const size_t at = c * static_cast<size_t>(stride);
    kv_->fill_tables(chunks[c].seq, std::span(s.full_tables).subspan(at, stride),
                     std::span(s.window_tables).subspan(at, stride));
  }
  kv_->layer_views(s.full_tables.data(), s.window_tables.data(), stride, &s.layers);

  const Batch batch{.ragged = {.num_tokens = static_cast<int32_t>(s.token_ids.size()),
                               .num_seqs = static_cast<int32_t>(chunks.size()),
                               .positions = s.positions.data(),
                               .seq_idx = s.seq_idx.data(),
                               .row_offsets = s.row_offsets.data(),
                               .num_visible_keys = visible},
                    .token_ids = s.token_ids.data(),
                    .num_logit_rows = static_cast<int32_t>(s.logit_rows.size()),
                    .logit_rows = s.logit_rows.data()};
  model_->forward(batch, s.layers, activations_, *stream_);
  for (const Chunk& chunk : chunks) kv_->release_window(chunk.seq);
  last_rows_ = batch.num_logit_rows;
  return activations_.logits;
}

void Engine::sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) {
  CHECK(static_cast<int32_t>(requests.size()) == last_rows_ && answers.size() == requests.size());
  kernels_->run(SampleParams{.launch = {.device = kernels_->device(),
                                        .stream = stream_.get(),
                                        .workspace = activations_.workspace,
                                        .workspace_bytes = activations_.workspace_bytes},
                             .num_rows = last_rows_,
                             .vocab = config().vocab,
                             .logits = activations_.logits,
                             .requests = requests.data(),
                             .answers = answers.data()});
}

Result<Generated> Engine::generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                                   const OnToken& on_token) {
  if (prompt.empty()) return fail("no tokens", "prompt", "give at least one");
  const auto prompt_len = static_cast<int32_t>(prompt.size());
  if (prompt_len >= plan_.max_model_len) {
    return fail(exceeds("tokens,", prompt_len, plan_.max_model_len - 1), "prompt",
                "a shorter prompt, or a greater --max-model-len");
  }
  Generated result;
  result.timing.load_s = load_seconds_;
  result.timing.prompt_tokens = prompt_len;
  const int32_t room = plan_.max_model_len - prompt_len;
  const int32_t budget = sampling.max_tokens > 0 ? std::min(sampling.max_tokens, room) : room;

  struct Guard {  // the sequence's pages go back however this ends
    KvCache& kv;
    SeqId seq;
    ~Guard() { kv.free_sequence(seq); }
  } guard{*kv_, kv_->add_sequence()};

  std::map<int32_t, int32_t> counts;  // of the output; 0 for tokens of the prompt alone
  for (const int32_t id : prompt) counts.emplace(id, 0);
  const bool penalised = sampling.repetition_penalty != 1 || sampling.frequency_penalty != 0 ||
                         sampling.presence_penalty != 0;
  std::vector<int32_t> history_ids, history_counts, bias_ids;
  std::vector<float> bias_values;
  for (const auto& [id, value] : sampling.logit_bias) {
    bias_ids.push_back(id);
    bias_values.push_back(value);
  }
  SampleRequest request{.temperature = sampling.temperature,
                        .top_k = sampling.top_k,
                        .top_p = sampling.top_p,
                        .min_p = sampling.min_p,
                        .repetition_penalty = sampling.repetition_penalty,
                        .frequency_penalty = sampling.frequency_penalty,
                        .presence_penalty = sampling.presence_penalty,
                        .num_logprobs = sampling.num_logprobs,
                        .seed = sampling.seed ? *sampling.seed : std::random_device{}(),
                        .bias_ids = bias_ids.data(),
                        .bias_values = bias_values.data(),
                        .num_bias = static_cast<int32_t>(bias_ids.size())};

  auto start = std::chrono::steady_clock::now();
  for (int32_t at = 0; at < prompt_len; at += options_.max_batch_tokens) {
    const int32_t count = std::min(options_.max_batch_tokens, prompt_len - at);
    const Chunk chunk{guard.seq, prompt.subspan(at, count),
                      at + count == prompt_len ? Logits::kLast : Logits::kNone};
    if (auto logits = step({&chunk, 1}); !logits) return fail(std::move(logits.error()));
  }
  for (int32_t n = 0;; ++n) {
    if (penalised) {
      history_ids.clear();
      history_counts.clear();
      for (const auto& [id, count] : counts) {
        history_ids.push_back(id);
        history_counts.push_back(count);
      }
      request.history_ids = history_ids.data();
      request.history_counts = history_counts.data();
      request.num_history = static_cast<int32_t>(history_ids.size());
    }
    request.step = static_cast<uint64_t>(n);
    SampleAnswer answer;
    sample({&request, 1}, {&answer, 1});
    if (answer.token < 0) return fail("every token is forbidden", "sampling", "relax the mask");
    if (n == 0) {
      result.timing.prefill_s = seconds_since(start);
      start = std::chrono::steady_clock::now();
    }
    result.ids.push_back(answer.token);
    ++counts[answer.token];
    result.timing.completion_tokens = n + 1;
    result.timing.decode_s = seconds_since(start);
    const auto is_in = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), answer.token) != ids.end();
    };
    const bool stops = is_in(sampling.stop_ids) || (!sampling.ignore_eos && is_in(stop_ids_));
    if (on_token && !on_token(answer)) {
      result.reason = stops ? FinishReason::kStop : FinishReason::kAborted;
      return result;
    }
    if (stops) return result;
    if (n + 1 >= budget) {
      result.reason = FinishReason::kLength;
      return result;
    }
    const Chunk chunk{guard.seq, {&result.ids.back(), 1}, Logits::kLast};
    if (auto logits = step({&chunk, 1}); !logits) return fail(std::move(logits.error()));
  }
}

}  // namespace moxie
