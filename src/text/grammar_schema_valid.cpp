// The kinds of values that JSON Schema's keywords have.
#include "text/grammar_schema_valid.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "text/grammar_schema.h"
#include "text/harmony_json.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxFaults = 8;

bool find_path(const Json& from, const Json* target, std::string* path) {
  if (&from == target) return true;
  if (!from.is_structured()) return false;
  for (const auto& [key, value] : from.items()) {
    const size_t size = path->size();
    *path += '/' + key;
    if (find_path(value, target, path)) return true;
    path->resize(size);
  }
  return false;
}

bool is_schema(const Json& value) { return value.is_object() || value.is_boolean(); }

bool is_names(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& name) { return name.is_string(); });
}

bool is_count(const Json& value) {
  return value.is_number() && value.get<double>() >= 0 &&
         value.get<double>() == std::floor(value.get<double>());
}

bool is_type(const Json& value) {
  static const std::set<std::string, std::less<>> kTypes = {
      "null", "boolean", "integer", "number", "string", "array", "object"};
  return value.is_string() && kTypes.count(value.get_ref<const std::string&>()) > 0;
}

}  // namespace

void SchemaFaults::report(const Json* at, const std::string& what) {
  if (!reported_.insert({at, what}).second) return;
  ++num_;
  if (faults_.size() >= kMaxFaults) return;
  std::string path;
  if (at != nullptr && find_path(*root_, at, &path) && !path.empty()) {
    if (path.size() > 200) path.replace(0, path.size() - 200, "...");
    path = " (at #" + path + ")";
  } else {
    path.clear();
  }
  faults_.push_back(what + path);
}

Error SchemaFaults::error(const std::string& what, const std::string& where) const {
  std::string text = what + ": ";
  for (size_t i = 0; i < faults_.size(); ++i) text += (i > 0 ? "; " : "") + faults_[i];
  if (num_ > kMaxFaults) text += "; and more";
  return {text, where, ""};
}

enum class SchemaChecker::Kind {
  kAnything,
  kSchema,
  kItems,         // a schema, or a list of schemas as before 2020-12
  kSchemas,       // a list of at least one
  kNamedSchemas,  // an object of schemas
  kDependencies,  // an object of schemas or lists of names
  kNames,
  kNamedNames,
  kType,
  kList,
  kCount,
  kNumber,
  kBound,  // a number, or a boolean as in draft 4
  kAboveZero,
  kString,
  kBoolean,
};

SchemaChecker::Kind SchemaChecker::kind_of(const std::string& keyword) {
  static const std::map<std::string, Kind, std::less<>> kKinds = {
      {"additionalItems", Kind::kSchema},
      {"additionalProperties", Kind::kSchema},
      {"contains", Kind::kSchema},
      {"contentSchema", Kind::kSchema},
      {"else", Kind::kSchema},
      {"if", Kind::kSchema},
      {"not", Kind::kSchema},
      {"propertyNames", Kind::kSchema},
      {"then", Kind::kSchema},
      {"unevaluatedItems", Kind::kSchema},
      {"unevaluatedProperties", Kind::kSchema},
      {"items", Kind::kItems},
      {"allOf", Kind::kSchemas},
      {"anyOf", Kind::kSchemas},
      {"oneOf", Kind::kSchemas},
      {"prefixItems", Kind::kSchemas},
      {"$defs", Kind::kNamedSchemas},
      {"definitions", Kind::kNamedSchemas},
      {"dependentSchemas", Kind::kNamedSchemas},
      {"patternProperties", Kind::kNamedSchemas},
      {"properties", Kind::kNamedSchemas},
      {"dependencies", Kind::kDependencies},
      {"required", Kind::kNames},
      {"dependentRequired", Kind::kNamedNames},
      {"type", Kind::kType},
      {"enum", Kind::kList},
      {"maxContains", Kind::kCount},
      {"maxItems", Kind::kCount},
      {"maxLength", Kind::kCount},
      {"maxProperties", Kind::kCount},
      {"minContains", Kind::kCount},
      {"minItems", Kind::kCount},
      {"minLength", Kind::kCount},
      {"minProperties", Kind::kCount},
      {"maximum", Kind::kNumber},
      {"minimum", Kind::kNumber},
      {"exclusiveMaximum", Kind::kBound},
      {"exclusiveMinimum", Kind::kBound},
      {"multipleOf", Kind::kAboveZero},
      {"$anchor", Kind::kString},
      {"$dynamicAnchor", Kind::kString},
      {"$dynamicRef", Kind::kString},
      {"$id", Kind::kString},
      {"$ref", Kind::kString},
      {"format", Kind::kString},
      {"pattern", Kind::kString},
      {"nullable", Kind::kBoolean},
      {"uniqueItems", Kind::kBoolean}};
  const auto it = kKinds.find(keyword);
  return it == kKinds.end() ? Kind::kAnything : it->second;
}

/// Null where `value` is of the kind.
const char* SchemaChecker::fault_of(Kind kind, const Json& value) {
  const auto all = [&](bool (*holds)(const Json&)) {
    return std::all_of(value.begin(), value.end(), holds);
  };
  switch (kind) {
    case Kind::kAnything:
      return nullptr;
    case Kind::kSchema:
      return is_schema(value) ? nullptr : "must be a schema";
    case Kind::kItems:
      return is_schema(value) || (value.is_array() && all(is_schema))
                 ? nullptr
                 : "must be a schema or a list of schemas";
    case Kind::kSchemas:
      return value.is_array() && !value.empty() && all(is_schema)
                 ? nullptr
                 : "must be a list with at least one schema, and nothing else";
    case Kind::kNamedSchemas:
      return value.is_object() && all(is_schema) ? nullptr : "must be an object of schemas";
    case Kind::kDependencies:
      return value.is_object() && all([](const Json& v) { return is_schema(v) || is_names(v); })
                 ? nullptr
                 : "must be an object of schemas or lists of names";
    case Kind::kNames:
      return is_names(value) ? nullptr : "must be a list of names";
    case Kind::kNamedNames:
      return value.is_object() && all(is_names) ? nullptr : "must be an object of lists of names";
    case Kind::kType:
      return is_type(value) || (value.is_array() && !value.empty() && all(is_type))
                 ? nullptr
                 : "is not known: null, boolean, integer, number, string, array and object are, or "
                   "a "
                   "list of them";
    case Kind::kList:
      return value.is_array() ? nullptr : "must be a list of values";
    case Kind::kCount:
      return is_count(value) ? nullptr : "must be a whole number from 0 on";
    case Kind::kNumber:
      return value.is_number() ? nullptr : "must be a number";
    case Kind::kBound:
      return value.is_number() || value.is_boolean() ? nullptr : "must be a number";
    case Kind::kAboveZero:
      return value.is_number() && value.get<double>() > 0 ? nullptr : "must be a number above 0";
    case Kind::kString:
      return value.is_string() ? nullptr : "must be a string";
    case Kind::kBoolean:
      return value.is_boolean() ? nullptr : "must be true or false";
  }
  return nullptr;
}

void SchemaChecker::check_members(const std::string& key, const Json& value) {
  switch (kind_of(key)) {
    case Kind::kSchema:
      check(value);
      return;
    case Kind::kItems:
      if (!value.is_array()) {
        check(value);
        return;
      }
      [[fallthrough]];
    case Kind::kSchemas:
    case Kind::kNamedSchemas:
    case Kind::kDependencies:
      for (const Json& member : value) {
        if (is_schema(member)) check(member);
      }
      return;
    default:
      return;
  }
}

bool SchemaChecker::check(const Json& schema) {
  if (!is_schema(schema)) {
    faults_.report(&schema, "a schema must be an object or a boolean");
  } else if (schema.is_object() && seen_.insert(&schema).second) {
    for (const auto& [key, value] : schema.items()) {
      const char* fault = fault_of(kind_of(key), value);
      if (fault == nullptr) {
        check_members(key, value);
        continue;
      }
      const std::string shown = key == "type" ? " " + value.dump().substr(0, 60) : "";
      faults_.report(&schema, key + shown + " " + fault);
    }
  }
  return faults_.empty();
}

Status check_schema(std::string_view schema_json, const std::string& where) {
  const auto root = harmony::parse_json_bounded(schema_json, where);
  if (!root) return fail(root.error());
  SchemaChecker checker(**root);
  if (!checker.check(**root)) return fail(checker.faults().error("this is no JSON Schema", where));
  return {};
}

}  // namespace moxie::grammar
