// The reference row of unembed: double precision.
#include "kernels/gemv/reference_product.h"
#include "kernels/norm/reference_norm.h"
#include "kernels/scratch.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

struct Parts {
  double* t;  // [rows, hidden]
  uint64_t bytes;
};

Parts lay_out(const UnembedParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<double>(int64_t{p.num_rows} * p.hidden);
  parts.bytes = scratch.bytes();
  return parts;
}

}  // namespace

const char* unembed_reference_refuses(const UnembedParams& p) {
  return is_reference_layout(p.weight) ? nullptr : "weights are not in the CPU's packed layout";
}

uint64_t unembed_reference_workspace(const UnembedParams& p) { return lay_out(p, nullptr).bytes; }

void unembed_reference(const UnembedParams& p) {
  const Parts parts = lay_out(p, p.launch.workspace);
  for (int32_t row = 0; row < p.num_rows; ++row) {
    reference_rms_norm(p.x + int64_t{p.row_idx[row]} * p.hidden, p.norm_weight, p.hidden, p.rms_eps,
                       parts.t + int64_t{row} * p.hidden);
  }
  reference_product(*p.launch.stream->pool, p.weight, parts.t, p.num_rows,
                    [&](int32_t row, int32_t id, double value) {
                      p.logits[int64_t{row} * p.weight.rows + id] = static_cast<float>(value);
                    });
}

}  // namespace moxie
