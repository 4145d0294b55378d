// Kernels that do nothing, started one by one as the engine starts its kernels without graphs.
#include "core/clock.h"
#include "core/cuda_launch.cuh"
#include "lab/machine_gpu_read.h"

namespace moxie {
namespace {

struct NothingParams {
  uint64_t words[16];  // rows' structs of parameters have about this size
};

__global__ void do_nothing(const __grid_constant__ NothingParams) {
  wait_for_previous();
  launch_next();
}

}  // namespace

Result<std::vector<double>> time_launches(int rounds, int launches, Stream& stream) {
  const cudaStream_t native = launch_stream(&stream);
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < launches; ++i) {
      launch_kernel("do_nothing", do_nothing, NothingParams{},
                    {.grid = dim3(1), .num_threads = 32, .programmatic = true}, native);
    }
    if (round > 0) seconds.push_back(seconds_since(start) / launches);
  }
  if (auto status = stream.synchronize(); !status) return fail(std::move(status.error()));
  return seconds;
}

}  // namespace moxie
