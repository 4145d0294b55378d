// A draft head: its weights, packed, and what it computes from a target's features.
//
// EAGLE-3 row P takes the token at P + 1 and the feature of P, and predicts the token at P + 2. A
// DFlash head writes keys and values of all tokens from their features, and predicts a block of
// tokens in one pass whose rows all see each other. Sources: see draft_config.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/step.h"
#include "model/draft_config.h"
#include "model/weights.h"
#include "weights/safetensors.h"

namespace moxie {

class KernelChooser;

/// An open head: configuration known, every tensor found and checked, nothing copied yet.
class DraftCheckpoint {
 public:
  /// `path` is a directory with config.json and .safetensors files, or a repo id in the local
  /// Hugging Face cache.
  static Result<DraftCheckpoint> open(const std::string& path, const GptOssConfig& target,
                                      int32_t layer_id_offset = -1);
  /// The head for the embedded model that is linked in; fails if this binary has none.
  static Result<DraftCheckpoint> open_embedded(bool is_dflash, const GptOssConfig& target);
  const DraftConfig& config() const { return config_; }
  const std::string& path() const { return path_; }
  /// A tensor by its name in the form of EAGLE and DFlash heads of one layer list: "fc.weight",
  /// "layers.0.self_attn.q_proj.weight"; "model." and "midlayer." are translated. Null: none.
  struct Found {
    const SafetensorsFile* file = nullptr;
    const FileTensor* tensor = nullptr;
    const std::byte* data() const { return file->data(*tensor); }
  };
  const Found* find(const std::string& name) const;

 private:
  void add_file(SafetensorsFile file);
  Status read(const std::string& config, const std::string& where, const GptOssConfig& target,
              int32_t layer_id_offset);
  Status check_tensors() const;

  std::string path_;
  DraftConfig config_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Found> tensors_;
};

struct DraftLayer {
  const float* input_norm = nullptr;   // [hidden], of the embedding in layer 0 of EAGLE heads
  const float* hidden_norm = nullptr;  // [hidden], of the feature, there only
  const float* post_norm = nullptr;    // [hidden]
  const float* q_norm = nullptr;       // [head_dim]; null: none
  const float* k_norm = nullptr;       // [head_dim]; null: none
  PackedMatrix qkv;                    // [q + k + v rows, hidden or 2 * hidden]
  PackedMatrix out;                    // [hidden, q width]
  PackedMatrix gate_up;                // [2 * intermediate, hidden]: gate rows, then up rows
  PackedMatrix down;                   // [hidden, intermediate]
  const float* qkv_bias = nullptr;     // [qkv rows]; zeros where the head has none
  const float* out_bias = nullptr;     // [hidden]; likewise
};

/// Tokens of several sequences for one pass of the head.
struct DraftRows {
  Ragged batch;                           // positions: of the rotation and in the cache
  const int32_t* tokens = nullptr;        // [tokens]
  const int32_t* last_visible = nullptr;  // [tokens] the last position that each row sees
  const int32_t* page_table = nullptr;    // [num_seqs, table_stride]
  int32_t table_stride = 0;
};

class DraftHead {
 public:
  struct Options {
    DType format = DType::kMXFP4;  ///< of the matrices, where columns allow it: kMXFP4 or kBF16
    DType kv_dtype = DType::kBF16;
    int32_t max_rows = 1;       ///< of a pass
    int32_t max_positions = 1;  ///< of a sequence
    int32_t num_pages = 1, page_tokens = 16;
  };
  /// The bytes that load() will hold: weights, cache, activations.
  static uint64_t bytes(const DraftCheckpoint& checkpoint, const Options& options);
  /// `target`, `kernels`, `device` and `stream` must outlive the head.
  static Result<std::unique_ptr<DraftHead>> load(const DraftCheckpoint& checkpoint,
                                                 const GptOssConfig& target_config,
                                                 const ModelWeights& target, KernelChooser& kernels,
                                                 Device& device, Stream& stream,
                                                 const Options& options);

  const DraftConfig& config() const { return config_; }
  const Options& options() const { return options_; }
  /// g [n, hidden] of features: taps[i] is [n, hidden], the target's x at boundaries[i].
  void project(std::span<const float* const> taps, int32_t n, float* g);
  /// kPeagle: g of the rows whose features are not known, [hidden].
  const float* mask_feature() const { return mask_feature_.data(); }
  /// EAGLE: one pass over rows (token, g). Writes the cache and y [n, hidden], which logits()
  /// takes; with `keys_only` the cache alone, and y is scratch.
  void run_pairs(const DraftRows& rows, const float* g, float* y, bool keys_only = false);
  /// The feature of a drafted token: y itself, or its norm. In place.
  void to_feature(float* y, int32_t n);
  /// kDflash: writes keys and values of tokens with these features.
  void write_context(const DraftRows& rows, const float* g);
  /// kDflash: one pass over blocks. Writes y [n, hidden].
  void run_block(const DraftRows& rows, float* y);
  /// Logits [rows, draft vocab] of these rows of y; at most max_logit_rows() of them.
  void logits(const float* y, std::span<const int32_t> rows, float* logits);
  static constexpr int32_t max_logit_rows() { return 64; }
  /// The target's id of an id of the draft vocabulary.
  int32_t target_id(int32_t draft_id) const {
    return target_ids_.empty() ? draft_id : target_ids_[static_cast<size_t>(draft_id)];
  }
  uint64_t weight_bytes() const { return weight_bytes_; }

 private:
  DraftHead(const DraftConfig& config, KernelChooser& kernels, Device& device, Stream& stream,
            const Options& options)
      : config_(config), kernels_(kernels), device_(device), stream_(stream), options_(options) {}
  Status load_weights(const DraftCheckpoint& checkpoint, const ModelWeights& target);
  Status make_memory();
  Result<const float*> load_vector(const DraftCheckpoint& checkpoint, const std::string& name,
                                   bool is_required);
  Result<PackedMatrix> load_matrix(const DraftCheckpoint& checkpoint,
                                   std::span<const std::string> names);
  Status load_layer(const DraftCheckpoint& checkpoint, int32_t index);
  template <typename P>
  void run(P params);
  void norm(const float* x, int64_t x_stride, const float* weight, float* y, int64_t y_stride,
            int32_t n, int32_t width);
  /// y = W x + b.
  void product(const PackedMatrix& weight, const float* bias, const float* x, float* y, int32_t n);
  void add_product(const PackedMatrix& weight, const float* bias, const float* x, float* y,
                   int32_t n);
  void embed(const int32_t* tokens, int32_t n, float* x);
  KvLayer cache_of(int32_t layer, const DraftRows& rows) const;
  void write_keys(int32_t layer, const DraftRows& rows, const float* inputs);
  void attend(int32_t layer, const DraftRows& rows, const float* normed);
  void mlp(const DraftLayer& layer, float* x, int32_t n);

  const DraftConfig config_;
  KernelChooser& kernels_;
  Device& device_;
  Stream& stream_;
  const Options options_;
  std::vector<DraftLayer> layers_;
  RowTable embedding_;
  PackedMatrix fc_, head_;
  const float* input_norm_ = nullptr;    // [k * hidden]
  std::vector<const float*> fc_norms_;   // k of [hidden]
  const float* final_norm_ = nullptr;    // [hidden], before the logits
  const float* feature_norm_ = nullptr;  // DFlash: hidden_norm; takes_final_norm: the target's
  const float* zeros_ = nullptr;         // as wide as any bias
  std::vector<int32_t> target_ids_;
  std::vector<float> mask_feature_;
  std::vector<Buffer> storage_;
  uint64_t weight_bytes_ = 0;
  Buffer rotary_, cache_, activations_, workspace_;
  // In activations_, for max_rows rows: features [k * hidden], joined [2 * hidden], qkv, q, a,
  // m [hidden], gate_up [2 * intermediate], act [intermediate]
  float *features_ = nullptr, *joined_ = nullptr, *qkv_ = nullptr, *q_ = nullptr, *a_ = nullptr,
        *m_ = nullptr, *gate_up_ = nullptr, *act_ = nullptr;
};

}  // namespace moxie
