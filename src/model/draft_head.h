// A draft head on one device: what it computes from a target's features. All arrays that its
// functions take are in the device's memory; work is ordered on the stream.
//
// EAGLE-3 row P takes the token at P + 1 and the feature of P, and predicts the token at P + 2. A
// DFlash head writes keys and values of all tokens from their features, and predicts a block of
// tokens in one pass whose rows all see each other. Sources: see draft_config.h.
#pragma once

#include <memory>
#include <span>

#include "kernels/sample/sample.h"
#include "kernels/step.h"
#include "model/draft_weights.h"

namespace moxie {

class KernelChooser;

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
    int32_t num_kept = 1;  ///< features that are kept between launches
    DeviceKind device = DeviceKind::kCpu;
  };
  /// The bytes that load() will hold: weights, cache, activations.
  static uint64_t bytes(const DraftCheckpoint& checkpoint, const Options& options);
  /// `target`, `kernels`, `device` and `stream` must outlive the head. Fails if a tensor is
  /// damaged, the memory is too small, or an operation has no row on the device.
  static Result<std::unique_ptr<DraftHead>> load(const DraftCheckpoint& checkpoint,
                                                 const GptOssConfig& target_config,
                                                 const ModelWeights& target, KernelChooser& kernels,
                                                 Device& device, Stream& stream,
                                                 const Options& options);

  const DraftConfig& config() const { return config_; }
  const Options& options() const { return options_; }

  /// Features of one row, [hidden], by number: 0 .. max_rows - 1 those of a launch's tokens, then
  /// num_kept that are kept, then kPeagle's of the rows that have none.
  float* feature(int32_t number) const { return pool_ + int64_t{number} * config_.hidden; }
  int32_t first_kept() const { return options_.max_rows; }
  int32_t mask_feature() const { return options_.max_rows + options_.num_kept; }
  /// to[i] = feature(numbers[i]); `to` is [n, hidden].
  void gather(const int32_t* numbers, int32_t n, float* to);
  /// The rows of a pass: features [max_rows, hidden], and its outputs.
  float* g() const { return g_; }
  float* y() const { return y_; }

  /// g [n, hidden] of features: taps[i] is [n, hidden], the target's x at boundaries[i].
  void project(std::span<const float* const> taps, int32_t n, float* g);
  /// EAGLE: one pass over rows (token, g). Writes the cache and y(); with `keys_only` the cache
  /// alone, and y() is scratch.
  void run_pairs(const DraftRows& rows, const float* g, bool keys_only = false);
  /// The features of tokens drafted by the last pass: its first n rows of y(), or their norm, to
  /// g().
  void outputs_to_features(int32_t n);
  /// kDflash: writes keys and values of tokens with these features.
  void write_context(const DraftRows& rows, const float* g);
  /// kDflash: one pass over blocks. Writes y().
  void run_block(const DraftRows& rows);
  /// Logits [n, draft vocab] of these rows of y(), n at most max_logit_rows(). Valid until the next
  /// logits() or draw().
  const float* logits(const int32_t* rows, int32_t n);
  /// ids[i] = the target's id of the greatest logit of row rows[i] of y().
  void draw(const int32_t* rows, int32_t n, int32_t* ids);
  static constexpr int32_t max_logit_rows() { return 64; }

 private:
  DraftHead(const DraftConfig& config, KernelChooser& kernels, Device& device, Stream& stream,
            const Options& options)
      : config_(config), kernels_(kernels), device_(device), stream_(stream), options_(options) {}
  Status make_memory();
  Status check_rows();
  template <typename P>
  Status reserve(P params);
  template <typename P>
  void run(P params);
  /// The form of y() and of what is added to it.
  XForm y_form() const;
  L1Form l1_form() const;
  void norm(const float* x, int64_t x_stride, const float* weight, float* y, int64_t y_stride,
            int32_t n, int32_t width, XForm x_form = XForm::kF32, XForm y_form = XForm::kF32);
  void norm_y(const float* weight, float* to, int64_t stride, int32_t n);
  /// y = W x + b.
  void product(const PackedMatrix& weight, const float* bias, const float* x, float* y, int32_t n);
  /// y() += W x + b.
  void add_product(const PackedMatrix& weight, const float* bias, const float* x, int32_t n);
  void embed(const int32_t* tokens, int32_t n);
  /// y() of mask tokens becomes the head's embedding of them, if it has one.
  void embed_masks(const int32_t* tokens, int32_t n);
  KvLayer cache_of(int32_t layer, const DraftRows& rows) const;
  void write_keys(int32_t layer, const DraftRows& rows, const float* inputs);
  void store_keys(int32_t layer, const DraftRows& rows, float* products, int64_t stride);
  void attend(int32_t layer, const DraftRows& rows, const float* normed);
  void mlp(const DraftLayer& layer, int32_t n);

  const DraftConfig config_;
  KernelChooser& kernels_;
  Device& device_;
  Stream& stream_;
  const Options options_;
  DraftWeights weights_;
  Buffer rotary_, cache_, activations_, workspace_;
  // In activations_, for max_rows rows: taps [k * hidden], joined [2 * hidden], qkv, q, a,
  // m [hidden], gate_up [2 * intermediate], act [intermediate], context [layers * k and v], g, y
  // [hidden]
  float *taps_ = nullptr, *joined_ = nullptr, *qkv_ = nullptr, *q_ = nullptr, *a_ = nullptr,
        *m_ = nullptr, *gate_up_ = nullptr, *act_ = nullptr, *context_ = nullptr, *g_ = nullptr,
        *y_ = nullptr;
  float* pool_ = nullptr;    // [max_rows + num_kept + 1, hidden]
  float* logits_ = nullptr;  // [max_logit_rows, draft vocab]
  SampleRequest* requests_ = nullptr;
  SampleAnswer* answers_ = nullptr;  // [max_logit_rows] both
};

}  // namespace moxie
