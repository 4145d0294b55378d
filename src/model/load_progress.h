// Progress of a long load on stderr: a bar with rate and remaining time on a terminal, a plain line
// every few seconds elsewhere, nothing for loads that take less than a second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace moxie {

class LoadProgress {
 public:
  LoadProgress(bool is_shown, std::string what, uint64_t total_bytes);
  ~LoadProgress();
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;
  /// Not thread-safe: called between batches.
  void add(uint64_t num_bytes);

 private:
  using Clock = std::chrono::steady_clock;
  void show(double elapsed_s);
  bool is_shown_, is_terminal_;
  bool has_drawn_ = false;
  std::string what_;
  uint64_t total_bytes_, done_bytes_ = 0;
  Clock::time_point start_, last_;
};

}  // namespace moxie
