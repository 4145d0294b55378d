// Conversations and messages from and to JSON, field by field.
#include <nlohmann/json.hpp>
#include <set>

#include "core/json_text.h"
#include "text/harmony.h"
#include "text/harmony_json.h"

namespace moxie::harmony {
namespace {

using Json = nlohmann::ordered_json;

// The shape of a JSON text, found without parsing it: nlohmann's dump recurses, and its ordered
// objects look up every new key in a list.
struct JsonShape {
  int deepest = 0;
  int most_members = 0;  // of one object
};

JsonShape shape_of(std::string_view text) {
  JsonShape shape;
  std::vector<int> num_members;  // by depth
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      num_members.push_back(0);
      shape.deepest = std::max(shape.deepest, static_cast<int>(num_members.size()));
      if (shape.deepest > kMaxJsonDepth) return shape;
    } else if (c == ':' && !num_members.empty()) {
      shape.most_members = std::max(shape.most_members, ++num_members.back());
    } else if ((c == ']' || c == '}') && !num_members.empty()) {
      num_members.pop_back();
    }
  }
  return shape;
}

// Reads the members of one object and remembers the first fault, so that the callers stay lists of
// fields.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fault("expected an object, found " + found(object_), "");
  }

  const Json* find(const char* key) const {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it == object_.end() ? nullptr : &*it;
  }

  // Absent and null give no value.
  std::optional<std::string> optional_string(const char* key) {
    const Json* value = find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return string_value(value, key);
  }

  std::string string(const char* key) { return string_value(find(key), key); }

  bool boolean(const char* key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_boolean()) {
      fault("expected true or false, found " + found(value), key);
      return false;
    }
    return value->get<bool>();
  }

  // The items of a list; none if the value is not a list.
  const Json* list(const char* key) {
    const Json* value = find(key);
    if (value == nullptr || !value->is_array()) {
      fault("expected a list, found " + found(value), key);
      return nullptr;
    }
    return value;
  }

  std::string at(std::string_view key) const { return where_ + "." + std::string(key); }

  void fault(std::string what, std::string_view key) {
    if (!error_) error_ = Error{std::move(what), key.empty() ? where_ : at(key), {}};
  }
  void fault(const Error& error) {
    if (!error_) error_ = error;
  }
  const std::optional<Error>& error() const { return error_; }

  static std::string found(const Json& value) { return value.type_name(); }
  static std::string found(const Json* value) { return value ? found(*value) : "nothing"; }

 private:
  std::string string_value(const Json* value, const char* key) {
    if (value == nullptr || !value->is_string()) {
      fault("expected a string, found " + found(value), key);
      return {};
    }
    return value->get<std::string>();
  }

  const Json& object_;
  std::string where_;
  std::optional<Error> error_;
};

Result<ToolNamespace> namespace_from_json(const Json& document, const std::string& where) {
  ObjectReader reader(document, where);
  ToolNamespace space;
  space.name = reader.string("name");
  space.description = reader.optional_string("description");
  if (const Json* tools = reader.list("tools")) {
    for (const Json& item : *tools) {
      ObjectReader tool_reader(item,
                               reader.at("tools") + "[" + std::to_string(space.tools.size()) + "]");
      ToolDescription tool;
      tool.name = tool_reader.string("name");
      tool.description = tool_reader.string("description");
      const Json* parameters = tool_reader.find("parameters");
      if (parameters != nullptr && !parameters->is_null()) {
        tool.parameters = json_text(*parameters);
      }
      if (tool_reader.error()) return fail(*tool_reader.error());
      space.tools.push_back(std::move(tool));
    }
  }
  if (reader.error()) return fail(*reader.error());
  return space;
}

std::optional<ToolNamespaces> namespaces_from_json(ObjectReader& reader) {
  const Json* tools = reader.find("tools");
  if (tools == nullptr || tools->is_null()) return std::nullopt;
  ToolNamespaces namespaces;
  if (!tools->is_object()) {
    reader.fault("expected an object of namespaces, found " + ObjectReader::found(*tools), "tools");
    return std::nullopt;
  }
  for (const auto& [key, value] : tools->items()) {
    auto space = namespace_from_json(value, reader.at("tools") + "." + key);
    if (!space) {
      reader.fault(space.error());
      return std::nullopt;
    }
    namespaces[key] = std::move(*space);
  }
  return namespaces;
}

SystemContent system_content_from_json(ObjectReader& reader) {
  SystemContent content;
  content.model_identity = reader.optional_string("model_identity");
  content.conversation_start_date = reader.optional_string("conversation_start_date");
  content.knowledge_cutoff = reader.optional_string("knowledge_cutoff");
  content.tools = namespaces_from_json(reader);
  if (const auto effort = reader.optional_string("reasoning_effort")) {
    if (*effort == "Low") {
      content.reasoning_effort = ReasoningEffort::kLow;
    } else if (*effort == "Medium") {
      content.reasoning_effort = ReasoningEffort::kMedium;
    } else if (*effort == "High") {
      content.reasoning_effort = ReasoningEffort::kHigh;
    } else {
      reader.fault("expected Low, Medium or High, found " + *effort, "reasoning_effort");
    }
  }
  const Json* channels = reader.find("channel_config");
  if (channels != nullptr && !channels->is_null()) {
    ObjectReader channel_reader(*channels, reader.at("channel_config"));
    ChannelConfig config;
    config.channel_required = channel_reader.boolean("channel_required");
    if (const Json* valid = channel_reader.list("valid_channels")) {
      for (const Json& name : *valid) {
        if (name.is_string()) {
          config.valid_channels.push_back(name.get<std::string>());
        } else {
          channel_reader.fault("expected strings, found " + ObjectReader::found(name),
                               "valid_channels");
        }
      }
    }
    if (channel_reader.error()) reader.fault(*channel_reader.error());
    content.channel_config = std::move(config);
  }
  return content;
}

Result<Content> content_from_json(const Json& document, const std::string& where) {
  ObjectReader reader(document, where);
  const std::string type = reader.string("type");
  Content content;
  if (type == "text") {
    content = TextContent{reader.string("text")};
  } else if (type == "system_content") {
    content = system_content_from_json(reader);
  } else if (type == "developer_content") {
    DeveloperContent developer;
    developer.instructions = reader.optional_string("instructions");
    developer.tools = namespaces_from_json(reader);
    content = std::move(developer);
  } else {
    reader.fault("expected text, system_content or developer_content, found " + type, "type");
  }
  if (reader.error()) return fail(*reader.error());
  return content;
}

Result<Message> message_at(const Json& document, const std::string& where) {
  ObjectReader reader(document, where);
  Message message;
  const std::string role = reader.string("role");
  if (const auto known = role_from_name(role)) {
    message.role = *known;
  } else {
    reader.fault("expected user, assistant, system, developer or tool, found " + role, "role");
  }
  message.name = reader.optional_string("name");
  message.channel = reader.optional_string("channel");
  message.recipient = reader.optional_string("recipient");
  message.content_type = reader.optional_string("content_type");
  const Json* contents = reader.find("content");
  if (contents != nullptr && contents->is_string()) {
    message.content.push_back(TextContent{contents->get<std::string>()});
  } else if (const Json* list = reader.list("content")) {
    for (const Json& item : *list) {
      auto content = content_from_json(
          item, reader.at("content") + "[" + std::to_string(message.content.size()) + "]");
      if (!content) return fail(content.error());
      message.content.push_back(std::move(*content));
    }
  }
  if (reader.error()) return fail(*reader.error());
  return message;
}

void set_if(Json& out, const char* key, const std::optional<std::string>& value) {
  if (value) out[key] = *value;
}

// Schemas that are not JSON are written as strings, so that a faulty tool stays visible.
Json parameters_to_json(const std::string& text) {
  auto schema = parse_json_bounded(text, "parameters");
  return schema ? std::move(**schema) : Json(text);
}

Json namespaces_to_json(const ToolNamespaces& namespaces) {
  Json out = Json::object();
  for (const auto& [key, space] : namespaces) {
    Json tools = Json::array();
    for (const ToolDescription& tool : space.tools) {
      Json item = {{"name", tool.name}, {"description", tool.description}};
      if (tool.parameters) item["parameters"] = parameters_to_json(*tool.parameters);
      tools.push_back(std::move(item));
    }
    Json value = {{"name", space.name}};
    set_if(value, "description", space.description);
    value["tools"] = std::move(tools);
    out[key] = std::move(value);
  }
  return out;
}

Json content_to_json(const Content& content) {
  if (const auto* text = std::get_if<TextContent>(&content)) {
    return {{"type", "text"}, {"text", text->text}};
  }
  Json out = Json::object();
  if (const auto* system = std::get_if<SystemContent>(&content)) {
    set_if(out, "model_identity", system->model_identity);
    if (system->reasoning_effort) {
      constexpr const char* kNames[] = {"Low", "Medium", "High"};
      out["reasoning_effort"] = kNames[static_cast<int>(*system->reasoning_effort)];
    }
    set_if(out, "conversation_start_date", system->conversation_start_date);
    set_if(out, "knowledge_cutoff", system->knowledge_cutoff);
    if (system->channel_config) {
      out["channel_config"] = {{"valid_channels", system->channel_config->valid_channels},
                               {"channel_required", system->channel_config->channel_required}};
    }
    if (system->tools) out["tools"] = namespaces_to_json(*system->tools);
    out["type"] = "system_content";
  } else {
    const auto& developer = std::get<DeveloperContent>(content);
    set_if(out, "instructions", developer.instructions);
    if (developer.tools) out["tools"] = namespaces_to_json(*developer.tools);
    out["type"] = "developer_content";
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<nlohmann::ordered_json>> parse_json_bounded(std::string_view text,
                                                                   const std::string& where) {
  const JsonShape shape = shape_of(text);
  if (shape.deepest > kMaxJsonDepth) {
    return fail("JSON nested deeper than " + std::to_string(kMaxJsonDepth), where);
  }
  if (shape.most_members > kMaxJsonMembers) {
    return fail("an object of " + std::to_string(shape.most_members) + " members, at most " +
                    std::to_string(kMaxJsonMembers) + " are read",
                where);
  }
  auto value = std::make_unique<Json>();
  try {
    *value = Json::parse(text);
  } catch (const nlohmann::json::exception& exception) {
    return fail(std::string("not JSON: ") + exception.what(), where);
  }
  return value;
}

Result<Conversation> conversation_from_json(const nlohmann::ordered_json& document) {
  ObjectReader reader(document, "conversation");
  Conversation conversation;
  if (const Json* messages = reader.list("messages")) {
    for (const Json& item : *messages) {
      auto message =
          message_at(item, "messages[" + std::to_string(conversation.messages.size()) + "]");
      if (!message) return fail(message.error());
      conversation.messages.push_back(std::move(*message));
    }
  }
  if (reader.error()) return fail(*reader.error());
  return conversation;
}

Result<Conversation> read_conversation(std::string_view text) {
  const auto document = parse_json_bounded(text, "conversation");
  if (!document) return fail(document.error());
  return conversation_from_json(**document);
}

Result<Message> message_from_json(const nlohmann::ordered_json& document) {
  return message_at(document, "message");
}

nlohmann::ordered_json message_to_json(const Message& message) {
  Json out = {{"role", role_name(message.role)}};
  out["name"] = message.name ? Json(*message.name) : Json();
  Json contents = Json::array();
  for (const Content& content : message.content) contents.push_back(content_to_json(content));
  out["content"] = std::move(contents);
  set_if(out, "channel", message.channel);
  set_if(out, "recipient", message.recipient);
  set_if(out, "content_type", message.content_type);
  return out;
}

std::string conversation_to_json(const Conversation& conversation) {
  Json messages = Json::array();
  for (const Message& message : conversation.messages) messages.push_back(message_to_json(message));
  const Json out = {{"messages", std::move(messages)}};
  return json_text(out);
}

}  // namespace moxie::harmony
