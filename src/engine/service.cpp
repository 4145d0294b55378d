// The queue before the scheduler, and the loop that drives it.
#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/scheduler.h"
#include "engine/step_thread.h"

namespace moxie {
namespace {

constexpr double kLongestRetryS = 60;
constexpr double kRetryWithoutRateS = 5;

tl::unexpected<Refusal> refuse(RefusalKind kind, Error error) {
  return tl::unexpected<Refusal>(Refusal{kind, std::move(error)});
}

// What is wrong with a request whatever else goes on; nothing if it is sound.
Status check_ids(std::span<const int32_t> ids, int32_t vocab, const char* where) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return fail(fmt::format("token id {}, vocabulary of {}", id, vocab), where);
    }
  }
  return {};
}

Status check_range(double value, double least, double most, const char* where) {
  if (value >= least && value <= most) return {};
  return fail(fmt::format("{}, not from {} to {}", value, least, most), where);
}

Status check_sampling(const SamplingOptions& sampling, int32_t vocab) {
  constexpr double kMost = std::numeric_limits<float>::max();
  constexpr int32_t kMostInt = std::numeric_limits<int32_t>::max();
  const std::array checks = {
      check_range(sampling.temperature, 0, kMost, "temperature"),
      check_range(sampling.top_p, 0, 1, "top_p"),
      check_range(sampling.min_p, 0, 1, "min_p"),
      check_range(sampling.top_k, -1, kMostInt, "top_k"),
      check_range(sampling.repetition_penalty, std::numeric_limits<float>::min(), kMost,
                  "repetition_penalty"),
      check_range(sampling.frequency_penalty, -kMost, kMost, "frequency_penalty"),
      check_range(sampling.presence_penalty, -kMost, kMost, "presence_penalty"),
      check_range(sampling.num_logprobs, -1, kMaxTopLogprobs, "logprobs"),
      check_range(sampling.max_tokens, 0, kMostInt, "max_tokens"),
      check_range(sampling.min_tokens, 0, sampling.max_tokens > 0 ? sampling.max_tokens : kMostInt,
                  "min_tokens"),
      check_ids(sampling.allowed_ids, vocab, "allowed_token_ids"),
  };
  for (const Status& status : checks) {
    if (!status) return status;
  }
  for (const auto& [id, value] : sampling.logit_bias) {
    if (auto status = check_ids({&id, 1}, vocab, "logit_bias"); !status) return status;
    if (std::isnan(value)) return fail("not a number", "logit_bias");
  }
  return {};
}

Status check_request(const ServiceRequest& request, int32_t vocab) {
  if (request.prompt.empty()) return fail("no tokens", "prompt", "give at least one");
  if (auto status = check_ids(request.prompt, vocab, "prompt"); !status) return status;
  if (request.constraint != nullptr && request.sampling.ignore_eos) {
    return fail("an answer that is bound must be free to end", "ignore_eos", "leave it out");
  }
  if (auto status = check_range(request.prompt_logprobs, -1, kMaxTopLogprobs, "prompt_logprobs");
      !status) {
    return status;
  }
  return check_sampling(request.sampling, vocab);
}

}  // namespace

void fit_service(int32_t max_num_seqs, EngineOptions* options) {
  options->max_num_seqs = max_num_seqs > 0 ? max_num_seqs : kDefaultNumSeqs;
  // Prompts whose log-probabilities are asked for share the rows.
  options->max_logit_rows = options->max_num_seqs + 64;
  if (options->max_batch_tokens > 0)
    options->max_batch_tokens = std::max(options->max_batch_tokens, 2 * options->max_num_seqs);
  if (options->kv_cache_bytes == 0) options->kv_cache_bytes = kAutoKvBytes;
}

struct Service::Impl {
  Impl(std::unique_ptr<StepRunner> step_runner, const ServiceOptions& service_options)
      : runner(std::move(step_runner)),
        options(service_options),
        scheduler(*runner, scheduler_options()),
        steps(*runner, options.async_scheduling, options.fault) {
    published = scheduler.stats();
    thread = std::thread([this] { loop(); });
  }

  Scheduler::Options scheduler_options() const {
    const StepRunner::Limits& limits = runner->limits();
    const auto limited = [](int32_t asked, int32_t most) {
      return asked > 0 ? std::min(asked, most) : most;
    };
    const int32_t tokens = limited(options.max_batch_tokens, limits.max_batch_tokens);
    // Every running request has a token and a row of logits in every step.
    const int32_t most = std::min({limits.max_num_seqs, limits.max_logit_rows, tokens});
    return {.max_num_seqs = limited(options.max_num_seqs, most),
            .max_batch_tokens = tokens,
            .max_loop_streams = options.async_scheduling ? limits.max_loop_streams : 0,
            .prefix_cache = options.prefix_cache};
  }

  void loop();
  bool take_inbox(bool may_wait);
  double finish_step(StepPlan* step, StepPlan** behind);
  void publish();
  std::optional<Refusal> refusal(int64_t num_prompt) const;

  const std::unique_ptr<StepRunner> runner;
  const ServiceOptions options;

  // The scheduling thread's alone.
  Scheduler scheduler;
  StepThread steps;
  std::array<StepPlan, 3> plans;
  double host_s = 0, device_s = 0;
  Clock::time_point rate_from = Clock::now();
  int64_t rate_finished = 0;

  mutable std::mutex mutex;
  std::condition_variable inbox_changed, all_ended;
  std::vector<std::unique_ptr<Request>> inbox;
  std::vector<RequestId> cancelled;
  bool abort_all = false, stopping = false, draining = false, healthy = true;
  RequestId last_id = 0;
  int64_t inbox_tokens = 0, queued_tokens = 0;
  size_t num_live = 0;        // in the inbox or with the scheduler
  double finished_per_s = 0;  // lately
  ServiceStats published;
  std::vector<std::unique_ptr<Request>> taken;  // scratch of take_inbox
  std::vector<RequestId> taken_cancels;

  std::mutex stop_mutex;
  std::thread thread;
};

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() { stop(); }

std::unique_ptr<Service> Service::create(Engine& engine, const ServiceOptions& options) {
  return create(make_step_runner(engine), options);
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
  const int64_t room = limits.max_model_len - num_prompt;
  if (room < 1) {
    return refuse(RefusalKind::kTooLong,
                  {fmt::format("{} tokens, where {} fit", num_prompt, limits.max_model_len - 1),
                   "prompt", "a shorter prompt, or a server with a greater --max-model-len"});
  }
  // The work of it, hashes of the prompt above all, before the lock.
  Sampler sampler(request.sampling, request.prompt, limits.stop_ids, limits.vocab);
  auto made =
      std::make_unique<Request>(std::move(request), std::move(sampler), static_cast<int32_t>(room),
                                impl_->runner->kv().shape().page_tokens);
  RequestId id = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    if (auto refusal = impl_->refusal(num_prompt)) {
      return tl::unexpected<Refusal>(std::move(*refusal));
    }
    id = made->id = ++impl_->last_id;
    impl_->inbox_tokens += num_prompt;
    ++impl_->num_live;
    impl_->inbox.push_back(std::move(made));
  }
  impl_->inbox_changed.notify_one();
  return id;
}

// With the lock: why no request may be taken now.
std::optional<Refusal> Service::Impl::refusal(int64_t num_prompt) const {
  if (!healthy) {
    return Refusal{RefusalKind::kUnhealthy,
                   {"the device has failed", "engine", "restart the server"}};
  }
  if (draining) {
    return Refusal{
        RefusalKind::kDraining, {"no new requests are taken", "server", "ask another server"}, 1};
  }
  const auto num_queued = static_cast<int64_t>(inbox.size()) + published.waiting;
  if (num_queued < options.max_queue &&
      inbox_tokens + queued_tokens + num_prompt <= options.max_queued_tokens) {
    return std::nullopt;
  }
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
  stats.draining = impl_->draining;
  stats.healthy = impl_->healthy;
  return stats;
}

const ServiceOptions& Service::options() const { return impl_->options; }

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

// Three plans: the one being made, the one under way, and the one before, whose answers the step
// thread may still be reading.
void Service::Impl::loop() {
  StepPlan* under_way = nullptr;
  for (size_t turn = 0;; ++turn) {
    if (!take_inbox(under_way == nullptr && scheduler.num_requests() == 0)) return;
    const auto start = Clock::now();
    double waited_s = 0;
    StepPlan* next = &plans[turn % plans.size()];
    if (!scheduler.plan(next)) next = nullptr;
    CHECK(next != nullptr || under_way != nullptr || scheduler.num_running() == 0);
    if (next != nullptr) steps.begin(next, under_way);
    if (under_way != nullptr) waited_s += finish_step(under_way, &next);
    if (next != nullptr) {
      scheduler.arm(next);
      steps.allow_draws(next);
      if (!options.async_scheduling) {
        under_way = std::exchange(next, nullptr);
        waited_s += finish_step(under_way, &next);
      }
    }
    scheduler.deliver();
    if (options.after_step) options.after_step();
    under_way = next;
    host_s += seconds_since(start) - waited_s;
    publish();
  }
}

// Waits for a step and takes what came of it; the step behind one that failed is dropped. Returns
// the seconds waited.
double Service::Impl::finish_step(StepPlan* step, StepPlan** behind) {
  const auto start = Clock::now();
  steps.wait(step);
  double waited_s = seconds_since(start);
  device_s += step->seconds;
  if (step->status) {
    scheduler.absorb(step);
    return waited_s;
  }
  const Error error = step->status.error();
  log_error("a step failed: " + error.message());
  scheduler.fail_step(step, error);
  if (*behind != nullptr) {
    steps.wait(*behind);
    scheduler.drop_step(*behind);
    *behind = nullptr;
  }
  if (auto status = runner->synchronize(); !status) {
    log_error("the device has failed: " + status.error().message());
    scheduler.fail_all(status.error());
    const std::lock_guard lock(mutex);
    healthy = false;
  }
  return waited_s;
}

// New requests and cancellations to the scheduler. False when there is nothing left to do, ever.
bool Service::Impl::take_inbox(bool may_wait) {
  bool cancels_all = false, ends = false;
  {
    std::unique_lock lock(mutex);
    if (may_wait) {
      inbox_changed.wait(
          lock, [&] { return stopping || abort_all || !inbox.empty() || !cancelled.empty(); });
    }
    taken.swap(inbox);
    taken_cancels.swap(cancelled);
    cancels_all = std::exchange(abort_all, false);
    ends = stopping && may_wait && taken.empty();
    published.waiting += static_cast<int32_t>(taken.size());
    queued_tokens += std::exchange(inbox_tokens, 0);
  }
  for (auto& request : taken) scheduler.add(std::move(request));
  for (const RequestId id : taken_cancels) scheduler.cancel(id);
  if (cancels_all) scheduler.cancel_all();
  taken.clear();
  taken_cancels.clear();
  return !ends;
}

void Service::Impl::publish() {
  ServiceStats stats = scheduler.stats();
  stats.host_s = host_s;
  stats.device_s = device_s;
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
  queued_tokens = scheduler.num_queued_tokens();
  num_live = inbox.size() + scheduler.num_requests();
  if (num_live == 0) all_ended.notify_all();
}

}  // namespace moxie
