// Prometheus text.
#include "server/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "core/process_start.h"

namespace moxie {
namespace {

// vLLM's bounds, so that its dashboards fit.
constexpr double kFirstTokenS[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                   0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                   20,    40,    80,   160,  640,  2560};
constexpr double kTokenS[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                              0.1,    0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,
                              2.5,    5,     7.5,    10,    20,   40,    80};
constexpr double kRequestS[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                              1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kChoices[] = {1, 2, 5, 10, 20};
constexpr double kPreemptions[] = {1, 2, 3, 4, 5, 10, 20};
constexpr double kHttpS[] = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60};

double span_s(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void append_head(std::string_view name, std::string_view type, std::string_view help,
                 std::string* out) {
  *out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void append_value(std::string_view name, std::string_view type, std::string_view help,
                  std::string_view labels, double value, std::string* out) {
  append_head(name, type, help, out);
  *out += fmt::format("{}{{{}}} {}\n", name, labels, value);
}

// A family of one sample for each value of a label.
void append_family(std::string_view name, std::string_view type, std::string_view help,
                   std::string_view labels, std::string_view label,
                   const std::vector<std::pair<std::string_view, double>>& values,
                   std::string* out) {
  append_head(name, type, help, out);
  for (const auto& [of, value] : values) {
    *out += fmt::format("{}{{{},{}=\"{}\"}} {}\n", name, labels, label, of, value);
  }
}

void append_service(const std::string& labels, const ServiceStats& s, std::string* out) {
  const auto value = [&](std::string_view name, std::string_view type, std::string_view help,
                         double v) { append_value(name, type, help, labels, v, out); };
  const auto count = [](int64_t v) { return static_cast<double>(v); };
  value("vllm:num_requests_running", "gauge", "Requests in the batch.", s.running);
  value("vllm:num_requests_waiting", "gauge", "Requests in the queue.", s.waiting);
  append_family("vllm:num_requests_waiting_by_reason", "gauge",
                "Requests in the queue that wait for room (capacity), or for a running prompt that "
                "computes pages which they share (deferred).",
                labels, "reason",
                {{"capacity", s.waiting - s.waiting_deferred}, {"deferred", s.waiting_deferred}},
                out);
  append_family("vllm:admission_rejections_total", "counter",
                "Requests refused because of the queue's limit of requests, or of prompt tokens.",
                labels, "reason",
                {{"max_num_queued_reqs", count(s.num_refused_requests)},
                 {"max_num_queued_tokens", count(s.num_refused_tokens)}},
                out);
  append_family("vllm:engine_sleep_state", "gauge", "The engine never sleeps.", labels,
                "sleep_state", {{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}}, out);
  for (const char* name : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}) {
    value(name, "gauge", "Share of the KV cache in use, 0 to 1.", s.kv_usage());
  }
  for (const char* prefix : {"vllm:prefix_cache", "vllm:gpu_prefix_cache"}) {
    value(std::string(prefix) + "_queries_total", "counter",
          "Prompt tokens that were looked for in the prefix cache.", count(s.prefix_query_tokens));
    value(std::string(prefix) + "_hits_total", "counter",
          "Prompt tokens found in the prefix cache.", count(s.prefix_hit_tokens));
  }
  value("vllm:gpu_prefix_cache_hit_rate", "gauge", "Hits a query since the start.",
        s.prefix_query_tokens > 0 ? count(s.prefix_hit_tokens) / count(s.prefix_query_tokens) : 0);
  value("vllm:num_preemptions_total", "counter", "Requests that gave their pages back.",
        count(s.num_preemptions));
  // While the model loads the number of pages is not known yet.
  const std::string config =
      fmt::format("{},block_size=\"{}\",num_gpu_blocks=\"{}\"", labels,
                  s.page_tokens > 0 ? s.page_tokens : KvShape{}.page_tokens, s.full_pages);
  append_value("vllm:cache_config_info", "gauge", "The KV cache.", config, 1, out);
  const auto pages = [&](std::string_view name, std::string_view help, double full, double window) {
    append_family(name, "gauge", help, labels, "layers", {{"full", full}, {"window", window}}, out);
  };
  pages("moxie:kv_pages", "Pages of the KV cache.", s.full_pages, s.window_pages);
  pages("moxie:kv_pages_used", "Pages held by running requests.", s.full_pages_used,
        s.window_pages_used);
  pages("moxie:kv_pages_cached", "Free pages whose keys may be used again.", s.full_pages_cached,
        s.window_pages_cached);
  value("moxie:steps_total", "counter", "Steps of the model.", count(s.num_steps));
  value("moxie:loop_steps_total", "counter", "Of these, steps in the decode loop.",
        count(s.num_loop_steps));
  value("moxie:failed_steps_total", "counter", "Steps that failed.", count(s.num_failed_steps));
  value("moxie:computed_tokens_total", "counter", "Tokens run through the model.",
        count(s.computed_tokens));
  value("moxie:host_seconds_total", "counter", "Scheduling time.", s.host_s);
  value("moxie:device_seconds_total", "counter", "Time of steps and draws.", s.device_s);
}

void append_drafts(const std::string& labels, const DraftCounts& drafts, std::string* out) {
  const auto value = [&](std::string_view name, std::string_view help, int64_t v) {
    append_value(name, "counter", help, labels, static_cast<double>(v), out);
  };
  value("vllm:spec_decode_num_drafts_total", "Launches of a request with drafts.",
        drafts.num_drafts);
  value("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens in them.", drafts.num_tokens);
  value("vllm:spec_decode_num_accepted_tokens_total", "Of these, accepted tokens.",
        drafts.num_accepted);
  std::vector<std::string> places;
  for (int32_t i = 0; i < drafts.num_positions; ++i) places.push_back(std::to_string(i));
  std::vector<std::pair<std::string_view, double>> accepted;
  for (size_t i = 0; i < places.size(); ++i) {
    accepted.emplace_back(places[i], static_cast<double>(drafts.accepted_at[i]));
  }
  append_family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
                "Accepted tokens by their place behind the last known token, from 0 on.", labels,
                "position", accepted, out);
}

void append_events(const std::string& labels, const KvEventCounters& events, std::string* out) {
  const auto value = [&](std::string_view name, std::string_view help, uint64_t v) {
    append_value(name, "counter", help, labels, static_cast<double>(v), out);
  };
  append_family("moxie:kv_events_total", "counter",
                "Published events of the KV cache: pages stored, pages removed, all pages cleared.",
                labels, "type",
                {{"stored", static_cast<double>(events.stored)},
                 {"removed", static_cast<double>(events.removed)},
                 {"cleared", static_cast<double>(events.cleared)}},
                out);
  value("moxie:kv_events_batches_total", "Batches of events that were published.", events.batches);
  value("moxie:kv_events_merged_total",
        "Batches that were merged with others because the publisher's queue was full.",
        events.merged);
  value("moxie:kv_events_dropped_total", "Batches that the socket refused.", events.unsent);
  value("moxie:kv_events_replays_total", "Requests for batches published before.", events.replays);
  value("moxie:kv_events_snapshots_total",
        "Times that all cached pages were encoded for such requests.", events.snapshots);
}

void append_ranks(const std::string& labels, std::span<const RankFacts> ranks, std::string* out) {
  std::vector<std::string> names;
  for (const RankFacts& facts : ranks) names.push_back(std::to_string(facts.rank));
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help,
                          auto value) {
    std::vector<std::pair<std::string_view, double>> values;
    for (size_t i = 0; i < ranks.size(); ++i)
      values.emplace_back(names[i], static_cast<double>(value(ranks[i])));
    append_family(name, type, help, labels, "rank", values, out);
  };
  family("moxie:rank_weights_bytes", "gauge", "Weights that a rank holds.",
         [](const RankFacts& facts) { return facts.weights_bytes; });
  family("moxie:rank_exchanges_total", "counter",
         "Exchanges of a rank with the others by its host; GPUs exchange in kernels.",
         [](const RankFacts& facts) { return facts.num_exchanges; });
  family("moxie:rank_exchange_seconds_total", "counter",
         "Time in them: sending, and awaiting the others.",
         [](const RankFacts& facts) { return facts.exchange_s; });
}

void append_process(std::string* out) {
  long pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  std::error_code ignored;
  int64_t descriptors = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", ignored);
       it != std::filesystem::directory_iterator(); it.increment(ignored)) {
    if (ignored) break;
    ++descriptors;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double cpu_s = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                       1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  const auto plain = [&](std::string_view name, std::string_view type, std::string_view help,
                         double value) {
    append_head(name, type, help, out);
    *out += fmt::format("{} {}\n", name, value);
  };
  plain("process_resident_memory_bytes", "gauge", "Resident memory.",
        static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  plain("process_open_fds", "gauge", "Open file descriptors.", static_cast<double>(descriptors));
  plain("process_cpu_seconds_total", "counter", "Processor time.", cpu_s);
  static const double start_s =
      std::floor(static_cast<double>(std::time(nullptr)) - seconds_since_process_start());
  plain("process_start_time_seconds", "gauge", "Start, in seconds since 1970.", start_s);
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()),
      buckets_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::observe(double value, uint64_t times) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<size_t>(at)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

uint64_t Histogram::count() const {
  uint64_t count = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) count += buckets_[i].load();
  return count;
}

void Histogram::append(std::string_view name, std::string_view labels, std::string* out) const {
  uint64_t below = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    below += buckets_[i].load();
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    *out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  *out +=
      fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_.load(), below);
}

void RecentRate::add(uint64_t count, Clock::time_point now) {
  const int64_t number =
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  Second& second = seconds_[static_cast<size_t>(number) % seconds_.size()];
  if (std::exchange(second.number, number) != number) second.count = 0;
  second.count += count;
}

double RecentRate::per_s(Clock::time_point now) const {
  const int64_t number =
      std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  uint64_t count = 0;
  for (const Second& second : seconds_) {
    if (second.number >= number - kSeconds && second.number < number) count += second.count;
  }
  return static_cast<double>(count) / static_cast<double>(kSeconds);
}

Metrics::Metrics()
    : time_to_first_token_(kFirstTokenS),
      inter_token_(kTokenS),
      time_per_output_token_(kTokenS),
      e2e_(kRequestS),
      queue_(kRequestS),
      inference_(kRequestS),
      prefill_(kRequestS),
      decode_(kRequestS),
      request_prompt_tokens_(kTokens),
      request_computed_tokens_(kTokens),
      request_generation_tokens_(kTokens),
      max_generation_tokens_(kTokens),
      request_preemptions_(kPreemptions),
      params_n_(kChoices),
      params_max_tokens_(kTokens),
      iteration_tokens_(kStepTokens),
      http_seconds_(kHttpS) {}

void Metrics::on_choice(const ChoiceMetrics& choice) {
  for (size_t i = 0; i < kReasons.size(); ++i) {
    if (kReasons[i] == choice.finish_reason) ++finished_[i];
  }
  if (choice.is_first) {
    prompt_tokens_ += static_cast<uint64_t>(choice.prompt_tokens);
    cached_tokens_ += static_cast<uint64_t>(choice.cached_tokens);
  }
  request_computed_tokens_.observe(choice.prompt_tokens - choice.cached_tokens);
  request_preemptions_.observe(choice.num_preemptions);
  request_prompt_tokens_.observe(choice.prompt_tokens);
  request_generation_tokens_.observe(choice.completion_tokens);
  params_n_.observe(choice.n);
  if (choice.max_tokens > 0) params_max_tokens_.observe(choice.max_tokens);
  max_generation_tokens_.observe(choice.completion_tokens);
  const RequestTimes& t = choice.times;
  const Clock::time_point never{};
  if (t.finished != never) e2e_.observe(span_s(choice.arrived, t.finished));
  if (t.admitted == never) return;
  queue_.observe(span_s(t.submitted, t.admitted));
  if (t.finished != never) inference_.observe(span_s(t.admitted, t.finished));
  if (t.first_token == never) return;
  time_to_first_token_.observe(span_s(choice.arrived, t.first_token));
  prefill_.observe(span_s(t.admitted, t.first_token));
  if (t.finished == never) return;
  const double decode_s = span_s(t.first_token, t.finished);
  decode_.observe(decode_s);
  if (choice.completion_tokens > 1) {
    time_per_output_token_.observe(decode_s / (choice.completion_tokens - 1));
  }
}

void Metrics::on_inter_token(double seconds, uint64_t tokens) {
  inter_token_.observe(seconds / static_cast<double>(tokens), tokens);
}

void Metrics::on_http(std::string_view route, std::string_view method, int status, double seconds) {
  ++http_requests_[fmt::format("handler=\"{}\",method=\"{}\",status=\"{}\"", escaped(route),
                               escaped(method), status)];
  http_seconds_.observe(seconds);
}

void Metrics::append_tokens(const std::string& labels, std::string* out) const {
  const uint64_t prompt = prompt_tokens_.load(), cached = cached_tokens_.load();
  const auto value = [&](std::string_view name, std::string_view help, uint64_t v) {
    append_value(name, "counter", help, labels, static_cast<double>(v), out);
  };
  value("vllm:prompt_tokens_total", "Tokens of prompts, as usage counts them.", prompt);
  value("vllm:prompt_tokens_cached_total", "Of these, tokens found in the prefix cache.", cached);
  append_family("vllm:prompt_tokens_by_source_total", "counter",
                "Tokens of prompts by where their keys came from.", labels, "source",
                {{"local_compute", static_cast<double>(prompt - cached)},
                 {"local_cache_hit", static_cast<double>(cached)},
                 {"external_kv_transfer", 0}},
                out);
  value("vllm:generation_tokens_total", "Tokens of answers, as usage counts them.",
        generation_tokens_.load());
  std::vector<std::pair<std::string_view, double>> finished;
  for (size_t i = 0; i < kReasons.size(); ++i) {
    finished.emplace_back(kReasons[i], static_cast<double>(finished_[i].load()));
  }
  append_family("vllm:request_success_total", "counter", "Answers by how they ended.", labels,
                "finished_reason", finished, out);
}

void Metrics::append_histograms(const std::string& labels, std::string* out) const {
  const auto one = [&](std::string_view name, std::string_view help, const Histogram& histogram) {
    append_head(name, "histogram", help, out);
    histogram.append(name, labels, out);
  };
  one("vllm:time_to_first_token_seconds", "From arrival to the first token.", time_to_first_token_);
  one("vllm:inter_token_latency_seconds", "Between tokens of one answer.", inter_token_);
  for (const char* name :
       {"vllm:time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"}) {
    one(name, "Mean time a token of one request after its first.", time_per_output_token_);
  }
  one("vllm:e2e_request_latency_seconds", "From arrival to the end.", e2e_);
  one("vllm:request_queue_time_seconds", "In the queue.", queue_);
  one("vllm:request_inference_time_seconds", "From the queue to the end.", inference_);
  one("vllm:request_prefill_time_seconds", "From the queue to the first token.", prefill_);
  one("vllm:request_decode_time_seconds", "From the first token to the end.", decode_);
  one("vllm:request_prompt_tokens", "Tokens of a prompt.", request_prompt_tokens_);
  one("vllm:request_prefill_kv_computed_tokens",
      "Tokens of a prompt that were not found in the prefix cache.", request_computed_tokens_);
  one("vllm:request_generation_tokens", "Tokens of an answer.", request_generation_tokens_);
  one("vllm:request_max_num_generation_tokens", "Tokens of a request's longest answer.",
      max_generation_tokens_);
  one("vllm:request_num_preemptions", "How often a request gave its pages back.",
      request_preemptions_);
  one("vllm:request_params_n", "Answers asked for.", params_n_);
  one("vllm:request_params_max_tokens", "Tokens asked for at most.", params_max_tokens_);
  one("vllm:iteration_tokens_total", "Tokens a step.", iteration_tokens_);
}

std::string Metrics::text(const std::string& model_name, const ServiceStats* stats,
                          const KvEventCounters* events, std::span<const RankFacts> ranks) const {
  const std::string labels = fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model_name));
  std::string out;
  append_service(labels, stats != nullptr ? *stats : ServiceStats(), &out);
  if (stats != nullptr && stats->drafts.num_positions > 0) {
    append_drafts(labels, stats->drafts, &out);
  }
  if (events != nullptr) append_events(labels, *events, &out);
  if (!ranks.empty()) append_ranks(labels, ranks, &out);
  append_tokens(labels, &out);
  append_histograms(labels, &out);
  append_head("http_requests_total", "counter", "HTTP requests.", &out);
  for (const auto& [key, count] : http_requests_) {
    out += fmt::format("http_requests_total{{{}}} {}\n", key, count);
  }
  append_head("http_request_duration_seconds", "histogram", "HTTP requests, streams included.",
              &out);
  http_seconds_.append("http_request_duration_seconds", "server=\"moxie\"", &out);
  append_process(&out);
  return out;
}

}  // namespace moxie
