// AMX: tiles of 16 rows by 64 bytes. Four sums, two left and two right tiles: all eight registers.
#include <immintrin.h>

#include <cstring>

#include "lab/machine_loops.h"

namespace moxie {
namespace {

constexpr int kTileRows = 16, kTileRowBytes = 64, kTiles = 8;
constexpr int kSums = 4;

// The operand of LDTILECFG (palette 1).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t num_rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

// Tiles are configured as long as this object lives. A thread that keeps its tiles configured pays
// for them at every context switch.
class Tiles {
 public:
  Tiles() {
    TileConfig config;
    for (int i = 0; i < kTiles; ++i) {
      config.row_bytes[i] = kTileRowBytes;
      config.num_rows[i] = kTileRows;
    }
    // g++ 12 declares only the first bytes of the operand as read: without this the stores above
    // may come after the load.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

struct alignas(64) TileBytes {
  uint8_t bytes[kTileRows * kTileRowBytes] = {};
};

float fold(const TileBytes& tile) {
  uint32_t word;
  std::memcpy(&word, tile.bytes, 4);
  return static_cast<float>(word);
}

void load_factors(const TileBytes& factors) {
  asm volatile("" : : "r"(&factors) : "memory");
  _tile_loadd(4, factors.bytes, kTileRowBytes);
  _tile_loadd(5, factors.bytes, kTileRowBytes);
  _tile_loadd(6, factors.bytes, kTileRowBytes);
  _tile_loadd(7, factors.bytes, kTileRowBytes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

float store_sum() {
  TileBytes sum;
  _tile_stored(0, sum.bytes, kTileRowBytes);
  asm volatile("" : : "r"(&sum) : "memory");
  return fold(sum);
}

float multiply_add_bf16(int64_t num_iterations) {
  const Tiles tiles;
  TileBytes factors;
  for (size_t i = 1; i < sizeof factors.bytes; i += 2) factors.bytes[i] = 0x3C;  // BF16 2^-7
  load_factors(factors);
  for (int64_t i = 0; i < num_iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return store_sum();
}

float multiply_add_int8(int64_t num_iterations) {
  const Tiles tiles;
  TileBytes factors;
  std::memset(factors.bytes, 3, sizeof factors.bytes);
  load_factors(factors);
  for (int64_t i = 0; i < num_iterations; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return store_sum();
}

constexpr double kOutputs = 16.0 * 16.0;
constexpr ArithmeticLoop kArithmeticLoops[] = {
    {NumberFormat::kBF16, "amx tdpbf16ps", kAmxBf16, 2.0 * kOutputs * 32 * kSums,
     multiply_add_bf16},
    {NumberFormat::kInt8, "amx tdpbssd", kAmxInt8, 2.0 * kOutputs * 64 * kSums, multiply_add_int8},
};

}  // namespace

std::span<const ArithmeticLoop> arithmetic_loops_amx() { return kArithmeticLoops; }

}  // namespace moxie
