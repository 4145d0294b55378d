// The queue before the scheduler, and the loop that drives it.
#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/parallel.h"
#include "engine/step_loop.h"

namespace moxie {
namespace {

constexpr double kLongestRetryS = 60;
constexpr double kRetryWithoutRateS = 5;

tl::unexpected<Refusal> refuse(RefusalKind kind, Error error) {
  return tl::unexpected<Refusal>(Refusal{kind, std::move(error)});
}

}  // namespace

void fit_service(int32_t max_num_seqs, EngineOptions* options) {
  options->max_num_seqs = max_num_seqs > 0 ? max_num_seqs : kDefaultNumSeqs;
  // Prompts whose log-probabilities are asked for share the rows. With more requests than
  // kMostDrafted at once drafts are shorter: a launch of that many tokens is dear anyway.
  constexpr int32_t kMostDrafted = 32;
  options->max_logit_rows =
      options->max_num_seqs + 64 +
      std::min(options->max_num_seqs, kMostDrafted) * most_drafts(options->speculation);
  if (options->max_batch_tokens > 0)
    options->max_batch_tokens = std::max(options->max_batch_tokens, 2 * options->max_num_seqs);
  if (options->kv_cache_bytes == 0) options->kv_cache_bytes = kAutoKvBytes;
}

struct Service::Impl {
  // `link`: of the engine's ranks; null: there is one.
  Impl(std::unique_ptr<StepRunner> step_runner, const ServiceOptions& service_options,
       const RankLink* link = nullptr)
      : runner(std::move(step_runner)),
        options(service_options),
        ranks(link),
        loop(*runner, scheduler_options(), loop_options()) {
    published = scheduler().stats();
    thread = std::thread([this] { run(); });
  }

  Scheduler::Options scheduler_options() const {
    const StepRunner::Limits& limits = runner->limits();
    const auto limited = [](int32_t asked, int32_t most) {
      return asked > 0 ? std::min(asked, most) : most;
    };
    const int32_t tokens = limited(options.max_batch_tokens, limits.max_batch_tokens);
    // Every running request has a token and a row of logits in every launch.
    const int32_t most = std::min({limits.max_num_seqs, limits.max_logit_rows, tokens});
    return {.max_num_seqs = limited(options.max_num_seqs, most),
            .max_batch_tokens = tokens,
            .max_loop_streams = options.async_scheduling ? limits.max_loop_streams : 0,
            .prefix_cache = options.prefix_cache,
            .cache_listener = options.cache_listener,
            .drafting = options.drafting};
  }

  // Whether launches run on a thread beside the scheduling thread, on which drafters propose. Those
  // of the decode loop run ahead in any case.
  bool has_own_thread() const {
    const Drafter* drafter = options.drafting.drafter;
    return options.async_scheduling && (drafter == nullptr || !drafter->shares_device());
  }

  // Planning is one launch ahead, so that the host has a launch's time for its work; no further, so
  // that a new prompt waits for few launches.
  StepLoop::Options loop_options() const {
    return {.has_thread = has_own_thread(),
            .steps_ahead = has_own_thread() ? 2 : 1,
            .loop_steps_ahead = options.async_scheduling ? 2 : 1,
            .fault = options.fault};
  }

  Scheduler& scheduler() { return loop.scheduler(); }
  void run();
  bool take_inbox(bool may_wait);
  void publish();
  void clear_prefixes();
  // Also of a rank that is lost while no launch would find it out.
  Status ranks_status() const { return ranks == nullptr ? Status{} : ranks->status(); }
  std::optional<Refusal> refusal(int64_t num_prompt, bool passes_queue_limits);

  const std::unique_ptr<StepRunner> runner;
  const ServiceOptions options;
  const RankLink* const ranks;

  // Used by the scheduling thread only.
  StepLoop loop;
  double host_s = 0;
  Clock::time_point rate_from = Clock::now();
  int64_t rate_finished = 0;

  mutable std::mutex mutex;
  std::condition_variable inbox_changed, all_ended;
  std::vector<std::unique_ptr<Request>> inbox;
  std::vector<RequestId> cancelled;
  std::vector<std::function<void(bool)>> clearings;  // of clear_prefix_cache
  bool abort_all = false, stopping = false, draining = false, healthy = true;
  RequestId last_id = 0;
  int64_t inbox_tokens = 0;
  int64_t num_refused_requests = 0, num_refused_tokens = 0;
  size_t num_live = 0;        // in the inbox or with the scheduler
  int32_t num_left = 0;       // waiting after the last launch was planned
  double finished_per_s = 0;  // recent rate
  ServiceStats published;
  std::atomic<int32_t> num_open{0};             // accepted requests whose sinks know no end yet
  std::vector<std::unique_ptr<Request>> taken;  // scratch of take_inbox
  std::vector<RequestId> taken_cancels;

  std::mutex stop_mutex;
  std::thread thread;
};

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() { stop(); }

std::unique_ptr<Service> Service::create(Engine& engine, const ServiceOptions& options) {
  const RankLink* link = engine.ranks() == nullptr ? nullptr : &engine.ranks()->link();
  return std::unique_ptr<Service>(
      new Service(std::make_unique<Impl>(make_step_runner(engine), options, link)));
}
std::unique_ptr<Service> Service::create(std::unique_ptr<StepRunner> runner,
                                         const ServiceOptions& options) {
  return std::unique_ptr<Service>(new Service(std::make_unique<Impl>(std::move(runner), options)));
}

tl::expected<RequestId, Refusal> Service::submit(ServiceRequest request) {
  const StepRunner::Limits& limits = impl_->runner->limits();
  if (auto status = check_request(request, limits.vocab); !status) {
    return refuse(RefusalKind::kInvalid, std::move(status.error()));
  }
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  const bool passes_queue_limits = request.passes_queue_limits;
  if (auto status = check_length(num_prompt, limits.max_model_len); !status) {
    return refuse(RefusalKind::kTooLong, std::move(status.error()));
  }
  request.sink = [&num_open = impl_->num_open,
                  sink = std::move(request.sink)](const RequestUpdate& update) {
    if (update.finish != nullptr) --num_open;
    if (sink) sink(update);
  };
  // Before the lock, since hashing the prompt takes time.
  auto made = make_request(std::move(request), *impl_->runner);
  RequestId id = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    if (auto refusal = impl_->refusal(num_prompt, passes_queue_limits)) {
      return tl::unexpected<Refusal>(std::move(*refusal));
    }
    id = made->id = ++impl_->last_id;
    impl_->inbox_tokens += num_prompt;
    ++impl_->num_live;
    ++impl_->num_open;
    impl_->inbox.push_back(std::move(made));
  }
  impl_->inbox_changed.notify_one();
  return id;
}

// Call with the lock held. Why no request may be taken now.
std::optional<Refusal> Service::Impl::refusal(int64_t num_prompt, bool passes_queue_limits) {
  if (auto status = ranks_status(); !status) {
    return Refusal{RefusalKind::kUnhealthy, {status.error().what, "ranks", "restart the server"}};
  }
  if (!healthy) {
    return Refusal{RefusalKind::kUnhealthy,
                   {"the device has failed", "engine", "restart the server"}};
  }
  if (draining) {
    return Refusal{
        RefusalKind::kDraining, {"no new requests are taken", "server", "ask another server"}, 1};
  }
  if (passes_queue_limits) return std::nullopt;
  const auto num_queued = static_cast<int64_t>(inbox.size()) + published.waiting;
  const bool runs_at_once = num_left == 0 && num_open < published.max_num_seqs;
  const bool has_room = num_queued < options.max_queue || runs_at_once;
  if (has_room &&
      inbox_tokens + published.queued_tokens + num_prompt <= options.max_queued_tokens) {
    return std::nullopt;
  }
  ++(has_room ? num_refused_tokens : num_refused_requests);
  const double wait_s =
      finished_per_s > 0 ? static_cast<double>(num_queued) / finished_per_s : kRetryWithoutRateS;
  return Refusal{RefusalKind::kQueueFull,
                 {fmt::format("{} requests are waiting", num_queued), "queue", "come back later"},
                 std::clamp(std::ceil(wait_s), 1.0, kLongestRetryS)};
}

void Service::cancel(RequestId id) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->cancelled.push_back(id);
  }
  impl_->inbox_changed.notify_one();
}

ServiceStats Service::stats() const {
  const std::lock_guard lock(impl_->mutex);
  ServiceStats stats = impl_->published;
  stats.waiting += static_cast<int32_t>(impl_->inbox.size());
  stats.queued_tokens += impl_->inbox_tokens;
  stats.num_refused_requests = impl_->num_refused_requests;
  stats.num_refused_tokens = impl_->num_refused_tokens;
  stats.draining = impl_->draining;
  stats.healthy = impl_->healthy && impl_->ranks_status();
  return stats;
}

const ServiceOptions& Service::options() const { return impl_->options; }

void Service::clear_prefix_cache(std::function<void(bool cleared)> done) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->clearings.push_back(std::move(done));
  }
  impl_->inbox_changed.notify_one();
}

void Service::begin_drain() {
  const std::lock_guard lock(impl_->mutex);
  impl_->draining = true;
}

bool Service::drain(double limit_s) {
  begin_drain();
  std::unique_lock lock(impl_->mutex);
  const auto is_empty = [&] { return impl_->num_live == 0; };
  const bool ended =
      impl_->all_ended.wait_for(lock, std::chrono::duration<double>(limit_s), is_empty);
  if (ended) return true;
  impl_->abort_all = true;
  impl_->inbox_changed.notify_one();
  impl_->all_ended.wait(lock, is_empty);
  return false;
}

void Service::stop() {
  const std::lock_guard stop_lock(impl_->stop_mutex);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->draining = impl_->abort_all = impl_->stopping = true;
  }
  impl_->inbox_changed.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void Service::Impl::run() {
  for (;;) {
    if (!take_inbox(loop.is_idle() && scheduler().num_requests() == 0)) return;
    clear_prefixes();
    const auto start = Clock::now();
    const double waited_before = loop.waited_s();
    const Status fault = loop.turn();
    if (!fault) log_error("a step failed: " + fault.error().message());
    if (loop.is_broken()) {
      const std::lock_guard lock(mutex);
      if (healthy && ranks_status()) log_error("the device has failed");
      healthy = false;
    }
    if (options.after_step) options.after_step();
    host_s += seconds_since(start) - (loop.waited_s() - waited_before);
    publish();
  }
}

// Passes new requests and cancellations to the scheduler. False if the service is to end.
bool Service::Impl::take_inbox(bool may_wait) {
  bool cancels_all = false, ends = false;
  {
    std::unique_lock lock(mutex);
    if (may_wait) {
      inbox_changed.wait(lock, [&] {
        return stopping || abort_all || !inbox.empty() || !cancelled.empty() || !clearings.empty();
      });
    }
    taken.swap(inbox);
    taken_cancels.swap(cancelled);
    cancels_all = std::exchange(abort_all, false);
    ends = stopping && may_wait && taken.empty();
    published.waiting += static_cast<int32_t>(taken.size());
    published.queued_tokens += std::exchange(inbox_tokens, 0);
  }
  for (auto& request : taken) scheduler().add(std::move(request));
  for (const RequestId id : taken_cancels) scheduler().cancel(id);
  if (cancels_all) scheduler().cancel_all();
  taken.clear();
  taken_cancels.clear();
  return !ends;
}

// Answers clear_prefix_cache(). Requests that have ended may still be part of launches under way:
// then the answer waits for these.
void Service::Impl::clear_prefixes() {
  const bool is_busy = scheduler().num_running() + scheduler().num_waiting() > 0;
  if (!is_busy && !(loop.is_idle() && scheduler().num_requests() == 0)) return;
  std::vector<std::function<void(bool)>> asked;
  {
    const std::lock_guard lock(mutex);
    asked.swap(clearings);
  }
  if (asked.empty()) return;
  if (!is_busy) {
    scheduler().forget_prefixes();
    publish();  // a caller that has been told sees it in stats()
  }
  for (const auto& done : asked) done(!is_busy);
}

void Service::Impl::publish() {
  ServiceStats stats = scheduler().stats();
  stats.host_s = host_s;
  stats.device_s = loop.device_s();
  int64_t num_finished = 0;
  for (const int64_t count : stats.num_finished) num_finished += count;
  const double rate_s = seconds_since(rate_from);
  const std::lock_guard lock(mutex);
  if (rate_s >= 1) {
    finished_per_s = static_cast<double>(num_finished - rate_finished) / rate_s;
    rate_finished = num_finished;
    rate_from = Clock::now();
  }
  published = stats;
  num_left = stats.waiting;
  num_live = inbox.size() + scheduler().num_requests();
  if (num_live == 0) all_ended.notify_all();
}

}  // namespace moxie
