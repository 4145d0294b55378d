// Packs a head's weights: on the CPU tile by tile from the files, on CUDA by the repacking kernels
// from a copy of each tensor. Weights of synthetic heads are made in place.
#include "model/draft_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/packing.h"
#include "core/threads.h"
#include "model/repack_cuda.h"
#include "model/synthetic_cuda.h"
#include "weights/synthetic.h"

namespace moxie {
namespace {

constexpr const char* kUnembed = "lm_head.weight";

std::string layer_name(int32_t layer, const std::string& rest) {
  return fmt::format("layers.{}.{}", layer, rest);
}

// A checked tensor as rows of `cols` values that lie at `data`.
StoredRows stored_rows(const FileTensor& tensor, const std::byte* data, int32_t cols) {
  const DType dtype = *tensor.dtype;
  return {.kind = dtype == DType::kF32     ? StoredRows::Kind::kF32
                  : dtype == DType::kF16   ? StoredRows::Kind::kF16
                  : dtype == DType::kQ8_0  ? StoredRows::Kind::kQ8_0
                  : dtype == DType::kMXFP4 ? StoredRows::Kind::kMxfp4Gguf
                                           : StoredRows::Kind::kBF16,
          .data = data,
          .row_stride_bytes = static_cast<int64_t>(dtype_bytes(dtype, static_cast<uint64_t>(cols))),
          .cols = cols};
}

// Rows of `row_bytes` in the model's order, from heads of attention whose rows are interleaved.
std::vector<std::byte> in_half_order(const std::byte* data, int64_t num_rows, size_t row_bytes,
                                     int32_t head_dim) {
  std::vector<std::byte> ordered(static_cast<size_t>(num_rows) * row_bytes);
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t in_head = row % head_dim, half = head_dim / 2;
    const int64_t stored = row - in_head + 2 * (in_head % half) + in_head / half;
    std::memcpy(ordered.data() + static_cast<size_t>(row) * row_bytes,
                data + static_cast<size_t>(stored) * row_bytes, row_bytes);
  }
  return ordered;
}

// The bytes of a checked matrix or vector in the model's order: in the file, or a copy.
class OrderedRows {
 public:
  OrderedRows(const DraftCheckpoint::Found& found, int64_t num_rows) : data_(found.data()) {
    if (found.interleaved_head_dim == 0 || num_rows == 0) return;
    copy_ = in_half_order(data_, num_rows, found.tensor->bytes / static_cast<size_t>(num_rows),
                          found.interleaved_head_dim);
    data_ = copy_.data();
  }
  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_;
  std::vector<std::byte> copy_;
};

class Loader {
 public:
  Loader(const DraftCheckpoint& checkpoint, DType format, Device& device, Stream& stream)
      : checkpoint_(checkpoint),
        c_(checkpoint.config()),
        format_(format),
        device_(device),
        stream_(stream) {}

  Result<DraftWeights> load(const ModelWeights& target);

 private:
  bool on_cpu() const { return device_.kind() == DeviceKind::kCpu; }
  Result<std::byte*> store(uint64_t bytes);
  Result<std::byte*> store(const void* from, uint64_t bytes);
  std::vector<float> values_of(const std::string& name, const DraftCheckpoint::Found& found) const;
  Status vector(const std::string& name, bool is_required, const float** out);
  Status matrix(const std::vector<std::string>& names, PackedMatrix* out);
  Status fill(const std::vector<std::string>& names, const PackedMatrix& matrix);
  Status layer(int32_t index);
  Status biases(int32_t index, DraftLayer* layer);
  Status features(const ModelWeights& target);
  Status embedding(const ModelWeights& target);
  Status unembed(const ModelWeights& target);
  Status target_ids();
  Status context();
  Status mask_embedding();

  const DraftCheckpoint& checkpoint_;
  const DraftConfig& c_;
  const DType format_;
  Device& device_;
  Stream& stream_;
  DraftWeights weights_;
  uint64_t num_made_ = 0;  // weights of a synthetic head
};

Result<std::byte*> Loader::store(uint64_t bytes) {
  auto buffer = device_.allocate(bytes);
  if (!buffer) return fail(std::move(buffer.error()));
  weights_.bytes += bytes;
  weights_.storage.push_back(std::move(*buffer));
  return weights_.storage.back().data();
}

Result<std::byte*> Loader::store(const void* from, uint64_t bytes) {
  auto at = store(bytes);
  if (!at) return at;
  auto status = device_.copy_from_host(*at, from, bytes, stream_);
  if (status) status = stream_.synchronize();
  if (!status) return fail(std::move(status.error()));
  return at;
}

// A vector of BF16, F16 or F32 as F32. Made ones are those of a head without effect.
std::vector<float> Loader::values_of(const std::string& name,
                                     const DraftCheckpoint::Found& found) const {
  const auto count = static_cast<int32_t>(found.tensor->shape.num_elements());
  std::vector<float> values(static_cast<size_t>(count), name.ends_with("bias") ? 0.0f : 1.0f);
  if (!checkpoint_.is_synthetic()) {
    const OrderedRows rows(found, count);
    stored_rows(*found.tensor, rows.data(), count).read_row(0, values.data());
  }
  return values;
}

// The vector in F32, or null if it is absent and not required.
Status Loader::vector(const std::string& name, bool is_required, const float** out) {
  const auto* found = checkpoint_.find(name);
  if (found == nullptr) {
    if (is_required) return fail("the head lacks " + name, checkpoint_.path());
    return {};
  }
  const std::vector<float> values = values_of(name, *found);
  auto at = store(values.data(), values.size() * 4);
  if (!at) return fail(std::move(at.error()));
  *out = reinterpret_cast<const float*>(*at);
  return {};
}

// Rows of several tensors under each other as one packed matrix. All but the last end with a tile.
Status Loader::matrix(const std::vector<std::string>& names, PackedMatrix* out) {
  PackedMatrix packed;
  for (const std::string& name : names) {
    const auto* found = checkpoint_.find(name);
    if (found == nullptr) return fail("the head lacks " + name, checkpoint_.path());
    packed.rows += static_cast<int32_t>(found->tensor->shape.dims[0]);
    packed.cols = static_cast<int32_t>(found->tensor->shape.dims[1]);
  }
  packed.format = format_ == DType::kMXFP4 && packed.cols % 32 == 0 ? DType::kMXFP4 : DType::kBF16;
  packed.layout = on_cpu() ? PackedLayout::kRows16 : PackedLayout::kFragment16x32;
  auto at = store(static_cast<uint64_t>(packed.bytes()));
  if (!at) return fail(std::move(at.error()));
  packed.data = *at;
  *out = packed;
  if (!checkpoint_.is_synthetic()) return fill(names, packed);
  const double deviation = 1 / std::sqrt(packed.cols);
  if (on_cpu())
    fill_random_matrix(packed, deviation, ++num_made_, *stream_.pool);
  else
    fill_random_matrix_cuda(packed, PackedRowOrder::kNatural, c_.head_dim, deviation, ++num_made_,
                            stream_);
  return stream_.synchronize();
}

Status Loader::fill(const std::vector<std::string>& names, const PackedMatrix& packed) {
  int32_t first_row = 0;
  for (const std::string& name : names) {
    const auto* found = checkpoint_.find(name);
    const auto rows = static_cast<int32_t>(found->tensor->shape.dims[0]);
    const int32_t first_tile = first_row / 16, num_tiles = ceil_div(rows, 16);
    const OrderedRows ordered(*found, rows);
    if (on_cpu()) {
      const StoredRows source = stored_rows(*found->tensor, ordered.data(), packed.cols);
      auto pack = [&](int64_t tile, int) {
        int64_t lanes[16];
        for (int64_t i = 0; i < 16; ++i) lanes[i] = 16 * tile + i < rows ? 16 * tile + i : -1;
        const auto to = static_cast<int32_t>(first_tile + tile);
        pack_tile_rows16(source, lanes, packed.format, const_cast<std::byte*>(packed.tile(0, to)));
      };
      stream_.pool->run(num_tiles, pack);
    } else {
      auto copy = device_.allocate(found->tensor->bytes);
      if (!copy) return fail(std::move(copy.error()));
      auto status =
          device_.copy_from_host(copy->data(), ordered.data(), found->tensor->bytes, stream_);
      if (!status) return status;
      MatrixRepack repack{.target = packed,
                          .part_row = first_row,
                          .first_tile = first_tile,
                          .num_tiles = num_tiles};
      repack.sources[0] = {.rows = stored_rows(*found->tensor, copy->data(), packed.cols),
                           .num_rows = rows};
      repack_on_device(repack, stream_);
      if (status = stream_.synchronize(); !status) return status;
    }
    first_row += rows;
  }
  return {};
}

Status Loader::biases(int32_t index, DraftLayer* layer) {
  layer->qkv_bias = layer->out_bias = weights_.zeros;
  if (checkpoint_.find(layer_name(index, "self_attn.q_proj.bias")) != nullptr) {
    std::vector<float> bias;
    for (const char* part : {"q", "k", "v"}) {
      const std::string name = layer_name(index, fmt::format("self_attn.{}_proj.bias", part));
      const auto* found = checkpoint_.find(name);
      if (found == nullptr) return fail("the head lacks " + name, checkpoint_.path());
      const std::vector<float> values = values_of(name, *found);
      bias.insert(bias.end(), values.begin(), values.end());
    }
    auto at = store(bias.data(), bias.size() * 4);
    if (!at) return fail(std::move(at.error()));
    layer->qkv_bias = reinterpret_cast<const float*>(*at);
  }
  return vector(layer_name(index, "self_attn.o_proj.bias"), false, &layer->out_bias);
}

// What turns features into keys and values: one product for all layers.
Status Loader::context() {
  if (c_.kind != DraftKind::kDflash) return {};
  std::vector<std::string> names;
  std::vector<float> bias;
  for (int32_t i = 0; i < c_.num_layers; ++i) {
    for (const char* part : {"k", "v"}) {
      names.push_back(layer_name(i, fmt::format("self_attn.{}_proj.weight", part)));
      const std::string name = layer_name(i, fmt::format("self_attn.{}_proj.bias", part));
      const auto* found = checkpoint_.find(name);
      const std::vector<float> values =
          found != nullptr ? values_of(name, *found)
                           : std::vector<float>(static_cast<size_t>(c_.kv_width()));
      bias.insert(bias.end(), values.begin(), values.end());
    }
  }
  auto at = store(bias.data(), bias.size() * 4);
  if (!at) return fail(std::move(at.error()));
  weights_.context_bias = reinterpret_cast<const float*>(*at);
  return matrix(names, &weights_.context);
}

Status Loader::layer(int32_t index) {
  DraftLayer layer;
  const bool joins = c_.kind != DraftKind::kDflash && index == 0;
  const auto vector_of = [&](const char* rest, bool is_required, const float** out) {
    return vector(layer_name(index, rest), is_required, out);
  };
  const auto matrix_of = [&](std::vector<std::string> names, PackedMatrix* out) {
    for (std::string& name : names) name = layer_name(index, name);
    return matrix(names, out);
  };
  for (auto status :
       {vector_of("input_layernorm.weight", true, &layer.input_norm),
        vector_of("hidden_norm.weight", joins && !c_.takes_final_norm, &layer.hidden_norm),
        vector_of("post_attention_layernorm.weight", true, &layer.post_norm),
        vector_of("self_attn.q_norm.weight", false, &layer.q_norm),
        vector_of("self_attn.k_norm.weight", false, &layer.k_norm),
        matrix_of({"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
                  &layer.qkv),
        matrix_of({"self_attn.o_proj.weight"}, &layer.out),
        matrix_of({"mlp.gate_proj.weight", "mlp.up_proj.weight"}, &layer.gate_up),
        matrix_of({"mlp.down_proj.weight"}, &layer.down), biases(index, &layer)}) {
    if (!status) return status;
  }
  layer.keys = layer.qkv;
  layer.keys.rows = 2 * c_.kv_width();
  layer.keys.data +=
      c_.q_width() / 16 *
      (on_cpu() ? layer.qkv.tile_bytes() : int64_t{layer.qkv.num_units()} * layer.qkv.unit_bytes());
  weights_.layers.push_back(layer);
  return {};
}

// How taps become features.
Status Loader::features(const ModelWeights& target) {
  if (c_.takes_final_norm) {
    weights_.feature_norm = target.final_norm;
    return {};
  }
  if (auto status = matrix({"fc.weight"}, &weights_.fc); !status) return status;
  if (c_.kind == DraftKind::kDflash)
    return vector("hidden_norm.weight", true, &weights_.feature_norm);
  if (c_.norm_before_fc) return vector("input_norm.weight", true, &weights_.input_norm);
  if (!c_.fc_norm) return {};
  weights_.fc_norms.resize(c_.boundaries.size());
  for (size_t i = 0; i < weights_.fc_norms.size(); ++i) {
    if (auto status = vector(fmt::format("fc_norm.{}.weight", i), true, &weights_.fc_norms[i]);
        !status)
      return status;
  }
  return {};
}

// The head's own embedding, unless it is a copy of the target's (on CUDA that is not read back).
Status Loader::embedding(const ModelWeights& target) {
  weights_.embedding = target.embedding;
  const auto* found = checkpoint_.find("embed_tokens.weight");
  if (found == nullptr || checkpoint_.is_synthetic()) return {};
  const FileTensor& tensor = *found->tensor;
  const DType format = *tensor.dtype == DType::kF16 ? DType::kF32 : *tensor.dtype;
  if (on_cpu() && *tensor.dtype == target.embedding.format &&
      std::memcmp(found->data(), target.embedding.data, tensor.bytes) == 0)
    return {};
  std::vector<float> values;
  if (format != *tensor.dtype) values = values_of("embed_tokens.weight", *found);
  auto at =
      values.empty() ? store(found->data(), tensor.bytes) : store(values.data(), values.size() * 4);
  if (!at) return fail(std::move(at.error()));
  weights_.embedding = {.data = *at, .format = format, .rows = c_.vocab, .cols = c_.hidden};
  return {};
}

Status Loader::unembed(const ModelWeights& target) {
  if (!takes_target_unembed(checkpoint_)) return matrix({kUnembed}, &weights_.head);
  CHECK(target.head.rows == c_.draft_vocab);
  weights_.head = target.head;
  return {};
}

Status Loader::target_ids() {
  const auto* found = checkpoint_.find("d2t");
  if (found == nullptr) return {};
  std::vector<int32_t> ids(static_cast<size_t>(c_.draft_vocab));
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t stored = 0;
    std::memcpy(&stored, found->data() + 8 * i, 8);
    const int64_t first = checkpoint_.has_absolute_ids() ? 0 : static_cast<int64_t>(i);
    if (stored < -first || stored >= c_.vocab - first)
      return fail(fmt::format("d2t[{}] is {}, outside the target's vocabulary", i, stored),
                  checkpoint_.path());
    const int64_t id = first + stored;
    ids[i] = static_cast<int32_t>(id);
  }
  auto at = store(ids.data(), ids.size() * 4);
  if (!at) return fail(std::move(at.error()));
  weights_.target_ids = reinterpret_cast<const int32_t*>(*at);
  return {};
}

Status Loader::mask_embedding() {
  const std::vector<float>& values = checkpoint_.mask_embedding();
  if (values.empty()) return {};
  auto at = store(values.data(), values.size() * 4);
  if (!at) return fail(std::move(at.error()));
  weights_.mask_row = reinterpret_cast<const float*>(*at);
  return {};
}

Result<DraftWeights> Loader::load(const ModelWeights& target) {
  const int64_t widest =
      std::max({int64_t{c_.qkv_width()}, int64_t{2} * c_.intermediate, int64_t{2} * c_.hidden});
  const std::vector<float> zeros(static_cast<size_t>(widest));
  auto at = store(zeros.data(), zeros.size() * 4);
  if (!at) return fail(std::move(at.error()));
  weights_.zeros = reinterpret_cast<const float*>(*at);
  for (int32_t i = 0; i < c_.num_layers; ++i)
    if (auto status = layer(i); !status) return fail(std::move(status.error()));
  Status status = vector("norm.weight", true, &weights_.final_norm);
  if (status) status = features(target);
  if (status) status = embedding(target);
  if (status) status = unembed(target);
  if (status) status = context();
  if (status) status = target_ids();
  if (status) status = vector("mask_hidden", false, &weights_.mask_hidden);
  if (status) status = mask_embedding();
  if (!status) return fail(std::move(status.error()));
  return std::move(weights_);
}

}  // namespace

bool takes_target_unembed(const DraftCheckpoint& checkpoint) {
  return checkpoint.find(kUnembed) == nullptr;
}

Result<DraftWeights> load_draft_weights(const DraftCheckpoint& checkpoint,
                                        const ModelWeights& target, DType format, Device& device,
                                        Stream& stream) {
  return Loader(checkpoint, format, device, stream).load(target);
}

uint64_t draft_weights_bytes(const DraftCheckpoint& checkpoint, DType format) {
  const DraftConfig& c = checkpoint.config();
  const auto bits = format == DType::kMXFP4 ? 17u : 64u;  // of 4 weights
  const auto hidden = static_cast<uint64_t>(c.hidden);
  uint64_t weights = c.boundaries.size() * hidden * hidden;
  for (int32_t i = 0; i < c.num_layers; ++i) {
    const uint64_t inputs = c.kind != DraftKind::kDflash && i == 0 ? 2 * hidden : hidden;
    weights += inputs * static_cast<uint64_t>(c.qkv_width()) +
               hidden * static_cast<uint64_t>(c.q_width() + 3 * c.intermediate);
  }
  if (c.kind == DraftKind::kDflash)
    weights += hidden * static_cast<uint64_t>(2 * c.kv_width() * c.num_layers);
  uint64_t bytes = 0;
  if (!takes_target_unembed(checkpoint)) weights += hidden * static_cast<uint64_t>(c.draft_vocab);
  if (const auto* own = checkpoint.find("embed_tokens.weight"); own != nullptr)
    bytes += *own->tensor->dtype == DType::kF16 ? 2 * own->tensor->bytes : own->tensor->bytes;
  return bytes + weights * bits / 32;
}

}  // namespace moxie
