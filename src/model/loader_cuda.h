// Loading stored weights to a GPU: the checkpoint is cut into pieces of a few megabytes. A piece is
// a few ranges of files and the weights made from them. Threads read pieces into pinned memory, one
// after another; meanwhile the copy engine moves earlier pieces and kernels repack copied ones.
#pragma once

#include <variant>

#include "model/load_progress.h"
#include "model/loader.h"
#include "model/repack_cuda.h"

namespace moxie {

/// Bytes of a file, and their 256-byte aligned place in a piece's memory.
struct PieceRange {
  const MappedFile* file = nullptr;
  uint64_t offset = 0, bytes = 0, at = 0;
};

/// Stored bytes that are copied unchanged: rows of a table.
struct DirectCopy {
  std::byte* target = nullptr;
};

struct LoadPiece {
  static constexpr int kMaxRanges = 4;  ///< gate and up, each with scales
  /// Source pointers are null here: point_piece() sets them.
  std::variant<DirectCopy, MatrixRepack, VectorRepack, TableRepack> work;
  PieceRange ranges[kMaxRanges];
  int32_t num_ranges = 0;
  uint64_t bytes = 0;                                      ///< memory for all ranges
  int32_t data_range[2] = {}, scales_range[2] = {-1, -1};  ///< index of each source's range
  /// For messages.
  const StoredPart* parts[2] = {};
  int32_t expert = 0;
};

/// Pieces of about this size keep reading, copying and repacking busy at once without much memory:
/// an expert's down projection of gpt-oss is one piece.
inline constexpr uint64_t kPieceBytes = uint64_t{4608} << 10;

/// All pieces of a model, in the order of its layers, with targets in `weights`. A piece is larger
/// than kPieceBytes only if it cannot be cut further.
std::vector<LoadPiece> cut_into_pieces(const GptOssConfig& config, const StoredWeights& stored,
                                       const ModelWeights& weights,
                                       uint64_t piece_bytes = kPieceBytes);

/// Reads a piece's ranges to `memory`. Fails if a file has become shorter.
Status read_piece(const LoadPiece& piece, std::byte* memory);

/// The piece's work with its sources in `memory` (of the device that will do it).
LoadPiece point_piece(const LoadPiece& piece, const std::byte* memory, int32_t* nan_row);

/// The fault of a NaN scale at `row` of a piece's tensors. If there are two, the host reads the
/// file to find the one with the NaN.
Fault nan_scale_fault(const LoadPiece& piece, int32_t row);

/// Fills `place`, which lies on a CUDA device. For tests: if the device's streams have no native
/// handle, its memory is the host's, and the same pieces are packed there.
Status load_weights_cuda(const GptOssConfig& config, const StoredWeights& stored, Device& device,
                         WeightsPlace& place, LoadProgress& progress);

/// The pipeline itself; builds with CUDA only. `nan_rows` gets one value a piece.
Status run_pieces_cuda(const std::vector<LoadPiece>& pieces, Device& device, WeightsPlace& place,
                       LoadProgress& progress, std::vector<int32_t>* nan_rows);

}  // namespace moxie
