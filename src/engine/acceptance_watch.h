// Watches whether drafts of a head are accepted at all. A head that reads other layers of the
// target than it was trained on drafts nonsense: nothing fails, and only speed is lost.
//
// Told of every launch with drafts, each request for itself. The first time that of kLaunches in a
// row fewer than kLeastRate had their first draft accepted, it says so, once. It changes nothing
// else.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base.h"

namespace moxie {

class AcceptanceWatch {
 public:
  static constexpr int kLaunches = 200;
  static constexpr double kLeastRate = 0.15;

  using Say = std::function<void(std::string_view)>;
  /// `method` drafts; `advice` names what the head reads, and what to try.
  AcceptanceWatch(std::string method, std::string advice, Say say = log_warn)
      : method_(std::move(method)), advice_(std::move(advice)), say_(std::move(say)) {}

  void add(bool is_first_accepted) {
    if (has_said_) return;
    num_accepted_ += is_first_accepted ? 1 : 0;
    if (++num_launches_ < kLaunches) return;
    const bool is_low = num_accepted_ < kLeastRate * kLaunches;
    if (is_low) {
      say_(method_ + ": the first draft was accepted in only " + std::to_string(num_accepted_) +
           " of " + std::to_string(kLaunches) + " launches: " + advice_);
    }
    has_said_ = is_low;
    num_launches_ = num_accepted_ = 0;
  }

 private:
  const std::string method_, advice_;
  const Say say_;
  bool has_said_ = false;
  int num_launches_ = 0, num_accepted_ = 0;
};

}  // namespace moxie
