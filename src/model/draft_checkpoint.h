// The files of a draft head, open: the configuration is known, every tensor is found and checked,
// and nothing is copied yet.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/draft_config.h"
#include "model/draft_gguf.h"
#include "weights/tensor_file.h"

namespace moxie {

class DraftCheckpoint {
 public:
  /// `path` is a directory with config.json and .safetensors files, a .gguf file or a directory
  /// with one, a repo id in the local Hugging Face cache, or synthetic:gpt-oss-120b-dflash,
  /// -eagle3, or the same of gpt-oss-20b.
  static Result<DraftCheckpoint> open(const std::string& path, const GptOssConfig& target,
                                      int32_t layer_id_offset = -1);
  /// A head in GGUF.
  static Result<DraftCheckpoint> open_gguf(std::shared_ptr<const MappedFile> file,
                                           const GptOssConfig& target,
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
    const TensorFile* file = nullptr;
    const FileTensor* tensor = nullptr;
    int32_t interleaved_head_dim = 0;  ///< see model/draft_gguf.h; 0: the model's order
    const std::byte* data() const { return file->data(*tensor); }
  };
  const Found* find(const std::string& name) const;
  /// All tensors by these names; none of a synthetic head has a file.
  const std::map<std::string, Found>& tensors() const { return tensors_; }
  /// Whether d2t holds the target's ids; else what is added to the head's.
  bool has_absolute_ids() const { return gguf_kind_.has_value(); }
  /// kDflash: the embedding of the mask token, [hidden], from mask_embedding.pt beside the head's
  /// files; empty: the target's.
  const std::vector<float>& mask_embedding() const { return mask_embedding_; }

 private:
  static Result<DraftCheckpoint> make(const std::string& path, const GptOssConfig& target);
  void add_file(const TensorFile& file);
  Status read(const std::string& config, const std::string& where, const GptOssConfig& target,
              int32_t layer_id_offset);
  Status read_folder(const std::string& folder, const GptOssConfig& target,
                     int32_t layer_id_offset);
  Status read_gguf_file(const std::string& path, const GptOssConfig& target,
                        int32_t layer_id_offset);
  Status read_gguf_head(std::shared_ptr<const MappedFile> mapped, const GptOssConfig& target,
                        int32_t layer_id_offset);
  Status read_mask_embedding(const std::string& folder);
  Status check_tensors() const;
  Status check_names() const;
  /// The name of a tensor in the files.
  std::string stored_name(const std::string& name) const;

  std::string path_;
  DraftConfig config_;
  std::optional<GgufHeadKind> gguf_kind_;
  std::deque<TensorFile> files_;
  std::deque<FileTensor> made_;  // of a synthetic head
  std::map<std::string, Found> tensors_;
  std::vector<float> mask_embedding_;
};

}  // namespace moxie
