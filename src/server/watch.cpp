// Makes the events from differences between two readings of the counters.
#include "server/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "server/status_line.h"

namespace moxie {
namespace {

constexpr int64_t kLeastMs = 100, kMostMs = 10000, kDefaultMs = 500;

/// One reading of the counters.
struct Reading {
  Clock::time_point at{};
  ServiceStats stats;
  std::vector<KernelChooser::Time> times;
};

bool times_rows(Engine& engine) { return engine.device().kind() == DeviceKind::kCpu; }

// Rates have no meaning below a millionth.
double rounded(double value) { return std::round(value * 1e6) / 1e6; }

Json about_json(const App& app) {
  const Engine& engine = *app.model().engine;
  Json memory = Json::array();
  for (const PlanPart& part : engine.plan().parts) {
    memory.push_back({{"part", part.name}, {"bytes", part.bytes}});
  }
  const ServiceStats stats = app.stats();
  return {{"version", MOXIE_VERSION},
          {"model", app.model_name()},
          {"device", app.model().engine->device().properties().name},
          {"max_model_len", stats.max_model_len},
          {"max_running_requests", stats.max_num_seqs},
          {"memory", std::move(memory)},
          {"memory_bytes", engine.plan().total_bytes}};
}

// Seconds of each step between the readings.
Json steps_json(const std::vector<KernelChooser::Time>& before,
                const std::vector<KernelChooser::Time>& now) {
  Json steps = Json::object();
  for (const KernelChooser::Time& time : now) {
    const auto earlier = std::ranges::find(before, time.op, &KernelChooser::Time::op);
    steps[time.op->name] = rounded(time.seconds - (earlier == before.end() ? 0 : earlier->seconds));
  }
  return steps;
}

Json pages_json(int32_t all, int32_t used, int32_t cached) {
  return {{"pages", all}, {"used", used}, {"cached", cached}};
}

void add_load(const ServiceStats& stats, Json* event) {
  (*event)["requests"] = {{"running", stats.running}, {"waiting", stats.waiting}};
  (*event)["kv"] = {
      {"usage", rounded(stats.kv_usage())},
      {"page_tokens", stats.page_tokens},
      {"full", pages_json(stats.full_pages, stats.full_pages_used, stats.full_pages_cached)},
      {"window",
       pages_json(stats.window_pages, stats.window_pages_used, stats.window_pages_cached)}};
  (*event)["prefix_cache"] = {{"asked_tokens", stats.prefix_query_tokens},
                              {"found_tokens", stats.prefix_hit_tokens}};
}

void add_rates(App& app, const Reading& before, const Reading& now, double seconds, Json* event) {
  Engine& engine = *app.model().engine;
  const int64_t drawn = now.stats.generation_tokens - before.stats.generation_tokens;
  const int64_t computed = now.stats.computed_tokens - before.stats.computed_tokens;
  (*event)["tokens"] = {{"generated", drawn},
                        {"computed", computed},
                        {"generated_per_s", rounded(static_cast<double>(drawn) / seconds)}};
  const StatusModel model{engine.config(), engine.model().weights(), engine.kv_dtype()};
  const auto share = memory_share(model, before.stats, now.stats, seconds, app.read_gb_s());
  (*event)["memory_limit"] = {
      {"read_gb_s", app.read_gb_s() > 0 ? Json(rounded(app.read_gb_s())) : Json()},
      {"share", share ? Json(rounded(*share)) : Json()}};
  (*event)["launches"] = {
      {"count", now.stats.num_steps - before.stats.num_steps},
      {"seconds", rounded(now.stats.device_s - before.stats.device_s)},
      {"host_seconds", rounded(now.stats.host_s - before.stats.host_s)},
      {"step_seconds", times_rows(engine) ? steps_json(before.times, now.times) : Json()}};
}

}  // namespace

struct Watchers::Watcher {
  ExchangePtr exchange;
  double interval_s = 0;
  std::optional<Reading> last;
};

bool Watchers::add(const ExchangePtr& exchange, double interval_s) {
  if (watchers_.size() >= kMost) return false;
  auto watcher = std::make_shared<Watcher>(Watcher{.exchange = exchange, .interval_s = interval_s});
  watchers_.push_back(watcher);
  time_steps();
  exchange->on_abort([this, gone = watcher.get()] { remove(gone); });
  exchange->begin_stream({});
  send(*watcher);
  if (ended_) {
    exchange->end_stream();
    remove(watcher.get());
  } else {
    send_later(watcher);
  }
  return true;
}

void Watchers::end() {
  ended_ = true;
  for (const WatcherPtr& watcher : std::exchange(watchers_, {})) {
    send(*watcher);
    watcher->exchange->end_stream();
  }
  time_steps();
}

void Watchers::send_later(const WatcherPtr& watcher) {
  app_.server().after(watcher->interval_s, [this, watcher] {
    if (watcher->exchange->done()) return;
    time_steps();  // the model may have been loaded since
    send(*watcher);
    send_later(watcher);
  });
}

void Watchers::send(Watcher& watcher) {
  Json event = {{"state", app_.state()}};
  if (app_.has_model()) {
    Reading now{
        .at = Clock::now(), .stats = app_.stats(), .times = app_.model().engine->kernels().times()};
    if (!watcher.last) event["about"] = about_json(app_);
    add_load(now.stats, &event);
    if (watcher.last) {
      const double seconds = std::chrono::duration<double>(now.at - watcher.last->at).count();
      event["seconds"] = rounded(seconds);
      if (seconds > 0) add_rates(app_, *watcher.last, now, seconds, &event);
    }
    watcher.last = std::move(now);
  }
  watcher.exchange->send(sse(event));
}

void Watchers::remove(const Watcher* watcher) {
  std::erase_if(watchers_, [&](const WatcherPtr& one) { return one.get() == watcher; });
  time_steps();
}

void Watchers::time_steps() {
  if (!app_.has_model()) return;
  Engine& engine = *app_.model().engine;
  engine.kernels().add_times(!watchers_.empty() && times_rows(engine));
}

void handle_watch(App& app, const ExchangePtr& exchange) {
  const auto interval_ms =
      query_integer(exchange->request(), "interval_ms", kLeastMs, kMostMs, kDefaultMs);
  if (!interval_ms) return respond_error(*exchange, interval_ms.error());
  if (exchange->request().method == "HEAD") {
    return exchange->respond({.content_type = "text/event-stream; charset=utf-8"});
  }
  if (app.watchers().add(exchange, static_cast<double>(*interval_ms) / 1000)) return;
  respond_error(*exchange, {.status = 429,
                            .message = fmt::format("{} clients watch already.", Watchers::kMost),
                            .type = "rate_limit_error",
                            .code = "too_many_watchers",
                            .retry_after_s = 5});
}

}  // namespace moxie
