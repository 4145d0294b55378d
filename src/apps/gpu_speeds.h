// The speeds of a model on a GPU known by name: what moxie plan --gpu prints of them, and
// docs/gpus.md.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "lab/predict.h"

namespace moxie {

/// Depths of decoding, streams and lengths of prompts that are predicted. The greatest depth leaves
/// room for 128 tokens in the models' 131,072.
inline constexpr int32_t kSpeedDepths[] = {0, 2048, 8192, 32768, 131072 - 128};
inline constexpr int32_t kSpeedStreams[] = {1, 8, 64};
inline constexpr int32_t kSpeedPrompts[] = {2048, 8192};

struct SpeedCell {
  SpeedTest test;
  bool fits = false;
  PredictedSpeed speed;  ///< only if it fits
};

struct GpuSpeeds {
  const GpuCard* card;
  std::string why_not;  ///< not empty: nothing is predicted
  std::vector<SpeedCell> decode, prompts;
};

/// `fits`: whether so many streams of so many tokens fit.
GpuSpeeds gpu_speeds(const GpuCard& card, const PredictedModel& model,
                     const std::function<bool(int32_t num_tokens, int32_t streams)>& fits);

/// "predicted, never run on this card", or that and where it ran.
std::string status_of(const GpuCard& card);
/// "68 - 77 - 88", and what was measured.
std::string cell_text(const SpeedCell& cell);

/// The tile of the grouped products for experts with a mean number of tokens.
struct CardTile {
  double mean;
  std::string tile, reason;
};
std::vector<CardTile> tiles_of(const GpuCard& card);

/// `billions`: of gpt-oss, for what others published; 0: none.
nlohmann::ordered_json to_json(const GpuSpeeds& speeds, int32_t billions);
void print_speeds(const GpuSpeeds& speeds, int32_t billions);

/// Prints docs/gpus.md: the same in every build.
int print_gpus_markdown();

}  // namespace moxie
