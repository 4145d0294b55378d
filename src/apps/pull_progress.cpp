#include "apps/pull_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/bytes.h"

namespace moxie {
namespace {

constexpr double kRateOverS = 5;
constexpr size_t kMaxName = 36;

// The end of a long path, which tells shards apart.
std::string short_name(const std::string& path) {
  return path.size() <= kMaxName ? path : "..." + path.substr(path.size() - kMaxName + 3);
}

}  // namespace

std::string clock_text(double seconds) {
  const auto all = static_cast<int64_t>(std::clamp(seconds, 0.0, 359999.0));
  const int64_t hours = all / 3600, minutes = all / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60);
  return fmt::format("{}:{:02}", minutes, all % 60);
}

PullProgress::PullProgress(bool is_quiet)
    : is_quiet_(is_quiet), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

PullProgress::~PullProgress() { clear(); }

void PullProgress::clear() {
  if (has_drawn_) std::fputs("\r\x1b[K", stderr);
  has_drawn_ = false;
}

void PullProgress::line(const std::string& text) {
  if (is_quiet_) return;
  clear();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void PullProgress::on_start(const hub::PullReport& plan) {
  bytes_ = plan.bytes;
  num_files_ = plan.files.size();
  line(fmt::format("{}@{}: {} files, {}, of which {} are here", plan.repo,
                   plan.commit.substr(0, 12), num_files_, format_bytes(plan.bytes),
                   format_bytes(plan.present_bytes)));
}

double PullProgress::rate(Clock::time_point now, uint64_t present_bytes) {
  samples_.emplace_back(now, present_bytes);
  const auto age = [&](const auto& sample) {
    return std::chrono::duration<double>(now - sample.first).count();
  };
  while (samples_.size() > 2 && age(samples_[1]) > kRateOverS) samples_.pop_front();
  const uint64_t before = samples_.front().second;
  const double seconds = age(samples_.front());
  return seconds > 0 && present_bytes > before
             ? static_cast<double>(present_bytes - before) / seconds
             : 0;
}

void PullProgress::on_progress(uint64_t present_bytes, const std::string& path) {
  const double bytes_a_second = rate(Clock::now(), present_bytes);
  if (is_quiet_ || !is_terminal_ || bytes_ == 0) return;
  present_bytes = std::min(present_bytes, bytes_);
  std::string left = "-:--";
  if (bytes_a_second > 0)
    left = clock_text(static_cast<double>(bytes_ - present_bytes) / bytes_a_second);
  const std::string text =
      fmt::format("\r{:3.0f}%  {} of {}  {}/s  {} left  {}\x1b[K",
                  100.0 * static_cast<double>(present_bytes) / static_cast<double>(bytes_),
                  format_bytes(present_bytes), format_bytes(bytes_),
                  format_bytes(static_cast<uint64_t>(bytes_a_second)), left, short_name(path));
  has_drawn_ = true;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void PullProgress::on_file(const hub::FileReport& file) {
  ++num_done_;
  line(fmt::format("[{}/{}] {:<8} {:>10}  {}", num_done_, num_files_,
                   hub::file_status_name(file.status), format_bytes(file.bytes), file.path));
}

void PullProgress::on_message(const std::string& text) { line("moxie: " + text); }

}  // namespace moxie
