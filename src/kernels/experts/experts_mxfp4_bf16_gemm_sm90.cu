// experts on Hopper for many tokens: pairs of token and expert sorted by expert, their activations
// gathered in BF16, then two grouped products (gemm/product_sm90.cuh). The first ends in bias and
// clamped SwiGLU and stages its outputs for the second, which adds weighted outputs to the residual
// stream; those sums have no order (residual.cuh), so that they do not change from run to run.
//
// 8,192 tokens of gpt-oss-120b, a layer: 1.63 TFLOP; 1.7 GB of weights, 0.19 GB of activations in
// and as many between the products, 0.75 GB added to x.
#include "kernels/experts/experts_rows.h"
#include "kernels/gemm/dense_sm90.cuh"
#include "kernels/gemm/sort_cuda.h"
#include "kernels/gemm/stage_cuda.h"
#include "kernels/gemm/tile_model.h"
#include "kernels/scratch.h"

namespace moxie {
// Not in a namespace without a name: other architectures leave these functions unused.
namespace gemm {

/// Items of the sorted pairs: the tiles of the list, each times all blocks of rows.
struct SortedItems {
  const SlotTile* tiles;
  const int32_t* num_tiles;
  int32_t row_blocks, tiles_a_block;

  __device__ __forceinline__ bool item(int i, Item& item) const {
    const int tile = i / row_blocks;
    if (tile >= *num_tiles) return false;
    const SlotTile t = tiles[tile];
    item = {.expert = t.expert,
            .first_tile = (i - tile * row_blocks) * tiles_a_block,
            .first_column = t.first_slot,
            .num_columns = t.num_slots};
    return true;
  }
};

/// act = SwiGLU(W1 t + b1), staged for the second product: a warpgroup makes one unit of it.
struct GateUp {
  template <typename Cut>
  static constexpr int kSharedBytes = 2 * Cut::kMostColumns * 128;
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  StagedView made;
  const float* bias;  // packed order
  float alpha, limit, product_scale;
  int32_t intermediate;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }

  __device__ __forceinline__ float activation(float gate, float up) const {
    const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
    return __fdividef(g, 1.0f + __expf(-alpha * g)) * (u + 1.0f);
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    // The warpgroups that make a unit together, eight tiles of it.
    constexpr int kThreads = 128 * (2 / Cut::kRowTiles);
    const int unit = tile / 8, region = unit - item.first_tile / 8;
    const bool is_first = (threadIdx.x - 128) % kThreads == 0;
    std::byte* rows = shared + region * Cut::kMostColumns * 128;
    if (is_first) wait_for_bulk_reads();  // of the item before
    barrier_wait(1 + region, kThreads);
    const int in_pair = 2 * q + g % 2;  // the column whose two neighbouring outputs this lane has
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      const int output = 8 * (tile + 4 * m) + g;
      const bool is_real = output < intermediate;
      const float* at = bias + int64_t{item.expert} * weight.rows + 16 * (tile + 4 * m) + g;
      const float gate_bias = is_real ? at[0] : 0, up_bias = is_real ? at[8] : 0;
      const uint32_t chunk = (tile / 4 + m) % 2 * 4 + g / 2, part = 4 * (tile % 4);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        const float* d = &sums[m][4 * i];
        float first = activation(d[0] * product_scale + gate_bias, d[2] * product_scale + up_bias);
        float second = activation(d[1] * product_scale + gate_bias, d[3] * product_scale + up_bias);
        if (!is_real) first = second = 0;
        // Lanes g and g + 1 (even and odd) trade: each has both outputs of one column.
        const float theirs = __shfl_xor_sync(~0u, g % 2 == 0 ? second : first, 4);
        const uint32_t pair = g % 2 == 0 ? pack_bf16(first, theirs) : pack_bf16(theirs, second);
        const uint32_t row = 8 * i + in_pair;
        *reinterpret_cast<uint32_t*>(rows + 128 * row + 16 * (chunk ^ row % 8) + part) = pair;
      }
    }
    fence_shared_writes();
    barrier_wait(1 + region, kThreads);
    if (is_first && 64 * unit < intermediate) {
      const uint32_t num_rows = (item.num_columns + 7) / 8 * 8;
      store_bulk(made.data + (int64_t{unit} * made.capacity + item.first_column) * 128, rows,
                 128 * num_rows);
    }
  }
  __device__ __forceinline__ void drain() const { wait_for_bulk_stores(); }
};

/// x += weight (W2 act + b2) of each pair.
struct Down {
  template <typename Cut>
  static constexpr int kSharedBytes = 0;
  SortedItems items;
  PackedMatrix weight;
  StagedView staged;
  const float* bias;          // [experts, hidden]
  const int32_t* slot_token;  // -1: none
  const float* slot_weight;
  float2* x;
  float product_scale;

  __device__ __forceinline__ bool item(int i, Item& item) const { return items.item(i, item); }

  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte*) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int hidden = weight.rows;
    float row_bias[Cut::kRowTiles][2];
#pragma unroll
    for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * (tile + 4 * m) + g + 8 * half;
        row_bias[m][half] = row < hidden ? bias[int64_t{item.expert} * hidden + row] : 0;
      }
    }
    // Whose columns these are is read for several at once: no load passes an addition.
    // As registers allow.
    constexpr int kBatch = Cut::kMostColumns <= 64 ? 1 : kColumns / 8 % 4 == 0 ? 4 : 3;
    static_assert(kColumns / 8 % kBatch == 0);
#pragma unroll
    for (int first = 0; first < kColumns / 8; first += kBatch) {
      int2 tokens[kBatch];
      float2 weights[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int column = 8 * (first + b) + 2 * q, slot = item.first_column + column;
        tokens[b] = make_int2(-1, -1);
        if (column >= item.num_columns) continue;
        tokens[b] = __ldg(reinterpret_cast<const int2*>(slot_token + slot));
        weights[b] = __ldg(reinterpret_cast<const float2*>(slot_weight + slot));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int m = 0; m < Cut::kRowTiles; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = 16 * (tile + 4 * m) + g + 8 * half;
            if (row >= hidden) continue;
            const float* d = &sums[m][4 * (first + b) + 2 * half];
            const float2 made = make_float2(d[0] * product_scale + row_bias[m][half],
                                            d[1] * product_scale + row_bias[m][half]);
            if (tokens[b].x >= 0)
              add_to_residual(x + int64_t{tokens[b].x} * hidden + row, weights[b].x * made.x);
            if (tokens[b].y >= 0)
              add_to_residual(x + int64_t{tokens[b].y} * hidden + row, weights[b].y * made.y);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
};

}  // namespace gemm

namespace {

using namespace gemm;

/// How a tile's products are cut: few columns alike; of more, blocks of 192 rows for down, of which
/// 2,880 are 15 times as many.
template <int kFew_, int kMany_>
struct Grouping {
  static constexpr int kFew = kFew_, kMany = kMany_;
  static constexpr bool kIsStreamed = kMany <= FewColumnsCut::kMostColumns;
  static constexpr int kMostColumns = std::max(kMany, WideCut::kMostColumns);
  using GateUpCut =
      std::conditional_t<kIsStreamed, FewColumnsCut, CutOf<2, 2, false, kMostColumns>>;
  using DownCut = std::conditional_t<kIsStreamed, FewColumnsCut, CutOf<3, 1, false, kMostColumns>>;
};

/// launch<Grouping>() of the tile of so many columns.
template <size_t kIdx = 0, typename Launch>
void dispatch_tile(int32_t columns, Launch&& launch) {
  constexpr GroupedTile kTile = kGroupedTiles[kIdx];
  if (columns == kTile.columns)
    return launch.template operator()<Grouping<kTile.few, kTile.columns>>();
  if constexpr (kIdx + 1 < kGroupedTiles.size()) {
    dispatch_tile<kIdx + 1>(columns, launch);
  } else {
    CHECK(false, std::to_string(columns) + " columns");
  }
}

int32_t experts_tile(const ExpertsParams& p) {
  if (p.tile_columns != 0) return p.tile_columns;
  return choose_tile(mean_pairs(p.num_tokens, p.top_k, p.gate_up.num_experts)).columns;
}

struct Memory {
  SortShape shape;
  SortedPairs pairs;
  std::byte *staged, *made;
  uint64_t bytes;

  Memory(const ExpertsParams& p, std::byte* base)
      : shape{.num_tokens = p.num_tokens,
              .top_k = p.top_k,
              .num_experts = p.gate_up.num_experts,
              .tile_slots = experts_tile(p)} {
    Scratch scratch(base);
    pairs = take_sorted_pairs(shape, scratch);
    const auto rows = shape.capacity();
    staged = scratch.take<std::byte>(static_cast<int64_t>(staged_bytes(rows, p.hidden)));
    made = scratch.take<std::byte>(static_cast<int64_t>(staged_bytes(rows, p.intermediate)));
    bytes = scratch.bytes();
  }
};

}  // namespace

const char* experts_mxfp4_bf16_gemm_sm90_refuses(const ExpertsParams& p) {
  if (p.fold.is_on) return "the route step is folded into the experts";
  if (p.gate_up.format != DType::kMXFP4 || p.down.format != DType::kMXFP4)
    return "weights are not MXFP4";
  if (p.gate_up.num_experts > kMaxSortedExperts) return "more than 256 experts";
  if (p.top_k > kMaxTopK) return "more than 16 experts a token";
  if (p.tile_columns != 0 && !is_grouped_tile(p.tile_columns)) return "no such tile";
  return refuses_product(p.gate_up);
}

uint64_t experts_mxfp4_bf16_gemm_sm90_workspace(const ExpertsParams& p) {
  return Memory(p, nullptr).bytes;
}

void experts_mxfp4_bf16_gemm_sm90(const ExpertsParams& p) {
  if (p.num_tokens == 0) return;
  const cudaStream_t stream = launch_stream(p.launch.stream);
  const char* name = "experts_mxfp4_bf16_gemm_sm90";
  const Memory memory(p, p.launch.workspace);
  const SortedPairs& pairs = memory.pairs;
  sort_pairs(memory.shape, p.expert_ids, p.expert_weights, pairs, p.launch.stream);
  const StagedView staged{memory.staged, pairs.capacity, p.hidden};
  const StagedView made{memory.made, pairs.capacity, p.intermediate};
  stage_slots({.num_tokens = p.num_tokens,
               .top_k = p.top_k,
               .values = p.t,
               .slot_of_pair = pairs.slot_of_pair,
               .to = staged},
              p.launch.stream);
  constexpr DType F = DType::kMXFP4;
  dispatch_tile(memory.shape.tile_slots, [&]<typename G>() {
    const auto launch = [&]<typename Cut>(auto task) {
      task.items = {.tiles = pairs.tiles,
                    .num_tiles = pairs.num_tiles,
                    .row_blocks = ceil_div(task.weight.rows, Cut::kRows),
                    .tiles_a_block = Cut::kRows / 16};
      const int64_t most_items = int64_t{pairs.max_tiles} * task.items.row_blocks;
      launch_product<F, Cut, G::kFew, G::kMany>(name, task, most_items, stream);
    };
    launch.template operator()<typename G::GateUpCut>(GateUp{.items = {},
                                                             .weight = p.gate_up,
                                                             .staged = staged,
                                                             .made = made,
                                                             .bias = p.gate_up_bias,
                                                             .alpha = p.swiglu_alpha,
                                                             .limit = p.swiglu_limit,
                                                             .product_scale = kProductScale<F>,
                                                             .intermediate = p.intermediate});
    launch.template operator()<typename G::DownCut>(Down{.items = {},
                                                         .weight = p.down,
                                                         .staged = made,
                                                         .bias = p.down_bias,
                                                         .slot_token = pairs.slot_token,
                                                         .slot_weight = pairs.slot_weight,
                                                         .x = reinterpret_cast<float2*>(p.x),
                                                         .product_scale = kProductScale<F>});
  });
}

}  // namespace moxie
