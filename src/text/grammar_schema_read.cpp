// Reading JSON Schema: references, combinations, and every keyword into Node or a fault.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include "text/grammar_format.h"
#include "text/grammar_schema_node.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxFaults = 8;
constexpr size_t kMaxSteps = 100'000;     // of reading, proving and comparing, in all
constexpr size_t kMaxAlternatives = 256;  // of one schema, after multiplying out
constexpr size_t kMaxChain = 64;          // references and combinations without a value in between
constexpr int64_t kMaxCount = 20'000;     // items and characters that can be counted

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

/// Keywords that exist but that a grammar cannot hold, or not here.
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
      {"unevaluatedItems", "use items"},
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

/// number stands for integer too, so that integer is what both have in common.
unsigned common_types(unsigned a, unsigned b) {
  unsigned out = a & b & ~(kInteger | kNumber);
  if (a & b & kNumber) return out | kNumber;
  if ((a & (kInteger | kNumber)) && (b & (kInteger | kNumber))) out |= kInteger;
  return out;
}

bool equal(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::string unescape_percent(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_hex = [&](size_t k) {
      return k < text.size() && std::isxdigit(static_cast<unsigned char>(text[k])) != 0;
    };
    if (text[i] == '%' && is_hex(i + 1) && is_hex(i + 2)) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

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

}  // namespace

void SchemaReader::report(const Json* at, const std::string& what) {
  if (!reported_.insert({at, what}).second) return;
  ++num_faults_;
  if (faults_.size() >= kMaxFaults) return;
  std::string path;
  if (at != nullptr && find_path(*root_, at, &path) && !path.empty()) {
    if (path.size() > 200) path = "..." + path.substr(path.size() - 200);
    path = " (at #" + path + ")";
  } else {
    path.clear();
  }
  faults_.push_back(what + path);
}

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
  // The price of a search, in units of a hundred comparisons.
  if (!spend(static_cast<size_t>(weight(regex)) * (text.size() + 1) / 100)) return false;
  return matches(regex, text);
}

Error SchemaReader::error() const {
  std::string what = "the schema cannot be enforced: ";
  for (size_t i = 0; i < faults_.size(); ++i) what += (i > 0 ? "; " : "") + faults_[i];
  if (num_faults_ > kMaxFaults) what += "; and more";
  return {what, where_, ""};
}

struct SchemaReader::Pending {
  Conjunction plain;
  struct Group {
    const Json* options;
    bool one_of;
    std::vector<const Json*> chain;
  };
  std::vector<Group> groups;
  bool never = false;
};

const Json* SchemaReader::resolve_ref(const Json& schema) {
  const Json& ref = schema.at("$ref");
  if (!ref.is_string()) {
    report(&schema, "$ref must be a string");
    return nullptr;
  }
  const auto& uri = ref.get_ref<const std::string&>();
  if (uri == "#") return root_;
  if (uri.rfind("#/", 0) != 0) {
    report(&schema, "$ref \"" + uri.substr(0, 100) +
                        "\" is not supported: only \"#\" and \"#/...\" inside the schema are");
    return nullptr;
  }
  const auto nowhere = [&]() -> const Json* {
    report(&schema, "$ref \"" + uri.substr(0, 100) + "\" leads nowhere");
    return nullptr;
  };
  try {
    const nlohmann::json_pointer<std::string> pointer(unescape_percent(uri.substr(1)));
    if (root_->contains(pointer)) return &root_->at(pointer);
  } catch (const std::exception&) {  // no pointer at all
    return nowhere();
  }
  return nowhere();
}

void SchemaReader::add(const Json* schema, std::vector<const Json*> chain, Pending* pending) {
  if (!spend(1)) {
    pending->never = true;
    return;
  }
  if (schema->is_boolean()) {
    pending->never = pending->never || !schema->get<bool>();
    return;
  }
  if (!schema->is_object()) {
    report(schema, "a schema must be an object or a boolean");
    pending->never = true;
    return;
  }
  if (std::find(chain.begin(), chain.end(), schema) != chain.end()) {
    report(schema, "a $ref leads back to itself with no value in between");
    pending->never = true;
    return;
  }
  if (chain.size() > kMaxChain) {
    report(schema, "more than " + std::to_string(kMaxChain) + " references behind one another");
    pending->never = true;
    return;
  }
  if (std::find(pending->plain.begin(), pending->plain.end(), schema) != pending->plain.end()) {
    return;
  }
  pending->plain.push_back(schema);
  chain.push_back(schema);
  if (schema->contains("$ref")) {
    const Json* target = resolve_ref(*schema);
    if (target != nullptr) {
      add(target, chain, pending);
    } else {
      pending->never = true;
    }
  }
  for (const char* key : {"allOf", "anyOf", "oneOf"}) {
    const auto it = schema->find(key);
    if (it == schema->end()) continue;
    if (!it->is_array() || it->empty()) {
      report(schema, std::string(key) + " must be a list with at least one schema");
      pending->never = true;
    } else if (std::string_view(key) == "allOf") {
      for (const Json& part : *it) add(&part, chain, pending);
    } else {
      pending->groups.push_back({&*it, std::string_view(key) == "oneOf", chain});
    }
  }
}

void SchemaReader::expand(Pending pending, std::vector<Node>* out) {
  if (pending.never) return;
  if (pending.groups.empty()) {
    if (out->size() >= kMaxAlternatives) {
      report(pending.plain.empty() ? nullptr : pending.plain[0],
             "anyOf and oneOf multiply to more than " + std::to_string(kMaxAlternatives) +
                 " alternatives");
      return;
    }
    Node node = merged(pending.plain);
    if (!node.unsatisfiable) out->push_back(std::move(node));
    return;
  }
  const Pending::Group group = pending.groups.front();
  pending.groups.erase(pending.groups.begin());
  if (group.one_of) check_one_of(*group.options, pending);
  for (const Json& option : *group.options) {
    if (!spend(0)) return;
    Pending branch = pending;
    add(&option, group.chain, &branch);
    expand(std::move(branch), out);
  }
}

std::vector<Node> SchemaReader::alternatives(const Conjunction& schemas) {
  Pending pending;
  for (const Json* schema : schemas) add(schema, {}, &pending);
  std::vector<Node> out;
  expand(std::move(pending), &out);
  return out;
}

void SchemaReader::check_one_of(const Json& options, const Pending& context) {
  std::vector<std::vector<Node>> branches;
  for (const Json& option : options) {
    Pending branch = context;
    branch.groups.clear();
    add(&option, {}, &branch);
    branches.emplace_back();
    expand(std::move(branch), &branches.back());
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = 0; j < branches.size(); ++j) {
      if (i == j) continue;
      for (const Node& a : branches[i]) {
        for (const Node& b : branches[j]) {
          if (!spend(1)) return;
          if (excludes(a, b, 0)) continue;
          return report(&options, "oneOf whose branches " + std::to_string(std::min(i, j)) +
                                      " and " + std::to_string(std::max(i, j)) +
                                      " may both hold is not supported: use anyOf, or give each "
                                      "branch a required property with its own const");
        }
      }
    }
  }
}

int64_t SchemaReader::count(const Json& schema, const std::string& key, const Json& value) {
  const bool whole =
      value.is_number_integer() ||
      (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  if (!whole || value.get<double>() < 0) {
    report(&schema, key + " must be a whole number from 0 on");
    return 0;
  }
  const double number = value.get<double>();
  const bool at_least = key.rfind("min", 0) == 0;
  if (number > static_cast<double>(kMaxCount)) {
    report(&schema, key + " above " + std::to_string(kMaxCount) +
                        (at_least ? " is not supported" : " is not supported: leave it out"));
    return 0;
  }
  return static_cast<int64_t>(number);
}

bool SchemaReader::is_schema(const Json& schema, const std::string& key, const Json& value) {
  if (value.is_object() || value.is_boolean()) return true;
  report(&schema, key + " must be a schema");
  return false;
}

Node SchemaReader::merged(const Conjunction& plain) {
  Node node;
  for (const Json* schema : plain) {
    read_type(*schema, &node);
    bool has_array = false, has_object = false;
    for (const auto& [key, value] : schema->items()) {
      read_keyword(*schema, key, value, &node);
      has_array = has_array || key == "items" || key == "prefixItems" || key == "additionalItems";
      has_object = has_object || key == "properties" || key == "patternProperties" ||
                   key == "additionalProperties";
    }
    if (has_array) read_array(*schema, &node);
    if (has_object) read_object(*schema, &node);
  }
  const auto empty = [](int64_t min, int64_t max) { return max != kUnbounded && max < min; };
  if (empty(node.min_length, node.max_length)) node.types &= ~unsigned{kString};
  if (empty(node.min_items, node.max_items)) node.types &= ~unsigned{kArray};
  if (empty(node.min_properties, node.max_properties)) node.types &= ~unsigned{kObject};
  if (node.types == 0) node.unsatisfiable = true;
  return node;
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
    if (!value.is_array() || value.empty()) return report(&schema, "enum must be a list of values");
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
    if (!value.is_boolean()) return report(&schema, "uniqueItems must be true or false");
    if (value.get<bool>() && !one) {
      report(&schema, "uniqueItems is not supported: a grammar cannot compare items");
    }
  } else if (key == "required") {
    read_required(schema, value, node);
  } else if (key == "propertyNames") {
    if (is_schema(schema, key, value)) node->names.push_back(&value);
    node->hinted_types |= kObject;
  } else if (key == "unevaluatedProperties") {
    if (!value.is_boolean() || value.get<bool>()) {
      report(&schema,
             "unevaluatedProperties other than false is not supported: use "
             "additionalProperties");
    }
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
  // The stricter of this and what is known; "no bound" is below every number.
  const bool is_min = key.rfind("min", 0) == 0;
  kept = is_min || kept == kUnbounded ? std::max(kept, number) : std::min(kept, number);
  node->hinted_types |= it->second.type;
  return true;
}

void SchemaReader::read_required(const Json& schema, const Json& value, Node* node) {
  const bool names = value.is_array() && std::all_of(value.begin(), value.end(),
                                                     [](const Json& n) { return n.is_string(); });
  if (!names) return report(&schema, "required must be a list of names");
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
    if (!it->is_boolean()) return report(&schema, "nullable must be true or false");
    nullable = it->get<bool>();
  }
  const auto type = schema.find("type");
  if (type == schema.end()) {
    if (nullable) report(&schema, "nullable without a type beside it is not supported");
    return;
  }
  unsigned types = nullable ? unsigned{kNull} : 0u;
  const auto add_type = [&](const Json& name) {
    const unsigned bit = name.is_string() ? type_bit(name.get<std::string>()) : 0;
    if (bit == 0) report(&schema, "type " + name.dump().substr(0, 60) + " is not known");
    types |= bit;
  };
  if (type->is_array()) {
    if (type->empty()) report(&schema, "type must not be an empty list");
    for (const Json& name : *type) add_type(name);
  } else {
    add_type(*type);
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
                  key + (value.is_number() ? " is beyond what is supported" : " must be a number"));
  }
  NumberRange range;
  if (key == "multipleOf") {
    if (number->negative || number->is_zero()) return report(&schema, key + " must be above 0");
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
  if (!value.is_string()) return report(&schema, "pattern must be a string");
  const auto& pattern = value.get_ref<const std::string&>();
  const RegexPtr regex = regex_of(&schema, pattern, RegexMode::kSearch, "pattern");
  if (regex != nullptr) node->patterns["pattern " + pattern] = regex;
}

void SchemaReader::read_format(const Json& schema, const Json& value, Node* node) {
  if (!value.is_string()) return report(&schema, "format must be a string");
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
  ArrayPart part;
  const auto read_list = [&](const Json& list, const std::string& key) {
    for (const Json& item : list) {
      if (is_schema(schema, key, item)) part.prefix.push_back(&item);
    }
  };
  const auto prefix = schema.find("prefixItems");
  const auto items = schema.find("items");
  const auto additional = schema.find("additionalItems");
  if (prefix != schema.end()) {
    if (!prefix->is_array()) return report(&schema, "prefixItems must be a list of schemas");
    read_list(*prefix, "prefixItems");
  }
  if (items != schema.end() && items->is_array()) {  // as written before 2020-12
    read_list(*items, "items");
    if (additional != schema.end() && is_schema(schema, "additionalItems", *additional)) {
      part.items = &*additional;
    }
  } else if (items != schema.end() && is_schema(schema, "items", *items)) {
    part.items = &*items;
  }
  node->arrays.push_back(std::move(part));
}

void SchemaReader::read_object(const Json& schema, Node* node) {
  node->hinted_types |= kObject;
  ObjectPart part;
  if (const auto it = schema.find("properties"); it != schema.end()) {
    if (!it->is_object()) return report(&schema, "properties must be an object");
    if (it->size() > kMaxKeys) return report(&schema, too_many_keys());
    for (const auto& [key, value] : it->items()) {
      if (key.size() > kMaxKeyBytes) return report(&schema, too_many_keys());
      if (!is_schema(schema, "each of properties", value)) return;
    }
    if (!spend(it->size() / 8)) return;
    part.properties = &*it;
  }
  if (const auto it = schema.find("patternProperties"); it != schema.end()) {
    if (!it->is_object()) return report(&schema, "patternProperties must be an object");
    for (const auto& [pattern, value] : it->items()) {
      if (!is_schema(schema, "each of patternProperties", value)) return;
      const RegexPtr regex = regex_of(&schema, pattern, RegexMode::kSearch, "patternProperties");
      if (regex == nullptr) return;
      part.patterns.emplace_back(regex, &value);
    }
  }
  if (const auto it = schema.find("additionalProperties"); it != schema.end()) {
    if (!is_schema(schema, "additionalProperties", *it)) return;
    part.additional = &*it;
  }
  node->objects.push_back(std::move(part));
}

}  // namespace moxie::grammar
