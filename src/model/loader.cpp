// Packs stored tensors into the CPU's layout, batch by batch, letting go of input pages behind it.
#include "model/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include "core/clock.h"
#include "core/numa.h"
#include "core/threads.h"
#include "model/load_progress.h"
#include "model/loader_cuda.h"

namespace moxie {
namespace {

// Input pages resident at once: a small share of the model, within limits of usefulness.
constexpr int64_t kMinBatchBytes = int64_t{1} << 20, kMaxBatchBytes = int64_t{64} << 20;
constexpr uint64_t kAlignment = 256;

// The weights of one packed matrix: parts one below another, or gate and up tiles in turn.
struct MatrixJob {
  PackedMatrix target;
  bool is_gate_up = false;
  std::vector<const StoredPart*> parts;

  // The part and its first row (of the part) that tile `tile_idx` holds.
  const StoredPart* part_of(int32_t tile_idx, int32_t* first_row) const {
    if (is_gate_up) {
      *first_row = tile_idx / 2 * 16;
      return parts[static_cast<size_t>(tile_idx % 2)];
    }
    int32_t row = tile_idx * 16;
    for (const StoredPart* part : parts) {
      if (row < part->num_rows) {
        *first_row = row;
        return part;
      }
      row -= part->num_rows;
    }
    CHECK(false, "tile past the end");
    return nullptr;
  }
};

// Bytes of the file that hold `num_rows` rows of a part from `first_row` on, and their scales.
template <typename Visit>
void stored_ranges(const StoredPart& part, int32_t expert, int32_t first_row, int32_t num_rows,
                   Visit&& visit) {
  const StoredRows rows = part.expert(expert);
  const auto range = [&](const MappedFile* file, const std::byte* data, int64_t stride) {
    const int64_t begin = part.stored_row(first_row) * stride;
    const int64_t end = (part.stored_row(first_row + num_rows - 1) + 1) * stride;
    visit(file, static_cast<uint64_t>(data - file->bytes().data() + begin),
          static_cast<uint64_t>(end - begin));
  };
  if (rows.transposed) {
    visit(part.file, static_cast<uint64_t>(rows.data - part.file->bytes().data()),
          static_cast<uint64_t>(rows.cols * rows.row_stride_bytes));
    return;
  }
  range(part.file, rows.data, rows.row_stride_bytes);
  if (rows.scales != nullptr) range(part.scales_file, rows.scales, rows.scale_stride_bytes);
}

bool has_nan_scale(const StoredRows& rows, int64_t row) {
  const int32_t num_blocks = rows.cols / kMxBlock;
  if (rows.kind == StoredRows::Kind::kMxfp4Split) {
    return std::memchr(rows.scales + row * rows.scale_stride_bytes, 255,
                       static_cast<size_t>(num_blocks)) != nullptr;
  }
  if (rows.kind != StoredRows::Kind::kMxfp4Gguf) return false;
  const std::byte* at = rows.data + row * rows.row_stride_bytes;
  for (int32_t block = 0; block < num_blocks; ++block)
    if (at[17 * block] == std::byte{255}) return true;
  return false;
}

class Loader {
 public:
  Loader(const GptOssConfig& config, const StoredWeights& stored, ThreadPool& pool,
         LoadProgress& progress)
      : config_(config), stored_(stored), pool_(pool), progress_(progress) {}

  void load(const ModelWeights& weights) {
    batch_bytes_ =
        std::clamp(static_cast<int64_t>(weights.packed_bytes / 64), kMinBatchBytes, kMaxBatchBytes);
    load_table(weights.embedding, part("model.embed_tokens.weight", 0));
    for (int32_t i = 0; i < config_.num_layers; ++i)
      load_layer(weights.layers[static_cast<size_t>(i)], "model.layers." + std::to_string(i) + ".");
    load_vector("model.norm.weight", weights.final_norm);
    load_matrix(weights.head, {"lm_head.weight"});
  }

  Status status() const { return damage_status(faults_); }

 private:
  const StoredPart& part(const std::string& name, size_t i) const {
    return stored_.by_name.at(name).parts.at(i);
  }

  void load_layer(const LayerWeights& layer, const std::string& at) {
    load_vector(at + "input_layernorm.weight", layer.input_norm);
    load_matrix(layer.qkv, {at + "self_attn.q_proj.weight", at + "self_attn.k_proj.weight",
                            at + "self_attn.v_proj.weight"});
    const float* bias = layer.qkv_bias;
    for (const char* name : {"q_proj", "k_proj", "v_proj"})
      bias = load_vector(at + "self_attn." + name + ".bias", bias);
    load_vector(at + "self_attn.sinks", layer.sinks);
    load_matrix(layer.out, {at + "self_attn.o_proj.weight"});
    load_vector(at + "self_attn.o_proj.bias", layer.out_bias);
    load_vector(at + "post_attention_layernorm.weight", layer.post_norm);
    load_matrix(layer.router, {at + "mlp.router.weight"});
    load_vector(at + "mlp.router.bias", layer.router_bias);
    load_matrix(layer.gate_up, {at + "mlp.experts.gate_up_proj"});
    load_gate_up_bias(at + "mlp.experts.gate_up_proj_bias", layer.gate_up.rows, layer.gate_up_bias);
    load_matrix(layer.down, {at + "mlp.experts.down_proj"});
    load_vector(at + "mlp.experts.down_proj_bias", layer.down_bias);
  }

  // Reads a vector, or one per expert, to F32; returns the place behind it. Places are ours to
  // write: ModelWeights shows them as const.
  const float* load_vector(const std::string& name, const float* place) {
    const StoredWeight& weight = stored_.by_name.at(name);
    const StoredPart& source = weight.parts.at(0);
    const auto num_experts = weight.spec.shape.rank == 2 ? weight.spec.shape[0] : 1;
    auto* out = const_cast<float*>(place);
    for (int32_t e = 0; e < num_experts; ++e) {
      const StoredRows rows = source.expert(e);
      for (int32_t i = 0; i < source.num_rows; ++i) rows.read_row(source.stored_row(i), out++);
    }
    release_vector(source, num_experts);
    return out;
  }

  void load_gate_up_bias(const std::string& name, int32_t num_packed_rows, const float* place) {
    auto* out = const_cast<float*>(place);
    std::memset(out, 0,
                sizeof(float) * static_cast<size_t>(config_.num_experts) *
                    static_cast<size_t>(num_packed_rows));
    for (int32_t half = 0; half < 2; ++half) {
      const StoredPart& source = part(name, static_cast<size_t>(half));
      for (int32_t e = 0; e < config_.num_experts; ++e) {
        const StoredRows rows = source.expert(e);
        float* expert = out + int64_t{e} * num_packed_rows;
        for (int32_t i = 0; i < source.num_rows; ++i)
          rows.read_row(source.stored_row(i), expert + gate_up_packed_row(i, half));
      }
      release_vector(source, config_.num_experts);
    }
  }

  static void release_vector(const StoredPart& source, int64_t num_experts) {
    source.file->release(
        static_cast<uint64_t>(source.rows.data - source.file->bytes().data()),
        static_cast<uint64_t>(num_experts * std::max<int64_t>(source.expert_stride_bytes, 1)));
  }

  void load_table(const RowTable& table, const StoredPart& source) {
    auto* out = const_cast<std::byte*>(table.data);
    const int64_t row_bytes = table.row_bytes();
    const auto batch_rows = static_cast<int32_t>(std::max<int64_t>(1, batch_bytes_ / row_bytes));
    const bool is_same =
        row_bytes == source.rows.row_stride_bytes && source.rows.kind != StoredRows::Kind::kF16;
    for (int32_t begin = 0; begin < table.rows; begin += batch_rows) {
      const int32_t num_rows = std::min(batch_rows, table.rows - begin);
      pool_.share(num_rows, 64, [&](int64_t first, int64_t last) {
        std::vector<float> row(is_same ? 0 : static_cast<size_t>(table.cols));
        for (int64_t r = begin + first; r < begin + last; ++r) {
          const int64_t stored_row = source.stored_row(static_cast<int32_t>(r));
          std::byte* target = out + r * row_bytes;
          if (is_same) {
            std::memcpy(target, source.rows.data + stored_row * row_bytes,
                        static_cast<size_t>(row_bytes));
            continue;
          }
          source.rows.read_row(stored_row, row.data());
          for (int32_t k = 0; k < table.cols; ++k) {
            const float value = row[static_cast<size_t>(k)];
            const uint16_t half = f32_to_bf16(value);
            if (table.format == DType::kF32)
              std::memcpy(target + 4 * k, &value, 4);
            else
              std::memcpy(target + 2 * k, &half, 2);
          }
        }
      });
      stored_ranges(
          source, 0, begin, num_rows,
          [](const MappedFile* file, uint64_t at, uint64_t bytes) { file->release(at, bytes); });
      progress_.add(static_cast<uint64_t>(num_rows * row_bytes));
    }
  }

  void load_matrix(const PackedMatrix& target, std::initializer_list<std::string> names) {
    MatrixJob job{.target = target};
    for (const std::string& name : names) {
      const StoredWeight& weight = stored_.by_name.at(name);
      job.is_gate_up = weight.parts.size() == 2;
      for (const StoredPart& one : weight.parts) job.parts.push_back(&one);
    }
    const int64_t num_tiles = target.num_tiles();
    int64_t batch = std::max<int64_t>(2, batch_bytes_ / target.tile_bytes() / 2 * 2);
    // A transposed expert is let go whole, so it is packed whole.
    if (job.parts[0]->rows.transposed) batch = round_up(batch, num_tiles);
    const int64_t total = target.num_experts * num_tiles;
    for (int64_t begin = 0; begin < total; begin += batch) {
      const int64_t end = std::min(total, begin + batch);
      visit_ranges(job, end, std::min(total, end + batch), &MappedFile::will_need);
      auto pack = [&](int64_t i, int) { pack_tile(job, begin + i); };
      pool_.run(end - begin, pack);
      visit_ranges(job, begin, end, &MappedFile::release);
      progress_.add(static_cast<uint64_t>((end - begin) * target.tile_bytes()));
    }
  }

  // Advice for the stored bytes of tiles [begin, end), counted over all experts.
  static void visit_ranges(const MatrixJob& job, int64_t begin, int64_t end,
                           void (MappedFile::*advise)(uint64_t, uint64_t) const) {
    const int64_t num_tiles = job.target.num_tiles();
    for (int64_t at = begin; at < end;) {
      const auto expert = static_cast<int32_t>(at / num_tiles);
      const auto first = static_cast<int32_t>(at % num_tiles);
      const auto last = static_cast<int32_t>(std::min(num_tiles, first + (end - at)));
      const int32_t width = job.is_gate_up ? 2 : 1;
      int32_t part_begin = 0;  // first row of the part in the packed matrix
      for (const StoredPart* part : job.parts) {
        const int32_t low = std::max(0, first / width * 16 - part_begin);
        const int32_t high = std::min(part->num_rows, ceil_div(last, width) * 16 - part_begin);
        if (low < high) {
          stored_ranges(*part, expert, low, high - low,
                        [&](const MappedFile* file, uint64_t offset, uint64_t bytes) {
                          (file->*advise)(offset, bytes);
                        });
        }
        if (!job.is_gate_up) part_begin += part->num_rows;
      }
      at += last - first;
    }
  }

  void pack_tile(const MatrixJob& job, int64_t i) {
    const int64_t num_tiles = job.target.num_tiles();
    const auto expert = static_cast<int32_t>(i / num_tiles);
    const auto tile_idx = static_cast<int32_t>(i % num_tiles);
    int32_t first_row = 0;
    const StoredPart& source = *job.part_of(tile_idx, &first_row);
    const StoredRows stored = source.expert(expert);
    int64_t rows[16];
    for (int32_t lane = 0; lane < 16; ++lane) {
      const int32_t row = first_row + lane;
      rows[lane] = row < source.num_rows ? source.stored_row(row) : -1;
      if (rows[lane] >= 0 && has_nan_scale(stored, rows[lane]))
        add_nan_fault(source, expert, rows[lane]);
    }
    pack_tile_rows16(stored, rows, job.target.format,
                     const_cast<std::byte*>(job.target.tile(expert, tile_idx)));
  }

  // One fault a tensor, at its first row seen.
  void add_nan_fault(const StoredPart& source, int32_t expert, int64_t row) {
    const std::lock_guard lock(mutex_);
    const bool is_split = source.rows.kind == StoredRows::Kind::kMxfp4Split;
    std::string tensor = source.tensor;
    if (is_split) tensor.replace(tensor.rfind("blocks"), 6, "scales");
    for (const Fault& fault : faults_)
      if (fault.tensor == tensor) return;
    if (faults_.size() >= kMaxLoadFaults) return;
    const MappedFile* file = is_split ? source.scales_file : source.file;
    faults_.push_back({file->path(), tensor,
                       fmt::format("the scale byte 255 (NaN) in expert {}, row {}", expert, row),
                       "scales of 0 to 254"});
  }

  const GptOssConfig& config_;
  const StoredWeights& stored_;
  ThreadPool& pool_;
  LoadProgress& progress_;
  int64_t batch_bytes_ = kMinBatchBytes;
  std::mutex mutex_;
  std::vector<Fault> faults_;
};

// Hands out consecutive aligned places, or only counts them.
class Layout {
 public:
  Layout(DeviceKind kind, std::byte* base)
      : packed_(kind == DeviceKind::kCpu ? PackedLayout::kRows16 : PackedLayout::kFragment16x32),
        base_(base) {}
  const std::byte* take(int64_t bytes) {
    const uint64_t at = round_up(used_, kAlignment);
    used_ = at + static_cast<uint64_t>(bytes);
    return base_ == nullptr ? nullptr : base_ + at;
  }
  const float* floats(int64_t count) {
    return reinterpret_cast<const float*>(take(count * int64_t{sizeof(float)}));
  }
  PackedMatrix matrix(DType format, int32_t num_experts, int32_t rows, int32_t cols) {
    PackedMatrix out{.format = format,
                     .layout = packed_,
                     .num_experts = num_experts,
                     .rows = rows,
                     .cols = cols};
    out.data = take(out.bytes());
    return out;
  }
  uint64_t used() const { return round_up(used_, kAlignment); }

 private:
  PackedLayout packed_;
  std::byte* base_;
  uint64_t used_ = 0;
};

// Threads go through equal shares of a matrix, or of each expert of it, in order: what a node's
// threads will read is to lie on that node. Borders are those of huge pages, so that none is lost.
Status place_on_nodes(const PackedMatrix& matrix, const ThreadPool& pool, const Buffer& memory) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const auto address = [](const std::byte* at) { return reinterpret_cast<int64_t>(at); };
  const auto nearest_border = [&](const std::byte* at) {
    const int64_t border = (address(at) + kHugePage / 2) / kHugePage * kHugePage;
    return memory.data() + std::clamp<int64_t>(border - address(memory.data()), 0,
                                               static_cast<int64_t>(memory.bytes()));
  };
  const int64_t num_threads = pool.num_threads(), num_tiles = matrix.num_tiles();
  for (int32_t e = 0; e < matrix.num_experts; ++e) {
    const auto share = [&](int64_t thread) {
      const int64_t tile = num_tiles * thread / num_threads;
      return nearest_border(matrix.tile(e, 0) + tile * matrix.tile_bytes());
    };
    for (int first = 0, last = 0; first < num_threads; first = last) {
      const int node = pool.node_of(first);
      while (last < num_threads && pool.node_of(last) == node) ++last;
      if (Status done = prefer_node(share(first), share(last), node); !done) return done;
    }
  }
  return {};
}

Status place_on_nodes(const ModelWeights& weights, const ThreadPool& pool, const Buffer& memory) {
  // Each part is a mapping of its own to the kernel, which allows a process some 65,000.
  constexpr int64_t kMostParts = 40'000;
  const int num_nodes = pool.num_nodes();
  int64_t num_parts = 0;
  for (const LayerWeights& layer : weights.layers)
    num_parts += num_nodes * (3 + layer.gate_up.num_experts + layer.down.num_experts);
  if (num_parts > kMostParts) {
    return fail(
        fmt::format("{} parts of weights on {} nodes are too many to place", num_parts, num_nodes),
        "NUMA", "weights are read from wherever their pages are");
  }
  const auto place = [&](std::initializer_list<const PackedMatrix*> matrices) -> Status {
    for (const PackedMatrix* matrix : matrices)
      if (Status done = place_on_nodes(*matrix, pool, memory); !done) return done;
    return {};
  };
  for (const LayerWeights& layer : weights.layers) {
    Status done = place({&layer.qkv, &layer.out, &layer.router, &layer.gate_up, &layer.down});
    if (!done) return done;
  }
  return place({&weights.head});
}

}  // namespace

uint64_t lay_out_weights(const GptOssConfig& config, const WeightFormats& formats, DeviceKind kind,
                         std::byte* base, ModelWeights* out) {
  Layout layout(kind, base);
  const int32_t hidden = config.hidden, experts = config.num_experts;
  out->embedding = {.format = formats.embedding, .rows = config.vocab, .cols = hidden};
  out->embedding.data = layout.take(out->embedding.bytes());
  out->layers.clear();
  for (const LayerFormats& format : formats.layers) {
    LayerWeights layer;
    layer.input_norm = layout.floats(hidden);
    layer.qkv = layout.matrix(format.qkv, 1, config.qkv_width(), hidden);
    layer.qkv_bias = layout.floats(config.qkv_width());
    layer.sinks = layout.floats(config.num_heads);
    layer.out = layout.matrix(format.out, 1, hidden, config.q_width());
    layer.out_bias = layout.floats(hidden);
    layer.post_norm = layout.floats(hidden);
    layer.router = layout.matrix(format.router, 1, experts, hidden);
    layer.router_bias = layout.floats(experts);
    const int32_t gate_up_rows = 2 * round_up(config.intermediate, 16);
    layer.gate_up = layout.matrix(format.gate_up, experts, gate_up_rows, hidden);
    layer.gate_up_bias = layout.floats(int64_t{experts} * gate_up_rows);
    layer.down = layout.matrix(format.down, experts, hidden, config.intermediate);
    layer.down_bias = layout.floats(int64_t{experts} * hidden);
    out->layers.push_back(layer);
  }
  out->final_norm = layout.floats(hidden);
  out->head = layout.matrix(formats.head, 1, config.vocab, hidden);
  out->packed_bytes = layout.used();
  return layout.used();
}

Status damage_status(const std::vector<Fault>& faults) {
  if (faults.empty()) return {};
  std::string what;
  for (const Fault& fault : faults) what += (what.empty() ? "" : "; ") + fault.message();
  return fail(what, "", "the file is damaged: fetch it again");
}

Status check_load_options(const LoadOptions& options, DeviceKind kind) {
  const DenseLayers &mxfp4 = options.mxfp4_layers, &mxfp8 = options.mxfp8_layers;
  const bool any = mxfp8.qkv || mxfp8.o || mxfp8.lm_head;
  if (any && kind == DeviceKind::kCpu) {
    return fail("MXFP8 weights have no rows on the CPU", "--mxfp8-layers",
                "--device cuda, or --mxfp4-layers");
  }
  if ((mxfp4.qkv && mxfp8.qkv) || (mxfp4.o && mxfp8.o) || (mxfp4.lm_head && mxfp8.lm_head)) {
    return fail("names layers that --mxfp4-layers names too", "--mxfp8-layers",
                "each layer in one of the two");
  }
  return {};
}

Result<WeightsPlace> make_weights(const GptOssConfig& config, const WeightFormats& formats,
                                  Device& device) {
  const DeviceProperties& properties = device.properties();
  WeightsPlace place;
  const uint64_t bytes = lay_out_weights(config, formats, device.kind(), nullptr, &place.weights);
  const uint64_t available = properties.available_bytes;
  if (available > 0 && bytes > available) {
    return fail(fmt::format("the weights need {:.2f} GB and {:.2f} GB of memory are free",
                            bytes / 1e9, available / 1e9),
                properties.name,
                fmt::format("a model of at most {:.2f} GB would fit; `moxie plan` shows the parts, "
                            "--mxfp4-layers all makes weights smaller",
                            available / 1e9));
  }
  Result<Buffer> buffer = device.allocate(bytes);
  if (!buffer) return fail(buffer.error());
  Result<std::unique_ptr<Stream>> stream = device.make_stream();
  if (!stream) return fail(stream.error());
  lay_out_weights(config, formats, device.kind(), buffer->data(), &place.weights);
  if (const ThreadPool* pool = (*stream)->pool; pool != nullptr && pool->num_nodes() > 1) {
    if (Status done = place_on_nodes(place.weights, *pool, *buffer); !done)
      log_warn(done.error().message());
  }
  place.weights.storage.push_back(std::move(*buffer));
  place.stream = std::move(*stream);
  return place;
}

Result<ModelWeights> load_weights(const GptOssConfig& config, const StoredWeights& stored,
                                  const WeightFormats& formats, Device& device,
                                  const LoadOptions& options) {
  if (Status fine = check_load_options(options, device.kind()); !fine) return fail(fine.error());
  const auto start = std::chrono::steady_clock::now();
  for (const TensorFile& file : stored.files) {
    if (Status same = file.file->check_unchanged(); !same) return fail(same.error());
  }
  Result<WeightsPlace> place = make_weights(config, formats, device);
  if (!place) return fail(place.error());
  LoadProgress progress(options.show_progress, "loading weights", place->weights.packed_bytes);
  StartupTimeline& timeline = place->weights.timeline;
  const auto seconds = [start] { return seconds_since(start); };
  if (device.kind() == DeviceKind::kCuda) {
    const Status status = load_weights_cuda(config, stored, device, *place, progress);
    if (!status) return fail(status.error());
    timeline.weights_s = seconds();
    return std::move(place->weights);
  }
  Loader loader(config, stored, *place->stream->pool, progress);
  loader.load(place->weights);
  if (Status status = loader.status(); !status) return fail(status.error());
  timeline.weights_s = timeline.read_s = seconds();  // packed as it is read
  timeline.read_bytes = place->weights.packed_bytes;
  return std::move(place->weights);
}

}  // namespace moxie
