// Packs stored tensors into the CPU's layout, batch by batch, and releases input pages it has read.
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

// Input pages resident at once: a small share of the model, within useful limits.
constexpr int64_t kMinBatchBytes = int64_t{1} << 20, kMaxBatchBytes = int64_t{64} << 20;
constexpr uint64_t kAlignment = 256;

// The weights of one packed matrix: parts one below another, or gate and up tiles in turn.
struct MatrixJob {
  PackedMatrix target;
  bool is_gate_up = false;
  std::span<const StoredPart> parts;

  // The part and its first row (of the part) that tile `tile_idx` holds.
  const StoredPart* part_of(int32_t tile_idx, int32_t* first_row) const {
    if (is_gate_up) {
      *first_row = tile_idx / 2 * 16;
      return &parts[static_cast<size_t>(tile_idx % 2)];
    }
    int32_t row = tile_idx * 16;
    for (const StoredPart& part : parts) {
      if (row < part.num_rows) {
        *first_row = row;
        return &part;
      }
      row -= part.num_rows;
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

class Loader {
 public:
  Loader(const GptOssConfig& config, const StoredWeights& stored, ThreadPool& pool,
         LoadProgress& progress)
      : config_(config), stored_(stored), pool_(pool), progress_(progress) {}

  void load(const ModelWeights& weights) {
    batch_bytes_ =
        std::clamp(static_cast<int64_t>(weights.packed_bytes / 64), kMinBatchBytes, kMaxBatchBytes);
    for_each_weight(config_, [&](const Weight& weight) {
      const std::vector<StoredPart>& parts = stored_.parts_of(weight);
      visit_place(weight, weights, [&](const auto& place) { load(place, weight, parts); });
    });
  }

  Status status() const { return damage_status(faults_); }

 private:
  // Reads a vector, or one per expert, to F32. The places are written through a const_cast, since
  // ModelWeights has them const.
  static void load(const float* place, const Weight& weight, const std::vector<StoredPart>& parts) {
    if (weight.is_null()) return;
    auto* out = const_cast<float*>(place);
    if (parts.empty() || weight.has_padding()) std::fill_n(out, weight.num_elements(), 0.0f);
    int32_t first = 0;  // of the part, where parts lie one below another
    for (size_t p = 0; p < parts.size(); ++p) {
      const StoredPart& source = parts[p];
      for (int32_t e = 0; e < weight.num_experts; ++e) {
        const StoredRows rows = source.expert(e);
        float* expert = out + int64_t{e} * weight.rows;
        for (int32_t i = 0; i < source.num_rows; ++i) {
          const int32_t row =
              weight.is_gate_up() ? gate_up_packed_row(i, static_cast<int32_t>(p)) : first + i;
          rows.read_row(source.stored_row(i), expert + row);
        }
      }
      source.file->release(static_cast<uint64_t>(source.rows.data - source.file->bytes().data()),
                           static_cast<uint64_t>(weight.num_experts *
                                                 std::max<int64_t>(source.expert_stride_bytes, 1)));
      first += source.num_rows;
    }
  }

  void load(const RowTable& table, const Weight&, const std::vector<StoredPart>& parts) {
    const StoredPart& source = parts.at(0);
    const int64_t row_bytes = table.row_bytes();
    const auto batch_rows = static_cast<int32_t>(std::max<int64_t>(1, batch_bytes_ / row_bytes));
    for (int32_t begin = 0; begin < table.rows; begin += batch_rows) {
      const int32_t num_rows = std::min(batch_rows, table.rows - begin);
      pool_.share(num_rows, 64, [&](int64_t first, int64_t last) {
        const auto row = begin + static_cast<int32_t>(first);
        const auto count = static_cast<int32_t>(last - first);
        if (!is_table_as_stored(table, source)) {
          return repack_on_host(TableRepack{.source = {.rows = source.rows,
                                                       .first = source.first + row * source.step,
                                                       .step = source.step},
                                            .target = table,
                                            .first_row = row,
                                            .num_rows = count});
        }
        std::memcpy(const_cast<std::byte*>(table.data) + row * row_bytes,
                    source.rows.data + source.stored_row(row) * row_bytes,
                    static_cast<size_t>(count * row_bytes));
      });
      stored_ranges(
          source, 0, begin, num_rows,
          [](const MappedFile* file, uint64_t at, uint64_t bytes) { file->release(at, bytes); });
      progress_.add(static_cast<uint64_t>(num_rows * row_bytes));
    }
  }

  void load(const PackedMatrix& target, const Weight& weight,
            const std::vector<StoredPart>& parts) {
    if (parts.empty()) {
      std::memset(const_cast<std::byte*>(target.data), 0, static_cast<size_t>(target.bytes()));
      return;
    }
    const MatrixJob job{.target = target, .is_gate_up = weight.is_gate_up(), .parts = parts};
    const int64_t num_tiles = target.num_tiles();
    int64_t batch = std::max<int64_t>(2, batch_bytes_ / target.tile_bytes() / 2 * 2);
    // A transposed expert's input pages are released together, so the expert is packed as a whole.
    if (job.parts[0].rows.transposed) batch = round_up(batch, num_tiles);
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
      for (const StoredPart& part : job.parts) {
        const int32_t low = std::max(0, first / width * 16 - part_begin);
        const int32_t high = std::min(part.num_rows, ceil_div(last, width) * 16 - part_begin);
        if (low < high) {
          stored_ranges(part, expert, low, high - low,
                        [&](const MappedFile* file, uint64_t offset, uint64_t bytes) {
                          (file->*advise)(offset, bytes);
                        });
        }
        if (!job.is_gate_up) part_begin += part.num_rows;
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
    Fault fault = nan_scale_fault(source, expert, row);
    for (const Fault& known : faults_)
      if (known.tensor == fault.tensor) return;
    if (faults_.size() < kMaxLoadFaults) faults_.push_back(std::move(fault));
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
  void place(RowTable& table, const Weight& weight, DType format) {
    table = {.format = format, .rows = weight.rows, .cols = weight.cols};
    table.data = take(table.bytes());
  }
  void place(PackedMatrix& matrix, const Weight& weight, DType format) {
    matrix = {.format = format,
              .layout = packed_,
              .num_experts = weight.num_experts,
              .rows = weight.rows,
              .cols = weight.cols};
    matrix.data = take(matrix.bytes());
  }
  void place(const float*& vector, const Weight& weight, DType) {
    const int64_t bytes = weight.num_elements() * int64_t{sizeof(float)};
    vector = weight.is_null() ? nullptr : reinterpret_cast<const float*>(take(bytes));
  }
  uint64_t used() const { return round_up(used_, kAlignment); }

 private:
  PackedLayout packed_;
  std::byte* base_;
  uint64_t used_ = 0;
};

// Threads go through equal shares of a matrix, or of each of its experts, in order. The share of a
// node's threads is placed on that node. Borders are at huge pages, so that none is split.
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

Status place_on_nodes(const GptOssConfig& config, const ModelWeights& weights,
                      const ThreadPool& pool, const Buffer& memory) {
  // To the kernel each range is a separate mapping; a process may have some 65,000.
  constexpr int64_t kMostParts = 40'000;
  std::vector<PackedMatrix> matrices;
  int64_t num_parts = 0;
  for_each_weight(config, [&](const Weight& weight) {
    visit_place(weight, weights, [&]<typename T>(const T& place) {
      if constexpr (std::is_same_v<T, PackedMatrix>) {
        matrices.push_back(place);
        num_parts += int64_t{pool.num_nodes()} * place.num_experts;
      }
    });
  });
  if (num_parts > kMostParts) {
    return fail(fmt::format("{} parts of weights on {} nodes are too many to place", num_parts,
                            pool.num_nodes()),
                "NUMA", "weights are read from wherever their pages are");
  }
  for (const PackedMatrix& matrix : matrices)
    if (Status done = place_on_nodes(matrix, pool, memory); !done) return done;
  return {};
}

}  // namespace

uint64_t lay_out_weights(const GptOssConfig& config, const WeightFormats& formats, DeviceKind kind,
                         std::byte* base, ModelWeights* out) {
  Layout layout(kind, base);
  out->layers.assign(static_cast<size_t>(config.num_layers), {});
  for_each_weight(config, [&](const Weight& weight) {
    visit_place(weight, *out,
                [&](auto& place) { layout.place(place, weight, formats[weight.index]); });
  });
  out->packed_bytes = layout.used();
  return layout.used();
}

Fault nan_scale_fault(const StoredPart& part, int32_t expert, int64_t row) {
  const bool is_split = part.rows.kind == StoredRows::Kind::kMxfp4Split;
  std::string tensor = part.tensor;
  if (is_split) tensor.replace(tensor.rfind("blocks"), 6, "scales");
  return {(is_split ? part.scales_file : part.file)->path(), tensor,
          fmt::format("the scale byte 255 (NaN) in expert {}, row {}", expert, row),
          "scales of 0 to 254"};
}

bool is_table_as_stored(const RowTable& table, const StoredPart& source) {
  return table.row_bytes() == source.rows.row_stride_bytes && source.step == 1 &&
         source.rows.kind != StoredRows::Kind::kF16;
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
  if (config.activation != Activation::kClampedSwiglu) {
    return fail("no row of experts computes plain SwiGLU yet", "mlp_activation",
                "only models with clamped_swiglu can run");
  }
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
    if (Status done = place_on_nodes(config, place.weights, *pool, *buffer); !done)
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
