// What the benchmark asks an endpoint before it measures: model, latency, counts of tokens, fields.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/serve_bench.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLatencyTimes = 3;

Error fault_of(const ServeClient::Answer& answer, const std::string& url) {
  if (!answer.error.kind.empty()) return {answer.error.message, url, ""};
  return {fmt::format("status {}: {}", answer.status, error_text(answer.body)), url,
          answer.status == 401 || answer.status == 403 ? "give its key with --api-key"
          : answer.status == 404 ? "is this the address of an OpenAI-compatible endpoint?"
                                 : ""};
}

bool is_ok(const ServeClient::Answer& answer) {
  return answer.error.kind.empty() && answer.status == 200;
}

Json messages_of(const PromptText& text) {
  Json messages = Json::array();
  if (!text.context.empty()) messages.push_back({{"role", "system"}, {"content", text.context}});
  messages.push_back({{"role", "user"}, {"content", text.user}});
  return messages;
}

std::string joined(const PromptText& text) {
  if (text.context.empty() || text.user.empty()) return text.context + text.user;
  return text.context + " " + text.user;
}

}  // namespace

std::string ServeBench::body_of(size_t index, const PromptText& text, int32_t n_gen,
                                bool is_stream) const {
  Json body = {{"model", facts_[index].model}};
  if (options_.is_chat)
    body["messages"] = messages_of(text);
  else
    body["prompt"] = joined(text);
  body["max_tokens"] = n_gen;
  body["temperature"] = 0;
  if (is_stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (facts_[index].tells_token_ids) body["return_token_ids"] = true;
  }
  if (is_stream && options_.ignores_eos) {
    body["ignore_eos"] = true;
    body["min_tokens"] = n_gen;
  }
  return body.dump();
}

Result<std::unique_ptr<ServeBench>> ServeBench::prepare(const ServeOptions& options,
                                                        const std::atomic<bool>& stop) {
  std::unique_ptr<ServeBench> bench(new ServeBench(options, stop));
  auto client = ServeClient::make(options.limits, stop);
  if (!client) return fail(client.error());
  bench->client_ = std::move(*client);
  for (size_t i = 0; i < options.endpoints.size(); ++i) {
    if (auto status = bench->prepare_endpoint(i); !status) return fail(status.error());
  }
  return bench;
}

Status ServeBench::prepare_endpoint(size_t index) {
  facts_[index].url = options_.endpoints[index].url;
  if (auto status = read_model(index); !status) return status;
  if (options_.measures_latency) {
    if (auto status = measure_latency(index); !status) return status;
  }
  if (auto status = calibrate(index); !status) return status;
  return try_stream(index);
}

Status ServeBench::read_model(size_t index) {
  const Endpoint& endpoint = options_.endpoints[index];
  const std::string url = endpoint.base + "/models";
  const auto answer = client_->ask(endpoint, url, "");
  if (!answer.error.kind.empty()) return fail(fault_of(answer, endpoint.url));
  facts_[index].model = options_.model;
  if (!options_.model.empty()) return {};
  if (!is_ok(answer)) {
    Error error = fault_of(answer, url);
    if (error.hint.empty()) error.hint = "or name the model with --model";
    return fail(std::move(error));
  }
  const Json json = Json::parse(answer.body, nullptr, false);
  const Json first = json.is_object() ? json.value(Json::json_pointer("/data/0"), Json()) : Json();
  const Json id = first.is_object() ? first.value("id", Json()) : Json();
  if (!id.is_string())
    return fail("no list of models: " + error_text(answer.body), url,
                "name the model with --model");
  facts_[index].model = id.get<std::string>();
  return {};
}

// As llama-benchy does: the mean of three lists of models. The connection is open already.
Status ServeBench::measure_latency(size_t index) {
  const Endpoint& endpoint = options_.endpoints[index];
  std::vector<double> seconds;
  for (int i = 0; i < kLatencyTimes; ++i) {
    const auto answer = client_->ask(endpoint, endpoint.base + "/models", "");
    if (!answer.error.kind.empty()) return fail(fault_of(answer, endpoint.url));
    seconds.push_back(answer.seconds);
  }
  facts_[index].latency_s = mean(seconds);
  return {};
}

// By vLLM's /tokenize where the endpoint has it, which generates nothing.
Result<int64_t> ServeBench::count_tokens(size_t index, const PromptText& text) {
  if (facts_[index].counts_by == "usage") return count_by_usage(index, text);
  const Endpoint& endpoint = options_.endpoints[index];
  Json body = {{"model", facts_[index].model}};
  if (options_.is_chat)
    body["messages"] = messages_of(text);
  else
    body["prompt"] = joined(text);
  const auto answer = client_->ask(endpoint, endpoint.root + "/tokenize", body.dump());
  if (!answer.error.kind.empty()) return fail(fault_of(answer, endpoint.url));
  const Json json = is_ok(answer) ? Json::parse(answer.body, nullptr, false) : Json();
  const Json count = json.is_object() ? json.value("count", Json()) : Json();
  if (count.is_number_integer() && count > 0) {
    facts_[index].counts_by = "tokenize";
    return count.get<int64_t>();
  }
  if (facts_[index].counts_by == "tokenize")
    return fail(fault_of(answer, endpoint.root + "/tokenize"));
  facts_[index].counts_by = "usage";
  return count_by_usage(index, text);
}

Result<int64_t> ServeBench::count_by_usage(size_t index, const PromptText& text) {
  const Endpoint& endpoint = options_.endpoints[index];
  const std::string url = endpoint.base + path();
  const auto answer = client_->ask(endpoint, url, body_of(index, text, 1, false));
  if (!is_ok(answer)) return fail(fault_of(answer, url));
  auto usage = read_answer_usage(answer.body);
  if (!usage)
    return fail(usage.error().message(), url, "without counts no prompt of a length can be made");
  if (usage->num_prompt <= 0)
    return fail(fmt::format("usage tells of {} prompt tokens", usage->num_prompt), url,
                "without counts no prompt of a length can be made");
  ServeTraffic* traffic = &facts_[index].traffic;
  ++traffic->num_requests;
  traffic->num_prompt += usage->num_prompt;
  traffic->num_completion += std::max<int64_t>(0, usage->num_completion);
  return usage->num_prompt;
}

Status ServeBench::calibrate(size_t index) {
  auto maker = PromptMaker::calibrate(
      [&](const PromptText& text) -> Result<int64_t> {
        if (stop_.load()) return fail("interrupted", "bench serve");
        return count_tokens(index, text);
      },
      options_.seed + index);
  if (!maker) {
    Error error = maker.error();
    error.where = options_.endpoints[index].url + ": " + error.where;
    return fail(std::move(error));
  }
  facts_[index].num_template_tokens = maker->num_template_tokens();
  prompts_.push_back(std::move(*maker));
  return {};
}

// A short stream, with vLLM's `return_token_ids` and then without: does this endpoint take it?
Status ServeBench::try_stream(size_t index) {
  const Endpoint& endpoint = options_.endpoints[index];
  auto text = prompts_[index].make(prompts_[index].num_template_tokens() + 16, 0);
  if (!text) return fail(text.error());
  for (const bool asks_ids : {true, false}) {
    facts_[index].tells_token_ids = asks_ids;
    constexpr int32_t kTokens = 8;
    const StreamRequest request{.endpoint = &endpoint,
                                .path = path(),
                                .body = body_of(index, *text, kTokens, true),
                                .num_tokens = kTokens};
    if (auto status = client_->start(next_number_++, request); !status) return status;
    std::vector<std::pair<int64_t, StreamResult>> ended;
    while (ended.empty()) {
      if (auto status = client_->wait(1, &ended); !status) return status;
    }
    const StreamResult& result = ended.front().second;
    if (asks_ids && (result.status == 400 || result.status == 422)) continue;
    if (!result.error.kind.empty())
      return fail(result.error.kind + ": " + result.error.message, endpoint.base + path());
    count_traffic(index, result);
    facts_[index].tells_token_ids = asks_ids && result.num_token_ids >= 0;
    return {};
  }
  return fail("no stream was answered", endpoint.base + path());
}

}  // namespace moxie
