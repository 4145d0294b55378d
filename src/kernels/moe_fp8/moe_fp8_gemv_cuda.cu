// moe_fp8_block_scale for few tokens: tiles of up to 16 pairs of an expert, weights through rings
// in shared memory, products by mma in FP16, which holds every E4M3 value: exact, with F32 sums.
//
// Reading the weights is the limit: 44 MB an expert at hidden 7168 and intermediate 2048, 88 MFLOP
// a pair. Each warp copies rows of 128 contiguous bytes (64 bytes reach a seventh less bandwidth).
// Scales are applied to the sums of each block of 128 columns. The intermediate is FP16 with a
// power of two for 16 columns of a pair, so that neither its range nor another pair's NaN matters.
// Weights leave L2 first, except the first ones: those replace what earlier kernels wrote, whose
// way to memory would otherwise accompany all other reads.
// A launch of more than 128 tokens runs in pieces, each of which reads the weights again.
#include "core/cuda_launch.cuh"
#include "core/cuda_part.h"
#include "kernels/moe_fp8/moe_fp8_few_cuda.cuh"
#include "kernels/moe_fp8/moe_fp8_pairs_cuda.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"

namespace moxie {
namespace moe_fp8 {
namespace {

constexpr const char* kRow = "moe_fp8_block_scale_e4m3_f16_gemv_cuda";
constexpr int kWarps = 8, kThreads = 32 * kWarps, kBlocksOfSm = 2;

struct FewTask {
  Piece piece;
  __half* h = nullptr;           // [pairs, intermediate]
  uint8_t* exponents = nullptr;  // [pairs, intermediate / 16]
  int32_t first_streamed = 0;    // item of gate and up from which on weights leave L2 first
};

/// Adds up the warps' sums of 8 pairs and writes silu(gate) * up. [warp][up 0..3, gate 4..7][lane]
__device__ __forceinline__ void finish_pairs(const FewTask& task, const float* sums,
                                             int32_t first_pair, int32_t count, int32_t row_tile) {
  if (threadIdx.x >= 8 * kRows) return;
  // The 16 rows of a pair are 16 lanes of a warp.
  const int pair = threadIdx.x / kRows, row = threadIdx.x % kRows;
  const int lane = row % 8 * 4 + pair / 2, i = pair % 2 + row / 8 * 2;
  float up = 0, gate = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    up += sums[(w * 8 + i) * 32 + lane];
    gate += sums[(w * 8 + 4 + i) * 32 + lane];
  }
  const MiddleValue value = middle_value(up, gate);
  if (pair >= count) return;
  const int64_t at = first_pair + pair;
  task.h[at * task.piece.p.intermediate + row_tile * kRows + row] = value.h;
  if (row == 0)
    task.exponents[at * (task.piece.p.intermediate / kRows) + row_tile] = value.exponent;
}

template <int kSlots>
constexpr uint64_t kUpShared = kWarps* RowRing<kSlots, 2 * kRows>::kBytes + 4 * kWarps * 8 * 32;

/// Item: 16 values of the intermediate of a tile of pairs; the warps share the columns.
template <int kSlots>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    up_few(const __grid_constant__ FewTask task) {
  extern __shared__ __align__(16) std::byte memory[];
  RowRing<kSlots, 2 * kRows> ring(memory);
  auto* sums = reinterpret_cast<float*>(memory + kWarps * decltype(ring)::kBytes);
  const MoeFp8Params& p = task.piece.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int32_t row_tiles = p.intermediate / kRows, blocks = p.hidden / kFp8Block;
  const int32_t begin = warp * blocks / kWarps, end = (warp + 1) * blocks / kWarps;
  const int64_t gate_at = int64_t{p.intermediate} * p.hidden;
  wait_for_previous();
  launch_next();
  const int32_t num_items = *task.piece.num_tiles * row_tiles;

  int32_t copy_item = static_cast<int32_t>(blockIdx.x), copy_block = begin;
  int copy_slot = 0;
  const uint8_t* from = nullptr;
  const auto copy_next = [&] {
    if (copy_item < num_items && begin < end) {
      if (copy_block == begin) {
        const int64_t e = task.piece.tiles[copy_item / row_tiles].expert;
        const int64_t row = e * 2 * p.intermediate + copy_item % row_tiles * kRows + lane / 8;
        from = p.gemm1_weights + row * p.hidden + lane % 8 * 16 + begin * kFp8Block;
      }
      const auto copy_all = [&](auto copy_16) {
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          copy_16(ring.target(copy_slot, r), from + int64_t{r} * p.hidden);
          copy_16(ring.target(copy_slot, kRows + r), from + gate_at + int64_t{r} * p.hidden);
        }
      };
      if (copy_item < task.first_streamed)
        copy_all([](uint32_t to, const void* at) { copy_async_16(to, at); });
      else
        copy_all([](uint32_t to, const void* at) { copy_streamed_16(to, at); });
      from += kFp8Block;
      if (++copy_block == end) copy_block = begin, copy_item += gridDim.x;
    }
    commit_copies();
    copy_slot = copy_slot + 1 == kSlots ? 0 : copy_slot + 1;
  };
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) copy_next();

  int slot = 0;
  for (int32_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const PairTile tile = task.piece.tiles[item / row_tiles];
    const int32_t row_tile = item % row_tiles;
    const int64_t scale_rows = p.intermediate / kFp8Block;
    const float* up_scales =
        p.gemm1_weights_scale + (tile.expert * 2 * scale_rows + row_tile / 8) * blocks;
    const float* gate_scales = up_scales + scale_rows * blocks;
    const auto multiply = [&]<int kGroups>() {
      const uint8_t* x_of[kGroups];
      const float* scales_of[kGroups][2];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const auto token = [&](int pair) {
          return int64_t{task.piece.pair_token[tile.first + min(8 * j + pair, tile.count - 1)]};
        };
        x_of[j] = p.hidden_states + token(g) * p.hidden + q * 16;
#pragma unroll
        for (int c = 0; c < 2; ++c) scales_of[j][c] = p.hidden_states_scale + token(2 * q + c);
      }
      float up[kGroups][4] = {}, gate[kGroups][4] = {};
      uint4 x[kGroups][2];
      float x_scales[kGroups][2], w_scales[2];
      const auto load = [&](int32_t block) {
        w_scales[0] = __ldg(up_scales + block);
        w_scales[1] = __ldg(gate_scales + block);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            x[j][s] = __ldg(reinterpret_cast<const uint4*>(x_of[j] + block * kFp8Block + 64 * s));
            x_scales[j][s] = __ldg(scales_of[j][s] + int64_t{block} * task.piece.scale_stride);
          }
        }
      };
      load(begin);
      for (int32_t block = begin; block < end; ++block) {
        wait_for_copies<kSlots - 2>();
        __syncwarp();
        float of_up[kGroups][4] = {}, of_gate[kGroups][4] = {};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          uint4 w[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) w[r] = ring.get(slot, 8 * r, 4 * s);
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            add_products(of_up[j], w[0], w[1], x[j][s]);
            add_products(of_gate[j], w[2], w[3], x[j][s]);
          }
        }
        __syncwarp();
        copy_next();
        slot = slot + 1 == kSlots ? 0 : slot + 1;
        float scales[kGroups][2][2];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            scales[j][0][c] = w_scales[0] * x_scales[j][c];
            scales[j][1][c] = w_scales[1] * x_scales[j][c];
          }
        }
        if (block + 1 < end) load(block + 1);
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            up[j][i] += of_up[j][i] * scales[j][0][i % 2];
            gate[j][i] += of_gate[j][i] * scales[j][1][i % 2];
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[(warp * 8 + i) * 32 + lane] = up[j][i];
          sums[(warp * 8 + 4 + i) * 32 + lane] = gate[j][i];
        }
        __syncthreads();
        finish_pairs(task, sums, tile.first + 8 * j, tile.count - 8 * j, row_tile);
        __syncthreads();
      }
    };
    if (tile.count <= 8)
      multiply.template operator()<1>();
    else
      multiply.template operator()<2>();
  }
}

template <int kSlots>
constexpr uint64_t kDownShared = kWarps* RowRing<kSlots, kRows>::kBytes;

/// Item: 16 outputs of a tile of pairs, by a warp.
template <int kSlots>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    down_few(const __grid_constant__ FewTask task) {
  extern __shared__ __align__(16) std::byte memory[];
  RowRing<kSlots, kRows> ring(memory);
  const MoeFp8Params& p = task.piece.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int32_t row_tiles = p.hidden / kRows, blocks = p.intermediate / kFp8Block;
  // The tiles were written two kernels earlier.
  const int32_t num_items = *task.piece.num_tiles * row_tiles;
  const auto step = static_cast<int32_t>(gridDim.x) * kWarps;
  const int32_t first_item = static_cast<int32_t>(blockIdx.x) * kWarps + warp;

  int32_t copy_item = first_item, copy_block = 0;
  int copy_slot = 0;
  const uint8_t* from = nullptr;
  const auto copy_next = [&] {
    if (copy_item < num_items) {
      if (copy_block == 0) {
        const int64_t e = task.piece.tiles[copy_item / row_tiles].expert;
        const int64_t row = e * p.hidden + copy_item % row_tiles * kRows + lane / 8;
        from = p.gemm2_weights + row * p.intermediate + lane % 8 * 16;
      }
#pragma unroll
      for (int r = 0; r < kRows; r += 4)
        copy_streamed_16(ring.target(copy_slot, r), from + int64_t{r} * p.intermediate);
      from += kFp8Block;
      if (++copy_block == blocks) copy_block = 0, copy_item += step;
    }
    commit_copies();
    copy_slot = copy_slot + 1 == kSlots ? 0 : copy_slot + 1;
  };
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) copy_next();
  wait_for_previous();
  launch_next();

  int slot = 0;
  for (int32_t item = first_item; item < num_items; item += step) {
    const PairTile tile = task.piece.tiles[item / row_tiles];
    const int32_t row_tile = item % row_tiles;
    const float* scales = p.gemm2_weights_scale +
                          (int64_t{tile.expert} * (p.hidden / kFp8Block) + row_tile / 8) * blocks;
    const auto multiply = [&]<int kGroups>() {
      float sum[kGroups][4] = {};
      int64_t pair_of[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) pair_of[j] = tile.first + min(8 * j + g, tile.count - 1);
      Middle middle[kGroups];
      float scale = 0;
      const auto load = [&](int32_t block) {
        scale = __ldg(scales + block);
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          middle[j].load(task.h + pair_of[j] * p.intermediate + block * kFp8Block + q * 16,
                         task.exponents + pair_of[j] * (p.intermediate / kRows) + block * 8);
      };
      load(0);
      for (int32_t block = 0; block < blocks; ++block) {
        uint32_t aligned[kGroups][2][4][2];
        float pair_scale[kGroups];
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
          pair_scale[j] = scale * power_of_two(middle[j].align(aligned[j]) - kTop);
        if (block + 1 < blocks) load(block + 1);
        wait_for_copies<kSlots - 2>();
        __syncwarp();
        float products[kGroups][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 top = ring.get(slot, 0, 4 * half), bottom = ring.get(slot, 8, 4 * half);
          const uint32_t tops[4] = {top.x, top.y, top.z, top.w};
          const uint32_t bottoms[4] = {bottom.x, bottom.y, bottom.z, bottom.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < kGroups; ++j)
              add_product(products[j], tops[i], bottoms[i], aligned[j][half][i]);
          }
        }
        __syncwarp();
        copy_next();
        slot = slot + 1 == kSlots ? 0 : slot + 1;
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          const float scale0 = __shfl_sync(~0u, pair_scale[j], 8 * q);
          const float scale1 = __shfl_sync(~0u, pair_scale[j], 8 * q + 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[j][i] += products[j][i] * (i % 2 == 0 ? scale0 : scale1);
        }
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int32_t pair = 8 * j + 2 * q + i % 2;
          if (pair < tile.count)
            static_cast<float*>(task.piece.sums)[int64_t{tile.first + pair} * p.hidden +
                                                 row_tile * kRows + g + i / 2 * 8] = sum[j][i];
        }
      }
    };
    if (tile.count <= 8)
      multiply.template operator()<1>();
    else
      multiply.template operator()<2>();
  }
}

FewTask lay_out(const MoeFp8Params& p, std::byte* base, uint64_t* bytes = nullptr) {
  const int32_t num_tokens = std::min(p.num_tokens, kMostFewTokens);
  const int64_t pairs = most_pairs(p, num_tokens);
  Scratch scratch(base);
  FewTask task{.piece = take_piece(p, num_tokens, kFewPairs, DType::kF32, scratch)};
  task.h = scratch.take<__half>(pairs * p.intermediate);
  task.exponents = scratch.take<uint8_t>(pairs * (p.intermediate / kRows));
  if (bytes != nullptr) *bytes = scratch.bytes();
  return task;
}

template <int kUpSlots, int kDownSlots>
void launch_products(const FewTask& task, unsigned num_blocks, cudaStream_t stream) {
  launch_kernel(kRow, up_few<kUpSlots>, task,
                {.grid = dim3(num_blocks),
                 .num_threads = kThreads,
                 .shared_bytes = kUpShared<kUpSlots>,
                 .programmatic = true},
                stream);
  launch_kernel(kRow, down_few<kDownSlots>, task,
                {.grid = dim3(num_blocks),
                 .num_threads = kThreads,
                 .shared_bytes = kDownShared<kDownSlots>,
                 .programmatic = true},
                stream);
}

}  // namespace
}  // namespace moe_fp8

uint64_t moe_fp8_block_scale_e4m3_f16_gemv_cuda_workspace(const MoeFp8Params& p) {
  uint64_t bytes = 0;
  moe_fp8::lay_out(p, nullptr, &bytes);
  return bytes;
}

void moe_fp8_block_scale_e4m3_f16_gemv_cuda(const MoeFp8Params& p) {
  using namespace moe_fp8;
  const cudaStream_t stream = launch_stream(p.launch.stream);
  int device = 0;
  check_launched(cudaGetDevice(&device), kRow);
  const auto attribute = [&](cudaDeviceAttr name) {
    int value = 0;
    check_launched(cudaDeviceGetAttribute(&value, name, device), kRow);
    return value;
  };
  const int shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const auto num_blocks = static_cast<unsigned>(kBlocksOfSm * num_multiprocessors());
  FewTask task = lay_out(p, p.launch.workspace);
  // The bytes before it replace L2 twice.
  task.first_streamed = static_cast<int32_t>(int64_t{2} * attribute(cudaDevAttrL2CacheSize) /
                                             (int64_t{2} * kRows * p.hidden));
  for (int32_t first = 0; first < p.num_tokens; first += kMostFewTokens) {
    set_tokens(p, first, std::min(kMostFewTokens, p.num_tokens - first), task.piece);
    route_few(kRow, task.piece, p.launch.stream);
    // sm_120 has less shared memory than the deeper rings take.
    if (static_cast<uint64_t>(shared) >= std::max(kUpShared<3>, kDownShared<6>))
      launch_products<3, 6>(task, num_blocks, stream);
    else
      launch_products<2, 4>(task, num_blocks, stream);
    add_pairs(kRow, task.piece, p.launch.stream);
  }
}

}  // namespace moxie
