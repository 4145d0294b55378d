// out on CUDA for a few tokens: product, bias and residual in one kernel, a block a tile of 16
// outputs. More tokens than one launch takes are cut into groups. Two rows: blocks that have all
// columns of a tile, and clusters whose blocks share them.
#include "kernels/gemv/split_gemv.cuh"
#include "kernels/out/out_rows.h"
#include "kernels/route/route_choose.cuh"

namespace moxie {
namespace {

// kIsPart: of several ranks (ReduceForm::kFolded). The router's products are of this rank's part
// of x, on the first rank also of x before it; the rest of the route step needs the whole x.
template <bool kFolds, bool kIsPart = false>
struct OutStep {
  static constexpr bool kNorm = false, kMore = kFolds;
  PackedMatrix weight;
  const float* x;  // the attention's output [tokens, cols]
  const float* norm_weight;
  float rms_eps;
  int32_t num_tokens, tiles_a_block;
  const float* bias;
  float2* residual;  // [tokens, rows]
  // Of the route step, if it is folded in.
  const float* route_norm;  // [rows]
  PackedMatrix router;      // BF16
  float2* logits;           // [tokens, words_of_token]
  int32_t words_of_token;
  float* squares;    // [tokens, tiles]
  std::byte* parts;  // [tokens, rows], of 4 bytes
  float parts_scale;
  const float* folded_x;  // [rows], or null

  // The residual was last written by the experts of the layer before.
  struct Early {
    float2* out;  // of the upper row; the lower row is 8 further on
    float2 top, bottom;
    float top_bias, bottom_bias, top_norm, bottom_norm;
    float top_x, bottom_x;  // kIsPart: what the router's products are of besides
    bool has_top, has_bottom;
  };
  __device__ Early early(int tile, int row, int token) const {
    const int32_t first = 16 * tile + row;
    Early e{.out = residual + static_cast<int64_t>(token) * weight.rows + first,
            .top = {},
            .bottom = {},
            .top_bias = 0,
            .bottom_bias = 0,
            .top_norm = 0,
            .bottom_norm = 0,
            .top_x = 0,
            .bottom_x = 0,
            .has_top = first < weight.rows,
            .has_bottom = first + 8 < weight.rows};
    const auto load = [&](int32_t i, float2& x_of, float& bias_of, float& norm_of) {
      x_of = fragment::load_early(e.out + i - first);
      bias_of = fragment::load_early(bias + i);
      if constexpr (kFolds) norm_of = fragment::load_early(route_norm + i);
    };
    if (e.has_top) load(first, e.top, e.top_bias, e.top_norm);
    if (e.has_bottom) load(first + 8, e.bottom, e.bottom_bias, e.bottom_norm);
    if constexpr (kIsPart) {
      if (folded_x != nullptr) {
        e.top_x = fragment::load_early(folded_x + first);
        e.bottom_x = fragment::load_early(folded_x + first + 8);
      }
    }
    return e;
  }
  __device__ void finish(float top, float bottom, const Early& e) const {
    if (e.has_top) e.out[0] = split_residual(whole(e.top) + (top + e.top_bias));
    if (e.has_bottom) e.out[8] = split_residual(whole(e.bottom) + (bottom + e.bottom_bias));
  }

  struct __align__(16) Made {
    float x[fragment::kMaxTilesABlock * fragment::kMaxTokens * 16];       // [tile][token][16]
    float scaled[fragment::kMaxTilesABlock * fragment::kMaxTokens * 16];  // by the norm's weights
  };
  /// hidden is a multiple of 16 here.
  __device__ void finish(float top, float bottom, const Early& e, Made& made, int at) const {
    top = whole(e.top) + (top + e.top_bias), bottom = whole(e.bottom) + (bottom + e.bottom_bias);
    e.out[0] = split_residual(top), e.out[8] = split_residual(bottom);
    if constexpr (kIsPart) top += e.top_x, bottom += e.bottom_x;
    made.scaled[at] = top * e.top_norm, made.scaled[at + 8] = bottom * e.bottom_norm;
    if constexpr (!kIsPart) made.x[at] = top, made.x[at + 8] = bottom;
  }

  struct MoreEarly {
    uint4 weights[2];
  };
  /// 16 neighbouring BF16 of a router's row.
  __device__ void load_router(int expert, int tile, uint4 (&weights)[2]) const {
    const int unit = tile / 4, block = tile % 4 / 2, q = tile % 2 * 2;
    const int i = 2 * block + expert % 16 / 8, lane = expert % 8 * 4 + q;
    const std::byte* at = router.data + (int64_t{expert / 16} * (router.cols / 64) + unit) * 2048 +
                          512 * i + 16 * lane;
    load_constant_32(at, weights);
  }
  __device__ MoreEarly more_early(int first_tile) const {
    MoreEarly e{};
    if (threadIdx.x < router.rows) load_router(threadIdx.x, first_tile, e.weights);
    return e;
  }
  /// The tiles' share of the router's products, and what is left for the experts.
  template <int kTokens>
  __device__ void more(const Made& made, int first_tile, int num_tiles, int tokens,
                       const MoreEarly& e) const {
    if constexpr (!kIsPart) leave_activations(made, first_tile, num_tiles, tokens);
    for (int expert = threadIdx.x; expert < router.rows; expert += blockDim.x) {
      float sums[kTokens] = {};
      for (int tile = 0; tile < num_tiles; ++tile) {
        uint4 packed[2] = {e.weights[0], e.weights[1]};
        if (tile > 0 || expert != static_cast<int>(threadIdx.x))
          load_router(expert, first_tile + tile, packed);
        const auto* pairs = reinterpret_cast<const uint32_t*>(packed);
        float weights[16];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          weights[2 * k] = __uint_as_float(pairs[k] << 16);
          weights[2 * k + 1] = __uint_as_float(pairs[k] & 0xFFFF0000u);
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          if (t >= tokens) break;
          const float* scaled = made.scaled + (tile * tokens + t) * 16;
#pragma unroll
          for (int k = 0; k < 16; ++k) sums[t] += weights[k] * scaled[k];
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (t >= tokens) break;
        add_to_residual(logits + int64_t{t} * words_of_token + expert, sums[t]);
      }
    }
  }
  /// The experts' activations, and the sums of their squares.
  __device__ void leave_activations(const Made& made, int first_tile, int num_tiles,
                                    int tokens) const {
    for (int i = threadIdx.x; i < num_tiles * tokens; i += blockDim.x) {
      const int tile = i / tokens, token = i - tile * tokens;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 16; ++k) sum += made.x[16 * i + k] * made.x[16 * i + k];
      squares[int64_t{token} * (weight.rows / 16) + first_tile + tile] = sum;
    }
    // The last threads do this, since the first ones have the router's rows.
    for (int i = blockDim.x - 1 - threadIdx.x; i < 2 * num_tiles * tokens; i += blockDim.x) {
      const int of = i / 2, tile = of / tokens, token = of - tile * tokens;
      const int segment = 2 * (first_tile + tile) + i % 2;
      float values[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] = made.scaled[8 * i + k] * parts_scale;
      uint4 high, low;
      fragment::split_parts(values, high, low);
      std::byte* to = parts + int64_t{token} * weight.rows * 4 +
                      segment / 4 * fragment::kBlockBytes<1> + 16 * (segment % 4);
      *reinterpret_cast<uint4*>(to) = high;
      *reinterpret_cast<uint4*>(to + 64) = low;
    }
  }
};

// x = W a + b.
struct ProductStep {
  static constexpr bool kNorm = false, kMore = false;
  struct MoreEarly {};
  PackedMatrix weight;
  const float* x;  // [tokens, cols]
  const float* norm_weight;
  float rms_eps;
  int32_t num_tokens, tiles_a_block;
  const float* bias;
  float* y;  // [tokens, rows]

  struct Early {
    float* out;  // of the upper row; the lower row is 8 further on
    float top_bias, bottom_bias;
    bool has_top, has_bottom;
  };
  __device__ Early early(int tile, int row, int token) const {
    const int32_t first = 16 * tile + row;
    Early e{.out = y + static_cast<int64_t>(token) * weight.rows + first,
            .top_bias = 0,
            .bottom_bias = 0,
            .has_top = first < weight.rows,
            .has_bottom = first + 8 < weight.rows};
    if (e.has_top) e.top_bias = fragment::load_early(bias + first);
    if (e.has_bottom) e.bottom_bias = fragment::load_early(bias + first + 8);
    return e;
  }
  __device__ void finish(float top, float bottom, const Early& e) const {
    if (e.has_top) e.out[0] = top + e.top_bias;
    if (e.has_bottom) e.out[8] = bottom + e.bottom_bias;
  }
};

// Calls launch(step) for each group of tokens.
template <typename Launch>
void for_each_product(const OutParams& p, int32_t group, Launch&& launch) {
  for (int32_t first = 0; first < p.num_tokens; first += group)
    launch(ProductStep{.weight = p.weight,
                       .x = p.a + int64_t{first} * p.weight.cols,
                       .norm_weight = nullptr,
                       .rms_eps = 0,
                       .num_tokens = std::min(group, p.num_tokens - first),
                       .tiles_a_block = 1,
                       .bias = p.bias,
                       .y = p.x + int64_t{first} * p.weight.rows});
}
template <bool kFolds, bool kIsPart, typename Launch>
void for_each_group(const OutParams& p, int32_t group, Launch&& launch) {
  for (int32_t first = 0; first < p.num_tokens; first += group) {
    const int64_t row = int64_t{first} * p.weight.rows;
    OutStep<kFolds, kIsPart> step{.weight = p.weight,
                                  .x = p.a + int64_t{first} * p.weight.cols,
                                  .norm_weight = nullptr,
                                  .rms_eps = 0,
                                  .num_tokens = std::min(group, p.num_tokens - first),
                                  .tiles_a_block = 1,
                                  .bias = p.bias,
                                  .residual = reinterpret_cast<float2*>(p.x) + row,
                                  .route_norm = p.fold.norm_weight,
                                  .router = p.fold.weight,
                                  .logits = nullptr,
                                  .words_of_token = 0,
                                  .squares = nullptr,
                                  .parts = nullptr,
                                  .parts_scale = 1,
                                  .folded_x = p.folded_x};
    if constexpr (kFolds) {
      step.logits =
          reinterpret_cast<float2*>(p.fold.sums) + int64_t{first} * p.fold.words_of_token();
      step.words_of_token = p.fold.words_of_token();
      step.squares = p.fold.squares + row / 16;
      step.parts = p.fold.parts + 4 * row;
      fragment::dispatch_format(p.fold.experts_format, [&]<DType F>() {
        step.parts_scale = fragment::kActivationScale<F>;
      });
    }
    launch(step);
  }
}
template <typename Launch>
void for_each_group(const OutParams& p, int32_t group, Launch&& launch) {
  if (p.overwrites) return for_each_product(p, group, launch);
  if (p.forms.router == RouterForm::kSums) return for_each_group<true, false>(p, group, launch);
  for_each_group<false, false>(p, group, launch);
}

}  // namespace

const char* out_any_bf16x2_gemv_cuda_refuses(const OutParams& p) {
  if (p.overwrites != (p.forms.x == XForm::kF32))
    return "x of one float a value is overwritten, and no other";
  if (p.forms.router == RouterForm::kSums) {
    if (p.fold.weight.format != DType::kBF16) return "the router is not BF16";
    if (p.fold.weight.rows > kMaxExperts) return "more than 256 experts";
    if (const char* why = fragment::refuses_matrix(p.fold.weight)) return why;
  }
  return fragment::refuses_matrix(p.weight);
}

void out_any_bf16x2_gemv_cuda(const OutParams& p) {
  for_each_group(p, fragment::slice_tokens(p.weight, p.launch), [&](const auto& step) {
    fragment::launch_slice_gemv("out_any_bf16x2_gemv_cuda", step, p.launch);
  });
}

const char* out_mxfp4_bf16x2_split_cuda_refuses(const OutParams& p) {
  const char* why = out_any_bf16x2_gemv_cuda_refuses(p);
  if (why == nullptr && p.forms.reduce == ReduceForm::kFolded) {
    if (p.num_tokens != 1 || p.forms.router != RouterForm::kSums) return "more than one token";
    return fragment::refuses_split_part(p.weight);
  }
  return why != nullptr ? why
                        : fragment::refuses_split(p.weight, p.forms.router != RouterForm::kSums);
}

void out_mxfp4_bf16x2_split_cuda(const OutParams& p) {
  if (p.forms.reduce == ReduceForm::kFolded) {
    return for_each_group<true, true>(p, 1, [&](const OutStep<true, true>& step) {
      fragment::launch_split_part("out_mxfp4_bf16x2_split_cuda", step, p.launch);
    });
  }
  for_each_group(p, fragment::kMaxSplitTokens, [&](const auto& step) {
    fragment::launch_split_gemv("out_mxfp4_bf16x2_split_cuda", step, p.launch);
  });
}

}  // namespace moxie
