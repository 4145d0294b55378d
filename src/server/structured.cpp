// Structured output and bad words: from a request's fields to constraints of its choices.
#include <fmt/format.h>

#include <algorithm>

#include "server/bad_words.h"
#include "server/endpoints.h"

namespace moxie {
namespace {

class AnswerTokens final : public TokenConstraint {
 public:
  explicit AnswerTokens(std::unique_ptr<grammar::AnswerConstraint> answer)
      : answer_(std::move(answer)) {}
  bool fill_mask(std::span<uint32_t> mask) override {
    if (answer_->is_done()) return false;
    answer_->fill_mask(mask);
    return true;
  }
  Status accept(int32_t token) override {
    return answer_->is_done() ? Status{} : answer_->accept(token);
  }
  std::unique_ptr<TokenConstraint> fork() const override {
    return std::make_unique<AnswerTokens>(answer_->fork());
  }

 private:
  std::unique_ptr<grammar::AnswerConstraint> answer_;
};

std::optional<grammar::Source> source_of(const StructuredOutput& structured) {
  using From = StructuredOutput::Kind;
  using To = grammar::Source::Kind;
  grammar::Source source{
      .text = structured.text, .choices = structured.choices, .compact = structured.compact};
  switch (structured.kind) {
    case From::kNone:
      return std::nullopt;
    case From::kJsonObject:
      source.kind = To::kJsonObject;
      break;
    case From::kJsonSchema:
      source.kind = To::kJsonSchema;
      break;
    case From::kRegex:
      source.kind = To::kRegex;
      break;
    case From::kChoice:
      source.kind = To::kChoice;
      break;
    case From::kGrammar:
      source.kind = To::kEbnf;
      break;
  }
  return source;
}

grammar::AnswerSpec spec_of(const ChatRequest& chat) {
  using Mode = moxie::ToolChoice::Mode;
  grammar::AnswerSpec spec{.response = source_of(chat.structured),
                           .response_field = chat.structured.param};
  spec.tool_name = chat.tool_choice.name;
  switch (chat.tool_choice.mode) {
    case Mode::kNone:
      spec.tool_choice = grammar::ToolChoice::kNone;
      break;
    case Mode::kAuto:
      spec.tool_choice = grammar::ToolChoice::kAuto;
      break;
    case Mode::kRequired:
      spec.tool_choice = grammar::ToolChoice::kRequired;
      break;
    case Mode::kNamed:
      spec.tool_choice = grammar::ToolChoice::kNamed;
      break;
  }
  const auto& allowed = chat.tool_choice.allowed;
  for (const FunctionTool& tool : chat.tools) {
    const bool offered = allowed.empty() || std::find(allowed.begin(), allowed.end(),
                                                      tool.description.name) != allowed.end();
    if (!offered) continue;
    spec.tools.push_back({.name = tool.description.name,
                          .parameters = tool.description.parameters,
                          .strict = tool.strict});
  }
  return spec;
}

// Every fault is the client's: a schema that cannot be enforced, or that is not a schema.
tl::unexpected<ApiError> refused(const Error& error, const std::string& param) {
  return invalid(param, "This structured output cannot be enforced: " + error.message(),
                 "unsupported_schema");
}

using Constraints = std::vector<std::shared_ptr<TokenConstraint>>;

Api<Constraints> bound_answers(const ServedModel& model, const GenerationFields& request,
                               const ChatRequest* chat, size_t count,
                               std::vector<std::string>* warnings) {
  const bool binds = request.structured.kind != StructuredOutput::Kind::kNone;
  // With tool_choice none the model knows the tools but may not call them.
  const bool has_tools = chat != nullptr && !chat->tools.empty();
  Constraints list;
  if (!binds && !has_tools) return list;
  if (model.compiler == nullptr) {
    const auto binds_tools = [&] {
      return !chat->tool_choice.allowed.empty() ||
             (chat->tool_choice.mode != ToolChoice::Mode::kAuto &&
              chat->tool_choice.mode != ToolChoice::Mode::kNone);
    };
    if (!binds && !binds_tools()) return list;  // tools that are merely offered bind nothing
    return invalid(binds ? request.structured.param : "tool_choice",
                   "Structured output is not available in this build.", "unsupported_parameter");
  }
  const std::string param = binds ? request.structured.param : "tools";
  for (size_t i = 0; i < count; ++i) {
    std::vector<std::string> relaxed;
    auto answer = chat != nullptr
                      ? grammar::AnswerConstraint::create(*model.compiler, spec_of(*chat), &relaxed)
                      : grammar::AnswerConstraint::create_raw(
                            *model.compiler, *source_of(request.structured), param);
    if (!answer) return refused(answer.error(), param);
    if (*answer == nullptr) return list;
    if (!request.sampling.allowed_ids.empty()) {
      return invalid(
          "allowed_token_ids",
          fmt::format("'allowed_token_ids' and '{}' both bind the answer; give one.", param),
          "invalid_value");
    }
    list.push_back(std::make_shared<AnswerTokens>(std::move(*answer)));
    if (i == 0) *warnings = std::move(relaxed);
  }
  return list;
}

}  // namespace

size_t constraint_bytes(const GenerationFields& request) {
  size_t bytes = request.structured.text.size();
  for (const std::string& choice : request.structured.choices) bytes += choice.size();
  return bytes;
}

size_t constraint_bytes(const ChatRequest& request) {
  size_t bytes = constraint_bytes(static_cast<const GenerationFields&>(request));
  for (const FunctionTool& tool : request.tools)
    bytes += tool.description.parameters.value_or("").size();
  return bytes;
}

Api<std::vector<std::shared_ptr<TokenConstraint>>> make_constraints(
    const ServedModel& model, const GenerationFields& request, const ChatRequest* chat,
    size_t count, std::vector<std::string>* warnings) {
  auto list = bound_answers(model, request, chat, count, warnings);
  if (!list || request.bad_words.empty()) return list;
  if (!request.sampling.allowed_ids.empty()) {
    return invalid("bad_words", "'bad_words' and 'allowed_token_ids' cannot be combined.",
                   "invalid_value");
  }
  const auto words =
      std::make_shared<const BannedWords>(banned_words(*model.tokenizer, request.bad_words));
  list->resize(count);
  for (auto& constraint : *list) {
    constraint = std::make_shared<BadWords>(words, chat != nullptr ? &model.control : nullptr,
                                            std::move(constraint));
  }
  return list;
}

}  // namespace moxie
