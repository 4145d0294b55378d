// Lays packed weights out in one buffer and fills it from a checkpoint's files: for the CPU here,
// for CUDA through loader_cuda.h.
#pragma once

#include "model/stored_weights.h"

namespace moxie {

/// Gives every weight of `out` its place from `base` on (256-byte aligned parts), in the layout of
/// the kind of device, and returns the bytes needed. With a null base only the sizes mean anything.
uint64_t lay_out_weights(const GptOssConfig& config, const WeightFormats& formats, DeviceKind kind,
                         std::byte* base, ModelWeights* out);

/// Fails where the options ask for what this kind of device cannot hold, or contradict themselves.
Status check_load_options(const LoadOptions& options, DeviceKind kind);

/// Loads all weights in the device's layout. CPU: packed in parallel on the device's threads, and
/// pages of the input are let go as soon as they are packed. Fails on a NaN scale, naming the
/// tensor.
Result<ModelWeights> load_weights(const GptOssConfig& config, const StoredWeights& stored,
                                  const WeightFormats& formats, Device& device,
                                  const LoadOptions& options);

/// The fault of a NaN scale in a stored row of a part.
Fault nan_scale_fault(const StoredPart& part, int32_t expert, int64_t row);
/// Whether the stored rows are the table's, byte by byte.
bool is_table_as_stored(const RowTable& table, const StoredPart& source);

/// The faults found while loading as one error, or success; kMaxLoadFaults are enough to say so.
inline constexpr size_t kMaxLoadFaults = 8;
Status damage_status(const std::vector<Fault>& faults);

/// Weights with their memory, not yet filled, and the stream whose threads fill them.
struct WeightsPlace {
  ModelWeights weights;
  std::unique_ptr<Stream> stream;
};
/// Fails where the device has too little memory, saying how much there is, before any is touched.
Result<WeightsPlace> make_weights(const GptOssConfig& config, const WeightFormats& formats,
                                  Device& device);

}  // namespace moxie
