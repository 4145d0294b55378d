// Packs a head's weights, and runs its layers by the operations that the model has, too.
#include "model/draft_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/packing.h"
#include "core/threads.h"
#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/gate/gate.h"
#include "kernels/out/out.h"
#include "kernels/registry.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotate/rotate.h"
#include "kernels/unembed/unembed.h"

namespace moxie {
namespace {

int32_t num_taps(const DraftConfig& config) {
  return static_cast<int32_t>(config.boundaries.size());
}

std::string layer_name(int32_t layer, const char* rest) {
  return fmt::format("layers.{}.{}", layer, rest);
}

// Floats of one row of all activations, in the order of DraftHead's pointers.
std::vector<int64_t> activation_widths(const DraftConfig& c) {
  return {int64_t{num_taps(c)} * c.hidden,
          int64_t{2} * c.hidden,
          c.qkv_width(),
          c.q_width(),
          c.q_width(),
          c.hidden,
          int64_t{2} * c.intermediate,
          c.intermediate};
}

uint64_t cache_bytes(const DraftConfig& c, const DraftHead::Options& o) {
  return uint64_t{2} * static_cast<uint64_t>(c.num_layers) * static_cast<uint64_t>(o.num_pages) *
         static_cast<uint64_t>(o.page_tokens) *
         dtype_bytes(o.kv_dtype, static_cast<uint64_t>(c.kv_width()));
}

uint64_t activation_bytes(const DraftConfig& c, const DraftHead::Options& o) {
  uint64_t bytes = 0;
  for (const int64_t width : activation_widths(c))
    bytes += round_up<uint64_t>(
        static_cast<uint64_t>(width) * static_cast<uint64_t>(o.max_rows) * 4, 256);
  return bytes;
}

// A checked tensor as rows of `cols` values.
StoredRows stored_rows(const DraftCheckpoint::Found& found, int32_t cols) {
  const DType dtype = *found.tensor->dtype;
  return {.kind = dtype == DType::kF32   ? StoredRows::Kind::kF32
                  : dtype == DType::kF16 ? StoredRows::Kind::kF16
                                         : StoredRows::Kind::kBF16,
          .data = found.data(),
          .row_stride_bytes = static_cast<int64_t>(dtype_bytes(dtype, static_cast<uint64_t>(cols))),
          .cols = cols};
}

// A vector or rows of BF16, F16 or F32 as F32.
std::vector<float> read_values(const DraftCheckpoint::Found& found) {
  const auto count = static_cast<int32_t>(found.tensor->shape.num_elements());
  std::vector<float> values(static_cast<size_t>(count));
  stored_rows(found, count).read_row(0, values.data());
  return values;
}

}  // namespace

uint64_t DraftHead::bytes(const DraftCheckpoint& checkpoint, const Options& options) {
  const DraftConfig& c = checkpoint.config();
  const auto bits = options.format == DType::kMXFP4 ? 17u : 64u;  // of 4 weights
  const auto hidden = static_cast<uint64_t>(c.hidden);
  uint64_t weights = static_cast<uint64_t>(num_taps(c)) * hidden * hidden;
  for (int32_t i = 0; i < c.num_layers; ++i) {
    const uint64_t inputs = c.kind != DraftKind::kDflash && i == 0 ? 2 * hidden : hidden;
    weights += inputs * static_cast<uint64_t>(c.qkv_width()) +
               hidden * static_cast<uint64_t>(c.q_width() + 3 * c.intermediate);
  }
  uint64_t bytes = 0;
  if (checkpoint.find("lm_head.weight") != nullptr)
    weights += hidden * static_cast<uint64_t>(c.draft_vocab);
  if (checkpoint.find("embed_tokens.weight") != nullptr)
    bytes += 2 * hidden * static_cast<uint64_t>(c.vocab);
  return bytes + weights * bits / 32 + cache_bytes(c, options) + activation_bytes(c, options) +
         static_cast<uint64_t>(options.max_positions) * static_cast<uint64_t>(c.head_dim) * 4;
}

Result<std::unique_ptr<DraftHead>> DraftHead::load(const DraftCheckpoint& checkpoint,
                                                   const GptOssConfig& target_config,
                                                   const ModelWeights& target,
                                                   KernelChooser& kernels, Device& device,
                                                   Stream& stream, const Options& options) {
  CHECK(checkpoint.config().hidden == target_config.hidden);
  CHECK(device.kind() == DeviceKind::kCpu, "no rows elsewhere");
  std::unique_ptr<DraftHead> head(
      new DraftHead(checkpoint.config(), kernels, device, stream, options));
  if (auto status = head->load_weights(checkpoint, target); !status)
    return fail(std::move(status.error()));
  if (auto status = head->make_memory(); !status) return fail(std::move(status.error()));
  if (const auto* mask = checkpoint.find("mask_hidden"); mask != nullptr) {
    const std::vector<float> hidden = read_values(*mask);
    std::vector<const float*> taps;
    for (int32_t i = 0; i < num_taps(head->config_); ++i)
      taps.push_back(hidden.data() + int64_t{i} * head->config_.hidden);
    head->mask_feature_.resize(static_cast<size_t>(head->config_.hidden));
    head->project(taps, 1, head->mask_feature_.data());
  }
  return head;
}

// The vector in F32, or null if it is absent and not required.
Result<const float*> DraftHead::load_vector(const DraftCheckpoint& checkpoint,
                                            const std::string& name, bool is_required) {
  const auto* found = checkpoint.find(name);
  if (found == nullptr) {
    if (is_required) return fail("the head lacks " + name, checkpoint.path());
    return nullptr;
  }
  const std::vector<float> values = read_values(*found);
  auto buffer = device_.allocate(values.size() * 4);
  if (!buffer) return fail(std::move(buffer.error()));
  std::memcpy(buffer->data(), values.data(), values.size() * 4);
  weight_bytes_ += values.size() * 4;
  storage_.push_back(std::move(*buffer));
  return storage_.back().as<float>();
}

// Rows of several tensors under each other as one packed matrix.
Result<PackedMatrix> DraftHead::load_matrix(const DraftCheckpoint& checkpoint,
                                            std::span<const std::string> names) {
  PackedMatrix matrix;
  std::vector<StoredRows> parts;
  std::vector<int32_t> rows;
  for (const std::string& name : names) {
    const auto* found = checkpoint.find(name);
    if (found == nullptr) return fail("the head lacks " + name, checkpoint.path());
    const FileTensor& tensor = *found->tensor;
    const auto cols = static_cast<int32_t>(tensor.shape.dims[1]);
    matrix.cols = cols;
    matrix.rows += static_cast<int32_t>(tensor.shape.dims[0]);
    rows.push_back(static_cast<int32_t>(tensor.shape.dims[0]));
    parts.push_back(stored_rows(*found, cols));
  }
  matrix.format =
      options_.format == DType::kMXFP4 && matrix.cols % 32 == 0 ? DType::kMXFP4 : DType::kBF16;
  const auto tile_bytes = static_cast<uint64_t>(matrix.tile_bytes());
  auto buffer = device_.allocate(tile_bytes * static_cast<uint64_t>(matrix.num_tiles()));
  if (!buffer) return fail(std::move(buffer.error()));
  auto pack = [&](int64_t tile, int) {
    // All parts but the last end with a tile.
    auto first = static_cast<int32_t>(tile) * 16;
    size_t part = 0;
    while (part + 1 < parts.size() && first >= rows[part]) first -= rows[part++];
    int64_t lanes[16];
    for (int32_t i = 0; i < 16; ++i) lanes[i] = first + i < rows[part] ? first + i : -1;
    pack_tile_rows16(parts[part], lanes, matrix.format,
                     buffer->data() + static_cast<uint64_t>(tile) * tile_bytes);
  };
  stream_.pool->run(matrix.num_tiles(), pack);
  matrix.data = buffer->data();
  weight_bytes_ += buffer->bytes();
  storage_.push_back(std::move(*buffer));
  return matrix;
}

Status DraftHead::load_layer(const DraftCheckpoint& checkpoint, int32_t index) {
  DraftLayer layer;
  const auto vector = [&](const char* rest, bool is_required, const float** out) -> Status {
    auto loaded = load_vector(checkpoint, layer_name(index, rest), is_required);
    if (!loaded) return fail(std::move(loaded.error()));
    *out = *loaded;
    return {};
  };
  const auto matrix = [&](std::vector<std::string> names, PackedMatrix* out) -> Status {
    for (std::string& name : names) name = layer_name(index, name.c_str());
    auto loaded = load_matrix(checkpoint, names);
    if (!loaded) return fail(std::move(loaded.error()));
    *out = *loaded;
    return {};
  };
  const bool joins = config_.kind != DraftKind::kDflash && index == 0;
  for (auto status :
       {vector("input_layernorm.weight", true, &layer.input_norm),
        vector("hidden_norm.weight", joins && !config_.takes_final_norm, &layer.hidden_norm),
        vector("post_attention_layernorm.weight", true, &layer.post_norm),
        vector("self_attn.q_norm.weight", false, &layer.q_norm),
        vector("self_attn.k_norm.weight", false, &layer.k_norm),
        matrix({"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
               &layer.qkv),
        matrix({"self_attn.o_proj.weight"}, &layer.out),
        matrix({"mlp.gate_proj.weight", "mlp.up_proj.weight"}, &layer.gate_up),
        matrix({"mlp.down_proj.weight"}, &layer.down)}) {
    if (!status) return status;
  }
  layer.qkv_bias = layer.out_bias = zeros_;
  if (checkpoint.find(layer_name(index, "self_attn.q_proj.bias")) != nullptr) {
    std::vector<float> bias;
    for (const char* name : {"q", "k", "v"}) {
      const auto* found =
          checkpoint.find(layer_name(index, fmt::format("self_attn.{}_proj.bias", name).c_str()));
      if (found == nullptr) return fail("the head lacks a bias of k or v", checkpoint.path());
      const std::vector<float> values = read_values(*found);
      bias.insert(bias.end(), values.begin(), values.end());
    }
    auto buffer = device_.allocate(bias.size() * 4);
    if (!buffer) return fail(std::move(buffer.error()));
    std::memcpy(buffer->data(), bias.data(), bias.size() * 4);
    layer.qkv_bias = buffer->as<float>();
    storage_.push_back(std::move(*buffer));
  }
  const float* out_bias = nullptr;
  if (auto status = vector("self_attn.o_proj.bias", false, &out_bias); !status) return status;
  if (out_bias != nullptr) layer.out_bias = out_bias;
  layers_.push_back(layer);
  return {};
}

Status DraftHead::load_weights(const DraftCheckpoint& checkpoint, const ModelWeights& target) {
  const DraftConfig& c = config_;
  const int64_t widest =
      std::max({int64_t{c.qkv_width()}, int64_t{2} * c.intermediate, int64_t{2} * c.hidden});
  auto zeros = device_.allocate(static_cast<uint64_t>(widest) * 4);
  if (!zeros) return fail(std::move(zeros.error()));
  std::memset(zeros->data(), 0, zeros->bytes());
  storage_.push_back(std::move(*zeros));
  zeros_ = storage_.back().as<float>();
  for (int32_t i = 0; i < c.num_layers; ++i)
    if (auto status = load_layer(checkpoint, i); !status) return status;

  const auto vector = [&](const std::string& name, bool is_required, const float** out) -> Status {
    auto loaded = load_vector(checkpoint, name, is_required);
    if (!loaded) return fail(std::move(loaded.error()));
    *out = *loaded;
    return {};
  };
  if (auto status = vector("norm.weight", true, &final_norm_); !status) return status;
  if (c.takes_final_norm) {
    feature_norm_ = target.final_norm;
  } else {
    const std::string fc[] = {"fc.weight"};
    auto loaded = load_matrix(checkpoint, fc);
    if (!loaded) return fail(std::move(loaded.error()));
    fc_ = *loaded;
    if (c.kind == DraftKind::kDflash) {
      if (auto status = vector("hidden_norm.weight", true, &feature_norm_); !status) return status;
    } else if (c.norm_before_fc) {
      if (auto status = vector("input_norm.weight", true, &input_norm_); !status) return status;
    } else if (c.fc_norm) {
      fc_norms_.resize(c.boundaries.size());
      for (size_t i = 0; i < fc_norms_.size(); ++i) {
        if (auto status = vector(fmt::format("fc_norm.{}.weight", i), true, &fc_norms_[i]); !status)
          return status;
      }
    }
  }

  embedding_ = target.embedding;
  if (const auto* found = checkpoint.find("embed_tokens.weight"); found != nullptr) {
    const bool is_bf16 = *found->tensor->dtype == DType::kBF16;
    const bool is_copy = is_bf16 && embedding_.format == DType::kBF16 &&
                         std::memcmp(found->data(), embedding_.data, found->tensor->bytes) == 0;
    if (!is_copy) {
      const std::vector<float> values = is_bf16 ? std::vector<float>() : read_values(*found);
      const uint64_t bytes = is_bf16 ? found->tensor->bytes : values.size() * 4;
      auto buffer = device_.allocate(bytes);
      if (!buffer) return fail(std::move(buffer.error()));
      const void* from = is_bf16 ? static_cast<const void*>(found->data()) : values.data();
      std::memcpy(buffer->data(), from, bytes);
      embedding_ = {.data = buffer->data(),
                    .format = is_bf16 ? DType::kBF16 : DType::kF32,
                    .rows = c.vocab,
                    .cols = c.hidden};
      weight_bytes_ += bytes;
      storage_.push_back(std::move(*buffer));
    }
  }
  head_ = target.head;
  if (checkpoint.find("lm_head.weight") != nullptr) {
    const std::string name[] = {"lm_head.weight"};
    auto loaded = load_matrix(checkpoint, name);
    if (!loaded) return fail(std::move(loaded.error()));
    head_ = *loaded;
  }
  if (const auto* found = checkpoint.find("d2t"); found != nullptr) {
    const auto count = static_cast<size_t>(c.draft_vocab);
    target_ids_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      int64_t offset = 0;
      std::memcpy(&offset, found->data() + 8 * i, 8);
      const int64_t id = static_cast<int64_t>(i) + offset;
      if (offset > c.vocab || id < 0 || id >= c.vocab)
        return fail(fmt::format("d2t[{}] is {}, outside the target's vocabulary", i, offset),
                    checkpoint.path());
      target_ids_[i] = static_cast<int32_t>(id);
    }
  }
  return {};
}

Status DraftHead::make_memory() {
  const auto allocate = [&](uint64_t bytes, Buffer* out) -> Status {
    auto buffer = device_.allocate(bytes);
    if (!buffer) return fail(std::move(buffer.error()));
    *out = std::move(*buffer);
    return device_.fill_zero(out->data(), bytes, stream_);
  };
  const auto rotary_floats =
      static_cast<uint64_t>(options_.max_positions) * static_cast<uint64_t>(config_.head_dim);
  if (auto status = allocate(rotary_floats * 4, &rotary_); !status) return status;
  fill_rotary_table(config_.rotary, 0, options_.max_positions, rotary_.as<float>());
  if (auto status = allocate(cache_bytes(config_, options_), &cache_); !status) return status;
  if (auto status = allocate(activation_bytes(config_, options_), &activations_); !status)
    return status;
  std::byte* at = activations_.data();
  float** const pointers[] = {&features_, &joined_, &qkv_, &q_, &a_, &m_, &gate_up_, &act_};
  const auto widths = activation_widths(config_);
  for (size_t i = 0; i < widths.size(); ++i) {
    *pointers[i] = reinterpret_cast<float*>(at);
    at += round_up<uint64_t>(
        static_cast<uint64_t>(widths[i]) * static_cast<uint64_t>(options_.max_rows) * 4, 256);
  }
  return {};
}

// Runs an operation with the row that suits it; its scratch grows to what the row needs.
template <typename P>
void DraftHead::run(P params) {
  params.launch = {.device = kernels_.device(), .stream = &stream_};
  const Row<P>& row = kernels_.row_for(params);
  const uint64_t need = row.workspace(params);
  if (need > workspace_.bytes()) {
    auto buffer = device_.allocate(need);
    CHECK(buffer.has_value(), buffer ? "" : buffer.error().message());
    workspace_ = std::move(*buffer);
  }
  params.launch.workspace = workspace_.data();
  params.launch.workspace_bytes = workspace_.bytes();
  kernels_.run(row, params);
}

void DraftHead::norm(const float* x, int64_t x_stride, const float* weight, float* y,
                     int64_t y_stride, int32_t n, int32_t width) {
  run(RmsNormParams{.num_tokens = n,
                    .width = width,
                    .rms_eps = config_.rms_eps,
                    .x = x,
                    .weight = weight,
                    .y = y,
                    .x_stride = x_stride,
                    .y_stride = y_stride});
}

void DraftHead::add_product(const PackedMatrix& weight, const float* bias, const float* x, float* y,
                            int32_t n) {
  run(OutParams{.num_tokens = n, .a = x, .weight = weight, .bias = bias, .x = y});
}

void DraftHead::product(const PackedMatrix& weight, const float* bias, const float* x, float* y,
                        int32_t n) {
  const auto bytes = static_cast<uint64_t>(n) * static_cast<uint64_t>(weight.rows) * 4;
  const auto status = device_.fill_zero(y, bytes, stream_);
  CHECK(status.has_value(), status ? "" : status.error().message());
  add_product(weight, bias, x, y, n);
}

void DraftHead::embed(const int32_t* tokens, int32_t n, float* x) {
  run(EmbedParams{.num_tokens = n, .token_ids = tokens, .table = embedding_, .x = x});
}

void DraftHead::project(std::span<const float* const> taps, int32_t n, float* g) {
  const int32_t hidden = config_.hidden;
  if (config_.takes_final_norm) return norm(taps[0], hidden, feature_norm_, g, hidden, n, hidden);
  const int64_t width = static_cast<int64_t>(taps.size()) * hidden;
  for (size_t i = 0; i < taps.size(); ++i) {
    const float* weight = fc_norms_.empty() ? nullptr : fc_norms_[i];
    norm(taps[i], hidden, weight, features_ + static_cast<int64_t>(i) * hidden, width, n, hidden);
  }
  if (input_norm_ != nullptr)
    norm(features_, width, input_norm_, features_, width, n, static_cast<int32_t>(width));
  product(fc_, zeros_, features_, g, n);
  if (feature_norm_ != nullptr) norm(g, hidden, feature_norm_, g, hidden, n, hidden);
}

KvLayer DraftHead::cache_of(int32_t layer, const DraftRows& rows) const {
  const auto page_bytes = static_cast<int64_t>(dtype_bytes(
      options_.kv_dtype,
      static_cast<uint64_t>(config_.kv_width()) * static_cast<uint64_t>(options_.page_tokens)));
  std::byte* k = cache_.data() + int64_t{2} * layer * options_.num_pages * page_bytes;
  return {.k = k,
          .v = k + int64_t{options_.num_pages} * page_bytes,
          .page_stride_bytes = page_bytes,
          .page_table = rows.page_table,
          .table_stride = rows.table_stride,
          .page_tokens = options_.page_tokens,
          .dtype = options_.kv_dtype};
}

// From normed inputs to a_, the outputs of attention.
void DraftHead::attend(int32_t layer, const DraftRows& rows, const float* normed) {
  const DraftLayer& weights = layers_[static_cast<size_t>(layer)];
  const int32_t n = rows.batch.num_tokens;
  product(weights.qkv, weights.qkv_bias, normed, qkv_, n);
  const KvLayer kv = cache_of(layer, rows);
  run(RotateParams{.batch = rows.batch,
                   .num_heads = config_.num_heads,
                   .num_kv_heads = config_.num_kv_heads,
                   .head_dim = config_.head_dim,
                   .rms_eps = config_.rms_eps,
                   .qkv = qkv_,
                   .q_norm = weights.q_norm,
                   .k_norm = weights.k_norm,
                   .rotary = {rotary_.as<float>(), options_.max_positions},
                   .kv = kv,
                   .q = q_});
  Ragged visible = rows.batch;
  visible.positions = rows.last_visible;
  run(AttendParams{.batch = visible,
                   .num_heads = config_.num_heads,
                   .num_kv_heads = config_.num_kv_heads,
                   .head_dim = config_.head_dim,
                   .window = config_.windows[static_cast<size_t>(layer)],
                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                   .q = q_,
                   .kv = kv,
                   .a = a_});
}

// x += down(SiLU(gate) up) of the normed x.
void DraftHead::mlp(const DraftLayer& layer, float* x, int32_t n) {
  norm(x, config_.hidden, layer.post_norm, m_, config_.hidden, n, config_.hidden);
  product(layer.gate_up, zeros_, m_, gate_up_, n);
  run(GateParams{.num_tokens = n, .width = config_.intermediate, .gate_up = gate_up_, .y = act_});
  add_product(layer.down, zeros_, act_, x, n);
}

void DraftHead::run_pairs(const DraftRows& rows, const float* g, float* y, bool keys_only) {
  const int32_t n = rows.batch.num_tokens, hidden = config_.hidden;
  const DraftLayer& first = layers_[0];
  embed(rows.tokens, n, y);
  norm(y, hidden, first.input_norm, joined_, 2 * hidden, n, hidden);
  norm(g, hidden, first.hidden_norm, joined_ + hidden, 2 * hidden, n, hidden);
  // The residual is the feature, or its norm.
  const float* residual = config_.norm_before_residual ? joined_ + hidden : g;
  norm(residual, config_.norm_before_residual ? 2 * hidden : hidden, nullptr, y, hidden, n, hidden);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DraftLayer& layer = layers_[static_cast<size_t>(i)];
    if (i > 0) norm(y, hidden, layer.input_norm, m_, hidden, n, hidden);
    const float* normed = i > 0 ? m_ : joined_;
    if (keys_only && i + 1 == config_.num_layers) return write_keys(i, rows, normed);
    attend(i, rows, normed);
    add_product(layer.out, layer.out_bias, a_, y, n);
    mlp(layer, y, n);
  }
}

void DraftHead::to_feature(float* y, int32_t n) {
  if (config_.norm_output)
    norm(y, config_.hidden, final_norm_, y, config_.hidden, n, config_.hidden);
}

// Keys and values alone, from the inputs of the product.
void DraftHead::write_keys(int32_t layer, const DraftRows& rows, const float* inputs) {
  const DraftLayer& weights = layers_[static_cast<size_t>(layer)];
  PackedMatrix keys = weights.qkv;  // the rows of k and v
  keys.data = weights.qkv.tile(0, config_.q_width() / 16);
  keys.rows = 2 * config_.kv_width();
  product(keys, weights.qkv_bias + config_.q_width(), inputs, qkv_, rows.batch.num_tokens);
  run(RotateParams{.batch = rows.batch,
                   .num_heads = 0,
                   .num_kv_heads = config_.num_kv_heads,
                   .head_dim = config_.head_dim,
                   .rms_eps = config_.rms_eps,
                   .qkv = qkv_,
                   .k_norm = weights.k_norm,
                   .rotary = {rotary_.as<float>(), options_.max_positions},
                   .kv = cache_of(layer, rows)});
}

void DraftHead::write_context(const DraftRows& rows, const float* g) {
  for (int32_t i = 0; i < config_.num_layers; ++i) write_keys(i, rows, g);
}

void DraftHead::run_block(const DraftRows& rows, float* y) {
  const int32_t n = rows.batch.num_tokens, hidden = config_.hidden;
  embed(rows.tokens, n, y);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DraftLayer& layer = layers_[static_cast<size_t>(i)];
    norm(y, hidden, layer.input_norm, m_, hidden, n, hidden);
    attend(i, rows, m_);
    add_product(layer.out, layer.out_bias, a_, y, n);
    mlp(layer, y, n);
  }
}

void DraftHead::logits(const float* y, std::span<const int32_t> rows, float* logits) {
  run(UnembedParams{.num_rows = static_cast<int32_t>(rows.size()),
                    .hidden = config_.hidden,
                    .rms_eps = config_.rms_eps,
                    .row_idx = rows.data(),
                    .x = y,
                    .norm_weight = final_norm_,
                    .weight = head_,
                    .logits = logits});
}

}  // namespace moxie
