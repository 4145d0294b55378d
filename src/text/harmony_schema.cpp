// JSON schemas as the TypeScript-like text that the model was trained to read, byte for byte as
// openai-harmony 0.0.8 writes it, oddities included (a described object that is a property prints
// its description twice; lines of a description are not prefixed again).
//
// The keywords it knows: oneOf, type (also as a list), properties, required, items, enum, default,
// nullable, title, description, examples. All others ($ref, anyOf, allOf, const) give `any`.
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/harmony.h"
#include "text/harmony_json.h"

namespace moxie::harmony {
namespace {

using Json = nlohmann::ordered_json;

const Json* member(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(key);
  return it == schema.end() ? nullptr : &*it;
}

const Json* array_member(const Json& schema, const char* key) {
  const Json* value = member(schema, key);
  return value != nullptr && value->is_array() ? value : nullptr;
}

const std::string* string_member(const Json& schema, const char* key) {
  const Json* value = member(schema, key);
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

bool is_true(const Json* value) {
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

bool has_enum(const Json& schema) {
  const Json* values = array_member(schema, "enum");
  return values != nullptr && !values->empty();
}

void append_integer(int value, std::string* out) {
  std::array<char, 16> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  out->append(buffer.data(), end);
}

// The shortest digits that read back as the same double, in ryu's layout: plain for a decimal point
// up to 16 places right or 5 left of the first digit, else an exponent without plus or padding.
void append_double(double value, std::string* out) {
  if (value == 0) {
    *out += std::signbit(value) ? "-0.0" : "0.0";
    return;
  }
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  if (text.front() == '-') {
    *out += '-';
    text.remove_prefix(1);
  }
  const size_t e_at = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e_at > 2) digits += text.substr(2, e_at - 2);
  std::string_view exponent_text = text.substr(e_at + 1);
  if (exponent_text.front() == '+') exponent_text.remove_prefix(1);
  int exponent = 0;
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);

  const int num_digits = static_cast<int>(digits.size());
  const int point = exponent + 1;  // digits before the decimal point; may be 0 or less
  if (point >= num_digits && point <= 16) {
    *out += digits;
    out->append(static_cast<size_t>(point - num_digits), '0');
    *out += ".0";
  } else if (point > 0 && point <= 16) {
    out->append(digits, 0, static_cast<size_t>(point));
    *out += '.';
    out->append(digits, static_cast<size_t>(point));
  } else if (point > -5 && point <= 0) {
    *out += "0.";
    out->append(static_cast<size_t>(-point), '0');
    *out += digits;
  } else {
    *out += digits[0];
    if (num_digits > 1) {
      *out += '.';
      out->append(digits, 1);
    }
    *out += 'e';
    append_integer(exponent, out);
  }
}

void append_quoted(std::string_view text, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += "\\u00";
          *out += kHex[static_cast<unsigned char>(c) >> 4];
          *out += kHex[static_cast<unsigned char>(c) & 15];
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

// Compact JSON. Depth is bounded by parse_json_bounded.
void append_compact(const Json& value, std::string* out) {
  switch (value.type()) {
    case Json::value_t::string:
      append_quoted(value.get_ref<const std::string&>(), out);
      break;
    case Json::value_t::number_float:
      append_double(value.get<double>(), out);
      break;
    case Json::value_t::array: {
      *out += '[';
      bool first = true;
      for (const Json& item : value) {
        if (!first) *out += ',';
        first = false;
        append_compact(item, out);
      }
      *out += ']';
      break;
    }
    case Json::value_t::object: {
      *out += '{';
      bool first = true;
      for (const auto& [key, item] : value.items()) {
        if (!first) *out += ',';
        first = false;
        append_quoted(key, out);
        *out += ':';
        append_compact(item, out);
      }
      *out += '}';
      break;
    }
    default:
      *out += value.dump();  // null, booleans, integers
  }
}

// "default: X". String defaults are in raw double quotes, those of an enum bare (or as JSON, in the
// variants of a oneOf that is no property); everything else is JSON.
enum class EnumDefault { kBare, kJson };
std::string default_comment(const Json& value, const Json& schema, EnumDefault enum_default) {
  std::string out = "default: ";
  const std::string* text = value.get_ptr<const std::string*>();
  if (text != nullptr && !has_enum(schema)) {
    out += '"' + *text + '"';
  } else if (text != nullptr && enum_default == EnumDefault::kBare) {
    out += *text;
  } else {
    append_compact(value, &out);
  }
  return out;
}

class SchemaWriter {
 public:
  // The type text of `schema`; its lines start with `indent`.
  std::string type_of(const Json& schema, const std::string& indent) {
    if (const Json* variants = array_member(schema, "oneOf")) return union_of(*variants, indent);
    if (const Json* types = array_member(schema, "type")) {
      std::string joined;
      bool any = false;
      for (const Json& type : *types) {
        const auto* name = type.get_ptr<const std::string*>();
        if (name == nullptr) continue;
        if (any) joined += " | ";
        any = true;
        joined += *name == "integer" ? "number" : *name;
      }
      if (any) return joined;
    }
    const std::string* type = string_member(schema, "type");
    if (type == nullptr) return "any";
    if (*type == "object") return object_type(schema, indent);
    if (*type == "string") return string_type(schema);
    if (*type == "number" || *type == "integer") return "number";
    if (*type == "boolean") return "boolean";
    if (*type == "array") {
      const Json* items = member(schema, "items");
      return items == nullptr ? "Array<any>" : type_of(*items, indent) + "[]";
    }
    return "any";
  }

 private:
  static std::string string_type(const Json& schema) {
    std::string joined;
    if (const Json* values = array_member(schema, "enum")) {
      for (const Json& value : *values) {
        const auto* text = value.get_ptr<const std::string*>();
        if (text == nullptr) continue;
        if (!joined.empty()) joined += " | ";
        joined += '"' + *text + '"';
      }
    }
    return joined.empty() ? "string" : joined;
  }

  // A type text that contains "null" anywhere, even in a name, is left alone.
  std::string nullable_type(const Json& schema, const std::string& indent) {
    std::string type = type_of(schema, indent);
    if (is_true(member(schema, "nullable")) && type.find("null") == std::string::npos) {
      type += " | null";
    }
    return type;
  }

  std::string union_of(const Json& variants, const std::string& indent) {
    std::string out;
    for (const Json& variant : variants) {
      out += "\n" + indent + " | " + nullable_type(variant, indent + "   ");
      const std::string* description = string_member(variant, "description");
      const Json* value = member(variant, "default");
      if (description != nullptr || value != nullptr) out += " // ";
      if (description != nullptr) out += *description;
      if (description != nullptr && value != nullptr) out += ' ';
      if (value != nullptr) out += default_comment(*value, variant, EnumDefault::kJson);
    }
    return out;
  }

  std::string object_type(const Json& schema, const std::string& indent) {
    std::string out;
    if (const std::string* description = string_member(schema, "description")) {
      out += indent + "// " + *description + "\n";
    }
    out += "{\n";
    const Json* properties = member(schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      const Json* required = array_member(schema, "required");
      for (const auto& [key, property] : properties->items()) {
        out += property_text(key, property, is_required(required, key), indent);
      }
    }
    return out + indent + "}";
  }

  static bool is_required(const Json* required, const std::string& key) {
    if (required == nullptr) return false;
    for (const Json& name : *required) {
      if (name.is_string() && name.get_ref<const std::string&>() == key) return true;
    }
    return false;
  }

  std::string property_text(const std::string& key, const Json& property, bool required,
                            const std::string& indent) {
    std::string out;
    const std::string comment = indent + "// ";
    if (const std::string* title = string_member(property, "title")) {
      out += comment + *title + "\n" + indent + "//\n";
    }
    const bool has_one_of = member(property, "oneOf") != nullptr;
    const std::string* description = string_member(property, "description");
    if (!has_one_of && description != nullptr) out += comment + *description + "\n";
    if (const Json* examples = array_member(property, "examples"); examples && !examples->empty()) {
      out += comment + "Examples:\n";
      for (const Json& example : *examples) {
        if (const auto* text = example.get_ptr<const std::string*>()) {
          out += comment + "- \"" + *text + "\"\n";
        }
      }
    }
    const std::string name = indent + key + (required ? ":" : "?:");
    if (const Json* variants = array_member(property, "oneOf")) {
      return out + property_union(name, property, *variants, indent);
    }
    out += name + " " + nullable_type(property, indent + "    ") + ",";
    const Json* value = member(property, "default");
    if (!has_one_of && value != nullptr) {
      out += " // " + default_comment(*value, property, EnumDefault::kBare);
    }
    return out + "\n";
  }

  // A property of several variants: comments above, then a line for each. The property's
  // description is left out where the first variant repeats it, and a variant's where it repeats
  // the property's; the first variant's also where the property's stands above.
  std::string property_union(const std::string& name, const Json& property, const Json& variants,
                             const std::string& indent) {
    std::string out;
    const std::string* description = string_member(property, "description");
    const std::string* first =
        variants.empty() ? nullptr : string_member(variants.front(), "description");
    const bool above = description != nullptr && (first == nullptr || *first != *description);
    if (above) out += indent + "// " + *description + "\n";
    if (const Json* value = member(property, "default")) {
      out += indent + "// " + default_comment(*value, property, EnumDefault::kBare) + "\n";
    }
    out += name + "\n";
    bool is_first = true;
    for (const Json& variant : variants) {
      out += indent + " | " + nullable_type(variant, indent + "   ");
      const std::string* own = string_member(variant, "description");
      const bool repeats = own != nullptr && description != nullptr && *own == *description;
      if ((is_first && above) || repeats) own = nullptr;
      is_first = false;
      const Json* value = member(variant, "default");
      if (own != nullptr || value != nullptr) out += " // ";
      if (own != nullptr) out += *own;
      if (own != nullptr && value != nullptr) out += ' ';
      if (value != nullptr) out += default_comment(*value, variant, EnumDefault::kBare);
      out += '\n';
    }
    return out + indent + ",\n";
  }
};

// Lines end at \n, which takes one \r before it along; a last empty line is none.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    if (newline != std::string_view::npos && line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    if (newline == std::string_view::npos) break;
    text.remove_prefix(newline + 1);
  }
  return lines;
}

Result<std::string> namespace_text(const ToolNamespace& space) {
  std::string out = "## " + space.name + "\n";
  const bool has_tools = !space.tools.empty();
  if (space.description) {
    for (const std::string_view line : lines_of(*space.description)) {
      out += has_tools ? "\n// " : "\n";
      out += line;
    }
  }
  if (!has_tools) return out;
  out += "\nnamespace " + space.name + " {\n";
  for (const ToolDescription& tool : space.tools) {
    for (const std::string_view line : lines_of(tool.description)) {
      out += "\n// ";
      out += line;
    }
    out += "\ntype " + tool.name + " = (";
    if (tool.parameters) {
      const auto schema = parse_json_bounded(*tool.parameters, "parameters of tool " + tool.name);
      if (!schema) return fail(schema.error());
      out += "_: " + SchemaWriter().type_of(**schema, "");
    }
    out += ") => any;\n";
  }
  return out + "\n} // namespace " + space.name;
}

}  // namespace

Result<std::string> render_tools(const ToolNamespaces& namespaces) {
  std::string out = "# Tools";
  for (const auto& [key, space] : namespaces) {
    const auto text = namespace_text(space);
    if (!text) return fail(text.error());
    out += "\n\n" + *text;
  }
  return out;
}

}  // namespace moxie::harmony
