// The self-test of every row that a device can run, for `moxie doctor --self-test`.
#pragma once

#include <string>
#include <vector>

#include "engine/self_test_use.h"

namespace moxie {

struct RowTested {
  RowInfo row;
  std::vector<std::string> launches;  ///< in which it ran
  double share = 0;                   ///< the worst share of the tolerance
  std::string fault;                  ///< empty: none
  std::string not_run;                ///< why it ran in no launch; empty: it did
};

/// Tests each row of the steps of a model and of its draws, in small launches, each in a chain with
/// rows that round little. Keeps nothing. Fails if a row breaks the device, and names it.
Result<std::vector<RowTested>> test_all_rows(const SelfTestRequest& request);

}  // namespace moxie
