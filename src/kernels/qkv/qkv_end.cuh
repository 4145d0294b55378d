// The end of qkv's products over many tokens: bias, rotary and the append to the cache.
#pragma once

#include "core/formats.h"
#include "kernels/gemm/dense.cuh"
#include "kernels/qkv/qkv.h"

namespace moxie::gemm {

struct TurnAndAppend {
  const float* bias;  // natural order
  const float* rotary;
  const int32_t* positions;  // [tokens]
  const int32_t* seq_idx;    // [tokens]
  KvLayer kv;
  float* q;  // [tokens, heads, head_dim]; or BF16, times q_factor
  bool stages_q;
  float q_factor;
  int32_t num_heads, num_kv_heads, head_dim;

  // Two pairs of neighbouring dimensions: in the first half of a head and in the second.
  struct Quad {
    float2 top, bottom;
  };
  __device__ __forceinline__ static Quad load(const float* row, int half) {
    return {__ldg(reinterpret_cast<const float2*>(row)),
            __ldg(reinterpret_cast<const float2*>(row + half))};
  }
  __device__ __forceinline__ static Quad biased(const SumsTile& sums, int column, int in_tile,
                                                const Quad& bias) {
    return {make_float2(sums.at(column, in_tile) + bias.top.x,
                        sums.at(column, in_tile + 1) + bias.top.y),
            make_float2(sums.at(column, in_tile + 8) + bias.bottom.x,
                        sums.at(column, in_tile + 9) + bias.bottom.y)};
  }
  // turn: cosines on top, sines below.
  __device__ __forceinline__ static Quad turned(const Quad& of, const Quad& turn) {
    return {make_float2(of.top.x * turn.top.x - of.bottom.x * turn.bottom.x,
                        of.top.y * turn.top.y - of.bottom.y * turn.bottom.y),
            make_float2(of.bottom.x * turn.top.x + of.top.x * turn.bottom.x,
                        of.bottom.y * turn.top.y + of.top.y * turn.bottom.y)};
  }
  __device__ __forceinline__ static void store_pair(DType dtype, std::byte* row, int dim,
                                                    float2 pair) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float2*>(row)[dim / 2] = pair;
    } else if (dtype == DType::kBF16) {
      reinterpret_cast<uint32_t*>(row)[dim / 2] = pack_bf16(pair.x, pair.y);
    } else {
      reinterpret_cast<uint16_t*>(row)[dim / 2] =
          static_cast<uint16_t>(f32_to_e4m3(pair.x) | f32_to_e4m3(pair.y) << 8);
    }
  }
  /// A token's place in a K or V head of the cache.
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
    // Four lanes store a column; each has two dimensions in both halves of the head.
    const int lane = threadIdx.x % 32, in_tile = lane % 4 * 2;
    const int dim = (tile - head * tiles_a_head) * 8 + in_tile;
    const Quad of_bias = load(bias + head * head_dim + dim, half);
    constexpr int kBatch = HasRoomAtEnd<Cut> ? 8 : 4;  // as registers allow
    if (head < num_heads) {
      store_queries<kBatch>(sums, head, dim, of_bias, first_column, num_columns);
    } else {
      store_keys_or_values<kBatch>(sums, head - num_heads, dim, of_bias, first_column, num_columns);
    }
  }

 private:
  // What several columns need is loaded before the first of them is stored, and all positions
  // before the loads that depend on them: the compiler moves no load before a store to an address
  // that it does not know.
  template <int kBatch>
  __device__ __forceinline__ void store_queries(const SumsTile& sums, int head, int dim,
                                                const Quad& of_bias, int first_column,
                                                int num_columns) const {
    const int lane = threadIdx.x % 32, in_tile = lane % 4 * 2, half = head_dim / 2;
    const DType dtype = stages_q ? DType::kBF16 : DType::kF32;
    const int64_t head_bytes = head_dim * (stages_q ? 2 : 4);
#pragma unroll 1
    for (int first = lane / 4; first < num_columns; first += 8 * kBatch) {
      int position[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        // Past the end: the last column again.
        position[c] = __ldg(positions + first_column + min(first + 8 * c, num_columns - 1));
      }
      Quad turn[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        turn[c] = load(rotary + static_cast<int64_t>(position[c]) * head_dim + dim, half);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 8 * c;
        if (column >= num_columns) continue;
        const Quad value = turned(biased(sums, column, in_tile, of_bias), turn[c]);
        std::byte* row =
            reinterpret_cast<std::byte*>(q) +
            (static_cast<int64_t>(first_column + column) * num_heads + head) * head_bytes;
        store_pair(dtype, row, dim, make_float2(value.top.x * q_factor, value.top.y * q_factor));
        store_pair(dtype, row, half + dim,
                   make_float2(value.bottom.x * q_factor, value.bottom.y * q_factor));
      }
    }
  }
  // kv_head: of the keys; the heads of the values have the numbers after those.
  template <int kBatch>
  __device__ __forceinline__ void store_keys_or_values(const SumsTile& sums, int kv_head, int dim,
                                                       const Quad& of_bias, int first_column,
                                                       int num_columns) const {
    const int lane = threadIdx.x % 32, in_tile = lane % 4 * 2, half = head_dim / 2;
    const bool is_k = kv_head < num_kv_heads;
    std::byte* const cache = is_k ? kv.k : kv.v;
    if (!is_k) kv_head -= num_kv_heads;
#pragma unroll 1
    for (int first = lane / 4; first < num_columns; first += 8 * kBatch) {
      int token[kBatch], position[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        token[c] = first_column + min(first + 8 * c, num_columns - 1);
        position[c] = __ldg(positions + token[c]);
      }
      Quad turn[kBatch];
      std::byte* places[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        turn[c] = load(rotary + static_cast<int64_t>(position[c]) * head_dim + dim, half);
        places[c] = cache_row(cache, kv_head, position[c], token[c]);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + 8 * c;
        if (column >= num_columns) continue;
        Quad value = biased(sums, column, in_tile, of_bias);
        if (is_k) value = turned(value, turn[c]);
        store_pair(kv.dtype, places[c], dim, value.top);
        store_pair(kv.dtype, places[c], half + dim, value.bottom);
      }
    }
  }
};

/// Four neighbouring dimensions, from memory and to memory.
__device__ __forceinline__ float4 load_four(const float* from) {
  return __ldg(reinterpret_cast<const float4*>(from));
}
__device__ __forceinline__ float4 times(const float4& v, float factor) {
  return {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
}
__device__ __forceinline__ void store_four(DType dtype, std::byte* to, const float4& v) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float4*>(to) = v;
  } else if (dtype == DType::kBF16) {
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
  } else {
    *reinterpret_cast<uint32_t*>(to) =
        pack_e4m3(v.x, v.y) | static_cast<uint32_t>(pack_e4m3(v.z, v.w)) << 16;
  }
}
/// Turns four pairs of dimensions: those of the first half of a head and of the second.
__device__ __forceinline__ void turn_four(float4& top, float4& bottom, const float4& cosine,
                                          const float4& sine) {
  const float4 t = top, b = bottom;
  top = {t.x * cosine.x - b.x * sine.x, t.y * cosine.y - b.y * sine.y,
         t.z * cosine.z - b.z * sine.z, t.w * cosine.w - b.w * sine.w};
  bottom = {b.x * cosine.x + t.x * sine.x, b.y * cosine.y + t.y * sine.y,
            b.z * cosine.z + t.z * sine.z, b.w * cosine.w + t.w * sine.w};
}

/// What no product over many tokens takes.
inline const char* refuses_qkv(const QkvParams& p) {
  return p.head_dim % 16 != 0 ? "head_dim is not a multiple of 16" : nullptr;
}
/// Stages the normed tokens in the workspace.
inline StagedView stage_qkv(const QkvParams& p) {
  const StagedView staged = dense_columns(p.weight, p.batch.num_tokens, p.launch);
  stage_normed({.num_rows = p.batch.num_tokens,
                .rms_eps = p.rms_eps,
                .x = p.x,
                .x_is_single = p.forms.x == XForm::kF32,
                .norm_weight = p.norm_weight,
                .to = staged},
               p.launch.stream);
  return staged;
}
inline TurnAndAppend qkv_end(const QkvParams& p) {
  return {.bias = p.bias,
          .rotary = p.rotary.table,
          .positions = p.batch.positions,
          .seq_idx = p.batch.seq_idx,
          .kv = p.kv,
          .q = p.q,
          .stages_q = p.forms.q == QForm::kBf16Staged,
          .q_factor = p.forms.q == QForm::kBf16Staged ? p.q_factor : 1.0f,
          .num_heads = p.num_heads,
          .num_kv_heads = p.num_kv_heads,
          .head_dim = p.head_dim};
}

}  // namespace moxie::gemm
