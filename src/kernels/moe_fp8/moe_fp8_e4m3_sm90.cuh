// moe_fp8_block_scale on Hopper: products of E4M3 by E4M3 for gate and up, and for down where the
// intermediate is E4M3.
//
// Rows are pairs, so that a scale of a pair is one number for all of a lane's columns. A warpgroup
// has 64 pairs and 128 columns of two blocks of weights; of a tile of up to 64 pairs it has all,
// and 64 columns. The sums of each block of 128 are scaled and added in F32.
#pragma once

#include "kernels/barriers_sm90.cuh"
#include "kernels/gemm/wgmma_fp8_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_many_sm90.cuh"

namespace moxie::moe_fp8 {

using gemm::wgmma_e4m3;

struct E4m3Shared {
  static constexpr int kCopyRegisters = 40, kMathRegisters = 232;  // neither spills
  static constexpr int kStageBytes = 3 * kBoxBytes;                // pairs; two blocks of weights
  float scales[4][kManyPairs];                                     // of the pairs' blocks
  Ring<4> ring;
  // What the math warps tell each other of an item, and of the item before.
  union {
    uint32_t of_warps[2][kMathThreads / 32];
    uint32_t of_pairs[2][2][kManyPairs / 2];
  };
};
/// One of the two matrices, multiplied in E4M3. A block of weights is 128 rows and 128 more,
/// `second` further.
struct Product {
  const CUtensorMap* of_weights;
  const PairMaps* of_pairs;
  const float *weight_scales, *pair_scales;
  int32_t expert_rows, block_rows, second, blocks, k_blocks;

  __device__ int32_t row_of(const Item& item) const {
    return item.tile.expert * expert_rows + item.block * block_rows;
  }
};
__device__ __forceinline__ Product up_and_gate(const ManyTask& task) {
  const MoeFp8Params& p = task.piece.p;
  return {&task.w1, &task.of_x,     p.gemm1_weights_scale,   task.x_scales,    2 * p.intermediate,
          kBlock,   p.intermediate, p.intermediate / kBlock, p.hidden / kBlock};
}
__device__ __forceinline__ Product down_of_e4m3(const ManyTask& task) {
  const MoeFp8Params& p = task.piece.p;
  return {&task.w2,   &task.of_h, p.gemm2_weights_scale,       task.h_scales,          p.hidden,
          2 * kBlock, kBlock,     (p.hidden / kBlock + 1) / 2, p.intermediate / kBlock};
}

/// By one thread.
__device__ __forceinline__ void copy_e4m3(const ManyTask& task, const Product& product,
                                          std::byte* stages, E4m3Shared& shared, int32_t first_item,
                                          int32_t num_items, int32_t step) {
  using R = decltype(shared.ring);
  constexpr uint32_t kAll = (1u << kCluster) - 1;
  const auto rank = static_cast<int32_t>(cluster_rank());
  uint32_t place = 0;
  for (int32_t i = first_item; i < num_items; i += step) {
    const Item item = item_of(task.piece, i, product.blocks, true);
    if (is_void(item, product.blocks)) continue;
    const int32_t rows = rows_of(item.tile.count), row = product.row_of(item);
    // Of pairs in common each block copies a half, or the first all.
    const int32_t half = max(rows / kCluster, kLeastRows);
    const int32_t first_pair = item.shares_weights ? 0 : rank * half;
    const CUtensorMap* of_pairs = product.of_pairs->of(item.shares_weights ? rows : half);
    const float* scales = product.pair_scales + int64_t{item.tile_number} * kManyPairs;
#pragma unroll 1
    for (int32_t kb = 0; kb < product.k_blocks; ++kb, ++place) {
      const uint32_t stage = place % R::kStages;
      wait_barrier(&shared.ring.empty[stage], place / R::kStages % 2 ^ 1);  // empty from the start
      std::byte* pairs = stages + stage * E4m3Shared::kStageBytes;
      std::byte* weights = pairs + kBoxBytes;
      uint64_t* full = &shared.ring.full[stage];
      const int32_t k = kb * kBlock;
      expect_bytes(full, 2 * kBoxBytes + rows * kBlock + sizeof(shared.scales[0]));
      if (item.shares_weights) {
        copy_box_to(kAll, weights + rank * kBoxBytes, product.of_weights, k,
                    row + rank * product.second, full);
        copy_box(pairs, of_pairs, k, item.tile.first, full);
      } else {
        copy_box(weights, product.of_weights, k, row, full);
        copy_box(weights + kBoxBytes, product.of_weights, k, row + product.second, full);
        if (first_pair < rows)
          copy_box_to(kAll, pairs + first_pair * kBlock, of_pairs, k, item.tile.first + first_pair,
                      full);
      }
      copy_bulk(shared.scales[stage], scales + int64_t{kb} * task.slots, sizeof(shared.scales[0]),
                full);
    }
  }
}

/// The scales of rows r and r + 8 of the pairs, from the address of row r's.
__device__ __forceinline__ void load_two(uint32_t address, float (&scales)[2]) {
  asm volatile("ld.shared.f32 %0, [%2]; ld.shared.f32 %1, [%2 + 32];"
               : "=f"(scales[0]), "=f"(scales[1])
               : "r"(address)
               : "memory");
}

/// This lane's place in a product: rows `row` and row + 8 of the pairs, columns column + 8 i and
/// the next. Of a tile of more than 64 pairs a warpgroup has 64 and all 128 columns, of another all
/// pairs and 64 columns.
template <int kColumns>
struct LanePlace {
  int first_pair, first_column, row, column;
  __device__ explicit LanePlace(int group)
      : first_pair(kColumns == 128 ? group * 64 : 0),
        first_column(kColumns == 128 ? 0 : group * 64),
        row(first_pair + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4)),
        column(first_column + static_cast<int>(threadIdx.x % 4 * 2)) {}
};

/// The scales of two rows of blocks of weights: lane l has that of block l % 16 of row l / 16, read
/// 16 blocks ahead: a read in each block would make the products wait for L2.
class TwoRowScales {
 public:
  static constexpr int kBlocks = 16;
  __device__ TwoRowScales(const float* first, const float* second, int32_t count)
      : row_(threadIdx.x % 32 < kBlocks ? first : second), count_(count), next_(read(0)) {}
  /// To the next 16 blocks, from `first` on; of each row in order.
  __device__ void advance(int32_t first) { now_ = next_, next_ = read(first + kBlocks); }
  /// By all lanes: of block `block` of these.
  __device__ float of(int row, int32_t block) const {
    return __shfl_sync(~0u, now_, row * kBlocks + block);
  }

 private:
  __device__ float read(int32_t first) const {
    return __ldg(row_ + min(first + static_cast<int32_t>(threadIdx.x % kBlocks), count_ - 1));
  }

  const float* row_;
  int32_t count_;
  float now_ = 0, next_;
};

/// A ring's stages as a warpgroup takes them in its products: all in registers.
struct StagesInTurn {
  using R = decltype(E4m3Shared::ring);
  uint32_t full, empty;  // addresses of the first stage's barriers; empty: this lane's block's
  uint32_t stage, phase;
  bool is_full = false;

  __device__ StagesInTurn(E4m3Shared& shared, uint32_t place)
      : full(same_in_warp(kept(shared_address(&shared.ring.full[0])))),
        empty(kept(address_in_cluster(shared_address(&shared.ring.empty[0]),
                                      threadIdx.x % 32 % kCluster))),
        stage(same_in_warp(place % R::kStages)),
        phase(same_in_warp(place / R::kStages % 2)) {}
  __device__ void wait() const {
    if (!is_full) block::wait(full + 8 * stage, phase);
  }
  /// Asks for the next stage, and returns this one.
  __device__ uint32_t next() {
    const uint32_t now = stage;
    if (++stage == R::kStages) stage = 0, phase ^= 1;
    is_full = test_barrier(full + 8 * stage, phase);
    return now;
  }
  /// This warp needs a stage no more: lane r tells block r of the cluster.
  __device__ void release(uint32_t of_stage) const {
    arrive_barrier_if(threadIdx.x % 32 < kCluster, empty + 8 * of_stage);
  }
};

/// Two warpgroups take turns at the tensor cores, so that what a warpgroup does between its
/// products must be short: addresses are worked out before the loop, and scales are read and the
/// next stage is asked for while products run.
template <int kColumns>
__device__ __forceinline__ void multiply_e4m3(const Product& product, const std::byte* stages,
                                              E4m3Shared& shared, int group, const Item& item,
                                              uint32_t& place, float (&sums)[2][kColumns / 2]) {
  constexpr uint32_t kScalesBytes = sizeof(shared.scales[0]);
  const LanePlace<kColumns> at(group);
  const int32_t row = product.row_of(item) / kBlock, k_blocks = product.k_blocks;
  const int32_t last_row = (item.tile.expert + 1) * (product.expert_rows / kBlock) - 1;
  const auto scales_of = [&](int32_t block_row) {
    return product.weight_scales + int64_t{min(block_row, last_row)} * k_blocks;
  };
  TwoRowScales scales(scales_of(row), scales_of(row + product.second / kBlock), k_blocks);
  StagesInTurn stages_in_turn(shared, place);
  const uint32_t base = same_in_warp(kept(shared_address(stages)));
  const uint32_t group_rows = same_in_warp(group) * 64 * kBlock;  // bytes
  const uint32_t pairs_at = base + (kColumns == 128 ? group_rows : 0);
  const uint32_t weights_at = base + kBoxBytes + (kColumns == 128 ? 0 : group_rows);
  const uint32_t scales_at = kept(shared_address(&shared.scales[0][at.row]));
  for (int32_t first = 0; first < k_blocks; first += scales.kBlocks) {
    scales.advance(first);
    const int32_t count = min(scales.kBlocks, k_blocks - first);
    for (int32_t kb = 0; kb < count; ++kb) {
      stages_in_turn.wait();
      uint32_t now = stages_in_turn.stage;
      const uint64_t pairs = tile_descriptor(pairs_at + now * E4m3Shared::kStageBytes);
      const uint64_t weights = tile_descriptor(weights_at + now * E4m3Shared::kStageBytes);
      float products[kColumns / 2], of_pairs[2], of_weights[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_e4m3<kColumns>(products, pairs + 2 * k, weights + half * (kBoxBytes >> 4) + 2 * k,
                               k > 0);
        wgmma_commit();
        if (half == 0) {
          for (int i = 0; i < 2; ++i) of_weights[i] = scales.of(i, kb);
          load_two(scales_at + now * kScalesBytes, of_pairs);
        } else {
          now = stages_in_turn.next();
        }
        wgmma_wait<0>();
        if (half == 1) stages_in_turn.release(now);
        const float scale0 = of_pairs[0] * of_weights[half];
        const float scale1 = of_pairs[1] * of_weights[half];
#pragma unroll
        for (int i = 0; i < kColumns / 8; ++i) {
          sums[half][4 * i] += products[4 * i] * scale0;
          sums[half][4 * i + 1] += products[4 * i + 1] * scale0;
          sums[half][4 * i + 2] += products[4 * i + 2] * scale1;
          sums[half][4 * i + 3] += products[4 * i + 3] * scale1;
        }
      }
    }
  }
  place += k_blocks;
}

/// Transposes 4 x 4 words: four lanes side by side have the rows before and the columns after.
__device__ __forceinline__ void transpose_lanes(uint32_t (&words)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool is_upper = (threadIdx.x & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      uint32_t &low = words[i], &high = words[i + step];
      const uint32_t got = __shfl_xor_sync(~0u, is_upper ? low : high, step);
      (is_upper ? low : high) = got;
    }
  }
}

/// Stores a pair's columns in FP16. Column k of 64 lies where widened weights have it in mma's
/// first operand: at k / 4 % 4 * 16 + k / 2 % 2 * 8 + k / 16 * 2 + k % 2. `values`: this pair's
/// first.
template <int kColumns>
__device__ __forceinline__ void store_f16(std::byte* to, const float* values, float factor) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kColumns / 64; ++i) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      uint32_t words[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float* v = values + 4 * (8 * i + 2 * m + parity);
        words[m] = pack_f16(v[0] * factor, v[1] * factor);
      }
      const int column = 64 * i + (2 * parity + q / 2) * 16 + q % 2 * 8;
      *reinterpret_cast<uint4*>(to + 2 * column) = {words[0], words[1], words[2], words[3]};
    }
  }
}

/// values = silu(gate) * values.
template <int kValues>
__device__ __forceinline__ void gate_values(float (&values)[kValues],
                                            const float (&gates)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] *= __fdividef(gates[i], 1.0f + __expf(-gates[i]));
}

/// silu(gate) * up to memory in FP16, divided by 4^size of each pair and by a power of two for all:
/// so down's products need no scale of a pair. What is 2^29 times smaller than the greatest of the
/// tile, each divided by 4^size, loses digits; what is not finite counts for nothing.
template <int kColumns>
__device__ __forceinline__ void finish_f16(const ManyTask& task, E4m3Shared& shared, int group,
                                           const Item& item, uint32_t parity,
                                           float (&sums)[2][kColumns / 2]) {
  const LanePlace<kColumns> at(group);
  const int32_t intermediate = task.piece.p.intermediate, count = item.tile.count;
  int sizes[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    sizes[r] = __ldg(task.sizes + item.tile.first + min(at.row + 8 * r, count - 1));
  gate_values(sums[0], sums[1]);
  uint32_t greatest = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (at.row + 8 * r >= count) continue;
    const float factor = power_of_4(-sizes[r]);
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      float& value = sums[0][i / 2 * 4 + 2 * r + i % 2];
      value *= factor;
      raise_to(greatest, value);
    }
  }
  greatest = __reduce_max_sync(~0u, greatest);
  uint32_t* of_warps = shared.of_warps[parity];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32 - kCopyThreads / 32] = greatest;
  barrier_wait(kMathBarrier, kMathThreads);
#pragma unroll
  for (int w = 0; w < kMathThreads / 32; ++w) greatest = max(greatest, of_warps[w]);
  const int exponent = exponent_of(greatest);
  const float factor = power_to_top(exponent);
  const int32_t blocks = intermediate / kBlock;
  if (item.block >= blocks) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (at.row + 8 * r >= count) continue;
    const int64_t pair = item.tile.first + at.row + 8 * r;
    store_f16<kColumns>(task.h + 2 * (pair * intermediate + item.block * kBlock + at.first_column),
                        sums[0] + 2 * r, factor);
  }
  if (threadIdx.x == kCopyThreads)
    task.h_scales[item.tile_number * blocks + item.block] = power_of_two(exponent - kTop);
}

/// silu(gate) * up to memory in E4M3, with a scale for the item's 128 columns of a pair.
template <int kColumns>
__device__ __forceinline__ void finish_e4m3(const ManyTask& task, E4m3Shared& shared, int group,
                                            const Item& item, uint32_t parity,
                                            float (&sums)[2][kColumns / 2]) {
  constexpr float kMostE4m3 = 448;
  const LanePlace<kColumns> at(group);
  const int32_t intermediate = task.piece.p.intermediate;
  gate_values(sums[0], sums[1]);
  uint32_t greatest[2] = {};
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i)
    greatest[i / 2 % 2] = max(greatest[i / 2 % 2], __float_as_uint(sums[0][i]) & 0x7FFFFFFFu);
#pragma unroll
  for (uint32_t& g : greatest) {
    g = max(g, __shfl_xor_sync(~0u, g, 1));
    g = max(g, __shfl_xor_sync(~0u, g, 2));
  }
  if constexpr (kColumns == 64) {  // the other warpgroup has the other columns
    auto& of_pairs = shared.of_pairs[parity];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (threadIdx.x % 4 == 0) of_pairs[group][at.row + 8 * r] = greatest[r];
    }
    barrier_wait(kMathBarrier, kMathThreads);
#pragma unroll
    for (int r = 0; r < 2; ++r) greatest[r] = max(greatest[r], of_pairs[1 - group][at.row + 8 * r]);
  }
  if (item.block * kBlock >= intermediate) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = at.row + 8 * r;
    if (row >= item.tile.count) continue;
    // A value that is not finite makes the scale so, and all of the block.
    const float most = __uint_as_float(greatest[r]);
    const float scale = greatest[r] < 0x7F800000u ? fmaxf(most, 0x1p-100f) / kMostE4m3 : most;
    const float factor = 1.0f / scale;
    std::byte* to =
        task.h + (int64_t{item.tile.first} + row) * intermediate + item.block * kBlock + at.column;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i)
      *reinterpret_cast<uint16_t*>(to + 8 * i) =
          pack_e4m3(sums[0][4 * i + 2 * r] * factor, sums[0][4 * i + 2 * r + 1] * factor);
    if (threadIdx.x % 4 == 0 && at.first_column == 0)
      task.h_scales[int64_t{item.block} * task.slots + item.tile_number * kManyPairs + row] = scale;
  }
}

/// Two blocks of outputs to memory, in BF16.
template <int kColumns>
__device__ __forceinline__ void finish_down(const ManyTask& task, int group, const Item& item,
                                            const float (&sums)[2][kColumns / 2]) {
  const LanePlace<kColumns> at(group);
  const int32_t hidden = task.piece.p.hidden;
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t first = (2 * item.block + half) * kBlock + at.first_column;
    if (first >= hidden) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = at.row + 8 * r;
      uint16_t* to = static_cast<uint16_t*>(task.piece.sums) +
                     (int64_t{item.tile.first} + row) * hidden + first;
#pragma unroll
      for (int i = 0; i < kColumns / 8; i += 4) {
        uint32_t words[4];  // columns 8 (i + m) + 2 q and the next; then 8 (i + q) to + 7
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float* v = sums[half] + 4 * (i + m) + 2 * r;
          words[m] = pack_bf16(v[0], v[1]);
        }
        transpose_lanes(words);
        if (row < item.tile.count)
          *reinterpret_cast<uint4*>(to + 8 * (i + q)) = {words[0], words[1], words[2], words[3]};
      }
    }
  }
}

template <typename Finish>
__device__ __forceinline__ void run_e4m3(const ManyTask& task, const Product& product,
                                         Finish&& finish) {
  run_items<E4m3Shared, true>(
      task, product.blocks,
      [&](std::byte* stages, E4m3Shared& shared, int32_t first, int32_t num_items, int32_t step) {
        copy_e4m3(task, product, stages, shared, first, num_items, step);
      },
      [&](const std::byte* stages, E4m3Shared& shared, int group, const Item& item,
          uint32_t& place) {
        const auto multiply = [&]<int kColumns>() {
          float sums[2][kColumns / 2] = {};
          multiply_e4m3<kColumns>(product, stages, shared, group, item, place, sums);
          finish.template operator()<kColumns>(shared, group, item, place / product.k_blocks % 2,
                                               sums);
        };
        if (item.tile.count > kManyPairs / 2)
          multiply.template operator()<128>();
        else
          multiply.template operator()<64>();
      });
}

}  // namespace moxie::moe_fp8
