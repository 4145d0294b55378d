// Loads the pieces of a checkpoint, and reports damage.
#include "model/loader_cuda.h"

#include <algorithm>
#include <cstring>

#include "model/repack_cuda.h"

namespace moxie {
namespace {

// Zeros memory that no piece fills: weights that the model lacks, and the biases of padding rows of
// gate_up.
Status clear_unfilled(const GptOssConfig& config, const StoredWeights& stored,
                      const ModelWeights& weights, Device& device, Stream& stream) {
  Status status;
  const auto clear = [&](const void* place, int64_t bytes) {
    if (status)
      status = device.fill_zero(const_cast<void*>(place), static_cast<uint64_t>(bytes), stream);
  };
  for_each_weight(config, [&](const Weight& weight) {
    // What is added once is another rank's.
    const bool is_of_another = weight.is_present && stored.parts_of(weight).empty();
    const bool is_filled = weight.is_present && !(weight.is_vector() && weight.has_padding());
    if (weight.is_null() || (is_filled && !is_of_another)) return;
    visit_place(weight, weights,
                Overloaded{[&](const float* vector) { clear(vector, 4 * weight.num_elements()); },
                           [&](const auto& place) { clear(place.data, place.bytes()); }});
  });
  return status;
}

// For devices whose memory is the host's: one piece after another.
Status run_pieces_on_host(const std::vector<LoadPiece>& pieces, LoadProgress& progress,
                          std::vector<int32_t>* nan_rows) {
  std::vector<std::byte> memory;
  for (size_t i = 0; i < pieces.size(); ++i) {
    memory.resize(pieces[i].bytes);
    if (Status read = read_piece(pieces[i], memory.data()); !read) return read;
    const LoadPiece piece = point_piece(pieces[i], memory.data(), &(*nan_rows)[i]);
    std::visit(Overloaded{[&](const DirectCopy& direct) {
                            std::memcpy(direct.target, memory.data(), piece.bytes);
                          },
                          [](const auto& work) { repack_on_host(work); }},
               piece.work);
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
  if (Status cleared = clear_unfilled(config, stored, place.weights, device, *place.stream);
      !cleared)
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
