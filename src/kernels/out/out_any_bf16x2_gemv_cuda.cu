// out on CUDA for a few tokens: product, bias and residual in one kernel, a block a tile of 16
// outputs. More tokens than a launch takes go in groups.
#include "kernels/gemv/slice_gemv.cuh"
#include "kernels/out/out_rows.h"

namespace moxie {
namespace {

struct OutStep {
  static constexpr bool kNorm = false;
  PackedMatrix weight;
  const float* x;  // the attention's output [tokens, cols]
  const float* norm_weight;
  float rms_eps;
  int32_t num_tokens, tiles_a_block;
  const float* bias;
  float2* residual;  // [tokens, rows]

  // The residual was last written by the experts of the layer before.
  struct Early {
    float2* out;  // of the upper row; the other one is 8 further on
    float2 top, bottom;
    float top_bias, bottom_bias;
    bool has_top, has_bottom;
  };
  __device__ Early early(int tile, int row, int token) const {
    const int32_t first = 16 * tile + row;
    Early e{.out = residual + static_cast<int64_t>(token) * weight.rows + first,
            .has_top = first < weight.rows,
            .has_bottom = first + 8 < weight.rows};
    if (e.has_top)
      e.top = fragment::load_early(e.out), e.top_bias = fragment::load_early(bias + first);
    if (e.has_bottom)
      e.bottom = fragment::load_early(e.out + 8),
      e.bottom_bias = fragment::load_early(bias + first + 8);
    return e;
  }
  __device__ void finish(float top, float bottom, const Early& e) const {
    if (e.has_top) e.out[0] = split_residual(whole(e.top) + (top + e.top_bias));
    if (e.has_bottom) e.out[8] = split_residual(whole(e.bottom) + (bottom + e.bottom_bias));
  }
};

}  // namespace

const char* out_any_bf16x2_gemv_cuda_refuses(const OutParams& p) {
  return fragment::refuses_matrix(p.weight);
}

void out_any_bf16x2_gemv_cuda(const OutParams& p) {
  const cudaStream_t stream = launch_stream(p.launch.stream);
  const int32_t group = fragment::slice_tokens(p.weight);
  for (int32_t first = 0; first < p.num_tokens; first += group) {
    const OutStep step{.weight = p.weight,
                       .x = p.a + static_cast<int64_t>(first) * p.weight.cols,
                       .norm_weight = nullptr,
                       .rms_eps = 0,
                       .num_tokens = std::min(group, p.num_tokens - first),
                       .tiles_a_block = 1,
                       .bias = p.bias,
                       .residual = reinterpret_cast<float2*>(p.x) +
                                   static_cast<int64_t>(first) * p.weight.rows};
    fragment::launch_slice_gemv("out_any_bf16x2_gemv_cuda", step, stream);
  }
}

}  // namespace moxie
