// tap on the CPU: a copy, bound by memory.
#include <algorithm>

#include "core/threads.h"
#include "kernels/tap/tap_rows.h"

namespace moxie {

void tap_f32_copy_portable(const TapParams& p) {
  constexpr int64_t kTokensOfTask = 16;
  p.launch.stream->pool->share(p.num_tokens, kTokensOfTask, [&](int64_t begin, int64_t end) {
    std::copy(p.x + begin * p.hidden, p.x + end * p.hidden, p.to + begin * p.hidden);
  });
}

}  // namespace moxie
