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

  template <typename T>
  __device__ __forceinline__ static void store(std::byte* row, int dim, int half, float top,
                                               float bottom) {
    reinterpret_cast<T*>(row)[dim] = static_cast<T>(top);
    reinterpret_cast<T*>(row)[half + dim] = static_cast<T>(bottom);
  }
  __device__ __forceinline__ void store_to_cache(std::byte* row, int dim, float top,
                                                 float bottom) const {
    const int half = head_dim / 2;
    if (kv.dtype == DType::kF32) return store<float>(row, dim, half, top, bottom);
    if (kv.dtype == DType::kBF16) return store<__nv_bfloat16>(row, dim, half, top, bottom);
    reinterpret_cast<uint8_t*>(row)[dim] = f32_to_e4m3(top);
    reinterpret_cast<uint8_t*>(row)[half + dim] = f32_to_e4m3(bottom);
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
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile, int rows, float scale,
                                         const Sums<Cut, kColumns>& sums) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q_lane = lane % 4;
    const int tiles_a_head = head_dim / 16, half = head_dim / 2;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int this_tile = tile + 4 * m, head = this_tile / tiles_a_head;
      const int dim = (this_tile - head * tiles_a_head) * 8 + g;
      if (16 * this_tile >= rows) continue;
      const float* head_bias = bias + head * head_dim;
      const float top_bias = __ldg(head_bias + dim), bottom_bias = __ldg(head_bias + half + dim);
      const bool is_turned = head < num_heads + num_kv_heads;
      // What several columns need is read before the first of them is stored: no load passes a
      // store whose place the compiler does not know.
      constexpr int kBatch = Cut::kWarpgroups > 2 ? 4 : 8;  // as registers allow
#pragma unroll
      for (int first = 0; first < kColumns / 4; first += kBatch) {
        float2 turns[kBatch];
        std::byte* places[kBatch];
#pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          const int column = (first + c) / 2 * 8 + 2 * q_lane + (first + c) % 2;
          const int token = item.first_column + column;
          turns[c] = make_float2(1, 0);
          places[c] = nullptr;
          if (column >= item.num_columns) continue;
          const int position = __ldg(positions + token);
          if (is_turned) {
            const float* turn = rotary + static_cast<int64_t>(position) * head_dim + dim;
            turns[c] = make_float2(__ldg(turn), __ldg(turn + half));
          }
          if (head < num_heads) {
            places[c] = reinterpret_cast<std::byte*>(
                q + (static_cast<int64_t>(token) * num_heads + head) * head_dim);
          } else if (is_turned) {
            places[c] = cache_row(kv.k, head - num_heads, position, token);
          } else {
            places[c] = cache_row(kv.v, head - num_heads - num_kv_heads, position, token);
          }
        }
#pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          const int i = (first + c) / 2, j = (first + c) % 2;
          const float top = sums[m][4 * i + j] * scale + top_bias;
          const float bottom = sums[m][4 * i + 2 + j] * scale + bottom_bias;
          const float turned_top = top * turns[c].x - bottom * turns[c].y;
          const float turned_bottom = bottom * turns[c].x + top * turns[c].y;
          if (places[c] == nullptr) continue;
          if (head < num_heads) {
            store<float>(places[c], dim, half, turned_top, turned_bottom);
          } else {
            store_to_cache(places[c], dim, turned_top, turned_bottom);
          }
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
  return dense_bytes(p.weight, p.batch.num_tokens);
}

void qkv_any_bf16_gemm_sm90(const QkvParams& p) {
  const int32_t tokens = p.batch.num_tokens;
  if (tokens == 0) return;
  const StagedView staged = dense_columns(p.weight, tokens, p.launch);
  stage_normed({.num_rows = tokens,
                .rms_eps = p.rms_eps,
                .x = p.x,
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
