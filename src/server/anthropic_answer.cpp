// Writes answers of Anthropic's /v1/messages, whole or as events.
#include <fmt/format.h>

#include "engine/drafts_json.h"
#include "server/anthropic.h"
#include "server/endpoints.h"

namespace moxie {
namespace {

struct MessageAnswer {
  std::string id = "msg_" + random_name(24), model;
  bool show_thinking = false;
  int64_t num_prompt_tokens = 0;
};

std::string stop_reason(const ChoiceEnd& end) {
  if (!end.stop_string.empty()) return "stop_sequence";
  if (end.finish_reason == "length") return "max_tokens";
  return end.finish_reason == "tool_calls" ? "tool_use" : "end_turn";
}

Json stop_sequence(const ChoiceEnd& end) {
  return end.stop_string.empty() ? Json() : Json(end.stop_string);
}

Json usage_json(const ChoiceEnd& end) {
  Json usage = {{"input_tokens", end.prompt_tokens - end.cache.hit_tokens},
                {"cache_creation_input_tokens", 0},
                {"cache_read_input_tokens", end.cache.hit_tokens},
                {"output_tokens", end.completion_tokens},
                {"output_tokens_details", {{"thinking_tokens", end.reasoning_tokens}}},
                {"cache_report", end.cache.text(end.prompt_tokens)}};
  if (end.drafts.num_positions > 0) usage["speculation"] = drafts_json(end.drafts);
  return usage;
}

// A block's input must be an object. Other text of the model is wrapped, so that it stays readable.
Json input_of(const std::string& arguments) {
  auto parsed = parse_body(arguments);
  return parsed ? std::move(*parsed) : Json{{"raw_arguments", arguments}};
}

Json message_json(const MessageAnswer& answer, Json content, Json reason, Json sequence,
                  Json usage) {
  return {{"id", answer.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", answer.model},
          {"content", std::move(content)},
          {"stop_reason", std::move(reason)},
          {"stop_sequence", std::move(sequence)},
          {"usage", std::move(usage)}};
}

class MessageDocument final : public ReplyWriter {
 public:
  MessageDocument(ExchangePtr exchange, MessageAnswer answer)
      : exchange_(std::move(exchange)), answer_(std::move(answer)) {}

  void on_delta(size_t, const Delta&) override {}
  void on_choice_end(size_t, const ReplyReader& reader, const ChoiceEnd& end) override {
    if (end.finish_reason == "error") {
      response_ = error_response(end.error, ErrorForm::kAnthropic);
      return;
    }
    const Reply& reply = reader.reply();
    Json content = Json::array();
    if (answer_.show_thinking && !reply.reasoning.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", reply.reasoning}, {"signature", ""}});
    }
    if (!reply.content.empty()) {
      content.push_back({{"type", "text"}, {"text", reply.content}, {"citations", nullptr}});
    }
    for (const ToolCall& call : reply.tool_calls) {
      content.push_back({{"type", "tool_use"},
                         {"id", "toolu_" + random_name(24)},
                         {"name", call.name},
                         {"input", input_of(call.arguments)}});
    }
    Json message = message_json(answer_, std::move(content), stop_reason(end), stop_sequence(end),
                                usage_json(end));
    if (!end.warnings.empty()) message["warnings"] = end.warnings;
    response_ = json_response(message);
  }
  void on_end() override { exchange_->respond(std::move(response_)); }

 private:
  ExchangePtr exchange_;
  MessageAnswer answer_;
  HttpResponse response_;
};

class MessageStream final : public ReplyWriter {
 public:
  MessageStream(ExchangePtr exchange, MessageAnswer answer)
      : exchange_(std::move(exchange)), answer_(std::move(answer)) {}

  void begin() {
    exchange_->begin_stream({});
    const Json usage = {{"input_tokens", answer_.num_prompt_tokens},
                        {"cache_creation_input_tokens", 0},
                        {"cache_read_input_tokens", 0},
                        {"output_tokens", 0}};
    event({{"type", "message_start"},
           {"message", message_json(answer_, Json::array(), Json(), Json(), usage)}});
    event({{"type", "ping"}});
    flush();
  }

  void on_delta(size_t, const Delta& delta) override {
    switch (delta.part) {
      case ReplyPart::kReasoning:
        if (!answer_.show_thinking) return;
        open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return block_delta({{"type", "thinking_delta"}, {"thinking", delta.text}});
      case ReplyPart::kContent:
        if (delta.text.empty()) return;
        open(Block::kText, {{"type", "text"}, {"text", ""}, {"citations", nullptr}});
        return block_delta({{"type", "text_delta"}, {"text", delta.text}});
      case ReplyPart::kToolName:
        close();
        return open(Block::kCall, {{"type", "tool_use"},
                                   {"id", "toolu_" + random_name(24)},
                                   {"name", delta.text},
                                   {"input", Json::object()}});
      case ReplyPart::kToolArguments:
        return block_delta({{"type", "input_json_delta"}, {"partial_json", delta.text}});
    }
  }
  void on_flush(size_t) override { flush(); }
  void on_choice_end(size_t, const ReplyReader&, const ChoiceEnd& end) override {
    if (end.finish_reason == "error") {
      out_ += "event: error\n" + sse(error_json(end.error, ErrorForm::kAnthropic));
      return flush();
    }
    close();
    Json last = {
        {"type", "message_delta"},
        {"delta", {{"stop_reason", stop_reason(end)}, {"stop_sequence", stop_sequence(end)}}},
        {"usage", usage_json(end)}};
    if (!end.warnings.empty()) last["warnings"] = end.warnings;
    event(last);
    event({{"type", "message_stop"}});
    flush();
  }
  void on_end() override { exchange_->end_stream(); }

 private:
  enum class Block : uint8_t { kNone, kThinking, kText, kCall };

  void event(const Json& document) { out_ += named_sse(document); }
  void open(Block block, Json content) {
    if (block_ == block && block != Block::kCall) return;
    close();
    block_ = block;
    event({{"type", "content_block_start"},
           {"index", num_blocks_},
           {"content_block", std::move(content)}});
  }
  void block_delta(Json delta) {
    event({{"type", "content_block_delta"}, {"index", num_blocks_}, {"delta", std::move(delta)}});
  }
  void close() {
    if (block_ == Block::kNone) return;
    // Some clients give a block of thinking back only if its signature came, an empty one too.
    if (block_ == Block::kThinking) block_delta({{"type", "signature_delta"}, {"signature", ""}});
    event({{"type", "content_block_stop"}, {"index", num_blocks_++}});
    block_ = Block::kNone;
  }
  void flush() {
    if (!out_.empty()) exchange_->send(std::exchange(out_, {}));
  }

  ExchangePtr exchange_;
  MessageAnswer answer_;
  Block block_ = Block::kNone;
  int64_t num_blocks_ = 0;
  std::string out_;
};

void answer_message(App& app, const ExchangePtr& exchange, const MessagesRequest& request,
                    GenerationInput input) {
  MessageAnswer answer{.model = request.model,
                       .show_thinking = request.show_thinking,
                       .num_prompt_tokens = static_cast<int64_t>(input.prompts.front().size())};
  start_answer<MessageDocument, MessageStream>(app, exchange, std::move(input), std::move(answer),
                                               request.stream, ErrorForm::kAnthropic);
}

}  // namespace

void handle_messages(App& app, const ExchangePtr& exchange) {
  handle_generation(
      app, exchange, ErrorForm::kAnthropic,
      [](const Json& document) { return read_messages_request(document, /*counts_only=*/false); },
      chat_input, answer_message);
}

void handle_message_render(App& app, const ExchangePtr& exchange) {
  handle_render(app, exchange, ErrorForm::kAnthropic, [](const Json& document) {
    return read_messages_request(document, /*counts_only=*/false);
  });
}

void handle_count_tokens(App& app, const ExchangePtr& exchange) {
  handle_body(
      app, exchange, ErrorForm::kAnthropic,
      [](const Json& document) { return read_messages_request(document, /*counts_only=*/true); },
      [&app, exchange](const MessagesRequest& request) -> Api<App::Continuation> {
        auto prompt = chat_prompt(app.model(), request);
        if (!prompt) return tl::unexpected(prompt.error());
        return answer_with(exchange, {{"input_tokens", prompt->size()}});
      });
}

}  // namespace moxie
