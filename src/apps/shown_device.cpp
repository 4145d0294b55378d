// --device without an engine.
#include "apps/shown_device.h"

#include <charconv>

#include "core/numa.h"

namespace moxie {
namespace {

ShownDevice shown_cpu(const std::string& why_not) {
  return {.features = cpu_features(),
          .name = {},
          .why_not = why_not,
          .properties = {.num_units = static_cast<int>(num_usable_cores())}};
}

}  // namespace

Result<ShownDevice> shown_device(const std::string& device) {
  const bool is_cuda = device == "cuda" || device.starts_with("cuda:");
  int index = 0;
  const char* end = device.data() + device.size();
  const bool bad_index =
      is_cuda && device.size() > 5 && std::from_chars(device.data() + 5, end, index).ptr != end;
  if (bad_index || (!is_cuda && device != "cpu" && device != "auto")) {
    return fail("unknown device '" + device + "'", "--device", "cpu, cuda, cuda:N or auto");
  }
  if (device == "cpu" || (device == "auto" && num_cuda_devices() == 0)) {
    return shown_cpu("");
  }
  auto gpu = make_cuda_device(index);
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

}  // namespace moxie
