// Banner and status line.
#include "apps/serve_status.h"

#include <fmt/format.h>

#include <cstdio>

#include "engine/plan.h"
#include "engine/service.h"
#include "lab/machine_gpu.h"

namespace moxie {
namespace {

constexpr double kEveryS = 5;

std::string chosen_rows(const Engine& engine) {
  return engine.options().kernels.empty()
             ? "chosen by hardware, see `moxie kernels`"
             : fmt::format("{}", fmt::join(engine.options().kernels, " "));
}

}  // namespace

void ServeStatus::measure(Engine& engine) {
  auto limits =
      engine.device().kind() == DeviceKind::kCpu
          ? measure_machine(engine.device(), {.read_passes = 3, .seconds_per_loop = 0.001})
          : measure_gpu(engine.device(), {.buffer_bytes = uint64_t{1} << 30, .passes = 3});
  if (limits) read_gb_s_ = limits->read_gb_s;
}

void ServeStatus::print_banner(const App& app, const HttpOptions& http, int32_t port) const {
  const Engine& engine = *app.model().engine;
  const ServiceStats stats = app.stats();
  Engine& device_of = *app.model().engine;
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
                                 app.model_name(), engine.load_seconds());
  line += fmt::format("  device   {}", device_of.device().properties().name);
  line += read_gb_s_ > 0 ? fmt::format(", reads {:.1f} GB/s\n", read_gb_s_) : "\n";
  line += fmt::format("  kernels  {}\n", chosen_rows(engine));
  line += fmt::format("  memory   {} of {} free: {}\n", format_bytes(engine.plan().total_bytes),
                      format_bytes(engine.plan().available_bytes), memory);
  line += fmt::format("  context  {} tokens, {} requests at once, {} pages of {} tokens\n",
                      stats.max_model_len, stats.max_num_seqs, stats.full_pages, stats.page_tokens);
  line += fmt::format("  output   {}\n", app.model().compiler != nullptr
                                             ? "JSON Schema, regex, choice and grammar enforced"
                                             : "structured output is not in this build");
  line += fmt::format("  keys     {}\n",
                      app.options().api_keys.empty()
                          ? "none asked for"
                          : fmt::format("{} accepted", app.options().api_keys.size()));
  line += fmt::format("  url      {}/v1\n", url);
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
  server.after(kEveryS, [this, &app, &server] { tick(app, server); });
}

void ServeStatus::tick(App& app, HttpServer& server) {
  const ServiceStats stats = app.stats();
  const double seconds = seconds_since(std::exchange(last_, Clock::now()));
  const int64_t tokens =
      stats.generation_tokens - std::exchange(last_tokens_, stats.generation_tokens);
  const int64_t steps = stats.num_steps - std::exchange(last_steps_, stats.num_steps);
  if (stats.running > 0 || stats.waiting > 0 || tokens > 0) {
    std::string line =
        fmt::format("running {}, waiting {}, {:.1f} tok/s, KV {:.1f}%", stats.running,
                    stats.waiting, static_cast<double>(tokens) / seconds, 100 * stats.kv_usage());
    if (read_gb_s_ > 0 && steps > 0 && tokens > 0) {
      // Bytes that the steps of these seconds had to read at least, over what could be read.
      const Engine& engine = *app.model().engine;
      const auto streams = static_cast<int32_t>(std::max<int64_t>(1, tokens / steps));
      const Work work =
          decode_work(engine.config(), engine.model().weights(), engine.kv_dtype(), 0, streams);
      line +=
          fmt::format(", {:.0f}% of the memory's limit",
                      100 * work.bytes * static_cast<double>(steps) / seconds / (read_gb_s_ * 1e9));
    }
    log_info(line);
  }
  server.after(kEveryS, [this, &app, &server] { tick(app, server); });
}

}  // namespace moxie
