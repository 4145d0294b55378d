// The cheapest chain of rows from one border between steps to another.
//
// There is a border before each step and one behind the last. The values handed over at a border
// have a form (the border's state). A hop is a row with the forms that it reads and writes; it
// covers one step or several. The plan of a pass (model/pass_plan.h) lists the hops that can run
// and asks for the cheapest chain.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moxie {

struct Hop {
  int32_t from = 0, to = 0;              ///< borders; from < to
  int32_t from_state = 0, to_state = 0;  ///< forms at these borders
  double us = 0;                         ///< 0 or more
};

struct Chain {
  std::vector<size_t> hops;  ///< indices of the hops taken, in the order of the borders
  double us = 0;
};

/// The cheapest chain from state 0 of border 0 to state 0 of border `last`; nothing if there is
/// none. Of chains of equal cost it is the one whose last hops are first in the list, so that the
/// same list gives the same chain.
std::optional<Chain> cheapest_chain(std::span<const Hop> hops, int32_t last);

}  // namespace moxie
