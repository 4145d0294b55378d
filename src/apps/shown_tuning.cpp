#include "apps/shown_tuning.h"

#include <algorithm>

namespace moxie {
namespace {

DeviceProperties properties_of(const EngineOptions& options, const ShownDevice& device) {
  if (device.kind == DeviceKind::kCpu) return make_cpu_device(options.threads)->properties();
  DeviceProperties properties = device.properties;
  properties.name = device.name;
  return properties;
}

}  // namespace

Result<TuningUse> shown_tuning(const EngineOptions& options, const ShownDevice& device,
                               const KernelChooser& kernels, const GptOssConfig& config,
                               const ModelWeights& layout, DType kv_dtype) {
  return find_tuning(options, tuning_key(options, properties_of(options, device), kernels, config,
                                         layout, kv_dtype));
}

Result<SelfTestResult> shown_self_test(const EngineOptions& options, const ShownDevice& device,
                                       const KernelChooser& kernels, const GptOssConfig& config,
                                       const ModelWeights& layout, DType kv_dtype,
                                       const TuningUse& tuning) {
  const DeviceProperties properties = properties_of(options, device);
  int32_t max_tokens = options.max_batch_tokens;
  if (max_tokens == 0) {
    const int32_t len = options.max_model_len > 0 ? options.max_model_len : kDefaultContext;
    max_tokens = default_batch_tokens(kernels, plan_request(options, {}, kv_dtype), config.hidden,
                                      std::min(len, config.max_positions));
  }
  return run_self_test(
      {.options = options.self_test,
       .properties = properties,
       .kernels = kernels,
       .config = config,
       .formats = layout,
       .kv_dtype = kv_dtype,
       .use_sinks = options.sinks,
       .taps = options.taps,
       .max_tokens = max_tokens,
       .costs = tuning.tuning == nullptr ? GptOss::RowCosts() : row_costs(tuning.tuning)});
}

}  // namespace moxie
