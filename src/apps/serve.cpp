// moxie serve: the HTTP server. It listens first, so that a port in use is reported at once and
// probes are answered while the model loads on a thread of its own.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>

#include "apps/cli.h"
#include "apps/kernels_json.h"
#include "apps/ranks.h"
#include "apps/serve_status.h"
#include "apps/speculation_flags.h"
#include "core/bytes.h"
#include "engine/parallel.h"
#include "engine/service.h"
#include "engine/tokenizer_source.h"
#include "server/app.h"

namespace moxie {
namespace {

constexpr Bounds<float> kSeconds{0, 1e6};

struct ServeFlags {
  EngineOptions engine;
  SpeculationFlags speculation;
  HttpOptions http;
  AppOptions app;
  ServiceOptions service;
  KvEventConfig events;
  std::string key_file, tokenizer, kv_memory, kv_events,
      prefix_cache = "on", async = "on", log_format = "text", debug_fault, open_metrics = "off",
      reasoning_field = "both", ui = "on";
  int32_t max_num_seqs = 0, max_batch_tokens = 0;
  float drain_s = 30, drain_delay_s = 0, header_s = 10, body_s = 60, keep_alive_s = 75,
        write_s = 30, ping_s = 15;
  uint64_t max_body = uint64_t{16} << 20, max_stream_buffer = 1 << 20;
  int32_t max_header = 32 << 10, max_responses = 1000;
  bool no_access_log = false;

  void declare(Flags& flags);
  Status complete(const Flags& flags);
};

void ServeFlags::declare(Flags& flags) {
  declare_model_flags(flags, &engine);
  flags.text("--tokenizer", &tokenizer,
             "file or model whose tokenizer to use; default: the model's");
  flags.text("--host", &http.host, "address to listen on");
  flags.integer("--port", &http.port, {0, 65535}, "0: any free one");
  flags.text("--ssl-cert", &http.ssl_certificate, "PEM certificate chain: serve HTTPS");
  flags.text("--ssl-key", &http.ssl_key, "PEM key of the certificate");
  flags.text("--ssl-certfile", &http.ssl_certificate, "vLLM's name of --ssl-cert");
  flags.text("--ssl-keyfile", &http.ssl_key, "vLLM's name of --ssl-key");
  flags.texts("--api-key", &app.api_keys, "asked for on every route but the probes; repeatable");
  flags.text("--api-key-file", &key_file, "file with a key a line");
  flags.choice("--metrics-without-key", &open_metrics, {"on", "off"},
               "on: /metrics, /version and /v1/watch ask for no key");
  flags.texts("--served-model-name", &app.model_names, "name in the API; repeatable");
  flags.texts("--allowed-origin", &app.allowed_origins, "CORS: an origin, or *; repeatable");
  flags.integer("--max-num-seqs", &max_num_seqs, {0, kMostSeqs},
                "requests that run at once; 0: 256");
  flags.integer("--max-num-batched-tokens", &max_batch_tokens, {0, kMostBatchTokens},
                "tokens a step; 0: what suits the device, at least twice --max-num-seqs");
  flags.text("--kv-cache-memory", &kv_memory, "such as 512MiB or 20GiB; default: what suits");
  speculation.declare(flags);
  flags.integer("--max-queue", &service.max_queue, kFromZero,
                "requests that wait; the next gets 429");
  flags.choice("--ui", &ui, {"on", "off"}, "on: a page at / to chat, without a key");
  flags.choice("--prefix-caching", &prefix_cache, {"on", "off"}, "prompts share their beginnings");
  flags.text("--kv-events-config", &kv_events,
             "JSON with vLLM's fields: publish events of the prefix cache over ZeroMQ");
  flags.choice("--async-scheduling", &async, {"on", "off"},
               "plan a step while the device runs the one before");
  flags.choice("--reasoning-field", &reasoning_field, {"both", "reasoning", "reasoning_content"},
               "the names under which a chat's answer has its reasoning");
  flags.number("--drain-delay", &drain_delay_s, kSeconds,
               "seconds after SIGTERM in which new requests are still taken");
  flags.number("--drain-timeout", &drain_s, kSeconds, "seconds for running requests after SIGTERM");
  flags.integer("--max-header-bytes", &max_header, {1024, kMostCount}, "of a request");
  flags.unsigned64("--max-body-bytes", &max_body, {1024, uint64_t{1} << 40}, "of a request");
  flags.unsigned64("--max-stream-buffer", &max_stream_buffer, {1024, uint64_t{1} << 40},
                   "bytes of a stream that its reader has not taken; beyond it is dropped");
  flags.integer("--max-connections", &http.limits.connections, kFromZero,
                "0: as descriptors allow");
  flags.number("--header-timeout", &header_s, kSeconds, "seconds for a request's header");
  flags.number("--body-timeout", &body_s, kSeconds, "seconds for its body");
  flags.number("--keep-alive-timeout", &keep_alive_s, kSeconds, "seconds between requests");
  flags.number("--write-timeout", &write_s, kSeconds, "seconds for a reader that takes nothing");
  flags.number("--ping-interval", &ping_s, kSeconds, "seconds between comments on a silent stream");
  flags.integer("--max-stored-responses", &max_responses, kFromZero, "of /v1/responses");
  flags.choice("--log-format", &log_format, {"text", "json"}, "of the access log, on stderr");
  flags.toggle("--no-access-log", &no_access_log, "no line a request");
  flags.text("--debug-fault", &debug_fault,
             "for tests: step:N makes step N fail, token:ID each step that holds this token");
}

using Fault = decltype(ServiceOptions::fault);

Result<Fault> parse_fault(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon);
  int64_t value = 0;
  const char* const from = text.data() + std::min(colon + 1, text.size());
  const auto [end, error] = std::from_chars(from, text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && value >= 0;
  if (!is_number || (kind != "step" && kind != "token")) {
    return fail("'" + text + "' is no fault", "--debug-fault", "step:N or token:ID");
  }
  return Fault([text, value, is_step = kind == "step"](
                   int64_t number, std::span<const int32_t> token_ids) -> Status {
    const bool fails =
        is_step ? number == value
                : std::find(token_ids.begin(), token_ids.end(), value) != token_ids.end();
    return fails ? Status(fail("made to fail", "--debug-fault " + text)) : Status{};
  });
}

Status read_keys(const std::string& path, std::vector<std::string>* keys) {
  auto text = read_text(path, 1 << 20);
  if (!text) return fail(std::move(text.error()));
  size_t num_keys = 0;
  for (size_t at = 0; at < text->size();) {
    const size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') {
      keys->push_back(std::move(line));
      ++num_keys;
    }
    at = end + 1;
  }
  if (num_keys == 0) return fail("no key in it", path, "one key a line; # begins a comment");
  return {};
}

Status ServeFlags::complete(const Flags& flags) {
  for (const char* flag : {"--ssl-cert", "--ssl-key"}) {
    const std::string other = std::string(flag) + "file";
    if (flags.given(flag) && flags.given(other)) {
      return fail("two names of one switch", std::string(flag) + ", " + other, "give one of them");
    }
  }
  if (http.ssl_certificate.empty() != http.ssl_key.empty()) {
    return fail("both are needed, or none", "--ssl-cert, --ssl-key");
  }
  if (!kv_memory.empty()) {
    auto bytes = parse_bytes(kv_memory, "--kv-cache-memory");
    if (!bytes) return fail(std::move(bytes.error()));
    engine.kv_cache_bytes = *bytes;
  }
  if (!debug_fault.empty()) {
    auto fault = parse_fault(debug_fault);
    if (!fault) return fail(std::move(fault.error()));
    service.fault = std::move(*fault);
    log_warn("--debug-fault " + debug_fault + ": steps will be made to fail");
  }
  if (max_batch_tokens > 0) engine.max_batch_tokens = max_batch_tokens;
  if (auto status = speculation.complete(flags); !status) return status;
  engine.speculation = speculation.options;
  fit_service(max_num_seqs, &engine);
  service.prefix_cache = prefix_cache == "on";
  if (flags.given("--kv-events-config")) {
    auto config = parse_kv_event_config(kv_events);
    if (!config) return fail(std::move(config.error()));
    events = std::move(*config);
    if (events.publishes() && !service.prefix_cache) {
      return fail("without the prefix cache there are no events", "--kv-events-config",
                  "leave out --prefix-caching off, or this switch");
    }
  }
  service.async_scheduling = async == "on";
  http.limits.header_bytes = static_cast<uint32_t>(max_header);
  http.limits.body_bytes = max_body;
  http.limits.stream_bytes = max_stream_buffer;
  http.limits.header_s = header_s;
  http.limits.body_s = body_s;
  http.limits.keep_alive_s = keep_alive_s;
  http.limits.write_s = write_s;
  http.limits.ping_s = ping_s;
  app.drain_s = drain_s;
  app.drain_delay_s = drain_delay_s;
  app.metrics_without_key = open_metrics == "on";
  app.ui = ui == "on";
  app.reasoning_field = reasoning_field == "both"        ? ReasoningField::kBoth
                        : reasoning_field == "reasoning" ? ReasoningField::kReasoning
                                                         : ReasoningField::kReasoningContent;
  app.store.count = static_cast<size_t>(max_responses);
  app.log_json = log_format == "json";
  app.log_requests = !no_access_log;
  // As `moxie run`: the embedded model is small, greedy suits it.
  if (engine.model == "embedded") app.default_temperature = 0;
  if (app.model_names.empty()) {
    std::string name = engine.model == "embedded" ? "moxie-embedded" : engine.model;
    while (name.size() > 1 && name.back() == '/') name.pop_back();
    app.model_names.push_back(name);
  }
  for (const std::string& key : app.api_keys) {
    if (key.empty()) return fail("a key must not be empty", "--api-key");
  }
  if (flags.given("--api-key-file")) {
    if (auto status = read_keys(key_file, &app.api_keys); !status) return status;
  }
  return {};
}

// Everything that lives as long as the server, in order of construction.
struct Running {
  std::unique_ptr<const Tokenizer> tokenizer;  // with --tokenizer
  std::unique_ptr<Engine> engine;
  std::unique_ptr<grammar::Compiler> compiler;
  Speculation speculation;  // with --spec
  std::unique_ptr<Service> service;
};

// The cache holds a sequence of --max-model-len at the least, whatever was asked for.
void say_if_raised(uint64_t asked, const Engine& e) {
  if (e.kv().bytes() <= asked) return;
  log_info(
      fmt::format("--kv-cache-memory {}: the cache takes {}, the least that holds a sequence "
                  "of --max-model-len {}",
                  format_bytes(asked), format_bytes(e.kv().bytes()), e.options().max_model_len));
}

Result<ServedModel> load(const ServeFlags& o, App& app, KvEventPublisher* events,
                         Running* running) {
  auto engine = Engine::load(o.engine);
  if (!engine) return fail(std::move(engine.error()));
  running->engine = std::move(*engine);
  Engine& e = *running->engine;
  if (!o.kv_memory.empty()) say_if_raised(o.engine.kv_cache_bytes, e);
  if (!o.tokenizer.empty()) {
    auto tokenizer = tokenizer_from(o.tokenizer);
    if (!tokenizer) return fail(std::move(tokenizer.error()));
    running->tokenizer = std::move(*tokenizer);
    e.stop_at_ends_of(*running->tokenizer);
  }
  auto model = served_model(e, running->tokenizer.get(), &running->compiler);
  if (!model) return fail(std::move(model.error()));
  if (events != nullptr && e.kv().shape().num_full_layers == 0) {
    return fail("the model has no layers with full attention, whose pages the events are of",
                o.engine.model, "leave out --kv-events-config");
  }
  ServiceOptions options = o.service;
  auto speculation = make_speculation(e);
  if (!speculation) return fail(std::move(speculation.error()));
  running->speculation = std::move(*speculation);
  options.drafting = running->speculation.drafting;
  if (events != nullptr) {
    options.cache_listener = events;
    events->on_cleared();  // for readers that know a server which was here before
    events->hand_over();
  }
  options.after_step = [&app, events, running, last = int64_t{0}]() mutable {
    if (events != nullptr) events->hand_over();
    const ServiceStats stats = running->service->stats();
    if (stats.num_steps == std::exchange(last, stats.num_steps)) return;
    app.metrics().on_step(stats.last_step_tokens);
  };
  // The first launch comes with the first request, when all of this is set.
  running->service = Service::create(e, options);
  model->service = running->service.get();
  return model;
}

// After a signal running streams finish, then the server ends. A second signal ends it at once.
void stop_on_signal(HttpServer& server, App& app) {
  server.on_signal([&server, &app, asked = false]() mutable {
    if (std::exchange(asked, true)) {
      std::fputs("moxie: stopped at once by a second signal\n", stderr);
      std::_Exit(kExitFailed);
    }
    const double delay_s = app.has_model() ? app.options().drain_delay_s : 0;
    log_info(fmt::format("stopping: new requests get 503{}, running ones have {:g} s",
                         delay_s > 0 ? fmt::format(" after {:g} s", delay_s) : "",
                         app.options().drain_s));
    app.begin_drain([&server] { server.shut_down(2); });
  });
}

// In a world of processes a lost rank ends all of them. Those who ask before the end learn of it.
class RankWatch {
 public:
  ~RankWatch() { stop(); }
  void stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // `end` is called once, on the watch's thread.
  void start(const RankLink& link, std::function<void()> end) {
    thread_ = std::thread([this, &link, end = std::move(end)] {
      constexpr std::chrono::milliseconds kLook(100), kForAnswers(2000);
      Status status;
      while (!ends_ && status) {
        std::this_thread::sleep_for(kLook);
        status = link.status();
      }
      if (status) return;
      log_error("all ranks end: " + status.error().message());
      for (auto left = kForAnswers / kLook; left > 0 && !ends_; --left)
        std::this_thread::sleep_for(kLook);
      end();
    });
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

int serve(ServeFlags& o, const Flags& flags) {
  if (auto status = o.complete(flags); !status) {
    return status.error().where == o.key_file && !o.key_file.empty()
               ? report(status.error())
               : usage(status.error().message());
  }
  if (const auto exit_status = run_as_rank(&o.engine)) return *exit_status;
  App app(o.app);
  auto listening = HttpServer::listen(o.http, app);
  if (!listening) return report_to_ranks(o.engine, listening.error());
  HttpServer& server = **listening;
  app.attach(server);
  stop_on_signal(server, app);

  std::unique_ptr<KvEventPublisher> events;
  if (o.events.publishes()) {
    auto opened = KvEventPublisher::open(o.events);
    if (!opened) return report_to_ranks(o.engine, opened.error());
    events = std::move(*opened);
    app.set_events(events.get());
  }
  Running running;
  std::optional<Error> failure;
  std::atomic<bool> loaded{false};
  ServeStatus status;
  RankWatch ranks;
  std::thread loader([&] {
    o.engine.show_progress = !o.app.log_json;
    auto model = load(o, app, events.get(), &running);
    loaded = true;  // before the server may end because of it
    server.post([&, model = std::move(model)]() mutable {
      if (!model) {
        failure = std::move(model.error());
        return server.shut_down(0);
      }
      app.set_model(*model);
      if (o.engine.world) {
        ranks.start(running.engine->ranks()->link(),
                    [&] { server.post([&] { server.shut_down(2); }); });
      }
      if (!app.leaving()) {
        status.print_banner(app, o.http, server.port());
        status.start(app, server);
      }
    });
  });
  server.run();
  if (!loaded) std::_Exit(kExitDone);  // a load cannot be cancelled
  loader.join();
  ranks.stop();
  status.stop();
  if (running.service) running.service->stop();
  app.stop();
  if (running.engine && o.engine.world) {
    // Also of a rank that is lost while the server drains.
    if (auto lost = running.engine->ranks()->link().status(); !lost)
      failure = std::move(lost.error());
  }
  return failure ? report(*failure) : kExitDone;
}

}  // namespace

Command serve_command() {
  auto o = std::make_shared<ServeFlags>();
  return {.name = "serve",
          .summary = "Serve over HTTP: the OpenAI and Anthropic interfaces",
          .example = "moxie serve --model openai/gpt-oss-20b --port 8000",
          .declare = [o](Flags& flags) { o->declare(flags); },
          .run = [o](const Flags& flags) { return serve(*o, flags); }};
}

}  // namespace moxie
