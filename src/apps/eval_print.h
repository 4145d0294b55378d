// What `moxie eval` found, as tables and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/prediction_loss.h"
#include "lab/eval.h"
#include "lab/record.h"

namespace moxie {

/// The same questions with other switches.
struct SwitchReport {
  std::string text;    ///< the switches as they are typed
  PairedCounts pairs;  ///< a: unchanged, b: with the switches
  std::vector<EvalCounts> counts;
  PredictionLoss loss;
};

struct EvalReport {
  std::string model, device;  ///< the device of an engine
  std::string url;            ///< empty: an engine in this process
  std::vector<std::string> efforts;
  std::string sampling;
  double seconds = 0;
  std::vector<EvalSample> samples;
  std::vector<EvalCounts> counts;
  std::vector<KernelLaunches> kernel_path;
  std::optional<PredictionLoss> loss;  ///< of the unchanged model, with `switches`
  std::vector<SwitchReport> switches;
};

nlohmann::ordered_json to_json(const EvalReport& report);
void print(const EvalReport& report);  ///< to stdout

}  // namespace moxie
