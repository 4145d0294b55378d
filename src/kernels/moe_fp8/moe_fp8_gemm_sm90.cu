// moe_fp8_block_scale on Hopper for many tokens: tiles of up to 128 pairs of an expert, by wgmma.
//
// Gate and up are products of E4M3 by E4M3, 64 rows of each a warpgroup; down widens the weights to
// FP16 in registers and takes the intermediate in FP16, with a power of two for 128 columns of a
// pair. Scales are applied to the sums of each block of 128 columns. A warpgroup copies, two
// multiply. 88 MFLOP a pair at hidden 7168 and intermediate 2048, 44 MB an expert.
#include <cuda.h>
#include <cuda_fp16.h>

#include "core/cuda_launch.cuh"
#include "kernels/gemm/wgmma_fp8_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"
#include "kernels/wgmma.cuh"

namespace moxie {
namespace moe_fp8 {
namespace {

using gemm::wgmma_e4m3;
using gemm::wgmma_f16;

constexpr const char* kRow = "moe_fp8_block_scale_e4m3_f16_gemm_sm90";
constexpr int kThreads = 384, kCopyThreads = 128;
// The kernels are empty for architectures other than sm_90a, and use nothing of this there.
[[maybe_unused]] constexpr int kMathThreads = kThreads - kCopyThreads;
[[maybe_unused]] constexpr int kCopyRegisters = 40, kMathRegisters = 232;
constexpr int kBoxBytes = 128 * 128;  // of 128 rows of 128 bytes
[[maybe_unused]] constexpr int kMathBarrier = 1;
constexpr int kBlock = kFp8Block;
// Exponents of F32, biased. FP16 holds the greatest of 128 columns as 2^14 to 2^15.
[[maybe_unused]] constexpr int kTop = 14, kLeastExponent = 16, kMostExponent = 254;
// A launch runs in pieces whose scratch is at most this, and of at most so many tokens.
constexpr uint64_t kMostScratch = uint64_t{4} << 30;
constexpr int32_t kMostTokens = 16384;

struct ManyTask {
  Piece piece;
  __half* h = nullptr;        // [pairs, intermediate], the columns of 64 in the order of place_of()
  float* h_scales = nullptr;  // [pairs, intermediate / 128]
  CUtensorMap w1 = {}, w2 = {}, middle = {};
};

/// A ring's barriers, and the scales of the pairs' blocks.
template <int kStages_>
struct Ring {
  static constexpr int kStages = kStages_;
  float scales[kStages][kManyPairs];
  uint64_t full[kStages], empty[kStages];

  /// By one thread. Full: the copying threads and the bytes of boxes; empty: the math warps.
  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&full[i], kCopyThreads + 1);
      init_barrier(&empty[i], kMathThreads / 32);
    }
  }
};

struct UpShared {
  static constexpr int kStageBytes = 3 * kBoxBytes;  // up, gate, activations
  Ring<4> ring;
  uint32_t greatest[kManyPairs];  // bits of the greatest |h| of a pair
};
struct DownShared {
  static constexpr int kStageBytes = 4 * kBoxBytes;  // 256 rows, 128 columns of the middle
  Ring<3> ring;
};
template <typename Shared>
constexpr int kRingBytes = decltype(Shared::ring)::kStages* Shared::kStageBytes;
template <typename Shared>
constexpr uint64_t kSharedBytes = kRingBytes<Shared> + sizeof(Shared);

/// Where column k of 64 lies: as widened weights lie in mma's first operand.
[[maybe_unused]] __device__ __forceinline__ int place_of(int k) {
  return k / 4 % 4 * 16 + k / 2 % 2 * 8 + k / 16 * 2 + k % 2;
}

/// sum += products, times the scale of each column (of this lane: 8 i + 2 q and the next) and of
/// the weights.
template <int kColumns>
__device__ __forceinline__ void add_scaled(float* sum, const float* products, const float* scales,
                                           float of_weights) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const float2 of_pairs = *reinterpret_cast<const float2*>(scales + 8 * i + 2 * q);
    const float scale0 = of_pairs.x * of_weights, scale1 = of_pairs.y * of_weights;
    sum[4 * i] += products[4 * i] * scale0;
    sum[4 * i + 1] += products[4 * i + 1] * scale1;
    sum[4 * i + 2] += products[4 * i + 2] * scale0;
    sum[4 * i + 3] += products[4 * i + 3] * scale1;
  }
}

/// An item of a kernel: a block of rows of one tile of pairs.
struct ManyItem {
  PairTile tile;
  int32_t block;
};
__device__ __forceinline__ ManyItem item_of(const ManyTask& task, int32_t item, int32_t blocks) {
  return {task.piece.tiles[item / blocks], item % blocks};
}

// ---- Gate and up --------------------------------------------------------------------------------

/// The copying warpgroup: boxes of weights by one thread, activations of scattered tokens by all.
[[maybe_unused]] __device__ __forceinline__ void copy_up(const ManyTask& task, std::byte* stages,
                                                         UpShared& shared, int32_t num_items) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const auto thread = static_cast<int>(threadIdx.x);
  const int chunk = thread % 8;
  uint32_t place = 0;
  for (int32_t i = blockIdx.x; i < num_items; i += gridDim.x) {
    const auto [tile, block] = item_of(task, i, p.intermediate / kBlock);
    const auto token = [&](int pair) {
      return int64_t{task.piece.pair_token[tile.first + min(pair, tile.count - 1)]};
    };
    const int num_rows = (tile.count + 15) / 16 * 16;
    const uint8_t* from[8];
#pragma unroll
    for (int r = 0; r < 8; ++r)
      from[r] = p.hidden_states + token(thread / 8 + 16 * r) * p.hidden + chunk * 16;
    const float* scales = p.hidden_states_scale + token(thread);
    const int32_t row = tile.expert * 2 * p.intermediate + block * kBlock;
    for (int32_t kb = 0; kb < p.hidden / kBlock; ++kb, ++place) {
      const uint32_t stage = place % R::kStages;
      wait_barrier(&shared.ring.empty[stage], place / R::kStages % 2 ^ 1);  // empty from the start
      std::byte* to = stages + stage * UpShared::kStageBytes;
      uint64_t* full = &shared.ring.full[stage];
      if (thread == 0) {
        expect_bytes(full, 2 * kBoxBytes);
        copy_box(to, &task.w1, kb * kBlock, row, full);
        copy_box(to + kBoxBytes, &task.w1, kb * kBlock, row + p.intermediate, full);
      }
      copy_async_4(shared_address(&shared.ring.scales[stage][thread]),
                   scales + int64_t{kb} * task.piece.scale_stride);
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const int pair = thread / 8 + 16 * r;
        if (16 * r < num_rows)
          copy_async_16(
              shared_address(to + 2 * kBoxBytes + pair * 128 + ((chunk ^ (pair & 7)) << 4)),
              from[r] + kb * kBlock);
      }
      arrive_after_copies(full);
    }
  }
}

/// silu(gate) * up of this warpgroup's 64 rows, in `up`, to memory.
template <int kColumns>
__device__ __forceinline__ void finish_up(const ManyTask& task, UpShared& shared, int group,
                                          const ManyItem& item, float* up, const float* gate) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32, g = lane / 4,
            q = lane % 4;
  barrier_wait(kMathBarrier, kMathThreads);  // the item before has read `greatest`
  if (threadIdx.x - kCopyThreads < kManyPairs) shared.greatest[threadIdx.x - kCopyThreads] = 0;
  barrier_wait(kMathBarrier, kMathThreads);
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) up[i] *= gate[i] / (1.0f + __expf(-gate[i]));
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      uint32_t greatest = max(__float_as_uint(up[4 * i + c]) & 0x7FFFFFFFu,
                              __float_as_uint(up[4 * i + 2 + c]) & 0x7FFFFFFFu);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2)
        greatest = max(greatest, __shfl_xor_sync(~0u, greatest, offset));
      if (g == 0) atomicMax(&shared.greatest[8 * i + 2 * q + c], greatest);
    }
  }
  barrier_wait(kMathBarrier, kMathThreads);
  const int32_t intermediate = task.piece.p.intermediate;
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * i + 2 * q + c;
      if (column >= item.tile.count) continue;
      const int exponent =
          min(max(static_cast<int>(shared.greatest[column] >> 23), kLeastExponent), kMostExponent);
      const float factor = __uint_as_float(static_cast<uint32_t>(2 * 127 + kTop - exponent) << 23);
      const int64_t pair = item.tile.first + column;
      __half* to = task.h + pair * intermediate + item.block * kBlock + group * 64;
      const int row = warp * 16 + g;
      to[place_of(row)] = __float2half_rn(up[4 * i + c] * factor);
      to[place_of(row + 8)] = __float2half_rn(up[4 * i + 2 + c] * factor);
      if (group == 0 && warp == 0 && g == 0)
        task.h_scales[pair * (intermediate / kBlock) + item.block] =
            __uint_as_float(static_cast<uint32_t>(exponent - kTop) << 23);
    }
  }
}

template <int kColumns>
__device__ __forceinline__ void multiply_up(const ManyTask& task, const std::byte* stages,
                                            UpShared& shared, int group, const ManyItem& item,
                                            uint32_t& place) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const int32_t blocks = p.hidden / kBlock;
  const int64_t scale_rows = p.intermediate / kBlock;
  const float* up_scales =
      p.gemm1_weights_scale + (item.tile.expert * 2 * scale_rows + item.block) * blocks;
  const float* gate_scales = up_scales + scale_rows * blocks;
  float up[kColumns / 2] = {}, gate[kColumns / 2] = {};
  float next[2] = {__ldg(up_scales), __ldg(gate_scales)};
  for (int32_t kb = 0; kb < blocks; ++kb, ++place) {
    const uint32_t stage = place % R::kStages;
    const float of_weights[2] = {next[0], next[1]};
    if (kb + 1 < blocks) next[0] = __ldg(up_scales + kb + 1), next[1] = __ldg(gate_scales + kb + 1);
    wait_barrier(&shared.ring.full[stage], place / R::kStages % 2);
    fence_bulk_copies();  // activations came by plain copies, wgmma reads by the other proxy
    const std::byte* from = stages + stage * UpShared::kStageBytes;
    const uint64_t x = tile_descriptor(from + 2 * kBoxBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t weights = tile_descriptor(from + half * kBoxBytes + group * 64 * 128);
      float products[kColumns / 2];
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_e4m3<kColumns>(products, weights + 2 * k, x + 2 * k, k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      add_scaled<kColumns>(half == 0 ? up : gate, products, shared.ring.scales[stage],
                           of_weights[half]);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive_barrier(&shared.ring.empty[stage]);
  }
  finish_up<kColumns>(task, shared, group, item, up, gate);
}

// ---- Down ---------------------------------------------------------------------------------------

[[maybe_unused]] __device__ __forceinline__ void copy_down(const ManyTask& task, std::byte* stages,
                                                           DownShared& shared, int32_t num_items,
                                                           int32_t blocks_of_rows) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const int32_t blocks = p.intermediate / kBlock;
  const auto thread = static_cast<int>(threadIdx.x);
  uint32_t place = 0;
  for (int32_t i = blockIdx.x; i < num_items; i += gridDim.x) {
    const auto [tile, block] = item_of(task, i, blocks_of_rows);
    const float* scales =
        task.h_scales + int64_t{tile.first + min(thread, tile.count - 1)} * blocks;
    const int32_t row = tile.expert * p.hidden + block * 2 * kBlock;
    for (int32_t kb = 0; kb < blocks; ++kb, ++place) {
      const uint32_t stage = place % R::kStages;
      wait_barrier(&shared.ring.empty[stage], place / R::kStages % 2 ^ 1);
      std::byte* to = stages + stage * DownShared::kStageBytes;
      uint64_t* full = &shared.ring.full[stage];
      if (thread == 0) {
        expect_bytes(full, DownShared::kStageBytes);
        copy_box(to, &task.w2, kb * kBlock, row, full);
        copy_box(to + kBoxBytes, &task.w2, kb * kBlock, row + kBlock, full);
        copy_box(to + 2 * kBoxBytes, &task.middle, kb * kBlock, tile.first, full);
        copy_box(to + 3 * kBoxBytes, &task.middle, kb * kBlock + 64, tile.first, full);
      }
      copy_async_4(shared_address(&shared.ring.scales[stage][thread]), scales + kb);
      arrive_after_copies(full);
    }
  }
}

/// Widens 128 columns of 16 rows: `row` has row g of a warp's tile, its row g + 8 is 1,024 bytes
/// further.
[[maybe_unused]] __device__ __forceinline__ void widen_rows(const std::byte* row,
                                                            uint32_t (&weights)[8][4]) {
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

template <int kColumns>
__device__ __forceinline__ void multiply_down(const ManyTask& task, const std::byte* stages,
                                              DownShared& shared, int group, const ManyItem& item,
                                              uint32_t& place) {
  using R = decltype(shared.ring);
  const MoeFp8Params& p = task.piece.p;
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int32_t blocks = p.intermediate / kBlock;
  // The group's 128 rows are one block of scales. Hidden may end with the first group's.
  const int32_t row_block = item.block * 2 + group;
  const bool is_inside = row_block < p.hidden / kBlock;
  const float* scales =
      p.gemm2_weights_scale +
      (int64_t{item.tile.expert} * (p.hidden / kBlock) + (is_inside ? row_block : 0)) * blocks;
  float sum[2][kColumns / 2] = {};
  for (int32_t kb = 0; kb < blocks; ++kb, ++place) {
    const uint32_t stage = place % R::kStages;
    const float of_weights = __ldg(scales + kb);
    wait_barrier(&shared.ring.full[stage], place / R::kStages % 2);
    const std::byte* from = stages + stage * DownShared::kStageBytes;
    const uint64_t middle = tile_descriptor(from + 2 * kBoxBytes);
    float products[kColumns / 2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t weights[8][4];
      widen_rows(from + (group * 128 + half * 64 + warp * 16 + g) * 128, weights);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k)
        wgmma_f16<kColumns>(products, weights[k], middle + k / 4 * (kBoxBytes >> 4) + 2 * (k % 4),
                            k > 0);
      wgmma_commit();
      wgmma_wait<0>();
      add_scaled<kColumns>(sum[half], products, shared.ring.scales[stage], of_weights);
    }
    __syncwarp();
    if (lane == 0) arrive_barrier(&shared.ring.empty[stage]);
  }
  if (!is_inside) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = row_block * kBlock + half * 64 + warp * 16 + g;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * i + 2 * q + c;
        if (column >= item.tile.count) continue;
        float* to = task.piece.sums + int64_t{item.tile.first + column} * p.hidden + row;
        __stcs(to, sum[half][4 * i + c]);
        __stcs(to + 8, sum[half][4 * i + 2 + c]);
      }
    }
  }
}

// ---- Kernels ------------------------------------------------------------------------------------

/// Calls visit<columns>() for the least width of products that `count` pairs fit.
template <typename Visit>
__device__ __forceinline__ void for_columns(int count, Visit&& visit) {
  switch ((count + 15) / 16) {
    case 0:
    case 1:
    case 2:
      visit.template operator()<32>();
      break;
    case 3:
      visit.template operator()<48>();
      break;
    case 4:
      visit.template operator()<64>();
      break;
    case 5:
      visit.template operator()<80>();
      break;
    case 6:
      visit.template operator()<96>();
      break;
    case 7:
      visit.template operator()<112>();
      break;
    default:
      visit.template operator()<128>();
      break;
  }
}

/// The items of a kernel among its blocks, and the warpgroups of a block. copy(stages, shared,
/// items) runs in the first warpgroup, multiply<columns>(stages, shared, group, item, place) in the
/// others.
template <typename Shared, typename Copy, typename Multiply>
__device__ __forceinline__ void run_items(const ManyTask& task, int32_t blocks, Copy&& copy,
                                          Multiply&& multiply) {
  extern __shared__ __align__(1024) std::byte stages[];
  auto& shared = *reinterpret_cast<Shared*>(stages + kRingBytes<Shared>);
  if (threadIdx.x == 0) shared.ring.init();
  __syncthreads();
  wait_for_previous();
  launch_next();
  const int32_t num_items = *task.piece.num_tiles * blocks;
  if (threadIdx.x < kCopyThreads) {
    give_registers<kCopyRegisters>();
    copy(stages, shared, num_items);
    return;
  }
  take_registers<kMathRegisters>();
  const int group = threadIdx.x / 128 - 1;
  uint32_t place = 0;
  for (int32_t i = blockIdx.x; i < num_items; i += gridDim.x) {
    const ManyItem item = item_of(task, i, blocks);
    for_columns(item.tile.count, [&]<int kColumns>() {
      multiply.template operator()<kColumns>(stages, shared, group, item, place);
    });
  }
}

/// Item: 128 values of the intermediate of a tile of pairs.
__global__ void __launch_bounds__(kThreads, 1) up_many(const __grid_constant__ ManyTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_items<UpShared>(
      task, task.piece.p.intermediate / kBlock,
      [&](std::byte* stages, UpShared& shared, int32_t num_items) {
        copy_up(task, stages, shared, num_items);
      },
      [&]<int kColumns>(const std::byte* stages, UpShared& shared, int group, const ManyItem& item,
                        uint32_t& place) {
        multiply_up<kColumns>(task, stages, shared, group, item, place);
      });
#endif
}

/// Item: 256 outputs of a tile of pairs; the last of an expert may be 128.
__global__ void __launch_bounds__(kThreads, 1) down_many(const __grid_constant__ ManyTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int32_t blocks = (task.piece.p.hidden / kBlock + 1) / 2;
  run_items<DownShared>(
      task, blocks,
      [&](std::byte* stages, DownShared& shared, int32_t num_items) {
        copy_down(task, stages, shared, num_items, blocks);
      },
      [&]<int kColumns>(const std::byte* stages, DownShared& shared, int group,
                        const ManyItem& item, uint32_t& place) {
        multiply_down<kColumns>(task, stages, shared, group, item, place);
      });
#endif
}

/// A map of boxes of 128 rows of 128 bytes with the 128-byte swizzle. The driver's function is
/// asked for at run time, so that nothing links libcuda.
CUtensorMap map_of(const void* base, CUtensorMapDataType type, int64_t element_bytes,
                   int64_t columns, int64_t rows) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    constexpr unsigned kVersion = 12000;
    check_launched(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kVersion,
                                                    cudaEnableDefault, &result),
                   kRow);
    CHECK(found != nullptr, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * element_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), 128}, ones[2] = {1, 1};
  CUtensorMap map;
  const CUresult error =
      encode(&map, type, 2, const_cast<void*>(base), extents, strides, box, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(error == CUDA_SUCCESS, "cuTensorMapEncodeTiled: " + std::to_string(error));
  return map;
}

int32_t tokens_of_piece(const MoeFp8Params& p) {
  const int64_t token_bytes =
      most_pairs(p, 1) * (int64_t{2} * p.intermediate + int64_t{4} * p.hidden);
  const int64_t most = std::max<int64_t>(static_cast<int64_t>(kMostScratch) / token_bytes, 1);
  return static_cast<int32_t>(std::min<int64_t>({p.num_tokens, most, kMostTokens}));
}

ManyTask lay_out(const MoeFp8Params& p, std::byte* base, uint64_t* bytes = nullptr) {
  const int32_t num_tokens = tokens_of_piece(p);
  const int64_t pairs = most_pairs(p, num_tokens);
  Scratch scratch(base);
  ManyTask task{.piece = take_piece(p, num_tokens, kManyPairs, scratch)};
  task.h = scratch.take<__half>(pairs * p.intermediate);
  task.h_scales = scratch.take<float>(pairs * (p.intermediate / kBlock));
  if (bytes != nullptr) *bytes = scratch.bytes();
  return task;
}

}  // namespace
}  // namespace moe_fp8

uint64_t moe_fp8_block_scale_e4m3_f16_gemm_sm90_workspace(const MoeFp8Params& p) {
  uint64_t bytes = 0;
  moe_fp8::lay_out(p, nullptr, &bytes);
  return bytes;
}

void moe_fp8_block_scale_e4m3_f16_gemm_sm90(const MoeFp8Params& p) {
  using namespace moe_fp8;
  if (p.num_tokens == 0) return;
  const cudaStream_t stream = launch_stream(p.launch.stream);
  int device = 0, units = 0;
  check_launched(cudaGetDevice(&device), kRow);
  check_launched(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device), kRow);
  ManyTask task = lay_out(p, p.launch.workspace);
  const int32_t piece = tokens_of_piece(p);
  const int64_t local = p.num_local_experts;
  task.w1 = map_of(p.gemm1_weights, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, p.hidden,
                   local * 2 * p.intermediate);
  task.w2 =
      map_of(p.gemm2_weights, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, p.intermediate, local * p.hidden);
  task.middle =
      map_of(task.h, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, p.intermediate, most_pairs(p, piece));
  for (int32_t first = 0; first < p.num_tokens; first += piece) {
    set_tokens(p, first, std::min(piece, p.num_tokens - first), task.piece);
    route_many(kRow, task.piece, p.launch.stream);
    const auto launch = [&](auto kernel, uint64_t shared_bytes) {
      launch_kernel(kRow, kernel, task,
                    {.grid = dim3(static_cast<unsigned>(units)),
                     .num_threads = kThreads,
                     .shared_bytes = shared_bytes,
                     .programmatic = true},
                    stream);
    };
    launch(up_many, kSharedBytes<UpShared>);
    launch(down_many, kSharedBytes<DownShared>);
    add_pairs(kRow, task.piece, p.launch.stream);
  }
}

}  // namespace moxie
