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

const char* unembed_any_f32_gemv_refuses(const UnembedParams& p) {
  return product_refuses(kLanesPortable, p.weight);
}

uint64_t unembed_any_f32_gemv_workspace(const UnembedParams& p) {
  return lay_out(p, kLanesPortable, nullptr).bytes;
}

double unembed_any_f32_gemv_portable_cost(const UnembedParams& p) {
  return cost(p, kLanesPortable);
}
void unembed_any_f32_gemv_portable(const UnembedParams& p) { run(p, kLanesPortable); }

#if defined(__x86_64__)
double unembed_any_f32_gemv_avx2_cost(const UnembedParams& p) { return cost(p, kLanesAvx2); }
void unembed_any_f32_gemv_avx2(const UnembedParams& p) { run(p, kLanesAvx2); }
double unembed_any_f32_gemv_avx512_cost(const UnembedParams& p) { return cost(p, kLanesAvx512); }
void unembed_any_f32_gemv_avx512(const UnembedParams& p) { run(p, kLanesAvx512); }

const char* unembed_mxfp4_i16_gemv_refuses(const UnembedParams& p) {
  return product_refuses(kLanesAvx512Vnni, p.weight);
}
uint64_t unembed_mxfp4_i16_gemv_workspace(const UnembedParams& p) {
  return lay_out(p, kLanesAvx512Vnni, nullptr).bytes;
}
double unembed_mxfp4_i16_gemv_avx512vnni_cost(const UnembedParams& p) {
  return cost(p, kLanesAvx512Vnni);
}
void unembed_mxfp4_i16_gemv_avx512vnni(const UnembedParams& p) { run(p, kLanesAvx512Vnni); }
#endif

const char* unembed_mxfp4_i16_gemv_neondot_refuses(const UnembedParams& p) {
  return product_refuses(kLanesNeonDot, p.weight);
}
uint64_t unembed_mxfp4_i16_gemv_neondot_workspace(const UnembedParams& p) {
  return lay_out(p, kLanesNeonDot, nullptr).bytes;
}
double unembed_mxfp4_i16_gemv_neondot_cost(const UnembedParams& p) {
  return cost(p, kLanesNeonDot);
}
void unembed_mxfp4_i16_gemv_neondot(const UnembedParams& p) { run(p, kLanesNeonDot); }

}  // namespace moxie
