// The ends of out's products in wide blocks.
#pragma once

#include "kernels/gemm/wide_block_sm90.cuh"
#include "kernels/out/out_end.cuh"

namespace moxie::gemm {

/// AddToResidual of whole columns.
template <bool kIsSingle, bool kAdds = true>
struct AddWide {
  AddToResidual<kIsSingle, kAdds> of;
  int32_t rows;

  __device__ __forceinline__ void look_up(WideColumns&, int, int, int) const {}
  // A warp takes a column; a lane four rows.
  template <typename Ended>
  __device__ __forceinline__ void store(const Ended& p) const {
    constexpr int kBatch = (kIsSingle ? 16 : 8) / (Ended::kIsTight ? 2 : 1);  // as registers allow
    const int in_block = static_cast<int>(threadIdx.x) % 32 * 4, row = p.first_row + in_block;
    if (row >= rows) return;
    const float4 add = __ldg(reinterpret_cast<const float4*>(of.bias + row));
#pragma unroll 1
    for (int first = p.warp; first < p.num_columns; first += WideBlock::kEndWarps * kBatch) {
      const int64_t at = int64_t{p.first_column + first} * rows + row;
      const int64_t stride = int64_t{WideBlock::kEndWarps} * rows;
      // All loads come before the first store: the compiler must assume that a store may change
      // what a later load reads.
      ResidualFour<kIsSingle> old[kBatch];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        old[c] = {};
        if (kAdds && first + WideBlock::kEndWarps * c < p.num_columns)
          old[c].load(of.x, at + c * stride);
      }
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        const int column = first + WideBlock::kEndWarps * c;
        if (column >= p.num_columns) continue;
        const float4 before = old[c].values(), sum = p.sums.four(column, in_block);
        const float4 v = {before.x + sum.x + add.x, before.y + sum.y + add.y,
                          before.z + sum.z + add.z, before.w + sum.w + add.w};
        if constexpr (kIsSingle) {
          *reinterpret_cast<float4*>(of.x + at + c * stride) = v;
        } else {
          store_residual<false>(of.x, at + c * stride, make_float2(v.x, v.y));
          store_residual<false>(of.x, at + c * stride + 2, make_float2(v.z, v.w));
        }
      }
    }
  }
};

/// LeaveRounded of whole columns.
struct LeaveWide {
  LeaveRounded of;
  int32_t rows;

  __device__ __forceinline__ void look_up(WideColumns&, int, int, int) const {}
  // As in AddWide; the column is put in the place of its sums, and leaves by bulk copies: a warp
  // that stored to another GPU itself would wait for the link.
  template <typename Ended>
  __device__ __forceinline__ void store(const Ended& p) const {
    constexpr int kBatch = 4, kStep = WideBlock::kEndWarps;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = p.first_row + 4 * lane;
    const auto add = row < rows ? __ldg(reinterpret_cast<const float4*>(of.bias + row)) : float4{};
    const uint32_t bytes = 2 * min(WideBlock::kRows, rows - p.first_row);
#pragma unroll 1
    for (int first = p.warp; first < p.num_columns; first += 32 * kStep) {
      const int end = min(p.num_columns, first + 32 * kStep);
#pragma unroll 1
      for (int batch = first; batch < end; batch += kBatch * kStep) {
        uint2 four[kBatch];
#pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          if (batch + kStep * c >= end) continue;
          const float4 sum = p.sums.four(batch + kStep * c, 4 * lane);
          four[c] = make_uint2(pack_bf16(sum.x + add.x, sum.y + add.y),
                               pack_bf16(sum.z + add.z, sum.w + add.w));
        }
        __syncwarp();  // all lanes have read these columns
#pragma unroll
        for (int c = 0; c < kBatch; ++c) {
          if (batch + kStep * c >= end) continue;
          *reinterpret_cast<uint2*>(p.sums.line(batch + kStep * c) + 8 * lane) = four[c];
        }
      }
      fence_bulk_copies();
      __syncwarp();
      const int column = first + kStep * lane;
      if (column >= end) continue;
      const int64_t at = int64_t{p.first_column + column} * rows + p.first_row;
      store_bulk(of.to + at, p.sums.line(column), bytes);
      if (of.other != nullptr) store_bulk(of.other + at, p.sums.line(column), bytes);
    }
    wait_for_bulk_stores();
  }
};

}  // namespace moxie::gemm
