// Threads for work that would hold up the server's thread: parsing of large bodies, rendering,
// tokenizing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace moxie {

class Workers {
 public:
  /// `max_bytes`: the most input that waiting jobs may hold together.
  Workers(int num_threads, uint64_t max_bytes);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Queues a job that holds `bytes` of input. False: the limit is reached.
  bool run(uint64_t bytes, std::function<void()> job);
  /// Drops waiting jobs and joins the threads.
  void stop();

 private:
  void loop();

  struct Job {
    uint64_t bytes;
    std::function<void()> run;
  };
  const uint64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  uint64_t held_bytes_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace moxie
