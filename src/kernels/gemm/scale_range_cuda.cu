// Reads a matrix once: a block takes an expert, a warp a unit at a time. 1.7 GB of a layer of
// gpt-oss-120b.
#include "core/cuda_launch.cuh"
#include "kernels/gemm/scale_range_cuda.h"
#include "kernels/ptx.cuh"

namespace moxie::gemm {
namespace {

constexpr int kThreads = 1024;
// All but the signs of a word's codes (core/fragment.h).
constexpr uint32_t kMagnitudes = 0x4DFF4DFFu;

struct Units {
  const std::byte* data;
  int64_t expert_bytes;
  int32_t num_units, unit_bytes, code_bytes;  // of an expert, of a unit
  uint32_t* counts;
};

__global__ void __launch_bounds__(kThreads) scale_counts(const __grid_constant__ Units p) {
  __shared__ uint32_t counts[256];
  if (threadIdx.x < 256) counts[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int expert = static_cast<int>(blockIdx.x);
  const std::byte* units = p.data + expert * p.expert_bytes;
  for (int i = threadIdx.x / 32; i < p.num_units; i += kThreads / 32) {
    const std::byte* unit = units + static_cast<int64_t>(i) * p.unit_bytes;
    const uint4 codes = *reinterpret_cast<const uint4*>(unit + 16 * lane);
    const uint32_t scales = *reinterpret_cast<const uint32_t*>(unit + p.code_bytes + 4 * g);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t bits = words[w] & kMagnitudes;
      bits |= __shfl_xor_sync(~0u, bits, 1);
      bits |= __shfl_xor_sync(~0u, bits, 2);
      const uint32_t scale = scales >> (8 * w) & 255u;
      if (bits != 0 && q == 0) atomicAdd(&counts[scale], 1);
    }
  }
  __syncthreads();
  if (threadIdx.x < 256) p.counts[256 * expert + threadIdx.x] = counts[threadIdx.x];
}

}  // namespace

void count_scales(const ScaleCounts& step, Stream* stream) {
  const PackedMatrix& m = step.matrix;
  CHECK(m.format == DType::kMXFP4 && m.layout == PackedLayout::kFragment16x32);
  const Units units{.data = m.data,
                    .expert_bytes = m.expert_bytes(),
                    .num_units = m.num_tiles() * m.num_units(),
                    .unit_bytes = m.unit_bytes(),
                    .code_bytes = m.unit_code_bytes(),
                    .counts = step.counts};
  launch_kernel("count_scales", scale_counts, units,
                {.grid = dim3(static_cast<unsigned>(m.num_experts)), .num_threads = kThreads},
                launch_stream(stream));
}

ScaleRange scale_range(const uint32_t counts[256]) {
  ScaleRange range;
  for (int code = 0; code < 256; ++code) {
    if (counts[code] == 0) continue;
    if (range.num_blocks == 0) range.least = static_cast<uint8_t>(code);
    range.greatest = static_cast<uint8_t>(code);
    range.num_blocks += counts[code];
  }
  for (int code = 0; code < range.greatest - kFoldedOctaves; ++code) range.num_cut += counts[code];
  return range;
}

}  // namespace moxie::gemm
