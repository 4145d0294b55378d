// Strict reading of JSON from files that others may have written: every key of an object is asked
// for by name and type, keys that nobody asked for are faults, and a fault is told with the JSON
// pointer of its place ("/results/0/samples/3").
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

/// How large and deep a document may be.
struct JsonLimits {
  uint64_t bytes = uint64_t{64} << 20;
  int depth = 32;
};

/// Parses one document. Refused with a byte offset or a pointer: more than the limits, no JSON,
/// numbers that are no finite double, a key that an object has twice.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& where,
                                  const JsonLimits& limits = {});

/// Reads a regular file of at most `limits.bytes`, and parses it.
Result<nlohmann::json> read_json_file(const std::string& path, const JsonLimits& limits = {});

/// The fields of one object. Readers share the first fault that any of them found; after it they
/// give empty values, so that a caller checks once, at the end.
class JsonFields {
 public:
  using Json = nlohmann::json;
  using Fault = std::optional<Error>;

  /// `json` and `fault` are borrowed. `where` names the file.
  JsonFields(const Json& json, std::string pointer, std::string where, Fault* fault);

  std::string text(const char* key, size_t most_bytes = SIZE_MAX);
  std::string text_or_null(const char* key);  ///< null: empty
  bool boolean(const char* key);
  std::optional<bool> boolean_or_null(const char* key);
  std::optional<bool> boolean_if_there(const char* key);  ///< a missing key: none
  double number(const char* key);
  std::optional<double> number_or_null(const char* key);
  std::optional<double> number_if_there(const char* key);  ///< a missing key: none
  int64_t integer(const char* key, int64_t least, int64_t most);
  uint64_t count(const char* key);                         ///< 0 or more
  std::optional<uint64_t> count_or_null(const char* key);  ///< null: none
  std::vector<std::string> texts(const char* key);
  std::vector<double> numbers(const char* key);
  std::vector<double> numbers_if_there(const char* key);  ///< a missing key: empty
  /// The reader of an object inside; `null` is told by has_value() where it is allowed.
  JsonFields object(const char* key);
  std::optional<JsonFields> object_or_null(const char* key);
  /// Calls `read` with a reader of each object of a list of at most `most`.
  void objects(const char* key, const std::function<void(JsonFields&)>& read,
               size_t most = SIZE_MAX);
  /// Calls `read` with the name and a reader of each object that is a value of the object `key`.
  void objects_by_name(const char* key,
                       const std::function<void(const std::string&, JsonFields&)>& read);
  /// The value, whatever its type; null if the key is missing, which is a fault.
  const Json& any(const char* key);

  /// Faults found by the caller: "is 7, expected ..." at one of the keys, or at the object itself.
  void refuse(const char* key, std::string what);
  /// The keys that were not asked for are faults. Call it last.
  void done();
  bool is_sound() const { return !fault_->has_value(); }

 private:
  void refuse_at(const char* key, size_t i, const char* what);
  const Json* find(const char* key);
  const Json* typed(const char* key, bool (*is_type)(const Json&), const char* type,
                    bool takes_null = false);
  std::string at(std::string_view key) const;

  const Json* json_;
  std::string pointer_, where_;
  Fault* fault_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace moxie
