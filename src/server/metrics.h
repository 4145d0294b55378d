// Counters and histograms without locks, and their text for Prometheus under vLLM's names.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rank_link.h"
#include "engine/service.h"
#include "server/kv_event_publisher.h"

namespace moxie {

/// Buckets become cumulative when they are read; observe() writes one bucket and the sum.
class Histogram {
 public:
  /// `bounds`: upper bounds, rising. A last bucket without a bound is added.
  explicit Histogram(std::span<const double> bounds);
  void observe(double value, uint64_t times = 1);
  uint64_t count() const;
  /// Appends the lines of `name` with `labels` ("a=\"b\"").
  void append(std::string_view name, std::string_view labels, std::string* out) const;

 private:
  std::vector<double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> buckets_;
  std::atomic<double> sum_{0};
};

/// The rate of events over the last whole seconds. For one thread.
class RecentRate {
 public:
  void add(uint64_t count, Clock::time_point now);
  double per_s(Clock::time_point now) const;

 private:
  static constexpr int64_t kSeconds = 5;
  struct Second {
    int64_t number = -1;
    uint64_t count = 0;
  };
  std::array<Second, kSeconds + 1> seconds_;  // the last ones and the one that runs
};

/// What a finished choice adds to the metrics.
struct ChoiceMetrics {
  std::string_view finish_reason;
  int32_t prompt_tokens = 0, completion_tokens = 0;
  int32_t cached_tokens = 0;  ///< of the prompt
  int32_t num_preemptions = 0;
  bool is_first = true;  ///< of the choices of one prompt, which is counted once
  int32_t n = 1;
  int32_t max_tokens = 0;  ///< as asked; 0: not asked
  RequestTimes times;
  Clock::time_point arrived{};
};

class Metrics {
 public:
  Metrics();

  void on_choice(const ChoiceMetrics& choice);
  void on_inter_token(double seconds, uint64_t tokens);
  void on_tokens(uint64_t count) {
    generation_tokens_ += count;
    recent_tokens_.add(count, Clock::now());
  }
  void on_step(int64_t tokens) { iteration_tokens_.observe(static_cast<double>(tokens)); }
  void on_http(std::string_view route, std::string_view method, int status, double seconds);

  uint64_t generation_tokens() const { return generation_tokens_; }
  uint64_t prompt_tokens() const { return prompt_tokens_; }
  /// Tokens of answers, over the last seconds. On the server's thread.
  double generation_tokens_per_s() const { return recent_tokens_.per_s(Clock::now()); }

  /// The whole page. `stats` null: the model is not loaded yet, and has no load. `events` null: no
  /// events are published. `ranks` empty: there is one.
  std::string text(const std::string& model_name, const ServiceStats* stats,
                   const KvEventCounters* events = nullptr,
                   std::span<const RankFacts> ranks = {}) const;

 private:
  void append_tokens(const std::string& labels, std::string* out) const;
  void append_histograms(const std::string& labels, std::string* out) const;

  static constexpr std::array<std::string_view, 5> kReasons = {"stop", "length", "tool_calls",
                                                               "abort", "error"};
  std::atomic<uint64_t> prompt_tokens_{0}, cached_tokens_{0}, generation_tokens_{0};
  RecentRate recent_tokens_;
  std::array<std::atomic<uint64_t>, kReasons.size()> finished_{};
  Histogram time_to_first_token_, inter_token_, time_per_output_token_, e2e_, queue_, inference_,
      prefill_, decode_, request_prompt_tokens_, request_computed_tokens_,
      request_generation_tokens_, max_generation_tokens_, request_preemptions_, params_n_,
      params_max_tokens_, iteration_tokens_, http_seconds_;
  // Written and read on the server's thread only; routes and statuses are few.
  std::map<std::string, uint64_t> http_requests_;
};

}  // namespace moxie
