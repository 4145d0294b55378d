// experts on any GPU for many tokens in BF16: pairs sorted by expert, then two grouped products
// (gemm/product_mma.cuh) with tiles of 16 to 128 tokens, and the sums of each token's pairs.
#include "kernels/experts/experts_mma.cuh"
#include "kernels/experts/experts_mx.h"
#include "kernels/experts/experts_rows.h"

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
        tile, sums, [&](int m) { return biases(item.expert, tile + 4 * m); },
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

}  // namespace gemm

using namespace gemm;

const char* experts_mxfp4_bf16_gemm_cuda_refuses(const ExpertsParams& p) {
  if (const char* why = refuses_mx(p)) return why;
  if (!has_mma_tile(p)) return "it has no such tile";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_bf16_gemm_cuda_workspace(const ExpertsParams& p) {
  return GroupedMemory(p, mma_tile_columns(p), DType::kBF16, nullptr).bytes;
}

void experts_mxfp4_bf16_gemm_cuda(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  const GroupedMemory memory(p, mma_tile_columns(p), DType::kBF16, p.launch.workspace);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots(stage_slots_of(p, memory), p.launch.stream);
  constexpr float kScale = kProductScale<DType::kMXFP4>;
  run_experts_mma<Bf16Atom>("experts_mxfp4_bf16_gemm_cuda", p, memory,
                            GateUpMma{gate_up_task(p, memory, kScale)},
                            DownMma{down_task(p, memory, kScale), memory.pair_outputs});
}

}  // namespace moxie
