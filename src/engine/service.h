// Many requests on one engine, for servers. The service queues requests, batches them token by
// token, and answers each through its sink. One scheduling thread does all of this (scheduler.h).
//
//   fit_service(0, &engine_options);  // before Engine::load
//   auto service = Service::create(engine, {});
//   auto id = service->submit({.prompt = ids, .sampling = {...}, .sink = ...});
//
// The engine belongs to the service while the service lives: nothing else may launch the model or
// touch the engine's cache. All calls may come from any thread; a sink may call too, except where a
// call says otherwise.
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
  kQueueFull,  ///< 429: the client may try again after `retry_after_s`
  kDraining,   ///< 503: the service is about to end
  kUnhealthy,  ///< 503: the device has failed for good
};
struct Refusal {
  RefusalKind kind = RefusalKind::kInvalid;
  Error error;
  double retry_after_s = 0;  ///< of kQueueFull and kDraining: an estimate, at least 1
};

struct ServiceOptions {
  /// Requests that run at once, and tokens of one launch. 0: what the engine was loaded for
  /// (EngineOptions max_num_seqs, max_batch_tokens), which is also the upper bound of both.
  int32_t max_num_seqs = 0;
  int32_t max_batch_tokens = 0;
  /// The most requests that wait, and the most tokens of their prompts. A request beyond either is
  /// refused (kQueueFull).
  int32_t max_queue = 4096;
  int64_t max_queued_tokens = int64_t{32} << 20;
  bool prefix_cache = true;
  /// Is told what the prefix cache holds; called on the scheduling thread. Null: nobody is. It must
  /// outlive the service.
  CacheListener* cache_listener = nullptr;
  /// The drafter must outlive the service, which calls it on its scheduling thread. A request with
  /// drafts has a row in a launch only after its last one is done, and none in the decode loop. Its
  /// tokens are the same as without drafts.
  Drafting drafting;
  /// True: the host works on one launch while the device runs the next. On CUDA launches that need
  /// nothing from the host between them run in the engine's decode loop. False: host and device
  /// take turns. Both give the same tokens. Taken as false with a drafter that shares the device.
  bool async_scheduling = true;
  /// Called on the scheduling thread after the sinks of a launch, to flush what the sinks
  /// collected. Must not block.
  std::function<void()> after_step;
  /// For tests: called before launch `number` with the launch's tokens, or while the launch runs in
  /// the decode loop. An error that it returns is the launch's.
  std::function<Status(int64_t number, std::span<const int32_t> token_ids)> fault;
};

/// Sets the options that an engine needs for a service of `max_num_seqs` requests at once (0:
/// kDefaultNumSeqs): max_num_seqs, the number of logits that a launch may ask for, tokens of a
/// launch, and kv_cache_bytes (kAutoKvBytes where it is 0).
void fit_service(int32_t max_num_seqs, EngineOptions* options);
inline constexpr int32_t kDefaultNumSeqs = 256;

class StepRunner;

class Service {
 public:
  /// Starts the scheduling thread; `engine` must outlive the service.
  static std::unique_ptr<Service> create(Engine& engine, const ServiceOptions& options);
  /// The same on anything that launches batches.
  static std::unique_ptr<Service> create(std::unique_ptr<StepRunner> runner,
                                         const ServiceOptions& options);
  /// As stop().
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Queues a request. For n answers to one prompt, submit the request n times: the first computes
  /// the prompt, the others wait for it and share its pages.
  tl::expected<RequestId, Refusal> submit(ServiceRequest request);
  /// Ends a request with FinishReason::kAborted, within the time of one launch. Does nothing if the
  /// request has ended.
  void cancel(RequestId id);

  /// Cheap: the lock is held for one copy.
  ServiceStats stats() const;
  const ServiceOptions& options() const;

  /// Empties the prefix cache, if no request runs or waits, and calls `done` on the scheduling
  /// thread with whether it did. `done` must not block, and is dropped if the service stops first.
  void clear_prefix_cache(std::function<void(bool cleared)> done);

  /// Refuses new requests from now on.
  void begin_drain();
  /// Calls begin_drain(), waits until every request has ended or `limit_s` seconds have passed, and
  /// aborts the requests that are left. Returns true if none was left. Not from a sink.
  bool drain(double limit_s);
  /// Aborts all requests and ends the scheduling thread. Every sink has had its last call when this
  /// returns. Not from a sink.
  void stop();

 private:
  struct Impl;
  explicit Service(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie
