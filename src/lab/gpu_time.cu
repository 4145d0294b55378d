// Adapts the timer of the lab's own kernels to functions that may fail.
#include "lab/gpu_time.h"
#include "lab/machine_gpu_time.cuh"

namespace moxie {

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
