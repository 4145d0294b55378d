// Writes answers of /v1/responses as items: whole, as events, or in the background.
#include <fmt/format.h>

#include "engine/drafts_json.h"
#include "server/endpoints.h"
#include "server/responses.h"

namespace moxie {
namespace {

Json or_default(const Json& given, const char* key, const Json& otherwise) {
  const Json* value = find_member(given, key);
  return value != nullptr ? *value : otherwise;
}

Json text_settings(const Json& given) {
  Json text = or_default(given, "text", Json::object());
  if (find_member(text, "format") == nullptr) text["format"] = {{"type", "text"}};
  return text;
}

std::string_view effort_name(harmony::ReasoningEffort effort) {
  switch (effort) {
    case harmony::ReasoningEffort::kLow:
      return "low";
    case harmony::ReasoningEffort::kMedium:
      return "medium";
    default:
      return "high";
  }
}

Json usage_json(const ChoiceEnd& end) {
  Json usage = {{"input_tokens", end.prompt_tokens},
                {"input_tokens_details",
                 {{"cached_tokens", end.cache.hit_tokens},
                  {"cache_write_tokens", 0},
                  {"cache_report", end.cache.text(end.prompt_tokens)}}},
                {"output_tokens", end.completion_tokens},
                {"output_tokens_details", {{"reasoning_tokens", end.reasoning_tokens}}},
                {"total_tokens", end.prompt_tokens + end.completion_tokens}};
  if (end.drafts.num_positions > 0) usage["speculation"] = drafts_json(end.drafts);
  return usage;
}

uint64_t size_of(const StoredResponse& stored) {
  uint64_t bytes = to_text(stored.document).size() + to_text(stored.input_items).size();
  for (const auto& message : stored.conversation.messages) bytes += 256 + message.text().size();
  return stored.events == nullptr ? bytes : bytes + stored.events->bytes();
}

// Makes items and events from deltas, and sends them to the client or the store.
class ResponseWriter final : public ReplyWriter {
 public:
  ResponseWriter(App& app, ExchangePtr exchange, std::shared_ptr<ResponseRequest> request)
      : app_(app),
        exchange_(std::move(exchange)),
        request_(std::move(request)),
        events_(std::make_shared<ResponseEvents>(request_->background)) {
    const Json& given = request_->given;
    document_ = {{"id", "resp_" + random_name(40)},
                 {"object", "response"},
                 {"created_at", unix_time()},
                 {"completed_at", nullptr},
                 {"status", "in_progress"},
                 {"background", request_->background},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"instructions", or_default(given, "instructions", Json())},
                 {"max_output_tokens", or_default(given, "max_output_tokens", Json())},
                 {"max_tool_calls", or_default(given, "max_tool_calls", Json())},
                 {"model", request_->model.empty() ? app.model_name() : request_->model},
                 {"output", Json::array()},
                 {"parallel_tool_calls", request_->parallel_tool_calls},
                 {"previous_response_id", or_default(given, "previous_response_id", Json())},
                 {"reasoning", {{"effort", effort_name(request_->effort)}, {"summary", nullptr}}},
                 {"service_tier", "default"},
                 {"store", request_->store},
                 {"temperature", request_->temperature.value_or(app.options().default_temperature)},
                 {"text", text_settings(given)},
                 {"tool_choice", or_default(given, "tool_choice", "auto")},
                 {"tools", or_default(given, "tools", Json::array())},
                 {"top_logprobs", or_default(given, "top_logprobs", 0)},
                 {"top_p", request_->top_p.value_or(1.0f)},
                 {"truncation", request_->truncate ? "auto" : "disabled"},
                 {"usage", nullptr},
                 {"user", or_default(given, "user", Json())},
                 {"metadata", or_default(given, "metadata", Json::object())}};
  }

  std::string id() const { return document_["id"]; }
  bool streams() const { return request_->stream; }

  /// The generation has started.
  void begin(std::weak_ptr<Generation> generation) {
    generation_ = std::move(generation);
    if (request_->background) store(true);
    if (!streams()) {
      if (request_->background) exchange_->respond(json_response(document_));
      return;
    }
    events_->listen(exchange_, 0);
    event("response.created", {{"response", document_}});
    event("response.in_progress", {{"response", document_}});
    events_->flush();
  }

  void on_delta(size_t, const Delta& delta) override {
    switch (delta.part) {
      case ReplyPart::kReasoning:
        open(Item::kReasoning, {});
        break;
      case ReplyPart::kContent:
        open(Item::kMessage, {});
        break;
      case ReplyPart::kToolName:
        close("completed");
        open(Item::kCall, delta.text);
        return;
      case ReplyPart::kToolArguments:
        break;
    }
    text_ += delta.text;
    Json more = {{"item_id", item_["id"]}, {"output_index", num_items()}};
    if (item_kind_ != Item::kCall) more["content_index"] = 0;
    more["delta"] = delta.text;
    if (item_kind_ == Item::kMessage) {
      Json logprobs = Json::array();
      for (const ReplyToken& token : delta.tokens) {
        logprobs.push_back(chat_logprob({.tokenizer = app_.model().tokenizer}, token));
        logprobs_.push_back(logprobs.back());
      }
      more["logprobs"] = std::move(logprobs);
    }
    event(prefix() + ".delta", std::move(more));
  }

  void on_flush(size_t) override { events_->flush(); }

  void on_choice_end(size_t, const ReplyReader& reader, const ChoiceEnd& end) override {
    const bool complete = end.finish_reason == "stop" || end.finish_reason == "tool_calls";
    close(complete ? "completed" : "incomplete");
    document_["usage"] = usage_json(end);
    if (!end.warnings.empty()) document_["warnings"] = end.warnings;
    if (complete) {
      document_["status"] = "completed";
      document_["completed_at"] = unix_time();
    } else if (end.finish_reason == "length") {
      document_["status"] = "incomplete";
      document_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    } else if (end.finish_reason == "abort") {
      document_["status"] = "cancelled";
    } else {
      failed_ = end.error;
      document_["status"] = "failed";
      document_["error"] = {{"code", end.error.status < 500 ? "invalid_prompt" : "server_error"},
                            {"message", end.error.message}};
    }
    for (const auto& message : reader.messages()) {
      request_->conversation.messages.push_back(message);
    }
  }

  void on_end() override {
    const std::string status = document_["status"];
    event("response." + status, {{"response", document_}});
    if (request_->store) store(false);
    if (streams()) return events_->end();
    if (request_->background) return;
    if (failed_) return respond_error(*exchange_, *failed_);
    exchange_->respond(json_response(document_));
  }

  /// Cancels a background response.
  void cancelled() {
    close("incomplete");
    document_["status"] = "cancelled";
    event("response.cancelled", {{"response", document_}});
    store(false);
    if (streams()) events_->end();
  }
  const Json& document() const { return document_; }

 private:
  enum class Item : uint8_t { kNone, kReasoning, kMessage, kCall };

  std::string prefix() const {
    switch (item_kind_) {
      case Item::kReasoning:
        return "response.reasoning_text";
      case Item::kMessage:
        return "response.output_text";
      default:
        return "response.function_call_arguments";
    }
  }
  size_t num_items() const { return document_["output"].size(); }
  Json part(bool with_logprobs) const {
    if (item_kind_ == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", Json::array()},
            {"logprobs", with_logprobs ? logprobs_ : Json::array()}};
  }

  void open(Item kind, const std::string& name) {
    if (item_kind_ == kind && kind != Item::kCall) return;
    close("completed");
    item_kind_ = kind;
    text_.clear();
    logprobs_ = Json::array();
    if (kind == Item::kCall) {
      const std::string call_id = "call_" + random_name(24);
      request_->call_names[call_id] = name;
      item_ = {{"id", "fc_" + random_name(40)},
               {"type", "function_call"},
               {"status", "in_progress"},
               {"call_id", call_id},
               {"name", name},
               {"arguments", ""}};
    } else if (kind == Item::kReasoning) {
      item_ = {{"id", "rs_" + random_name(40)}, {"type", "reasoning"},
               {"summary", Json::array()},      {"content", Json::array()},
               {"encrypted_content", nullptr},  {"status", "in_progress"}};
    } else {
      item_ = {{"id", "msg_" + random_name(40)},
               {"type", "message"},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"content", Json::array()}};
    }
    event("response.output_item.added", {{"output_index", num_items()}, {"item", item_}});
    if (kind == Item::kCall) return;
    event("response.content_part.added", {{"item_id", item_["id"]},
                                          {"output_index", num_items()},
                                          {"content_index", 0},
                                          {"part", part(false)}});
  }

  void close(const char* status) {
    if (item_kind_ == Item::kNone) return;
    Json done = {{"item_id", item_["id"]}, {"output_index", num_items()}};
    if (item_kind_ == Item::kCall) {
      item_["arguments"] = text_;
      done["name"] = item_["name"];
      done["arguments"] = text_;
      event(prefix() + ".done", std::move(done));
    } else {
      done["content_index"] = 0;
      Json text = done;
      text["text"] = text_;
      if (item_kind_ == Item::kMessage) text["logprobs"] = logprobs_;
      event(prefix() + ".done", std::move(text));
      done["part"] = part(true);
      item_["content"].push_back(done["part"]);
      event("response.content_part.done", std::move(done));
    }
    item_["status"] = status;
    event("response.output_item.done", {{"output_index", num_items()}, {"item", item_}});
    document_["output"].push_back(std::exchange(item_, {}));
    item_kind_ = Item::kNone;
  }

  void event(const std::string& type, const Json& fields) {
    if (streams()) events_->add(type, fields);
  }

  void store(bool running);

  App& app_;
  ExchangePtr exchange_;
  std::shared_ptr<ResponseRequest> request_;
  std::optional<ApiError> failed_;
  Json document_, item_;
  Item item_kind_ = Item::kNone;
  std::string text_;
  Json logprobs_ = Json::array();
  std::shared_ptr<ResponseEvents> events_;
  std::weak_ptr<Generation> generation_;

 public:
  std::weak_ptr<ResponseWriter> self;
};

void ResponseWriter::store(bool running) {
  auto stored = std::make_shared<StoredResponse>();
  stored->document = document_;
  stored->input_items = request_->input_items;
  stored->conversation = request_->conversation;
  stored->item_instructions = request_->item_instructions;
  stored->call_names = request_->call_names;
  if (running) {
    stored->cancel = [generation = generation_, writer = self] {
      const auto to = writer.lock();  // null once the generation has released it
      if (const auto at = generation.lock()) at->cancel();
      if (to) to->cancelled();
    };
  }
  if (request_->background && streams()) stored->events = events_;
  stored->bytes = size_of(*stored);
  app_.store().put(id(), std::move(stored));
}

void answer_response(App& app, const ExchangePtr& exchange, ResponseRequest& request,
                     GenerationInput input) {
  const bool background = request.background;
  const auto writer = std::make_shared<ResponseWriter>(
      app, exchange, std::make_shared<ResponseRequest>(std::move(request)));
  writer->self = writer;
  auto started = start_generation(app, *exchange, std::move(input), writer);
  if (!started) return respond_error(*exchange, started.error());
  if (background) exchange->on_abort(nullptr);  // it goes on even if the client disconnects
  writer->begin(*started);
}

// Reads a request, and the stored response that it continues.
auto reader(App& app) {
  return [&app](const Json& document) {
    return read_response_request(document,
                                 [&app](const std::string& id) { return app.store().find(id); });
  };
}

}  // namespace

void handle_responses(App& app, const ExchangePtr& exchange) {
  handle_generation(app, exchange, ErrorForm::kOpenAi, reader(app), chat_input, answer_response);
}

void handle_response_render(App& app, const ExchangePtr& exchange) {
  handle_render(app, exchange, ErrorForm::kOpenAi, reader(app));
}

void handle_response_tokens(App& app, const ExchangePtr& exchange) {
  handle_body(app, exchange, ErrorForm::kOpenAi, reader(app),
              [&app, exchange](const ResponseRequest& request) -> Api<App::Continuation> {
                auto prompt = chat_prompt(app.model(), request);
                if (!prompt) return tl::unexpected(prompt.error());
                return answer_with(exchange, {{"object", "response.input_tokens"},
                                              {"input_tokens", prompt->size()}});
              });
}

}  // namespace moxie
