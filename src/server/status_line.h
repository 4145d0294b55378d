// The line that a busy server logs every few seconds.
#pragma once

#include <optional>
#include <string>

#include "engine/service_stats.h"
#include "model/config.h"
#include "model/weights.h"

namespace moxie {

/// The data of a model for the status line.
struct StatusModel {
  const GptOssConfig& config;
  const ModelWeights& weights;  ///< only formats and sizes are read
  DType kv_dtype = DType::kBF16;
};

/// The least bytes that the launches between two readings had to read, over the bytes that memory
/// could read in these `seconds` (`read_gb_s`: its measured rate, 1e9 bytes a second). Nothing if
/// there was no launch that drew tokens, or if the rate is not known (0).
std::optional<double> memory_share(const StatusModel& model, const ServiceStats& before,
                                   const ServiceStats& now, double seconds, double read_gb_s);

/// The status line of the `seconds` between two readings of a service; empty if it was idle.
/// `read_gb_s` is the memory's measured read rate, 1e9 bytes a second; 0: not known.
std::string status_line(const StatusModel& model, const ServiceStats& before,
                        const ServiceStats& now, double seconds, double read_gb_s);

}  // namespace moxie
