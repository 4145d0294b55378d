// Routes, keys, and start and end of the application.
#include "server/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>

#include "server/routes.h"
#include "server/watch.h"

namespace moxie {
namespace {

constexpr int kWorkerThreads = 2, kSlowThreads = 1;
constexpr uint64_t kMaxQueuedBytes = uint64_t{256} << 20;
constexpr double kDrainPollS = 0.05;

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

ErrorForm form_of(const HttpRequest& request) {
  return request.path.starts_with("/v1/messages") ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

bool has_body(const HttpRequest& request) {
  const std::string_view length = request.header("Content-Length");
  return !request.header("Transfer-Encoding").empty() || (!length.empty() && length != "0");
}

bool is_json_type(std::string_view type) {
  const std::string_view name = type.substr(0, type.find(';'));
  const size_t end = name.find_last_not_of(" \t");
  const std::string_view plain = end == name.npos ? "" : name.substr(0, end + 1);
  return plain.empty() || equals_ignoring_case(plain, "application/json");
}

}  // namespace

void respond_error(Exchange& exchange, const ApiError& error, ErrorForm form) {
  exchange.respond(error_response(error, form));
}

App::App(AppOptions options)
    : options_(std::move(options)),
      store_(options_.store),
      watchers_(std::make_unique<Watchers>(*this)),
      workers_(kWorkerThreads, kMaxQueuedBytes),
      slow_workers_(kSlowThreads, kMaxQueuedBytes) {}

App::~App() { stop(); }

void App::attach(HttpServer& server) {
  server_ = &server;
  mailbox_ = std::make_unique<Mailbox>(
      [&server](std::function<void()> work) { server.post(std::move(work)); });
}

void App::set_model(ServedModel model) { model_ = std::move(model); }

void App::stop() {
  workers_.stop();
  slow_workers_.stop();
}

const char* App::state() const {
  if (!has_model()) return "loading";
  if (leaving_) return "draining";
  return stats().healthy ? "ok" : "device failed";
}

GenerationParts App::parts() {
  return {*model_->service, *model_->tokenizer, model_->control, metrics_, *mailbox_};
}

ServiceStats App::stats() const { return model_->service->stats(); }

ApiStatus App::check_model(const std::string& name) const {
  const auto& names = options_.model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return tl::unexpected(
      ApiError{.status = 404,
               .message = fmt::format("The model '{}' does not exist. This server has '{}'.",
                                      name.substr(0, 256), names.front()),
               .type = "invalid_request_error",
               .param = "model",
               .code = "model_not_found"});
}

void App::in_background(const std::shared_ptr<Exchange>& exchange, ErrorForm form,
                        std::function<Api<Continuation>(const std::string& body)> job) {
  auto body = std::make_shared<std::string>(exchange->take_body());
  run_on(workers_, body->size(), exchange, form, [body, job = std::move(job)] {
    auto done = job(*body);
    body->clear();
    body->shrink_to_fit();
    return done;
  });
}

void App::in_slow_background(const std::shared_ptr<Exchange>& exchange, ErrorForm form,
                             uint64_t bytes, std::function<Api<Continuation>()> job) {
  if (!exchange->done()) run_on(slow_workers_, bytes, exchange, form, std::move(job));
}

void App::run_on(Workers& workers, uint64_t bytes, const std::shared_ptr<Exchange>& exchange,
                 ErrorForm form, std::function<Api<Continuation>()> job) {
  auto client_left = std::make_shared<std::atomic<bool>>(false);
  exchange->on_abort([client_left] { client_left->store(true); });
  const bool queued =
      workers.run(bytes + 1024, [this, exchange, form, client_left, job = std::move(job)] {
        if (client_left->load()) return;
        auto done = job();
        server_->post([exchange, form, done = std::move(done)] {
          if (exchange->done()) return;
          if (done) return (*done)();
          respond_error(*exchange, done.error(), form);
        });
      });
  if (queued) return;
  respond_error(*exchange,
                {.status = 503,
                 .message = "The server is busy reading other requests.",
                 .type = "service_unavailable_error",
                 .code = "busy",
                 .retry_after_s = 1},
                form);
}

void App::begin_drain(std::function<void()> then) {
  leaving_ = true;
  drained_ = std::move(then);
  if (!model_ || options_.drain_delay_s <= 0) return refuse_work();
  server_->after(options_.drain_delay_s, [this] { refuse_work(); });
}

void App::refuse_work() {
  draining_ = true;
  watchers_->end();
  if (model_) model_->service->begin_drain();
  server_->after(options_.drain_s, [this] { end_drain(); });
  wait_for_drain();
}

void App::end_drain() {
  auto then = std::exchange(drained_, nullptr);
  if (!then) return;
  // Waits for the launch under way, then answers what still ran.
  if (model_) model_->service->drain(0);
  then();
}

// Polls until the service has no requests left.
void App::wait_for_drain() {
  if (!drained_) return;
  const bool idle = !model_ || (stats().running == 0 && stats().waiting == 0);
  if (idle) return end_drain();
  server_->after(kDrainPollS, [this] { wait_for_drain(); });
}

// Like find_route(), but HEAD finds the route of GET, and --ui off leaves the page out.
const Route* App::route_of(const HttpRequest& request, std::string* allow) const {
  const std::string_view method = request.method;
  const Route* route = find_route(method == "HEAD" ? "GET" : method, request.path, allow);
  if (options_.ui || request.path != kPagePath) return route;
  allow->clear();
  return nullptr;
}

bool App::has_key(const HttpRequest& request) const {
  std::string_view given = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (given.size() > kBearer.size() &&
      equals_ignoring_case(given.substr(0, kBearer.size()), kBearer)) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.header("x-api-key");  // Anthropic's clients
  }
  bool found = false;
  for (const std::string& key : options_.api_keys) {
    found = equal_in_constant_time(given, key) || found;
  }
  return found;
}

Admission App::admit(const HttpRequest& request) {
  const ErrorForm form = form_of(request);
  const auto refuse = [&](const ApiError& error) {
    return Admission{.accept = false, .refusal = error_response(error, form)};
  };
  if (request.method == "OPTIONS") return {};
  std::string allow;
  const Route* route = route_of(request, &allow);
  const bool open =
      route != nullptr && (route->use == Route::kProbe || route->use == Route::kPage ||
                           (route->use == Route::kMonitor && options_.metrics_without_key));
  if (!options_.api_keys.empty() && !open && !has_key(request)) {
    Admission admission = refuse(
        {.status = 401, .message = "Incorrect API key provided.", .code = "invalid_api_key"});
    admission.refusal.headers.push_back({"WWW-Authenticate", "Bearer"});
    return admission;
  }
  if (route == nullptr && allow.empty()) {
    return refuse({.status = 404,
                   .message = fmt::format("Unknown request URL: {} {}.", request.method,
                                          request.path.substr(0, 256)),
                   .code = "unknown_url"});
  }
  if (route == nullptr) {
    Admission admission = refuse({.status = 405,
                                  .message = fmt::format("Not allowed to {} on {}: use {}.",
                                                         request.method, request.path, allow),
                                  .code = "method_not_supported"});
    admission.refusal.headers.push_back({"Allow", allow});
    return admission;
  }
  if (route->use >= Route::kModel && !model_ && !draining_) {
    return refuse({.status = 503,
                   .message = "The model is being loaded.",
                   .type = "service_unavailable_error",
                   .code = "loading",
                   .retry_after_s = 1});
  }
  if (route->use == Route::kWork && draining_) {
    return refuse({.status = 503,
                   .message = "The server is shutting down.",
                   .type = "service_unavailable_error",
                   .code = "shutting_down",
                   .retry_after_s = options_.drain_s});
  }
  if (has_body(request) && !is_json_type(request.header("Content-Type"))) {
    return refuse({.status = 415,
                   .message = "Content-Type must be application/json.",
                   .code = "unsupported_media_type"});
  }
  const std::string_view encoding = request.header("Content-Encoding");
  if (!encoding.empty() && !equals_ignoring_case(encoding, "identity")) {
    return refuse({.status = 415,
                   .message = "Content-Encoding is not supported: send the body as it is.",
                   .code = "unsupported_media_type"});
  }
  return {};
}

void App::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  if (request.method == "OPTIONS") return answer_preflight(*exchange);
  std::string allow;
  const Route* route = route_of(request, &allow);
  CHECK(route != nullptr, request.path);
  if (route->use >= Route::kModel && !model_) {  // shut down while loading
    return respond_error(*exchange, {.status = 503,
                                     .message = "The server is shutting down.",
                                     .type = "service_unavailable_error",
                                     .code = "shutting_down",
                                     .retry_after_s = 1});
  }
  route->handle(*this, exchange);
}

void App::answer_preflight(Exchange& exchange) const {
  HttpResponse response{.status = 204, .content_type = ""};
  response.headers = {{"Allow", "GET, POST, DELETE, OPTIONS"}};
  exchange.respond(std::move(response));
}

HttpResponse App::refusal(int status, const std::string& why) {
  ApiError error{.status = status, .message = why};
  if (status == 413) error.code = "request_too_large";
  if (status >= 500) error.type = "service_unavailable_error";
  if (status == 503) error.retry_after_s = 1;
  return error_response(error);
}

std::vector<HttpHeader> App::common_headers(const HttpRequest& request) {
  std::vector<HttpHeader> headers = {{"X-Request-Id", request.id}, {"Server", "moxie"}};
  if (options_.allowed_origins.empty()) return headers;
  const std::string_view origin = request.header("Origin");
  const auto& allowed = options_.allowed_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (origin.empty() ||
      (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end())) {
    return headers;
  }
  headers.push_back({"Access-Control-Allow-Origin", any ? "*" : std::string(origin)});
  if (!any) headers.push_back({"Vary", "Origin"});
  headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"});
  if (request.method == "OPTIONS") {
    headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"});
    const std::string_view wanted = request.header("Access-Control-Request-Headers");
    headers.push_back({"Access-Control-Allow-Headers",
                       wanted.empty() ? "Authorization, Content-Type" : std::string(wanted)});
    headers.push_back({"Access-Control-Max-Age", "600"});
  }
  return headers;
}

void App::log(const HttpLog& entry) {
  const HttpRequest& request = *entry.request;
  std::string allow;
  const Route* route = route_of(request, &allow);
  // All unknown paths share one entry, so that clients cannot make the table grow.
  metrics_.on_http(route != nullptr ? route->pattern : "other",
                   route != nullptr ? route->method : "other", entry.status, entry.seconds);
  const bool quiet = route != nullptr && route->use == Route::kProbe && entry.status == 200;
  if (!options_.log_requests || quiet) return;
  const int status = entry.aborted && entry.status == 0 ? 499 : entry.status;
  if (!options_.log_json) {
    log_info(fmt::format("{} \"{} {}\" {}{} {} bytes {:.3f} s {}", request.remote, request.method,
                         request.path, status, entry.aborted ? " aborted" : "", entry.bytes,
                         entry.seconds, request.id));
    return;
  }
  Json line = {{"time", timestamp()},      {"level", "info"},
               {"event", "request"},       {"request_id", request.id},
               {"remote", request.remote}, {"method", request.method},
               {"path", request.path},     {"status", status},
               {"bytes", entry.bytes},     {"duration_s", entry.seconds},
               {"aborted", entry.aborted}, {"user_agent", request.header("User-Agent")}};
  if (!request.trace_id.empty()) line["trace_id"] = request.trace_id;
  std::fputs((to_text(line) + "\n").c_str(), stderr);
}

}  // namespace moxie
