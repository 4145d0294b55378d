// Combines JSON Schemas: multiplies out $ref, allOf, anyOf and oneOf into alternatives, and finds
// what each schema of an alternative leaves unevaluated.
#include <algorithm>
#include <cctype>
#include <utility>

#include "text/grammar_schema_node.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxAlternatives = 256;  // of one schema, after multiplying out
constexpr size_t kMaxChain = 64;          // references and combinations without a value in between

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

/// Whether a schema names itself, so that references inside it start there.
bool has_id(const Json& schema) {
  const auto is_name = [&](const char* key) {
    const auto it = schema.find(key);
    return it != schema.end() && it->is_string();
  };
  return schema.is_object() && (is_name("$id") || is_name("id"));
}

}  // namespace

struct SchemaReader::Pending {
  Conjunction plain;
  struct Group {
    const Json* options;
    bool one_of;
    std::vector<const Json*> chain;
  };
  std::vector<Group> groups;
  std::vector<std::pair<const Json*, size_t>> taken;  // lists of oneOf, each with the branch taken
  /// Pairs of a schema and one that stands in its place.
  std::vector<std::pair<const Json*, const Json*>> inside;
  bool never = false;

  /// `top` and the schemas inside it that apply to the same value.
  Conjunction in_place(const Json* top) const {
    Conjunction found = {top};
    for (size_t i = 0; i < found.size(); ++i) {
      for (const auto& [outer, inner] : inside) {
        if (outer == found[i] && std::find(found.begin(), found.end(), inner) == found.end()) {
          found.push_back(inner);
        }
      }
    }
    return found;
  }
};

const Json* SchemaReader::resolve_ref(const Json& schema) {
  const auto& uri = schema.at("$ref").get_ref<const std::string&>();
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
    if (!root_->contains(pointer)) return nowhere();
    for (auto above = pointer; !above.empty(); above = above.parent_pointer()) {
      if (!has_id(root_->at(above))) continue;
      report(&schema, "$ref \"" + uri.substr(0, 100) +
                          "\" leads into a schema with its own $id, where references mean other "
                          "places: take out that $id");
      return nullptr;
    }
    // The target may be at a place where no keyword expects a schema.
    const Json& target = root_->at(pointer);
    return checker_.check(target) ? &target : nullptr;
  } catch (const std::exception&) {  // not a JSON pointer
    return nowhere();
  }
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
  if (!chain.empty()) pending->inside.emplace_back(chain.back(), schema);
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
    if (std::string_view(key) == "allOf") {
      for (const Json& part : *it) add(&part, chain, pending);
    } else {
      pending->groups.push_back({&*it, std::string_view(key) == "oneOf", chain});
    }
  }
}

void SchemaReader::expand(Pending pending, Reading reading, std::vector<Node>* out) {
  if (pending.never) return;
  if (pending.groups.empty()) {
    if (out->size() >= kMaxAlternatives) {
      report(pending.plain.empty() ? nullptr : pending.plain[0],
             "anyOf and oneOf multiply to more than " + std::to_string(kMaxAlternatives) +
                 " alternatives");
      return;
    }
    Node node = merged(pending);
    if (reading == Reading::kLoose) {
      node.unevaluated_items.clear();
      node.unevaluated_properties.clear();
    } else if (reading == Reading::kWritten && !node.unsatisfiable) {
      node.reading = Reading::kAssumed;
      for (const auto& [options, branch] : pending.taken) check_one_of(*options, branch, node);
    }
    node.reading = reading;
    if (!node.unsatisfiable) out->push_back(std::move(node));
    return;
  }
  const Pending::Group group = pending.groups.front();
  pending.groups.erase(pending.groups.begin());
  for (size_t i = 0; i < group.options->size(); ++i) {
    if (!spend(0)) return;
    Pending branch = pending;
    if (group.one_of) branch.taken.emplace_back(group.options, i);
    add(&group.options->at(i), group.chain, &branch);
    expand(std::move(branch), reading, out);
  }
}

std::vector<Node> SchemaReader::alternatives(const Conjunction& schemas, Reading reading) {
  Pending pending;
  for (const Json* schema : schemas) add(schema, {}, &pending);
  std::vector<Node> out;
  expand(std::move(pending), reading, &out);
  return out;
}

/// `node`: a whole alternative, which took the branch `taken`. No value that it writes may be valid
/// under another branch.
void SchemaReader::check_one_of(const Json& options, size_t taken, const Node& node) {
  for (size_t i = 0; i < options.size(); ++i) {
    if (i == taken) continue;
    auto it = loose_.find(&options[i]);
    if (it == loose_.end()) {
      it = loose_.emplace(&options[i], alternatives({&options[i]}, Reading::kLoose)).first;
    }
    for (const Node& other : it->second) {
      if (!spend(1)) return;
      if (excludes(node, other, 0)) continue;
      return report(&options, "oneOf whose branches " + std::to_string(std::min(i, taken)) +
                                  " and " + std::to_string(std::max(i, taken)) +
                                  " may both hold is not supported: use anyOf, or give each "
                                  "branch a required property with its own const");
    }
  }
}

template <typename Part>
std::vector<UnevaluatedPart> SchemaReader::unevaluated(const Pending& pending,
                                                       const std::vector<Part>& parts,
                                                       const char* key) {
  std::vector<UnevaluatedPart> out;
  for (const Json* schema : pending.plain) {
    const auto it = schema->find(key);
    if (it == schema->end()) continue;
    if (!spend(pending.plain.size() * (pending.inside.size() + parts.size()) / 100)) return out;
    const Conjunction inside = pending.in_place(schema);
    // The same keyword further inside leaves nothing unevaluated.
    if (std::any_of(inside.begin() + 1, inside.end(),
                    [&](const Json* inner) { return inner->contains(key); })) {
      continue;
    }
    UnevaluatedPart part = {.schema = &*it};
    for (size_t i = 0; i < parts.size(); ++i) {
      if (std::find(inside.begin(), inside.end(), parts[i].schema) != inside.end()) {
        part.seen.push_back(i);
      }
    }
    out.push_back(std::move(part));
  }
  return out;
}

Node SchemaReader::merged(const Pending& pending) {
  Node node;
  for (const Json* schema : pending.plain) {
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
  node.unevaluated_items = unevaluated(pending, node.arrays, "unevaluatedItems");
  node.unevaluated_properties = unevaluated(pending, node.objects, "unevaluatedProperties");
  const auto empty = [](int64_t min, int64_t max) { return max != kUnbounded && max < min; };
  if (empty(node.min_length, node.max_length)) node.types &= ~unsigned{kString};
  if (empty(node.min_items, node.max_items)) node.types &= ~unsigned{kArray};
  if (empty(node.min_properties, node.max_properties)) node.types &= ~unsigned{kObject};
  if (node.types == 0) node.unsatisfiable = true;
  return node;
}

}  // namespace moxie::grammar
