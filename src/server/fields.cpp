// Values of request fields.
#include "server/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/nearest.h"

namespace moxie {
namespace {

template <typename T>
tl::unexpected<ApiError> out_of_range(const std::string& param, std::string_view kind, T value,
                                      T low, T high) {
  const bool above = value > high;
  return invalid(param,
                 fmt::format("Invalid '{}': {} {}. Expected a value {} {}, but got {} instead.",
                             param, kind, above ? "above maximum value" : "below minimum value",
                             above ? "<=" : ">=", above ? high : low, value),
                 fmt::format("{}_{}", kind, above ? "above_max_value" : "below_min_value"));
}

}  // namespace

Api<double> read_number(const Json& value, const std::string& param, double low, double high) {
  if (!value.is_number()) return wrong_type(param, "a number", value);
  const auto number = value.get<double>();
  if (!std::isfinite(number)) {
    return invalid(param, fmt::format("Invalid '{}': the number is not finite.", param),
                   "invalid_value");
  }
  if (number < low || number > high) return out_of_range(param, "decimal", number, low, high);
  return number;
}

Api<int64_t> read_integer(const Json& value, const std::string& param, int64_t low, int64_t high) {
  // Clients whose language has one kind of number write 8.0.
  const bool is_whole = value.is_number_float() &&
                        std::nearbyint(value.get<double>()) == value.get<double>() &&
                        std::fabs(value.get<double>()) < 9e15;
  if (!value.is_number_integer() && !is_whole) return wrong_type(param, "an integer", value);
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return out_of_range<uint64_t>(param, "integer", value.get<uint64_t>(), 0,
                                  static_cast<uint64_t>(std::max<int64_t>(high, 0)));
  }
  const auto number = is_whole ? static_cast<int64_t>(value.get<double>()) : value.get<int64_t>();
  if (number < low || number > high) return out_of_range(param, "integer", number, low, high);
  return number;
}

Api<bool> read_bool(const Json& value, const std::string& param) {
  if (!value.is_boolean()) return wrong_type(param, "a boolean", value);
  return value.get<bool>();
}

Api<std::string> read_string(const Json& value, const std::string& param) {
  if (!value.is_string()) return wrong_type(param, "a string", value);
  return value.get<std::string>();
}

Api<std::string> required_string(const Json& object, const char* key, const std::string& param) {
  const std::string path = param.empty() ? key : param + "." + key;
  const Json* value = find_member(object, key);
  if (value == nullptr) return missing(path);
  return read_string(*value, path);
}

tl::unexpected<ApiError> unknown_field(const std::string& name,
                                       const std::vector<std::string>& known) {
  std::string shown;
  append_json_string(std::string_view(name).substr(0, 64), &shown);
  std::string message = "Unrecognized request argument supplied: " + shown + ".";
  if (!known.empty() && name.size() <= 64) {
    const std::string nearest = near_name(name, known);
    if (!nearest.empty()) message += " The nearest name is '" + nearest + "'.";
  }
  return invalid(name.substr(0, 64), std::move(message), "unknown_parameter");
}

ApiStatus known_members(const Json& object, const std::string& param,
                        std::initializer_list<std::string_view> known) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (it->is_null() || std::find(known.begin(), known.end(), it.key()) != known.end()) continue;
    return unknown_field(param + "." + it.key(), {});
  }
  return {};
}

tl::unexpected<ApiError> missing(const std::string& name) {
  return invalid(name, fmt::format("Missing required parameter: '{}'.", name),
                 "missing_required_parameter");
}

}  // namespace moxie
