// reduce on the CPU: every rank reads all parts. Of a thousand values in the caches of other cores,
// which is less than handing out and gathering sums would take.
#include <algorithm>

#include "core/threads.h"
#include "kernels/reduce/reduce_rows.h"

namespace moxie {

void reduce_f32_one_shot_portable(const ReduceParams& p) {
  constexpr int64_t kValuesOfTask = 16384;
  const int64_t count = int64_t{p.num_tokens} * p.hidden;
  const auto parts = p.link->exchange({p.part, count});
  const auto add = [&](int64_t begin, int64_t end) {
    std::fill(p.next_part + begin, p.next_part + end, 0.0f);
    if (parts.empty()) return;
    for (int64_t i = begin; i < end; ++i) {
      float sum = parts[0].data[i];
      for (size_t rank = 1; rank < parts.size(); ++rank) sum += parts[rank].data[i];
      p.x[i] += sum;
    }
  };
  if (count <= kValuesOfTask) return add(0, count);
  p.launch.stream->pool->share(count, kValuesOfTask, add);
}

}  // namespace moxie
