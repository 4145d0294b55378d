#include "hub/retry.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace moxie::hub {

bool is_worth_retrying(const Answer& answer) {
  if (answer.trouble == Trouble::kCut) return true;
  if (answer.trouble != Trouble::kNone) return false;
  return answer.status == 408 || answer.status == 429 || answer.status >= 500;
}

Retry::Retry(const RetryPolicy& policy, const std::atomic<bool>& stop,
             std::function<void(const std::string&)> say)
    : policy_(policy), stop_(stop), say_(std::move(say)) {}

bool Retry::wait_after(const Answer& answer, bool is_worth_it) {
  using Clock = std::chrono::steady_clock;
  if (!(is_worth_it || is_worth_retrying(answer)) || num_tries_ >= policy_.max_tries) return false;
  if (answer.retry_after_s > policy_.longest_asked_s) return false;
  const double ours =
      std::min(policy_.first_wait_s * std::exp2(num_tries_ - 1), policy_.longest_wait_s);
  const double wait_s = answer.retry_after_s > 0 ? static_cast<double>(answer.retry_after_s) : ours;
  ++num_tries_;
  const std::string why = answer.trouble == Trouble::kNone
                              ? fmt::format("the server answered {}", answer.status)
                              : answer.error.what;
  say_(fmt::format("{}; try {} of {} in {:.3g} s", why, num_tries_, policy_.max_tries, wait_s));
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(wait_s));
  while (Clock::now() < end) {
    if (stop_.load()) return false;
    std::this_thread::sleep_for(
        std::min<Clock::duration>(std::chrono::milliseconds(50), end - Clock::now()));
  }
  return !stop_.load();
}

}  // namespace moxie::hub
