// /v1/completions: continues text or token ids.
#include <fmt/format.h>

#include <algorithm>

#include "server/endpoints.h"
#include "text/utf8.h"

namespace moxie {
namespace {

struct CompletionAnswer {
  std::string id = "cmpl-" + random_name(24), model;
  int64_t created = unix_time();
  TokenNames names;
  size_t n = 1;
  int32_t logprobs = -1;
  bool echo = false, include_usage = false, continuous_usage = false, return_token_ids = false;
  bool no_tokens = false;  // max_tokens 0: one token is drawn and not shown
  bool prompt_logprobs = false;
  bool skip_special = true;  // special tokens add no text
  std::vector<std::vector<int32_t>> prompts;

  size_t num_choices() const { return prompts.size() * n; }
  std::string prompt_text(size_t choice) const {
    return repaired_utf8(names.tokenizer->decode(prompts[choice / n]).value_or(""));
  }
};

// text_offset counts characters. A character may span several tokens.
size_t num_characters_begun(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// OpenAI's old form of log-probabilities: parallel lists.
class TokenList {
 public:
  /// `is_shown`: its text is part of the answer's.
  void add(const TokenNames& names, const ReplyToken& token, int32_t num_top, bool known,
           bool is_shown = true) {
    const std::string text = names(token.id);
    tokens_.push_back(text);
    offsets_.push_back(offset_);
    if (is_shown) offset_ += num_characters_begun(names.tokenizer->token_bytes(token.id));
    logprobs_.push_back(known ? Json(token.logprob) : Json());
    if (!known) {
      top_.push_back(nullptr);
      return;
    }
    Json top = Json::object();
    for (const auto& [id, logprob] : token.top) {
      if (std::cmp_less(top.size(), num_top)) top[names(id)] = logprob;
    }
    top[text] = token.logprob;
    top_.push_back(std::move(top));
  }
  Json take() {
    return {{"text_offset", std::exchange(offsets_, Json::array())},
            {"token_logprobs", std::exchange(logprobs_, Json::array())},
            {"tokens", std::exchange(tokens_, Json::array())},
            {"top_logprobs", std::exchange(top_, Json::array())}};
  }

 private:
  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(),
       offsets_ = Json::array();
  size_t offset_ = 0;
};

class CompletionWriter final : public ReplyWriter {
 public:
  CompletionWriter(ExchangePtr exchange, CompletionAnswer answer, bool stream)
      : exchange_(std::move(exchange)),
        answer_(std::move(answer)),
        stream_(stream),
        choices_(answer_.num_choices()),
        documents_(answer_.num_choices()) {
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (answer_.echo) choices_[i].text = answer_.prompt_text(i);
    }
  }

  void begin() {
    exchange_->begin_stream({});
    if (!answer_.echo || answer_.logprobs >= 0) return;
    for (size_t i = 0; i < choices_.size(); ++i) send_chunk(i, Json(), Json());
  }

  void on_prompt_logprobs(size_t choice, std::vector<ReplyToken> tokens) override {
    for (ReplyToken& token : tokens) {
      Choice& c = choices_[choice];
      if (answer_.echo && answer_.logprobs >= 0) {
        c.list.add(answer_.names, token, answer_.logprobs, c.num_prompt_logprobs > 0);
      }
      ++c.num_prompt_logprobs;
      if (answer_.prompt_logprobs) c.prompt.push_back(std::move(token));
    }
  }
  void on_token(size_t choice, int32_t id) override {
    ++choices_[choice].num_tokens;
    if (answer_.return_token_ids) choices_[choice].ids.push_back(id);
  }
  void on_delta(size_t choice, const Delta& delta) override {
    if (answer_.no_tokens) return;
    choices_[choice].text += delta.text;
    for (const ReplyToken& token : delta.tokens) {
      const bool is_shown = !answer_.skip_special || !answer_.names.tokenizer->is_special(token.id);
      choices_[choice].list.add(answer_.names, token, answer_.logprobs, true, is_shown);
    }
  }
  void on_flush(size_t choice) override {
    if (stream_ && !choices_[choice].text.empty()) send_chunk(choice, Json(), Json());
  }
  void on_choice_end(size_t choice, const ReplyReader&, const ChoiceEnd& end) override {
    ChoiceEnd counted = end;
    if (answer_.no_tokens) {
      counted.completion_tokens = 0;
      counted.finish_reason = "length";
    }
    usage_.add(counted, choice % answer_.n == 0);
    if (end.finish_reason == "error") {
      failed_ = end.error;
      if (stream_) exchange_->send(sse(error_json(end.error, ErrorForm::kOpenAi)));
      return;
    }
    Json reason = counted.stop_string.empty() ? Json() : Json(counted.stop_string);
    if (reason.is_null() && counted.stop_id >= 0) reason = counted.stop_id;
    if (stream_) return send_chunk(choice, Json(counted.finish_reason), std::move(reason));
    Choice& c = choices_[choice];
    documents_[choice] = choice_json(choice, Json(counted.finish_reason), std::move(reason));
    if (answer_.prompt_logprobs) {
      documents_[choice]["prompt_logprobs"] =
          prompt_logprobs_json(*answer_.names.tokenizer, c.prompt);
    }
  }
  void on_end() override {
    if (stream_) {
      if (answer_.include_usage) {
        Json chunk = head();
        chunk["choices"] = Json::array();
        chunk["usage"] = usage_.to_json();
        exchange_->send(sse(chunk));
      }
      exchange_->send("data: [DONE]\n\n");
      return exchange_->end_stream();
    }
    if (failed_) return respond_error(*exchange_, *failed_);
    Json document = head();
    document["choices"] = std::move(documents_);
    document["usage"] = usage_.to_json();
    exchange_->respond(json_response(document));
  }

 private:
  struct Choice {
    std::string text;
    TokenList list;
    std::vector<ReplyToken> prompt;
    std::vector<int32_t> ids;
    int64_t num_tokens = 0, num_prompt_logprobs = 0;
    bool sent_prompt_ids = false;
  };

  Json head() const {
    return {{"id", answer_.id},
            {"object", "text_completion"},
            {"created", answer_.created},
            {"model", answer_.model},
            {"system_fingerprint", "moxie-" MOXIE_VERSION}};
  }
  Json choice_json(size_t choice, Json finish, Json stop) {
    Choice& c = choices_[choice];
    Json document = {{"index", choice},
                     {"text", std::exchange(c.text, {})},
                     {"logprobs", answer_.logprobs >= 0 ? c.list.take() : Json()},
                     {"finish_reason", std::move(finish)},
                     {"stop_reason", std::move(stop)}};
    if (answer_.return_token_ids) {
      document["token_ids"] = std::exchange(c.ids, {});
      if (!std::exchange(c.sent_prompt_ids, true)) {
        document["prompt_token_ids"] = answer_.prompts[choice / answer_.n];
      }
    }
    return document;
  }
  // Text that all chunks share is made once: most chunks hold one token.
  void send_text(size_t choice, const Json& finish, const Json& stop) {
    if (head_text_.empty()) {
      head_text_ = to_text(head());
      head_text_.back() = ',';
    }
    std::string chunk =
        fmt::format("data: {}\"choices\":[{{\"index\":{},\"text\":", head_text_, choice);
    append_json_string(std::exchange(choices_[choice].text, {}), &chunk);
    chunk +=
        fmt::format(",\"logprobs\":null,\"finish_reason\":{},\"stop_reason\":{}}}]{}}}\n\n",
                    to_text(finish), to_text(stop), answer_.include_usage ? ",\"usage\":null" : "");
    exchange_->send(chunk);
  }
  void send_chunk(size_t choice, Json finish, Json stop) {
    if (answer_.logprobs < 0 && !answer_.return_token_ids && !answer_.continuous_usage) {
      return send_text(choice, finish, stop);
    }
    Json chunk = head();
    chunk["choices"] = Json::array({choice_json(choice, std::move(finish), std::move(stop))});
    if (answer_.continuous_usage) {
      const auto prompt = static_cast<int64_t>(answer_.prompts[choice / answer_.n].size());
      const int64_t written = choices_[choice].num_tokens;
      chunk["usage"] = {{"prompt_tokens", prompt},
                        {"completion_tokens", written},
                        {"total_tokens", prompt + written}};
    } else if (answer_.include_usage) {
      chunk["usage"] = nullptr;
    }
    exchange_->send(sse(chunk));
  }

  ExchangePtr exchange_;
  CompletionAnswer answer_;
  bool stream_;
  std::vector<Choice> choices_;
  std::vector<Json> documents_;
  std::string head_text_;
  std::optional<ApiError> failed_;
  Usage usage_;
};

void truncate(const CompletionRequest& request, int32_t context, std::vector<int32_t>* prompt) {
  if (!request.truncate_prompt_tokens) return;
  const int32_t room = context - std::max(*request.max_tokens, 1);
  const int32_t wanted = *request.truncate_prompt_tokens;
  const auto kept = static_cast<size_t>(std::max(wanted < 0 ? room : wanted, 1));
  if (prompt->size() <= kept) return;
  const auto excess = static_cast<std::ptrdiff_t>(prompt->size() - kept);
  if (request.truncate_end) {
    prompt->resize(kept);
  } else {
    prompt->erase(prompt->begin(), prompt->begin() + excess);
  }
}

Api<GenerationInput> completion_input(const App& app, const CompletionRequest& request) {
  const ServedModel& model = app.model();
  if (auto status = check_ids(model, request); !status) return tl::unexpected(status.error());
  GenerationInput input = generation_input(app, request);
  input.reply.harmony = false;
  if (!request.keeps_stop() && !request.sampling.ignore_eos) {
    const auto& ends = model.engine->stop_ids();
    input.silent_ends.insert(input.silent_ends.end(), ends.begin(), ends.end());
    std::sort(input.silent_ends.begin(), input.silent_ends.end());
  }
  for (const std::string& text : request.texts) {
    auto status = request.truncate_prompt_tokens ? ApiStatus{}
                                                 : check_text_bytes(model, text.size(), "prompt");
    if (!status) return tl::unexpected(status.error());
    input.prompts.push_back(model.tokenizer->encode(text));
  }
  for (const auto& ids : request.ids) {
    for (const int32_t id : ids) {
      if (id < model.engine->config().vocab) continue;
      return invalid("prompt",
                     fmt::format("Invalid 'prompt': token id {} is outside of the vocabulary "
                                 "(0 to {}).",
                                 id, model.engine->config().vocab - 1),
                     "invalid_value");
    }
    input.prompts.push_back(ids);
  }
  for (auto& prompt : input.prompts) {
    truncate(request, model.max_model_len, &prompt);
    if (prompt.empty()) {
      return invalid("prompt", "Invalid 'prompt': it has no tokens.", "empty_string");
    }
    auto status = check_length(model, prompt.size(), "prompt");
    if (!status) return tl::unexpected(status.error());
  }
  if (request.echo && request.logprobs >= 0) {
    input.prompt_logprobs = std::max(request.prompt_logprobs, request.logprobs);
  }
  if (auto status = check_choices(app.model(), input); !status)
    return tl::unexpected(status.error());
  input.sampling.max_tokens = std::max(*request.max_tokens, 1);
  auto constraints =
      make_constraints(model, request, nullptr,
                       input.prompts.size() * static_cast<size_t>(request.n), &input.warnings);
  if (!constraints) return tl::unexpected(constraints.error());
  input.constraints = std::move(*constraints);
  return input;
}

void answer_completion(App& app, const ExchangePtr& exchange, const CompletionRequest& request,
                       GenerationInput input) {
  CompletionAnswer answer{.model = request.model.empty() ? app.model_name() : request.model,
                          .names = {app.model().tokenizer, request.tokens_as_ids},
                          .n = static_cast<size_t>(request.n),
                          .logprobs = request.logprobs,
                          .echo = request.echo,
                          .include_usage = request.include_usage,
                          .continuous_usage = request.continuous_usage,
                          .return_token_ids = request.return_token_ids,
                          .no_tokens = *request.max_tokens == 0,
                          .prompt_logprobs = request.prompt_logprobs >= 0,
                          .skip_special = request.skip_special_tokens,
                          .prompts = input.prompts};
  const auto writer =
      std::make_shared<CompletionWriter>(exchange, std::move(answer), request.stream);
  const auto started = start_generation(app, *exchange, std::move(input), writer);
  if (!started) return respond_error(*exchange, started.error());
  if (request.stream) writer->begin();
}

}  // namespace

void handle_completions(App& app, const ExchangePtr& exchange) {
  handle_generation(app, exchange, ErrorForm::kOpenAi, read_completion_request, completion_input,
                    answer_completion);
}

void handle_completion_render(App& app, const ExchangePtr& exchange) {
  handle_body(app, exchange, ErrorForm::kOpenAi, read_completion_request,
              [&app, exchange](const CompletionRequest& request) -> Api<App::Continuation> {
                auto input = completion_input(app, request);
                if (!input) return tl::unexpected(input.error());
                Json list = Json::array();
                for (const auto& prompt : input->prompts) {
                  list.push_back(rendered_json(*app.model().tokenizer, prompt));
                }
                return answer_with(exchange, list);
              });
}

}  // namespace moxie
