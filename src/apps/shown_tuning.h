// The tuning that an engine would use, for commands that show plans without an engine.
#pragma once

#include "apps/shown_device.h"
#include "engine/engine.h"

namespace moxie {

/// As Engine::load() finds it, on the device that shown_device() found for these options.
Result<TuningUse> shown_tuning(const EngineOptions& options, const ShownDevice& device,
                               const KernelChooser& kernels, const GptOssConfig& config,
                               const ModelWeights& layout, DType kv_dtype);

/// What earlier starts have found out of the rows of this model's plans; runs nothing.
Result<SelfTestResult> shown_self_test(const EngineOptions& options, const ShownDevice& device,
                                       const KernelChooser& kernels, const GptOssConfig& config,
                                       const ModelWeights& layout, DType kv_dtype,
                                       const TuningUse& tuning);

}  // namespace moxie
