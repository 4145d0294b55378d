// "synthetic:": a model of true shapes with random weights, made in place without touching the
// disk.
#include <cmath>
#include <cstring>

#include "core/threads.h"
#include "model/checkpoint_open.h"
#include "model/load_progress.h"
#include "model/loader.h"
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

WeightFormats synthetic_formats(const GptOssConfig& config, const Mxfp4Layers& mxfp4) {
  WeightFormats formats;
  formats.head = mxfp4.lm_head ? DType::kMXFP4 : DType::kBF16;
  LayerFormats layer;
  if (mxfp4.qkv) layer.qkv = DType::kMXFP4;
  if (mxfp4.o) layer.out = DType::kMXFP4;
  formats.layers.assign(static_cast<size_t>(config.num_layers), layer);
  return formats;
}

// Fills weights so that the residual grows slowly, logits are finite and each router, whose rows
// are alike and whose bias is zero, spreads tokens evenly over its experts.
class Filler {
 public:
  Filler(const GptOssConfig& config, uint64_t seed, ThreadPool& pool, LoadProgress& progress)
      : config_(config), seed_(seed), pool_(pool), progress_(progress) {}

  void fill(const ModelWeights& weights) {
    const int32_t hidden = config_.hidden, experts = config_.num_experts;
    fill_random_table(weights.embedding, 1.0, ++stream_ + (seed_ << 20), pool_);
    progress_.add(static_cast<uint64_t>(weights.embedding.bytes()));
    for (const LayerWeights& layer : weights.layers) {
      vector(layer.input_norm, hidden, 1.0f);
      matrix(layer.qkv, 1.0);
      vector(layer.qkv_bias, config_.qkv_width(), 0.0f);
      vector(layer.sinks, config_.num_heads, 0.0f);
      matrix(layer.out, 0.5);
      vector(layer.out_bias, hidden, 0.0f);
      vector(layer.post_norm, hidden, 1.0f);
      matrix(layer.router, 1.0);
      vector(layer.router_bias, experts, 0.0f);
      matrix(layer.gate_up, 1.0);
      vector(layer.gate_up_bias, int64_t{experts} * layer.gate_up.rows, 0.0f);
      matrix(layer.down, 0.5);
      vector(layer.down_bias, int64_t{experts} * hidden, 0.0f);
    }
    vector(weights.final_norm, hidden, 1.0f);
    matrix(weights.head, 2.0);
  }

 private:
  // `gain`: deviation of the outputs for inputs of deviation 1.
  void matrix(const PackedMatrix& target, double gain) {
    fill_random_matrix(target, gain / std::sqrt(target.cols), ++stream_ + (seed_ << 20), pool_);
    progress_.add(static_cast<uint64_t>(target.bytes()));
  }
  static void vector(const float* place, int64_t count, float value) {
    std::fill_n(const_cast<float*>(place), count, value);
  }

  const GptOssConfig& config_;
  uint64_t seed_;
  uint64_t stream_ = 0;
  ThreadPool& pool_;
  LoadProgress& progress_;
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
      lay_out_weights(config_, synthetic_formats(config_, options.mxfp4_layers), nullptr, &weights);
    }
    return weights;
  }
  Result<ModelWeights> load(Device& device, const LoadOptions& options) const override {
    if (!faults_.empty()) return fail(faults_.all()[0].message());
    Result<WeightsPlace> place =
        make_weights(config_, synthetic_formats(config_, options.mxfp4_layers), device);
    if (!place) return fail(place.error());
    LoadProgress progress(options.show_progress, "making weights", place->weights.packed_bytes);
    Filler(config_, options.seed, *place->stream->pool, progress).fill(place->weights);
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
