// The rule for one output, and where its tolerances come from.
#include "lab/low_bit.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/formats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// The object at a key; an empty one if there is no such key.
Result<Json> object_at(const Json& from, const std::string& key, const std::string& where) {
  const auto at = from.find(key);
  if (at == from.end()) return Json::object();
  if (!at->is_object()) return fail("is not an object", where + ": " + key);
  return *at;
}

Status take(const Json& from, const char* key, const std::string& where, double* to) {
  const auto at = from.find(key);
  if (at == from.end() || at->is_null()) return {};
  if (!at->is_number() || !(at->get<double>() >= 0))
    return fail("is " + at->dump() + ", expected a number of 0 or more", where + ": " + key);
  *to = at->get<double>();
  return {};
}

}  // namespace

Result<LowBitTolerance> low_bit_tolerance(const Json& config, const std::string& definition,
                                          const std::string& op_type,
                                          const LowBitOverrides& overrides,
                                          const std::string& where) {
  if (!config.is_object()) return fail("is not a JSON object", where);
  auto op_types = object_at(config, "op_type_config", where);
  if (!op_types) return fail(op_types.error());
  auto definitions = object_at(config, "definition_config", where);
  if (!definitions) return fail(definitions.error());
  auto of_type = object_at(*op_types, op_type, where + ": op_type_config");
  if (!of_type) return fail(of_type.error());
  auto of_definition = object_at(*definitions, definition, where + ": definition_config");
  if (!of_definition) return fail(of_definition.error());
  LowBitTolerance found;
  // From the weakest to the strongest.
  const Json* const sources[] = {&config, &*of_type, &*of_definition};
  for (const Json* from : sources) {
    for (const auto& [key, to] :
         {std::pair{"rtol", &found.rtol}, std::pair{"atol", &found.atol},
          std::pair{"required_matched_ratio", &found.required_matched_ratio}})
      if (auto taken = take(*from, key, where, to); !taken) return fail(taken.error());
  }
  found.rtol = overrides.rtol.value_or(found.rtol);
  found.atol = overrides.atol.value_or(found.atol);
  found.required_matched_ratio =
      overrides.required_matched_ratio.value_or(found.required_matched_ratio);
  return found;
}

LowBitVerdict judge_low_bit(std::span<const uint16_t> output, std::span<const uint16_t> reference,
                            const LowBitTolerance& tolerance) {
  CHECK(output.size() == reference.size());
  LowBitVerdict verdict;
  for (const uint16_t value : output)
    if (!std::isfinite(bf16_to_f32(value))) verdict.is_finite = false;
  if (!verdict.is_finite) {
    verdict.matched_ratio = 0;
    return verdict;
  }
  int64_t num_matched = 0;
  for (size_t i = 0; i < output.size(); ++i) {
    const double expected = bf16_to_f32(reference[i]);
    const double error = std::fabs(bf16_to_f32(output[i]) - expected);
    const double relative = error / (std::fabs(expected) + 1e-8);
    verdict.max_absolute_error = std::max(verdict.max_absolute_error, error);
    verdict.max_relative_error = std::max(verdict.max_relative_error, relative);
    // A NaN in the reference matches nothing.
    num_matched += error <= tolerance.atol || relative <= tolerance.rtol;
  }
  if (!output.empty())
    verdict.matched_ratio = static_cast<double>(num_matched) / static_cast<double>(output.size());
  verdict.passes = verdict.matched_ratio >= tolerance.required_matched_ratio;
  return verdict;
}

}  // namespace moxie
