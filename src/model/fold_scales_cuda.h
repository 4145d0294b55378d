// The scales of the experts' weights that rows with 8-bit activations need, found once, when the
// model is loaded.
#pragma once

#include "core/device.h"
#include "kernels/registry.h"
#include "model/weights.h"

namespace moxie {

/// Whether a row may run that needs them: Hopper's, with MXFP8 activations.
inline bool folds_scales(const KernelChooser& kernels) {
  return kernels.activation() == DType::kMXFP8 && (kernels.features() & kSm90a) != 0;
}

/// Fills greatest_scales of every MXFP4 gate_up and down of `weights`, which are on `device`. An
/// error says in which expert most blocks have scales that do not fold into an 8-bit operand; fewer
/// are a warning.
Status fold_scales_cuda(Device& device, Stream& stream, ModelWeights& weights);

}  // namespace moxie
