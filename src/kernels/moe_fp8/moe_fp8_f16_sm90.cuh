// moe_fp8_block_scale on Hopper: down's products in FP16.
//
// wgmma takes FP16 by FP16 only, and only its left operand may come from registers, where weights
// can be widened: rows are outputs, columns are pairs. A warpgroup has 128 outputs of up to 128
// pairs.
#pragma once

#include "kernels/gemm/wgmma_fp8_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_many_sm90.cuh"

namespace moxie::moe_fp8 {

using gemm::wgmma_f16;

struct F16Shared {
  static constexpr int kCopyRegisters = 24, kMathRegisters = 240;
  static constexpr int kStageBytes = 4 * kBoxBytes;  // two blocks of weights; 128 columns of h
  // Of each warpgroup: 64 outputs of up to 128 pairs on their way to memory, in FP16.
  alignas(128) std::byte outputs[2][kManyPairs * 128];
  uint32_t greatest[2][4];  // of each warp's outputs
  Ring<3> ring;
};
/// By one thread. The blocks of a cluster have the pairs in common; each copies half of the
/// columns.
__device__ __forceinline__ void copy_f16(const ManyTask& task, std::byte* stages, F16Shared& shared,
                                         int32_t first_item, int32_t num_items, int32_t step,
                                         int32_t blocks) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const auto rank = static_cast<int32_t>(cluster_rank());
  // With more tiles an expert its weights are read again, from L2.
  const bool is_streamed = *task.piece.num_tiles <= 2 * p.num_local_experts;
  uint32_t place = 0;
  for (int32_t i = first_item; i < num_items; i += step) {
    const Item item = item_of(task.piece, i, blocks, false);
    const int32_t rows = rows_of(item.tile.count);
    const int32_t row = item.tile.expert * p.hidden + item.block * 2 * kBlock;
    const CUtensorMap* of_pairs = task.of_h.of(rows);
#pragma unroll 1
    for (int32_t kb = 0; kb < p.intermediate / kBlock; ++kb, ++place) {
      const uint32_t stage = place % R::kStages;
      wait_barrier(&shared.ring.empty[stage], place / R::kStages % 2 ^ 1);
      std::byte* weights = stages + stage * F16Shared::kStageBytes;
      std::byte* pairs = weights + (2 + rank) * kBoxBytes;
      uint64_t* full = &shared.ring.full[stage];
      expect_bytes(full, 2 * kBoxBytes + 2 * rows * 128);
      if (is_streamed)
        copy_box_streamed(weights, &task.w2, kb * kBlock, row, full);
      else
        copy_box(weights, &task.w2, kb * kBlock, row, full);
      copy_box_to((1u << kCluster) - 1, pairs, of_pairs, kb * kBlock + rank * 64, item.tile.first,
                  full);
    }
  }
}

/// The scales of a row of blocks of weights, or the products with those of another row. A lane
/// holds one of every 32, read 32 blocks ahead: a read in each block would make the products wait
/// for L2.
class RowScales {
 public:
  __device__ RowScales(const float* row, int32_t count, const float* other = nullptr)
      : row_(row), other_(other), count_(count), now_(read(0)), next_(read(32)) {}
  /// Of block kb; called for each block in order, by all lanes.
  __device__ float of(int32_t kb) {
    if (kb > 0 && kb % 32 == 0) now_ = next_, next_ = read(kb + 32);
    return __shfl_sync(~0u, now_, kb % 32);
  }

 private:
  __device__ float read(int32_t first) const {
    const int32_t i = min(first + static_cast<int32_t>(threadIdx.x % 32), count_ - 1);
    return other_ == nullptr ? __ldg(row_ + i) : __ldg(row_ + i) * __ldg(other_ + i);
  }

  const float *row_, *other_;
  int32_t count_;
  float now_, next_;
};

/// Widens 128 columns of 16 rows: `row` has row g of a warp's tile, its row g + 8 is 1,024 bytes
/// further.
__device__ __forceinline__ void widen_rows(const std::byte* row, uint32_t (&weights)[8][4]) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = ((4 * half + q) ^ g) << 4;
    const uint4 top = *reinterpret_cast<const uint4*>(row + at);
    const uint4 bottom = *reinterpret_cast<const uint4*>(row + 8 * 128 + at);
    const uint32_t tops[4] = {top.x, top.y, top.z, top.w};
    const uint32_t bottoms[4] = {bottom.x, bottom.y, bottom.z, bottom.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t(&to)[4] = weights[4 * half + i];
      widen_e4m3(tops[i], to[0], to[2]);
      widen_e4m3(bottoms[i], to[1], to[3]);
    }
  }
}

/// A warpgroup's 128 outputs of each pair to memory, in FP16 with a power of two for all, times
/// that of the pair. What is 2^29 times smaller than the greatest loses digits; what is not finite
/// counts for nothing.
template <int kColumns>
__device__ __forceinline__ void store_outputs(const ManyTask& task, F16Shared& shared, int group,
                                              const Item& item, int32_t row_block,
                                              const float (&sums)[2][kColumns / 2]) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, q = lane % 4;
  const int32_t hidden = task.piece.p.hidden, count = item.tile.count;
  const int barrier = kGroupBarrier + group;
  uint32_t greatest = 0;
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (8 * i + 2 * q + c >= count) continue;
#pragma unroll
      for (int v = 0; v < 4; ++v) raise_to(greatest, sums[v / 2][4 * i + v % 2 * 2 + c]);
    }
  }
  greatest = __reduce_max_sync(~0u, greatest);
  if (lane == 0) shared.greatest[group][warp] = greatest;
  barrier_wait(barrier, 128);
#pragma unroll
  for (int w = 0; w < 4; ++w) greatest = max(greatest, shared.greatest[group][w]);
  const int exponent = exponent_of(greatest);
  const float factor = power_to_top(exponent);
  if (thread < count) {
    const int64_t pair = item.tile.first + thread;
    const int of_pair = min(max(exponent - kTop + 2 * __ldg(task.sizes + pair), 1), 254);
    task.piece.sum_scales[pair * (hidden / kBlock) + row_block] = power_of_two(of_pair);
  }
  std::byte* outputs = shared.outputs[group];
  const auto place = [](int pair, int chunk) { return pair * 128 + ((chunk ^ pair % 8) << 4); };
  const int column = lane / 16 * 8 + lane % 8;
  const uint32_t to = shared_address(outputs) + place(column, 2 * warp + lane / 8 % 2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) {
      const float* v = sums[half] + 4 * i;
      uint32_t words[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) words[m] = pack_f16(v[2 * m] * factor, v[2 * m + 1] * factor);
      store_transposed(to + 8 * i * 128, words);
    }
    barrier_wait(barrier, 128);
    uint16_t* out = static_cast<uint16_t*>(task.piece.sums) + int64_t{item.tile.first} * hidden +
                    row_block * kBlock + half * 64 + thread % 8 * 8;
#pragma unroll
    for (int pair = thread / 8; pair < kColumns; pair += 16) {
      if (pair < count)
        *reinterpret_cast<uint4*>(out + int64_t{pair} * hidden) =
            *reinterpret_cast<const uint4*>(outputs + place(pair, thread % 8));
    }
    barrier_wait(barrier, 128);
  }
}

/// Rows are outputs, columns are pairs: only the left operand can be widened in registers.
template <int kColumns>
__device__ __forceinline__ void multiply_f16(const ManyTask& task, const std::byte* stages,
                                             F16Shared& shared, int group, const Item& item,
                                             uint32_t& place) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int32_t blocks = p.intermediate / kBlock;
  // The group's 128 rows are one block of scales. Hidden may end with the first group's.
  const int32_t row_block = item.block * 2 + group;
  const bool is_inside = row_block < p.hidden / kBlock;
  RowScales scales(
      p.gemm2_weights_scale +
          (int64_t{item.tile.expert} * (p.hidden / kBlock) + (is_inside ? row_block : 0)) * blocks,
      blocks, task.h_scales + int64_t{item.tile_number} * blocks);
  float sums[2][kColumns / 2] = {};
  for (int32_t kb = 0; kb < blocks; ++kb, ++place) {
    const uint32_t stage = place % R::kStages;
    const float scale = scales.of(kb);
    wait_barrier(&shared.ring.full[stage], place / R::kStages % 2);
    const std::byte* from = stages + stage * F16Shared::kStageBytes;
    const uint64_t pairs = tile_descriptor(from + 2 * kBoxBytes);
    float products[kColumns / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t weights[8][4];
      widen_rows(from + (group * 128 + half * 64 + warp * 16 + g) * 128, weights);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k)
        wgmma_f16<kColumns>(products, weights[k], pairs + k / 4 * (kBoxBytes >> 4) + 2 * (k % 4),
                            k > 0);
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[half][i] += products[i] * scale;
    }
    __syncwarp();
    if (lane == 0) shared.ring.release(stage);
  }
  if (!is_inside) return;
  store_outputs<kColumns>(task, shared, group, item, row_block, sums);
}

}  // namespace moxie::moe_fp8
