// The attend tile with BF16 products by AMX: 16 rows x 64 columns of sums in four tiles; one tile
// holds the left matrix, and three alternate for the right one. A product has four independent
// chains, which cover the latency of tdpbf16ps.
#include "kernels/attend/attend_bf16_body.h"
#include "kernels/gemv/amx_tiles.h"

namespace moxie {
namespace {

struct Amx {
  static void begin() { configure_tiles(); }
  static void end() { _tile_release(); }

  static void multiply(const uint16_t* a, const uint16_t* b, int32_t num_steps, int32_t num_cols,
                       bool adds, int32_t, float* sums, int32_t stride) {
    asm volatile("" ::: "memory");  // the tile loads' intrinsics do not say that they read
    const int32_t b_step = num_cols * 512;
    int32_t col = 0;
    for (; col + 4 <= num_cols; col += 4)
      add_cols<4>(a, b + col * 512, num_steps, b_step, adds, sums + col * 16, int64_t{stride} * 4);
    for (; col < num_cols; col += 2)
      add_cols<2>(a, b + col * 512, num_steps, b_step, adds, sums + col * 16, int64_t{stride} * 4);
    asm volatile("" ::: "memory");  // the sums are read next
  }

 private:
  static constexpr int32_t kRowBytes = 64;  // of a block

  // 16 x 16 kCols sums, kCols 2 or 4, rows `stride` bytes apart.
  template <int kCols>
  static void add_cols(const uint16_t* a, const uint16_t* b, int32_t num_steps, int32_t b_step,
                       bool adds, float* sums, int64_t stride) {
    if (adds) {
      _tile_loadd(0, sums, stride);
      _tile_loadd(1, sums + 16, stride);
      if constexpr (kCols == 4) {
        _tile_loadd(2, sums + 32, stride);
        _tile_loadd(3, sums + 48, stride);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (kCols == 4) {
        _tile_zero(2);
        _tile_zero(3);
      }
    }
    for (int32_t step = 0; step < num_steps; ++step, a += 512, b += b_step) {
      _tile_loadd(4, a, kRowBytes);
      _tile_loadd(5, b, kRowBytes);
      _tile_loadd(6, b + 512, kRowBytes);
      _tile_dpbf16ps(0, 4, 5);
      if constexpr (kCols == 4) _tile_loadd(7, b + 1024, kRowBytes);
      _tile_dpbf16ps(1, 4, 6);
      if constexpr (kCols == 4) {
        _tile_loadd(5, b + 1536, kRowBytes);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 4, 5);
      }
    }
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
    if constexpr (kCols == 4) {
      _tile_stored(2, sums + 32, stride);
      _tile_stored(3, sums + 48, stride);
    }
  }
};

}  // namespace

extern const AttendTileCode kAttendTileAmx = AttendBf16Body<Amx>::code();

}  // namespace moxie
