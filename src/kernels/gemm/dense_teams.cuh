// Products of dense layers with 2 to some 64 tokens on any GPU since sm_80. A dense layer has few
// rows: cut into blocks of 128 as in product_mma.cuh, `out` of gpt-oss would be 23 blocks, which
// read 1 MB one unit after another. Here a block makes one or two tiles of 16 rows, and its warps
// share the columns of K: warp w multiplies units w, w + kWarps, ... from a ring of its own, and
// the sums of all warps are added in the warps' order at the end. So the same number of tokens
// gives the same bits, but other numbers may give others.
//
// For `out` of 4,096 columns and 2,880 rows in BF16: 23.6 MB of weights; 180 blocks of 16 rows with
// up to 8 tokens, else 90 of 32 rows for each 32 tokens. Those of the same rows are neighbours: one
// reads their weights from memory, the others from L2. With 64 tokens L2 gives 47 MB of weights and
// as much of activations.
#pragma once

#include "kernels/gemm/dense_mma.cuh"

namespace moxie::gemm {

template <int kMostColumns_, int kRowTiles_, int kWarps_>
struct TeamsCut {
  using Atom = Bf16Atom;
  static constexpr int kWarps = kWarps_, kRowTiles = kRowTiles_, kMostColumns = kMostColumns_;
  static constexpr int kRows = 16 * kRowTiles, kThreads = 32 * kWarps, kBlocks = 2;
  static constexpr int kWarpgroups = 1;
  static constexpr int kRowBytes = kStagedRowBytes;
  /// Warps that write the sums of a tile, each some of its columns.
  static constexpr int kWriters = std::max(1, std::min(kWarps / kRowTiles, kMostColumns / 8));
};

template <DType F, typename Cut>
struct TeamsShared : MmaShared<F, Cut> {
  using MmaShared<F, Cut>::kStageBytes;
  static constexpr int kStages =
      std::clamp(static_cast<int>(kPortableSharedBytes) / Cut::kWarps / kStageBytes, 2, 4);
  static constexpr int kTileFloats = 16 * Cut::kMostColumns;
  static constexpr uint64_t kBytes = uint64_t{Cut::kWarps} * kStages * kStageBytes;
  static_assert(kBytes <= kPortableSharedBytes);
  static_assert(4 * Cut::kWarps * Cut::kRowTiles * kTileFloats <= kBytes,
                "the sums lie there, too");
};

/// A product; its end is as DenseProduct's.
template <typename End>
struct TeamsProduct {
  int32_t num_columns, num_column_tiles, tile_columns;
  PackedMatrix weight;
  StagedView staged;
  float scale;
  End end;
};

#ifdef __CUDACC__

/// sums += a warp's tiles of a unit times its columns. Activations are loaded one step of eight
/// columns ahead of the products that use them.
template <DType F, typename Cut>
__device__ __forceinline__ void multiply_unit(uint32_t stage, Sums<Cut, Cut::kMostColumns>& sums) {
  using S = MmaShared<F, Cut>;
  constexpr int kTiles = Cut::kRowTiles, kSteps = Cut::kMostColumns / 8;
  // Matrix i of a load is chunk i of a block of 32 columns of K: the operands of two products.
  const uint32_t lane = threadIdx.x % 32, row = lane % 8;
  const uint32_t first = stage + row * Cut::kRowBytes;
  fragment::Unit<F> units[kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
    units[m] = load_operand<F>(stage + S::kWeightsAt + m * S::kTileBytes);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t at = first + staged_pair_offset(row, 16 * block + lane / 8);
    uint32_t b[2][4];
    load_matrices(at, b[0]);
    uint32_t a[kTiles][8];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) make_operand<F>(units[m], block, a[m]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i + 1 < kSteps) load_matrices(at + 8 * (i + 1) * Cut::kRowBytes, b[(i + 1) % 2]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint32_t* of = &a[m][4 * k];
          mma_m16n8k16(reinterpret_cast<float(&)[4]>(sums[m][4 * i]), of[0], of[1], of[2], of[3],
                       b[i % 2][2 * k], b[i % 2][2 * k + 1]);
        }
      }
    }
  }
}

template <DType F, typename Cut, typename End>
__global__ void __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    teams_dense_kernel(const __grid_constant__ TeamsProduct<End> task) {
  using S = TeamsShared<F, Cut>;
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column_tile = blockIdx.x % task.num_column_tiles;
  const int first_tile = blockIdx.x / task.num_column_tiles * Cut::kRowTiles;
  const int first_column = column_tile * task.tile_columns;
  const int num_columns = min(task.tile_columns, task.num_columns - first_column);
  const int num_units = (task.weight.cols + kStagedColumns - 1) / kStagedColumns;
  const int num_mine = (num_units - warp + Cut::kWarps - 1) / Cut::kWarps;
  const uint32_t ring_at = shared_address(shared_bytes + warp * (S::kStages * S::kStageBytes));
  const std::byte* weights[Cut::kRowTiles];
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m)
    weights[m] = tile_of<F>(task.weight, num_units, 0, first_tile + m) + 16 * lane;
  const std::byte* const columns =
      task.staged.data + int64_t{Cut::kRowBytes} * first_column + 16 * lane;
  const int64_t columns_step = int64_t{Cut::kRowBytes} * task.staged.capacity;
  const int num_column_bytes = Cut::kRowBytes * ((num_columns + 7) / 8 * 8);
  // Of this warp's i-th unit.
  const auto copy_weights = [&](int i) {
    const uint32_t to = ring_at + i % S::kStages * S::kStageBytes + S::kWeightsAt + 16 * lane;
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m)
      copy_unit<F>(to + m * S::kTileBytes,
                   weights[m] + int64_t{warp + i * Cut::kWarps} * S::kTileBytes);
  };
  const auto copy_columns = [&](int i) {
    const uint32_t to = ring_at + i % S::kStages * S::kStageBytes + 16 * lane;
    const std::byte* from = columns + (warp + i * Cut::kWarps) * columns_step;
    for (int at = 0; at + 16 * lane < num_column_bytes; at += 512)
      copy_async_16(to + at, from + at);
  };
  // The first weights do not wait for the kernel that makes the activations.
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i)
    if (i < num_mine) copy_weights(i);
  wait_for_previous();
  launch_next();
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (i < num_mine) copy_columns(i);
    commit_copies();
  }
  Sums<Cut, Cut::kMostColumns> sums;
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < Cut::kMostColumns / 2; ++i) sums[m][i] = 0;
  }
#pragma unroll 1
  for (int i = 0; i < num_mine; ++i) {
    wait_for_copies<S::kStages - 2>();
    __syncwarp();  // all lanes' copies of this unit are there, and all have read the unit before
    if (const int ahead = i + S::kStages - 1; ahead < num_mine) {
      copy_weights(ahead);
      copy_columns(ahead);
    }
    commit_copies();
    multiply_unit<F, Cut>(ring_at + i % S::kStages * S::kStageBytes, sums);
  }
  wait_for_copies<0>();
  __syncthreads();  // the rings' memory is the sums' now: [warp][tile][SumsTile]
  auto* const all = reinterpret_cast<float*>(shared_bytes);
  constexpr int kOfWarp = Cut::kRowTiles * S::kTileFloats;
  const int g = lane / 4, q = lane % 4;
#pragma unroll
  for (int m = 0; m < Cut::kRowTiles; ++m) {
    float* const mine = all + warp * kOfWarp + m * S::kTileFloats;
#pragma unroll
    for (int i = 0; i < Cut::kMostColumns / 8; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* d = &sums[m][4 * i + 2 * half];
        *reinterpret_cast<float2*>(mine + SumsTile::place(4 * i + q, g + 8 * half)) =
            make_float2(d[0] * task.scale, d[1] * task.scale);
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kOfWarp; at += Cut::kThreads) {
    float sum = all[at];
#pragma unroll
    for (int w = 1; w < Cut::kWarps; ++w) sum += all[w * kOfWarp + at];
    all[at] = sum;
  }
  __syncthreads();
  constexpr int kEach = Cut::kMostColumns / Cut::kWriters;
  const int m = warp / Cut::kWriters, first = warp % Cut::kWriters * kEach;
  const int tile = first_tile + m;
  if (m >= Cut::kRowTiles || 16 * tile >= task.weight.rows || first >= num_columns) return;
  task.end.template store<Cut>(SumsTile{all + m * S::kTileFloats + SumsTile::place(first / 2, 0)},
                               tile, task.weight.rows, first_column + first,
                               min(kEach, num_columns - first));
}

/// Multiplies staged columns by `weight`; whatever refuses_product_mma() accepts.
template <typename End>
void multiply_dense_teams(const char* row, const PackedMatrix& weight, const StagedView& staged,
                          int32_t num_columns, const End& end, const Launch& at) {
  const auto launch = [&]<DType F, typename Cut>() {
    const int32_t num_tiles = ceil_div(num_columns, Cut::kMostColumns);
    const TeamsProduct<End> task{
        .num_columns = num_columns,
        .num_column_tiles = num_tiles,
        .tile_columns = round_up(ceil_div(num_columns, num_tiles), kStagedRows),
        .weight = weight,
        .staged = staged,
        .scale = kProductScale<F>,
        .end = end};
    launch_kernel(
        row, teams_dense_kernel<F, Cut, End>, task,
        {.grid = dim3(static_cast<unsigned>(ceil_div(weight.rows, Cut::kRows) * num_tiles)),
         .num_threads = Cut::kThreads,
         .shared_bytes = TeamsShared<F, Cut>::kBytes,
         .programmatic = true},
        launch_stream(at.stream));
  };
  const auto launch_cut = [&]<DType F>() {
    if (num_columns <= 8) return launch.template operator()<F, TeamsCut<8, 1, 8>>();
    launch.template operator()<F, TeamsCut<32, 2, 4>>();
  };
  if (weight.format == DType::kMXFP4) return launch_cut.template operator()<DType::kMXFP4>();
  CHECK(weight.format == DType::kBF16, "not a format of products");
  launch_cut.template operator()<DType::kBF16>();
}

#endif  // __CUDACC__

}  // namespace moxie::gemm
