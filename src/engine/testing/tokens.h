// Token ids for tests of the engine: the same on every machine, all in the nano models' vocabulary.
#pragma once

#include <cstdint>
#include <vector>

namespace moxie {

inline std::vector<int32_t> tokens(int32_t count, uint32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((seed >> 8) % 510));
  }
  return ids;
}

}  // namespace moxie
