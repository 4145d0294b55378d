// Many requests on one engine: what a server submits to. Requests are queued, batched token by
// token, and answered through a sink each; one scheduling thread does all of it (scheduler.h).
//
//   fit_service(0, &engine_options);  // before Engine::load
//   auto service = Service::create(engine, {});
//   auto id = service->submit({.prompt = ids, .sampling = {...}, .sink = ...});
//
// The engine belongs to the service while it lives: nothing else may run steps or touch its cache.
// All calls may come from any thread, from a sink too unless said otherwise.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/request.h"
#include "engine/service_stats.h"

namespace moxie {

/// Why a request was not taken; the HTTP status that says it.
enum class RefusalKind : uint8_t {
  kInvalid,    ///< 400: a field's value; the error names it
  kTooLong,    ///< 400: the prompt leaves no room in the context
  kQueueFull,  ///< 429: come back after `retry_after_s`
  kDraining,   ///< 503: the service is about to end
  kUnhealthy,  ///< 503: the device has failed for good
};
struct Refusal {
  RefusalKind kind = RefusalKind::kInvalid;
  Error error;
  double retry_after_s = 0;  ///< kQueueFull and kDraining: an estimate, at least 1
};

struct ServiceOptions {
  /// Requests that run at once and tokens a step; 0: what the engine was loaded for (EngineOptions
  /// max_num_seqs, max_batch_tokens), which they are limited to.
  int32_t max_num_seqs = 0;
  int32_t max_batch_tokens = 0;
  /// Requests, and tokens of their prompts, that wait at most; the next is refused (kQueueFull).
  int32_t max_queue = 4096;
  int64_t max_queued_tokens = int64_t{32} << 20;
  bool prefix_cache = true;
  /// True: the host's work of one step is done while the device runs the next, and on CUDA steps
  /// that want nothing of the host between them run in the engine's decode loop. False: a plain
  /// loop, one thing after another; same requests, same tokens.
  bool async_scheduling = true;
  /// Called on the scheduling thread after the sinks of a step: a place to flush what they
  /// collected. Must not block.
  std::function<void()> after_step;
  /// Tests only: what it returns before step `number` with these tokens, or while it runs in the
  /// decode loop, fails that step.
  std::function<Status(int64_t number, std::span<const int32_t> token_ids)> fault;
};

/// Sets what an engine needs for a service of `max_num_seqs` requests at once (0:
/// kDefaultNumSeqs): max_num_seqs, rows of logits, tokens a step, and kv_cache_bytes to
/// kAutoKvBytes where it is 0.
void fit_service(int32_t max_num_seqs, EngineOptions* options);
inline constexpr int32_t kDefaultNumSeqs = 256;

class StepRunner;

class Service {
 public:
  /// Starts the scheduling thread; `engine` must outlive the service.
  static std::unique_ptr<Service> create(Engine& engine, const ServiceOptions& options);
  /// The same on anything that runs steps.
  static std::unique_ptr<Service> create(std::unique_ptr<StepRunner> runner,
                                         const ServiceOptions& options);
  /// As stop().
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Queues a request. For n answers to one prompt submit it n times: the prompt is computed once,
  /// the others wait for it and share its pages.
  tl::expected<RequestId, Refusal> submit(ServiceRequest request);
  /// Ends a request with FinishReason::kAborted within a step; nothing if it has ended.
  void cancel(RequestId id);

  /// Cheap: a copy under a lock that is held for no longer.
  ServiceStats stats() const;
  const ServiceOptions& options() const;

  /// Refuses new requests from now on.
  void begin_drain();
  /// begin_drain(), then waits until every request has ended or `limit_s` seconds have passed, and
  /// aborts what is left. Returns whether nothing was. Not from a sink.
  bool drain(double limit_s);
  /// Aborts everything and ends the thread; every sink has had its last call. Not from a sink.
  void stop();

 private:
  struct Impl;
  explicit Service(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie
