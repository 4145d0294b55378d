// How all AMX code here configures its tiles: eight of 16 rows x 64 bytes. Include it only in files
// compiled for AMX; all lies in an anonymous namespace, for the reason that lanes.h gives.
//
// g++ 12 knows nothing of the memory that tile loads and stores touch: put
// asm volatile("" ::: "memory") before the first load of what code wrote and after the last store.
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
  // g++ 12 takes _tile_loadconfig to read 8 bytes only, and drops the stores of the rest.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace
}  // namespace moxie
