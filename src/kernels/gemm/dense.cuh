// What the products of dense layers share: items over all tokens, and how sums reach a step's end.
#pragma once

#include <algorithm>

#include "kernels/gemm/operand.cuh"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/gemv/slice_gemv.cuh"

namespace moxie::gemm {

/// The work of one matrix times `num_columns` staged rows. Neighbouring items are the row blocks of
/// one tile of columns, so that items that run at the same time share activations, and the weights
/// stay in L2.
struct DenseItems {
  int32_t num_columns = 0, tile_columns = 0, row_blocks = 0, tiles_a_block = 0;
  bool has_few_rows = false;  ///< on Hopper: blocks of 64 rows

  int64_t num_items() const { return int64_t{row_blocks} * ceil_div(num_columns, tile_columns); }

#ifdef __CUDACC__
  __device__ __forceinline__ int count() const {
    return row_blocks * ((num_columns + tile_columns - 1) / tile_columns);
  }
  __device__ __forceinline__ Item at(int i) const {
    const int tile = i / row_blocks, first = tile * tile_columns;
    return {.expert = 0,
            .first_tile = (i - tile * row_blocks) * tiles_a_block,
            .first_column = first,
            .num_columns = min(tile_columns, num_columns - first)};
  }
  __device__ __forceinline__ int width(int) const { return tile_columns; }
  __device__ __forceinline__ bool item(int i, Item& item) const {
    item = at(i);
    return item.first_column < num_columns;
  }
#endif
};

/// Why a matrix cannot be multiplied here; null if it can. `most_columns`: that the staging takes.
inline const char* refuses_product(const PackedMatrix& weight,
                                   int32_t most_columns = kMaxStagedWidth) {
  if (weight.layout != PackedLayout::kFragment16x32) return "weights are not packed for CUDA";
  if (weight.format != DType::kMXFP4 && weight.format != DType::kMXFP8 &&
      weight.format != DType::kBF16) {
    return "weights are not MXFP4, MXFP8 or BF16";
  }
  if (weight.cols % 4 != 0) return "columns are not a multiple of 4";
  if (weight.cols > most_columns) return "more columns than are staged";
  return nullptr;
}

/// In wide blocks (wide_block_sm90.cuh) sums wait for their end in FP16, as this part of their
/// values: up to 2^24 with eleven bits, and with an error of 2^-17 where they are small.
inline constexpr float kHalfScale = 0x1p-8f;

#ifdef __CUDACC__
/// A warp's sums of 16 rows and some columns, in shared memory: an end reads them from there column
/// by column, in the order in which it writes memory. An end that read registers would be a program
/// so long that its instructions would arrive too late.
struct SumsTile {
  static constexpr int kMostColumns = 64;
  static constexpr int kBytes = 16 * kMostColumns * sizeof(float);
  const float* sums;

  MOXIE_HOST_DEVICE static constexpr int place(int column_pair, int row) {
    return column_pair * 32 + 2 * (row ^ column_pair % 4 * 4);
  }
  __device__ __forceinline__ float at(int column, int row) const {
    return sums[place(column / 2, row) + column % 2];
  }
};

/// Cuts whose warps have registers left when their sums are complete: an end loads for more columns
/// at a time.
template <typename Cut>
concept HasRoomAtEnd = requires {
  requires Cut::kHasRoomAtEnd;
};

/// Rounds a sum as wide blocks do, so that a column's outputs are the same
/// bits in any number of columns.
__device__ __forceinline__ float rounded_as_wide(float sum) {
  return __half2float(__float2half_rn(sum * kHalfScale)) * (1.0f / kHalfScale);
}

/// The task of a dense product, without its end. End's
///   template <Cut> void store(const SumsTile&, int tile, int rows, int first_column, int
///   num_columns)
/// uses the sums of tile `tile` of a matrix with `rows` rows.
/// kRounds: sums are rounded_as_wide() first.
template <typename End, bool kRounds = false>
struct DenseProduct {
  static constexpr bool kEndsAlone = true;
  template <typename Cut>
  static constexpr int kSharedBytes = SumsTile::kBytes * 4 * (Cut::kSplitsK ? 1 : Cut::kWarpgroups);
  DenseItems items;
  PackedMatrix weight;
  StagedView staged;
  float scale;
  End end;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }
  struct NothingHeld {};
  template <int kColumns>
  __device__ __forceinline__ NothingHeld begin(const Item&, int) const {
    return {};
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared,
                                         NothingHeld) const {
    finish<Cut, kColumns>(item, tile, sums, shared);
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    constexpr int kSteps = (kColumns + SumsTile::kMostColumns - 1) / SumsTile::kMostColumns;
    constexpr int kStep = kColumns / kSteps;
    static_assert(kStep % 8 == 0 && kStep * kSteps == kColumns);
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    float* mine =
        reinterpret_cast<float*>(shared + (threadIdx.x / 32 - Cut::kFirstWarp) * SumsTile::kBytes);
    // The outer loop holds the end's code once; the inner one makes register numbers constants.
#pragma unroll 1
    for (int part = 0; part < Cut::kRowTiles * kSteps; ++part) {
#pragma unroll
      for (int known = 0; known < Cut::kRowTiles * kSteps; ++known) {
        if (part != known) continue;
#pragma unroll
        for (int i = 0; i < kStep / 8; ++i) {
          const float* d = &sums[known / kSteps][known % kSteps * (kStep / 2) + 4 * i];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float2 pair = make_float2(d[2 * half] * scale, d[2 * half + 1] * scale);
            if constexpr (kRounds) pair = {rounded_as_wide(pair.x), rounded_as_wide(pair.y)};
            *reinterpret_cast<float2*>(mine + SumsTile::place(4 * i + q, g + 8 * half)) = pair;
          }
        }
      }
      __syncwarp();
      const int this_tile = tile + part / kSteps * 4, first = part % kSteps * kStep;
      if (16 * this_tile < weight.rows && first < item.num_columns) {
        end.template store<Cut>(SumsTile{mine}, this_tile, weight.rows, item.first_column + first,
                                min(kStep, item.num_columns - first));
      }
      __syncwarp();
    }
  }
  __device__ __forceinline__ void drain() const {}
};

/// Calls launch<F>() for a format that refuses_product lets through.
template <typename Launch>
void dispatch_product(DType format, Launch&& launch) {
  if (format == DType::kMXFP4) return launch.template operator()<DType::kMXFP4>();
  if (format == DType::kMXFP8) return launch.template operator()<DType::kMXFP8>();
  CHECK(format == DType::kBF16, "not a format of products");
  launch.template operator()<DType::kBF16>();
}

/// Where a row that stages its own columns has them: at the beginning of its workspace.
inline StagedView dense_columns(const PackedMatrix& weight, int32_t num_columns, const Launch& at) {
  return {at.workspace, round_up(num_columns, kStagedRows), weight.cols};
}
#endif

}  // namespace moxie::gemm
