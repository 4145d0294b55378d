// The machine's limits as JSON.
#include <nlohmann/json.hpp>

#include "lab/machine.h"

namespace moxie {

nlohmann::ordered_json to_json(const MachineLimits& limits) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["cpu"] = limits.cpu;
  json["gpu"] = limits.gpu.empty() ? Json(nullptr) : Json(limits.gpu);
  json["threads"] = limits.num_threads;
  json["features"] = limits.features;
  json["read_gb_s"] = limits.read_gb_s;
  const auto rate = [](const Peak& peak) { return peak.rate > 0 ? Json(peak.rate) : Json(); };
  json["peak"] = Json{{"fp32_gflops", rate(limits.fp32)},
                      {"bf16_gflops", rate(limits.bf16)},
                      {"int8_gops", rate(limits.int8)},
                      {"fp8_gflops", rate(limits.fp8)}};
  json["measured_with"] = Json{{"read", limits.read_instruction},
                               {"read_buffer_bytes", limits.read_buffer_bytes},
                               {"read_gb_s_best", limits.read_gb_s_best},
                               {"fp32", limits.fp32.instruction},
                               {"bf16", limits.bf16.instruction},
                               {"int8", limits.int8.instruction},
                               {"fp8", limits.fp8.instruction}};
  return json;
}

}  // namespace moxie
