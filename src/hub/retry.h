// When a request that failed is made again, and after how long.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "hub/http.h"

namespace moxie::hub {

struct RetryPolicy {
  int max_tries = 5;              ///< without progress between them
  double first_wait_s = 0.5;      ///< doubled each time
  double longest_wait_s = 30;     ///< of ours; a server may ask for more
  int64_t longest_asked_s = 300;  ///< a server that asks for more is given up
};

/// Whether the same request may succeed later.
bool is_worth_retrying(const Answer& answer);

class Retry {
 public:
  /// `say` hears why it waits, and for how long.
  Retry(const RetryPolicy& policy, const std::atomic<bool>& stop,
        std::function<void(const std::string&)> say);
  /// Waits, then true; or false at once: the answer is final. `is_worth_it`: the caller knows that
  /// it is not, whatever its status.
  bool wait_after(const Answer& answer, bool is_worth_it = false);
  /// Something came: the tries count from one again.
  void progressed() { num_tries_ = 1; }

 private:
  RetryPolicy policy_;
  const std::atomic<bool>& stop_;
  std::function<void(const std::string&)> say_;
  int num_tries_ = 1;
};

}  // namespace moxie::hub
