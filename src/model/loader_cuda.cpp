// Runs the pieces of a checkpoint, and reports what was damaged.
#include "model/loader_cuda.h"

#include <algorithm>
#include <cstring>

#include "model/repack_cuda.h"

namespace moxie {
namespace {

// gate_up rows beyond the model's have no bias in the files.
Status clear_padding(const GptOssConfig& config, const ModelWeights& weights, Device& device,
                     Stream& stream) {
  for (const LayerWeights& layer : weights.layers) {
    if (layer.gate_up.rows == 2 * config.intermediate) continue;
    const auto bytes = uint64_t{4} * static_cast<uint64_t>(config.num_experts) * layer.gate_up.rows;
    if (Status done = device.fill_zero(const_cast<float*>(layer.gate_up_bias), bytes, stream);
        !done)
      return done;
  }
  return {};
}

// For devices whose memory is the host's: one piece after another.
Status run_pieces_on_host(const std::vector<LoadPiece>& pieces, LoadProgress& progress,
                          std::vector<int32_t>* nan_rows) {
  std::vector<std::byte> memory;
  for (size_t i = 0; i < pieces.size(); ++i) {
    memory.resize(pieces[i].bytes);
    if (Status read = read_piece(pieces[i], memory.data()); !read) return read;
    const LoadPiece piece = point_piece(pieces[i], memory.data(), &(*nan_rows)[i]);
    if (const auto* direct = std::get_if<DirectCopy>(&piece.work))
      std::memcpy(direct->target, memory.data(), piece.bytes);
    else if (const auto* matrix = std::get_if<MatrixRepack>(&piece.work))
      repack_on_host(*matrix);
    else if (const auto* vector = std::get_if<VectorRepack>(&piece.work))
      repack_on_host(*vector);
    else if (const auto* table = std::get_if<TableRepack>(&piece.work))
      repack_on_host(*table);
    progress.add(piece.bytes);
  }
  return {};
}

// One fault a tensor, at its first row seen.
std::vector<Fault> nan_faults(const std::vector<LoadPiece>& pieces,
                              const std::vector<int32_t>& nan_rows) {
  std::vector<Fault> faults;
  for (size_t i = 0; i < pieces.size() && faults.size() < kMaxLoadFaults; ++i) {
    if (nan_rows[i] == kNoNanRow) continue;
    const Fault fault = nan_scale_fault(pieces[i], nan_rows[i]);
    const bool is_known = std::any_of(faults.begin(), faults.end(),
                                      [&](const Fault& one) { return one.tensor == fault.tensor; });
    if (!is_known) faults.push_back(fault);
  }
  return faults;
}

}  // namespace

Status load_weights_cuda(const GptOssConfig& config, const StoredWeights& stored, Device& device,
                         WeightsPlace& place, LoadProgress& progress) {
  const std::vector<LoadPiece> pieces = cut_into_pieces(config, stored, place.weights);
  std::vector<int32_t> nan_rows(pieces.size(), kNoNanRow);
  for (const LoadPiece& piece : pieces) place.weights.timeline.read_bytes += piece.bytes;
  if (Status cleared = clear_padding(config, place.weights, device, *place.stream); !cleared)
    return cleared;
  Status status;
  if (place.stream->native == nullptr) {
    status = run_pieces_on_host(pieces, progress, &nan_rows);
  } else {
#if MOXIE_HAS_CUDA
    status = run_pieces_cuda(pieces, device, place, progress, &nan_rows);
#else
    status = fail("this build has no CUDA", device.properties().name);
#endif
  }
  if (!status) return status;
  return damage_status(nan_faults(pieces, nan_rows));
}

}  // namespace moxie
