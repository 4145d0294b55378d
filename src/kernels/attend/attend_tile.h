// The work of one thread in the flash rows of attend: a tile of query rows against one segment of
// keys, the merging of segments, and the sink. Each instruction set has its own AttendTileCode;
// attend_any_f32_flash.cpp cuts a launch into tiles.
//
// Plain data only: the files that implement this are compiled for instruction sets that this
// machine may lack. The linker could use their copy of a function defined here in the whole
// program.
#pragma once

#include <cstdint>

namespace moxie {

inline constexpr int kAttendMaxRows = 128;   ///< query rows of a tile: tokens x heads of a KV head
inline constexpr int kAttendMaxTokens = 16;  ///< tokens of a tile
inline constexpr int kAttendChunk = 32;      ///< keys that are scored together
inline constexpr int kAttendMaxHeadDim = 256;
inline constexpr int kAttendMaxBf16HeadDim = 128;  ///< with BF16 products

enum class AttendKvType : uint8_t { kF32, kBF16, kF8E4M3 };

/// The softmax of some keys for a number of rows, not yet divided: sum exp(l - m) v, and what is
/// needed to add more keys. m keeps exp within F32: it is the greatest logit, or not far below it.
struct AttendPartial {
  float* o;  ///< [rows, head_dim]
  float* m;  ///< [rows] the lowest float if no key was seen
  float* l;  ///< [rows] sum of exp(logit - m)
};

/// Query rows of neighbouring tokens of one sequence that share a KV head, and its keys.
struct AttendTile {
  const float* q;            ///< [tokens, group, head_dim], already scaled, 64-byte aligned
  const int32_t* positions;  ///< [tokens], rising
  int32_t num_tokens, group, head_dim;
  int32_t window;  ///< 0: none
  AttendKvType type;
  const unsigned char* k;  ///< page 0 of this KV head
  const unsigned char* v;
  int64_t page_stride_bytes, row_bytes;
  const int32_t* pages;  ///< of this sequence
  int32_t page_tokens;
  // Scratch, 64-byte aligned.
  float* k_columns;  ///< [head_dim, chunk]
  float* v_rows;     ///< [chunk, head_dim]
  float* scores;     ///< [rows, chunk]
  float* lane_sums;  ///< [rows, 16]
};

struct AttendTileCode {
  /// Adds keys first..end - 1 (first a multiple of the chunk) and writes all of `out`. Does not
  /// read keys that no token of the tile sees.
  void (*segment)(const AttendTile& tile, int32_t first_key, int32_t end_key,
                  const AttendPartial& out);
  /// Adds `part` to `total`.
  void (*merge)(const AttendPartial& total, const AttendPartial& part, int32_t num_rows,
                int32_t head_dim);
  /// One row: adds the sink (null: none) to the denominator and divides.
  void (*finish)(const AttendPartial& total, int32_t row, int32_t head_dim, const float* sink,
                 float* out);
};

extern const AttendTileCode kAttendTilePortable;
extern const AttendTileCode kAttendTileAvx2;
extern const AttendTileCode kAttendTileAvx512;
/// BF16 products: head sizes that are multiples of 32 up to kAttendMaxBf16HeadDim, no F32 cache.
extern const AttendTileCode kAttendTileAvx512Bf16;
extern const AttendTileCode kAttendTileAmx;
/// Empty where it is not compiled, so that its row is in the table of every build.
extern const AttendTileCode kAttendTileNeon;

}  // namespace moxie
