// Checks that a document is a JSON Schema: every known keyword has a value of its kind. Drafts 4 to
// 2020-12 and OpenAPI's; annotations and unknown keywords may hold anything.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base.h"

namespace moxie::grammar {

using Json = nlohmann::ordered_json;

/// Faults at places of one document, which must outlive the list; the first ones are kept.
class SchemaFaults {
 public:
  explicit SchemaFaults(const Json& root) : root_(&root) {}
  void report(const Json* at, const std::string& what);
  bool empty() const { return num_ == 0; }
  Error error(const std::string& what, const std::string& where) const;

 private:
  const Json* root_;
  std::vector<std::string> faults_;
  std::set<std::pair<const Json*, std::string>> reported_;
  size_t num_ = 0;
};

class SchemaChecker {
 public:
  explicit SchemaChecker(const Json& root) : faults_(root) {}
  /// Checks a schema and all schemas inside it, once. False if this or an earlier one has a fault.
  bool check(const Json& schema);
  const SchemaFaults& faults() const { return faults_; }

 private:
  enum class Kind;
  static Kind kind_of(const std::string& keyword);
  static const char* fault_of(Kind kind, const Json& value);
  void check_members(const std::string& key, const Json& value);

  SchemaFaults faults_;
  std::set<const Json*> seen_;
};

}  // namespace moxie::grammar
