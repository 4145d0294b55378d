// Lists in the order of their making, without repeats.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

namespace moxie {

/// Appends `value` unless an equal one is there.
template <typename T>
void add_once(std::vector<T>& values, const std::type_identity_t<T>& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

}  // namespace moxie
