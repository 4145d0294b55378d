// Where each weight of the table lies in a checkpoint's files, and which packed format it gets.
// Built when a checkpoint is opened, for the loader.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/packing.h"
#include "model/checkpoint.h"
#include "model/weight_table.h"
#include "weights/tensor_file.h"

namespace moxie {

/// Some rows of one stored tensor, or elements of one stored vector: row r of the part is stored
/// row first + r * step. `rows` describes expert 0.
struct StoredPart {
  const MappedFile* file = nullptr;
  const MappedFile* scales_file = nullptr;  ///< kMxfp4Split only
  std::string tensor;
  StoredRows rows;
  int64_t expert_stride_bytes = 0;
  int64_t scale_expert_stride_bytes = 0;
  int32_t first = 0, step = 1, num_rows = 0;

  /// `rows` moved to one expert.
  StoredRows expert(int32_t expert_idx) const {
    StoredRows moved = rows;
    moved.data += expert_idx * expert_stride_bytes;
    if (moved.scales != nullptr) moved.scales += expert_idx * scale_expert_stride_bytes;
    return moved;
  }
  int64_t stored_row(int32_t r) const { return first + int64_t{r} * step; }
};

/// The weights of a checkpoint. Owns nothing but `files`.
struct StoredWeights {
  std::vector<TensorFile> files;
  /// By Weight::index: the weight's parts; none if the model lacks the weight.
  std::vector<std::vector<StoredPart>> parts;
  std::unordered_map<std::string, std::string> weight_of;  ///< name of a weight, by tensor

  const std::vector<StoredPart>& parts_of(const Weight& weight) const {
    return parts.at(weight.index);
  }
};

/// Finds every weight in `stored->files`, whose tensors are named as in `format`; adds a fault for
/// each that is missing or of wrong dtype or shape, and for each tensor in no entry. The files' own
/// faults are not repeated.
void find_weights(const GptOssConfig& config, FileFormat format, StoredWeights* stored,
                  FaultList* faults);

/// The packed format of each weight, by Weight::index: for a matrix the stored one (F16 becomes
/// F32; parts of different formats become F32), or MXFP4 or MXFP8 if the options ask for it.
/// Weights in no file (all, for synthetic models) are BF16, experts MXFP4.
using WeightFormats = std::vector<DType>;
WeightFormats packed_formats(const GptOssConfig& config, const StoredWeights& stored,
                             const LoadOptions& options);

}  // namespace moxie
