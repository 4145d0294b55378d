// The files of a draft head, open: the configuration is known, every tensor is found and checked,
// and nothing is copied yet.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/draft_config.h"
#include "weights/safetensors.h"

namespace moxie {

class DraftCheckpoint {
 public:
  /// `path` is a directory with config.json and .safetensors files, a repo id in the local Hugging
  /// Face cache, or synthetic:gpt-oss-120b-dflash, -eagle3, or the same of gpt-oss-20b.
  static Result<DraftCheckpoint> open(const std::string& path, const GptOssConfig& target,
                                      int32_t layer_id_offset = -1);
  /// The head for the embedded model that is linked in; fails if this binary has none.
  static Result<DraftCheckpoint> open_embedded(bool is_dflash, const GptOssConfig& target);
  const DraftConfig& config() const { return config_; }
  const std::string& path() const { return path_; }
  /// Tensors have sizes and no data: weights are made, not read.
  bool is_synthetic() const { return !made_.empty(); }
  /// A tensor by its name in the form of EAGLE and DFlash heads of one layer list: "fc.weight",
  /// "layers.0.self_attn.q_proj.weight"; "model." and "midlayer." are translated. Null: none.
  struct Found {
    const SafetensorsFile* file = nullptr;
    const FileTensor* tensor = nullptr;
    const std::byte* data() const { return file->data(*tensor); }
  };
  const Found* find(const std::string& name) const;

 private:
  static Result<DraftCheckpoint> make(const std::string& path, const GptOssConfig& target);
  void add_file(SafetensorsFile file);
  Status read(const std::string& config, const std::string& where, const GptOssConfig& target,
              int32_t layer_id_offset);
  Status check_tensors() const;

  std::string path_;
  DraftConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::deque<FileTensor> made_;  // of a synthetic head
  std::map<std::string, Found> tensors_;
};

}  // namespace moxie
