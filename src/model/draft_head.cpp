// Runs a head's layers by the operations that the model has, too.
#include "model/draft_head.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/gate/gate.h"
#include "kernels/out/out.h"
#include "kernels/registry.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotate/rotate.h"
#include "kernels/unembed/unembed.h"
#include "model/draft_ids_cuda.h"
#include "model/draft_masks_cuda.h"
#include "model/rotary_table.h"

namespace moxie {
namespace {

int32_t num_taps(const DraftConfig& config) {
  return static_cast<int32_t>(config.boundaries.size());
}

// Floats of a row of all activations, in the order of DraftHead's pointers.
std::vector<int64_t> activation_widths(const DraftConfig& c, DeviceKind device) {
  const int64_t floats_of_y = device == DeviceKind::kCpu ? 1 : kFloatsOfCudaX;
  return {int64_t{num_taps(c)} * c.hidden,
          int64_t{2} * c.hidden,
          c.qkv_width(),
          c.q_width(),
          c.q_width(),
          c.hidden,
          int64_t{2} * c.intermediate,
          c.intermediate,
          c.kind == DraftKind::kDflash ? int64_t{2} * c.num_layers * c.kv_width() : 0,
          c.hidden,
          floats_of_y * c.hidden};
}

uint64_t cache_bytes(const DraftConfig& c, const DraftHead::Options& o) {
  return uint64_t{2} * static_cast<uint64_t>(c.num_layers) * static_cast<uint64_t>(o.num_pages) *
         static_cast<uint64_t>(o.page_tokens) *
         dtype_bytes(o.kv_dtype, static_cast<uint64_t>(c.kv_width()));
}

uint64_t pool_bytes(const DraftConfig& c, const DraftHead::Options& o) {
  return 4 * static_cast<uint64_t>(c.hidden) * static_cast<uint64_t>(o.max_rows + o.num_kept + 1);
}

uint64_t logits_bytes(const DraftConfig& c) {
  return 4 * uint64_t{DraftHead::max_logit_rows()} * static_cast<uint64_t>(c.draft_vocab);
}

uint64_t activation_bytes(const DraftConfig& c, const DraftHead::Options& o) {
  constexpr uint64_t kDraws =
      DraftHead::max_logit_rows() * (sizeof(SampleRequest) + sizeof(SampleAnswer));
  uint64_t bytes = pool_bytes(c, o) + logits_bytes(c) + kDraws + 4 * 256;
  for (const int64_t width : activation_widths(c, o.device))
    bytes += round_up<uint64_t>(
        static_cast<uint64_t>(width) * static_cast<uint64_t>(o.max_rows) * 4, 256);
  return bytes;
}

}  // namespace

uint64_t DraftHead::bytes(const DraftCheckpoint& checkpoint, const Options& options) {
  const DraftConfig& c = checkpoint.config();
  return draft_weights_bytes(checkpoint, options.format) + cache_bytes(c, options) +
         activation_bytes(c, options) +
         static_cast<uint64_t>(options.max_positions) * static_cast<uint64_t>(c.head_dim) * 4;
}

Result<std::unique_ptr<DraftHead>> DraftHead::load(const DraftCheckpoint& checkpoint,
                                                   const GptOssConfig& target_config,
                                                   const ModelWeights& target,
                                                   KernelChooser& kernels, Device& device,
                                                   Stream& stream, const Options& options) {
  CHECK(checkpoint.config().hidden == target_config.hidden && device.kind() == options.device);
  std::unique_ptr<DraftHead> made(
      new DraftHead(checkpoint.config(), kernels, device, stream, options));
  DraftHead& head = *made;
  auto weights = load_draft_weights(checkpoint, target, options.format, device, stream);
  if (!weights) return fail(std::move(weights.error()));
  head.weights_ = std::move(*weights);
  auto rotary = make_rotary_table(device, stream, head.config_.rotary, options.max_positions);
  if (!rotary) return fail(std::move(rotary.error()));
  head.rotary_ = std::move(*rotary);
  Status status = head.make_memory();
  if (status) status = head.check_rows();
  if (!status) return fail(std::move(status.error()));
  if (const float* mask = head.weights_.mask_hidden; mask != nullptr) {
    std::vector<const float*> taps;
    for (int32_t i = 0; i < num_taps(head.config_); ++i)
      taps.push_back(mask + int64_t{i} * head.config_.hidden);
    head.project(taps, 1, head.feature(head.mask_feature()));
  }
  if (status = stream.synchronize(); !status) return fail(std::move(status.error()));
  return made;
}

Status DraftHead::make_memory() {
  const auto allocate = [&](uint64_t bytes, Buffer* out) -> Status {
    auto buffer = device_.allocate(bytes);
    if (!buffer) return fail(std::move(buffer.error()));
    *out = std::move(*buffer);
    return device_.fill_zero(out->data(), bytes, stream_);
  };
  if (auto status = allocate(cache_bytes(config_, options_), &cache_); !status) return status;
  if (auto status = allocate(activation_bytes(config_, options_), &activations_); !status)
    return status;
  std::byte* at = activations_.data();
  const auto take = [&](uint64_t bytes) {
    std::byte* piece = at;
    at += round_up<uint64_t>(bytes, 256);
    return piece;
  };
  float** const pointers[] = {&taps_,    &joined_, &qkv_,     &q_, &a_, &m_,
                              &gate_up_, &act_,    &context_, &g_, &y_};
  const auto widths = activation_widths(config_, options_.device);
  for (size_t i = 0; i < widths.size(); ++i)
    *pointers[i] = reinterpret_cast<float*>(
        take(4 * static_cast<uint64_t>(widths[i]) * static_cast<uint64_t>(options_.max_rows)));
  pool_ = reinterpret_cast<float*>(take(pool_bytes(config_, options_)));
  logits_ = reinterpret_cast<float*>(take(logits_bytes(config_)));
  requests_ = reinterpret_cast<SampleRequest*>(take(max_logit_rows() * sizeof(SampleRequest)));
  answers_ = reinterpret_cast<SampleAnswer*>(take(max_logit_rows() * sizeof(SampleAnswer)));
  const std::vector<SampleRequest> greedy(max_logit_rows());
  auto status = device_.copy_from_host(requests_, greedy.data(),
                                       greedy.size() * sizeof(SampleRequest), stream_);
  return status ? stream_.synchronize() : status;
}

// Finds a row for passes of one row, of few and of many, and makes the scratch that they need.
Status DraftHead::check_rows() {
  const DraftRows none{};
  for (const int32_t n : {1, 2, 4, 8, 16, 32, 64, 128, 512, options_.max_rows}) {
    if (n > options_.max_rows) continue;
    const auto product_of = [&](const PackedMatrix& weight, bool overwrites) {
      if (weight.rows == 0) return Status{};
      OutParams params{.num_tokens = n, .weight = weight, .overwrites = overwrites};
      params.forms.x = overwrites ? XForm::kF32 : y_form();
      return reserve(params);
    };
    Status status = product_of(weights_.fc, true);
    if (status) status = product_of(weights_.context, true);
    for (const DraftLayer& layer : weights_.layers) {
      for (const auto* weight : {&layer.qkv, &layer.keys, &layer.gate_up})
        if (status) status = product_of(*weight, true);
      for (const auto* weight : {&layer.out, &layer.down})
        if (status) status = product_of(*weight, false);
    }
    if (!status) return status;
    Ragged batch{.num_tokens = n, .num_seqs = 1};
    for (const int32_t num_seqs : {1, n}) {
      batch.num_seqs = num_seqs;
      for (const int64_t visible : {int64_t{n}, int64_t{n} * options_.max_positions}) {
        batch.num_visible_keys = visible;
        status = reserve(AttendParams{.batch = batch,
                                      .num_heads = config_.num_heads,
                                      .num_kv_heads = config_.num_kv_heads,
                                      .head_dim = config_.head_dim,
                                      .kv = cache_of(0, none),
                                      .is_block = config_.kind == DraftKind::kDflash});
        if (!status) return status;
      }
    }
    status = reserve(RotateParams{.batch = batch,
                                  .num_heads = config_.num_heads,
                                  .num_kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .kv = cache_of(0, none)});
    if (status) status = reserve(GateParams{.num_tokens = n, .width = config_.intermediate});
    if (!status) return status;
    if (n > max_logit_rows()) continue;
    UnembedParams unembed{.num_rows = n, .hidden = config_.hidden, .weight = weights_.head};
    unembed.forms.x = y_form();
    status = reserve(unembed);
    if (status)
      status =
          reserve(SampleParams{.num_rows = n, .vocab = config_.draft_vocab, .all_plain = true});
    if (!status) return status;
  }
  const auto width = static_cast<int64_t>(num_taps(config_)) * config_.hidden;
  return reserve(RmsNormParams{
      .num_tokens = 1, .width = static_cast<int32_t>(width), .x_stride = width, .y_stride = width});
}

template <typename P>
Status DraftHead::reserve(P params) {
  params.launch = kernels_.launch(&stream_);
  params.launch.l1 = l1_form();
  const auto row = kernels_.select(params);
  if (!row) return fail("the head: " + row.error().message(), "--spec-model");
  const uint64_t need = (*row)->workspace(params);
  if (need <= workspace_.bytes()) return {};
  workspace_.reset();
  auto buffer = device_.allocate(need);
  if (!buffer) return fail(std::move(buffer.error()));
  workspace_ = std::move(*buffer);
  return {};
}

// Runs an operation with the row that suits it.
template <typename P>
void DraftHead::run(P params) {
  params.launch = kernels_.launch(&stream_);
  params.launch.l1 = l1_form();
  const Row<P>& row = kernels_.row_for(params);
  const uint64_t need = row.workspace(params);
  if (need > workspace_.bytes()) {  // sizes that check_rows() has not tried
    auto buffer = device_.allocate(need);
    CHECK(buffer.has_value(), buffer ? "" : buffer.error().message());
    weights_.storage.push_back(std::exchange(workspace_, std::move(*buffer)));  // graphs read it
  }
  params.launch.workspace = workspace_.data();
  params.launch.workspace_bytes = workspace_.bytes();
  kernels_.run(row, params);
}

// As the rows for few tokens in MXFP4 want it.
L1Form DraftHead::l1_form() const {
  return options_.device == DeviceKind::kCuda && options_.format == DType::kMXFP4 ? L1Form::kL1
                                                                                  : L1Form::kShared;
}

XForm DraftHead::y_form() const {
  return options_.device == DeviceKind::kCpu ? XForm::kF32 : XForm::kF32Pair;
}

void DraftHead::norm(const float* x, int64_t x_stride, const float* weight, float* y,
                     int64_t y_stride, int32_t n, int32_t width, XForm x_form, XForm y_form) {
  RmsNormParams params{.num_tokens = n,
                       .width = width,
                       .rms_eps = config_.rms_eps,
                       .x = x,
                       .weight = weight,
                       .y = y,
                       .x_stride = x_stride,
                       .y_stride = y_stride,
                       .y_form = y_form};
  params.forms.x = x_form;
  run(params);
}

// The norm of y(), or with a null weight y() itself, in rows `stride` values apart.
void DraftHead::norm_y(const float* weight, float* to, int64_t stride, int32_t n) {
  norm(y_, config_.hidden, weight, to, stride, n, config_.hidden, y_form());
}

void DraftHead::product(const PackedMatrix& weight, const float* bias, const float* x, float* y,
                        int32_t n) {
  run(OutParams{
      .num_tokens = n, .a = x, .weight = weight, .bias = bias, .x = y, .overwrites = true});
}

void DraftHead::add_product(const PackedMatrix& weight, const float* bias, const float* x,
                            int32_t n) {
  OutParams params{.num_tokens = n, .a = x, .weight = weight, .bias = bias, .x = y_};
  params.forms.x = y_form();
  run(params);
}

void DraftHead::embed(const int32_t* tokens, int32_t n) {
  EmbedParams params{.num_tokens = n, .token_ids = tokens, .table = weights_.embedding, .x = y_};
  params.forms.x = y_form();
  run(params);
}

void DraftHead::embed_masks(const int32_t* tokens, int32_t n) {
  const float* embedding = weights_.mask_row;
  if (embedding == nullptr) return;
  const int32_t hidden = config_.hidden;
  if (options_.device != DeviceKind::kCpu)
    return draft_masks_cuda(tokens, n, config_.mask_id, embedding, hidden, y_, stream_);
  for (int32_t i = 0; i < n; ++i)
    if (tokens[i] == config_.mask_id) std::copy_n(embedding, hidden, y_ + int64_t{i} * hidden);
}

// A gather of rows is what embed does.
void DraftHead::gather(const int32_t* numbers, int32_t n, float* to) {
  run(EmbedParams{.num_tokens = n,
                  .token_ids = numbers,
                  .table = {.data = reinterpret_cast<const std::byte*>(pool_),
                            .format = DType::kF32,
                            .rows = mask_feature() + 1,
                            .cols = config_.hidden},
                  .x = to});
}

void DraftHead::project(std::span<const float* const> taps, int32_t n, float* g) {
  const int32_t hidden = config_.hidden;
  if (config_.takes_final_norm)
    return norm(taps[0], hidden, weights_.feature_norm, g, hidden, n, hidden);
  const int64_t width = static_cast<int64_t>(taps.size()) * hidden;
  for (size_t i = 0; i < taps.size(); ++i) {
    const float* weight = weights_.fc_norms.empty() ? nullptr : weights_.fc_norms[i];
    norm(taps[i], hidden, weight, taps_ + static_cast<int64_t>(i) * hidden, width, n, hidden);
  }
  if (weights_.input_norm != nullptr)
    norm(taps_, width, weights_.input_norm, taps_, width, n, static_cast<int32_t>(width));
  product(weights_.fc, weights_.zeros, taps_, g, n);
  if (weights_.feature_norm != nullptr)
    norm(g, hidden, weights_.feature_norm, g, hidden, n, hidden);
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
  const DraftLayer& weights = weights_.layers[static_cast<size_t>(layer)];
  product(weights.qkv, weights.qkv_bias, normed, qkv_, rows.batch.num_tokens);
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
                   .a = a_,
                   .is_block = config_.kind == DraftKind::kDflash});
}

// y() += down(SiLU(gate) up) of the normed y().
void DraftHead::mlp(const DraftLayer& layer, int32_t n) {
  norm_y(layer.post_norm, m_, config_.hidden, n);
  product(layer.gate_up, weights_.zeros, m_, gate_up_, n);
  run(GateParams{.num_tokens = n, .width = config_.intermediate, .gate_up = gate_up_, .y = act_});
  add_product(layer.down, weights_.zeros, act_, n);
}

void DraftHead::run_pairs(const DraftRows& rows, const float* g, bool keys_only) {
  const int32_t n = rows.batch.num_tokens, hidden = config_.hidden;
  const DraftLayer& first = weights_.layers[0];
  embed(rows.tokens, n);
  norm_y(first.input_norm, joined_, 2 * hidden, n);
  norm(g, hidden, first.hidden_norm, joined_ + hidden, 2 * hidden, n, hidden);
  // The residual is the feature, or its norm.
  const float* residual = config_.norm_before_residual ? joined_ + hidden : g;
  norm(residual, config_.norm_before_residual ? 2 * hidden : hidden, nullptr, y_, hidden, n, hidden,
       XForm::kF32, y_form());
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DraftLayer& layer = weights_.layers[static_cast<size_t>(i)];
    if (i > 0) norm_y(layer.input_norm, m_, hidden, n);
    const float* normed = i > 0 ? m_ : joined_;
    if (keys_only && i + 1 == config_.num_layers) return write_keys(i, rows, normed);
    attend(i, rows, normed);
    add_product(layer.out, layer.out_bias, a_, n);
    mlp(layer, n);
  }
}

void DraftHead::outputs_to_features(int32_t n) {
  norm_y(config_.norm_output ? weights_.final_norm : nullptr, g_, config_.hidden, n);
}

// Keys and values alone, from the inputs of the product.
void DraftHead::write_keys(int32_t layer, const DraftRows& rows, const float* inputs) {
  const DraftLayer& weights = weights_.layers[static_cast<size_t>(layer)];
  product(weights.keys, weights.qkv_bias + config_.q_width(), inputs, qkv_, rows.batch.num_tokens);
  store_keys(layer, rows, qkv_, 0);
}

// From products, in rows `stride` values apart (0: without gaps).
void DraftHead::store_keys(int32_t layer, const DraftRows& rows, float* products, int64_t stride) {
  run(RotateParams{.batch = rows.batch,
                   .num_heads = 0,
                   .num_kv_heads = config_.num_kv_heads,
                   .head_dim = config_.head_dim,
                   .rms_eps = config_.rms_eps,
                   .qkv = products,
                   .qkv_stride = stride,
                   .k_norm = weights_.layers[static_cast<size_t>(layer)].k_norm,
                   .rotary = {rotary_.as<float>(), options_.max_positions},
                   .kv = cache_of(layer, rows)});
}

void DraftHead::write_context(const DraftRows& rows, const float* g) {
  product(weights_.context, weights_.context_bias, g, context_, rows.batch.num_tokens);
  const int64_t width = int64_t{2} * config_.kv_width();
  for (int32_t i = 0; i < config_.num_layers; ++i)
    store_keys(i, rows, context_ + i * width, config_.num_layers * width);
}

void DraftHead::run_block(const DraftRows& rows) {
  const int32_t n = rows.batch.num_tokens, hidden = config_.hidden;
  embed(rows.tokens, n);
  embed_masks(rows.tokens, n);
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DraftLayer& layer = weights_.layers[static_cast<size_t>(i)];
    norm_y(layer.input_norm, m_, hidden, n);
    attend(i, rows, m_);
    add_product(layer.out, layer.out_bias, a_, n);
    mlp(layer, n);
  }
}

const float* DraftHead::logits(const int32_t* rows, int32_t n) {
  CHECK(n <= max_logit_rows());
  UnembedParams params{.num_rows = n,
                       .hidden = config_.hidden,
                       .rms_eps = config_.rms_eps,
                       .row_idx = rows,
                       .x = y_,
                       .norm_weight = weights_.final_norm,
                       .weight = weights_.head,
                       .logits = logits_};
  params.forms.x = y_form();
  run(params);
  return logits_;
}

void DraftHead::draw(const int32_t* rows, int32_t n, int32_t* ids) {
  for (int32_t first = 0; first < n; first += max_logit_rows()) {
    const int32_t count = std::min(max_logit_rows(), n - first);
    run(SampleParams{.num_rows = count,
                     .vocab = config_.draft_vocab,
                     .logits = logits(rows + first, count),
                     .requests = requests_,
                     .answers = answers_,
                     .all_plain = true});
    if (options_.device != DeviceKind::kCpu) {
      draft_ids_cuda(answers_, count, weights_.target_ids, ids + first, stream_);
      continue;
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = answers_[i].token;
      ids[first + i] = weights_.target_ids == nullptr ? id : weights_.target_ids[id];
    }
  }
}

}  // namespace moxie
