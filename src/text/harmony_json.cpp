// The documents of `moxie harmony render` and `moxie harmony parse`.
#include "text/harmony_json.h"

#include <nlohmann/json.hpp>

#include "text/bpe.h"
#include "text/utf8.h"

namespace moxie::harmony {
namespace {

using Json = nlohmann::ordered_json;

// ASCII only: readers that split lines at U+2028 are common.
std::string dump(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string error_line(const Error& error) { return dump(Json{{"error", error.message()}}); }

const Json* member(const Json& document, const char* key) {
  const auto it = document.find(key);
  return it == document.end() || it->is_null() ? nullptr : &*it;
}

Result<bool> optional_bool(const Json& document, const char* key, bool otherwise) {
  const Json* value = member(document, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return fail(std::string("expected true or false, found ") + value->type_name(), key);
  }
  return value->get<bool>();
}

Result<Json> render_document(std::string_view line, const Tokenizer& tokenizer,
                             const LineDefaults& defaults) {
  const auto parsed = parse_json_bounded(line, "document");
  if (!parsed) return fail(parsed.error());
  const Json& document = **parsed;
  if (!document.is_object()) return fail("expected an object", "document");
  const Json* body = member(document, "conversation");
  const auto conversation = conversation_from_json(body != nullptr ? *body : document);
  if (!conversation) return fail(conversation.error());

  RenderMode mode = defaults.mode;
  if (const Json* name = member(document, "mode")) {
    if (!name->is_string()) return fail("expected a string", "mode");
    const auto named = render_mode_from_name(name->get_ref<const std::string&>());
    if (!named) return fail(named.error());
    mode = *named;
  }
  RenderConfig config;
  if (const Json* given = member(document, "config")) {
    if (!given->is_object()) return fail("expected an object", "config");
    const auto drop = optional_bool(*given, "auto_drop_analysis", config.auto_drop_analysis);
    if (!drop) return fail(drop.error());
    config.auto_drop_analysis = *drop;
  }
  const auto ids = render(*conversation, mode, config, tokenizer);
  if (!ids) return fail(ids.error());
  const auto text = tokenizer.decode(*ids);
  if (!text) return fail(text.error());
  return Json{{"ids", *ids}, {"text", repaired_utf8(*text)}};
}

// Numbers beyond the range of ids become an id without a token.
Result<std::vector<int32_t>> ids_from_json(const Json& document) {
  const Json* list = member(document, "ids");
  if (list == nullptr || !list->is_array()) return fail("expected a list of integers", "ids");
  std::vector<int32_t> ids;
  ids.reserve(list->size());
  for (const Json& item : *list) {
    if (!item.is_number_integer()) {
      return fail(std::string("expected integers, found ") + item.type_name(),
                  "ids[" + std::to_string(ids.size()) + "]");
    }
    const bool fits = item.is_number_unsigned()
                          ? item.get<uint64_t>() <= uint64_t{INT32_MAX}
                          : item.get<int64_t>() >= 0 && item.get<int64_t>() <= INT32_MAX;
    ids.push_back(fits ? static_cast<int32_t>(item.get<int64_t>()) : -1);
  }
  return ids;
}

template <typename T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json state_of(const Parser& parser) {
  const auto role = parser.current_role();
  return Json::array(
      {role ? Json(role_name(*role)) : Json(), json_or_null(parser.current_channel()),
       json_or_null(parser.current_recipient()), json_or_null(parser.current_content_type()),
       json_or_null(parser.last_content_delta()), state_name(parser.state())});
}

struct ParseRun {
  Parser parser;
  Json stream = Json::array();
};

ParseRun run_parser(const std::vector<int32_t>& ids, const Tokenizer& tokenizer,
                    const ControlTokens& control, ParserOptions options, bool stream) {
  ParseRun run{Parser(tokenizer, control, std::move(options))};
  for (const int32_t id : ids) {
    run.parser.process(id);
    if (stream) run.stream.push_back(state_of(run.parser));
  }
  run.parser.finish();
  return run;
}

// Whether the first messages are those that the package had finished when it refused.
bool keeps_finished(const Parser& parser, const Parser& literal) {
  const size_t num_finished = literal.refused_after().value_or(0);
  if (parser.messages().size() < num_finished) return false;
  for (size_t i = 0; i < num_finished; ++i) {
    if (parser.messages()[i].message != literal.messages()[i].message) return false;
  }
  return true;
}

Result<Json> parse_document(std::string_view line, const Tokenizer& tokenizer,
                            const LineDefaults& defaults) {
  const auto parsed = parse_json_bounded(line, "document");
  if (!parsed) return fail(parsed.error());
  const Json& document = **parsed;
  if (!document.is_object()) return fail("expected an object", "document");
  const auto ids = ids_from_json(document);
  if (!ids) return fail(ids.error());
  const auto control = ControlTokens::find(tokenizer);
  if (!control) return fail(control.error());

  ParserOptions options;
  if (const auto role = document.find("role"); role == document.end()) {
    if (!ids->empty() && ids->front() == control->start) options.role.reset();
  } else if (role->is_null()) {
    options.role.reset();
  } else {
    if (role->is_string()) options.role = role_from_name(role->get_ref<const std::string&>());
    if (!role->is_string() || !options.role) {
      return fail("expected user, assistant, system, developer, tool or null", "role");
    }
  }
  const auto strict = optional_bool(document, "strict", true);
  if (!strict) return fail(strict.error());
  options.strict = *strict;
  const Json* asked = member(document, "stream");
  const bool stream =
      asked != nullptr && asked->is_boolean() ? asked->get<bool>() : defaults.stream;

  ParseRun run = run_parser(*ids, tokenizer, *control, options, stream);
  if (member(document, "strict") != nullptr) {
    options.repair_answers = false;
    ParseRun literal = run_parser(*ids, tokenizer, *control, options, stream);
    if (!keeps_finished(run.parser, literal.parser)) run = std::move(literal);
  }

  Json messages = Json::array();
  Json raw = Json::array();
  for (const ParsedMessage& message : run.parser.messages()) {
    messages.push_back(message_to_json(message.message));
    raw.push_back(repaired_utf8(message.raw));
  }
  Json out{{"messages", std::move(messages)},
           {"warnings", run.parser.warnings()},
           {"raw", std::move(raw)}};
  if (!run.parser.trailing_raw().empty()) {
    out["raw_rest"] = repaired_utf8(run.parser.trailing_raw());
  }
  if (stream) out["stream"] = std::move(run.stream);
  return out;
}

}  // namespace

Result<RenderMode> render_mode_from_name(std::string_view name) {
  if (name == "completion") return RenderMode::kCompletion;
  if (name == "training") return RenderMode::kTraining;
  if (name == "conversation") return RenderMode::kConversation;
  return fail("expected completion, training or conversation, found " + std::string(name), "mode");
}

std::string render_line(std::string_view line, const Tokenizer& tokenizer,
                        const LineDefaults& defaults) {
  const auto answer = render_document(line, tokenizer, defaults);
  return answer ? dump(*answer) : error_line(answer.error());
}

std::string parse_line(std::string_view line, const Tokenizer& tokenizer,
                       const LineDefaults& defaults) {
  const auto answer = parse_document(line, tokenizer, defaults);
  return answer ? dump(*answer) : error_line(answer.error());
}

}  // namespace moxie::harmony
