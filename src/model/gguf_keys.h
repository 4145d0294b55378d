// Reads the keys "ARCHITECTURE.name" of a GGUF file, and collects what is missing or wrong, so that
// all of it is reported at once.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

#include "weights/gguf.h"

namespace moxie {

class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, const std::string& architecture)
      : file_(file), prefix_(architecture + ".") {}

  void integer(const char* name, bool is_required, int32_t* out) {
    const std::string key = prefix_ + name;
    if (file_.find(key) == nullptr) {
      if (is_required) fault(key, "nothing");
      return;
    }
    const std::optional<int64_t> value = file_.integer(key);
    if (!value || *value < 0 || *value > std::numeric_limits<int32_t>::max())
      return fault(key, value ? std::to_string(*value) : "another kind of value");
    *out = static_cast<int32_t>(*value);
  }
  template <typename T>
  void real(const char* name, T* out) {
    const std::string key = prefix_ + name;
    if (file_.find(key) == nullptr) return;
    const std::optional<double> value = file_.real(key);
    if (!value || !std::isfinite(*value))
      return fault(key, value ? fmt::format("{}", *value) : "another kind of value", "a number");
    *out = static_cast<T>(*value);
  }
  void boolean(const char* name, bool* out) {
    const GgufValue* value = file_.find(prefix_ + name);
    if (value == nullptr) return;
    if (const bool* found = std::get_if<bool>(value))
      *out = *found;
    else
      fault(prefix_ + name, "another kind of value", "true or false");
  }
  bool has(const char* name) const { return file_.find(prefix_ + name) != nullptr; }
  std::string text(const char* name) const { return file_.text(prefix_ + name).value_or(""); }
  std::vector<int32_t> integers(const char* name) const { return file_.integers(prefix_ + name); }
  /// The key's whole name.
  std::string key(const char* name) const { return prefix_ + name; }
  void fault(const std::string& key, const std::string& found,
             const char* expected = "a whole number") {
    faults_ += fmt::format("{}{}: found {}, expected {}", faults_.empty() ? "" : "; ", key, found,
                           expected);
  }
  const std::string& faults() const { return faults_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
  std::string faults_;
};

}  // namespace moxie
