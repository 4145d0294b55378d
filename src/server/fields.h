// Tables of request fields. One entry reads, checks and describes a field, so that what is
// accepted, what the errors say and what the OpenAPI document promises cannot differ.
//
//   Fields<Request> fields;
//   fields.number("temperature", &Request::temperature, 0, 2, "0 is greedy");
//   auto status = fields.read(document, request);
#pragma once

#include <fmt/format.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api.h"

namespace moxie {

/// A value of a type and within a range, or the error that says what is wrong with it.
Api<double> read_number(const Json& value, const std::string& param, double low, double high);
Api<int64_t> read_integer(const Json& value, const std::string& param, int64_t low, int64_t high);
Api<bool> read_bool(const Json& value, const std::string& param);
Api<std::string> read_string(const Json& value, const std::string& param);
/// A member that must be a string.
Api<std::string> required_string(const Json& object, const char* key, const std::string& param);
tl::unexpected<ApiError> unknown_field(const std::string& name,
                                       const std::vector<std::string>& known);
/// Fails if `object` has a member that is not in `known`. JSON's null has no members.
ApiStatus known_members(const Json& object, const std::string& param,
                        std::initializer_list<std::string_view> known);
tl::unexpected<ApiError> missing(const std::string& name);

enum class FieldUse : uint8_t { kUsed, kIgnored, kRefused };

/// The description of a field, for the OpenAPI document.
struct FieldInfo {
  std::string name, about;
  Json schema;
  FieldUse use = FieldUse::kUsed;
  bool required = false;
};

template <class T>
class Fields {
 public:
  using Read = std::function<ApiStatus(const Json& value, T& request)>;

  /// Any field; null counts as absent and is not read.
  void field(std::string name, Json schema, Read read, std::string about, bool required = false) {
    list_.push_back(
        {{std::move(name), std::move(about), std::move(schema), FieldUse::kUsed, required},
         std::move(read)});
  }
  /// `target`: a pointer to member, or a function that returns a reference into the request.
  template <class Target>
  void number(const std::string& name, Target target, double low, double high, std::string about) {
    bounded(name, "number", read_number, target, low, high, std::move(about));
  }
  template <class Target>
  void integer(const std::string& name, Target target, int64_t low, int64_t high,
               std::string about) {
    bounded(name, "integer", read_integer, target, low, high, std::move(about));
  }
  template <class Target>
  void toggle(const std::string& name, Target target, std::string about) {
    field(
        name, {{"type", "boolean"}},
        [=](const Json& value, T& request) -> ApiStatus {
          auto flag = read_bool(value, name);
          if (!flag) return tl::unexpected(flag.error());
          std::invoke(target, request) = *flag;
          return {};
        },
        std::move(about));
  }
  template <class Target>
  void text(const std::string& name, Target target, std::string about, bool required = false) {
    field(
        name, {{"type", "string"}},
        [=](const Json& value, T& request) -> ApiStatus {
          auto string = read_string(value, name);
          if (!string) return tl::unexpected(string.error());
          std::invoke(target, request) = std::move(*string);
          return {};
        },
        std::move(about), required);
  }
  /// One of two words; the target becomes true if it is `chosen`.
  template <class Target>
  void either(const std::string& name, Target target, const std::string& first,
              const std::string& second, const std::string& chosen, std::string about) {
    field(
        name, {{"type", "string"}, {"enum", Json::array({first, second})}},
        [=](const Json& value, T& request) -> ApiStatus {
          if (value != first && value != second) {
            return invalid(
                name,
                fmt::format("Invalid value for '{}': expected '{}' or '{}'.", name, first, second),
                "invalid_value");
          }
          std::invoke(target, request) = value == chosen;
          return {};
        },
        std::move(about));
  }
  /// Any value is accepted and has no effect; `about` says why nothing is lost.
  void ignored(const std::string& name, std::string about) {
    list_.push_back({{name, std::move(about), Json::object(), FieldUse::kIgnored, false},
                     [](const Json&, T&) -> ApiStatus { return {}; }});
  }
  /// Every value but `harmless`, which asks for nothing, is refused. `details` go with the error.
  void refused(const std::string& name, const Json& harmless, const std::string& why,
               const Json& details = nullptr) {
    list_.push_back({{name, why, Json::object(), FieldUse::kRefused, false},
                     [=](const Json& value, T&) -> ApiStatus {
                       if (value == harmless) return {};
                       auto error = unsupported(name, "'" + name + "' is not supported: " + why);
                       error.value().details = details;
                       return error;
                     }});
  }

  /// Reads an object's members. Null counts as absent; an unknown name is an error.
  ApiStatus read(const Json& object, T& request) const {
    for (auto it = object.begin(); it != object.end(); ++it) {
      const Entry* entry = find(it.key());
      if (entry == nullptr) return unknown_field(it.key(), names());
      if (it->is_null()) continue;
      if (auto status = entry->read(*it, request); !status) return status;
    }
    for (const Entry& entry : list_) {
      if (entry.info.required && find_member(object, entry.info.name) == nullptr) {
        return missing(entry.info.name);
      }
    }
    return {};
  }

  std::vector<FieldInfo> describe() const {
    std::vector<FieldInfo> list;
    for (const Entry& entry : list_) list.push_back(entry.info);
    return list;
  }

 private:
  template <class M>
  struct HeldOf {
    using Type = M;
  };
  template <class M>
  struct HeldOf<std::optional<M>> {
    using Type = M;
  };
  template <class M>
  using Held = typename HeldOf<M>::Type;

  template <class Value, class Target>
  void bounded(const std::string& name, const char* type,
               Api<Value> (*read)(const Json&, const std::string&, Value, Value), Target target,
               Value low, Value high, std::string about) {
    field(
        name, {{"type", type}, {"minimum", low}, {"maximum", high}},
        [=](const Json& value, T& request) -> ApiStatus {
          auto number = read(value, name, low, high);
          if (!number) return tl::unexpected(number.error());
          auto& slot = std::invoke(target, request);
          slot = static_cast<Held<std::decay_t<decltype(slot)>>>(*number);
          return {};
        },
        std::move(about));
  }

  struct Entry {
    FieldInfo info;
    Read read;
  };
  const Entry* find(const std::string& name) const {
    for (const Entry& entry : list_) {
      if (entry.info.name == name) return &entry;
    }
    return nullptr;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const Entry& entry : list_) list.push_back(entry.info.name);
    return list;
  }
  std::vector<Entry> list_;
};

}  // namespace moxie
