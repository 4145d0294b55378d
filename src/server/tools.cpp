// Tools, tool_choice, and the fields that bind an answer's text.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/structured_fields.h"

namespace moxie {
namespace {

constexpr size_t kMaxTools = 512, kMaxNameBytes = 128, kMaxTextBytes = 1 << 20;
constexpr size_t kMaxStructuredChoices = 2000;

// An answer can have one such constraint.
ApiStatus take(StructuredOutput* out, StructuredOutput::Kind kind, const std::string& param) {
  if (out->kind != StructuredOutput::Kind::kNone) {
    return invalid(param,
                   fmt::format("'{}' and '{}' both bind the answer; give one.", out->param, param),
                   "invalid_value");
  }
  out->kind = kind;
  out->param = param;
  return {};
}

// A tool that OpenAI's platform runs, not the client. Agents offer some to every server.
bool is_hosted(const Json& tool) {
  constexpr std::array<std::string_view, 9> kTypes = {
      "web_search",       "web_search_2025_08_26",         "web_search_preview", "file_search",
      "code_interpreter", "web_search_preview_2025_03_11", "image_generation",   "mcp",
      "tool_search"};
  const Json* type = find_member(tool, "type");
  return type != nullptr && type->is_string() &&
         std::find(kTypes.begin(), kTypes.end(), type->get_ref<const std::string&>()) !=
             kTypes.end();
}

Api<FunctionTool> read_tool(const Json& value, const std::string& param) {
  if (!value.is_object()) return wrong_type(param, "an object", value);
  const auto type = required_string(value, "type", param);
  if (!type) return tl::unexpected(type.error());
  if (*type != "function") {
    return invalid(param + ".type",
                   fmt::format("Invalid value for '{}.type': only 'function' is supported.", param),
                   "invalid_value");
  }
  // Chat nests the function; responses lay it flat.
  const Json* nested = find_member(value, "function");
  const Json& function = nested != nullptr ? *nested : value;
  const std::string at = nested != nullptr ? param + ".function" : param;
  if (!function.is_object()) return wrong_type(at, "an object", function);
  if (nested != nullptr) {
    auto status = known_members(value, param, {"type", "function"});
    if (!status) return tl::unexpected(status.error());
  }
  FunctionTool tool;
  auto name = required_string(function, "name", at);
  if (!name) return tl::unexpected(name.error());
  if (auto status = check_function_name(*name, at + ".name"); !status) {
    return tl::unexpected(status.error());
  }
  tool.description.name = std::move(*name);
  for (auto it = function.begin(); it != function.end(); ++it) {
    const std::string& key = it.key();
    const std::string path = fmt::format("{}.{}", at, key);
    if (key == "name" || key == "type" || it->is_null()) continue;
    if (key == "description") {
      auto text = read_string(*it, path);
      if (!text) return tl::unexpected(text.error());
      tool.description.description = std::move(*text);
    } else if (key == "parameters") {
      if (!it->is_object()) return wrong_type(path, "an object (a JSON Schema)", *it);
      tool.description.parameters = to_text(*it);
    } else if (key == "strict") {
      auto flag = read_bool(*it, path);
      if (!flag) return tl::unexpected(flag.error());
      tool.strict = *flag;
    } else {
      return unknown_field(path, {});
    }
  }
  return tool;
}

}  // namespace

ApiStatus check_function_name(const std::string& name, const std::string& param) {
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
  };
  if (!name.empty() && name.size() <= kMaxNameBytes &&
      std::all_of(name.begin(), name.end(), is_plain)) {
    return {};
  }
  return invalid(param,
                 fmt::format("Invalid '{}': expected 1 to {} of the characters a-z, A-Z, 0-9, '_', "
                             "'-' and '.'.",
                             param, kMaxNameBytes),
                 "invalid_value");
}

ApiStatus read_tools(const Json& value, const std::string& param, std::vector<FunctionTool>* tools,
                     std::vector<std::string>* left_out) {
  if (!value.is_array()) return wrong_type(param, "an array of tools", value);
  if (value.size() > kMaxTools) {
    return invalid(param, fmt::format("Invalid '{}': at most {} tools.", param, kMaxTools),
                   "array_above_max_length");
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", param, i);
    if (left_out != nullptr && is_hosted(value[i])) {
      left_out->push_back(fmt::format("{}: there is no '{}' here, and the model is not told of it",
                                      at, value[i]["type"].get<std::string>()));
      continue;
    }
    auto tool = read_tool(value[i], at);
    if (!tool) return tl::unexpected(tool.error());
    const auto same = [&](const FunctionTool& other) {
      return other.description.name == tool->description.name;
    };
    if (std::any_of(tools->begin(), tools->end(), same)) {
      return invalid(at, fmt::format("Two tools are named '{}'.", tool->description.name),
                     "invalid_value");
    }
    tools->push_back(std::move(*tool));
  }
  return {};
}

namespace {

// OpenAI's {"type": "allowed_tools", "mode", "tools"}; chat nests what responses lay flat.
Api<ToolChoice> read_allowed_tools(const Json& value) {
  const Json* nested = find_member(value, "allowed_tools");
  const std::string at = nested != nullptr ? "tool_choice.allowed_tools" : "tool_choice";
  const Json& choice = nested != nullptr ? *nested : value;
  if (!choice.is_object()) return wrong_type(at, "an object", choice);
  const auto mode = required_string(choice, "mode", at);
  if (!mode) return tl::unexpected(mode.error());
  if (*mode != "auto" && *mode != "required") {
    return invalid(at + ".mode",
                   fmt::format("Invalid value for '{}.mode': expected 'auto' or 'required'.", at),
                   "invalid_value");
  }
  const Json* tools = find_member(choice, "tools");
  if (tools == nullptr) return missing(at + ".tools");
  std::vector<FunctionTool> read;
  if (auto status = read_tools(*tools, at + ".tools", &read); !status) {
    return tl::unexpected(status.error());
  }
  if (read.empty()) {
    return invalid(at + ".tools", fmt::format("Invalid '{}.tools': empty array.", at),
                   "empty_array");
  }
  ToolChoice allowed;
  if (*mode == "required") allowed.mode = ToolChoice::Mode::kRequired;
  for (FunctionTool& tool : read) allowed.allowed.push_back(std::move(tool.description.name));
  return allowed;
}

}  // namespace

Api<ToolChoice> read_tool_choice(const Json& value) {
  using Mode = ToolChoice::Mode;
  const Json* type = find_member(value, "type");
  if (value == "auto") return ToolChoice{};
  if (value == "none") return ToolChoice{.mode = Mode::kNone, .name = {}, .allowed = {}};
  if (value == "required") return ToolChoice{.mode = Mode::kRequired, .name = {}, .allowed = {}};
  if (type != nullptr && *type == "allowed_tools") return read_allowed_tools(value);
  if (type != nullptr && *type == "function") {
    const Json* function = find_member(value, "function");
    auto name = function != nullptr ? required_string(*function, "name", "tool_choice.function")
                                    : required_string(value, "name", "tool_choice");
    if (!name) return tl::unexpected(name.error());
    return ToolChoice{.mode = Mode::kNamed, .name = std::move(*name), .allowed = {}};
  }
  if (!value.is_string() && !value.is_object()) {
    return wrong_type("tool_choice", "a string or an object", value);
  }
  return invalid("tool_choice",
                 "Invalid value for 'tool_choice': expected 'none', 'auto', 'required' or "
                 "{\"type\": \"function\", \"function\": {\"name\": ...}}.",
                 "invalid_value");
}

ApiStatus check_tool_choice(const ChatRequest& request) {
  using Mode = ToolChoice::Mode;
  const ToolChoice& choice = request.tool_choice;
  const bool must_call = choice.mode == Mode::kRequired || choice.mode == Mode::kNamed;
  if (must_call && request.tools.empty()) {
    return invalid("tool_choice", "'tool_choice' asks for a call, but 'tools' is empty.",
                   "invalid_value");
  }
  std::vector<std::string> names = choice.allowed;
  if (choice.mode == Mode::kNamed) names.push_back(choice.name);
  const auto is_tool = [&](const std::string& name) {
    return std::any_of(request.tools.begin(), request.tools.end(),
                       [&](const FunctionTool& tool) { return tool.description.name == name; });
  };
  if (std::all_of(names.begin(), names.end(), is_tool)) return {};
  return invalid("tool_choice", "'tool_choice' names a function that 'tools' does not have.",
                 "invalid_value");
}

namespace {

// {"name", "description", "schema", "strict"}; `beside`: one more member that is allowed.
ApiStatus read_schema_format(const Json& format, const std::string& param, std::string_view beside,
                             StructuredOutput* out) {
  if (!format.is_object()) return wrong_type(param, "an object", format);
  // Whether strict or not, what cannot be enforced is refused.
  auto status = known_members(format, param, {"name", "description", "schema", "strict", beside});
  if (!status) return status;
  const Json* schema = find_member(format, "schema");
  if (schema == nullptr) return missing(param + ".schema");
  if (!schema->is_object() && !schema->is_boolean()) {
    return wrong_type(param + ".schema", "an object (a JSON Schema)", *schema);
  }
  if (const Json* name = find_member(format, "name")) {
    auto text = read_string(*name, param + ".name");
    if (!text) return tl::unexpected(text.error());
    if (status = check_function_name(*text, param + ".name"); !status) return status;
    out->name = std::move(*text);
  }
  out->text = to_text(*schema);
  return take(out, StructuredOutput::Kind::kJsonSchema, param + ".schema");
}

}  // namespace

ApiStatus read_response_format(const Json& value, const std::string& param, StructuredOutput* out) {
  if (!value.is_object()) return wrong_type(param, "an object", value);
  const auto type = required_string(value, "type", param);
  if (!type) return tl::unexpected(type.error());
  if (*type == "text") return known_members(value, param, {"type"});
  // llama.cpp's form of a schema lies beside json_object.
  const bool is_object = *type == "json_object";
  if (is_object && find_member(value, "schema") == nullptr) {
    if (auto status = known_members(value, param, {"type"}); !status) return status;
    return take(out, StructuredOutput::Kind::kJsonObject, param);
  }
  if (!is_object && *type != "json_schema") {
    return invalid(param + ".type",
                   fmt::format("Invalid value for '{}.type': expected 'text', 'json_object' or "
                               "'json_schema'.",
                               param),
                   "invalid_value");
  }
  // Chat nests the schema's name, description and text; responses lay them flat.
  const Json* nested = is_object ? nullptr : find_member(value, "json_schema");
  if (nested == nullptr) return read_schema_format(value, param, "type", out);
  if (auto status = known_members(value, param, {"type", "json_schema"}); !status) return status;
  return read_schema_format(*nested, param + ".json_schema", {}, out);
}

ApiStatus read_structured(const std::string& kind, const Json& value, const std::string& param,
                          StructuredOutput* out) {
  using Kind = StructuredOutput::Kind;
  if (kind == "json_object") {
    auto flag = read_bool(value, param);
    if (!flag) return tl::unexpected(flag.error());
    return *flag ? take(out, Kind::kJsonObject, param) : ApiStatus{};
  }
  if (kind == "json") {
    if (!value.is_object() && !value.is_string() && !value.is_boolean()) {
      return wrong_type(param, "a JSON Schema, as an object or as text", value);
    }
    out->text = value.is_string() ? value.get<std::string>() : to_text(value);
    return take(out, Kind::kJsonSchema, param);
  }
  if (kind == "choice") {
    if (!value.is_array() || value.empty() || value.size() > kMaxStructuredChoices) {
      return invalid(
          param,
          fmt::format("Invalid '{}': expected 1 to {} strings.", param, kMaxStructuredChoices),
          "invalid_value");
    }
    for (size_t i = 0; i < value.size(); ++i) {
      auto text = read_string(value[i], fmt::format("{}[{}]", param, i));
      if (!text) return tl::unexpected(text.error());
      out->choices.push_back(std::move(*text));
    }
    return take(out, Kind::kChoice, param);
  }
  auto text = read_string(value, param);
  if (!text) return tl::unexpected(text.error());
  if (text->size() > kMaxTextBytes) {
    return invalid(param, fmt::format("Invalid '{}': more than {} bytes.", param, kMaxTextBytes),
                   "string_above_max_length");
  }
  out->text = std::move(*text);
  return take(out, kind == "regex" ? Kind::kRegex : Kind::kGrammar, param);
}

ApiStatus read_structured_outputs(const Json& value, StructuredOutput* out) {
  using Words = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Words, 3> kRefusedKinds = {
      Words{"structural_tag", "use tools, or one of json, regex, choice and grammar"},
      Words{"whitespace_pattern", "use disable_any_whitespace for JSON without white space"},
      Words{"disable_additional_properties",
            "declared objects are closed unless the schema opens them"}};
  if (!value.is_object()) return wrong_type("structured_outputs", "an object", value);
  for (auto it = value.begin(); it != value.end(); ++it) {
    const std::string& key = it.key();
    const std::string at = "structured_outputs." + key;
    if (it->is_null()) continue;
    if (key == "backend" || key == "disable_fallback") continue;  // one backend, no fall-back
    if (key == "disable_any_whitespace") {
      auto flag = read_bool(*it, at);
      if (!flag) return tl::unexpected(flag.error());
      out->compact = *flag;
      continue;
    }
    if (key == "disable_additional_properties" && *it == false) continue;
    for (const auto& [name, instead] : kRefusedKinds) {
      if (key == name) {
        return unsupported(at, fmt::format("'{}' is not supported: {}", at, instead));
      }
    }
    if (key != "json" && key != "regex" && key != "choice" && key != "grammar" &&
        key != "json_object") {
      return unknown_field(at, {});
    }
    if (auto status = read_structured(key, *it, at, out); !status) return status;
  }
  return {};
}

}  // namespace moxie
