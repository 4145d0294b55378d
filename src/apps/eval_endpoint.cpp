#include "apps/eval_endpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/clock.h"
#include "lab/serve_bench_stream.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr long kConnectTimeoutS = 15;
constexpr double kLeastWaitS = 0.5;

struct Received {
  std::string body;
  double retry_after_s = 0;
  bool is_too_long = false;
};

size_t on_body(char* data, size_t size, size_t count, void* to) {
  auto* received = static_cast<Received*>(to);
  if (received->body.size() + size * count > kMaxBodyBytes) {
    received->is_too_long = true;
    return 0;
  }
  received->body.append(data, size * count);
  return size * count;
}

size_t on_header(char* data, size_t size, size_t count, void* to) {
  constexpr std::string_view kName = "retry-after:";
  const std::string line(data, size * count);
  const bool is_it = line.size() > kName.size() &&
                     std::equal(kName.begin(), kName.end(), line.begin(), [](char a, char b) {
                       return a == std::tolower(static_cast<unsigned char>(b));
                     });
  if (is_it) static_cast<Received*>(to)->retry_after_s = std::atof(line.c_str() + kName.size());
  return size * count;
}

int on_progress(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(stop)->load() ? 1 : 0;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t count_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<int64_t>() : 0;
}

}  // namespace

Result<EvalReply> parse_completion(const std::string& body, const std::string& where) {
  const auto bad = [&](const char* what) {
    return fail(fmt::format("the answer is no chat completion: {}: {}", what, error_text(body)),
                where);
  };
  const auto parsed = harmony::parse_json_bounded(body, where);
  if (!parsed || !(*parsed)->is_object()) return bad("no JSON object");
  const Json& document = **parsed;
  const auto choices = document.find("choices");
  if (choices == document.end() || !choices->is_array() || choices->empty() ||
      !choices->front().is_object())
    return bad("no choices");
  const Json& choice = choices->front();
  const auto message = choice.find("message");
  if (message == choice.end() || !message->is_object()) return bad("no message");
  EvalReply reply{.content = text_of(*message, "content"),
                  .reasoning = text_of(*message, "reasoning_content"),
                  .calls = {},
                  .finish_reason = text_of(choice, "finish_reason")};
  if (reply.reasoning.empty()) reply.reasoning = text_of(*message, "reasoning");
  if (const auto calls = message->find("tool_calls"); calls != message->end()) {
    if (!calls->is_array() && !calls->is_null()) return bad("tool_calls is no list");
    for (const Json& call : *calls) {
      const auto function = call.is_object() ? call.find("function") : call.end();
      if (!call.is_object() || function == call.end() || !function->is_object())
        return bad("a call without a function");
      reply.calls.push_back({text_of(*function, "name"), text_of(*function, "arguments")});
    }
  }
  if (const auto usage = document.find("usage"); usage != document.end() && usage->is_object()) {
    reply.prompt_tokens = count_of(*usage, "prompt_tokens");
    reply.completion_tokens = count_of(*usage, "completion_tokens");
  }
  return reply;
}

EvalEndpoint::EvalEndpoint(const hub::CurlApi& api, std::string base, std::string api_key,
                           int timeout_s, const std::atomic<bool>& stop)
    : api_(api),
      base_(std::move(base)),
      api_key_(std::move(api_key)),
      timeout_s_(timeout_s),
      stop_(stop) {}

Result<std::unique_ptr<EvalEndpoint>> EvalEndpoint::open(const std::string& url, std::string model,
                                                         std::string api_key, int timeout_s,
                                                         const std::atomic<bool>& stop) {
  if (!url.starts_with("http://") && !url.starts_with("https://"))
    return fail("'" + url + "' is no address", "--url", "such as http://127.0.0.1:8000");
  std::string base = url;
  while (base.ends_with('/')) base.pop_back();
  if (!base.ends_with("/v1")) base += "/v1";
  auto api = hub::curl_api();
  if (!api) return fail(api.error());
  std::unique_ptr<EvalEndpoint> endpoint(
      new EvalEndpoint(**api, std::move(base), std::move(api_key), timeout_s, stop));
  endpoint->model_ = std::move(model);
  if (endpoint->model_.empty()) {
    if (auto status = endpoint->find_model(); !status) return fail(std::move(status.error()));
  }
  return endpoint;
}

Status EvalEndpoint::find_model() {
  auto response = request("/models", nullptr);
  if (!response) return fail(std::move(response.error()));
  const std::string where = base_ + "/models";
  if (response->status != 200)
    return fail(fmt::format("status {}: {}", response->status, error_text(response->body)), where,
                "name the model with --model");
  const auto parsed = harmony::parse_json_bounded(response->body, where);
  if (parsed && (*parsed)->is_object()) {
    const auto data = (*parsed)->find("data");
    if (data != (*parsed)->end() && data->is_array() && !data->empty() && data->front().is_object())
      model_ = text_of(data->front(), "id");
  }
  if (model_.empty()) return fail("names no model", where, "name the model with --model");
  return {};
}

Result<EvalEndpoint::Response> EvalEndpoint::request(const std::string& path,
                                                     const std::string* body) const {
  const std::string url = base_ + path;
  CURL* handle = api_.easy_init();
  if (handle == nullptr) return fail("libcurl has no memory", url);
  Received received;
  char detail[CURL_ERROR_SIZE] = {};
  curl_slist* headers = api_.slist_append(nullptr, "Content-Type: application/json");
  if (!api_key_.empty())
    headers = api_.slist_append(headers, ("Authorization: Bearer " + api_key_).c_str());
  const auto set = [&](CURLoption option, auto value) { api_.easy_setopt(handle, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_USERAGENT, "moxie/" MOXIE_VERSION);
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, detail);
  set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  set(CURLOPT_TIMEOUT, static_cast<long>(timeout_s_));
  set(CURLOPT_WRITEFUNCTION, &on_body);
  set(CURLOPT_WRITEDATA, &received);
  set(CURLOPT_HEADERFUNCTION, &on_header);
  set(CURLOPT_HEADERDATA, &received);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(CURLOPT_XFERINFODATA, &stop_);
  if (body != nullptr) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    set(CURLOPT_POSTFIELDS, body->c_str());
  }
  const CURLcode code = api_.easy_perform(handle);
  Response response{.body = std::move(received.body), .retry_after_s = received.retry_after_s};
  api_.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &response.status);
  api_.slist_free_all(headers);
  api_.easy_cleanup(handle);
  if (received.is_too_long)
    return fail(fmt::format("the answer is longer than {} bytes", kMaxBodyBytes), url);
  if (code == CURLE_OPERATION_TIMEDOUT)
    return fail(fmt::format("no answer within {} s", timeout_s_), url,
                "--timeout sets the seconds");
  if (code != CURLE_OK)
    return fail(detail[0] != '\0' ? detail : api_.easy_strerror(code), url, "is the server up?");
  return response;
}

Result<EvalReply> EvalEndpoint::ask(const std::string& request_text) const {
  Json body = Json::parse(request_text, nullptr, false);
  CHECK(body.is_object());
  body["model"] = model_;
  const std::string text = body.dump();
  const std::string path = "/chat/completions";
  const auto give_up = Clock::now() + std::chrono::seconds(timeout_s_);
  for (;;) {
    auto response = request(path, &text);
    if (!response) return fail(std::move(response.error()));
    if (response->status == 200) return parse_completion(response->body, base_ + path);
    const bool is_busy = response->status == 429 || response->status == 503;
    const auto wait = std::chrono::duration<double>(
        std::clamp(response->retry_after_s, kLeastWaitS, static_cast<double>(timeout_s_)));
    if (!is_busy || stop_.load() || Clock::now() + wait > give_up)
      return fail(fmt::format("status {}: {}", response->status, error_text(response->body)),
                  base_ + path, response->status == 401 ? "--api-key names the key" : "");
    const auto until = Clock::now() + wait;
    while (Clock::now() < until && !stop_.load())
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace moxie
