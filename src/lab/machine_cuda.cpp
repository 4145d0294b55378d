// Copies from pinned memory, one large copy a pass, and launches of kernels that do nothing. Both
// are timed by the host.
#include "lab/machine_cuda.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "core/clock.h"
#include "lab/machine_gpu_read.h"
#include "lab/stats.h"

namespace moxie {

Result<double> measure_h2d_gb_s(Device& device) {
  constexpr uint64_t kBytes = uint64_t{256} << 20;
  constexpr int kPasses = 7;
  if (device.kind() != DeviceKind::kCuda) {
    return fail("only a CUDA device has a link to measure", device.properties().name);
  }
  auto source = device.allocate_host(kBytes);
  if (!source) return fail(std::move(source.error()));
  auto target = device.allocate(kBytes);
  if (!target) return fail(std::move(target.error()));
  auto stream = device.make_stream();
  if (!stream) return fail(std::move(stream.error()));
  std::memset(source->data(), 0x5A, kBytes);
  std::vector<double> rates;
  for (int pass = 0; pass <= kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    Status status = device.copy_from_host(target->data(), source->data(), kBytes, **stream);
    if (status) status = (*stream)->synchronize();
    if (!status) return fail(std::move(status.error()));
    const double seconds = seconds_since(start);
    if (pass > 0) rates.push_back(1e-9 * static_cast<double>(kBytes) / seconds);  // first: warm-up
  }
  return summarize(rates).median;
}

Result<double> measure_launches_s(Device& device) {
  // The median over rounds, since an interrupt lengthens one. With the first one 576 launches.
  constexpr int kRounds = 8, kLaunches = 64;
  if (device.kind() != DeviceKind::kCuda)
    return fail("only a CUDA device has launches to measure", device.properties().name);
  auto stream = device.make_stream();
  if (!stream) return fail(std::move(stream.error()));
  auto seconds = time_launches(kRounds, kLaunches, **stream);
  if (!seconds) return fail(std::move(seconds.error()));
  const double of_one = median(*seconds);
  if (!(of_one > 0)) return fail("launches took no time", device.properties().name);
  return 1 / of_one;
}

}  // namespace moxie
