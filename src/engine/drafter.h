// Speculative decoding: the seam between the scheduler and drafters (text that repeats, a draft
// head, another model), which guess the next tokens of an answer. A request's guesses, its drafts,
// follow its last token in one launch, and a token is drawn behind each. The drafts that equal the
// tokens drawn are accepted, and one more token is. A draft costs a token of the launch and changes
// no text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moxie {

class AcceptanceWatch;
struct DraftMemory;

using RequestId = uint64_t;  ///< never 0, never used twice

/// All calls come from one thread, between launches.
class Drafter {
 public:
  virtual ~Drafter() = default;

  struct Ask {
    RequestId request = 0;
    int32_t seq = 0;                  ///< in the cache, where it has places for all of `tokens`
    std::span<const int32_t> tokens;  ///< prompt and answer so far; the last was in no launch yet
    int32_t limit = 0;                ///< at least 1
    std::vector<int32_t>* drafts = nullptr;  ///< empty
  };
  /// Appends to `drafts` at most `limit` ids, or none, that may follow `tokens`. The caller ignores
  /// ids beyond the limit, and all ids from the first one outside the vocabulary on.
  virtual void propose(const Ask& ask) = 0;
  /// The same for all requests of the launch that is being planned.
  virtual void propose_all(std::span<const Ask> asks) {
    for (const Ask& ask : asks) propose(ask);
  }

  /// A launch has drawn `tokens` for the request, which goes on. The first `num_accepted` of them
  /// were proposed, the last was not. Called for every launch that drew, also for the first one of
  /// an answer and for those without drafts.
  virtual void observe(RequestId request, std::span<const int32_t> tokens,
                       int32_t num_accepted) = 0;

  /// Whether propose() runs on the device and its threads, so that it must not run beside a launch.
  virtual bool shares_device() const { return false; }

  /// Whether it may miss launches: it needs nothing from the device behind each, so that a request
  /// that is not drafted for a while runs ahead of the host, and in the decode loop.
  virtual bool may_miss_launches() const { return false; }

  /// The request has ended. propose() may never have been called for it.
  virtual void forget(RequestId request) = 0;
};

/// Whether answers are drafted, and how far ahead.
struct Drafting {
  Drafter* drafter = nullptr;  ///< borrowed; null: no drafts
  int32_t max_drafts = 0;      ///< of a request in a launch
  bool is_adaptive = false;    ///< as many of them as pay (draft_length.h)
  /// What launches and requests before have taught; those of the scheduler are added. Borrowed;
  /// null: nothing yet.
  DraftMemory* memory = nullptr;
  /// Told of launches with drafts. Borrowed; null: nobody is.
  AcceptanceWatch* watch = nullptr;
  /// For benchmarks: rates at which drafts are accepted, whatever is drawn, from `seed`
  /// (simulated_acceptance.h). Drafts proposed are replaced by random ones, and the text is
  /// nobody's. Borrowed; empty: drafts are compared with draws.
  std::span<const float> acceptance{};
  uint64_t seed = 0;
};

}  // namespace moxie
