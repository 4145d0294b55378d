// tap by definition.
#include "kernels/tap/tap_rows.h"

namespace moxie {

void tap_reference(const TapParams& p) {
  for (int64_t i = 0; i < int64_t{p.num_tokens} * p.hidden; ++i) p.to[i] = p.x[i];
}

}  // namespace moxie
