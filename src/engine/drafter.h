// Who guesses what an answer goes on with before it is drawn: the seam between the scheduler and
// drafters (text that repeats, a draft head, another model). The guesses of a request, its drafts,
// run in one step behind its last token, and a token is drawn behind each; what equals the drafts
// stands, with one token more. A draft costs a token of the step and changes no text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moxie {

using RequestId = uint64_t;  ///< never 0, never used twice

/// All calls come from one thread, between steps.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// Appends to `drafts`, which is empty, what may follow `tokens`, the request's prompt and answer
  /// so far: `limit` at most, fewer or none where it knows no more. What is beyond the limit, and
  /// what stands behind an id that is none, is left out.
  virtual void propose(RequestId request, std::span<const int32_t> tokens, int32_t limit,
                       std::vector<int32_t>* drafts) = 0;

  /// A step has drawn `tokens` for the request, and it goes on: the first `num_accepted` of them
  /// were proposed, the last was not. The first step of an answer, and those for which nothing was
  /// proposed, come too.
  virtual void observe(RequestId request, std::span<const int32_t> tokens,
                       int32_t num_accepted) = 0;

  /// The request has ended; it may never have been asked about.
  virtual void forget(RequestId request) = 0;
};

/// Whether and how far answers are drafted.
struct Drafting {
  Drafter* drafter = nullptr;  ///< borrowed; null: no drafts
  int32_t max_drafts = 0;      ///< of a request in a step
};

}  // namespace moxie
