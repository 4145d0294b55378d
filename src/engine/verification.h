// The drafts of one request in a launch: the draws behind them, and which drafts are accepted.
//
// A draw depends only on the tokens before it, the seed and its number. Behind the last known token
// and behind each draft a token is drawn as if the drafts were the answer. Drafts are accepted as
// long as each equals the token drawn in its place. The first drawn token that differs is accepted
// too, and all behind it is dropped. So the text is the same as without drafts, greedy or seeded.
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
  /// Takes the drafts of a proposal that can be verified behind `last`: at most `limit`, and none
  /// from the first one on that is not in the vocabulary or would end the answer (the draw before
  /// it decides that).
  void begin(int32_t last, std::span<const int32_t> proposal, int32_t limit, int32_t vocab,
             const Sampler& sampler);
  void clear() { tokens_.clear(); }

  /// The last known token and the drafts: the request's chunk.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> drafts() const { return tokens().subspan(tokens_.empty() ? 0 : 1); }
  int32_t num_drafts() const { return static_cast<int32_t>(drafts().size()); }

  /// Writes the requests of the draws behind each of tokens(), the first after `num_drawn` tokens;
  /// valid until the next Sampler::take() or begin(). `constraint` may be null and is not changed;
  /// if it is not null, `masks` has room for one mask a request.
  void arm(Sampler& sampler, int32_t num_drawn, TokenConstraint* constraint,
           std::span<uint32_t> masks, std::span<SampleRequest> requests);

  /// The number of drafts accepted by `answers`, one for each of tokens(). The answer behind the
  /// last accepted draft is accepted too.
  int32_t num_accepted(std::span<const SampleAnswer> answers) const;

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> histories_;  // counts for penalties of the requests behind drafts
};

}  // namespace moxie
