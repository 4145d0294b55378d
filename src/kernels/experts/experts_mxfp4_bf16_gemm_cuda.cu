// experts on any GPU for many tokens in BF16: pairs sorted by expert, then two grouped products
// (gemm/product_mma.cuh) with tiles of 16 to 128 tokens, and the sums of each token's pairs.
#include "kernels/experts/experts_grouped.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/product_mma.cuh"

namespace moxie {
// Not in an unnamed namespace: kernels are instantiated with these.
namespace gemm {

/// The first product: outputs go through shared memory, so that they are stored 16 bytes at a time.
struct GateUpMma : GateUpProduct {
  template <typename Cut>
  static constexpr int kUnits = Cut::kRows / 128;  // of outputs of a block
  template <typename Cut>
  static constexpr uint64_t kSharedBytes =
      uint64_t{kUnits<Cut>} * Cut::kMostColumns* Cut::kRowBytes;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    constexpr int kRegionBytes = kColumns * Cut::kRowBytes;
    const int g = threadIdx.x % 32 / 4, first_unit = item.first_tile / 8;
    make<Cut, kColumns>(
        item, tile, sums, [](int) { return make_float2(1.0f, 1.0f); },
        [&](int m, uint32_t row, float first, float second) {
          const int of = tile + 4 * m;
          *reinterpret_cast<uint32_t*>(
              shared + (of / 8 - first_unit) * kRegionBytes + Cut::kRowBytes * row +
              staged_pair_offset(row, of % 8 * 4 + g / 2)) = pack_bf16(first, second);
        });
    __syncthreads();
    const int bytes = (item.num_columns + 7) / 8 * 8 * Cut::kRowBytes;
#pragma unroll
    for (int unit = 0; unit < kUnits<Cut>; ++unit) {
      if (64 * (first_unit + unit) >= intermediate) break;
      std::byte* to = made.data + (int64_t{first_unit + unit} * made.capacity + item.first_column) *
                                      Cut::kRowBytes;
      for (int at = 16 * threadIdx.x; at < bytes; at += 16 * Cut::kThreads)
        *reinterpret_cast<uint4*>(to + at) =
            *reinterpret_cast<const uint4*>(shared + unit * kRegionBytes + at);
    }
  }
};

/// The second product: W2 act + b2 of each slot, in BF16 (add_pairs_cuda.h).
struct DownMma : DownProduct {
  uint16_t* pairs;  // [slots, hidden]
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
      const float2 add = row_bias(item.expert, tile + 4 * m);
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

}  // namespace gemm

namespace {

using namespace gemm;

constexpr DType F = DType::kMXFP4;

// Tiles of few tokens are limited by the weights' bytes: many copies of them are in flight.
template <int kColumns>
using TileCut = std::conditional_t<kColumns == 128, MmaWideCut, MmaCut<2, 1, kColumns>>;

// The columns of a tile: the least that hold the mean number of tokens of an expert and a half.
int32_t columns_of(const ExpertsParams& p) {
  const double wanted = 1.5 * p.num_tokens * p.top_k / p.gate_up.num_experts;
  for (const int32_t columns : {16, 32, 64})
    if (wanted <= columns) return columns;
  return 128;
}

template <typename Cut, typename Task>
void launch(Task task, const SortedPairs& pairs, const ExpertsParams& p) {
  task.items = {.tiles = pairs.tiles,
                .num_tiles = pairs.num_tiles,
                .row_blocks = ceil_div(task.weight.rows, Cut::kRows),
                .tiles_a_block = Cut::kRows / 16};
  launch_product_mma<F, Cut>("experts_mxfp4_bf16_gemm_cuda", task,
                             int64_t{pairs.max_tiles} * task.items.row_blocks,
                             launch_stream(p.launch.stream));
}

}  // namespace

const char* experts_mxfp4_bf16_gemm_cuda_refuses(const ExpertsParams& p) {
  if (p.tile_columns != 0) return "its tiles follow from the number of tokens";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_bf16_gemm_cuda_workspace(const ExpertsParams& p) {
  return GroupedMemory(p, columns_of(p), DType::kBF16, nullptr).bytes;
}

void experts_mxfp4_bf16_gemm_cuda(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  const GroupedMemory memory(p, columns_of(p), DType::kBF16, p.launch.workspace);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots(stage_slots_of(p, memory), p.launch.stream);
  constexpr float kScale = kProductScale<F>;
  const DownProduct down{.items = {},
                         .weight = p.down,
                         .staged = memory.made,
                         .bias = p.down_bias,
                         .product_scale = kScale};
  const auto run = [&]<int kColumns>() {
    launch<TileCut<kColumns>>(GateUpMma{gate_up_task(p, memory, kScale)}, memory.pairs, p);
    launch<TileCut<kColumns>>(DownMma{down, memory.pair_outputs}, memory.pairs, p);
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
  add_pairs(added_pairs_of(p, memory), p.launch.stream);
}

}  // namespace moxie
