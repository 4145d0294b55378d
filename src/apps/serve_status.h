// The output of `moxie serve` on the terminal: a banner once, and a line every few seconds while
// busy.
//
// It only reports: it chooses no row, checks no guarantee of other code, and prints "unknown" for
// what it cannot know. Nothing here may end the process.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "engine/service_stats.h"
#include "server/app.h"

namespace moxie {

class ServeStatus {
 public:
  ServeStatus() = default;
  ~ServeStatus() { stop(); }

  /// At most 13 lines.
  void print_banner(const App& app, const HttpOptions& http, int32_t port) const;
  /// Begins to report. `app` and `server` must outlive the server's run. Measures the memory's read
  /// rate on a separate thread, as soon as no request runs.
  void start(App& app, HttpServer& server);
  /// Ends the measuring thread. To be called before the model is destroyed.
  void stop();

 private:
  void tick(App& app, HttpServer& server);
  void measure_while_idle(App& app);
  /// False once stop() is called.
  bool wait_s(double seconds);
  bool stops_now();

  ServiceStats last_stats_;
  Clock::time_point last_{};
  std::thread measuring_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stops_ = false;
};

}  // namespace moxie
