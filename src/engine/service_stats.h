// The counters of a service.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/draft_counts.h"
#include "engine/engine.h"

namespace moxie {

/// A consistent state between two launches; counters since the start.
struct ServiceStats {
  int32_t running = 0;  ///< requests that hold pages
  int32_t waiting = 0;  ///< requests in the queue, preempted ones included
  /// Of these, requests that do not wait for room: a running prompt computes a page that they
  /// share, or their last launch is still under way.
  int32_t waiting_deferred = 0;
  int64_t queued_tokens = 0;  ///< prompt tokens of requests that were never admitted
  /// Requests that were refused: the queue had max_queue requests, or max_queued_tokens tokens.
  int64_t num_refused_requests = 0, num_refused_tokens = 0;
  int32_t max_num_seqs = 0;
  int32_t max_model_len = 0;
  int32_t page_tokens = 0;
  // Pages in use are held by running requests; cached ones hold reusable keys and count as free.
  int32_t full_pages = 0, full_pages_used = 0, full_pages_cached = 0;
  int32_t window_pages = 0, window_pages_used = 0, window_pages_cached = 0;
  int64_t prefix_query_tokens = 0;  ///< prompt tokens of admitted requests that asked the cache
  int64_t prefix_hit_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t prompt_tokens = 0;      ///< of admitted requests, cached ones included
  int64_t computed_tokens = 0;    ///< run through the model, recomputed ones included
  int64_t generation_tokens = 0;  ///< delivered to sinks
  int64_t num_finished[kNumFinishReasons] = {};  ///< by FinishReason
  int64_t num_steps = 0, num_failed_steps = 0;
  int64_t num_loop_steps = 0;  ///< those of num_steps in the decode loop
  int64_t last_step_tokens = 0;
  DraftCounts drafts;
  double host_s = 0;    ///< planning, masks, sinks
  double device_s = 0;  ///< forward passes and draws
  bool draining = false;
  bool healthy = true;
  /// The share in use, 0 to 1, of the fuller pool.
  double kv_usage() const {
    const auto share = [](int32_t used, int32_t all) {
      return all > 0 ? static_cast<double>(used) / all : 0.0;
    };
    return std::max(share(full_pages_used, full_pages), share(window_pages_used, window_pages));
  }
};

}  // namespace moxie
