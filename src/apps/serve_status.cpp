// Banner and status line.
#include "apps/serve_status.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "core/process_start.h"
#include "engine/service.h"
#include "lab/machine_gpu.h"
#include "server/status_line.h"

namespace moxie {
namespace {

constexpr double kEveryS = 5;
constexpr double kIdleS = 0.1;  // between checks whether a request runs

std::string chosen_rows(const Engine& engine) {
  return engine.options().kernels.empty()
             ? "chosen by hardware, see `moxie kernels`"
             : fmt::format("{}", fmt::join(engine.options().kernels, " "));
}

}  // namespace

// A request that comes during a measurement shares the machine with one pass for some milliseconds;
// then the measurement is given up and repeated later.
void ServeStatus::measure_while_idle(App& app) {
  const Service& service = *app.model().service;
  Device& device = app.model().engine->device();
  const auto is_busy = [&] {
    const ServiceStats now = service.stats();
    return now.running > 0 || now.waiting > 0;
  };
  do {
    if (is_busy()) continue;
    const int64_t steps = service.stats().num_steps;
    Result<MachineLimits> limits = fail("not measured");
    if (device.kind() == DeviceKind::kCpu) {
      // Its own threads: the model may need its threads at any moment.
      const auto own = make_cpu_device(device.properties().num_units);
      limits = measure_machine(
          *own, {.spares_memory = true, .read_passes = 3, .seconds_per_loop = 0, .gives_up = [&] {
                   return stops_now() || is_busy();
                 }});
    } else {
      limits =
          measure_gpu(device, {.buffer_bytes = uint64_t{1} << 30, .passes = 3, .products = false});
    }
    if (is_busy() || service.stats().num_steps != steps) continue;
    if (limits) {
      app.set_read_gb_s(limits->read_gb_s);
      log_info(fmt::format("memory reads {:.1f} GB/s", limits->read_gb_s));
    } else if (!stops_now()) {
      log_info("the memory's read bandwidth is unknown: " + limits.error().message());
    }
    return;
  } while (wait_s(kIdleS));
}

bool ServeStatus::wait_s(double seconds) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stops_; });
}

bool ServeStatus::stops_now() {
  const std::lock_guard lock(mutex_);
  return stops_;
}

void ServeStatus::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  stopped_.notify_all();
  if (measuring_.joinable()) measuring_.join();
}

void ServeStatus::print_banner(const App& app, const HttpOptions& http, int32_t port) const {
  const Engine& engine = *app.model().engine;
  const ServiceStats stats = app.stats();
  std::string memory;
  for (const PlanPart& part : engine.plan().parts) {
    if (part.bytes < (uint64_t{1} << 20)) continue;
    memory +=
        fmt::format("{}{} {}", memory.empty() ? "" : ", ", part.name, format_bytes(part.bytes));
  }
  const std::string host =
      http.host.find(':') != std::string::npos ? "[" + http.host + "]" : http.host;
  const std::string url =
      fmt::format("{}://{}:{}", http.ssl_key.empty() ? "http" : "https", host, port);
  std::string line = fmt::format("moxie {}  {} ready in {:.2f} s\n", MOXIE_VERSION,
                                 app.model_name(), seconds_since_process_start());
  line += fmt::format("  device   {}\n", app.model().engine->device().properties().name);
  line += fmt::format("  kernels  {}\n", chosen_rows(engine));
  line += fmt::format("  tuning   {}\n", engine.tuning().text());
  if (engine.self_test().is_on) line += fmt::format("  proven   {}\n", engine.self_test().text());
  line += fmt::format("  memory   {} of {} free: {}\n", format_bytes(engine.plan().total_bytes),
                      format_bytes(engine.plan().available_bytes), memory);
  line += fmt::format("  context  {} tokens, {} requests at once, {} pages of {} tokens\n",
                      stats.max_model_len, stats.max_num_seqs, stats.full_pages, stats.page_tokens);
  if (stats.drafts.num_positions > 0) {
    const SpeculationOptions& speculation = engine.options().speculation;
    const DraftCheckpoint* head = engine.draft_checkpoint();
    line += fmt::format(
        "  drafts   {}{}{}{}{}, at most {} tokens{}\n", spec_method_name(speculation.method),
        speculation.head.empty() ? "" : " ", speculation.head, head == nullptr ? "" : ", ",
        head == nullptr ? "" : describe_head(head->config()), stats.drafts.num_positions,
        speculation.is_adaptive ? ", as many as pay" : "");
  }
  line += fmt::format("  output   {}\n", app.model().compiler != nullptr
                                             ? "JSON Schema, regex, choice and grammar enforced"
                                             : "structured output is not in this build");
  line += fmt::format("  keys     {}\n",
                      app.options().api_keys.empty()
                          ? "none asked for"
                          : fmt::format("{} accepted", app.options().api_keys.size()));
  line += fmt::format("  url      {}/v1\n", url);
  if (app.options().ui) line += fmt::format("  page     {}/\n", url);
  line += fmt::format(
      "  try      curl {}{}/v1/chat/completions -H 'Content-Type: application/json'{} \\\n",
      http.ssl_key.empty() ? "" : "-k ", url,
      app.options().api_keys.empty() ? "" : " -H 'Authorization: Bearer KEY'");
  line +=
      "             -d '{\"messages\":[{\"role\":\"user\",\"content\":\"What is 17 + 25?\"}]}'\n";
  std::fputs(line.c_str(), stderr);
}

void ServeStatus::start(App& app, HttpServer& server) {
  last_ = Clock::now();
  last_stats_ = app.stats();
  server.after(kEveryS, [this, &app, &server] { tick(app, server); });
  const auto say = [](const std::exception& fault) {
    log_info(std::string("the memory's read bandwidth stays unknown: ") + fault.what());
  };
  try {
    measuring_ = std::thread([=, this, &app] {
      try {
        measure_while_idle(app);
      } catch (const std::exception& fault) {  // out of memory or threads
        say(fault);
      }
    });
  } catch (const std::exception& fault) {
    say(fault);
  }
}

void ServeStatus::tick(App& app, HttpServer& server) {
  const ServiceStats stats = app.stats();
  const double seconds = seconds_since(std::exchange(last_, Clock::now()));
  const Engine& engine = *app.model().engine;
  const StatusModel model{engine.config(), engine.model().weights(), engine.kv_dtype()};
  const std::string line = status_line(model, last_stats_, stats, seconds, app.read_gb_s());
  if (!line.empty()) log_info(line);
  last_stats_ = stats;
  server.after(kEveryS, [this, &app, &server] { tick(app, server); });
}

}  // namespace moxie
