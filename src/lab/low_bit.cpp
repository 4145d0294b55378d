// The rule for one output, and where its tolerances come from.
#include "lab/low_bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

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

struct Tolerance {
  const char* key;
  double most;
  double LowBitTolerance::*member;
};
constexpr Tolerance kTolerances[] = {
    {"rtol", 1e30, &LowBitTolerance::rtol},
    {"atol", 1e30, &LowBitTolerance::atol},
    {"required_matched_ratio", 1, &LowBitTolerance::required_matched_ratio}};

// Takes what an object says; fails on keys that are neither a tolerance nor among `others`.
Status take(const Json& from, const std::vector<std::string>& others, const std::string& where,
            LowBitTolerance* to) {
  for (const auto& [key, value] : from.items()) {
    const auto* one = std::find_if(std::begin(kTolerances), std::end(kTolerances),
                                   [&](const Tolerance& t) { return key == t.key; });
    if (one == std::end(kTolerances)) {
      if (std::find(others.begin(), others.end(), key) != others.end()) continue;
      std::string known = "rtol, atol, required_matched_ratio";
      for (const std::string& other : others) known += ", " + other;
      return fail("there is no key " + Json(key).dump(), where, "the keys are " + known);
    }
    if (value.is_null()) continue;
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= one->most))
      return fail(fmt::format("is {}, expected a number from 0 to {}", value.dump(), one->most),
                  where + ": " + key);
    to->*one->member = value.get<double>();
  }
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
  auto taken = take(config, {"op_type_config", "definition_config"}, where, &found);
  if (taken) taken = take(*of_type, {}, where + ": op_type_config: " + op_type, &found);
  if (taken) taken = take(*of_definition, {}, where + ": definition_config: " + definition, &found);
  if (!taken) return fail(taken.error());
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
