// The pool of workers and its queue.
#include "server/workers.h"

namespace moxie {

Workers::Workers(int num_threads, uint64_t max_bytes) : max_bytes_(max_bytes) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { loop(); });
}

Workers::~Workers() { stop(); }

bool Workers::run(uint64_t bytes, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || held_bytes_ + bytes > max_bytes_) return false;
    held_bytes_ += bytes;
    jobs_.push_back({bytes, std::move(job)});
  }
  wake_.notify_one();
  return true;
}

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Workers::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
      if (stopped_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.run();
    job.run = nullptr;
    const std::lock_guard lock(mutex_);
    held_bytes_ -= job.bytes;
  }
}

}  // namespace moxie
