// What the rows of experts by mma.sync for many tokens share: the second product, the tiles, and
// the launch of both products over the sorted pairs.
#pragma once

#include "kernels/experts/experts_grouped.cuh"
#include "kernels/gemm/mma_tiles.h"
#include "kernels/gemm/product_mma.cuh"

namespace moxie::gemm {

/// The second product: W2 act + b2 of each slot, in BF16 (add_pairs_cuda.h).
struct DownMma : DownProduct {
  uint16_t* pairs;         // [slots, hidden]
  MxElement element = {};  // of MX atoms
  /// Bytes of a column, padded so that a warp's stores hit all banks.
  template <typename Cut>
  static constexpr int kStride = 2 * Cut::kRows + 16;
  template <typename Cut>
  static constexpr uint64_t kSharedBytes = uint64_t{kStride<Cut>} * Cut::kMostColumns;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int in_block = tile + 4 * m - item.first_tile;
      const float2 add = biases(item.expert, tile + 4 * m);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* d = &sums[m][4 * i + 2 * half];
          const float of_row = half == 0 ? add.x : add.y;
          const float first = d[0] * product_scale + of_row, second = d[1] * product_scale + of_row;
          // Lanes g and g + 1 (even and odd) exchange: each has two rows of one column then.
          const float theirs = __shfl_xor_sync(~0u, g % 2 == 0 ? second : first, 4);
          const uint32_t two = g % 2 == 0 ? pack_bf16(first, theirs) : pack_bf16(theirs, second);
          const int column = 8 * i + 2 * q + g % 2, row = 16 * in_block + 8 * half + g / 2 * 2;
          *reinterpret_cast<uint32_t*>(shared + column * kStride<Cut> + 2 * row) = two;
        }
      }
    }
    __syncthreads();
    constexpr int kChunks = Cut::kRows / 8;  // of 16 bytes, of a column
    const int first_row = 16 * item.first_tile;
    for (int at = threadIdx.x; at < item.num_columns * kChunks; at += Cut::kThreads) {
      const int column = at / kChunks, chunk = at % kChunks, row = first_row + 8 * chunk;
      if (row >= weight.rows) continue;
      *reinterpret_cast<uint4*>(pairs + int64_t{item.first_column + column} * weight.rows + row) =
          *reinterpret_cast<const uint4*>(shared + column * kStride<Cut> + 16 * chunk);
    }
  }
};

/// The columns of the tiles of a launch: as the plan or a switch says, or by the tile model.
inline int32_t mma_tile_columns(const ExpertsParams& p) {
  if (p.tile.columns != 0) return p.tile.columns;
  return choose_mma_tile(mean_pairs(p.num_tokens, p.top_k, routed_experts(p)), p.tile_device)
      .columns;
}
inline bool has_mma_tile(const ExpertsParams& p) {
  return (p.tile.rows == 0 || p.tile.rows == kMmaTileRows) &&
         (p.tile.columns == 0 || is_mma_tile(p.tile.columns));
}

/// A launch over the sorted pairs' tiles, cut as Cut.
template <typename Cut, typename Task>
void launch_sorted_mma(const char* row, Task task, const SortedPairs& pairs, Stream* stream) {
  task.items = {.tiles = pairs.tiles,
                .num_tiles = pairs.num_tiles,
                .row_blocks = ceil_div(task.weight.rows, Cut::kRows),
                .tiles_a_block = Cut::kRows / 16};
  launch_product_mma<DType::kMXFP4, Cut>(
      row, task, int64_t{pairs.max_tiles} * task.items.row_blocks, launch_stream(stream));
}

/// Both products with an atom, over activations that are staged, and the sums of each token's
/// pairs.
template <typename Atom, typename GateUpTask>
void run_experts_mma(const char* row, const ExpertsParams& p, const GroupedMemory& memory,
                     const GateUpTask& gate_up, const DownMma& down) {
  const auto run = [&]<int kColumns>() {
    using Cut = MmaTileCut<kColumns, Atom>;
    launch_sorted_mma<Cut>(row, gate_up, memory.pairs, p.launch.stream);
    launch_sorted_mma<Cut>(row, down, memory.pairs, p.launch.stream);
  };
  switch (memory.shape.tile_slots) {
    case 16:
      run.template operator()<16>();
      break;
    case 32:
      run.template operator()<32>();
      break;
    case 64:
      run.template operator()<64>();
      break;
    default:
      run.template operator()<128>();
  }
  end_pairs(p, memory);
}

}  // namespace moxie::gemm
