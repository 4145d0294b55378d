// unembed with F32 activations: gathers and norms the requested rows, then multiplies by the head.
// One row for each set of LaneKernels.
#include <cstring>

#include "kernels/gemv/product.h"
#include "kernels/scratch.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

struct Parts {
  float* t;         // [rows, hidden], normed
  float* prepared;  // rows of t in the lanes' form
  uint64_t bytes;
};

Parts lay_out(const UnembedParams& p, const LaneKernels& lanes, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<float>(int64_t{p.num_rows} * p.hidden);
  parts.prepared = scratch.take<float>(prepared_floats(lanes, p.num_rows, p.hidden));
  parts.bytes = scratch.bytes();
  return parts;
}

}  // namespace

const char* gemv_refuses(const UnembedParams& p, const LaneKernels& lanes) {
  return product_refuses(lanes, p.weight);
}

uint64_t gemv_workspace(const UnembedParams& p, const LaneKernels& lanes) {
  return lay_out(p, lanes, nullptr).bytes;
}

void gemv_run(const UnembedParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t vocab = p.weight.rows;
  parallel_rms_norm(
      pool, lanes, [&](int32_t i) { return p.x + int64_t{p.row_idx[i]} * p.hidden; }, p.num_rows,
      p.hidden, p.norm_weight, p.rms_eps, parts.t);
  const Activations t =
      prepare_rows(pool, lanes, parts.t, p.hidden, p.num_rows, p.hidden, parts.prepared);
  parallel_product(pool, lanes, p.weight, t, p.num_rows,
                   [&](int32_t tile, int32_t row, int32_t num_rows, const float* y) {
                     const int32_t num_lanes = std::min(16, vocab - tile * 16);
                     for (int32_t i = 0; i < num_rows; ++i) {
                       std::memcpy(p.logits + int64_t{row + i} * vocab + tile * 16, y + i * 16,
                                   static_cast<size_t>(num_lanes) * 4);
                     }
                   });
}

double gemv_cost(const UnembedParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_rows);
}

}  // namespace moxie
