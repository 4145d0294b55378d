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
#include "model/shard.h"
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

// Fills weights so that the residual grows slowly, logits are finite and each router, whose rows
// are alike and whose bias is zero, spreads tokens evenly over its experts. The same seed gives the
// same model on every device (layers that are MXFP8 hold what their BF16 values quantise to).
class Filler {
 public:
  Filler(const GptOssConfig& config, uint64_t seed, Device& device, Stream& stream,
         LoadProgress& progress)
      : config_(config), seed_(seed), device_(device), stream_(stream), progress_(progress) {}

  Status fill(const ModelWeights& weights) {
    for_each_weight(config_, [&](const Weight& weight) {
      if (weight.is_null()) return;
      visit_place(weight, weights, [&](const auto& place) { make(place, weight); });
    });
    return status_ ? stream_.synchronize() : status_;
  }

 private:
  uint64_t next_seed() { return ++num_filled_ + (seed_ << 20); }

  void make(const PackedMatrix& target, const Weight& weight) {
    if (!weight.is_present) return fill(target.data, target.bytes() / 4, 0.0f);
    const double deviation = weight.entry->made / std::sqrt(target.cols);
    if (stream_.pool != nullptr)
      fill_random_matrix(target, deviation, next_seed(), *stream_.pool);
    else
      fill_random_matrix_cuda(target, weight.entry->order, config_.head_dim, deviation, next_seed(),
                              stream_);
    progress_.add(static_cast<uint64_t>(target.bytes()));
  }
  void make(const RowTable& target, const Weight& weight) {
    if (stream_.pool != nullptr)
      fill_random_table(target, weight.entry->made, next_seed(), *stream_.pool);
    else
      fill_random_table_cuda(target, weight.entry->made, next_seed(), stream_);
    progress_.add(static_cast<uint64_t>(target.bytes()));
  }
  void make(const float* target, const Weight& weight) {
    fill(target, weight.num_elements(),
         weight.is_present ? static_cast<float>(weight.entry->made) : 0.0f);
  }
  void fill(const void* place, int64_t count, float value) {
    auto* out = static_cast<float*>(const_cast<void*>(place));
    if (stream_.pool != nullptr) {
      std::fill_n(out, count, value);
      return;
    }
    const auto bytes = sizeof(float) * static_cast<uint64_t>(count);
    Status done = value == 0.0f ? device_.fill_zero(out, bytes, stream_)
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
    for_each_weight(config_, [&](const Weight& weight) {
      if (!weight.is_present) return;
      const bool is_expert = weight.entry->types == StoredTypes::kExperts;
      for (const TensorInFile& tensor : tensors_in_file(weight, FileFormat::kHuggingFace)) {
        const auto num_elements = static_cast<uint64_t>(tensor.shape.num_elements());
        out.push_back({.file = path_,
                       .name = tensor.name,
                       .dtype = is_expert ? "MXFP4" : "BF16",
                       .shape = tensor.shape,
                       .bytes = dtype_bytes(is_expert ? DType::kMXFP4 : DType::kBF16, num_elements),
                       .weight = weight.name()});
      }
    });
    return out;
  }
  ModelWeights layout(const LoadOptions& options) const override {
    ModelWeights weights;
    if (faults_.empty()) {
      lay_out_weights(config_of(options), packed_formats(config_, {}, options), options.device,
                      nullptr, &weights);
    }
    return weights;
  }
  Result<ModelWeights> load(Device& device, const LoadOptions& options) const override {
    if (!faults_.empty()) return fail(faults_.all()[0].message());
    if (Status fine = check_load_options(options, device.kind()); !fine) return fail(fine.error());
    const auto start = std::chrono::steady_clock::now();
    const GptOssConfig config = config_of(options);
    Result<WeightsPlace> place = make_weights(config, packed_formats(config_, {}, options), device);
    if (!place) return fail(place.error());
    if (place->stream->pool == nullptr && place->stream->native == nullptr)
      return fail("synthetic weights are made by the GPU itself", device.properties().name);
    LoadProgress progress(options.show_progress, "making weights", place->weights.packed_bytes);
    Filler filler(config, options.seed, device, *place->stream, progress);
    if (Status filled = filler.fill(place->weights); !filled) return fail(filled.error());
    StartupTimeline& timeline = place->weights.timeline;
    timeline.weights_s = seconds_since(start);
    timeline.repack_s = timeline.weights_s;
    return std::move(place->weights);
  }

 private:
  // Of a rank. Its weights are random too, but not parts of those of the whole model.
  GptOssConfig config_of(const LoadOptions& options) const {
    auto config = config_of_rank(config_, options.ranks, options.rank);
    CHECK(config.has_value(), config ? "" : config.error().message());
    return std::move(*config);
  }

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
