#include "apps/shown_tuning.h"

namespace moxie {

Result<TuningUse> shown_tuning(const EngineOptions& options, const ShownDevice& device,
                               const KernelChooser& kernels, const GptOssConfig& config,
                               const ModelWeights& layout, DType kv_dtype) {
  DeviceProperties properties = device.properties;
  properties.name = device.name;
  if (device.kind == DeviceKind::kCpu) properties = make_cpu_device(options.threads)->properties();
  return find_tuning(options, tuning_key(options, properties, kernels, config, layout, kv_dtype));
}

}  // namespace moxie
