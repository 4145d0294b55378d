// The endpoints, one function a route, and what several of them share: from a chat to a prompt,
// from a request to a generation, and the forms of usage and log-probabilities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/app.h"
#include "server/requests.h"

namespace moxie {

using ExchangePtr = std::shared_ptr<Exchange>;

void handle_chat(App& app, ExchangePtr exchange);
void handle_completions(App& app, ExchangePtr exchange);
void handle_responses(App& app, ExchangePtr exchange);
void handle_response_get(App& app, ExchangePtr exchange);
void handle_response_delete(App& app, ExchangePtr exchange);
void handle_response_cancel(App& app, ExchangePtr exchange);
void handle_response_items(App& app, ExchangePtr exchange);
void handle_messages(App& app, ExchangePtr exchange);
void handle_count_tokens(App& app, ExchangePtr exchange);
void handle_tokenize(App& app, ExchangePtr exchange);
void handle_detokenize(App& app, ExchangePtr exchange);
void handle_chat_render(App& app, ExchangePtr exchange);
void handle_completion_render(App& app, ExchangePtr exchange);
void handle_models(App& app, ExchangePtr exchange);
void handle_model(App& app, ExchangePtr exchange);
void handle_health(App& app, ExchangePtr exchange);
void handle_live(App& app, ExchangePtr exchange);
void handle_version(App& app, ExchangePtr exchange);
void handle_metrics(App& app, ExchangePtr exchange);
void handle_debug_kernels(App& app, ExchangePtr exchange);
void handle_openapi(App& app, ExchangePtr exchange);

/// The OpenAPI document of all routes, from the tables of fields.
const Json& openapi_document();

/// The prompt of a chat, checked against the context.
Api<std::vector<int32_t>> chat_prompt(const ServedModel& model, const ChatRequest& request);
/// Where a prompt is too long: 400.
ApiStatus check_length(const ServedModel& model, size_t num_tokens, const char* param);
/// Before anything is tokenized: a text that cannot fit, however well its bytes are packed.
ApiStatus check_text_bytes(const ServedModel& model, size_t num_bytes, const char* param);
/// Ids in the fields of a request exist.
ApiStatus check_ids(const ServedModel& model, const GenerationFields& request);

/// What `request` asks of the engine; without prompts.
GenerationInput generation_input(const App& app, const GenerationFields& request);
/// The same for a chat, with its prompt, harmony's options and the constraints of tools and schema.
/// Fails where what binds the answer cannot be enforced. Takes its time: for workers.
Api<GenerationInput> chat_input(const App& app, const ChatRequest& request);
/// Constraints for `count` choices of a chat or (`chat` null) of a raw completion; empty where
/// nothing is to be bound.
Api<std::vector<std::shared_ptr<TokenConstraint>>> make_constraints(
    const ServedModel& model, const GenerationFields& request, const ChatRequest* chat,
    size_t count, std::vector<std::string>* warnings);
/// Starts a generation whose life is bound to the exchange: if the client goes, it ends.
Api<std::shared_ptr<Generation>> start_generation(App& app, Exchange& exchange,
                                                  GenerationInput input,
                                                  std::shared_ptr<ReplyWriter> writer);

/// Counts of an answer, over its choices.
struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0, cached_tokens = 0;
  std::string cache_report;
  void add(const ChoiceEnd& end, bool first_of_prompt);
  Json to_json() const;  ///< OpenAI's form
};

/// The text of one token, broken UTF-8 as U+FFFD.
std::string token_text(const Tokenizer& tokenizer, int32_t id);
/// {"token", "logprob", "bytes", "top_logprobs"}
Json chat_logprob(const Tokenizer& tokenizer, const ReplyToken& token);
/// vLLM's prompt_logprobs: [null, {"id": {"logprob", "rank", "decoded_token"}}, ...]
Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<ReplyToken>& tokens);

std::string sse(const Json& document);
/// With the event's name, which is the document's "type".
std::string named_sse(const Json& document);

}  // namespace moxie
