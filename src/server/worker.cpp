// What a router asks a worker: its load, its sizes, and whether it generates.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "server/endpoints.h"

namespace moxie {
namespace {

constexpr double kGenerateS = 20;  // until /health_generate gives up

std::string utc_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

int64_t num_requests(const App& app) {
  const ServiceStats stats = app.stats();
  return int64_t{stats.running} + stats.waiting;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

ApiError not_generating(std::string message, std::string code) {
  return {.status = 503,
          .message = std::move(message),
          .type = "service_unavailable_error",
          .code = std::move(code),
          .retry_after_s = 1};
}

// Answers 200 once a token was drawn.
class ProbeWriter final : public ReplyWriter {
 public:
  explicit ProbeWriter(ExchangePtr exchange) : exchange_(std::move(exchange)) {}
  void on_token(size_t, int32_t) override { ++num_tokens_; }
  void on_delta(size_t, const Delta&) override {}
  void on_choice_end(size_t, const ReplyReader&, const ChoiceEnd& end) override {
    if (end.finish_reason == "error") message_ = end.error.message;
  }
  void on_end() override {
    if (num_tokens_ > 0 && message_.empty()) {
      return exchange_->respond(json_response({{"status", "ok"}}));
    }
    respond_error(*exchange_,
                  not_generating(message_.empty() ? "No token was drawn." : message_, "no_token"));
  }

 private:
  ExchangePtr exchange_;
  int64_t num_tokens_ = 0;
  std::string message_;
};

}  // namespace

void handle_load(App& app, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"load", num_requests(app)}}));
}

void handle_server_load(App& app, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"server_load", num_requests(app)}}));
}

void handle_loads(App& app, const ExchangePtr& exchange) {
  const ServiceStats s = app.stats();
  const int64_t used = int64_t{s.full_pages_used} * s.page_tokens;
  const int64_t most = int64_t{s.full_pages} * s.page_tokens;
  const double busy = share(s.running, s.max_num_seqs);
  Json load = {{"dp_rank", 0},
               {"num_running_reqs", s.running},
               {"num_waiting_reqs", s.waiting},
               {"num_waiting_uncached_tokens", s.queued_tokens},
               {"num_total_reqs", int64_t{s.running} + s.waiting},
               {"num_used_tokens", used},
               {"max_total_num_tokens", most},
               {"token_usage", share(static_cast<double>(used), static_cast<double>(most))},
               {"gen_throughput", app.metrics().generation_tokens_per_s()},
               {"cache_hit_rate", share(static_cast<double>(s.prefix_hit_tokens),
                                        static_cast<double>(s.prefix_query_tokens))},
               {"utilization", std::max(busy, s.kv_usage())},
               {"max_running_requests", s.max_num_seqs}};
  exchange->respond(json_response({{"timestamp", utc_time()},
                                   {"version", MOXIE_VERSION},
                                   {"dp_rank_count", 1},
                                   {"loads", Json::array({std::move(load)})}}));
}

void handle_server_info(App& app, const ExchangePtr& exchange) {
  static const std::string instance = random_name(24);  // names this process
  const ServiceStats s = app.stats();
  Json info = {{"model_id", app.model_name()},
               {"model_path", app.model().engine->options().model},
               {"served_model_name", app.model_name()},
               {"served_model_names", app.options().model_names},
               {"version", MOXIE_VERSION},
               {"worker_type", "regular"},
               {"instance_id", instance},
               {"dp_size", 1},
               {"kv_block_size", s.page_tokens},
               {"effective_attention_block_size", s.page_tokens},
               {"max_model_len", s.max_model_len},
               {"max_running_requests", s.max_num_seqs},
               {"max_total_num_tokens", int64_t{s.full_pages} * s.page_tokens}};
  if (s.drafts.num_positions > 0) {
    const SpeculationOptions& speculation = app.model().engine->options().speculation;
    info["speculation"] = {{"method", spec_method_name(speculation.method)},
                           {"model", speculation.head},
                           {"num_speculative_tokens", s.drafts.num_positions},
                           {"adaptive", speculation.is_adaptive}};
  }
  exchange->respond(json_response(info));
}

void handle_model_info(App& app, const ExchangePtr& exchange) {
  const Engine& engine = *app.model().engine;
  exchange->respond(json_response({{"model_path", engine.options().model},
                                   {"served_model_name", app.model_name()},
                                   {"is_generation", true},
                                   {"max_model_len", app.model().max_model_len},
                                   {"vocab_size", engine.config().vocab},
                                   {"has_image_understanding", false},
                                   {"has_audio_understanding", false}}));
}

void handle_sleeping(App&, const ExchangePtr& exchange) {
  exchange->respond(json_response({{"is_sleeping", false}}));
}

void handle_event_sources(App& app, const ExchangePtr& exchange) {
  Json sources = Json::object();  // by data-parallel rank
  if (app.events() != nullptr) sources["0"] = app.events()->sources();
  exchange->respond(json_response(sources));
}

void handle_flush_cache(App& app, const ExchangePtr& exchange) {
  app.model().service->clear_prefix_cache([&app, exchange](bool cleared) {
    app.server().post([exchange, cleared] {
      if (exchange->done()) return;
      if (cleared) return exchange->respond(json_response({{"status", "ok"}}));
      respond_error(*exchange, {.status = 409,
                                .message = "Requests run or wait: the prefix cache is emptied only "
                                           "if there are none. Ask again later.",
                                .code = "busy"});
    });
  });
}

void handle_health_generate(App& app, const ExchangePtr& exchange) {
  // Any token is a prompt. It goes before all that wait, however many, and leaves no trace in the
  // cache.
  GenerationInput input{.prompts = {{0}},
                        .sampling = {.temperature = 0, .max_tokens = 1, .ignore_eos = true},
                        .max_tokens = 1,
                        .priority = INT32_MIN,
                        .use_cache = false,
                        .passes_queue_limits = true};
  input.reply.harmony = false;
  auto started =
      start_generation(app, *exchange, std::move(input), std::make_shared<ProbeWriter>(exchange));
  if (!started) {
    return respond_error(*exchange, not_generating(started.error().message, started.error().code));
  }
  app.server().after(
      kGenerateS, [waiting = std::weak_ptr(exchange), run = std::weak_ptr(*started)] {
        const ExchangePtr late = waiting.lock();
        if (late == nullptr || late->done()) return;
        if (const auto running = run.lock()) running->cancel();
        const std::string message = fmt::format("No token within {:g} seconds.", kGenerateS);
        respond_error(*late, not_generating(message, "timeout"));
      });
}

}  // namespace moxie
