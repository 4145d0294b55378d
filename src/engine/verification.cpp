// Compares drafts with draws.
#include "engine/verification.h"

#include <algorithm>

#include "engine/request_state.h"

namespace moxie {
namespace {

bool allows(const SampleRequest& request, int32_t id) {
  return request.allowed_mask == nullptr ||
         ((request.allowed_mask[id / 32] >> (id % 32)) & 1u) != 0;
}

}  // namespace

void Verification::begin(int32_t last, std::span<const int32_t> proposal, int32_t limit,
                         int32_t vocab, const Sampler& sampler) {
  tokens_.assign(1, last);
  for (const int32_t id : proposal.first(std::min(proposal.size(), static_cast<size_t>(limit)))) {
    if (id < 0 || id >= vocab || sampler.stops_at(id)) return;
    tokens_.push_back(id);
  }
}

void Verification::arm(Sampler& sampler, int32_t num_drawn, TokenConstraint* constraint,
                       std::span<uint32_t> masks, std::span<SampleRequest> requests) {
  CHECK(requests.size() == tokens_.size());
  const size_t mask_words = masks.size() / requests.size();
  std::fill(requests.begin(), requests.end(), SampleRequest{});
  std::unique_ptr<TokenConstraint> ahead;  // has accepted the drafts so far
  for (size_t i = 0; i < requests.size(); ++i) {
    TokenConstraint* state = i == 0 ? constraint : ahead.get();
    requests[i] = sampler.next(num_drawn + static_cast<int32_t>(i), state,
                               masks.subspan(i * mask_words, mask_words));
    if (state == nullptr || i + 1 == requests.size()) continue;
    // Answers behind a draft that may not be drawn are never read.
    const int32_t draft = tokens_[i + 1];
    if (!allows(requests[i], draft)) break;
    if (i == 0) ahead = constraint->fork();
    if (!ahead->accept(draft)) break;
  }
  sampler.add_drafts(drafts(), requests.subspan(1), &histories_);
}

int32_t Verification::num_accepted(std::span<const SampleAnswer> answers) const {
  CHECK(answers.size() == tokens_.size());
  int32_t count = 0;
  for (const int32_t draft : drafts()) {
    if (answers[static_cast<size_t>(count)].token != draft) break;
    ++count;
  }
  return count;
}

}  // namespace moxie
