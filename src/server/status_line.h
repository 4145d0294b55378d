// The line that a server says every few seconds while it is busy.
#pragma once

#include <string>

#include "engine/service_stats.h"
#include "model/config.h"
#include "model/weights.h"

namespace moxie {

/// What the status line needs to know of a model.
struct StatusModel {
  const GptOssConfig& config;
  const ModelWeights& weights;  ///< formats and sizes alone are looked at
  DType kv_dtype = DType::kBF16;
};

/// The status line of the `seconds` between two readings of a service; empty if it was idle.
/// `read_gb_s` is what the memory can read, 1e9 bytes a second; 0: not known.
std::string status_line(const StatusModel& model, const ServiceStats& before,
                        const ServiceStats& now, double seconds, double read_gb_s);

}  // namespace moxie
