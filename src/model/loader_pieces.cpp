// Cuts a checkpoint into pieces, reads them, and names damaged tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/loader_cuda.h"

namespace moxie {
namespace {

constexpr uint64_t kAlignment = 256;

class PieceCutter {
 public:
  PieceCutter(const GptOssConfig& config, const StoredWeights& stored, uint64_t piece_bytes)
      : config_(config), stored_(stored), piece_bytes_(piece_bytes) {}

  std::vector<LoadPiece> cut(const ModelWeights& weights) {
    for_each_weight(config_, [&](const Weight& weight) {
      const std::vector<StoredPart>& parts = stored_.parts_of(weight);
      if (parts.empty()) return;
      visit_place(weight, weights, [&](const auto& place) { cut(place, weight, parts); });
    });
    return std::move(pieces_);
  }

 private:
  // Adds a range to the piece; returns its index.
  static int32_t add_range(LoadPiece& piece, const MappedFile* file, const std::byte* data,
                           int64_t bytes) {
    CHECK(piece.num_ranges < LoadPiece::kMaxRanges && bytes >= 0);
    PieceRange& range = piece.ranges[piece.num_ranges];
    const auto offset = static_cast<uint64_t>(data - file->bytes().data());
    // A rank's columns begin inside of a row: counted in whole rows, the last ends behind the file.
    range = {.file = file,
             .offset = offset,
             .bytes = std::min(static_cast<uint64_t>(bytes), file->bytes().size() - offset),
             .at = round_up(piece.bytes, kAlignment)};
    piece.bytes = range.at + range.bytes;
    return piece.num_ranges++;
  }

  // Rows [begin, end) of a part of one expert as source `i` of the piece.
  static RepackSource add_source(LoadPiece& piece, int i, const StoredPart& part, int32_t expert,
                                 int32_t begin, int32_t end) {
    const StoredRows rows = part.expert(expert);
    RepackSource source{
        .rows = rows, .first = part.first, .step = part.step, .num_rows = part.num_rows};
    source.rows.data = source.rows.scales = nullptr;
    piece.parts[i] = &part;
    if (rows.transposed) {
      piece.data_range[i] =
          add_range(piece, part.file, rows.data, int64_t{rows.cols} * rows.row_stride_bytes);
      return source;
    }
    source.loaded_first = part.stored_row(begin);
    const int64_t count = begin < end ? part.stored_row(end - 1) + 1 - source.loaded_first : 0;
    piece.data_range[i] =
        add_range(piece, part.file, rows.data + source.loaded_first * rows.row_stride_bytes,
                  count * rows.row_stride_bytes);
    if (rows.scales != nullptr) {
      piece.scales_range[i] = add_range(piece, part.scales_file,
                                        rows.scales + source.loaded_first * rows.scale_stride_bytes,
                                        count * rows.scale_stride_bytes);
    }
    return source;
  }

  void cut(const PackedMatrix& target, const Weight& weight, const std::vector<StoredPart>& parts) {
    for (int32_t expert = 0; expert < target.num_experts; ++expert) {
      if (weight.is_gate_up()) {
        gate_up(target, expert, parts.at(0), parts.at(1));
        continue;
      }
      int32_t row = 0;  // the part's first row of the model
      for (const StoredPart& one : parts) {
        rows(target, weight.entry->order, expert, one, row);
        row += one.num_rows;
      }
    }
  }

  // Cuts [0, num_tiles) evenly into runs of about a piece, at multiples of `grain`.
  template <typename Make>
  void cut_tiles(int32_t num_tiles, int32_t grain, uint64_t tile_bytes, bool is_whole,
                 Make&& make) {
    const int32_t num_grains = ceil_div(num_tiles, grain);
    const uint64_t total = tile_bytes * static_cast<uint64_t>(num_tiles);
    const auto wanted = static_cast<int64_t>(std::max<uint64_t>(1, ceil_div(total, piece_bytes_)));
    const auto num_pieces = is_whole ? 1 : std::min<int64_t>(num_grains, wanted);
    for (int64_t i = 0; i < num_pieces; ++i) {
      const auto begin = static_cast<int32_t>(num_grains * i / num_pieces * grain);
      const auto end = static_cast<int32_t>(num_grains * (i + 1) / num_pieces * grain);
      make(begin, std::min(end, num_tiles));
    }
  }

  static uint64_t row_bytes(const StoredPart& part) {
    return static_cast<uint64_t>(part.rows.row_stride_bytes + part.rows.scale_stride_bytes) *
           static_cast<uint64_t>(part.step);
  }

  void rows(const PackedMatrix& target, PackedRowOrder order, int32_t expert,
            const StoredPart& part, int32_t part_row) {
    // A head's tiles share its rows; parts begin at whole tiles.
    const int32_t grain = order == PackedRowOrder::kQkv ? config_.head_dim / 16 : 1;
    CHECK(part_row % (16 * grain) == 0, part.tensor);
    const int32_t num_tiles = ceil_div(part.num_rows, 16);
    cut_tiles(num_tiles, grain, 16 * row_bytes(part), part.rows.transposed,
              [&](int32_t begin, int32_t end) {
                LoadPiece piece{.expert = expert};
                MatrixRepack work{.target = target.expert(expert),
                                  .order = order,
                                  .head_dim = config_.head_dim,
                                  .part_row = part_row,
                                  .first_tile = part_row / 16 + begin,
                                  .num_tiles = end - begin};
                work.sources[0] = add_source(piece, 0, part, expert, 16 * begin,
                                             std::min(16 * end, part.num_rows));
                piece.work = work;
                pieces_.push_back(piece);
              });
  }

  void gate_up(const PackedMatrix& target, int32_t expert, const StoredPart& gate,
               const StoredPart& up) {
    // Interleaved rows are in one range; transposed parts also share one matrix.
    const bool is_shared =
        gate.rows.data == up.rows.data && (gate.step == 2 || gate.rows.transposed);
    const uint64_t pair_bytes = is_shared ? row_bytes(gate) : row_bytes(gate) + row_bytes(up);
    cut_tiles(target.num_tiles(), 1, 8 * pair_bytes, gate.rows.transposed,
              [&](int32_t begin, int32_t end) {
                const int32_t first = std::min(8 * begin, gate.num_rows);
                const int32_t last = std::min(8 * end, gate.num_rows);
                LoadPiece piece{.expert = expert};
                MatrixRepack work{.target = target.expert(expert),
                                  .order = PackedRowOrder::kGateUp,
                                  .head_dim = config_.head_dim,
                                  .first_tile = begin,
                                  .num_tiles = end - begin};
                if (is_shared) {
                  StoredPart both = gate;  // both halves as one run of stored rows
                  if (gate.step == 2) both.first = std::min(gate.first, up.first), both.step = 1;
                  work.sources[0] = add_source(piece, 0, both, expert, 2 * first, 2 * last);
                  work.sources[0].first = gate.first;
                  work.sources[0].step = gate.step;
                  work.sources[1] = work.sources[0];
                  work.sources[1].first = up.first;
                  piece.data_range[1] = piece.data_range[0];
                  piece.scales_range[1] = piece.scales_range[0];
                } else {
                  work.sources[0] = add_source(piece, 0, gate, expert, first, last);
                  work.sources[1] = add_source(piece, 1, up, expert, first, last);
                }
                piece.parts[0] = &gate;
                piece.parts[1] = &up;
                piece.work = work;
                pieces_.push_back(piece);
              });
  }

  void cut(const float* out, const Weight& weight, const std::vector<StoredPart>& parts) {
    for (size_t p = 0; p < parts.size(); ++p) {
      vector_part(out, weight, parts[p], weight.is_gate_up() ? static_cast<int32_t>(p) : -1);
      if (!weight.is_gate_up()) out += parts[p].num_rows;
    }
  }

  void vector_part(const float* out, const Weight& weight, const StoredPart& source, int32_t half) {
    const int64_t stride = source.rows.row_stride_bytes;
    const int64_t used =
        (source.stored_row(source.num_rows - 1) + 1 - source.first) * stride;  // of an expert
    const int32_t num_experts = weight.num_experts;
    const int64_t out_stride = weight.rows;
    const auto per_piece = static_cast<int32_t>(std::max<int64_t>(
        1, static_cast<int64_t>(piece_bytes_) / std::max<int64_t>(source.expert_stride_bytes, 1)));
    for (int32_t expert = 0; expert < num_experts; expert += per_piece) {
      const int32_t count = std::min(per_piece, num_experts - expert);
      LoadPiece piece{.expert = expert};
      piece.parts[0] = &source;
      piece.data_range[0] =
          add_range(piece, source.file, source.expert(expert).data + source.first * stride,
                    (count - 1) * source.expert_stride_bytes + used);
      piece.work = VectorRepack{.kind = source.rows.kind,
                                .expert_stride_bytes = source.expert_stride_bytes,
                                .num_experts = count,
                                .count = source.num_rows,
                                .step = source.step,
                                .out = const_cast<float*>(out) + expert * out_stride,
                                .out_stride = out_stride,
                                .half = half};
      pieces_.push_back(piece);
    }
  }

  void cut(const RowTable& target, const Weight&, const std::vector<StoredPart>& parts) {
    const StoredPart& source = parts.at(0);
    const StoredRows& rows = source.rows;
    const bool is_same = is_table_as_stored(target, source);
    const auto per_piece = static_cast<int32_t>(
        std::max<uint64_t>(1, piece_bytes_ / static_cast<uint64_t>(rows.row_stride_bytes)));
    for (int32_t begin = 0; begin < target.rows; begin += per_piece) {
      const int32_t end = std::min(target.rows, begin + per_piece);
      LoadPiece piece;
      const RepackSource from = add_source(piece, 0, source, 0, begin, end);
      if (is_same) {
        piece.work = DirectCopy{const_cast<std::byte*>(target.data) + begin * target.row_bytes()};
      } else {
        RepackSource moved = from;  // its row 0 is the piece's first
        moved.first = static_cast<int32_t>(from.loaded_first);
        piece.work = TableRepack{
            .source = moved, .target = target, .first_row = begin, .num_rows = end - begin};
      }
      pieces_.push_back(piece);
    }
  }

  const GptOssConfig& config_;
  const StoredWeights& stored_;
  uint64_t piece_bytes_;
  std::vector<LoadPiece> pieces_;
};

// Whether the row belongs to the part and is damaged, for a fault's text. Damage is rare, so this
// reads the file again.
bool holds_nan(const StoredPart& part, int32_t expert, int64_t row) {
  const StoredRows rows = part.expert(expert);
  const bool is_split = rows.kind == StoredRows::Kind::kMxfp4Split;
  if ((row - part.first) % part.step != 0 || row < part.first) return false;
  const MappedFile* file = is_split ? part.scales_file : part.file;
  const int64_t stride = is_split ? rows.scale_stride_bytes : rows.row_stride_bytes;
  const std::byte* base = is_split ? rows.scales : rows.data;
  std::vector<std::byte> at(static_cast<size_t>(stride));
  const auto offset = static_cast<uint64_t>(base - file->bytes().data() + row * stride);
  if (!file->read(offset, at.size(), at.data())) return false;
  StoredRows one = rows;
  (is_split ? one.scales : one.data) = at.data();
  return has_nan_scale(one, 0);
}

}  // namespace

std::vector<LoadPiece> cut_into_pieces(const GptOssConfig& config, const StoredWeights& stored,
                                       const ModelWeights& weights, uint64_t piece_bytes) {
  return PieceCutter(config, stored, piece_bytes).cut(weights);
}

Status read_piece(const LoadPiece& piece, std::byte* memory) {
  for (int32_t i = 0; i < piece.num_ranges; ++i) {
    const PieceRange& range = piece.ranges[i];
    if (Status read = range.file->read(range.offset, range.bytes, memory + range.at); !read)
      return read;
  }
  return {};
}

LoadPiece point_piece(const LoadPiece& piece, const std::byte* memory, int32_t* nan_row) {
  LoadPiece pointed = piece;
  const auto place = [&](int32_t range) {
    return range < 0 ? nullptr : memory + piece.ranges[range].at;
  };
  const auto set = [&](RepackSource& source, int i) {
    source.rows.data = place(piece.data_range[i]);
    source.rows.scales = place(piece.scales_range[i]);
  };
  if (auto* matrix = std::get_if<MatrixRepack>(&pointed.work)) {
    set(matrix->sources[0], 0);
    if (matrix->order == PackedRowOrder::kGateUp) set(matrix->sources[1], 1);
    matrix->nan_row = nan_row;
  } else if (auto* vector = std::get_if<VectorRepack>(&pointed.work)) {
    vector->data = place(piece.data_range[0]);
  } else if (auto* table = std::get_if<TableRepack>(&pointed.work)) {
    set(table->source, 0);
  }
  return pointed;
}

Fault nan_scale_fault(const LoadPiece& piece, int32_t row) {
  const StoredPart* part = piece.parts[0];
  if (piece.parts[1] != nullptr && !holds_nan(*part, piece.expert, row)) part = piece.parts[1];
  return nan_scale_fault(*part, piece.expert, row);
}

}  // namespace moxie
