// Reads JSON Schema: every keyword goes into a Node or is a fault.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "text/grammar_format.h"
#include "text/grammar_schema_node.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxSteps = 100'000;  // of reading, proving and comparing, in all
constexpr int64_t kMaxCount = 20'000;  // items and characters that can be counted

std::string too_many_keys() {
  return "more than " + std::to_string(kMaxKeys) + " names, or one above " +
         std::to_string(kMaxKeyBytes) + " bytes, in one object";
}

const std::set<std::string, std::less<>>& annotations() {
  static const std::set<std::string, std::less<>> kAnnotations = {
      "title",    "description", "default",  "examples",     "example",       "deprecated",
      "readOnly", "writeOnly",   "$comment", "$schema",      "$defs",         "definitions",
      "$anchor",  "$vocabulary", "format",   "externalDocs", "discriminator", "xml"};
  return kAnnotations;
}

/// Keywords that a grammar cannot express, or that are not supported here.
const std::map<std::string, std::string, std::less<>>& unsupported() {
  static const std::map<std::string, std::string, std::less<>> kUnsupported = {
      {"not", "a grammar has no \"anything but\": name what is wanted"},
      {"if", "write anyOf with a branch for each case"},
      {"then", "write anyOf with a branch for each case"},
      {"else", "write anyOf with a branch for each case"},
      {"dependentRequired", "write anyOf with a branch for each case"},
      {"dependentSchemas", "write anyOf with a branch for each case"},
      {"dependencies", "write anyOf with a branch for each case"},
      {"contains", "items of a kind cannot be counted among others: use prefixItems"},
      {"minContains", "items of a kind cannot be counted among others"},
      {"maxContains", "items of a kind cannot be counted among others"},
      {"$dynamicRef", "use $ref"},
      {"$dynamicAnchor", "use $defs and $ref"},
      {"$recursiveRef", "use $ref"},
      {"$recursiveAnchor", "use $defs and $ref"},
      {"contentEncoding", "what is inside a string cannot be bound"},
      {"contentMediaType", "what is inside a string cannot be bound"},
      {"contentSchema", "what is inside a string cannot be bound"}};
  return kUnsupported;
}

unsigned type_bit(const std::string& name) {
  static const std::map<std::string, unsigned> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto it = kTypes.find(name);
  return it == kTypes.end() ? 0 : it->second;
}

/// kNumber includes kInteger, so that their intersection is kInteger.
unsigned common_types(unsigned a, unsigned b) {
  unsigned out = a & b & ~(kInteger | kNumber);
  if (a & b & kNumber) return out | kNumber;
  if ((a & (kInteger | kNumber)) && (b & (kInteger | kNumber))) out |= kInteger;
  return out;
}

bool equal(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

}  // namespace

bool SchemaReader::spend(size_t num_steps) {
  num_steps_ += num_steps;
  if (num_steps_ <= kMaxSteps) return true;
  report(nullptr, "the schema is too intricate");
  return false;
}

RegexPtr SchemaReader::regex_of(const Json* at, std::string_view pattern, RegexMode mode,
                                const char* keyword) {
  const auto key = std::make_pair(at, std::string(pattern));
  if (const auto it = regexes_.find(key); it != regexes_.end()) return it->second;
  auto regex = parse_regex(pattern, keyword);
  if (regex) regex = resolve_anchors(*regex, mode, keyword);
  if (!regex) report(at, std::string(keyword) + ": " + regex.error().what);
  return regexes_[key] = regex ? *regex : nullptr;
}

bool SchemaReader::pattern_holds(const RegexPtr& regex, std::string_view text) {
  // The cost of a search, in units of a hundred comparisons.
  if (!spend(static_cast<size_t>(weight(regex)) * (text.size() + 1) / 100)) return false;
  return matches(regex, text);
}

Error SchemaReader::error() const {
  if (!checker_.faults().empty()) return checker_.faults().error("this is no JSON Schema", where_);
  return faults_.error("the schema cannot be enforced", where_);
}

int64_t SchemaReader::count(const Json& schema, const std::string& key, const Json& value) {
  const double number = value.get<double>();
  const bool at_least = key.rfind("min", 0) == 0;
  if (number > static_cast<double>(kMaxCount)) {
    report(&schema, key + " above " + std::to_string(kMaxCount) +
                        (at_least ? " is not supported" : " is not supported: leave it out"));
    return 0;
  }
  return static_cast<int64_t>(number);
}

void SchemaReader::read_keyword(const Json& schema, const std::string& key, const Json& value,
                                Node* node) {
  static const std::set<std::string, std::less<>> kElsewhere = {"type",
                                                                "nullable",
                                                                "$ref",
                                                                "allOf",
                                                                "anyOf",
                                                                "oneOf",
                                                                "items",
                                                                "prefixItems",
                                                                "properties",
                                                                "patternProperties",
                                                                "additionalProperties",
                                                                "additionalItems"};
  if (kElsewhere.count(key) > 0) return;
  if (key == "enum") {
    if (value.empty()) return report(&schema, "enum without a value holds for none");
    read_values(schema, {value.begin(), value.end()}, node);
  } else if (key == "const") {
    read_values(schema, {value}, node);
  } else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" ||
             key == "exclusiveMaximum" || key == "multipleOf") {
    read_number(schema, key, value, node);
  } else if (read_count(schema, key, value, node)) {
    return;
  } else if (key == "pattern") {
    read_pattern(schema, value, node);
  } else if (key == "format") {
    read_format(schema, value, node);
  } else if (key == "uniqueItems") {
    const auto max = schema.find("maxItems");
    const bool one = max != schema.end() && max->is_number() && max->get<double>() <= 1;
    if (value.get<bool>() && !one) {
      report(&schema, "uniqueItems is not supported: a grammar cannot compare items");
    }
  } else if (key == "required") {
    read_required(schema, value, node);
  } else if (key == "propertyNames") {
    node->names.push_back(&value);
    node->hinted_types |= kObject;
  } else if (key == "unevaluatedItems" || key == "unevaluatedProperties") {
    node->hinted_types |= key == "unevaluatedItems" ? kArray : kObject;
  } else if (key == "$id" || key == "id") {
    if (&schema != root_) report(&schema, key + " inside a schema is not supported");
  } else if (annotations().count(key) > 0 || key.rfind("x-", 0) == 0) {
    return;
  } else if (const auto it = unsupported().find(key); it != unsupported().end()) {
    report(&schema, key + " is not supported: " + it->second);
  } else {
    report(&schema, "the keyword \"" + key.substr(0, 60) + "\" is not known");
  }
}

/// The keywords that count something; false for any other.
bool SchemaReader::read_count(const Json& schema, const std::string& key, const Json& value,
                              Node* node) {
  struct Counted {
    int64_t Node::*bound;
    unsigned type;
  };
  static const std::map<std::string, Counted, std::less<>> kCounted = {
      {"minLength", {&Node::min_length, kString}},
      {"maxLength", {&Node::max_length, kString}},
      {"minItems", {&Node::min_items, kArray}},
      {"maxItems", {&Node::max_items, kArray}},
      {"minProperties", {&Node::min_properties, kObject}},
      {"maxProperties", {&Node::max_properties, kObject}}};
  const auto it = kCounted.find(key);
  if (it == kCounted.end()) return false;
  int64_t& kept = node->*it->second.bound;
  const int64_t number = count(schema, key, value);
  // The stricter of this bound and the one known so far; "no bound" is below every number.
  const bool is_min = key.rfind("min", 0) == 0;
  kept = is_min || kept == kUnbounded ? std::max(kept, number) : std::min(kept, number);
  node->hinted_types |= it->second.type;
  return true;
}

void SchemaReader::read_required(const Json& schema, const Json& value, Node* node) {
  if (value.size() > kMaxKeys) return report(&schema, too_many_keys());
  for (const Json& name : value) {
    const auto& key = name.get_ref<const std::string&>();
    if (key.size() > kMaxKeyBytes) return report(&schema, too_many_keys());
    if (!node->requires_key(key)) node->required.push_back(key);
  }
  node->hinted_types |= kObject;
}

void SchemaReader::read_type(const Json& schema, Node* node) {
  bool nullable = false;
  if (const auto it = schema.find("nullable"); it != schema.end()) {
    nullable = it->get<bool>();
  }
  const auto type = schema.find("type");
  if (type == schema.end()) {
    if (nullable) report(&schema, "nullable without a type beside it is not supported");
    return;
  }
  unsigned types = nullable ? unsigned{kNull} : 0u;
  if (type->is_array()) {
    for (const Json& name : *type) types |= type_bit(name.get_ref<const std::string&>());
  } else {
    types |= type_bit(type->get_ref<const std::string&>());
  }
  node->types = common_types(node->types, types);
  node->has_type = true;
}

void SchemaReader::read_values(const Json& schema, std::vector<Json> values, Node* node) {
  if (!spend(values.size() / 8)) return;
  if (schema.value("nullable", Json(false)) == Json(true)) values.push_back(nullptr);
  if (!node->values) {
    node->values = std::move(values);
    return;
  }
  if (!spend(values.size() * node->values->size() / 8)) return;
  std::erase_if(*node->values, [&](const Json& kept) {
    return std::none_of(values.begin(), values.end(),
                        [&](const Json& value) { return equal(kept, value); });
  });
}

void SchemaReader::read_number(const Json& schema, const std::string& key, const Json& value,
                               Node* node) {
  node->hinted_types |= kNumber;
  const auto number = value.is_number() ? Decimal::parse(value.dump()) : std::nullopt;
  if (!number) {
    return report(&schema,
                  key + (value.is_number() ? " is beyond what is supported"
                                           : " as in draft 4 is not supported: give it the bound"));
  }
  NumberRange range;
  if (key == "multipleOf") {
    const auto& known = node->numbers.multiple_of;
    if (known && compare(*known, *number) != 0) {
      return report(&schema, "two different multipleOf are not supported");
    }
    range.multiple_of = number;
  } else {
    const Bound bound = {*number, key.rfind("exclusive", 0) == 0};
    (key == "minimum" || key == "exclusiveMinimum" ? range.min : range.max) = bound;
  }
  node->numbers = intersection(node->numbers, range);
}

void SchemaReader::read_pattern(const Json& schema, const Json& value, Node* node) {
  node->hinted_types |= kString;
  const auto& pattern = value.get_ref<const std::string&>();
  const RegexPtr regex = regex_of(&schema, pattern, RegexMode::kSearch, "pattern");
  if (regex != nullptr) node->patterns["pattern " + pattern] = regex;
}

void SchemaReader::read_format(const Json& schema, const Json& value, Node* node) {
  const auto& name = value.get_ref<const std::string&>();
  const auto whole = [&](const char* min, const char* max) {
    node->hinted_types |= kInteger;
    node->numbers = intersection(
        node->numbers, {.min = Bound{*Decimal::parse(min)}, .max = Bound{*Decimal::parse(max)}});
  };
  if (name == "int32") return whole("-2147483648", "2147483647");
  if (name == "int64") return whole("-9223372036854775808", "9223372036854775807");
  if (name == "float" || name == "double") return;
  const auto pattern = format_pattern(name);
  if (!pattern) {
    std::string known;
    for (const auto format : format_names())
      known += (known.empty() ? "" : ", ") + std::string(format);
    return report(&schema, "format \"" + name.substr(0, 60) + "\" is not supported (" + known +
                               ", int32, int64, float, double are)");
  }
  node->hinted_types |= kString;
  const RegexPtr regex = regex_of(nullptr, *pattern, RegexMode::kWhole, "format");
  CHECK(regex != nullptr, "the pattern of a format is not supported: " + name);
  node->patterns["format " + name] = regex;
}

void SchemaReader::read_array(const Json& schema, Node* node) {
  node->hinted_types |= kArray;
  ArrayPart part = {.schema = &schema};
  const auto read_list = [&](const Json& list) {
    for (const Json& item : list) part.prefix.push_back(&item);
  };
  const auto prefix = schema.find("prefixItems");
  const auto items = schema.find("items");
  const auto additional = schema.find("additionalItems");
  if (prefix != schema.end()) read_list(*prefix);
  if (items != schema.end() && items->is_array()) {  // as written before 2020-12
    read_list(*items);
    if (additional != schema.end()) part.items = &*additional;
  } else if (items != schema.end()) {
    part.items = &*items;
  }
  node->arrays.push_back(std::move(part));
}

void SchemaReader::read_object(const Json& schema, Node* node) {
  node->hinted_types |= kObject;
  ObjectPart part = {.schema = &schema};
  if (const auto it = schema.find("properties"); it != schema.end()) {
    if (it->size() > kMaxKeys) return report(&schema, too_many_keys());
    for (const auto& [key, value] : it->items()) {
      if (key.size() > kMaxKeyBytes) return report(&schema, too_many_keys());
    }
    if (!spend(it->size() / 8)) return;
    part.properties = &*it;
  }
  if (const auto it = schema.find("patternProperties"); it != schema.end()) {
    for (const auto& [pattern, value] : it->items()) {
      const RegexPtr regex = regex_of(&schema, pattern, RegexMode::kSearch, "patternProperties");
      if (regex == nullptr) return;
      part.patterns.emplace_back(regex, &value);
    }
  }
  if (const auto it = schema.find("additionalProperties"); it != schema.end()) {
    part.additional = &*it;
  }
  node->objects.push_back(std::move(part));
}

}  // namespace moxie::grammar
