// The configuration of AMX tiles for all AMX code here: eight of 16 rows x 64 bytes. Include this
// file only in files compiled for AMX; all its code is in an anonymous namespace, for the reason
// that lanes.h gives.
//
// g++ 12 does not know which memory tile loads and stores access. Put asm volatile("" ::: "memory")
// between code that writes memory and the first tile load from it, and after the last tile store.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace moxie {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// For this thread, until _tile_release().
void configure_tiles() {
  const TileConfig config;
  // g++ 12 assumes that _tile_loadconfig reads only 8 bytes, and drops the stores of the rest.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace moxie
