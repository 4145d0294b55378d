// Times launches by events of the device.
#pragma once

#include <utility>
#include <vector>

#include "core/cuda.h"

namespace moxie {

/// Seconds of each of `passes` calls of `launch(native stream)`, after one that is not counted.
/// What `before(native stream)` launches runs ahead of each call and is not timed.
template <typename Before, typename Launch>
Result<std::vector<double>> time_gpu_launches(int passes, Stream& stream, Before&& before,
                                              Launch&& launch) {
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    ~Events() {
      if (begin != nullptr) cudaEventDestroy(begin);
      if (end != nullptr) cudaEventDestroy(end);
    }
  } events;
  const cudaStream_t native = launch_stream(&stream);
  auto status = cuda_check(cudaEventCreate(&events.begin), "event");
  if (status) status = cuda_check(cudaEventCreate(&events.end), "event");
  if (!status) return fail(std::move(status.error()));
  std::vector<double> seconds;
  for (int pass = 0; pass <= passes; ++pass) {
    before(native);
    cudaEventRecord(events.begin, native);
    launch(native);
    cudaEventRecord(events.end, native);
    status = cuda_check(cudaEventSynchronize(events.end), "measuring the device");
    if (!status) return fail(std::move(status.error()));
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, events.begin, events.end);
    if (pass > 0) seconds.push_back(milliseconds * 1e-3);
  }
  return seconds;
}
template <typename Launch>
Result<std::vector<double>> time_gpu_launches(int passes, Stream& stream, Launch&& launch) {
  return time_gpu_launches(
      passes, stream, [](cudaStream_t) {}, std::forward<Launch>(launch));
}

}  // namespace moxie
