// The table of routes.
#include "server/routes.h"

#include <algorithm>
#include <array>

#include "server/anthropic.h"
#include "server/responses.h"

namespace moxie {
namespace {

std::vector<FieldInfo> chat_body() { return chat_fields().describe(); }
std::vector<FieldInfo> completion_body() { return completion_fields().describe(); }
std::vector<FieldInfo> detokenize_body() { return detokenize_fields().describe(); }
std::vector<FieldInfo> response_body() { return response_fields().describe(); }
std::vector<FieldInfo> counted_message_body() { return message_fields().describe(); }
// What is answered needs max_tokens, what is counted does not.
std::vector<FieldInfo> message_body() {
  std::vector<FieldInfo> list = counted_message_body();
  for (FieldInfo& field : list) {
    if (field.name == "max_tokens") field.required = true;
  }
  return list;
}
std::vector<FieldInfo> tokenize_body() {
  std::vector<FieldInfo> list = {
      {"model", "the served model's name", {{"type", "string"}}},
      {"prompt", "a text, without messages and the fields of a chat", {{"type", "string"}}},
      {"messages", "a conversation, with the fields of a chat", {{"type", "array"}}},
      {"add_special_tokens", "without effect: none are added", {{"type", "boolean"}}},
      {"return_token_strs", "the tokens' texts too", {{"type", "boolean"}}}};
  for (FieldInfo& field : chat_body()) {
    if (std::ranges::find(list, field.name, &FieldInfo::name) == list.end())
      list.push_back(std::move(field));
  }
  return list;
}

std::vector<FieldInfo> response_query() {
  return {{"stream", "its events, of one made with background and stream", {{"type", "boolean"}}},
          {"starting_after",
           "the number of the last event that was seen",
           {{"type", "integer"}, {"minimum", 0}}}};
}
std::vector<FieldInfo> loads_query() {
  return {{"include", "without effect: all is sent", {{"type", "string"}}}};
}
std::vector<FieldInfo> watch_query() {
  return {{"interval_ms",
           "between events; default 500",
           {{"type", "integer"}, {"minimum", 100}, {"maximum", 10000}}}};
}
std::vector<FieldInfo> items_query() {
  return {
      {"limit",
       "items a page; default 20",
       {{"type", "integer"}, {"minimum", 1}, {"maximum", 100}}},
      {"order", "default desc: the last first", {{"type", "string"}, {"enum", {"asc", "desc"}}}},
      {"after", "the id of the item before the page", {{"type", "string"}}}};
}

constexpr auto kOpenAi = ErrorForm::kOpenAi;
constexpr auto kAnthropic = ErrorForm::kAnthropic;

const std::array kRoutes = {
    Route{"GET", "/health", "200 when requests are answered, 503 before and after", handle_health,
          Route::kProbe},
    Route{"GET", "/readyz", "the same", handle_health, Route::kProbe},
    Route{"GET", "/ping", "the same", handle_health, Route::kProbe},
    Route{"GET", "/livez", "200 while the process can serve", handle_live, Route::kProbe},
    Route{"GET", "/version", "the version", handle_version, Route::kMonitor},
    Route{"GET", "/metrics", "Prometheus", handle_metrics, Route::kMonitor},
    Route{"GET", kPagePath, "a page to chat, which shows what answers cost", handle_page,
          Route::kPage},
    Route{"GET", "/v1/watch", "load, rates and times of steps as server-sent events", handle_watch,
          Route::kMonitor, kOpenAi, nullptr, watch_query},
    Route{"GET", "/openapi.json", "this document", handle_openapi, Route::kInfo},
    Route{"GET", "/v1/models", "the served names", handle_models, Route::kModel},
    Route{"GET", "/v1/models/{model}", "one of them", handle_model, Route::kModel},
    Route{"GET", "/debug/kernels", "kernels that ran, with counts", handle_debug_kernels,
          Route::kModel},
    Route{"GET", "/load", "requests that run or wait, as vLLM says it", handle_server_load,
          Route::kModel},
    Route{"GET", "/get_load", "the same as SGLang says it", handle_load, Route::kModel},
    Route{"GET", "/v1/loads", "load of requests, tokens and memory", handle_loads, Route::kModel,
          kOpenAi, nullptr, loads_query},
    Route{"GET", "/server_info", "sizes of the server, for routers", handle_server_info,
          Route::kModel},
    Route{"GET", "/get_server_info", "the same", handle_server_info, Route::kModel},
    Route{"GET", "/model_info", "the model, for routers", handle_model_info, Route::kModel},
    Route{"GET", "/get_model_info", "the same", handle_model_info, Route::kModel},
    Route{"GET", "/is_sleeping", "always false", handle_sleeping, Route::kInfo},
    Route{"GET", "/kv_event_sources", "where events of the KV cache are published",
          handle_event_sources, Route::kInfo},
    Route{"POST", "/flush_cache", "empties the prefix cache, if nothing runs or waits",
          handle_flush_cache, Route::kModel},
    Route{"GET", "/health_generate", "200 if the model draws a token, else 503",
          handle_health_generate, Route::kWork},
    Route{"POST", "/v1/chat/completions", "answers a conversation", handle_chat, Route::kWork,
          kOpenAi, chat_body},
    Route{"POST", "/v1/chat/completions/render", "the prompt of a conversation", handle_chat_render,
          Route::kWork, kOpenAi, chat_body},
    Route{"POST", "/v1/completions", "goes on with a text", handle_completions, Route::kWork,
          kOpenAi, completion_body},
    Route{"POST", "/v1/completions/render", "the prompts of a completion", handle_completion_render,
          Route::kWork, kOpenAi, completion_body},
    Route{"POST", "/v1/responses", "answers as items", handle_responses, Route::kWork, kOpenAi,
          response_body},
    Route{"POST", "/v1/responses/render", "the prompt of a response", handle_response_render,
          Route::kWork, kOpenAi, response_body},
    Route{"POST", "/v1/responses/input_tokens", "tokens of its prompt", handle_response_tokens,
          Route::kWork, kOpenAi, response_body},
    Route{"GET", "/v1/responses/{id}", "a stored response", handle_response_get, Route::kModel,
          kOpenAi, nullptr, response_query},
    Route{"DELETE", "/v1/responses/{id}", "forgets it", handle_response_delete, Route::kModel},
    Route{"POST", "/v1/responses/{id}/cancel", "ends it in the background", handle_response_cancel,
          Route::kModel},
    Route{"GET", "/v1/responses/{id}/input_items", "its input", handle_response_items,
          Route::kModel, kOpenAi, nullptr, items_query},
    Route{"POST", "/v1/messages", "answers a conversation, Anthropic's form", handle_messages,
          Route::kWork, kAnthropic, message_body},
    Route{"POST", "/v1/messages/render", "the prompt of a conversation", handle_message_render,
          Route::kWork, kAnthropic, message_body},
    Route{"POST", "/v1/messages/count_tokens", "tokens of its prompt", handle_count_tokens,
          Route::kWork, kAnthropic, counted_message_body},
    Route{"POST", "/tokenize", "a text's or conversation's tokens", handle_tokenize, Route::kWork,
          kOpenAi, tokenize_body},
    Route{"POST", "/detokenize", "the text of tokens", handle_detokenize, Route::kWork, kOpenAi,
          detokenize_body},
};

std::string_view next_segment(std::string_view* path) {
  const size_t slash = path->find('/', 1);
  const std::string_view segment = path->substr(0, slash);
  *path = slash == path->npos ? "" : path->substr(slash);
  return segment;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

bool matches(std::string_view pattern, std::string_view path) {
  // A model's name may hold slashes.
  if (pattern == "/v1/models/{model}") {
    constexpr std::string_view kPrefix = "/v1/models/";
    return path.starts_with(kPrefix) && path.size() > kPrefix.size();
  }
  while (!pattern.empty() && !path.empty()) {
    const std::string_view want = next_segment(&pattern), have = next_segment(&path);
    const bool any = want.starts_with("/{") && have.size() > 1;
    if (!any && want != have) return false;
  }
  return pattern.empty() && path.empty();
}

const Route* find_route(std::string_view method, std::string_view path, std::string* allow) {
  for (const Route& route : kRoutes) {
    if (!matches(route.pattern, path)) continue;
    if (route.method == method) return &route;
    if (!allow->empty()) *allow += ", ";
    *allow += route.method;
  }
  return nullptr;
}

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  if (secret.empty()) return false;
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

}  // namespace moxie
