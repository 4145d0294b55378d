// The reference row of out: double precision.
#include "kernels/gemv/reference_product.h"
#include "kernels/out/out_rows.h"

namespace moxie {

const char* out_reference_refuses(const OutParams& p) {
  return is_reference_layout(p.weight) ? nullptr : "weights are not in the CPU's packed layout";
}

void out_reference(const OutParams& p) {
  reference_product(*p.launch.stream->pool, p.weight, p.a, p.num_tokens,
                    [&](int32_t token, int32_t row, double value) {
                      float& x = p.x[int64_t{token} * p.weight.rows + row];
                      x = static_cast<float>((p.overwrites ? 0 : x) + (value + p.bias[row]));
                    });
}

}  // namespace moxie
