// Faults in the rows of a test's binary: what is planted for an operation runs instead of each of
// its rows, except the reference rows. The linker puts the planted tables before the
// real ones (--wrap in CMakeLists.txt), so that the product knows nothing of this.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "kernels/registry.h"

namespace moxie::testing {

template <typename P>
struct Planted {
  /// Given the row's own function and its params, to be changed and passed on. Null: the row runs.
  static inline std::function<void(void (*run)(const P&), P params)> fault;
  /// The rows' own functions, by name; filled when the table is first asked for.
  static inline std::map<std::string, void (*)(const P&)> own_runs;
};

/// Plants a fault in one row alone.
template <typename P>
void plant_in(const std::string& row, std::function<void(void (*run)(const P&), P params)> fault) {
  Op<P>::rows();
  Planted<P>::fault = [own = Planted<P>::own_runs.at(row), fault](auto run, P params) {
    if (run == own) return fault(run, params);
    run(params);
  };
}

/// Takes all faults out.
void clear_planted();

}  // namespace moxie::testing
