// Predicted times of the CUDA rows that multiply dense layers. Shares and fixed times are fitted so
// that the row that measured fastest on an H200 is predicted fastest. On other devices the device's
// rates scale them.
#pragma once

#include "core/packing.h"
#include "kernels/gemv/few_tokens.h"
#include "kernels/registry.h"

namespace moxie {

inline constexpr FormSet<XForm> kAnyX{XForm::kF32, XForm::kF32Pair};
inline constexpr FormSet<L1Form> kAnyL1{L1Form::kShared, L1Form::kL1};
inline constexpr FormSet<ReduceForm> kReduceAlone{ReduceForm::kStep};
inline constexpr FormSet<ReduceForm> kAnyReduce{ReduceForm::kStep, ReduceForm::kFolded};
inline constexpr FormSet<ReduceForm> kRoundedToo{ReduceForm::kStep, ReduceForm::kRounded};
inline constexpr FormSet<ReduceForm> kSentToo{ReduceForm::kStep, ReduceForm::kRounded,
                                              ReduceForm::kSent};

/// `ran_on` of CUDA rows that any device can run, and of those that need clusters.
inline constexpr const char* kRanAnyCuda = "H200; sm_80, sm_100a and sm_120f compiled only";
inline constexpr const char* kRanWithClusters = "H200; sm_100a and sm_120f compiled only";
inline constexpr const char* kRanOnH100WithClusters = "H100; sm_100a and sm_120f compiled only";
inline constexpr const char* kRanOnH100 = "H100; sm_80, sm_100a and sm_120f compiled only";

/// Rows for a few tokens run larger batches in groups of this many tokens.
inline constexpr int32_t kGroupOfGemv = 8;
/// The same of rows that are made for MXFP4 and sizes like gpt-oss'.
inline constexpr int32_t kGroupOfMxfp4 = 16;
/// Tokens of a group of the rows in slices (gemv/slice_gemv.cuh).
inline int32_t slice_group(const PackedMatrix& weight, const Launch& launch) {
  return fragment::few_tokens(weight, fragment::slice_stages(weight.format), kGroupOfGemv, launch);
}
/// The rows for a few tokens, in groups of `group`. Weights of MXFP4 are loaded straight to
/// registers (gemv/split_gemv.cuh), with L1 holding the loads in flight; other formats use rings in
/// shared memory.
inline double dense_gemv_us(const Work& work, const PackedMatrix& weight, int32_t num_tokens,
                            int32_t group, L1Form l1, const DeviceRates& rates) {
  const double us = grouped_us(work, static_cast<double>(weight.bytes()), num_tokens, group, rates,
                               {.read = 0.85, .fixed_us = 2.0});
  const bool is_suited = (weight.format == DType::kMXFP4) == (l1 == L1Form::kL1);
  return is_suited ? us : 1.02 * us;
}

/// The extra time of a row by wgmma in a chain that leaves L1 to loads: it wants all of an SM's
/// memory as shared memory, so that no block of it runs beside its neighbours'.
inline double other_split_us(L1Form l1) { return l1 == L1Form::kL1 ? 2.0 : 0.0; }

/// The rows by wgmma.
inline double dense_gemm_us(const Work& work, int32_t hidden, const DeviceRates& rates) {
  if (hidden < kLeastGemmHidden) return kNeverUs;
  return predicted_us(work, rates, rates.bf16_gflops,
                      {.read = 0.6, .products = 0.65, .fixed_us = 3.0});
}

/// The rows by mma.sync (gemm/product_mma.cuh). Where rows by wgmma can run, those are faster.
/// Blocks of 128 rows read K unit after unit: a layer of few rows waits for those of one block
/// (measured on an H100: 0.75 us a unit of BF16 weights, of which two are in flight).
inline double dense_mma_us(const Work& work, const PackedMatrix& weight, int32_t num_tokens,
                           const DeviceRates& rates) {
  if (std::min(weight.rows, weight.cols) < kLeastGemmHidden) return kNeverUs;
  constexpr double kFixedUs = 5.0;
  const double us = predicted_us(work, rates, rates.mma_gflops,
                                 {.read = 0.6, .products = 0.6, .fixed_us = kFixedUs});
  const int64_t row_blocks = ceil_div(weight.rows, 128);
  const int32_t num_sms = rates.num_sms > 0 ? rates.num_sms : 132;
  if (row_blocks * ceil_div(num_tokens, 128) >= num_sms) return us;
  const double a_unit = weight.format == DType::kBF16 ? 0.75 : 0.3;
  const double waves = ceil_div<int64_t>(row_blocks * ceil_div(num_tokens, 32), 2 * num_sms);
  return std::max(us, kFixedUs + waves * weight.num_units() * a_unit);
}

/// The rows by mma.sync in teams (gemm/dense_teams.cuh): weights come from memory once, then from
/// L2 for each 32 tokens, with as much of activations. Measured on an H100 (`out` of 4,096 columns,
/// BF16): 11.0 us with 8 tokens, 12.6 with 64. Where rows by wgmma can run, whose times beside
/// their neighbours are known, those stay planned.
inline double dense_teams_us(const Work& work, const PackedMatrix& weight, int32_t num_tokens,
                             const DeviceRates& rates) {
  if (std::min(weight.rows, weight.cols) < kLeastGemmHidden) return kNeverUs;
  constexpr double kFixedUs = 3.1, kRead = 0.59, kL2OfMemory = 1.5;
  const double bytes_of_l2 = 2.0 * static_cast<double>(weight.bytes()) * ceil_div(num_tokens, 32);
  return kFixedUs +
         1e-3 / rates.read_gb_s * std::max(work.bytes / kRead, bytes_of_l2 / kL2OfMemory);
}

/// What rows by mma.sync say of themselves; kMmaRanOn: those in teams, too.
inline constexpr const char* kMmaLimits =
    "any number of tokens; for many where no row by wgmma can run; activations rounded to bf16; "
    "same result for any batch and chunks";
inline constexpr const char* kMmaRanOn = kRanOnH100;

/// The rows with both operands in 8-bit integers. They lay out activations first.
inline double dense_i8_us(const Work& work, int32_t hidden, const DeviceRates& rates) {
  if (hidden < kLeastGemmHidden) return kNeverUs;
  return predicted_us(work, rates, rates.fp8_gflops,
                      {.read = 0.6, .products = 0.78, .fixed_us = 20.0});
}
inline constexpr const char* kI8Limits =
    "any number of tokens, best from some 600 on; with --activation mxfp8; activations rounded "
    "to 8-bit integers, one scale a token, and weights, one scale a row";
inline constexpr const char* kI8RanOn = "H200";

inline constexpr const char* kTeamsLimits =
    "any number of tokens; for 2 to some 64 where no row by wgmma can run; activations rounded to "
    "bf16";

/// An exchange over NVLink (kernels/rank_mail.cuh) in which each rank sends so many floats as
/// words, or so many bytes as units, to every other. Measured between two H200s, where 290 GB/s
/// include the residual stream's bytes; beyond a word a thread, words wait.
inline double rank_mail_us(double num_floats, int32_t num_ranks = 2) {
  constexpr double kFixedUs = 2.5, kGbS = 300, kFloatsOfThreads = 528 * 256 * 3;
  const double us = 1e-3 * 16.0 / 3.0 * num_floats * (num_ranks - 1) / kGbS;
  return kFixedUs + (num_floats > kFloatsOfThreads ? 2 : 1) * us;
}
/// What such an exchange of one token adds to a kernel that does other work, too.
inline constexpr double kFoldedReduceUs = 1.5;
inline constexpr double kRankUnitsUs = 7.0, kRankUnitsGbS = 290;
inline double rank_units_us(double bytes, int32_t num_ranks = 2) {
  return kRankUnitsUs + 1e-3 * bytes * (num_ranks - 1) / kRankUnitsGbS;
}
/// What reduce takes where out has sent the parts: x is read and written, two parts are read.
inline double rank_sent_us(double bytes) {
  constexpr double kFixedUs = 3.0, kGbS = 3300;
  return kFixedUs + 1e-3 * bytes / kGbS;
}
/// The same of a sum in two phases: a rank sends each other its slice of `bytes`, and then the sum
/// of its own slice to all others. Measured among four H100s: 8,192 tokens of 2,880 values take 190
/// us less than in one phase, and 256 tokens 4 us more.
inline double rank_slices_us(double bytes, int32_t num_ranks) {
  constexpr double kBetweenPhasesUs = 4.5;
  return kBetweenPhasesUs + 2 * rank_units_us(bytes / num_ranks, num_ranks);
}

/// The least extra time of the ordered rows, which give a token the same result in any batch. With
/// it the planner takes these rows only where they are asked for.
inline constexpr double kOrderedUs = 1.0;

}  // namespace moxie
