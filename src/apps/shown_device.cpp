// --device without an engine.
#include "apps/shown_device.h"

#include "core/numa.h"
#include "engine/engine.h"

namespace moxie {
namespace {

ShownDevice shown_cpu(const std::string& why_not) {
  return {.features = cpu_features(),
          .name = {},
          .why_not = why_not,
          .properties = {.num_units = static_cast<int>(num_usable_cores())}};
}

// The first GPU that --device names or lets be taken; -1: the CPU.
Result<int> gpu_index(const std::string& device) {
  auto gpus = named_gpus(device);
  if (!gpus) return fail(std::move(gpus.error()));
  return device == "cpu" ? -1 : gpus->empty() ? 0 : gpus->front();
}

}  // namespace

Result<ShownDevice> shown_device(const std::string& device) {
  const auto index = gpu_index(device);
  if (!index) return fail(index.error());
  if (*index < 0 || (device == "auto" && num_cuda_devices() == 0)) {
    return shown_cpu("");
  }
  auto gpu = make_cuda_device(*index);
  if (!gpu && device == "auto") {
    return shown_cpu(gpu.error().message());
  }
  if (!gpu) return fail(std::move(gpu.error()));
  const DeviceProperties& found = (*gpu)->properties();
  return ShownDevice{.kind = DeviceKind::kCuda,
                     .features = cuda_features(found.compute_capability),
                     .name = found.name,
                     .why_not = {},
                     .properties = found};
}

Result<std::unique_ptr<Device>> open_device(const std::string& device, int num_threads) {
  const auto index = gpu_index(device);
  if (!index) return fail(index.error());
  if (*index < 0) return make_cpu_device(num_threads);
  if (device == "auto" && !has_cuda_driver()) return make_cpu_device(num_threads);
  auto gpu = make_cuda_device(*index);
  if (gpu || device != "auto") return gpu;
  log_warn("running on the CPU: " + gpu.error().message());
  return make_cpu_device(num_threads);
}

}  // namespace moxie
