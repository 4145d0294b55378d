// Lays packed weights out in one buffer and fills it from a checkpoint's files.
#pragma once

#include "model/stored_weights.h"

namespace moxie {

/// Gives every weight of `out` its place from `base` on (256-byte aligned parts) and returns the
/// bytes needed. With a null base only the sizes mean anything.
uint64_t lay_out_weights(const GptOssConfig& config, const WeightFormats& formats, std::byte* base,
                         ModelWeights* out);

/// Packs all weights for the CPU (layout kRows16), in parallel on the device's threads. Pages of
/// the input are let go as soon as they are packed. Fails on a NaN scale, naming the tensor.
Result<ModelWeights> load_weights(const GptOssConfig& config, const StoredWeights& stored,
                                  const WeightFormats& formats, Device& device,
                                  const LoadOptions& options);

/// Weights with their memory, not yet filled, and the stream whose threads fill them.
struct WeightsPlace {
  ModelWeights weights;
  std::unique_ptr<Stream> stream;
};
/// Fails where the device has too little memory, saying how much there is, before any is touched.
Result<WeightsPlace> make_weights(const GptOssConfig& config, const WeightFormats& formats,
                                  Device& device);

}  // namespace moxie
