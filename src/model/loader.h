// Lays packed weights out in one buffer and fills it from a checkpoint's files: for the CPU here,
// for CUDA through loader_cuda.h.
#pragma once

#include "model/stored_weights.h"

namespace moxie {

/// Gives every weight of `out` its 256-byte aligned place from `base` on, in the layout of the kind
/// of device, and returns the bytes needed. With a null `base` only the sizes are valid.
uint64_t lay_out_weights(const GptOssConfig& config, const WeightFormats& formats, DeviceKind kind,
                         std::byte* base, ModelWeights* out);

/// Fails if this kind of device does not support the options, or if they contradict each other.
Status check_load_options(const LoadOptions& options, DeviceKind kind);

/// Loads all weights in the device's layout. CPU: packs them in parallel on the device's threads,
/// and releases input pages as soon as they are packed. Fails on a NaN scale, naming the tensor.
Result<ModelWeights> load_weights(const GptOssConfig& config, const StoredWeights& stored,
                                  const WeightFormats& formats, Device& device,
                                  const LoadOptions& options);

/// The fault of a NaN scale in a stored row of a part.
Fault nan_scale_fault(const StoredPart& part, int32_t expert, int64_t row);
/// Whether stored rows and the table's rows have the same bytes, so that they can be copied.
bool is_table_as_stored(const RowTable& table, const StoredPart& source);

/// The faults found while loading as one error, at most kMaxLoadFaults of them; or success.
inline constexpr size_t kMaxLoadFaults = 8;
Status damage_status(const std::vector<Fault>& faults);

/// Weights with their memory, not yet filled, and the stream whose threads fill them.
struct WeightsPlace {
  ModelWeights weights;
  std::unique_ptr<Stream> stream;
};
/// Fails before any memory is touched if the device has too little; the error says how much it has.
Result<WeightsPlace> make_weights(const GptOssConfig& config, const WeightFormats& formats,
                                  Device& device);

}  // namespace moxie
