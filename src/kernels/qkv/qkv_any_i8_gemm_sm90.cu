// qkv on Hopper for thousands of tokens with both operands in 8-bit integers
// (gemm/dense_i8_sm90.cuh): the norm's outputs have a scale a token, the weights a scale a row.
#include "kernels/gemm/dense_i8_sm90.cuh"
#include "kernels/qkv/qkv_end.cuh"
#include "kernels/qkv/qkv_rows.h"

namespace moxie {
namespace gemm {

/// TurnAndAppend of whole columns.
struct TurnLaid {
  TurnAndAppend of;

  __device__ __forceinline__ int element() const {
    return of.kv.dtype == DType::kF32 ? 4 : of.kv.dtype == DType::kBF16 ? 2 : 1;
  }
  __device__ __forceinline__ void look_up(I8Columns& columns, int column, int token,
                                          int first_row) const {
    const KvLayer& kv = of.kv;
    const int position = __ldg(of.positions + token);
    columns.position[column] = position;
    if (first_row + I8Cut::kRows <= of.num_heads * of.head_dim) return;  // queries alone
    const int logical = position / kv.page_tokens;
    const int64_t entry = int64_t{__ldg(of.seq_idx + token)} * kv.table_stride + logical;
    columns.place[column] = __ldg(kv.page_table + entry) * kv.page_stride_bytes +
                            int64_t{position - logical * kv.page_tokens} * of.head_dim * element();
  }
  __device__ __forceinline__ static void store_four(DType dtype, std::byte* to, const float4& v) {
    if (dtype == DType::kF32) {
      *reinterpret_cast<float4*>(to) = v;
    } else if (dtype == DType::kBF16) {
      *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
    } else {
      *reinterpret_cast<uint32_t*>(to) =
          pack_e4m3(v.x, v.y) | static_cast<uint32_t>(pack_e4m3(v.z, v.w)) << 16;
    }
  }
  __device__ __forceinline__ static float4 load_four(const float* from) {
    return __ldg(reinterpret_cast<const float4*>(from));
  }
  // Half of a warp takes a column; a lane four dimensions in both halves of a head.
  __device__ __forceinline__ void store(const I8Ended& p) const {
    constexpr int kBatch = 8;  // as registers allow
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
         first += 2 * I8Cut::kEndWarps * kBatch) {
      float4 cosines[kBatch], sines[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        // Past the end: the last column again.
        const int column = min(first + 2 * I8Cut::kEndWarps * c, p.num_columns - 1);
        const float* turn = of.rotary + int64_t{p.columns.position[column]} * of.head_dim + dim;
        cosines[c] = load_four(turn), sines[c] = load_four(turn + half);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 2 * I8Cut::kEndWarps * c;
        if (column >= p.num_columns) continue;
        float4 top = p.sums.four(column, row), bottom = p.sums.four(column, row + 8);
        top = {top.x + of_top.x, top.y + of_top.y, top.z + of_top.z, top.w + of_top.w};
        bottom = {bottom.x + of_bottom.x, bottom.y + of_bottom.y, bottom.z + of_bottom.z,
                  bottom.w + of_bottom.w};
        if (is_turned) {
          const float4 t = top, b = bottom, &cosine = cosines[c], &sine = sines[c];
          top = {t.x * cosine.x - b.x * sine.x, t.y * cosine.y - b.y * sine.y,
                 t.z * cosine.z - b.z * sine.z, t.w * cosine.w - b.w * sine.w};
          bottom = {b.x * cosine.x + t.x * sine.x, b.y * cosine.y + t.y * sine.y,
                    b.z * cosine.z + t.z * sine.z, b.w * cosine.w + t.w * sine.w};
        }
        std::byte* to = base + (is_query ? column * token_bytes : p.columns.place[column]);
        store_four(dtype, to, {top.x * factor, top.y * factor, top.z * factor, top.w * factor});
        store_four(dtype, to + half * bytes,
                   {bottom.x * factor, bottom.y * factor, bottom.z * factor, bottom.w * factor});
      }
    }
  }
};

}  // namespace gemm

using namespace gemm;

const char* qkv_any_i8_gemm_sm90_refuses(const QkvParams& p) {
  if (const char* why = refuses_i8(p.activation, p.weight)) return why;
  return refuses_qkv(p);
}

uint64_t qkv_any_i8_gemm_sm90_workspace(const QkvParams& p) {
  return I8ColumnsOf(p.weight, p.batch.num_tokens, nullptr).bytes;
}

void qkv_any_i8_gemm_sm90(const QkvParams& p) {
  const int32_t tokens = p.batch.num_tokens;
  if (tokens == 0) return;
  const I8ColumnsOf columns(p.weight, tokens, p.launch.workspace);
  lay_normed_i8({.x = p.x,
                 .norm_weight = p.norm_weight,
                 .x_is_single = p.forms.x == XForm::kF32,
                 .rms_eps = p.rms_eps,
                 .width = p.hidden},
                columns.rows, p.launch.stream);
  multiply_dense_i8("qkv_any_i8_gemm_sm90", p.weight, columns.rows, TurnLaid{qkv_end(p)}, p.launch);
}

}  // namespace moxie
