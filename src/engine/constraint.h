// Which tokens may follow: the seam between a scheduler that draws tokens and a constraint on them
// (a JSON schema over harmony's channels, a choice of words). A constraint belongs to one request.
// Its calls never overlap; they come from the scheduling thread, not from the thread that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/base.h"

namespace moxie {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  /// Writes which ids may follow the tokens accepted so far: bit i % 32 of word i / 32 says that id
  /// i may be drawn. `mask` is [ceil(vocab / 32)], its content undefined before. False: any id may
  /// follow, and the mask is ignored. Where the answer may end, the mask must allow the tokens that
  /// end it. A mask without a set bit ends the request with an error.
  virtual bool fill_mask(std::span<uint32_t> mask) = 0;

  /// Tells of each drawn token, constrained or not, stop tokens included. A failure ends the
  /// request with this error.
  virtual Status accept(int32_t token) = 0;

  /// An independent copy. Drafts are accepted by a copy that is then dropped, so that accept() need
  /// never be undone.
  virtual std::unique_ptr<TokenConstraint> fork() const = 0;
};

}  // namespace moxie
