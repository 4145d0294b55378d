// Functions that all checkpoints in files share.
#include "model/file_checkpoint.h"

#include <fmt/format.h>

#include "model/loader.h"
#include "model/shard.h"

namespace moxie {

bool add_config_faults(const GptOssConfig& config, const std::string& where, FaultList* faults) {
  const std::vector<std::string> texts = config.faults();
  for (const std::string& text : texts) {
    // "name: found X, expected Y"
    const size_t found = text.find(": found "), expected = text.find(", expected ");
    if (found == std::string::npos || expected == std::string::npos) {
      faults->add({where, "", text, ""});
    } else {
      faults->add({where, text.substr(0, found), text.substr(found + 8, expected - found - 8),
                   text.substr(expected + 11)});
    }
  }
  return texts.empty();
}

FileCheckpoint::FileCheckpoint(FileFormat format, std::string path, GptOssConfig config,
                               const std::string& config_where, std::vector<TensorFile> files,
                               FaultList faults, ReadTokenizer tokenizer)
    : kind_(format == FileFormat::kHuggingFace ? CheckpointKind::kHuggingFace
            : format == FileFormat::kOriginal  ? CheckpointKind::kOriginal
                                               : CheckpointKind::kGguf),
      path_(std::move(path)),
      config_(std::move(config)),
      faults_(std::move(faults)),
      tokenizer_(std::move(tokenizer)) {
  stored_.files = std::move(files);
  for (const TensorFile& file : stored_.files)
    for (const Fault& fault : file.faults.all()) faults_.add(fault);
  const bool is_sound = add_config_faults(config_, config_where, &faults_);
  // Shapes computed from an absurd configuration cannot be compared with the tensors.
  if (is_sound) find_weights(config_, format, &stored_, &faults_);
}

std::vector<StoredTensor> FileCheckpoint::tensors() const {
  std::vector<StoredTensor> out;
  for (const TensorFile& file : stored_.files) {
    for (const FileTensor& tensor : file.tensors) {
      const auto weight = stored_.weight_of.find(tensor.name);
      out.push_back({.file = file.file->path(),
                     .name = tensor.name,
                     .dtype = tensor.dtype_text,
                     .shape = tensor.shape,
                     .bytes = tensor.bytes,
                     .weight = weight == stored_.weight_of.end() ? "" : weight->second});
    }
  }
  return out;
}

ModelWeights FileCheckpoint::layout(const LoadOptions& options) const {
  ModelWeights weights;
  // Products of the sizes of an absurd configuration may overflow.
  if (!config_.faults().empty()) return weights;
  const auto config = config_of_rank(config_, options.ranks, options.rank);
  CHECK(config.has_value(), config ? "" : config.error().message());
  lay_out_weights(*config, packed_formats(config_, stored_, options), options.device, nullptr,
                  &weights);
  return weights;
}

Result<ModelWeights> FileCheckpoint::load(Device& device, const LoadOptions& options) const {
  if (!faults_.empty()) {
    const size_t num_faults = faults_.all().size();
    std::string what = faults_.all()[0].message();
    if (num_faults > 1) what += fmt::format(" (and {} more faults)", num_faults - 1);
    return fail(what, "", fmt::format("`moxie inspect {}` lists all faults", path_));
  }
  const WeightFormats formats = packed_formats(config_, stored_, options);
  if (options.ranks.size == 1) return load_weights(config_, stored_, formats, device, options);
  const auto config = config_of_rank(config_, options.ranks, options.rank);
  if (!config) return fail(config.error());
  return load_weights(*config, stored_of_rank(stored_, *config), formats, device, options);
}

}  // namespace moxie
