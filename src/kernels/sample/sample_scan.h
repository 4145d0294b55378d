// The passes over a whole row of logits in the scan rows of sample, for each instruction set;
// sample_any_f32_scan.cpp decides from their results.
//
// Plain data only: the files that implement this are compiled for instruction sets that this
// machine may lack. The linker could use their copy of a function defined here in the whole
// program.
#pragma once

#include <cstdint>

namespace moxie {

inline constexpr int kSampleBlock = 64;  ///< ids that share one greatest value

/// The input of the search for ids that could win the draw. A row's values are padded with -inf to
/// a multiple of kSampleBlock and aligned to 64 bytes.
struct SampleHope {
  const float* values;  ///< [size]
  int32_t size;
  float least;      ///< values below are filtered out
  float best;       ///< the greatest value
  float inverse_t;  ///< 1 / temperature
  float gap;        ///< (best score so far) - best / temperature
  uint32_t key[2];  ///< seed, low word first
  uint32_t step[2];
};

struct SampleScanCode {
  /// The greatest of `size` values, NaN skipped; -inf if there is none.
  float (*greatest)(const float* values, int32_t size);
  /// The first id with this value; -1 if there is none.
  int32_t (*first_equal)(const float* values, int32_t size, float value);
  int32_t (*count_above)(const float* values, int32_t size, float value);
  /// The greatest value of each block of kSampleBlock; the last block is shorter.
  void (*block_greatest)(const float* values, int32_t size, float* greatest);
  /// Sum of exp((value - best) * inverse_t) over the values greater than `above`, to 1e-12 of the
  /// sum; NaN adds nothing.
  double (*sum_exp)(const float* values, int32_t size, float above, double best, double inverse_t);
  /// clean_logit of every raw value, -inf where the mask (null: none) has no bit, and the padding.
  void (*clean)(const float* raw, const uint32_t* mask, int32_t size, float* values);
  /// The first id >= from whose noise could lift its score to the best; size if there is none.
  int32_t (*next_hopeful)(const SampleHope& hope, int32_t from);
};

extern const SampleScanCode kSampleScanPortable;
extern const SampleScanCode kSampleScanAvx2;
extern const SampleScanCode kSampleScanAvx512;

}  // namespace moxie
