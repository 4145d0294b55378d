// The end of qkv's products in wide blocks.
#pragma once

#include "kernels/gemm/wide_block_sm90.cuh"
#include "kernels/qkv/qkv_end.cuh"

namespace moxie::gemm {

/// TurnAndAppend of whole columns.
struct TurnWide {
  TurnAndAppend of;
  int32_t rows;

  __device__ __forceinline__ int element() const {
    return of.kv.dtype == DType::kF32 ? 4 : of.kv.dtype == DType::kBF16 ? 2 : 1;
  }
  __device__ __forceinline__ void look_up(WideColumns& columns, int column, int token,
                                          int first_row) const {
    const KvLayer& kv = of.kv;
    const int position = __ldg(of.positions + token);
    columns.position[column] = position;
    if (first_row + WideBlock::kRows <= of.num_heads * of.head_dim) return;  // queries alone
    const int logical = position / kv.page_tokens;
    const int64_t entry = int64_t{__ldg(of.seq_idx + token)} * kv.table_stride + logical;
    columns.place[column] = __ldg(kv.page_table + entry) * kv.page_stride_bytes +
                            int64_t{position - logical * kv.page_tokens} * of.head_dim * element();
  }
  // Half of a warp takes a column; a lane four dimensions in both halves of a head.
  template <typename Ended>
  __device__ __forceinline__ void store(const Ended& p) const {
    constexpr int kBatch = Ended::kIsTight ? 4 : 8;  // as registers allow
    const int lane = threadIdx.x % 32, half = of.head_dim / 2, tiles_a_head = of.head_dim / 16;
    const int row = lane % 16 / 2 * 16 + lane % 2 * 4, tile = (p.first_row + row) / 16;
    const int head = tile / tiles_a_head, num_keys = of.num_heads + of.num_kv_heads;
    if (head >= num_keys + of.num_kv_heads) return;
    const int dim = (tile - head * tiles_a_head) * 8 + lane % 2 * 4;
    const float* bias = of.bias + head * of.head_dim + dim;
    const float4 of_top = load_four(bias), of_bottom = load_four(bias + half);
    const bool is_query = head < of.num_heads, is_turned = head < num_keys;
    const DType dtype = !is_query ? of.kv.dtype : of.stages_q ? DType::kBF16 : DType::kF32;
    const int bytes = !is_query ? element() : of.stages_q ? 2 : 4;
    const float factor = is_query ? of.q_factor : 1.0f;
    const int64_t token_bytes = int64_t{of.num_heads} * of.head_dim * bytes;  // of queries
    std::byte* base = is_query
                          ? reinterpret_cast<std::byte*>(of.q) +
                                int64_t{head} * of.head_dim * bytes + p.first_column * token_bytes
                          : (is_turned ? of.kv.k : of.kv.v) +
                                int64_t{head - (is_turned ? of.num_heads : num_keys)} *
                                    of.kv.page_tokens * of.head_dim * bytes;
    base += dim * bytes;
#pragma unroll 1
    for (int first = 2 * p.warp + lane / 16; first < p.num_columns;
         first += 2 * WideBlock::kEndWarps * kBatch) {
      float4 cosines[kBatch], sines[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        // Past the end: the last column again.
        const int column = min(first + 2 * WideBlock::kEndWarps * c, p.num_columns - 1);
        const float* turn = of.rotary + int64_t{p.columns.position[column]} * of.head_dim + dim;
        cosines[c] = load_four(turn), sines[c] = load_four(turn + half);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 2 * WideBlock::kEndWarps * c;
        if (column >= p.num_columns) continue;
        float4 top = p.sums.four(column, row), bottom = p.sums.four(column, row + 8);
        top = {top.x + of_top.x, top.y + of_top.y, top.z + of_top.z, top.w + of_top.w};
        bottom = {bottom.x + of_bottom.x, bottom.y + of_bottom.y, bottom.z + of_bottom.z,
                  bottom.w + of_bottom.w};
        if (is_turned) turn_four(top, bottom, cosines[c], sines[c]);
        std::byte* to = base + (is_query ? column * token_bytes : p.columns.place[column]);
        store_four(dtype, to, times(top, factor));
        store_four(dtype, to + half * bytes, times(bottom, factor));
      }
    }
  }
};

}  // namespace moxie::gemm
