// out with F32 activations: one pass over the tiles; the bias and the residual are added after each
// tile. One row for each set of LaneKernels.
#include "kernels/gemv/product.h"
#include "kernels/out/out_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  float* prepared;  // rows of `a` in the lanes' form
  uint64_t bytes;
};

Parts lay_out(const OutParams& p, const LaneKernels& lanes, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.prepared = scratch.take<float>(prepared_floats(lanes, p.num_tokens, p.weight.cols));
  parts.bytes = scratch.bytes();
  return parts;
}

Activations prepare(const OutParams& p, const LaneKernels& lanes, const Parts& parts) {
  return prepare_rows(*p.launch.stream->pool, lanes, p.a, p.weight.cols, p.num_tokens,
                      p.weight.cols, parts.prepared);
}

// Adds what product_of_tiles hands over.
void add_to_x(const OutParams& p, int32_t tile, int32_t token, int32_t num_tokens, const float* y) {
  const int32_t rows = p.weight.rows, num_lanes = std::min(16, rows - tile * 16);
  const float* bias = p.bias + tile * 16;
  for (int32_t i = 0; i < num_tokens; ++i) {
    float* x = p.x + int64_t{token + i} * rows + tile * 16;
    for (int32_t lane = 0; lane < num_lanes; ++lane) {
      const float before = p.overwrites ? 0 : x[lane];
      x[lane] = before + (y[i * 16 + lane] + bias[lane]);
    }
  }
}

}  // namespace

const char* gemv_refuses(const OutParams& p, const LaneKernels& lanes) {
  return product_refuses(lanes, p.weight);
}

uint64_t gemv_workspace(const OutParams& p, const LaneKernels& lanes) {
  return lay_out(p, lanes, nullptr).bytes;
}

void gemv_run(const OutParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  parallel_product(pool, lanes, p.weight, prepare(p, lanes, parts), p.num_tokens,
                   [&](int32_t tile, int32_t token, int32_t num_tokens, const float* y) {
                     add_to_x(p, tile, token, num_tokens, y);
                   });
}

double gemv_cost(const OutParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_tokens);
}

}  // namespace moxie
