// experts on any GPU for few tokens an expert: pairs sorted by expert, then two grouped products
// that read weights straight to registers (gemm/team_product.cuh), of up to 16 tokens of an expert
// at a time. The second adds to x.
//
// 64 tokens of gpt-oss-120b, a layer: 256 pairs of 111 experts, 1.47 GB of weights.
#include "kernels/experts/experts_grouped.cuh"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/team_product.cuh"

namespace moxie {
// Not in an unnamed namespace: kernels are instantiated with these.
namespace gemm {

/// The tiles of the sorted pairs.
struct TeamItems {
  const SlotTile* tiles;
  const int32_t* num_tiles;

  __device__ __forceinline__ int count() const { return *num_tiles; }
  __device__ __forceinline__ Item item(int i) const {
    const SlotTile t = tiles[i];
    return {.expert = t.expert,
            .first_tile = 0,
            .first_column = t.first_slot,
            .num_columns = t.num_slots};
  }
};

/// The sum of a column's row, of all warps.
template <int kMost>
__device__ __forceinline__ float sum_of(const TeamSums<kMost>& sums, int warps, int column,
                                        int row) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kMostTeamWarps; ++w) {
    if (w < warps) sum += sums.of[w][column][row];
  }
  return sum;
}

/// act = SwiGLU(W1 t + b1), staged for the second product.
struct GateUpTeam {
  TeamItems items;
  PackedMatrix weight;
  StagedView staged, made;
  const float* bias;  // packed order
  float alpha, limit;

  template <int kColumns, int kMost>
  __device__ __forceinline__ void finish(const Item& item, int tile, const TeamSums<kMost>& sums,
                                         int part, int warps) const {
    // A lane has two neighbouring outputs of a column: of 8 gate and 8 up rows.
    for (int at = 32 * part + threadIdx.x % 32; at < 4 * kColumns; at += 32 * warps) {
      const int column = at / 4, output = at % 4 * 2;
      if (column >= item.num_columns) continue;
      float made_two[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float gate =
            sum_of(sums, warps, column, output + k) * kTeamScale + sums.bias[output + k];
        const float up =
            sum_of(sums, warps, column, output + k + 8) * kTeamScale + sums.bias[output + k + 8];
        const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        made_two[k] = __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + 1.0f);
      }
      *reinterpret_cast<uint32_t*>(
          made.data + staged_offset(made.capacity, item.first_column + column, 8 * tile + output)) =
          pack_bf16(made_two[0], made_two[1]);
    }
  }
};

/// x += weight (W2 act + b2) of each pair.
struct DownTeam {
  TeamItems items;
  PackedMatrix weight;
  StagedView staged;
  const float* bias;          // [experts, hidden]
  const int32_t* slot_token;  // -1: none
  const float* slot_weight;
  float2* x;

  template <int kColumns, int kMost>
  __device__ __forceinline__ void finish(const Item& item, int tile, const TeamSums<kMost>& sums,
                                         int part, int warps) const {
    for (int at = 32 * part + threadIdx.x % 32; at < 16 * kColumns; at += 32 * warps) {
      const int column = at / 16, in_tile = at % 16, row = 16 * tile + in_tile;
      if (column >= item.num_columns) continue;
      const int slot = item.first_column + column, token = __ldg(slot_token + slot);
      if (token < 0) continue;
      const float made = sum_of(sums, warps, column, in_tile) * kTeamScale + sums.bias[in_tile];
      add_to_residual(x + int64_t{token} * weight.rows + row, __ldg(slot_weight + slot) * made);
    }
  }
};

}  // namespace gemm

namespace {

using namespace gemm;

/// Columns of a tile: 16, or 8 where a block has no room for the activations of 16.
int32_t columns_of_tile(const ExpertsParams& p) {
  const uint64_t room = shared_memory().of_block;
  const uint64_t most = p.launch.most_shared == 0 ? room : std::min(room, p.launch.most_shared);
  return team_shared_bytes<16>(std::max(p.hidden, p.intermediate)) <= most ? 16 : 8;
}

}  // namespace

const char* experts_mxfp4_bf16_teams_cuda_refuses(const ExpertsParams& p) {
  if (p.activation != DType::kBF16 && p.activation != DType::kMXFP8)
    return "activations in six or four bits are asked for";
  if (p.tile != Tile{}) return "it has no such tile";
  if (const char* why = refuses_grouped(p)) return why;
  if (team_split(p.hidden).warps == 0 || team_split(p.intermediate).warps == 0 ||
      p.gate_up.rows != 2 * p.intermediate)
    return "sizes that no team's units divide";
  return nullptr;
}

uint64_t experts_mxfp4_bf16_teams_cuda_workspace(const ExpertsParams& p) {
  // Tiles of 8 are more, and take more.
  return GroupedMemory(p, 8, DType::kBF16, nullptr).bytes;
}

void experts_mxfp4_bf16_teams_cuda(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  constexpr const char* kRow = "experts_mxfp4_bf16_teams_cuda";
  const int32_t columns = columns_of_tile(p);
  const GroupedMemory memory(p, columns, DType::kBF16, p.launch.workspace);
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, memory.pairs, p.launch.stream);
  stage_slots(stage_slots_of(p, memory), p.launch.stream);
  const SortedPairs& pairs = memory.pairs;
  const TeamItems items{pairs.tiles, pairs.num_tiles};
  const GateUpTeam gate_up{.items = items,
                           .weight = p.gate_up,
                           .staged = memory.staged,
                           .made = memory.made,
                           .bias = p.gate_up_bias,
                           .alpha = p.swiglu_alpha,
                           .limit = p.swiglu_limit};
  const DownTeam down{.items = items,
                      .weight = p.down,
                      .staged = memory.made,
                      .bias = p.down_bias,
                      .slot_token = pairs.slot_token,
                      .slot_weight = pairs.slot_weight,
                      .x = reinterpret_cast<float2*>(p.x)};
  const auto launch = [&]<int kMost>() {
    launch_team_product<kMost>(kRow, gate_up, pairs.max_tiles, launch_stream(p.launch.stream));
    launch_team_product<kMost>(kRow, down, pairs.max_tiles, launch_stream(p.launch.stream));
  };
  columns == 16 ? launch.template operator()<16>() : launch.template operator()<8>();
}

}  // namespace moxie
