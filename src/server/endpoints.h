// The endpoints, one function a route, and functions that several of them use: from a chat to a
// prompt, from a request to a generation, and the JSON of usage and log-probabilities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/app.h"
#include "server/requests.h"

namespace moxie {

using ExchangePtr = std::shared_ptr<Exchange>;

void handle_chat(App& app, const ExchangePtr& exchange);
void handle_completions(App& app, const ExchangePtr& exchange);
void handle_responses(App& app, const ExchangePtr& exchange);
void handle_response_render(App& app, const ExchangePtr& exchange);
void handle_response_tokens(App& app, const ExchangePtr& exchange);
void handle_response_get(App& app, const ExchangePtr& exchange);
void handle_response_delete(App& app, const ExchangePtr& exchange);
void handle_response_cancel(App& app, const ExchangePtr& exchange);
void handle_response_items(App& app, const ExchangePtr& exchange);
void handle_messages(App& app, const ExchangePtr& exchange);
void handle_message_render(App& app, const ExchangePtr& exchange);
void handle_count_tokens(App& app, const ExchangePtr& exchange);
void handle_tokenize(App& app, const ExchangePtr& exchange);
void handle_detokenize(App& app, const ExchangePtr& exchange);
void handle_chat_render(App& app, const ExchangePtr& exchange);
void handle_completion_render(App& app, const ExchangePtr& exchange);
void handle_models(App& app, const ExchangePtr& exchange);
void handle_model(App& app, const ExchangePtr& exchange);
void handle_health(App& app, const ExchangePtr& exchange);
void handle_live(App& app, const ExchangePtr& exchange);
void handle_version(App& app, const ExchangePtr& exchange);
void handle_metrics(App& app, const ExchangePtr& exchange);
void handle_debug_kernels(App& app, const ExchangePtr& exchange);
void handle_openapi(App& app, const ExchangePtr& exchange);
void handle_page(App& app, const ExchangePtr& exchange);   // page.cpp
void handle_watch(App& app, const ExchangePtr& exchange);  // watch.cpp
// For routers (worker.cpp).
void handle_load(App& app, const ExchangePtr& exchange);
void handle_server_load(App& app, const ExchangePtr& exchange);
void handle_loads(App& app, const ExchangePtr& exchange);
void handle_server_info(App& app, const ExchangePtr& exchange);
void handle_model_info(App& app, const ExchangePtr& exchange);
void handle_sleeping(App& app, const ExchangePtr& exchange);
void handle_event_sources(App& app, const ExchangePtr& exchange);
void handle_flush_cache(App& app, const ExchangePtr& exchange);
void handle_health_generate(App& app, const ExchangePtr& exchange);

/// Bytes of schemas, grammars and choices that are compiled before the request is answered.
size_t constraint_bytes(const GenerationFields& request);
size_t constraint_bytes(const ChatRequest& request);
/// More take longer than half a second to compile.
inline constexpr size_t kSlowConstraintBytes = 16 * 1024;

/// Parses a body, reads a request from it (`read`, from a Json document), checks it and calls
/// `prepare`, all on a worker; with constraints that take long to compile, `prepare` on a slow one.
/// `prepare` takes the request and returns the continuation that answers it. A fault in any of
/// these is answered in `form`.
template <class Read, class Prepare>
void handle_body(App& app, const ExchangePtr& exchange, ErrorForm form, Read read,
                 Prepare prepare) {
  app.in_background(
      exchange, form,
      [&app, exchange, form, read = std::move(read),
       prepare = std::move(prepare)](const std::string& body) -> Api<App::Continuation> {
        auto document = parse_body(body);
        if (!document) return tl::unexpected(document.error());
        auto request = read(*document);
        if (!request) return tl::unexpected(request.error());
        if (auto status = app.check_model(request->model); !status) {
          return tl::unexpected(status.error());
        }
        if constexpr (requires { constraint_bytes(*request); }) {
          const size_t bytes = constraint_bytes(*request);
          if (bytes > kSlowConstraintBytes) {
            auto kept = std::make_shared<std::decay_t<decltype(*request)>>(std::move(*request));
            return [&app, exchange, form, bytes, kept, prepare] {
              app.in_slow_background(exchange, form, bytes,
                                     [kept, prepare] { return prepare(std::move(*kept)); });
            };
          }
        }
        return prepare(std::move(*request));
      });
}

/// handle_body() for a request that generates: `input_of(app, request)` makes the generation's
/// input on the worker, then `answer(app, exchange, request, input)` starts the generation on the
/// server's thread.
template <class Read, class InputOf, class Answer>
void handle_generation(App& app, const ExchangePtr& exchange, ErrorForm form, Read read,
                       InputOf input_of, Answer answer) {
  handle_body(app, exchange, form, std::move(read),
              [&app, exchange, input_of = std::move(input_of),
               answer = std::move(answer)](auto request) -> Api<App::Continuation> {
                auto input = input_of(app, request);
                if (!input) return tl::unexpected(input.error());
                return [&app, exchange, answer,
                        request = std::make_shared<decltype(request)>(std::move(request)),
                        input = std::make_shared<GenerationInput>(std::move(*input))] {
                  answer(app, exchange, *request, std::move(*input));
                };
              });
}

/// Answers with a document that has been made already.
App::Continuation answer_with(const ExchangePtr& exchange, const Json& document);

/// The OpenAPI document of all routes, from the tables of fields.
const Json& openapi_document();

/// The prompt of a chat, checked against the context. `num_left_out` receives how many messages at
/// the beginning were dropped, for requests that allow truncation.
Api<std::vector<int32_t>> chat_prompt(const ServedModel& model, const ChatRequest& request,
                                      size_t* num_left_out = nullptr);
/// 400 if a prompt is too long.
ApiStatus check_length(const ServedModel& model, size_t num_tokens, const char* param);
/// 400 if a text cannot fit, however few tokens it has: checked before it is tokenized.
ApiStatus check_text_bytes(const ServedModel& model, size_t num_bytes, const char* param);
/// 400 if a field of the request has a token id that does not exist.
ApiStatus check_ids(const ServedModel& model, const GenerationFields& request);

/// 400 if the request has more choices than the queue could ever hold.
ApiStatus check_choices(const ServedModel& model, const GenerationInput& input);

/// The generation's input that `request` asks for, without prompts.
GenerationInput generation_input(const App& app, const GenerationFields& request);
GenerationInput generation_input(const GenerationFields& request, float default_temperature);
/// The same for a chat, with its prompt, harmony's options and the constraints of tools and schema.
/// Fails if a constraint cannot be enforced. Slow: for workers.
Api<GenerationInput> chat_input(const App& app, const ChatRequest& request);
Api<GenerationInput> chat_input_of(const ServedModel& model, const ChatRequest& request,
                                   float default_temperature);
/// Constraints for `count` choices of a chat or (`chat` null) of a raw completion; empty if nothing
/// binds the answer.
Api<std::vector<std::shared_ptr<TokenConstraint>>> make_constraints(
    const ServedModel& model, const GenerationFields& request, const ChatRequest* chat,
    size_t count, std::vector<std::string>* warnings);
/// Starts a generation that ends if the client of the exchange disconnects.
Api<std::shared_ptr<Generation>> start_generation(App& app, Exchange& exchange,
                                                  GenerationInput input,
                                                  std::shared_ptr<ReplyWriter> writer);

/// Starts a generation. `Stream` writes its answer as it comes if `streams` is set, else `Document`
/// writes it whole; both are constructed from the exchange and `answer`.
template <class Document, class Stream, class Answer>
void start_answer(App& app, const ExchangePtr& exchange, GenerationInput input, Answer answer,
                  bool streams, ErrorForm form) {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<ReplyWriter> writer;
  if (streams) {
    writer = stream = std::make_shared<Stream>(exchange, std::move(answer));
  } else {
    writer = std::make_shared<Document>(exchange, std::move(answer));
  }
  const auto started = start_generation(app, *exchange, std::move(input), std::move(writer));
  if (!started) return respond_error(*exchange, started.error(), form);
  if (stream) stream->begin();
}

/// Counts of an answer, over its choices.
struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0, cached_tokens = 0;
  std::string cache_report;
  DraftCounts drafts;
  void add(const ChoiceEnd& end, bool first_of_prompt);
  Json to_json() const;  ///< OpenAI's form
};

/// A rendered prompt: its text, and its ids under both names that clients know.
Json rendered_json(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt);
/// Answers with the prompt of a chat that `read` reads; nothing is generated.
template <class Read>
void handle_render(App& app, const ExchangePtr& exchange, ErrorForm form, Read read) {
  handle_body(app, exchange, form, std::move(read),
              [&app, exchange](const ChatRequest& request) -> Api<App::Continuation> {
                auto prompt = chat_prompt(app.model(), request);
                if (!prompt) return tl::unexpected(prompt.error());
                return answer_with(exchange, rendered_json(*app.model().tokenizer, *prompt));
              });
}

/// The text of one token, broken UTF-8 as U+FFFD.
std::string token_text(const Tokenizer& tokenizer, int32_t id);
/// The name of a token in log-probabilities: its text, or vLLM's "token_id:N".
struct TokenNames {
  const Tokenizer* tokenizer = nullptr;
  bool as_ids = false;
  std::string operator()(int32_t id) const;
};
/// {"token", "logprob", "bytes", "top_logprobs"}
Json chat_logprob(const TokenNames& names, const ReplyToken& token);
/// vLLM's prompt_logprobs: [null, {"id": {"logprob", "rank", "decoded_token"}}, ...]
Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<ReplyToken>& tokens);

/// A value of a query string, percent-decoded; nothing if it is missing or malformed.
std::optional<std::string> query_value(std::string_view query, std::string_view name);
/// The error for a parameter of the query that is not what is `expected`.
ApiError wrong_query(std::string_view name, std::string_view expected);
/// A whole number of the query; `otherwise` if it is missing.
Api<int64_t> query_integer(const HttpRequest& request, std::string_view name, int64_t low,
                           int64_t high, int64_t otherwise);

std::string sse(const Json& document);
/// An SSE event whose name is the document's "type".
std::string named_sse(const Json& document);

}  // namespace moxie
