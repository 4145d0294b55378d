// A stand-in for an engine whose next token is a known function of all tokens before it: a hash of
// what it reads through the tables of pages, where each step has written its tokens. A page that
// holds another request's keys, or is given away too early, changes the tokens.
#pragma once

#include <algorithm>
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
                            int32_t vocab) {
    return draw(hash_of(tokens), seed, step, vocab);
  }

  const Limits& limits() const override { return limits_; }
  KvCache& kv() override { return *kv_; }
  void build(std::span<const Chunk> chunks, HostArrays* arrays) override {
    build_arrays(chunks, *kv_, 0, arrays);
  }

  Status run(const HostArrays& arrays) override {
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

  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    CHECK(requests.size() == hashes_.size() && answers.size() == hashes_.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const SampleRequest& request = requests[i];
      answers[i] = {.token = draw(hashes_[i], request.seed, request.step, limits_.vocab)};
      if (request.num_logprobs >= 0) answers[i].logprob = logprob_of(hashes_[i]);
      if (request.num_bias > 0 && request.bias_values[0] > 1e29f) {
        answers[i].token = request.bias_ids[0];
      }
      if (request.allowed_mask == nullptr) continue;
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
  static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ (value + 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;
    return hash ^ (hash >> 29);
  }
  static int32_t draw(uint64_t hash, uint64_t seed, uint64_t step, int32_t vocab) {
    return static_cast<int32_t>(mix(mix(hash, seed), step) % static_cast<uint64_t>(vocab));
  }
  static bool is_allowed(const SampleRequest& request, int32_t id) {
    return ((request.allowed_mask[id / 32] >> (id % 32)) & 1u) != 0;
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
};

}  // namespace moxie
