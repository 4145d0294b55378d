// The drafts of one request in a step: what is drawn behind each, and which of them stand.
//
// A draw depends on the tokens before it, on the seed and on its number, on nothing else: behind
// the last known token and behind each draft one is drawn as it would be if the drafts were the
// answer. While the token drawn equals the next draft, the draft is the answer; so is the first
// one that differs, and what follows it is dropped. The text is the one without drafts, greedy or
// seeded alike.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/constraint.h"
#include "kernels/sample/sample.h"

namespace moxie {

class Sampler;

class Verification {
 public:
  /// Takes of a proposal what can be verified behind `last`: `limit` drafts at most, none from the
  /// first on that is no id or ends the answer (the token before it draws that).
  void begin(int32_t last, std::span<const int32_t> proposal, int32_t limit, int32_t vocab,
             const Sampler& sampler);
  void clear() { tokens_.clear(); }

  /// The token that the drafts follow, and the drafts: a chunk of the request.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> drafts() const { return tokens().subspan(tokens_.empty() ? 0 : 1); }
  int32_t num_drafts() const { return static_cast<int32_t>(drafts().size()); }

  /// What the draws behind each of tokens() want, the first of them after `num_drawn` tokens;
  /// valid until the sampler takes a token and until begin(). `constraint`, which may be null, does
  /// not move; `masks` is room for a mask a request where it is not.
  void arm(Sampler& sampler, int32_t num_drawn, TokenConstraint* constraint,
           std::span<uint32_t> masks, std::span<SampleRequest> requests);

  /// Drafts that the answers, one for each of tokens(), have drawn. The answer behind the last of
  /// them stands too.
  int32_t num_accepted(std::span<const SampleAnswer> answers) const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> histories_;  // of the requests behind drafts, where there are penalties
};

}  // namespace moxie
