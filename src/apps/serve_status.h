// What `moxie serve` says on the terminal: a banner once, and a line every few seconds while busy.
#pragma once

#include "engine/engine.h"
#include "server/app.h"

namespace moxie {

class ServeStatus {
 public:
  /// Measures what the memory can do, for the share of the limit; before requests are answered.
  void measure(Engine& engine);
  /// At most 12 lines.
  void print_banner(const App& app, const HttpOptions& http, int32_t port) const;
  /// From now on; both must outlive the server's run.
  void start(App& app, HttpServer& server);

 private:
  void tick(App& app, HttpServer& server);

  double read_gb_s_ = 0;  // 0: not known
  int64_t last_tokens_ = 0, last_steps_ = 0;
  Clock::time_point last_{};
};

}  // namespace moxie
