// What may follow: the seam between a scheduler that draws tokens and whatever binds them (a JSON
// schema over harmony's channels, a choice of words). A constraint belongs to one request; its
// calls never overlap, but come from the scheduling thread and not from the one that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/base.h"

namespace moxie {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// What may follow the tokens accepted so far: bit i of word i / 32 says that id i may be drawn;
  /// `mask` is [ceil(vocab / 32)], with any content before. False: anything may follow now, and the
  /// mask is not looked at. Where an answer may end, the tokens that end it must be among those
  /// allowed. A mask without a bit ends the request with an error.
  virtual bool fill_mask(std::span<uint32_t> mask) = 0;

  /// The token has been drawn (or was unconstrained); stop tokens come too. A failure ends the
  /// request with this error.
  virtual Status accept(int32_t token) = 0;

  /// A copy that goes on by itself: drafts are accepted by a copy, which is dropped afterwards, so
  /// that nothing has to be taken back here.
  virtual std::unique_ptr<TokenConstraint> fork() const = 0;
};

}  // namespace moxie
