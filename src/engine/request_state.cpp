// The SampleRequest of each draw of a request.
#include "engine/request_state.h"

#include <algorithm>
#include <limits>
#include <random>

#include "engine/step_runner.h"

namespace moxie {

Sampler::Sampler(const SamplingOptions& options, std::span<const int32_t> prompt,
                 std::span<const int32_t> model_stop_ids, int32_t vocab)
    : base_{.temperature = options.temperature,
            .top_k = options.top_k,
            .top_p = options.top_p,
            .min_p = options.min_p,
            .repetition_penalty = options.repetition_penalty,
            .frequency_penalty = options.frequency_penalty,
            .presence_penalty = options.presence_penalty,
            .num_logprobs = options.num_logprobs,
            .seed = options.seed ? *options.seed : 0},
      min_tokens_(options.min_tokens),
      stop_ids_(options.stop_ids),
      is_penalised_(options.repetition_penalty != 1 || options.frequency_penalty != 0 ||
                    options.presence_penalty != 0) {
  if (!options.seed) {
    std::random_device random;
    base_.seed = uint64_t{random()} << 32 | random();
  }
  if (!options.ignore_eos) {
    stop_ids_.insert(stop_ids_.end(), model_stop_ids.begin(), model_stop_ids.end());
  }
  std::sort(stop_ids_.begin(), stop_ids_.end());
  for (const auto& [id, value] : options.logit_bias) {
    bias_ids_.push_back(id);
    bias_values_.push_back(value);
  }
  num_own_bias_ = static_cast<int32_t>(bias_ids_.size());
  if (min_tokens_ > 0) {
    bias_ids_.insert(bias_ids_.end(), stop_ids_.begin(), stop_ids_.end());
    bias_values_.resize(bias_ids_.size(), -std::numeric_limits<float>::infinity());
  }
  if (!options.allowed_ids.empty()) {
    allowed_.assign(static_cast<size_t>(ceil_div(vocab, 32)), 0);
    for (const int32_t id : options.allowed_ids) {
      allowed_[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    }
  }
  if (!is_penalised_) return;
  for (const int32_t id : prompt) {
    if (!history_places_.try_emplace(id, static_cast<int32_t>(history_ids_.size())).second)
      continue;
    history_ids_.push_back(id);
    history_counts_.push_back(0);
  }
}

SampleRequest Sampler::next(int32_t num_drawn, TokenConstraint* constraint,
                            std::span<uint32_t> mask) {
  SampleRequest request = base_;
  request.step = static_cast<uint64_t>(num_drawn);
  request.num_bias =
      num_drawn < min_tokens_ ? static_cast<int32_t>(bias_ids_.size()) : num_own_bias_;
  request.bias_ids = bias_ids_.data();
  request.bias_values = bias_values_.data();
  if (is_penalised_) {
    request.history_ids = history_ids_.data();
    request.history_counts = history_counts_.data();
    request.num_history = static_cast<int32_t>(history_ids_.size());
  }
  if (!allowed_.empty()) request.allowed_mask = allowed_.data();
  if (constraint != nullptr && constraint->fill_mask(mask)) {
    for (size_t i = 0; i < allowed_.size(); ++i) mask[i] &= allowed_[i];
    request.allowed_mask = mask.data();
  }
  return request;
}

// All draws share one list of ids, to which new ids of drafts are appended; each has its counts.
void Sampler::add_drafts(std::span<const int32_t> drafts, std::span<SampleRequest> requests,
                         std::vector<int32_t>* lists) const {
  if (!is_penalised_) return;
  const size_t num_known = history_ids_.size(), stride = num_known + drafts.size();
  lists->resize(stride * (1 + drafts.size()));
  int32_t* ids = lists->data();
  std::copy(history_ids_.begin(), history_ids_.end(), ids);
  const int32_t* before = history_counts_.data();
  size_t size = num_known;
  for (size_t i = 0; i < drafts.size(); ++i) {
    int32_t* counts = ids + stride * (i + 1);
    std::copy_n(before, size, counts);
    const auto known = history_places_.find(drafts[i]);
    const auto place =
        known != history_places_.end()
            ? static_cast<size_t>(known->second)
            : static_cast<size_t>(std::find(ids + num_known, ids + size, drafts[i]) - ids);
    if (place == size) {
      ids[size] = drafts[i];
      counts[size++] = 0;
    }
    ++counts[place];
    requests[i].history_ids = ids;
    requests[i].history_counts = before = counts;
    requests[i].num_history = static_cast<int32_t>(size);
  }
}

void Sampler::take(int32_t token) {
  if (!is_penalised_) return;
  const auto [place, is_first] =
      history_places_.try_emplace(token, static_cast<int32_t>(history_ids_.size()));
  if (is_first) {
    history_ids_.push_back(token);
    history_counts_.push_back(0);
  }
  ++history_counts_[static_cast<size_t>(place->second)];
}

bool Sampler::stops_at(int32_t token) const {
  return std::binary_search(stop_ids_.begin(), stop_ids_.end(), token);
}

Request::Request(ServiceRequest request, Sampler request_sampler, int32_t room, int32_t page_tokens)
    : priority(request.priority),
      prompt_logprobs(request.prompt_logprobs),
      num_prompt(static_cast<int32_t>(request.prompt.size())),
      max_new(request.sampling.max_tokens > 0 ? std::min(request.sampling.max_tokens, room) : room),
      tokens(std::move(request.prompt)),
      uses_cache(request.use_prefix_cache),
      salt(std::move(request.cache_salt)),
      given(std::move(request.given)),
      speculates(request.use_drafter && given.empty()),
      sampler(std::move(request_sampler)),
      constraint(std::move(request.constraint)),
      sink(std::move(request.sink)) {
  finish.prompt_tokens = num_prompt;
  finish.times.submitted = Clock::now();
  if (!uses_cache) return;
  start_ = chain_start(salt);
  BlockHash hash = start_;
  for (int32_t at = 0; at + page_tokens <= num_prompt; at += page_tokens) {
    hash = chain_next(
        hash, std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(page_tokens)));
    chain.push_back(hash);
  }
}

std::unique_ptr<Request> make_request(ServiceRequest request, StepRunner& runner,
                                      std::optional<int32_t> room) {
  const StepRunner::Limits& limits = runner.limits();
  if (!room) room = limits.max_model_len - static_cast<int32_t>(request.prompt.size());
  Sampler sampler(request.sampling, request.prompt, limits.stop_ids, limits.vocab);
  return std::make_unique<Request>(std::move(request), std::move(sampler), *room,
                                   runner.kv().shape().page_tokens);
}

void Request::push_token(int32_t token, int32_t page_tokens) {
  tokens.push_back(token);
  sampler.take(token);
  if (!uses_cache || tokens.size() % static_cast<size_t>(page_tokens) != 0) return;
  chain.push_back(chain_next(chain.empty() ? start_ : chain.back(),
                             std::span(tokens).last(static_cast<size_t>(page_tokens))));
}

}  // namespace moxie
