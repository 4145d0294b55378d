// Through a small piece of host memory, so that peak memory holds one table, not two.
#include "model/rotary_table.h"

#include <algorithm>
#include <vector>

namespace moxie {

Result<Buffer> make_rotary_table(Device& device, Stream& stream, const YarnFrequencies& frequencies,
                                 int32_t num_positions) {
  constexpr int32_t kPiece = 1024;
  const uint64_t row_bytes = 4 * 2 * frequencies.inverse.size();
  auto table = device.allocate(static_cast<uint64_t>(num_positions) * row_bytes);
  if (!table) return table;
  std::vector<float> piece(kPiece * row_bytes / 4);
  for (int32_t first = 0; first < num_positions; first += kPiece) {
    const int32_t count = std::min(kPiece, num_positions - first);
    fill_rotary_table(frequencies, first, count, piece.data());
    auto status =
        device.copy_from_host(table->data() + static_cast<uint64_t>(first) * row_bytes,
                              piece.data(), static_cast<uint64_t>(count) * row_bytes, stream);
    if (status) status = stream.synchronize();
    if (!status) return fail(std::move(status.error()));
  }
  return table;
}

}  // namespace moxie
