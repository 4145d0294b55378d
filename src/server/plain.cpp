// The endpoints that generate nothing: probes, models, tokens, rendering, metrics.
#include <fmt/format.h>

#include <ctime>

#include "engine/parallel.h"
#include "server/endpoints.h"
#include "text/utf8.h"

namespace moxie {
namespace {

std::string rfc3339(int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

// The members that OpenAI, vLLM and Anthropic have for a model.
Json model_json(const App& app, const std::string& name) {
  const int64_t created = app.has_model() ? app.model().loaded_at : 0;
  const Json context = app.has_model() ? Json(app.model().max_model_len) : Json();
  Json permission = Json::array();
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "moxie"},
          {"root", app.has_model() ? Json(app.model().engine->options().model) : Json()},
          {"parent", nullptr},
          {"max_model_len", context},
          {"permission", std::move(permission)},
          {"type", "model"},
          {"display_name", name},
          {"created_at", rfc3339(created)},
          {"lifecycle", "active"},
          {"max_input_tokens", context},
          {"max_tokens", context}};
}

// What clients may learn of a service that is not healthy.
Json fault_json(const App& app) {
  Json body = {{"status", "device failed"}};
  RankGroup* const ranks = app.model().engine->ranks();
  const auto status = ranks == nullptr ? Status{} : ranks->link().status();
  if (!status) body["error"] = status.error().message();
  return body;
}

}  // namespace

void handle_health(App& app, const ExchangePtr& exchange) {
  const std::string_view state = app.state();
  const bool ok = state == "ok", has_failed = state == "device failed";
  HttpResponse response =
      json_response(has_failed ? fault_json(app) : Json{{"status", state}}, ok ? 200 : 503);
  if (!ok) response.headers.push_back({"Retry-After", "1"});
  exchange->respond(std::move(response));
}

void handle_live(App& app, const ExchangePtr& exchange) {
  // Only a restart helps after the device has failed.
  const bool healthy = !app.has_model() || app.stats().healthy;
  exchange->respond(
      json_response(healthy ? Json{{"status", "ok"}} : fault_json(app), healthy ? 200 : 503));
}

void handle_version(App&, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"version", MOXIE_VERSION}}));
}

void handle_models(App& app, const ExchangePtr& exchange) {
  Json list = Json::array();
  for (const std::string& name : app.options().model_names) list.push_back(model_json(app, name));
  const Json first = list.empty() ? Json() : list.front()["id"];
  const Json last = list.empty() ? Json() : list.back()["id"];
  exchange->respond(json_response({{"object", "list"},
                                   {"data", std::move(list)},
                                   {"first_id", first},
                                   {"last_id", last},
                                   {"has_more", false}}));
}

void handle_model(App& app, const ExchangePtr& exchange) {
  const std::string name = exchange->request().path.substr(std::string("/v1/models/").size());
  if (auto status = app.check_model(name); !status || name.empty()) {
    return respond_error(*exchange, status ? ApiError{.status = 404, .message = "no model is named"}
                                           : status.error());
  }
  exchange->respond(json_response(model_json(app, name)));
}

void handle_metrics(App& app, const ExchangePtr& exchange) {
  std::optional<ServiceStats> stats;
  if (app.has_model()) stats = app.stats();
  std::optional<KvEventCounters> events;
  if (app.events() != nullptr) events = app.events()->counters();
  std::vector<RankFacts> ranks;
  if (app.has_model() && app.model().engine->ranks() != nullptr)
    ranks = app.model().engine->ranks()->facts();
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = app.metrics().text(app.model_name(), stats ? &*stats : nullptr,
                                                events ? &*events : nullptr, ranks)});
}

void handle_tokenize(App& app, const ExchangePtr& exchange) {
  handle_body(app, exchange, ErrorForm::kOpenAi, read_tokenize_request,
              [&app, exchange](const TokenizeRequest& request) -> Api<App::Continuation> {
                const ServedModel& model = app.model();
                std::vector<int32_t> ids;
                if (request.chat) {
                  auto prompt = chat_prompt(model, *request.chat);
                  if (!prompt) return tl::unexpected(prompt.error());
                  ids = std::move(*prompt);
                } else {
                  ids = model.tokenizer->encode(request.prompt);
                }
                Json answered = {{"count", ids.size()},
                                 {"max_model_len", model.max_model_len},
                                 {"tokens", ids},
                                 {"token_strs", nullptr}};
                if (request.return_token_strings) {
                  Json strings = Json::array();
                  for (const int32_t id : ids) {
                    strings.push_back(token_text(*model.tokenizer, id));
                  }
                  answered["token_strs"] = std::move(strings);
                }
                return answer_with(exchange, answered);
              });
}

void handle_detokenize(App& app, const ExchangePtr& exchange) {
  handle_body(app, exchange, ErrorForm::kOpenAi, read_detokenize_request,
              [&app, exchange](const DetokenizeRequest& request) -> Api<App::Continuation> {
                auto text = app.model().tokenizer->decode(request.tokens);
                if (!text) return invalid("tokens", text.error().message(), "invalid_value");
                return answer_with(exchange, {{"prompt", repaired_utf8(*text)}});
              });
}

void handle_chat_render(App& app, const ExchangePtr& exchange) {
  handle_render(app, exchange, ErrorForm::kOpenAi, read_chat_request);
}

void handle_debug_kernels(App& app, const ExchangePtr& exchange) {
  const Engine& engine = *app.model().engine;
  Json launches = Json::array();
  for (const auto& count : app.model().engine->kernels().counts()) {
    Json row = {{"step", count.op->name}, {"name", count.name}, {"launches", count.launches}};
    if (const auto proven = engine.self_test().proven(count.name)) row["proven"] = *proven;
    launches.push_back(std::move(row));
  }
  exchange->respond(json_response({{"model", engine.options().model},
                                   {"device", app.model().engine->device().properties().name},
                                   {"tuning", engine.tuning().text()},
                                   {"self_test", engine.self_test().text()},
                                   {"kernels", std::move(launches)}}));
}

void handle_openapi(App&, const ExchangePtr& exchange) {
  exchange->respond(json_response(openapi_document()));
}

}  // namespace moxie
