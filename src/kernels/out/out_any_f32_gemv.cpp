// out with F32 activations: one pass over the tiles, the bias and the residual added as each is
// done. One row for each set of LaneKernels.
#include "kernels/gemv/product.h"
#include "kernels/out/out_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  float* prepared;  // rows of `a` as the lanes want them
  uint64_t bytes;
};

Parts lay_out(const OutParams& p, const LaneKernels& lanes, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.prepared = scratch.take<float>(prepared_floats(lanes, p.num_tokens, p.weight.cols));
  parts.bytes = scratch.bytes();
  return parts;
}

void run(const OutParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t rows = p.weight.rows;
  const Activations a =
      prepare_rows(pool, lanes, p.a, p.weight.cols, p.num_tokens, p.weight.cols, parts.prepared);
  parallel_product(pool, lanes, p.weight, a, p.num_tokens,
                   [&](int32_t tile, int32_t token, int32_t num_tokens, const float* y) {
                     const int32_t num_lanes = std::min(16, rows - tile * 16);
                     const float* bias = p.bias + tile * 16;
                     for (int32_t i = 0; i < num_tokens; ++i) {
                       float* x = p.x + int64_t{token + i} * rows + tile * 16;
                       for (int32_t lane = 0; lane < num_lanes; ++lane) {
                         x[lane] += y[i * 16 + lane] + bias[lane];
                       }
                     }
                   });
}

double cost(const OutParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_tokens);
}

}  // namespace

const char* out_any_f32_gemv_refuses(const OutParams& p) {
  return product_refuses(kLanesPortable, p.weight);
}

uint64_t out_any_f32_gemv_workspace(const OutParams&) { return 0; }

double out_any_f32_gemv_portable_cost(const OutParams& p) { return cost(p, kLanesPortable); }
void out_any_f32_gemv_portable(const OutParams& p) { run(p, kLanesPortable); }

#if defined(__x86_64__)
double out_any_f32_gemv_avx2_cost(const OutParams& p) { return cost(p, kLanesAvx2); }
void out_any_f32_gemv_avx2(const OutParams& p) { run(p, kLanesAvx2); }
double out_any_f32_gemv_avx512_cost(const OutParams& p) { return cost(p, kLanesAvx512); }
void out_any_f32_gemv_avx512(const OutParams& p) { run(p, kLanesAvx512); }

const char* out_mxfp4_i16_gemv_refuses(const OutParams& p) {
  return product_refuses(kLanesAvx512Vnni, p.weight);
}
uint64_t out_mxfp4_i16_gemv_workspace(const OutParams& p) {
  return lay_out(p, kLanesAvx512Vnni, nullptr).bytes;
}
double out_mxfp4_i16_gemv_avx512vnni_cost(const OutParams& p) { return cost(p, kLanesAvx512Vnni); }
void out_mxfp4_i16_gemv_avx512vnni(const OutParams& p) { run(p, kLanesAvx512Vnni); }
#endif

const char* out_mxfp4_i16_gemv_neondot_refuses(const OutParams& p) {
  return product_refuses(kLanesNeonDot, p.weight);
}
uint64_t out_mxfp4_i16_gemv_neondot_workspace(const OutParams& p) {
  return lay_out(p, kLanesNeonDot, nullptr).bytes;
}
double out_mxfp4_i16_gemv_neondot_cost(const OutParams& p) { return cost(p, kLanesNeonDot); }
void out_mxfp4_i16_gemv_neondot(const OutParams& p) { run(p, kLanesNeonDot); }

}  // namespace moxie
