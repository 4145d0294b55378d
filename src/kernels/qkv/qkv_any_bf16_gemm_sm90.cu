// qkv on Hopper for many tokens: the norm stages its output in BF16, then one product
// (gemm/product_sm90.cuh) that ends in bias, rotary and the append to the cache.
#include "core/formats.h"
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/qkv/qkv_rows.h"

namespace moxie {
// Not in a namespace without a name: other architectures leave these functions unused.
namespace gemm {

struct TurnAndAppend {
  const float* bias;  // natural order
  const float* rotary;
  const int32_t* positions;  // [tokens]
  const int32_t* seq_idx;    // [tokens]
  KvLayer kv;
  float* q;  // [tokens, heads, head_dim]
  int32_t num_heads, num_kv_heads, head_dim;

  /// Two neighbouring dimensions of a row.
  __device__ __forceinline__ static void store_pair(float* row, int dim, float2 pair) {
    *reinterpret_cast<float2*>(row + dim) = pair;
  }
  __device__ __forceinline__ void store_to_cache(std::byte* row, int dim, float2 pair) const {
    if (kv.dtype == DType::kF32) {
      store_pair(reinterpret_cast<float*>(row), dim, pair);
    } else if (kv.dtype == DType::kBF16) {
      reinterpret_cast<uint32_t*>(row)[dim / 2] = pack_bf16(pair.x, pair.y);
    } else {
      reinterpret_cast<uint16_t*>(row)[dim / 2] =
          static_cast<uint16_t>(f32_to_e4m3(pair.x) | f32_to_e4m3(pair.y) << 8);
    }
  }
  /// A token's row of a K or V head in the cache.
  __device__ __forceinline__ std::byte* cache_row(std::byte* of, int kv_head, int position,
                                                  int token) const {
    const int32_t logical = position / kv.page_tokens;
    const int64_t entry = static_cast<int64_t>(__ldg(seq_idx + token)) * kv.table_stride + logical;
    const int32_t element = kv.dtype == DType::kF32 ? 4 : kv.dtype == DType::kBF16 ? 2 : 1;
    const int64_t in_page =
        static_cast<int64_t>(kv_head) * kv.page_tokens + position - logical * kv.page_tokens;
    return of + __ldg(kv.page_table + entry) * kv.page_stride_bytes + in_page * head_dim * element;
  }
  template <typename Cut>
  __device__ __forceinline__ void store(const SumsTile& sums, int tile, int /*rows*/,
                                        int first_column, int num_columns) const {
    const int tiles_a_head = head_dim / 16, half = head_dim / 2;
    const int head = tile / tiles_a_head;
    const bool is_q = head < num_heads, is_k = !is_q && head < num_heads + num_kv_heads;
    // Four lanes a column, of two dimensions each in both halves of the head.
    const int lane = threadIdx.x % 32, in_tile = lane % 4 * 2;
    const int dim = (tile - head * tiles_a_head) * 8 + in_tile;
    const float* head_bias = bias + head * head_dim + dim;
    const float2 top_bias = *reinterpret_cast<const float2*>(head_bias);
    const float2 bottom_bias = *reinterpret_cast<const float2*>(head_bias + half);
    // What several columns need is read before the first of them is stored, and all positions
    // before what lies behind them: no load passes a store whose place the compiler does not know.
    constexpr int kBatch = 4;  // as registers allow
#pragma unroll 1
    for (int first = lane / 4; first < num_columns; first += 8 * kBatch) {
      int token[kBatch], position[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        // Past the end: the last column once more.
        token[c] = first_column + min(first + 8 * c, num_columns - 1);
        position[c] = __ldg(positions + token[c]);
      }
      float2 cosines[kBatch], sines[kBatch];
      std::byte* places[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const float* turn = rotary + static_cast<int64_t>(position[c]) * head_dim + dim;
        cosines[c] = __ldg(reinterpret_cast<const float2*>(turn));
        sines[c] = __ldg(reinterpret_cast<const float2*>(turn + half));
        if (is_q) {
          places[c] = reinterpret_cast<std::byte*>(
              q + (static_cast<int64_t>(token[c]) * num_heads + head) * head_dim);
        } else {
          places[c] = is_k
                          ? cache_row(kv.k, head - num_heads, position[c], token[c])
                          : cache_row(kv.v, head - num_heads - num_kv_heads, position[c], token[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 8 * c;
        if (column >= num_columns) continue;
        float2 top = make_float2(sums.at(column, in_tile) + top_bias.x,
                                 sums.at(column, in_tile + 1) + top_bias.y);
        float2 bottom = make_float2(sums.at(column, in_tile + 8) + bottom_bias.x,
                                    sums.at(column, in_tile + 9) + bottom_bias.y);
        if (is_q || is_k) {
          const float2 before = top;
          top.x = before.x * cosines[c].x - bottom.x * sines[c].x;
          top.y = before.y * cosines[c].y - bottom.y * sines[c].y;
          bottom.x = bottom.x * cosines[c].x + before.x * sines[c].x;
          bottom.y = bottom.y * cosines[c].y + before.y * sines[c].y;
        }
        if (is_q) {
          store_pair(reinterpret_cast<float*>(places[c]), dim, top);
          store_pair(reinterpret_cast<float*>(places[c]), half + dim, bottom);
        } else {
          store_to_cache(places[c], dim, top);
          store_to_cache(places[c], half + dim, bottom);
        }
      }
    }
  }
};

}  // namespace gemm

using namespace gemm;

const char* qkv_any_bf16_gemm_sm90_refuses(const QkvParams& p) {
  if (p.head_dim % 16 != 0) return "head_dim is not a multiple of 16";
  return refuses_product(p.weight);
}

uint64_t qkv_any_bf16_gemm_sm90_workspace(const QkvParams& p) {
  return staged_bytes(p.batch.num_tokens, p.weight.cols);
}

void qkv_any_bf16_gemm_sm90(const QkvParams& p) {
  const int32_t tokens = p.batch.num_tokens;
  if (tokens == 0) return;
  const StagedView staged = dense_columns(p.weight, tokens, p.launch);
  stage_normed({.num_rows = tokens,
                .rms_eps = p.rms_eps,
                .x = p.x,
                .x_is_single = p.x_is_single,
                .norm_weight = p.norm_weight,
                .to = staged},
               p.launch.stream);
  const TurnAndAppend end{.bias = p.bias,
                          .rotary = p.rotary.table,
                          .positions = p.batch.positions,
                          .seq_idx = p.batch.seq_idx,
                          .kv = p.kv,
                          .q = p.q,
                          .num_heads = p.num_heads,
                          .num_kv_heads = p.num_kv_heads,
                          .head_dim = p.head_dim};
  multiply_dense("qkv_any_bf16_gemm_sm90", p.weight, staged, tokens, end, p.launch);
}

}  // namespace moxie
