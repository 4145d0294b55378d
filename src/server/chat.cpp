// /v1/chat/completions.
#include <fmt/format.h>

#include <optional>
#include <span>

#include "server/endpoints.h"

namespace moxie {
namespace {

// Fields of the request that both forms of the answer need.
struct ChatAnswer {
  std::string id = "chatcmpl-" + random_name(24), model;
  int64_t created = unix_time();
  TokenNames names;
  size_t n = 1;
  bool logprobs = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  bool include_reasoning = true, separate_reasoning = true, stream_reasoning = true;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int64_t num_prompt_tokens = 0;
  std::vector<int32_t> prompt_ids;  // with return_token_ids
};

std::string call_id() { return "call_" + random_name(24); }

Json stop_reason_of(const ChoiceEnd& end) {
  if (!end.stop_string.empty()) return end.stop_string;
  return end.stop_id >= 0 ? Json(end.stop_id) : Json();
}

Json logprobs_json(const TokenNames& names, const std::vector<ReplyToken>& tokens) {
  Json list = Json::array();
  for (const ReplyToken& token : tokens) list.push_back(chat_logprob(names, token));
  return {{"content", std::move(list)}, {"refusal", nullptr}};
}

// The names under which an answer has its reasoning.
std::span<const char* const> reasoning_names(ReasoningField field) {
  static constexpr const char* kNames[] = {"reasoning", "reasoning_content"};
  const std::span<const char* const> names(kNames);
  switch (field) {
    case ReasoningField::kReasoning:
      return names.first(1);
    case ReasoningField::kReasoningContent:
      return names.last(1);
    default:
      return names;
  }
}

// With separate_reasoning false: one text of reasoning and content, an empty line between them.
class JoinedText {
 public:
  /// The text that `text` adds.
  std::string add(ReplyPart part, const std::string& text) {
    if (text.empty()) return {};
    const bool changes = last_ && *last_ != part;
    last_ = part;
    return changes ? "\n\n" + text : text;
  }

 private:
  std::optional<ReplyPart> last_;
};

// Streams chunks. Text that all chunks share is made once.
class ChatStream final : public ReplyWriter {
 public:
  ChatStream(ExchangePtr exchange, ChatAnswer answer)
      : exchange_(std::move(exchange)), answer_(std::move(answer)), token_ids_(answer_.n) {
    held_.resize(answer_.n);
    joined_.resize(answer_.n);
    head_ = fmt::format(
        "data: {{\"id\":\"{}\",\"object\":\"chat.completion.chunk\",\"created\":{},"
        "\"model\":",
        answer_.id, answer_.created);
    append_json_string(answer_.model, &head_);
    head_ += ",\"choices\":[";
    num_tokens_.resize(answer_.n);
  }

  void begin() { exchange_->begin_stream({}); }

  void on_token(size_t choice, int32_t id) override {
    if (num_tokens_[choice]++ == 0) send_role(choice);
    if (answer_.return_token_ids) token_ids_[choice].push_back(id);
  }

  void on_delta(size_t choice, const Delta& delta) override {
    if (delta.part == ReplyPart::kReasoning) {
      if (!answer_.include_reasoning) return;
      held_[choice] += delta.text;
      if (answer_.stream_reasoning) send_reasoning(choice);
      return;
    }
    send_reasoning(choice);
    std::string text;
    switch (delta.part) {
      case ReplyPart::kReasoning:
        return;
      case ReplyPart::kContent:
        append_json_string(answer_.separate_reasoning
                               ? delta.text
                               : joined_[choice].add(ReplyPart::kContent, delta.text),
                           &text);
        chunk(choice, "{\"content\":" + text + "}",
              answer_.logprobs ? to_text(logprobs_json(answer_.names, delta.tokens)) : "null",
              "null");
        return;
      case ReplyPart::kToolName:
        append_json_string(delta.text, &text);
        chunk(choice,
              fmt::format("{{\"tool_calls\":[{{\"index\":{},\"id\":\"{}\",\"type\":\"function\","
                          "\"function\":{{\"name\":{},\"arguments\":\"\"}}}}]}}",
                          delta.call_idx, call_id(), text),
              "null", "null");
        return;
      case ReplyPart::kToolArguments:
        append_json_string(delta.text, &text);
        chunk(choice,
              fmt::format("{{\"tool_calls\":[{{\"index\":{},\"function\":{{\"arguments\":{}}}}}]}}",
                          delta.call_idx, text),
              "null", "null");
    }
  }

  void on_flush(size_t) override {
    if (!out_.empty()) exchange_->send(std::exchange(out_, {}));
  }

  void on_choice_end(size_t choice, const ReplyReader&, const ChoiceEnd& end) override {
    usage_.add(end, choice == 0);
    send_reasoning(choice);
    if (end.finish_reason == "error") {
      out_ += sse(error_json(end.error, ErrorForm::kOpenAi));
    } else {
      if (num_tokens_[choice] == 0) send_role(choice);
      chunk(choice, "{}", "null", "\"" + end.finish_reason + "\"", false,
            ",\"stop_reason\":" + to_text(stop_reason_of(end)) +
                (end.warnings.empty() ? "" : ",\"warnings\":" + to_text(Json(end.warnings))));
    }
    on_flush(choice);
  }

  void on_end() override {
    if (answer_.include_usage) {
      out_ += head_ + "],\"usage\":" + to_text(usage_.to_json()) + "}\n\n";
    }
    out_ += "data: [DONE]\n\n";
    exchange_->send(out_);
    exchange_->end_stream();
  }

 private:
  // With the first token, not before: clients that take the first chunk for the end of the prompt's
  // pass then measure that.
  void send_role(size_t choice) {
    chunk(choice, R"({"role":"assistant","content":""})", "null", "null", true);
  }
  // Sends the reasoning that is held.
  void send_reasoning(size_t choice) {
    const std::string reasoning = std::exchange(held_[choice], {});
    if (reasoning.empty()) return;
    std::string delta = "{";
    if (answer_.separate_reasoning) {
      std::string text;
      append_json_string(reasoning, &text);
      for (const char* name : reasoning_names(answer_.reasoning_field)) {
        delta += fmt::format("{}\"{}\":{}", delta.size() > 1 ? "," : "", name, text);
      }
    } else {
      delta += "\"content\":";
      append_json_string(joined_[choice].add(ReplyPart::kReasoning, reasoning), &delta);
    }
    chunk(choice, delta + "}", "null", "null");
  }
  void chunk(size_t choice, const std::string& delta, const std::string& logprobs,
             const std::string& finish, bool first = false, const std::string& more = {}) {
    out_ += fmt::format("{}{{\"index\":{},\"delta\":{},\"logprobs\":{},\"finish_reason\":{}{}",
                        head_, choice, delta, logprobs, finish, more);
    if (answer_.return_token_ids && !first) {
      out_ += ",\"token_ids\":" + to_text(Json(std::exchange(token_ids_[choice], {})));
    }
    out_ += "}]";
    if (answer_.return_token_ids && first) {
      out_ += ",\"prompt_token_ids\":" + to_text(Json(answer_.prompt_ids));
    }
    if (answer_.continuous_usage && !first) {
      out_ += fmt::format(
          ",\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{}}}",
          answer_.num_prompt_tokens, num_tokens_[choice],
          answer_.num_prompt_tokens + num_tokens_[choice]);
    } else if (answer_.include_usage) {
      out_ += ",\"usage\":null";
    }
    out_ += "}\n\n";
  }

  ExchangePtr exchange_;
  ChatAnswer answer_;
  std::string head_, out_;
  std::vector<std::string> held_;  // reasoning, by choice
  std::vector<JoinedText> joined_;
  std::vector<int64_t> num_tokens_;
  std::vector<std::vector<int32_t>> token_ids_;
  Usage usage_;
};

// Writes one document at the end.
class ChatDocument final : public ReplyWriter {
 public:
  ChatDocument(ExchangePtr exchange, ChatAnswer answer)
      : exchange_(std::move(exchange)),
        answer_(std::move(answer)),
        choices_(answer_.n),
        tokens_(answer_.n),
        joined_(answer_.n),
        contents_(answer_.n),
        ids_(answer_.n) {}

  void on_prompt_logprobs(size_t choice, std::vector<ReplyToken> tokens) override {
    if (choice != 0) return;  // choices share the prompt
    prompt_.insert(prompt_.end(), std::make_move_iterator(tokens.begin()),
                   std::make_move_iterator(tokens.end()));
  }
  void on_token(size_t choice, int32_t id) override {
    if (answer_.return_token_ids) ids_[choice].push_back(id);
  }
  void on_delta(size_t choice, const Delta& delta) override {
    auto& tokens = tokens_[choice];
    tokens.insert(tokens.end(), delta.tokens.begin(), delta.tokens.end());
    const bool is_shown = delta.part == ReplyPart::kContent ||
                          (delta.part == ReplyPart::kReasoning && answer_.include_reasoning);
    if (answer_.separate_reasoning || !is_shown) return;
    contents_[choice] += joined_[choice].add(delta.part, delta.text);
  }

  void on_choice_end(size_t choice, const ReplyReader& reader, const ChoiceEnd& end) override {
    usage_.add(end, choice == 0);
    if (end.finish_reason == "error") failed_ = end.error;
    const Reply& reply = reader.reply();
    Json message = {{"role", "assistant"}};
    const std::string& content = answer_.separate_reasoning ? reply.content : contents_[choice];
    const bool no_content =
        content.empty() && (!reply.tool_calls.empty() || !reply.reasoning.empty());
    message["content"] = no_content ? Json() : Json(content);
    message["refusal"] = nullptr;
    message["annotations"] = Json::array();
    const bool has_reasoning =
        answer_.include_reasoning && answer_.separate_reasoning && !reply.reasoning.empty();
    for (const char* name : reasoning_names(answer_.reasoning_field)) {
      message[name] = has_reasoning ? Json(reply.reasoning) : Json();
    }
    if (!reply.tool_calls.empty()) {
      Json calls = Json::array();
      for (const ToolCall& call : reply.tool_calls) {
        calls.push_back({{"id", call_id()},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      }
      message["tool_calls"] = std::move(calls);
    }
    choices_[choice] = {
        {"index", choice},
        {"message", std::move(message)},
        {"logprobs", answer_.logprobs ? logprobs_json(answer_.names, tokens_[choice]) : Json()},
        {"finish_reason", end.finish_reason},
        {"stop_reason", stop_reason_of(end)}};
    if (answer_.return_token_ids) choices_[choice]["token_ids"] = ids_[choice];
    if (!end.warnings.empty()) choices_[choice]["warnings"] = end.warnings;
  }

  void on_end() override {
    if (failed_) return respond_error(*exchange_, *failed_);
    Json document = {{"id", answer_.id},
                     {"object", "chat.completion"},
                     {"created", answer_.created},
                     {"model", answer_.model},
                     {"choices", std::move(choices_)},
                     {"usage", usage_.to_json()},
                     {"service_tier", nullptr},
                     {"system_fingerprint", "moxie-" MOXIE_VERSION}};
    if (!prompt_.empty()) {
      document["prompt_logprobs"] = prompt_logprobs_json(*answer_.names.tokenizer, prompt_);
    }
    if (answer_.return_token_ids) document["prompt_token_ids"] = answer_.prompt_ids;
    exchange_->respond(json_response(document));
  }

 private:
  ExchangePtr exchange_;
  ChatAnswer answer_;
  std::vector<Json> choices_;
  std::vector<std::vector<ReplyToken>> tokens_;
  std::vector<JoinedText> joined_;
  std::vector<std::string> contents_;  // with separate_reasoning false
  std::vector<std::vector<int32_t>> ids_;
  std::vector<ReplyToken> prompt_;
  std::optional<ApiError> failed_;
  Usage usage_;
};

void answer_chat(App& app, const ExchangePtr& exchange, const ChatRequest& request,
                 GenerationInput input) {
  ChatAnswer answer{.model = request.model.empty() ? app.model_name() : request.model,
                    .names = {app.model().tokenizer, request.tokens_as_ids},
                    .n = static_cast<size_t>(request.n),
                    .logprobs = request.logprobs,
                    .include_usage = request.include_usage,
                    .continuous_usage = request.continuous_usage,
                    .return_token_ids = request.return_token_ids,
                    .include_reasoning = request.include_reasoning,
                    .separate_reasoning = request.separate_reasoning,
                    .stream_reasoning = request.stream_reasoning,
                    .reasoning_field = app.options().reasoning_field,
                    .num_prompt_tokens = static_cast<int64_t>(input.prompts.front().size())};
  if (request.return_token_ids) answer.prompt_ids = input.prompts.front();
  start_answer<ChatDocument, ChatStream>(app, exchange, std::move(input), std::move(answer),
                                         request.stream, ErrorForm::kOpenAi);
}

}  // namespace

void handle_chat(App& app, const ExchangePtr& exchange) {
  handle_generation(app, exchange, ErrorForm::kOpenAi, read_chat_request, chat_input, answer_chat);
}

}  // namespace moxie
