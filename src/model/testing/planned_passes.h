// Passes of a model by plans of a test's own, without an engine, on any device.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "core/device.h"
#include "model/gpt_oss.h"

namespace moxie::testing {

template <typename T>
T take(Result<T> result) {
  CHECK(result.has_value(), result ? "" : result.error().message());
  return std::move(*result);
}
inline void done(const Status& status) {
  CHECK(status.has_value(), status ? "" : status.error().message());
}

/// What a pass runs on.
struct PassSetting {
  DType kv_dtype;
  int32_t num_tokens, num_seqs;
  const char* activation;  ///< as --activation
};

/// A model in one setting on one device. The launch follows kContextTokens of each sequence, which
/// a pass at the least `cost_of_context` has put into the cache.
class PlannedPasses {
 public:
  PlannedPasses(Device& device, Features features, const GptOssConfig& config,
                const ModelWeights& weights, const PassSetting& setting, KernelChoice choice,
                const std::function<double(const PlannedRow&)>& cost_of_context)
      : device_(device),
        stream_(take(device.make_stream())),
        config_(config),
        weights_(weights),
        kernels_(device.kind(), features, std::move(choice)) {
    const int32_t num_seqs = setting.num_seqs, per_seq = setting.num_tokens / num_seqs;
    std::vector<int32_t> of_seq(static_cast<size_t>(num_seqs), per_seq);
    of_seq[0] += setting.num_tokens - per_seq * num_seqs;
    const std::vector<int32_t> before(static_cast<size_t>(num_seqs), kContextTokens);
    const int32_t most = std::max(setting.num_tokens, kContextTokens * num_seqs);
    const auto bytes = activation_bytes(config, weights, setting.kv_dtype, kernels_, most, most);
    Arena arena(take(device.allocate(bytes.total() + 16 * 256)));
    act_ = make_activations(config, bytes, most, most, arena);
    act_memory_ = arena.release();
    make_cache(setting.kv_dtype, num_seqs, kContextTokens + of_seq[0]);
    const Batch context = make_batch(0, before);
    batch_ = make_batch(kContextTokens, of_seq);
    fill(kv_memory_, std::vector<std::byte>(kv_memory_.bytes(), std::byte{0xFF}));
    run(take(make_plan(pass(context), kernels_, {}, {.cost = cost_of_context})), context);
    kv_before_.resize(kv_memory_.bytes());
    done(device_.copy_to_host(kv_before_.data(), kv_memory_.data(), kv_before_.size(), *stream_));
    done(stream_->synchronize());
  }
  PlannedPasses(const PlannedPasses&) = delete;

  /// Of the launch: what make_plan() wants.
  Pass pass() const { return pass(batch_); }
  const KernelChooser& kernels() const { return kernels_; }

  /// The logits of all tokens. What the pass does not write before it reads it is NaN.
  std::vector<float> logits(const PassPlan& plan) {
    fill(kv_memory_, kv_before_);
    run(plan, batch_);
    std::vector<float> logits(static_cast<size_t>(batch_.num_logit_rows) *
                              static_cast<size_t>(config_.vocab));
    done(device_.copy_to_host(logits.data(), act_.logits, 4 * logits.size(), *stream_));
    done(stream_->synchronize());
    return logits;
  }

 private:
  static constexpr int32_t kContextTokens = 24, kPageTokens = 16;

  Pass pass(const Batch& batch) const {
    return {.config = config_,
            .weights = weights_,
            .batch = batch,
            .act = act_,
            .kv = kv_,
            .rotary = rotary_,
            .launch = kernels_.launch(stream_.get(), act_.workspace, act_.workspace_bytes),
            .activation = kernels_.activation()};
  }

  void run(const PassPlan& plan, const Batch& batch) {
    fill(act_memory_, std::vector<std::byte>(act_memory_.bytes(), std::byte{0xFF}));
    const Pass of_batch = pass(batch);
    plan.embed.run(kernels_, of_batch, plan.embed, 0);
    for (size_t l = 0; l < weights_.layers.size(); ++l)
      for (const PlannedRow& row : plan.layer(l)) row.run(kernels_, of_batch, row, l);
    plan.unembed.run(kernels_, of_batch, plan.unembed, 0);
  }

  void fill(const Buffer& memory, const std::vector<std::byte>& bytes) {
    done(device_.copy_from_host(memory.data(), bytes.data(), bytes.size(), *stream_));
    done(stream_->synchronize());
  }
  template <typename T>
  const T* upload(const std::vector<T>& values) {
    uploads_.push_back(take(device_.allocate(values.size() * sizeof(T))));
    done(device_.copy_from_host(uploads_.back().data(), values.data(), uploads_.back().bytes(),
                                *stream_));
    done(stream_->synchronize());
    return uploads_.back().as<T>();
  }

  // Pages of the sequences, the last first; windows keep theirs.
  void make_cache(DType dtype, int32_t num_seqs, int32_t longest) {
    const int32_t stride = ceil_div(longest, kPageTokens), num_pages = stride * num_seqs;
    std::vector<int32_t> table(static_cast<size_t>(num_pages));
    std::iota(table.rbegin(), table.rend(), 0);
    KvLayer layer{.page_table = upload(table),
                  .table_stride = stride,
                  .page_tokens = kPageTokens,
                  .dtype = dtype};
    layer.page_stride_bytes =
        config_.num_kv_heads * kPageTokens * layer.row_bytes(config_.head_dim);
    const int64_t half = num_pages * layer.page_stride_bytes;
    kv_memory_ = take(device_.allocate(static_cast<uint64_t>(2 * half * config_.num_layers)));
    for (int32_t l = 0; l < config_.num_layers; ++l) {
      layer.k = kv_memory_.data() + 2 * half * l;
      layer.v = layer.k + half;
      kv_.push_back(layer);
    }
    std::vector<float> angles(static_cast<size_t>(longest) * static_cast<size_t>(config_.head_dim));
    fill_rotary_table(config_, 0, longest, angles.data());
    rotary_ = {upload(angles), longest};
  }

  // `of_seq[s]` tokens of sequence s from position `first` on, all with logits.
  Batch make_batch(int32_t first, const std::vector<int32_t>& of_seq) {
    std::vector<int32_t> ids, positions, seq_idx, offsets{0}, rows;
    int64_t num_visible_keys = 0;
    for (size_t s = 0; s < of_seq.size(); ++s) {
      for (int32_t position = first; position < first + of_seq[s]; ++position) {
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back((position * 37 + static_cast<int32_t>(s) * 11 + 5) % config_.vocab);
        positions.push_back(position);
        seq_idx.push_back(static_cast<int32_t>(s));
        num_visible_keys += position + 1;
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
    return {.ragged = {.num_tokens = static_cast<int32_t>(ids.size()),
                       .num_seqs = static_cast<int32_t>(of_seq.size()),
                       .positions = upload(positions),
                       .seq_idx = upload(seq_idx),
                       .row_offsets = upload(offsets),
                       .num_visible_keys = num_visible_keys},
            .token_ids = upload(ids),
            .num_logit_rows = static_cast<int32_t>(ids.size()),
            .logit_rows = upload(rows)};
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  const GptOssConfig& config_;
  const ModelWeights& weights_;
  KernelChooser kernels_;
  std::vector<Buffer> uploads_;
  Buffer act_memory_, kv_memory_;
  Activations act_;
  std::vector<KvLayer> kv_;
  Rotary rotary_;
  Batch batch_;
  std::vector<std::byte> kv_before_;
};

}  // namespace moxie::testing
