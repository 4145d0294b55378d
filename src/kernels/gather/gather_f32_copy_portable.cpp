// gather on the CPU: a copy, bound by memory.
#include <algorithm>

#include "core/threads.h"
#include "kernels/gather/gather_rows.h"

namespace moxie {

void gather_f32_copy_portable(const GatherParams& p) {
  const RankArray mine{p.part, int64_t{p.num_rows} * p.part_width};
  const bool draws = p.link->rank() == 0;  // the others need nothing of it
  const auto parts = p.link->exchange(draws ? RankArray{} : mine);
  if (!draws || p.num_rows == 0) return;
  int64_t first = 0;  // of a row
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const RankArray part = rank == 0 ? mine : parts[rank];
    const int64_t width = part.count / p.num_rows;
    CHECK(first + width <= p.vocab);
    p.launch.stream->pool->share(p.num_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        std::copy_n(part.data + row * width, width, p.logits + row * p.vocab + first);
    });
    first += width;
  }
}

}  // namespace moxie
