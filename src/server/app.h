// The server's application: routes, keys, states (loading, ready, draining), and the objects that
// endpoints share. It runs on the HTTP server's thread, except jobs given to in_background().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/http.h"
#include "server/kv_event_publisher.h"
#include "server/response_store.h"
#include "server/workers.h"
#include "text/grammar.h"

namespace moxie {

/// The names under which a chat's answer has its reasoning.
enum class ReasoningField : uint8_t { kBoth, kReasoning, kReasoningContent };

struct Route;
class Watchers;

struct AppOptions {
  std::vector<std::string> model_names;  ///< answers carry the first
  std::vector<std::string> api_keys;     ///< none: no key is asked for
  std::vector<std::string> allowed_origins;
  bool log_json = false;
  bool log_requests = true;
  float default_temperature = 1;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  bool metrics_without_key = false;  ///< routes of Route::kMonitor ask for no key
  bool ui = true;                    ///< the page at /
  double drain_delay_s = 0;          ///< between readiness going off and the refusal of new work
  double drain_s = 30;
  ResponseStore::Limits store;
};

/// The loaded model as endpoints see it.
struct ServedModel {
  Engine* engine = nullptr;
  Service* service = nullptr;
  const Tokenizer* tokenizer = nullptr;
  harmony::ControlTokens control;
  int32_t max_model_len = 0;
  size_t longest_token_bytes = 0;
  grammar::Compiler* compiler = nullptr;  ///< null: no structured output
  int64_t loaded_at = 0;                  ///< seconds since 1970
};

/// A loaded engine as endpoints see it, without its service. `tokenizer`: null is the engine's own.
/// `compiler` receives the compiler of structured output, if the build has it.
Result<ServedModel> served_model(Engine& engine, const Tokenizer* tokenizer,
                                 std::unique_ptr<grammar::Compiler>* compiler);

class App final : public HttpHandler {
 public:
  explicit App(AppOptions options);
  ~App() override;

  void attach(HttpServer& server);
  /// The publisher of the prefix cache's events, which must outlive the requests. Without this call
  /// there is none.
  void set_events(const KvEventPublisher* events) { events_ = events; }
  /// The model is loaded: requests are answered from now on.
  void set_model(ServedModel model);
  /// Turns readiness off, and refuses new work after drain_delay_s (at once if the model is not
  /// loaded). `then` is called when the running work has ended or another drain_s has passed.
  void begin_drain(std::function<void()> then);
  /// Ends the threads. To be called before the model is destroyed.
  void stop();

  // HttpHandler
  Admission admit(const HttpRequest& request) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse refusal(int status, const std::string& why) override;
  std::vector<HttpHeader> common_headers(const HttpRequest& request) override;
  void log(const HttpLog& entry) override;

  // For endpoints.
  const AppOptions& options() const { return options_; }
  const ServedModel& model() const { return *model_; }
  const std::string& model_name() const { return options_.model_names.front(); }
  Metrics& metrics() { return metrics_; }
  ResponseStore& store() { return store_; }
  Watchers& watchers() { return *watchers_; }
  /// The memory's measured read rate, 1e9 bytes a second; 0: not known.
  double read_gb_s() const { return read_gb_s_; }
  void set_read_gb_s(double read_gb_s) { read_gb_s_ = read_gb_s; }
  GenerationParts parts();
  ServiceStats stats() const;
  /// Null: none is published.
  const KvEventPublisher* events() const { return events_; }
  bool ready() const { return model_.has_value() && !leaving_; }
  /// begin_drain() has been called.
  bool leaving() const { return leaving_; }
  /// New work is refused.
  bool draining() const { return draining_; }
  bool has_model() const { return model_.has_value(); }
  /// "loading", "ok", "draining" or "device failed".
  const char* state() const;
  /// 404 if the request names a model that is not served; an empty name is the served model.
  ApiStatus check_model(const std::string& name) const;
  /// The server whose handler this is, to give its thread work. From any thread.
  HttpServer& server() { return *server_; }
  /// Runs `job` on a worker, then the continuation that it returns on the server's thread, unless
  /// the client has gone. Answers with a refusal if too many jobs wait.
  using Continuation = std::function<void()>;
  void in_background(const std::shared_ptr<Exchange>& exchange, ErrorForm form,
                     std::function<Api<Continuation>(const std::string& body)> job);
  /// The same for a job that may take seconds: it holds up none but its like. `bytes`: its input.
  void in_slow_background(const std::shared_ptr<Exchange>& exchange, ErrorForm form, uint64_t bytes,
                          std::function<Api<Continuation>()> job);

 private:
  const Route* route_of(const HttpRequest& request, std::string* allow) const;
  bool has_key(const HttpRequest& request) const;
  void answer_preflight(Exchange& exchange) const;
  // Jobs of clients that have gone are left out.
  void run_on(Workers& workers, uint64_t bytes, const std::shared_ptr<Exchange>& exchange,
              ErrorForm form, std::function<Api<Continuation>()> job);
  void refuse_work();
  void wait_for_drain();
  void end_drain();

  AppOptions options_;
  Metrics metrics_;
  HttpServer* server_ = nullptr;
  const KvEventPublisher* events_ = nullptr;
  std::optional<ServedModel> model_;
  std::unique_ptr<Mailbox> mailbox_;
  ResponseStore store_;
  std::unique_ptr<Watchers> watchers_;
  std::atomic<double> read_gb_s_{0};
  Workers workers_, slow_workers_;
  bool leaving_ = false, draining_ = false;
  std::function<void()> drained_;
};

/// Answers with an error.
void respond_error(Exchange& exchange, const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);

}  // namespace moxie
