// Questions about a merged schema: which keys and items it admits, whether a given value is valid,
// and whether two schemas can share a value.
#include <algorithm>
#include <cmath>

#include "text/grammar_schema_node.h"

namespace moxie::grammar {
namespace {

constexpr int kMaxProofDepth = 6;

bool is_false(const Json* schema) { return schema->is_boolean() && !schema->get<bool>(); }
bool is_true(const Json* schema) { return schema->is_boolean() && schema->get<bool>(); }

unsigned type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_number_integer()) return kInteger;
  if (value.is_number()) {
    return value.get<double>() == std::floor(value.get<double>()) ? kInteger : kNumber;
  }
  if (value.is_string()) return kString;
  return value.is_array() ? kArray : kObject;
}

bool in_types(unsigned type, unsigned types) {
  return (types & type) != 0 || (type == kInteger && (types & kNumber) != 0);
}

bool within(int64_t count, int64_t min, int64_t max) {
  return count >= min && (max == kUnbounded || count <= max);
}

bool ranges_meet(int64_t min_a, int64_t max_a, int64_t min_b, int64_t max_b) {
  return (max_a == kUnbounded || min_b <= max_a) && (max_b == kUnbounded || min_a <= max_b);
}

bool numbers_meet(const NumberRange& a, const NumberRange& b) {
  const NumberRange both = intersection(a, b);
  if (!both.min || !both.max) return true;
  const int order = compare(both.min->value, both.max->value);
  return order < 0 || (order == 0 && !both.min->exclusive && !both.max->exclusive);
}

}  // namespace

unsigned Node::generated_types() const {
  if (has_type || values || hinted_types == 0) return types;
  unsigned hinted = hinted_types & types;
  if ((hinted_types & (kInteger | kNumber)) && !(hinted & (kInteger | kNumber))) {
    hinted |= types & (kInteger | kNumber);
  }
  return hinted;
}

bool Node::requires_key(const std::string& key) const {
  return std::find(required.begin(), required.end(), key) != required.end();
}

std::vector<std::string> Node::declared_keys() const {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& key) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  };
  for (const ObjectPart& part : objects) {
    if (part.properties == nullptr) continue;
    for (const auto& [key, value] : part.properties->items()) add(key);
  }
  for (const std::string& key : required) add(key);
  return keys;
}

bool ObjectPart::evaluates(const std::string& key) const {
  return additional != nullptr || (properties != nullptr && properties->contains(key)) ||
         std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& pattern) { return matches(pattern.first, key); });
}

std::optional<Conjunction> Node::schemas_of(const std::string& key) const {
  Conjunction out;
  for (const ObjectPart& part : objects) {
    bool evaluated = false;
    const auto add = [&](const Json* schema) {
      evaluated = true;
      out.push_back(schema);
    };
    if (part.properties != nullptr) {
      if (const auto it = part.properties->find(key); it != part.properties->end()) add(&*it);
    }
    for (const auto& [pattern, schema] : part.patterns) {
      if (matches(pattern, key)) add(schema);
    }
    if (!evaluated && part.additional != nullptr) out.push_back(part.additional);
  }
  for (const UnevaluatedPart& part : unevaluated_properties) {
    const bool evaluated = std::any_of(part.seen.begin(), part.seen.end(),
                                       [&](size_t i) { return objects[i].evaluates(key); });
    if (!evaluated) out.push_back(part.schema);
  }
  if (std::any_of(out.begin(), out.end(), is_false)) return std::nullopt;
  std::erase_if(out, is_true);
  return out;
}

std::optional<Conjunction> Node::additional() const {
  Conjunction out;
  bool said = false, names_any = !required.empty();
  for (const ObjectPart& part : objects) {
    names_any = names_any || part.properties != nullptr || !part.patterns.empty();
    if (part.additional == nullptr) continue;
    said = true;
    out.push_back(part.additional);
  }
  for (const UnevaluatedPart& part : unevaluated_properties) {
    said = true;
    const bool evaluated = std::any_of(part.seen.begin(), part.seen.end(),
                                       [&](size_t i) { return objects[i].additional != nullptr; });
    if (!evaluated) out.push_back(part.schema);
  }
  if (!said && names_any) return std::nullopt;
  if (std::any_of(out.begin(), out.end(), is_false)) return std::nullopt;
  std::erase_if(out, is_true);
  return out;
}

Conjunction Node::items_at(size_t idx) const {
  Conjunction out;
  for (const ArrayPart& part : arrays) {
    const Json* schema = idx < part.prefix.size() ? part.prefix[idx] : part.items;
    if (schema != nullptr) out.push_back(schema);
  }
  for (const UnevaluatedPart& part : unevaluated_items) {
    const bool evaluated = std::any_of(part.seen.begin(), part.seen.end(),
                                       [&](size_t i) { return arrays[i].evaluates(idx); });
    if (!evaluated) out.push_back(part.schema);
  }
  std::erase_if(out, is_true);
  return out;
}

size_t Node::num_prefix_items() const {
  size_t num = 0;
  for (const ArrayPart& part : arrays) num = std::max(num, part.prefix.size());
  return num;
}

bool Node::has_items() const {
  return !unevaluated_items.empty() ||
         std::any_of(arrays.begin(), arrays.end(),
                     [](const ArrayPart& part) { return part.items != nullptr; });
}

bool SchemaReader::holds(const Json& value, const Conjunction& schemas, Reading reading) {
  const std::vector<Node> nodes = alternatives(schemas, reading);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Node& node) { return holds(value, node); });
}

bool SchemaReader::holds(const Json& value, const Node& node) {
  if (!spend(1 + (node.values ? node.values->size() / 4 : 0))) return false;
  if (!in_types(type_of(value), node.types)) return false;
  if (node.values && std::none_of(node.values->begin(), node.values->end(), [&](const Json& known) {
        return nlohmann::json(known) == nlohmann::json(value);
      })) {
    return false;
  }
  if (value.is_number()) {
    const auto number = Decimal::parse(value.dump());
    if (!number) return !node.numbers.min && !node.numbers.max && !node.numbers.multiple_of;
    return contains(node.numbers, *number) &&
           (!node.numbers.multiple_of || is_multiple(*number, *node.numbers.multiple_of));
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return within(static_cast<int64_t>(code_points(text).size()), node.min_length,
                  node.max_length) &&
           std::all_of(node.patterns.begin(), node.patterns.end(),
                       [&](const auto& pattern) { return pattern_holds(pattern.second, text); });
  }
  if (value.is_array()) {
    if (!within(static_cast<int64_t>(value.size()), node.min_items, node.max_items)) return false;
    for (size_t i = 0; i < value.size(); ++i) {
      if (!holds(value[i], node.items_at(i), node.reading)) return false;
    }
  }
  if (value.is_object()) {
    if (!within(static_cast<int64_t>(value.size()), node.min_properties, node.max_properties) ||
        !std::all_of(node.required.begin(), node.required.end(),
                     [&](const std::string& key) { return value.contains(key); })) {
      return false;
    }
    for (const auto& [key, member] : value.items()) {
      const auto schemas = node.schemas_of(key);
      if (!schemas || !holds(member, *schemas, node.reading) ||
          !holds(Json(key), node.names, node.reading)) {
        return false;
      }
    }
  }
  return true;
}

bool SchemaReader::disjoint(const Conjunction& a, const Conjunction& b, int depth) {
  const std::vector<Node> from = alternatives(a, Reading::kAssumed);
  const std::vector<Node> to = alternatives(b, Reading::kLoose);
  for (const Node& x : from) {
    for (const Node& y : to) {
      if (!excludes(x, y, depth)) return false;
    }
  }
  return true;
}

bool SchemaReader::excludes(const Node& a, const Node& b, int depth) {
  if (depth > kMaxProofDepth) return false;
  if (a.values) {
    return std::none_of(a.values->begin(), a.values->end(),
                        [&](const Json& value) { return holds(value, a) && holds(value, b); });
  }
  if (b.values) {
    return std::none_of(b.values->begin(), b.values->end(),
                        [&](const Json& value) { return holds(value, b) && holds(value, a); });
  }
  const unsigned types = a.generated_types();
  for (unsigned type = 1; type <= kObject; type <<= 1) {
    if (!(types & type)) continue;
    const bool meets = in_types(type, b.types) || (type == kNumber && (b.types & kInteger));
    if (!meets) continue;
    if (type == kObject && excludes_object(a, b, depth)) continue;
    if (type == kArray && excludes_array(a, b, depth)) continue;
    if (type == kString && !ranges_meet(a.min_length, a.max_length, b.min_length, b.max_length)) {
      continue;
    }
    if ((type == kInteger || type == kNumber) && !numbers_meet(a.numbers, b.numbers)) continue;
    return false;
  }
  return true;
}

bool SchemaReader::excludes_object(const Node& a, const Node& b, int depth) {
  const std::vector<std::string> own = a.declared_keys();
  const auto may_write = [&](const std::string& key) {
    if (std::find(own.begin(), own.end(), key) != own.end()) return a.schemas_of(key).has_value();
    for (const ObjectPart& part : a.objects) {
      for (const auto& [pattern, schema] : part.patterns) {
        if (matches(pattern, key)) return true;
      }
    }
    return a.additional().has_value();
  };
  for (const std::string& key : b.required) {
    if (!may_write(key)) return true;
  }
  for (const std::string& key : a.required) {
    const auto written = a.schemas_of(key);
    const auto wanted = b.schemas_of(key);
    if (!written || !wanted || disjoint(*written, *wanted, depth + 1)) return true;
  }
  return !ranges_meet(a.min_properties, a.max_properties, b.min_properties, b.max_properties);
}

bool SchemaReader::excludes_array(const Node& a, const Node& b, int depth) {
  if (!ranges_meet(a.min_items, a.max_items, b.min_items, b.max_items)) return true;
  const int64_t sure = std::min<int64_t>(a.min_items, 8);
  for (int64_t i = 0; i < sure; ++i) {
    const auto idx = static_cast<size_t>(i);
    if (disjoint(a.items_at(idx), b.items_at(idx), depth + 1)) return true;
  }
  return false;
}

}  // namespace moxie::grammar
