// Faults in the rows of a test's binary: what is planted for an operation runs instead of each of
// its rows on the CPU, except the reference rows. The linker puts the planted tables before the
// real ones (--wrap in CMakeLists.txt), so that the product knows nothing of this.
#pragma once

#include <functional>

#include "kernels/registry.h"

namespace moxie::testing {

template <typename P>
struct Planted {
  /// Given the row's own function and its params, to be changed and passed on. Null: the row runs.
  static inline std::function<void(void (*run)(const P&), P params)> fault;
};

/// Takes all faults out.
void clear_planted();

}  // namespace moxie::testing
