// moe_fp8_block_scale on Hopper for many tokens: tiles of up to 128 pairs of an expert, by wgmma.
//
// Gate and up are products of E4M3 by E4M3. The exact row's down widens the weights to FP16 and
// takes the intermediate in FP16; the requantised row's is as gate and up. 88 MFLOP a pair at
// hidden 7168 and intermediate 2048, 44 MB an expert.
#include "core/cuda_part.h"
#include "kernels/moe_fp8/moe_fp8_e4m3_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_f16_sm90.cuh"
#include "kernels/moe_fp8/moe_fp8_rows.h"
#include "kernels/tensor_map_sm90.h"

namespace moxie {
namespace moe_fp8 {
namespace {

constexpr int kLayThreads = 256;
// A launch runs in pieces whose scratch is at most this, and of at most so many tokens.
constexpr uint64_t kMostScratch = uint64_t{6} << 30;
constexpr int32_t kMostTokens = 16384;

/// The exponent of the greatest of 16 activations, about; small if all are zero.
__device__ __forceinline__ int size_of(const uint4& codes, float scale) {
  constexpr uint32_t kMagnitudes = 0x7F7F7F7F;
  uint32_t most = __vmaxu4(__vmaxu4(codes.x & kMagnitudes, codes.y & kMagnitudes),
                           __vmaxu4(codes.z & kMagnitudes, codes.w & kMagnitudes));
  most = max(max(most & 0xFF, most >> 8 & 0xFF), max(most >> 16 & 0xFF, most >> 24));
  if (most == 0 || scale == 0) return -kMostSize;
  return static_cast<int>(most >> 3) - 7 + static_cast<int>((__float_as_uint(scale) >> 23 & 0xFF)) -
         127;
}

/// By a thread: notes the pair at its token's choice.
__device__ __forceinline__ void note_pair(const Piece& piece, int32_t expert, int32_t pair,
                                          int32_t token) {
  const int64_t first = int64_t{token} * piece.p.top_k;
  for (int32_t k = 0; k < piece.p.top_k; ++k) {
    if (piece.chosen[first + k] == expert) piece.pair_of_choice[first + k] = pair;
  }
}

/// A thread copies some of a pair's scales, and of each pair one notes it at its token's choice;
/// then a warp copies a pair's activations, and finds its size where the intermediate is FP16.
template <bool kIsExact>
__global__ void __launch_bounds__(kLayThreads) lay_pairs(const __grid_constant__ ManyTask task) {
  constexpr int kScales = 8;  // of a thread at once
  wait_for_previous();
  launch_next();
  const Piece& piece = task.piece;
  const MoeFp8Params& p = piece.p;
  const int lane = threadIdx.x % 32;
  const auto thread = static_cast<int32_t>(blockIdx.x * kLayThreads + threadIdx.x);
  const auto num_threads = static_cast<int32_t>(gridDim.x * kLayThreads);
  const int32_t num_pairs = piece.begin[p.num_local_experts];
  const int32_t slots = *piece.num_tiles * kManyPairs, blocks = p.hidden / kBlock;
  for (int32_t i = thread; i < slots * ((blocks + kScales - 1) / kScales); i += num_threads) {
    const int32_t slot = i % slots, first = i / slots * kScales;
    const PairTile tile = piece.tiles[slot / kManyPairs];
    const int32_t pair = tile.first + min(slot % kManyPairs, tile.count - 1);
    const int32_t token = piece.pair_token[pair];
    float scales[kScales];
#pragma unroll
    for (int k = 0; k < kScales; ++k)
      scales[k] = __ldg(p.hidden_states_scale +
                        int64_t{min(first + k, blocks - 1)} * piece.scale_stride + token);
    if (first == 0 && slot % kManyPairs < tile.count) note_pair(piece, tile.expert, pair, token);
#pragma unroll
    for (int k = 0; k < kScales; ++k)
      if (first + k < blocks) task.x_scales[int64_t{first + k} * task.slots + slot] = scales[k];
  }
  for (int32_t pair = thread / 32; pair < num_pairs; pair += num_threads / 32) {
    const int32_t token = piece.pair_token[pair];
    const uint8_t* from = p.hidden_states + int64_t{token} * p.hidden;
    uint8_t* to = task.x + int64_t{pair} * p.hidden;
    int size = -kMostSize;
#pragma unroll 7
    for (int32_t i = lane * 16; i < p.hidden; i += 32 * 16) {
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(from + i));
      *reinterpret_cast<uint4*>(to + i) = codes;
      if constexpr (kIsExact) {
        const int64_t at = i / kBlock * int64_t{piece.scale_stride} + token;
        size = max(size, size_of(codes, __ldg(p.hidden_states_scale + at)));
      }
    }
    if constexpr (kIsExact) {
      size = min(__reduce_max_sync(~0u, size), kMostSize);
      if (lane == 0) task.sizes[pair] = size;
    }
  }
}

/// Item: 128 values of the intermediate of a tile of pairs.
template <bool kIsExact>
__global__ void __launch_bounds__(kThreads, 1) up_many(const __grid_constant__ ManyTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_e4m3(task, up_and_gate(task),
           [&]<int kColumns>(E4m3Shared& shared, int group, const Item& item, uint32_t parity,
                             float(&sums)[2][kColumns / 2]) {
             if constexpr (kIsExact)
               finish_f16<kColumns>(task, shared, group, item, parity, sums);
             else
               finish_e4m3<kColumns>(task, shared, group, item, parity, sums);
           });
#endif
}

/// Item: 256 outputs of a tile of pairs; the last of an expert may be 128.
__global__ void __launch_bounds__(kThreads, 1) down_e4m3(const __grid_constant__ ManyTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run_e4m3(task, down_of_e4m3(task),
           [&]<int kColumns>(E4m3Shared&, int group, const Item& item, uint32_t,
                             const float(&sums)[2][kColumns / 2]) {
             finish_down<kColumns>(task, group, item, sums);
           });
#endif
}

/// The same of the FP16 intermediate.
__global__ void __launch_bounds__(kThreads, 1) down_f16(const __grid_constant__ ManyTask task) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int32_t blocks = (task.piece.p.hidden / kBlock + 1) / 2;
  run_items<F16Shared, false>(
      task, blocks,
      [&](std::byte* stages, F16Shared& shared, int32_t first, int32_t num_items, int32_t step) {
        copy_f16(task, stages, shared, first, num_items, step, blocks);
      },
      [&](const std::byte* stages, F16Shared& shared, int group, const Item& item,
          uint32_t& place) {
        switch ((item.tile.count + 31) / 32) {
          case 1:
            return multiply_f16<32>(task, stages, shared, group, item, place);
          case 2:
            return multiply_f16<64>(task, stages, shared, group, item, place);
          case 3:
            return multiply_f16<96>(task, stages, shared, group, item, place);
          default:
            return multiply_f16<128>(task, stages, shared, group, item, place);
        }
      });
#endif
}

int32_t tokens_of_piece(const MoeFp8Params& p) {
  const int64_t token_bytes =
      most_pairs(p, 1) * (int64_t{2} * p.intermediate + int64_t{3} * p.hidden);
  const int64_t most = std::max<int64_t>(static_cast<int64_t>(kMostScratch) / token_bytes, 1);
  return static_cast<int32_t>(std::min<int64_t>({p.num_tokens, most, kMostTokens}));
}

ManyTask lay_out(const MoeFp8Params& p, bool is_exact, std::byte* base, uint64_t* bytes = nullptr) {
  const int32_t num_tokens = tokens_of_piece(p);
  const int64_t pairs = most_pairs(p, num_tokens);
  Scratch scratch(base);
  ManyTask task{.piece = take_piece(p, num_tokens, kManyPairs,
                                    is_exact ? DType::kF16 : DType::kBF16, scratch)};
  task.slots = static_cast<int32_t>(most_tiles(p, num_tokens, kManyPairs) * kManyPairs);
  task.x = scratch.take<uint8_t>(pairs * p.hidden);
  task.x_scales = scratch.take<float>(int64_t{task.slots} * (p.hidden / kBlock));
  if (is_exact) task.sizes = scratch.take<int32_t>(pairs);
  task.h = scratch.take<std::byte>(pairs * p.intermediate * (is_exact ? 2 : 1));
  task.h_scales = scratch.take<float>(int64_t{task.slots} * (p.intermediate / kBlock));
  if (bytes != nullptr) *bytes = scratch.bytes();
  return task;
}

template <bool kIsExact>
void run_many(const char* row, const MoeFp8Params& p) {
  if (p.num_tokens == 0) return;
  const cudaStream_t stream = launch_stream(p.launch.stream);
  const int units = num_multiprocessors();
  ManyTask task = lay_out(p, kIsExact, p.launch.workspace);
  const int32_t piece = tokens_of_piece(p);
  const int64_t local = p.num_local_experts, pairs = most_pairs(p, piece);
  constexpr auto kBytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  task.w1 =
      map_of_boxes(row, p.gemm1_weights, kBytes, 1, p.hidden, local * 2 * p.intermediate, kBlock);
  task.w2 = map_of_boxes(row, p.gemm2_weights, kBytes, 1, p.intermediate, local * p.hidden,
                         kIsExact ? 2 * kBlock : kBlock);
  for (int i = 0; i < 3; ++i) {
    const int rows = kManyPairs >> i;
    task.of_x.of_rows[i] = map_of_boxes(row, task.x, kBytes, 1, p.hidden, pairs, rows);
    task.of_h.of_rows[i] =
        map_of_boxes(row, task.h, kIsExact ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : kBytes,
                     kIsExact ? 2 : 1, p.intermediate, pairs, rows);
  }
  for (int32_t first = 0; first < p.num_tokens; first += piece) {
    set_tokens(p, first, std::min(piece, p.num_tokens - first), task.piece);
    route_many(row, task.piece, p.launch.stream);
    const auto launch = [&](auto kernel, uint64_t shared_bytes) {
      launch_kernel(row, kernel, task,
                    {.grid = dim3(static_cast<unsigned>(units / kCluster * kCluster)),
                     .num_threads = kThreads,
                     .shared_bytes = shared_bytes,
                     .cluster = kCluster,
                     .programmatic = true},
                    stream);
    };
    constexpr unsigned kLayBlocks = 8;  // a multiprocessor
    launch_kernel(row, lay_pairs<kIsExact>, task,
                  {.grid = dim3(static_cast<unsigned>(units) * kLayBlocks),
                   .num_threads = kLayThreads,
                   .programmatic = true},
                  stream);
    launch(up_many<kIsExact>, kSharedBytes<E4m3Shared>);
    if constexpr (kIsExact)
      launch(down_f16, kSharedBytes<F16Shared>);
    else
      launch(down_e4m3, kSharedBytes<E4m3Shared>);
    add_pairs(row, task.piece, p.launch.stream);
  }
}

uint64_t workspace_of(const MoeFp8Params& p, bool is_exact) {
  uint64_t bytes = 0;
  lay_out(p, is_exact, nullptr, &bytes);
  return bytes;
}

}  // namespace
}  // namespace moe_fp8

uint64_t moe_fp8_block_scale_e4m3_f16_gemm_sm90_workspace(const MoeFp8Params& p) {
  return moe_fp8::workspace_of(p, true);
}
void moe_fp8_block_scale_e4m3_f16_gemm_sm90(const MoeFp8Params& p) {
  moe_fp8::run_many<true>("moe_fp8_block_scale_e4m3_f16_gemm_sm90", p);
}

uint64_t moe_fp8_block_scale_e4m3_e4m3_gemm_sm90_workspace(const MoeFp8Params& p) {
  return moe_fp8::workspace_of(p, false);
}
void moe_fp8_block_scale_e4m3_e4m3_gemm_sm90(const MoeFp8Params& p) {
  moe_fp8::run_many<false>("moe_fp8_block_scale_e4m3_e4m3_gemm_sm90", p);
}

}  // namespace moxie
