// Philox4x32-10: a counter-based generator. Ten rounds of two 32 x 32 -> 64 bit products turn
// (counter, key) into four random words, with no state between calls.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>

#include "core/formats.h"

namespace moxie {

struct PhiloxWords {
  uint32_t word[4];
};

MOXIE_HOST_DEVICE inline PhiloxWords philox4x32_10(PhiloxWords counter, uint32_t key0,
                                                   uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The random word of (seed, step, id) that the draw uses.
MOXIE_HOST_DEVICE inline uint32_t sample_word(uint64_t seed, uint64_t step, int32_t id) {
  const PhiloxWords counter = {{static_cast<uint32_t>(id), static_cast<uint32_t>(step),
                                static_cast<uint32_t>(step >> 32), 0u}};
  return philox4x32_10(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32))
      .word[0];
}

}  // namespace moxie
