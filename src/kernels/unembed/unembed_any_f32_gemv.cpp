// unembed with F32 activations: gather and norm the rows asked for, then the head. One row for each
// set of LaneKernels.
#include <cstring>

#include "kernels/gemv/product.h"
#include "kernels/scratch.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

struct Parts {
  float* t;         // [rows, hidden], normed
  float* prepared;  // rows of t as the lanes want them
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

void run(const UnembedParams& p, const LaneKernels& lanes) {
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

double cost(const UnembedParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_rows);
}

}  // namespace

template <const LaneKernels& kLanes>
const char* UnembedGemv<kLanes>::refuses(const UnembedParams& p) {
  return product_refuses(kLanes, p.weight);
}
template <const LaneKernels& kLanes>
double UnembedGemv<kLanes>::cost(const UnembedParams& p) {
  return moxie::cost(p, kLanes);
}
template <const LaneKernels& kLanes>
uint64_t UnembedGemv<kLanes>::workspace(const UnembedParams& p) {
  return lay_out(p, kLanes, nullptr).bytes;
}
template <const LaneKernels& kLanes>
void UnembedGemv<kLanes>::run(const UnembedParams& p) {
  moxie::run(p, kLanes);
}

template struct UnembedGemv<kLanesPortable>;
#if defined(__x86_64__)
template struct UnembedGemv<kLanesAvx2>;
template struct UnembedGemv<kLanesAvx512>;
template struct UnembedGemv<kLanesAvx2I16>;
template struct UnembedGemv<kLanesAvxVnniI16>;
template struct UnembedGemv<kLanesAvx512VnniI16>;
template struct UnembedGemv<kLanesAvx2I8>;
template struct UnembedGemv<kLanesAvxVnniI8>;
template struct UnembedGemv<kLanesAvx512VnniI8>;
#endif
template struct UnembedGemv<kLanesNeonDotI16>;
template struct UnembedGemv<kLanesNeonDotI8>;

}  // namespace moxie
