// What a pull shows on stderr: a bar with bytes, rate and remaining time on a terminal, and a line
// for each file.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "hub/pull.h"

namespace moxie {

/// "1:05" or "2:03:04".
std::string clock_text(double seconds);

class PullProgress final : public hub::PullObserver {
 public:
  /// `is_quiet`: shows nothing.
  explicit PullProgress(bool is_quiet);
  ~PullProgress() override;
  PullProgress(const PullProgress&) = delete;
  PullProgress& operator=(const PullProgress&) = delete;

  void on_start(const hub::PullReport& plan) override;
  void on_progress(uint64_t present_bytes, const std::string& path) override;
  void on_file(const hub::FileReport& file) override;
  void on_message(const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;
  void clear();
  void line(const std::string& text);
  double rate(Clock::time_point now, uint64_t present_bytes);

  const bool is_quiet_, is_terminal_;
  bool has_drawn_ = false;
  uint64_t bytes_ = 0;
  size_t num_files_ = 0, num_done_ = 0;
  std::deque<std::pair<Clock::time_point, uint64_t>> samples_;  // of the last seconds
};

}  // namespace moxie
