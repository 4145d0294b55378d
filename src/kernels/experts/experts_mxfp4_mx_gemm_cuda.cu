// experts for many tokens with activations in MX formats (MXFP8, MXFP6, MXFP4), each block of 32
// with its own scale: the kernels of experts_mma.cuh over the atoms of gemm/mx_atom.cuh, by SM120's
// instruction or by the same fragments in plain arithmetic. Slots are rounded as they are staged,
// the outputs of the first product as they are stored.
//
// Per unit of 64 columns, 128 rows and 128 columns: 256 products of k32 (128 of k64) a block, 8.25
// KiB of activations (4.25 KiB), 4.25 KiB of weights; making operands takes some 25 issue slots for
// 8 weights of a lane.
#include "kernels/experts/experts_mma.cuh"
#include "kernels/experts/experts_mx.h"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/stage_mx.cuh"

namespace moxie {
// Not in an unnamed namespace: kernels are instantiated with these.
namespace gemm {

/// The first product. Its outputs go through shared memory in F32, where blocks of 32 are complete.
struct GateUpMx : GateUpProduct {
  MxElement element;

  /// Floats of a column: a unit, padded so that eight threads read 16 bytes each of other banks.
  static constexpr int kStride = kStagedColumns + 4;
  template <typename Cut>
  static constexpr uint64_t kSharedBytes = uint64_t{4} * kStride* Cut::kMostColumns;

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    static_assert(Cut::kRows == 128, "a block makes one unit");
    auto* values = reinterpret_cast<float*>(shared);
    const int g = threadIdx.x % 32 / 4;
    make<Cut, kColumns>(
        tile, sums, [&](int m) { return biases(item.expert, tile + 4 * m); },
        [&](int m, uint32_t column, float first, float second) {
          *reinterpret_cast<float2*>(values + kStride * column + (tile + 4 * m) % 8 * 8 +
                                     g / 2 * 2) = make_float2(first, second);
        });
    __syncthreads();
    const int unit = item.first_tile / 8;
    if (64 * unit >= intermediate) return;
    const int num_columns = (item.num_columns + 7) / 8 * 8;
    for (int at = threadIdx.x; at < 2 * num_columns; at += Cut::kThreads)
      round_block<typename Cut::Atom>(values, at % num_columns, at / num_columns, unit,
                                      item.first_column);
  }

  template <typename Atom>
  __device__ __forceinline__ void round_block(const float* values, int column, int block, int unit,
                                              int first_column) const {
    const float* from = values + kStride * column + kMxBlock * block;
    uint32_t amax_bits = 0;
#pragma unroll
    for (int i = 0; i < kMxBlock / 4; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(from + 4 * i);
      for (const float value : {four.x, four.y, four.z, four.w})
        amax_bits = max(amax_bits, __float_as_uint(value) & 0x7FFFFFFFu);
    }
    const uint8_t scale = mx_activation_scale(amax_bits, mx_emax(element));
    const uint32_t row = first_column + column;
    const int64_t at = int64_t{unit} * made.capacity + row;
    reinterpret_cast<uint8_t*>(made.scales)[kStagedScaleBytes * at + block] = scale;
    std::byte* to = made.data + at * staged_row_bytes(Atom::kActivation);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float4 low = *reinterpret_cast<const float4*>(from + 8 * q);
      const float4 high = *reinterpret_cast<const float4*>(from + 8 * q + 4);
      store_eight<Atom::kActivation>(to, row, block, q, element, scale, low, high);
    }
  }
};

}  // namespace gemm

namespace {

using namespace gemm;

template <typename Atom>
void run(const char* row, const ExpertsParams& p) {
  const GroupedMemory memory(p, mma_tile_columns(p), Atom::kActivation, p.launch.workspace);
  const MxElement element = mx_element_of(p.activation);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots_mx(stage_slots_of(p, memory), p.activation, p.launch.stream);
  run_experts_mma<Atom>(row, p, memory, GateUpMx{gate_up_task(p, memory, 1.0f), element},
                        DownMma{down_task(p, memory, 1.0f), memory.pair_outputs, element});
}

bool is_nibbles(const ExpertsParams& p) { return p.activation == DType::kMXFP4; }

void run_as(const char* row, const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  is_nibbles(p) ? run<MxAtom64>(row, p) : run<MxAtom32>(row, p);
}

}  // namespace

const char* experts_mxfp4_mx_gemm_refuses(const ExpertsParams& p) {
  if (const char* why = refuses_without_mx(p)) return why;
  if (!has_mma_tile(p)) return "it has no such tile";
  return refuses_grouped(p);
}

uint64_t experts_mxfp4_mx_gemm_workspace(const ExpertsParams& p) {
  return GroupedMemory(p, mma_tile_columns(p), is_nibbles(p) ? DType::kMXFP4 : DType::kMXFP8,
                       nullptr)
      .bytes;
}

void experts_mxfp4_mx_gemm_sm120(const ExpertsParams& p) {
  run_as("experts_mxfp4_mx_gemm_sm120", p);
}
void experts_mxfp4_mx_emulated_cuda(const ExpertsParams& p) {
  run_as("experts_mxfp4_mx_emulated_cuda", p);
}

}  // namespace moxie
