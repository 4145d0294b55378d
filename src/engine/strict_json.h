// Reads JSON that a program of ours wrote, from a file that anybody may have changed: what the
// writer makes is accepted, and nothing else.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace moxie {

/// Reads members of one object; keeps the first fault. Every member must be read.
class StrictReader {
 public:
  using Json = nlohmann::ordered_json;

  StrictReader(const Json& object, std::string at) : object_(object), at_(std::move(at)) {
    if (!object.is_object()) say("", "is no object");
  }

  std::string text(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string() || value->get_ref<const std::string&>().size() > kMaxTextBytes)
      return say(name, "is no short text"), std::string();
    return value->get<std::string>();
  }
  int32_t integer(const char* name, int64_t least, int64_t most) {
    const Json* value = find(name);
    if (value == nullptr) return static_cast<int32_t>(least);
    const bool is_one = value->is_number_integer() &&
                        !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    if (!is_one || value->get<int64_t>() < least || value->get<int64_t>() > most)
      return say(name, fmt::format("is no whole number from {} to {}", least, most)),
             static_cast<int32_t>(least);
    return static_cast<int32_t>(value->get<int64_t>());
  }
  double microseconds(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return 0;
    const double us = value->is_number() ? value->get<double>() : -1;
    if (!(us >= 0 && us <= kMostUs)) return say(name, "is no time in microseconds"), 0.0;
    return us;
  }
  bool boolean(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return say(name, "is neither true nor false"), false;
    return value->get<bool>();
  }
  /// Calls visit(entry, its place) for each of a list's entries, until there is a fault.
  template <typename Visit>
  void list(const char* name, size_t most, Visit&& visit) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() > most)
      return say(name, fmt::format("is no list of at most {} entries", most));
    for (size_t i = 0; i < value->size() && fault_.empty(); ++i)
      visit((*value)[i], fmt::format("{}/{}/{}", at_, name, i));
  }
  /// An object's place, and the object.
  const Json& member(const char* name) {
    const Json* value = find(name);
    static const Json kNothing;
    return value == nullptr ? kNothing : *value;
  }
  std::string place(const char* name) const { return at_ + "/" + name; }
  void take(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }
  void say(const char* name, const std::string& what) {
    take(fmt::format("{} {}", *name == '\0' ? (at_.empty() ? "the document" : at_) : place(name),
                     what));
  }
  /// The first fault, or a member that nobody has read; empty: none.
  std::string end() {
    if (fault_.empty() && object_.size() != num_read_) {
      for (const auto& [name, value] : object_.items()) {
        if (std::find(read_.begin(), read_.end(), name) == read_.end())
          say("", "has an unknown member '" + name.substr(0, 100) + "'");
      }
    }
    return fault_;
  }

 private:
  static constexpr size_t kMaxTextBytes = 4096;
  static constexpr double kMostUs = 1e12;

  const Json* find(const char* name) {
    if (!fault_.empty()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) return say(name, "is missing"), nullptr;
    read_.emplace_back(name);
    ++num_read_;
    return &*found;
  }

  const Json& object_;
  std::string at_, fault_;
  std::vector<std::string> read_;
  size_t num_read_ = 0;
};

}  // namespace moxie
