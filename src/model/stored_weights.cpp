// Matches the table of weights with the tensors of a checkpoint.
#include "model/stored_weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <unordered_set>

namespace moxie {
namespace {

// Tensors that some converters write and no forward pass needs.
bool is_ignored(std::string_view name) {
  return name == "rope_freqs.weight" || name.ends_with(".rotary_emb.inv_freq");
}

std::optional<StoredRows::Kind> stored_kind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StoredRows::Kind::kF32;
    case DType::kF16:
      return StoredRows::Kind::kF16;
    case DType::kBF16:
      return StoredRows::Kind::kBF16;
    case DType::kQ8_0:
      return StoredRows::Kind::kQ8_0;
    case DType::kMXFP4:
      return StoredRows::Kind::kMxfp4Gguf;
    default:
      return std::nullopt;
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

class WeightFinder {
 public:
  WeightFinder(FileFormat format, StoredWeights* stored, FaultList* faults)
      : format_(format), stored_(stored), faults_(faults) {
    bool is_whole = !stored->files.empty();
    for (const TensorFile& file : stored->files) {
      // A file with an unreadable header hides its tensors, so they are not reported as missing.
      is_whole = is_whole && !(file.tensors.empty() && !file.faults.empty());
      for (const FileTensor& tensor : file.tensors) add(file, tensor);
    }
    reports_missing_ = is_whole;
    if (stored->files.size() == 1) {
      where_ = stored->files[0].file->path();
    } else if (!stored->files.empty()) {
      where_ = std::filesystem::path(stored->files[0].file->path()).parent_path().string();
    }
  }

  void find(const Weight& weight) {
    std::vector<StoredPart>& parts = stored_->parts.emplace_back();
    if (!weight.is_present) return;
    weight_ = weight.name();
    const FormatNames& names = format_names(format_);
    const bool may_be_split = weight.entry->types == StoredTypes::kExperts && !names.blocks.empty();
    const auto has_tensor = [&](const std::string& name) {
      return places_.contains(name) ||
             (may_be_split && places_.contains(name + std::string(names.blocks)));
    };
    for (const PartInFile& wanted : parts_in_file(weight, format_, has_tensor)) {
      StoredPart part;
      const bool is_found = may_be_split ? find_expert_part(weight, wanted, &part)
                                         : find_dense_part(weight, wanted, &part);
      if (is_found) parts.push_back(std::move(part));
    }
  }

  void report_extra() {
    for (const TensorFile& file : stored_->files) {
      for (const FileTensor& tensor : file.tensors) {
        if (stored_->weight_of.contains(tensor.name) || is_ignored(tensor.name)) continue;
        faults_->add({file.file->path(), tensor.name,
                      "a tensor that the model does not have (" + tensor.dtype_text + " " +
                          tensor.shape.to_string() + ")",
                      "no such tensor"});
      }
    }
  }

 private:
  struct Place {
    const TensorFile* file = nullptr;
    const FileTensor* tensor = nullptr;
  };

  void add(const TensorFile& file, const FileTensor& tensor) {
    const auto [place, is_first] = places_.try_emplace(tensor.name, Place{&file, &tensor});
    if (!is_first && place->second.file != &file) {
      faults_->add({file.file->path(), tensor.name,
                    "the name in " + place->second.file->file->path() + " too", "it in one file"});
    }
  }

  const Place* place(const std::string& name) {
    const auto found = places_.find(name);
    if (found == places_.end()) return nullptr;
    stored_->weight_of.emplace(name, weight_);
    return &found->second;
  }

  void missing(const std::string& name, const std::string& dtypes, const Shape& shape) {
    if (!reports_missing_) return;
    if (!reported_.insert(name).second) return;
    faults_->add({where_, name, "no such tensor", dtypes + " " + shape.to_string()});
  }

  // Looks up one tensor and checks dtype and shape; null if missing or wrong.
  const Place* checked(const std::string& name, const Shape& shape, const std::string& dtypes,
                       bool (*accepts)(DType)) {
    const Place* found = place(name);
    if (found == nullptr) {
      missing(name, dtypes, shape);
      return nullptr;
    }
    const FileTensor& tensor = *found->tensor;
    if (!tensor.is_readable) return nullptr;  // the reader has reported why
    bool is_right = true;
    const auto wrong = [&](const std::string& what, const std::string& expected) {
      is_right = false;
      if (!reported_.insert(name + '\n' + expected).second) return;
      faults_->add({found->file->file->path(), name, what, expected});
    };
    if (!tensor.dtype || !accepts(*tensor.dtype))
      wrong("the dtype " + tensor.dtype_text, "the dtype " + dtypes);
    if (!(tensor.shape == shape))
      wrong("the shape " + tensor.shape.to_string(), "the shape " + shape.to_string());
    return is_right ? found : nullptr;
  }

  bool find_dense_part(const Weight& weight, const PartInFile& wanted, StoredPart* part) {
    const bool is_gguf = format_ == FileFormat::kGguf || format_ == FileFormat::kOldGguf;
    const Place* found = weight.entry->types == StoredTypes::kFloats || !is_gguf
                             ? checked(wanted.tensor, wanted.shape, kFloatsText, is_float)
                             : checked(wanted.tensor, wanted.shape, "MXFP4, Q8_0, BF16, F16 or F32",
                                       [](DType dtype) { return stored_kind(dtype).has_value(); });
    if (found == nullptr) return false;
    fill(*found, wanted, weight.num_experts, std::max(weight.cols, 1), part);
    return true;
  }

  bool find_expert_part(const Weight& weight, const PartInFile& wanted, StoredPart* part) {
    const Shape& shape = wanted.shape;
    const std::string blocks_name = wanted.tensor + std::string(format_names(format_).blocks);
    const std::string scales_name = wanted.tensor + std::string(format_names(format_).scales);
    if (places_.contains(wanted.tensor) && !places_.contains(blocks_name)) {
      // Dense: the transformers library stores experts as [E, in, out], the original as rows.
      const bool is_transposed = format_ == FileFormat::kHuggingFace;
      const Shape dense = is_transposed ? Shape{shape[0], shape[2], shape[1]} : shape;
      const Place* found = checked(wanted.tensor, dense, kFloatsText, is_float);
      if (found == nullptr) return false;
      fill(*found, wanted, weight.num_experts, weight.cols, part);
      if (is_transposed) {
        part->rows.transposed = true;
        part->rows.row_stride_bytes =
            static_cast<int64_t>(dtype_bytes(*found->tensor->dtype, 1)) * shape[1];
      }
      return true;
    }
    const auto is_u8 = [](DType dtype) { return dtype == DType::kU8; };
    const int64_t num_blocks = shape[2] / kMxBlock;
    const Place* blocks = checked(blocks_name, {shape[0], shape[1], num_blocks, 16}, "U8", is_u8);
    const Place* scales = checked(scales_name, {shape[0], shape[1], num_blocks}, "U8", is_u8);
    if (blocks == nullptr || scales == nullptr) return false;
    *part = part_of(*blocks, blocks_name, wanted);
    part->rows = {.kind = StoredRows::Kind::kMxfp4Split,
                  .data = data_of(*blocks),
                  .scales = data_of(*scales),
                  .row_stride_bytes = num_blocks * 16,
                  .scale_stride_bytes = num_blocks,
                  .cols = weight.cols};
    part->scales_file = scales->file->file.get();
    part->expert_stride_bytes = shape[1] * num_blocks * 16;
    part->scale_expert_stride_bytes = shape[1] * num_blocks;
    return true;
  }

  static const std::byte* data_of(const Place& place) { return place.file->data(*place.tensor); }

  static StoredPart part_of(const Place& found, const std::string& tensor,
                            const PartInFile& wanted) {
    return {.file = found.file->file.get(),
            .tensor = tensor,
            .first = wanted.first,
            .step = wanted.step,
            .num_rows = wanted.num_rows};
  }

  static void fill(const Place& found, const PartInFile& wanted, int32_t num_experts, int32_t cols,
                   StoredPart* part) {
    const DType dtype = *found.tensor->dtype;
    *part = part_of(found, wanted.tensor, wanted);
    part->rows = {
        .kind = *stored_kind(dtype),
        .data = data_of(found),
        .row_stride_bytes = static_cast<int64_t>(dtype_bytes(dtype, static_cast<uint64_t>(cols))),
        .cols = cols};
    part->expert_stride_bytes = static_cast<int64_t>(found.tensor->bytes) / num_experts;
  }

  static constexpr const char* kFloatsText = "BF16, F16 or F32";
  FileFormat format_;
  StoredWeights* stored_;
  FaultList* faults_;
  bool reports_missing_ = true;
  std::string where_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_set<std::string> reported_;  // a tensor may hold several parts
  std::string weight_;                        // the weight being looked up
};

const std::vector<StoredPart> kNoParts;

DType kept_format(const StoredPart& part) {
  switch (part.rows.kind) {
    case StoredRows::Kind::kBF16:
      return DType::kBF16;
    case StoredRows::Kind::kQ8_0:
      return DType::kQ8_0;
    case StoredRows::Kind::kMxfp4Split:
    case StoredRows::Kind::kMxfp4Gguf:
      return DType::kMXFP4;
    default:
      return DType::kF32;
  }
}

}  // namespace

void find_weights(const GptOssConfig& config, FileFormat format, StoredWeights* stored,
                  FaultList* faults) {
  WeightFinder finder(format, stored, faults);
  for_each_weight(config, [&](const Weight& weight) { finder.find(weight); });
  finder.report_extra();
}

WeightFormats packed_formats(const GptOssConfig& config, const StoredWeights& stored,
                             const LoadOptions& options) {
  WeightFormats formats;
  for_each_weight(config, [&](const Weight& weight) {
    const WeightEntry& entry = *weight.entry;
    if (weight.is_vector()) return formats.push_back(DType::kF32);
    // Plans are made for faulty files too: parts may be missing.
    std::optional<DType> kept;
    for (const StoredPart& part : stored.parts.empty() ? kNoParts : stored.parts_of(weight)) {
      const DType one = kept_format(part);
      kept = kept.value_or(one) == one ? one : DType::kF32;
    }
    DType format =
        kept.value_or(entry.types == StoredTypes::kExperts ? DType::kMXFP4 : DType::kBF16);
    // Every MXFP4 value is a BF16 value, and rows are gathered whole.
    const bool is_table = std::holds_alternative<RowTable ModelWeights::*>(entry.place);
    if (is_table && format == DType::kMXFP4) format = DType::kBF16;
    if (entry.quantised != nullptr && options.mxfp8_layers.*entry.quantised) format = DType::kMXFP8;
    if (entry.quantised != nullptr && options.mxfp4_layers.*entry.quantised) format = DType::kMXFP4;
    formats.push_back(format);
  });
  return formats;
}

}  // namespace moxie
