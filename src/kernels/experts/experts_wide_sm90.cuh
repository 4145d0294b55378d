// The grouped products of experts in wide blocks on Hopper (gemm/wide_product_sm90.cuh), and their
// ends.
#pragma once

#include "kernels/experts/experts_grouped_sm90.cuh"
#include "kernels/gemm/wide_product_sm90.cuh"

namespace moxie::gemm {

/// The end of the first product: a block's 128 rows are a unit of 64 staged outputs.
struct GateUpWide {
  GateUpProduct of;

  __device__ __forceinline__ void look_up(WideColumns&, int, int, int) const {}
  // Eight lanes take a column; a lane makes the outputs of one chunk of the staged unit: two of
  // each of four tiles.
  template <typename Ended>
  __device__ __forceinline__ void store(const Ended& p) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, chunk = lane % 8;
    const int unit = p.first_row / WideBlock::kRows;
    // The gate rows of the chunk's first outputs, in the block.
    const int first_row = chunk / 4 * 64 + chunk % 4 * 2;
    const float* bias = of.bias + int64_t{p.expert} * of.weight.rows + p.first_row + first_row;
    float2 of_gate[4], of_up[4];
    bool is_real[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      // A tile has eight outputs.
      is_real[t] = 8 * (p.first_row / 16 + chunk / 4 * 4 + t) < of.intermediate;
      of_gate[t] = of_up[t] = {};
      if (!is_real[t]) continue;
      of_gate[t] = __ldg(reinterpret_cast<const float2*>(bias + 16 * t));
      of_up[t] = __ldg(reinterpret_cast<const float2*>(bias + 16 * t + 8));
    }
    std::byte* to =
        of.made.data + (int64_t{unit} * of.made.capacity + p.first_column) * kStagedRowBytes;
#pragma unroll 2
    for (int column = 4 * p.warp + lane / 8; column < p.num_columns;
         column += 4 * WideBlock::kEndWarps) {
      uint32_t words[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float2 gate = p.sums.two(column, first_row + 16 * t),
                     up = p.sums.two(column, first_row + 16 * t + 8);
        const float first =
            of.template activation<WideCut>(gate.x + of_gate[t].x, up.x + of_up[t].x);
        const float second =
            of.template activation<WideCut>(gate.y + of_gate[t].y, up.y + of_up[t].y);
        words[t] = is_real[t] ? pack_bf16(first, second) : 0;
      }
      *reinterpret_cast<uint4*>(to + kStagedRowBytes * column + 16 * (chunk ^ column % 8)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

/// pairs = W2 act + b2 of each slot, in BF16 (add_pairs_cuda.h).
struct DownWide {
  DownProduct of;
  uint16_t* pairs;  // [slots, hidden]

  __device__ __forceinline__ void look_up(WideColumns&, int, int, int) const {}
  // A warp takes a column; a lane four rows.
  template <typename Ended>
  __device__ __forceinline__ void store(const Ended& p) const {
    const int in_block = static_cast<int>(threadIdx.x) % 32 * 4, row = p.first_row + in_block;
    const int rows = of.weight.rows;
    if (row >= rows) return;
    const float4 add =
        __ldg(reinterpret_cast<const float4*>(of.bias + int64_t{p.expert} * rows + row));
#pragma unroll 4
    for (int column = p.warp; column < p.num_columns; column += WideBlock::kEndWarps) {
      const float4 sum = p.sums.four(column, in_block);
      *reinterpret_cast<uint2*>(pairs + int64_t{p.first_column + column} * rows + row) = make_uint2(
          pack_bf16(sum.x + add.x, sum.y + add.y), pack_bf16(sum.z + add.z, sum.w + add.w));
    }
  }
};

/// Launches both products in kernels of kWidths; the second one writes the outputs of pairs.
template <int... kWidths>
void launch_wide_experts(const char* name, const ExpertsParams& p, const GroupedMemory& memory) {
  const SortedPairs& pairs = memory.pairs;
  const auto launch = [&](const auto& product, const auto& end) {
    const int32_t row_blocks = ceil_div(product.weight.rows, WideBlock::kRows);
    const SortedItems items{.tiles = pairs.tiles,
                            .num_tiles = pairs.num_tiles,
                            .row_blocks = row_blocks,
                            .tiles_a_block = WideBlock::kRows / 16};
    launch_wide<DType::kMXFP4, kWidths...>(name, items, product.weight, product.staged, end,
                                           int64_t{pairs.max_tiles} * row_blocks,
                                           launch_stream(p.launch.stream));
  };
  const GateUpProduct gate_up = gate_up_task(p, memory, 1.0f);
  launch(gate_up, GateUpWide{gate_up});
  const DownProduct down = down_task(p, memory, 1.0f);
  launch(down, DownWide{down, memory.pair_outputs});
  end_pairs(p, memory);
}

}  // namespace moxie::gemm
