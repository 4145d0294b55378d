// "synthetic:": a model of true shapes with random weights, made in place without touching the
// disk.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/clock.h"
#include "core/threads.h"
#include "model/checkpoint_open.h"
#include "model/load_progress.h"
#include "model/loader.h"
#include "model/synthetic_cuda.h"
#include "weights/synthetic.h"

namespace moxie {
namespace {

GptOssConfig gpt_oss_config(int32_t num_layers, int32_t num_experts) {
  GptOssConfig config{.num_layers = num_layers,
                      .hidden = 2880,
                      .intermediate = 2880,
                      .num_heads = 64,
                      .num_kv_heads = 8,
                      .num_experts = num_experts,
                      .vocab = 201088};
  for (int32_t i = 0; i < num_layers; ++i) config.is_window.push_back(i % 2 == 0 ? 1 : 0);
  config.eos_id = 200002;
  config.pad_id = 199999;
  return config;
}

// Dense layers are made in the format asked for, not quantised from BF16 ones.
WeightFormats synthetic_formats(const GptOssConfig& config, const LoadOptions& options) {
  const DenseLayers &mxfp4 = options.mxfp4_layers, &mxfp8 = options.mxfp8_layers;
  WeightFormats formats;
  formats.head = dense_format(mxfp4.lm_head, mxfp8.lm_head, DType::kBF16);
  LayerFormats layer;
  layer.qkv = dense_format(mxfp4.qkv, mxfp8.qkv, DType::kBF16);
  layer.out = dense_format(mxfp4.o, mxfp8.o, DType::kBF16);
  formats.layers.assign(static_cast<size_t>(config.num_layers), layer);
  return formats;
}

// Fills weights so that the residual grows slowly, logits are finite and each router, whose rows
// are alike and whose bias is zero, spreads tokens evenly over its experts. The same seed gives the
// same model on every device (layers that are MXFP8 hold what their BF16 values quantise to).
class Filler {
 public:
  Filler(const GptOssConfig& config, uint64_t seed, Device& device, Stream& stream,
         LoadProgress& progress)
      : config_(config), seed_(seed), device_(device), stream_(stream), progress_(progress) {}

  Status fill(const ModelWeights& weights) {
    const int32_t hidden = config_.hidden, experts = config_.num_experts;
    table(weights.embedding, 1.0);
    for (const LayerWeights& layer : weights.layers) {
      vector(layer.input_norm, hidden, 1.0f);
      matrix(layer.qkv, 1.0, PackedRowOrder::kQkv);
      vector(layer.qkv_bias, config_.qkv_width(), 0.0f);
      vector(layer.sinks, config_.num_heads, 0.0f);
      matrix(layer.out, 0.5);
      vector(layer.out_bias, hidden, 0.0f);
      vector(layer.post_norm, hidden, 1.0f);
      matrix(layer.router, 1.0);
      vector(layer.router_bias, experts, 0.0f);
      matrix(layer.gate_up, 1.0, PackedRowOrder::kGateUp);
      vector(layer.gate_up_bias, int64_t{experts} * layer.gate_up.rows, 0.0f);
      matrix(layer.down, 0.5);
      vector(layer.down_bias, int64_t{experts} * hidden, 0.0f);
    }
    vector(weights.final_norm, hidden, 1.0f);
    matrix(weights.head, 2.0);
    return status_ ? stream_.synchronize() : status_;
  }

 private:
  uint64_t next_seed() { return ++num_filled_ + (seed_ << 20); }

  // `gain`: deviation of the outputs for inputs of deviation 1.
  void matrix(const PackedMatrix& target, double gain,
              PackedRowOrder order = PackedRowOrder::kNatural) {
    const double deviation = gain / std::sqrt(target.cols);
    if (stream_.pool != nullptr)
      fill_random_matrix(target, deviation, next_seed(), *stream_.pool);
    else
      fill_random_matrix_cuda(target, order, config_.head_dim, deviation, next_seed(), stream_);
    progress_.add(static_cast<uint64_t>(target.bytes()));
  }
  void table(const RowTable& target, double deviation) {
    if (stream_.pool != nullptr)
      fill_random_table(target, deviation, next_seed(), *stream_.pool);
    else
      fill_random_table_cuda(target, deviation, next_seed(), stream_);
    progress_.add(static_cast<uint64_t>(target.bytes()));
  }
  void vector(const float* place, int64_t count, float value) {
    auto* out = const_cast<float*>(place);
    if (stream_.pool != nullptr) {
      std::fill_n(out, count, value);
      return;
    }
    Status done = value == 0.0f ? device_.fill_zero(
                                      out, sizeof(float) * static_cast<uint64_t>(count), stream_)
                                : fill_vector_cuda(out, count, value, stream_);
    if (!done && status_) status_ = std::move(done);
  }

  const GptOssConfig& config_;
  uint64_t seed_;
  uint64_t num_filled_ = 0;
  Device& device_;
  Stream& stream_;
  LoadProgress& progress_;
  Status status_;
};

class SyntheticCheckpoint final : public Checkpoint {
 public:
  SyntheticCheckpoint(std::string path, GptOssConfig config, FaultList faults)
      : path_(std::move(path)), config_(std::move(config)), faults_(std::move(faults)) {}

  CheckpointKind kind() const override { return CheckpointKind::kSynthetic; }
  const GptOssConfig& config() const override { return config_; }
  std::string path() const override { return path_; }
  const std::vector<Fault>& faults() const override { return faults_.all(); }
  Result<TokenizerSource> tokenizer() const override { return TokenizerSource{.path = path_}; }

  std::vector<StoredTensor> tensors() const override {
    std::vector<StoredTensor> out;
    if (!faults_.empty()) return out;
    for_each_weight(config_, [&](const WeightSpec& spec) {
      const DType dtype = spec.is_expert_matrix ? DType::kMXFP4 : DType::kBF16;
      const auto num_elements = static_cast<uint64_t>(spec.shape.num_elements());
      out.push_back({.file = path_,
                     .name = spec.name,
                     .dtype = spec.is_expert_matrix ? "MXFP4" : "BF16",
                     .shape = spec.shape,
                     .bytes = dtype_bytes(dtype, num_elements)});
    });
    return out;
  }
  uint64_t packed_bytes(const LoadOptions& options) const override {
    return layout(options).packed_bytes;
  }
  ModelWeights layout(const LoadOptions& options) const override {
    ModelWeights weights;
    if (faults_.empty()) {
      lay_out_weights(config_, synthetic_formats(config_, options), options.device, nullptr,
                      &weights);
    }
    return weights;
  }
  Result<ModelWeights> load(Device& device, const LoadOptions& options) const override {
    if (!faults_.empty()) return fail(faults_.all()[0].message());
    if (Status fine = check_load_options(options, device.kind()); !fine) return fail(fine.error());
    const auto start = std::chrono::steady_clock::now();
    Result<WeightsPlace> place = make_weights(config_, synthetic_formats(config_, options), device);
    if (!place) return fail(place.error());
    if (place->stream->pool == nullptr && place->stream->native == nullptr)
      return fail("synthetic weights are made by the GPU itself", device.properties().name);
    LoadProgress progress(options.show_progress, "making weights", place->weights.packed_bytes);
    Filler filler(config_, options.seed, device, *place->stream, progress);
    if (Status filled = filler.fill(place->weights); !filled) return fail(filled.error());
    StartupTimeline& timeline = place->weights.timeline;
    timeline.weights_s = seconds_since(start);
    timeline.repack_s = timeline.weights_s;
    return std::move(place->weights);
  }

 private:
  std::string path_;
  GptOssConfig config_;
  FaultList faults_;
};

}  // namespace

CheckpointResult open_synthetic_checkpoint(const std::string& spec) {
  const std::string path = "synthetic:" + spec;
  GptOssConfig config;
  if (spec == "gpt-oss-120b") {
    config = gpt_oss_config(36, 128);
  } else if (spec == "gpt-oss-20b") {
    config = gpt_oss_config(24, 32);
  } else if (spec.ends_with(".json")) {
    const Result<std::string> text = read_text_file(spec, uint64_t{16} << 20);
    if (!text) return fail(text.error());
    Result<GptOssConfig> parsed = parse_config_json(*text, spec);
    if (!parsed) return fail(parsed.error());
    config = std::move(*parsed);
  } else {
    return fail("is not a model that can be made", path,
                "synthetic:gpt-oss-120b, synthetic:gpt-oss-20b or synthetic:PATH/config.json");
  }
  FaultList faults;
  add_config_faults(config, spec, &faults);
  return std::unique_ptr<Checkpoint>(
      std::make_unique<SyntheticCheckpoint>(path, std::move(config), std::move(faults)));
}

}  // namespace moxie
