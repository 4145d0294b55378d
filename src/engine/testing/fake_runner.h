// A stand-in for an engine whose next token is a known function of all tokens before it: a hash of
// what it reads through the block tables, into whose pages each launch has written its tokens, and
// of the penalties' counts. So a page that holds another request's keys, or is freed too early,
// changes the tokens. Its decode loop, if the limits have one, knows what a device would know: of
// the next launch only the new pages.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/step_runner.h"

namespace moxie {

class FakeRunner : public StepRunner {
 public:
  struct Shape {
    int32_t page_tokens = 4, window = 6;
    int32_t full_pages = 64, window_pages = 64;
  };
  FakeRunner(const Shape& shape, const Limits& limits)
      : limits_(limits), device_(make_cpu_device(1)), stream_(std::move(*device_->make_stream())) {
    constexpr uint8_t kKinds[] = {1, 0};
    const KvShape kv_shape{.num_full_layers = 1,
                           .num_window_layers = 1,
                           .num_kv_heads = 1,
                           .head_dim = 1,
                           .window = shape.window,
                           .page_tokens = shape.page_tokens,
                           .dtype = DType::kF32};
    auto kv =
        KvCache::create(*device_, *stream_, kv_shape, kKinds, shape.full_pages, shape.window_pages);
    CHECK(kv.has_value());
    kv_ = std::move(*kv);
  }

  /// The token after `tokens`, if nothing restricts it.
  static int32_t next_token(std::span<const int32_t> tokens, uint64_t seed, uint64_t step,
                            int32_t vocab, uint64_t history = 0) {
    return draw(hash_of(tokens) ^ history, seed, step, vocab);
  }
  /// What a list of counts adds to the hash, in any order.
  static uint64_t history_of(std::span<const int32_t> ids, std::span<const int32_t> counts) {
    uint64_t sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      sum += mix(mix(1, static_cast<uint64_t>(ids[i])), static_cast<uint64_t>(counts[i]));
    }
    return sum;
  }

  const Limits& limits() const override { return limits_; }
  KvCache& kv() override { return *kv_; }
  void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) override {
    if (in_loop == InLoop::kNext) return build_next_arrays(chunks, *kv_, arrays);
    build_arrays(chunks, *kv_, in_loop == InLoop::kNo ? 0 : loop_stride(), arrays);
  }

  Status launch(const HostArrays& arrays, InLoop in_loop,
                std::span<const SampleRequest> requests) override {
    if (in_loop == InLoop::kFirst) {
      CHECK(drawn_.empty(), "a step of the last session was not taken");
      loop_ = arrays;
      loop_requests_.assign(requests.begin(), requests.end());
      round_ = 0;
    } else {
      go_on(arrays);
    }
    CHECK(std::cmp_less_equal(loop_.token_ids.size(), limits_.max_loop_streams));
    drawn_.emplace_back(loop_requests_.size());
    max_in_flight_ = std::max(max_in_flight_, drawn_.size());
    if (auto status = forward(loop_); !status) return status;
    const Status status = sample(loop_requests_, drawn_.back());
    last_drawn_ = drawn_.back();
    return status;
  }
  // Every other call finds no answers yet.
  Result<bool> take(std::span<SampleAnswer> answers) override {
    CHECK(!drawn_.empty() && answers.size() == drawn_.front().size());
    was_asked_ = !was_asked_;
    if (was_asked_) return false;
    std::copy(drawn_.front().begin(), drawn_.front().end(), answers.begin());
    drawn_.pop_front();
    return true;
  }
  void leave_loop() override { drawn_.clear(); }
  /// The most launches of the loop that were under way at once.
  size_t max_in_flight() const { return max_in_flight_; }

  Status run(const HostArrays& arrays) override {
    CHECK(drawn_.empty(), "a step of the loop was not taken");
    return forward(arrays);
  }

  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    CHECK(requests.size() == hashes_.size() && answers.size() == hashes_.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const SampleRequest& request = requests[i];
      const auto num_history = static_cast<size_t>(request.num_history);
      const uint64_t history =
          history_of({request.history_ids, num_history}, {request.history_counts, num_history});
      answers[i] = {.token = draw(hashes_[i] ^ history, request.seed, request.step, limits_.vocab)};
      if (request.num_logprobs >= 0) answers[i].logprob = logprob_of(hashes_[i]);
      if (request.num_bias > 0 && request.bias_values[0] > 1e29f) {
        answers[i].token = request.bias_ids[0];
        continue;
      }
      int32_t tried = 0;
      while (tried < limits_.vocab && !is_allowed(request, answers[i].token)) {
        answers[i].token = (answers[i].token + 1) % limits_.vocab;
        ++tried;
      }
      if (tried == limits_.vocab) answers[i].token = -1;
    }
    return {};
  }
  Status synchronize() override { return {}; }

  static uint64_t hash_of(std::span<const int32_t> tokens) {
    uint64_t hash = 0;
    for (const int32_t token : tokens) hash = mix(hash, static_cast<uint64_t>(token));
    return hash;
  }
  static float logprob_of(uint64_t hash) { return -static_cast<float>(hash % 1000); }

 private:
  Status forward(const HostArrays& arrays) {
    CHECK(std::cmp_less_equal(arrays.token_ids.size(), limits_.max_batch_tokens));
    CHECK(std::cmp_less_equal(arrays.logit_rows.size(), limits_.max_logit_rows));
    CHECK(std::cmp_less_equal(arrays.row_offsets.size() - 1, limits_.max_num_seqs));
    kv_->layer_views(arrays.full_tables.data(), arrays.window_tables.data(), arrays.table_stride,
                     &views_);
    for (size_t i = 0; i < arrays.token_ids.size(); ++i) {
      for (const KvLayer& layer : views_) {
        *cell(layer, arrays.seq_idx[i], arrays.positions[i]) = arrays.token_ids[i];
      }
    }
    hashes_.clear();
    for (const int32_t row : arrays.logit_rows) {
      hashes_.push_back(read(arrays.seq_idx[static_cast<size_t>(row)],
                             arrays.positions[static_cast<size_t>(row)]));
    }
    return {};
  }
  int32_t loop_stride() const { return limits_.max_model_len / kv_->shape().page_tokens + 1; }
  // What a device does on its own; takes over the new pages.
  void go_on(const HostArrays& next) {
    CHECK(next.positions.size() == loop_.positions.size() && next.table_stride == 1);
    const int32_t page_tokens = kv_->shape().page_tokens;
    for (size_t i = 0; i < next.positions.size(); ++i) {
      loop_.token_ids[i] =
          round_ < loop_.num_fed
              ? loop_.fed[i * static_cast<size_t>(loop_.num_fed) + static_cast<size_t>(round_)]
              : std::max(0, last_drawn_[i].token);
      ++loop_requests_[i].step;
      const int32_t position = ++loop_.positions[i];
      CHECK(next.positions[i] == position);
      const size_t at =
          i * static_cast<size_t>(loop_.table_stride) + static_cast<size_t>(position / page_tokens);
      if (position % page_tokens == 0) {
        loop_.full_tables[at] = next.full_tables[i];
        loop_.window_tables[at] = next.window_tables[i];
      }
      CHECK(loop_.full_tables[at] == next.full_tables[i] &&
                loop_.window_tables[at] == next.window_tables[i],
            "a page that the loop was not told of");
    }
    ++round_;
  }
  static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ (value + 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;
    return hash ^ (hash >> 29);
  }
  static int32_t draw(uint64_t hash, uint64_t seed, uint64_t step, int32_t vocab) {
    return static_cast<int32_t>(mix(mix(hash, seed), step) % static_cast<uint64_t>(vocab));
  }
  static bool is_allowed(const SampleRequest& request, int32_t id) {
    for (int32_t i = 0; i < request.num_bias; ++i) {
      if (request.bias_ids[i] == id && request.bias_values[i] < -1e29f) return false;
    }
    return request.allowed_mask == nullptr ||
           ((request.allowed_mask[id / 32] >> (id % 32)) & 1u) != 0;
  }
  static int32_t* cell(const KvLayer& layer, int32_t seq, int32_t position) {
    const int32_t page = layer.page_of(seq, position);
    CHECK(page >= 0, "position " + std::to_string(position) + " has no page");
    return reinterpret_cast<int32_t*>(layer.k + layer.offset(page, 0, position, 1));
  }
  uint64_t read(int32_t seq, int32_t position) {
    read_.clear();
    for (int32_t p = 0; p <= position; ++p) {
      read_.push_back(*cell(views_[1], seq, p));
      if (p <= position - kv_->shape().window) continue;
      CHECK(*cell(views_[0], seq, p) == read_.back(), "the window's keys are others");
    }
    return hash_of(read_);
  }

  const Limits limits_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvCache> kv_;
  std::vector<KvLayer> views_;
  std::vector<uint64_t> hashes_;
  std::vector<int32_t> read_;

  HostArrays loop_;
  std::vector<SampleRequest> loop_requests_;
  std::vector<SampleAnswer> last_drawn_;
  std::deque<std::vector<SampleAnswer>> drawn_;  // launched and not taken
  int32_t round_ = 0;                            // of the loop's session
  bool was_asked_ = false;
  size_t max_in_flight_ = 0;
};

}  // namespace moxie
