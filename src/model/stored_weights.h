// Where each weight of the one list lies in a checkpoint's files, in any layout, and which packed
// format it gets. Built when a checkpoint is opened; the loader reads by it.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/packing.h"
#include "model/checkpoint.h"
#include "model/config.h"
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

/// One weight of the list, found. Gate/up weights and biases have two parts, gate then up; all
/// others have one.
struct StoredWeight {
  WeightSpec spec;
  std::vector<StoredPart> parts;
};

/// By Hugging Face name. Owns nothing: `files` does.
struct StoredWeights {
  std::vector<TensorFile> files;
  std::unordered_map<std::string, StoredWeight> by_name;
};

/// How tensors are named, and one quirk of old files.
struct WeightNaming {
  CheckpointKind kind = CheckpointKind::kHuggingFace;
  /// GGUF of the architecture "gptoss": fused attn_qkv, and ffn_gate_up_exps with gate and up rows
  /// in turn, where other files have all gate rows first.
  bool is_old_gguf = false;
};

/// Finds every weight in `stored->files`, whose tensors are named by `naming`; adds a fault for
/// each that is missing, of wrong dtype or shape, or in no list. Files' own faults are not
/// repeated.
void find_weights(const GptOssConfig& config, const WeightNaming& naming, StoredWeights* stored,
                  FaultList* faults);

/// The packed formats of all matrices.
struct LayerFormats {
  DType qkv = DType::kBF16, out = DType::kBF16, router = DType::kBF16;
  DType gate_up = DType::kMXFP4, down = DType::kMXFP4;
};
struct WeightFormats {
  DType embedding = DType::kBF16, head = DType::kBF16;
  std::vector<LayerFormats> layers;
};
/// What each matrix keeps: its stored format (F16 becomes F32; parts that differ become F32),
/// or MXFP4 or MXFP8 where asked.
WeightFormats packed_formats(const GptOssConfig& config, const StoredWeights& stored,
                             const LoadOptions& options);
/// The format of a dense layer: `kept`, unless one of the two switches names it.
constexpr DType dense_format(bool is_mxfp4, bool is_mxfp8, DType kept) {
  return is_mxfp4 ? DType::kMXFP4 : is_mxfp8 ? DType::kMXFP8 : kept;
}

}  // namespace moxie
