// Predicts the speed of a model on a GPU that is not at hand, from speeds that were measured with
// the same rows (measured_speeds.h) and the card's data sheet (gpu_cards.h).
//
// The limit of a launch is the sum over its steps of the time of the bytes or, if that is longer,
// of the products. A measured launch took longer, and there are two ways to carry that over:
//   proportional: the same share of the limit is reached;
//   fixed:        the same time beyond the limit is lost in every layer.
// On another card the truth is somewhere between: waits between kernels stay, shares of bandwidth
// scale. Decode takes both for each measured test, prompts only the proportional one, since what
// they lose is lost in products. The interval holds all of these at the card's slowest and fastest
// rates; the middle is the geometric mean at its middle rates.
#pragma once

#include <optional>
#include <vector>

#include "lab/gpu_cards.h"
#include "lab/measured_speeds.h"
#include "model/checkpoint.h"

namespace moxie {

/// How much wider an interval is than what was measured says, on each side: tests held out by card
/// (docs/gpus.md) lay up to 6% outside, but for those of which the other card has one test or none.
inline constexpr double kBetweenCards = 0.06;

struct PredictedModel {
  const GptOssConfig& config;
  const ModelWeights& layout;  ///< on CUDA
  DType kv_dtype = DType::kBF16;
  bool all_mxfp4 = false;           ///< all dense layers
  int32_t max_batch_tokens = 8192;  ///< of a launch
};

/// Microseconds of a test's least work: a prompt's launches, or one launch of decoding.
struct TestLimit {
  double cache_us = 0, others_us = 0;  ///< of attend, of all other steps
};
TestLimit limit_of(const PredictedModel& model, const SpeedTest& test, double read_gb_s,
                   double product_gflops);

/// The rows that the card runs.
GpuRows rows_of(const GpuCard& card);

struct PredictedSpeed {
  Range tok_s;
  int32_t num_measured = 0;  ///< tests that it follows from
  /// Of the same test on the same card: the mean of what was measured.
  std::optional<double> measured;
};

/// Fails for models narrower than the narrowest whose rows were measured. `left_out`: a card whose
/// measurements are not used, to see how well others predict it.
Result<PredictedSpeed> predict_speed(const GpuCard& card, const PredictedModel& model,
                                     const SpeedTest& test, const std::string& left_out = "");

/// A measured test with Hopper's rows as the tests on other cards predict it: how good predictions
/// are.
struct HeldOut {
  const GpuCard* card;
  const MeasuredSpeed* speed;  ///< the first of its test
  PredictedSpeed predicted;
};
std::vector<HeldOut> held_out_speeds();

/// What others published of a card: tok/s of gpt-oss.
struct PublishedSpeed {
  const char* gpu;
  int32_t billions;
  const char* test;
  double tok_s;
  const char* by;
};
std::span<const PublishedSpeed> published_speeds();

}  // namespace moxie
