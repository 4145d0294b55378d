// Adapts the timer of the lab's own kernels to functions that may fail.
#include "core/cuda_launch.cuh"
#include "lab/gpu_time.h"
#include "lab/machine_gpu_time.cuh"

namespace moxie {
namespace {

// Keeps the device busy for so long; with 0 it is a kernel that does nothing.
__global__ void hold_device(const __grid_constant__ int64_t nanoseconds) {
  const auto now = [] {
    int64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const int64_t end = now() + nanoseconds;
  while (now() < end) {
  }
}

class Marks final : public GpuMarks {
 public:
  ~Marks() override {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Status reserve(size_t most) {
    while (events_.size() < most) {
      cudaEvent_t event = nullptr;
      if (auto status = cuda_check(cudaEventCreate(&event), "event"); !status) return status;
      events_.push_back(event);
    }
    return {};
  }

  Status begin(Stream& stream, double hold_us) override {
    num_marks_ = 0;
    run_for(stream, hold_us);
    return mark(stream);
  }
  void nothing(Stream& stream) override { run_for(stream, 0); }
  Status mark(Stream& stream) override {
    if (num_marks_ == events_.size()) return fail("more rows than marks", "measuring the device");
    return cuda_check(cudaEventRecord(events_[num_marks_++], launch_stream(&stream)), "event");
  }
  Result<std::vector<double>> between_us(Stream&) override {
    CHECK(num_marks_ > 0);
    const auto done = cuda_check(cudaEventSynchronize(events_[num_marks_ - 1]), "measuring");
    if (!done) return fail(done.error());
    std::vector<double> us;
    for (size_t i = 1; i < num_marks_; ++i) {
      float milliseconds = 0;
      const auto status =
          cuda_check(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "measuring");
      if (!status) return fail(status.error());
      us.push_back(1e3 * milliseconds);
    }
    return us;
  }

 private:
  static void run_for(Stream& stream, double us) {
    launch_kernel("hold_device", hold_device, static_cast<int64_t>(1e3 * us), dim3(1), 1, 0,
                  launch_stream(&stream));
  }

  std::vector<cudaEvent_t> events_;
  size_t num_marks_ = 0;
};

}  // namespace

Result<std::unique_ptr<GpuMarks>> GpuMarks::create(size_t most) {
  auto marks = std::make_unique<Marks>();
  if (auto status = marks->reserve(most); !status) return fail(std::move(status.error()));
  return marks;
}

Result<std::vector<double>> time_on_gpu(int repetitions, Stream& stream,
                                        const std::function<Status()>& before,
                                        const std::function<Status()>& launch) {
  Status status;
  const auto keep_first = [&](const std::function<Status()>& work) {
    if (auto done = work(); !done && status) status = std::move(done);
  };
  auto seconds = time_gpu_launches(
      repetitions, stream, [&](cudaStream_t) { keep_first(before); },
      [&](cudaStream_t) { keep_first(launch); });
  if (!status) return fail(std::move(status.error()));
  return seconds;
}

}  // namespace moxie
