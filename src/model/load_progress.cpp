// Draws the bar of a long load.
#include "model/load_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace moxie {

LoadProgress::LoadProgress(bool is_shown, std::string what, uint64_t total_bytes)
    : is_shown_(is_shown),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      what_(std::move(what)),
      total_bytes_(std::max<uint64_t>(total_bytes, 1)),
      start_(Clock::now()),
      last_(start_) {}

void LoadProgress::add(uint64_t num_bytes) {
  done_bytes_ += num_bytes;
  if (!is_shown_) return;
  const Clock::time_point now = Clock::now();
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  const double pause_s = std::chrono::duration<double>(now - last_).count();
  if (elapsed_s < 1.0 || pause_s < (is_terminal_ ? 0.1 : 5.0)) return;
  last_ = now;
  show(elapsed_s);
}

void LoadProgress::show(double elapsed_s) {
  const double share = std::min(1.0, static_cast<double>(done_bytes_) / total_bytes_);
  const double rate = done_bytes_ / elapsed_s;
  const double left_s = rate > 0 ? (total_bytes_ - std::min(done_bytes_, total_bytes_)) / rate : 0;
  std::string line =
      fmt::format("{:3.0f}%  {:.1f} of {:.1f} GB, {:.2f} GB/s, {:.0f} s left", 100 * share,
                  done_bytes_ / 1e9, total_bytes_ / 1e9, rate / 1e9, left_s);
  if (is_terminal_) {
    const int filled = static_cast<int>(share * 30);
    line = fmt::format("\r{} [{}{}] {} \x1b[K", what_, std::string(filled, '#'),
                       std::string(30 - filled, '.'), line);
  } else {
    line = fmt::format("{}: {}\n", what_, line);
  }
  has_drawn_ = true;
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

LoadProgress::~LoadProgress() {
  if (has_drawn_ && is_terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace moxie
