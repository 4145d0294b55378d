// qkv on CUDA for a few tokens: norm, product, bias, rotary and the append to the cache in one
// kernel. A block makes 8 pairs of outputs that rotary rotates together (fragment_qkv_row). The
// norm's factor is the same for a whole token and is applied to the sums; its weights are applied
// in F32 before the activations are split. More tokens than one launch takes are cut into groups.
// Two rows: blocks that have all columns of a tile, and clusters whose blocks share them.
#include "core/fragment.h"
#include "kernels/gemv/split_gemv.cuh"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/rotate/store_cached.cuh"

namespace moxie {
namespace {

struct QkvStep {
  static constexpr bool kNorm = true, kMore = false;
  struct MoreEarly {};
  PackedMatrix weight;
  const float2* x;           // [tokens, hidden]
  const float* norm_weight;  // [hidden]
  float rms_eps;
  int32_t num_tokens, tiles_a_block;
  const float* bias;  // natural order
  const float* rotary;
  const int32_t* positions;  // [tokens]
  const int32_t* seq_idx;    // [tokens]
  KvLayer kv;
  float* q;  // [tokens, heads, head_dim]
  int32_t num_heads, num_kv_heads, head_dim;

  // Positions, and the pages of the tokens, were written before the model's first kernel.
  struct Early {
    std::byte* top_out;     // of packed row `16 tile + row`
    std::byte* bottom_out;  // of row + 8: half a head further on
    float top_bias, bottom_bias, cosine, sine;
    DType dtype;
  };
  __device__ Early early(int tile, int row, int token) const {
    const uint32_t tiles_a_head = head_dim / 16, half = head_dim / 2;
    const uint32_t head = static_cast<uint32_t>(tile) / tiles_a_head;
    const uint32_t dim = (tile - head * tiles_a_head) * 8 + row;
    const uint32_t num_turned = num_heads + num_kv_heads;
    Early e{.cosine = 1, .sine = 0, .dtype = DType::kF32};
    e.top_bias = fragment::load_early(bias + head * head_dim + dim);
    e.bottom_bias = fragment::load_early(bias + head * head_dim + half + dim);
    const int32_t position = positions[token];
    if (head < num_turned) {
      const float* turn = rotary + static_cast<int64_t>(position) * head_dim;
      e.cosine = fragment::load_early(turn + dim);
      e.sine = fragment::load_early(turn + half + dim);
    }
    if (head < static_cast<uint32_t>(num_heads)) {
      e.top_out = reinterpret_cast<std::byte*>(
          q + (static_cast<int64_t>(token) * num_heads + head) * head_dim + dim);
      e.bottom_out = e.top_out + 4 * half;
      return e;
    }
    const bool is_k = head < num_turned;
    const int32_t kv_head = head - (is_k ? num_heads : num_turned);
    const int32_t logical = position / kv.page_tokens;
    const int32_t page =
        kv.page_table[static_cast<int64_t>(seq_idx[token]) * kv.table_stride + logical];
    const int32_t element = kv.dtype == DType::kF32 ? 4 : kv.dtype == DType::kBF16 ? 2 : 1;
    const int64_t in_page =
        static_cast<int64_t>(kv_head) * kv.page_tokens + position - logical * kv.page_tokens;
    e.top_out =
        (is_k ? kv.k : kv.v) + page * kv.page_stride_bytes + (in_page * head_dim + dim) * element;
    e.bottom_out = e.top_out + half * element;
    e.dtype = kv.dtype;
    return e;
  }
  __device__ void finish(float top, float bottom, const Early& e) const {
    top += e.top_bias;
    bottom += e.bottom_bias;
    store_cached(e.top_out, e.dtype, top * e.cosine - bottom * e.sine);
    store_cached(e.bottom_out, e.dtype, bottom * e.cosine + top * e.sine);
  }
};

// For one token: x is whole only with the parts of other ranks.
template <int kMost>
struct FoldedQkvStep : QkvStep {
  static constexpr int kMostRanks = kMost;
  mail::Fold fold;
};

// Calls launch(step) for each group of tokens.
template <typename Launch>
void for_each_group(const QkvParams& p, int32_t group, Launch&& launch) {
  for (int32_t first = 0; first < p.batch.num_tokens; first += group) {
    const QkvStep step{
        .weight = p.weight,
        .x = reinterpret_cast<const float2*>(p.x) + static_cast<int64_t>(first) * p.hidden,
        .norm_weight = p.norm_weight,
        .rms_eps = p.rms_eps,
        .num_tokens = std::min(group, p.batch.num_tokens - first),
        .tiles_a_block = 1,
        .bias = p.bias,
        .rotary = p.rotary.table,
        .positions = p.batch.positions + first,
        .seq_idx = p.batch.seq_idx + first,
        .kv = p.kv,
        .q = p.q + static_cast<int64_t>(first) * p.num_heads * p.head_dim,
        .num_heads = p.num_heads,
        .num_kv_heads = p.num_kv_heads,
        .head_dim = p.head_dim,
    };
    launch(step);
  }
}

}  // namespace

const char* qkv_any_bf16x2_gemv_cuda_refuses(const QkvParams& p) {
  if (p.head_dim % 16 != 0) return "head_dim is not a multiple of 16";
  return fragment::refuses_matrix(p.weight);
}

void qkv_any_bf16x2_gemv_cuda(const QkvParams& p) {
  for_each_group(p, fragment::slice_tokens(p.weight, p.launch), [&](const QkvStep& step) {
    fragment::launch_slice_gemv("qkv_any_bf16x2_gemv_cuda", step, p.launch);
  });
}

const char* qkv_mxfp4_bf16x2_split_cuda_refuses(const QkvParams& p) {
  const char* why = qkv_any_bf16x2_gemv_cuda_refuses(p);
  return why != nullptr ? why : fragment::refuses_split(p.weight);
}

const char* reduce_qkv_mxfp4_bf16x2_split_cuda_refuses(const QkvParams& p) {
  if (const char* why = mail::refuses_fold(p.reduce, p.batch.num_tokens, p.hidden)) return why;
  if (p.hidden != fragment::kColumnsOf5) return "not MXFP4 of 2880 columns";
  return qkv_mxfp4_bf16x2_split_cuda_refuses(p);
}

void reduce_qkv_mxfp4_bf16x2_split_cuda(const QkvParams& p) {
  mail::Fold fold = mail::fold_of(p.reduce, p.hidden);
  fold.pairs = reinterpret_cast<const float2*>(p.x);
  fold.x_singles = p.reduce.x;
  mail::with_most_ranks_of_fold(p.reduce, [&]<int kMost>() {
    for_each_group(p, 1, [&](const QkvStep& step) {
      fragment::launch_split<9, 5, 1>("reduce_qkv_mxfp4_bf16x2_split_cuda",
                                      FoldedQkvStep<kMost>{step, fold}, p.launch);
    });
  });
}

void qkv_mxfp4_bf16x2_split_cuda(const QkvParams& p) {
  for_each_group(p, fragment::kMaxSplitTokens, [&](const QkvStep& step) {
    fragment::launch_split_gemv("qkv_mxfp4_bf16x2_split_cuda", step, p.launch);
  });
}

}  // namespace moxie
