// What rows with 8-bit activations need besides the weights, made once, when the model is loaded.
#pragma once

#include "core/device.h"
#include "kernels/registry.h"
#include "model/weights.h"

namespace moxie {

/// Whether a row may run that needs it: Hopper's, with MXFP8 activations.
inline bool takes_eight_bits(const KernelChooser& kernels) {
  return kernels.activation() == DType::kMXFP8 && (kernels.features() & kSm90a) != 0;
}
/// The memory that it takes.
uint64_t eight_bits_bytes(const ModelWeights& layout);

/// Fills greatest_scales of every MXFP4 gate_up and down of `weights`, which are on `device`, and
/// integers of every qkv and out. An error says in which expert most blocks have scales that do not
/// fold into an 8-bit operand; fewer are a warning.
Status add_eight_bits_cuda(Device& device, Stream& stream, ModelWeights& weights);

}  // namespace moxie
