// Reads a matrix twice, the second time mostly from L2: a block takes an expert, a warp a tile of
// 16 rows at a time. A layer of gpt-oss-120b has 1.7 GB.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/greatest_scales_cuda.h"
#include "kernels/ptx.cuh"

namespace moxie::gemm {
namespace {

constexpr int kThreads = 1024;
// All bits but the signs of a word's codes (core/fragment.h).
constexpr uint32_t kMagnitudes = 0x4DFF4DFFu;

struct Tiles {
  const std::byte* data;
  int64_t expert_bytes;
  int32_t num_tiles, num_units, unit_bytes, code_bytes;
  uint8_t* greatest;
  FoldedBlocks* blocks;
};

__global__ void __launch_bounds__(kThreads) greatest_scales(const __grid_constant__ Tiles p) {
  __shared__ uint32_t num_blocks, num_cut;
  if (threadIdx.x == 0) num_blocks = num_cut = 0;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int expert = static_cast<int>(blockIdx.x);
  uint32_t my_blocks = 0, my_cut = 0;
  for (int tile = threadIdx.x / 32; tile < p.num_tiles; tile += kThreads / 32) {
    const std::byte* units =
        p.data + expert * p.expert_bytes + int64_t{tile} * p.num_units * p.unit_bytes;
    // Calls scale_of(w, scale) for each of the tile's blocks that is not all zeros: row g for even
    // w, row g + 8 for odd w; the first 32 columns for w < 2, the others for w >= 2.
    const auto for_each_block = [&](auto&& scale_of) {
      for (int u = 0; u < p.num_units; ++u) {
        const std::byte* unit = units + int64_t{u} * p.unit_bytes;
        const uint4 codes = *reinterpret_cast<const uint4*>(unit + 16 * lane);
        const uint32_t scales = *reinterpret_cast<const uint32_t*>(unit + p.code_bytes + 4 * g);
        const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t bits = words[w] & kMagnitudes;
          bits |= __shfl_xor_sync(~0u, bits, 1);
          bits |= __shfl_xor_sync(~0u, bits, 2);
          if (bits != 0) scale_of(w, scales >> (8 * w) & 255u);
        }
      }
    };
    uint32_t greatest[2] = {0, 0};
    for_each_block([&](int w, uint32_t scale) { greatest[w % 2] = max(greatest[w % 2], scale); });
    for_each_block([&](int w, uint32_t scale) {
      my_blocks += q == 0 ? 1 : 0;
      my_cut += q == 0 && scale + kFoldedOctaves < greatest[w % 2] ? 1 : 0;
    });
    if (q == 0) {
      uint8_t* rows = p.greatest + (int64_t{expert} * p.num_tiles + tile) * 16;
      rows[g] = static_cast<uint8_t>(greatest[0]);
      rows[g + 8] = static_cast<uint8_t>(greatest[1]);
    }
  }
  my_blocks = __reduce_add_sync(~0u, my_blocks), my_cut = __reduce_add_sync(~0u, my_cut);
  if (lane == 0) {
    atomicAdd(&num_blocks, my_blocks);
    atomicAdd(&num_cut, my_cut);
  }
  __syncthreads();
  if (threadIdx.x == 0) p.blocks[expert] = {num_blocks, num_cut};
}

}  // namespace

void find_greatest_scales(const GreatestScales& step, Stream* stream) {
  const PackedMatrix& m = step.matrix;
  CHECK(m.format == DType::kMXFP4 && m.layout == PackedLayout::kFragment16x32);
  const Tiles tiles{.data = m.data,
                    .expert_bytes = m.expert_bytes(),
                    .num_tiles = m.num_tiles(),
                    .num_units = m.num_units(),
                    .unit_bytes = m.unit_bytes(),
                    .code_bytes = m.unit_code_bytes(),
                    .greatest = step.greatest,
                    .blocks = step.blocks};
  launch_kernel("greatest_scales", greatest_scales, tiles,
                {.grid = dim3(static_cast<unsigned>(m.num_experts)), .num_threads = kThreads},
                launch_stream(stream));
}

}  // namespace moxie::gemm
