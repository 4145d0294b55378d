// What the rows of experts for many tokens share on Hopper: pairs of token and expert sorted by
// expert, their activations gathered, then two grouped products (gemm/streamed_product_sm90.cuh).
// The first ends in bias and clamped SwiGLU and stages its outputs for the second. For few tokens
// the second adds weighted outputs to the residual stream; these sums do not depend on the order of
// the additions (residual.cuh), so that every run gives the same bits. For many tokens, and in the
// ordered row, it writes each pair's outputs in BF16, and the next kernel adds them up token by
// token: half the bytes, and no additions in memory.
#pragma once

#include "kernels/experts/experts_grouped.cuh"
#include "kernels/gemm/dense_sm90.cuh"

namespace moxie::gemm {

/// The biases of a tile, loaded when its item began; as biases_of of make().
struct HeldBiases {
  float2 of_tile;
  __device__ __forceinline__ float2 operator()(int) const { return of_tile; }
};

/// The first product.
struct GateUp : GateUpProduct {
  static constexpr bool kEndsAlone = false;
  static constexpr int kRowsTogether = 2 * kStagedColumns;  // a unit of outputs, zeros at its end
  /// In BF16 two warpgroups make a unit together. In E4M3 a warpgroup makes its half of a unit, and
  /// no other warpgroup waits for that half.
  template <typename Cut>
  static constexpr int kSharedBytes = Cut::kWarpgroups* Cut::kMostColumns* Cut::kRowBytes / 2;

  template <int kColumns>
  __device__ __forceinline__ HeldBiases begin(const Item& item, int tile) const {
    return {biases(item.expert, tile)};
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared,
                                         const HeldBiases& held) const {
    if constexpr (Cut::kActivation == DType::kF8E4M3) {
      finish_e4m3<Cut, kColumns>(item, tile, sums, shared, held);
    } else {
      finish_bf16<Cut, kColumns>(item, tile, sums, shared, held);
    }
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish_bf16(const Item& item, int tile,
                                              const Sums<Cut, kColumns>& sums, std::byte* shared,
                                              const HeldBiases& held) const {
    const int g = threadIdx.x % 32 / 4;
    constexpr int kThreads = 256;
    const int unit = tile / 8, region = unit - item.first_tile / 8;
    const bool is_first = (threadIdx.x - 128) % kThreads == 0;
    std::byte* rows = shared + region * Cut::kMostColumns * 128;
    if (is_first) wait_for_bulk_reads();  // of the previous item
    barrier_wait(1 + region, kThreads);
    make<Cut, kColumns>(tile, sums, held, [&](int, uint32_t row, float first, float second) {
      const uint32_t chunk = tile / 4 % 2 * 4 + g / 2;
      *reinterpret_cast<uint32_t*>(rows + 128 * row + 16 * (chunk ^ row % 8) + 4 * (tile % 4)) =
          pack_bf16(first, second);
    });
    fence_bulk_copies();
    barrier_wait(1 + region, kThreads);
    if (is_first && 64 * unit < intermediate) {
      const uint32_t num_rows = (item.num_columns + 7) / 8 * 8;
      store_bulk(made.data + (int64_t{unit} * made.capacity + item.first_column) * 128, rows,
                 128 * num_rows);
    }
  }
  // Four tiles are a block of 32 outputs: in each staged row two neighbouring chunks of the unit's
  // four.
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish_e4m3(const Item& item, int tile,
                                              const Sums<Cut, kColumns>& sums, std::byte* shared,
                                              const HeldBiases& held) const {
    constexpr int kRowBytes = Cut::kRowBytes, kHalfBytes = kRowBytes / 2;
    const int q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    const int thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1;
    const float2 add = held.of_tile, factors = product_scales_of<Cut>(*this, item.expert, tile);
    const uint32_t real = 8 * tile + g < intermediate ? ~0u : 0;
    // Of two columns that a lane has, it stores one, with the output of its neighbour.
    const uint32_t in_pair = 2 * q + g % 2, chunk = g / 4 ^ in_pair / 2 % 2;
    const uint32_t both = g % 2 == 0 ? 0x0040 : 0x0015;
    const uint32_t block = tile / 4 % 2;
    std::byte* rows = shared + group * Cut::kMostColumns * kHalfBytes;
    const auto* column_scales = reinterpret_cast<const float2*>(slot_scale + item.first_column);
    barrier_wait(1 + group, 128);  // until the previous item is stored
    std::byte* const to_pair =
        rows + kHalfBytes * in_pair + 16 * chunk + 4 * (tile % 4) + g / 2 % 2 * 2;
    // The scales of some columns ahead: those of columns that the item lacks are not used.
    constexpr int kAhead = 6;
    const int last = (item.num_columns + 7) / 8 - 1;
    float2 scales[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) scales[i] = __ldg(column_scales + 4 * min(i, last) + q);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const float2 scale = scales[i % kAhead];
      if (i + kAhead < kColumns / 8)
        scales[i % kAhead] = __ldg(column_scales + 4 * min(i + kAhead, last) + q);
      const float* d = &sums[0][4 * i];
      const float first = activation<Cut>(d[0] * (factors.x * scale.x) + add.x,
                                          d[2] * (factors.y * scale.x) + add.y);
      const float second = activation<Cut>(d[1] * (factors.x * scale.y) + add.x,
                                           d[3] * (factors.y * scale.y) + add.y);
      const uint32_t own = pack_e4m3(first, second) & real;
      const uint32_t theirs = __shfl_xor_sync(~0u, own, 4);
      *reinterpret_cast<uint16_t*>(to_pair + 8 * i * kHalfBytes) =
          static_cast<uint16_t>(__byte_perm(own, theirs, both));
    }
    barrier_wait(1 + group, 128);
    const int unit = tile / 8;
    if (64 * unit >= intermediate) return;
    std::byte* to = made.data + (int64_t{unit} * made.capacity + item.first_column) * kRowBytes;
    for (uint32_t i = thread; i < 2u * item.num_columns; i += 128) {
      const uint32_t row = i / 2, chunk = (2 * block ^ (row / 2 % 4 & 2u)) + i % 2;
      *reinterpret_cast<uint4*>(to + kRowBytes * row + 16 * chunk) =
          *reinterpret_cast<const uint4*>(rows + 16 * i);
    }
  }
  __device__ __forceinline__ void drain() const { wait_for_bulk_stores(); }
};

/// pairs = W2 act + b2 of each slot, in BF16 (add_pairs_cuda.h).
struct DownPairs : DownProduct {
  static constexpr bool kEndsAlone = false;
  static constexpr int kRowsTogether = 1;
  uint16_t* pairs;  // [slots, hidden]
  /// Columns that a warpgroup stores at a time.
  template <typename Cut>
  static constexpr int kStep = std::min(Cut::kMostColumns, 32);
  /// With two buffers a warpgroup waits once for each step.
  template <typename Cut>
  static constexpr int kBuffers = Cut::kWarpgroups == 2 ? 2 : 1;
  template <typename Cut>
  static constexpr int kSharedBytes = Cut::kWarpgroups* kBuffers<Cut>* kStep<Cut>* kStagedRowBytes;

  template <int kColumns>
  __device__ __forceinline__ HeldBiases begin(const Item& item, int tile) const {
    return {biases(item.expert, tile)};
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte* shared,
                                         const HeldBiases& held) const {
    static_assert(kColumns % 16 == 0);
    constexpr int kColumnsAtATime = kStep<Cut>;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128 - 1;
    constexpr int kBufferBytes = kColumnsAtATime * kStagedRowBytes;
    std::byte* const own = shared + group * kBuffers<Cut> * kBufferBytes;
    // Where this lane's row of an 8 x 8 matrix goes: the four matrices are two blocks of 8 columns
    // times both halves of the tile.
    const uint32_t in_block = lane % 8, half_of_lane = lane / 8 % 2, block_of_lane = lane / 16;
    const uint32_t lane_at = shared_address(own) +
                             (8 * block_of_lane + in_block) * kStagedRowBytes +
                             16 * ((2 * (tile % 4) + half_of_lane) ^ in_block);
    const float2 scale = product_scales_of<Cut>(*this, item.expert, tile), add = held.of_tile;
#pragma unroll
    for (int first = 0; first < kColumns; first += kColumnsAtATime) {
      if (first >= item.num_columns) break;
      const int buffer = first / kColumnsAtATime % kBuffers<Cut> * kBufferBytes;
      const std::byte* rows = own + buffer;
      if (first == 0 || kBuffers<Cut> == 1)
        barrier_wait(1 + group, 128);  // the previous columns are stored
#pragma unroll
      for (int i = first / 8; i < min(first + kColumnsAtATime, kColumns) / 8; i += 2) {
        const float* d = &sums[0][4 * i];
        uint32_t words[4];
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const float* of = d + 4 * block;
          words[2 * block] = pack_bf16(of[0] * scale.x + add.x, of[1] * scale.x + add.x);
          words[2 * block + 1] = pack_bf16(of[2] * scale.y + add.y, of[3] * scale.y + add.y);
        }
        store_transposed(lane_at + buffer + (8 * i - first) * kStagedRowBytes, words);
      }
      barrier_wait(1 + group, 128);
      // Eight lanes store a column, eight rows each.
      const int thread = threadIdx.x % 128, chunk = thread % 8, row = tile / 4 * 64 + 8 * chunk;
      if (row >= weight.rows) continue;
      const int count = min(kColumnsAtATime, item.num_columns - first);
      uint16_t* to = pairs + int64_t{item.first_column + first} * weight.rows + row;
      for (int column = thread / 8; column < count; column += 16) {
        *reinterpret_cast<uint4*>(to + int64_t{column} * weight.rows) =
            *reinterpret_cast<const uint4*>(rows + column * kStagedRowBytes +
                                            16 * (chunk ^ column % 8));
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
};

/// x += weight (W2 act + b2) of each pair; ends streamed products.
struct DownAdds : DownProduct {
  static constexpr bool kEndsAlone = true;
  static constexpr int kRowsTogether = 1;
  template <typename Cut>
  static constexpr int kSharedBytes = 0;
  const int32_t* slot_token;  // -1: none
  const float* slot_weight;
  float2* x;

  /// What a tile's end reads, as far as registers hold it while the tile is multiplied.
  template <int kColumns>
  struct Held {
    static constexpr bool kHasSlots = kColumns == 8;
    float2 add;
    int2 tokens;
    float2 weights;
  };
  __device__ __forceinline__ void load_slots(const Item& item, int group, int2& tokens,
                                             float2& weights) const {
    const int column = 8 * group + 2 * (static_cast<int>(threadIdx.x) % 4);
    tokens = make_int2(-1, -1), weights = make_float2(0.0f, 0.0f);
    if (column >= item.num_columns) return;
    const int slot = item.first_column + column;
    tokens = __ldg(reinterpret_cast<const int2*>(slot_token + slot));
    weights = __ldg(reinterpret_cast<const float2*>(slot_weight + slot));
  }
  template <int kColumns>
  __device__ __forceinline__ Held<kColumns> begin(const Item& item, int tile) const {
    Held<kColumns> held;
    held.add = biases(item.expert, tile);
    if constexpr (Held<kColumns>::kHasSlots) load_slots(item, 0, held.tokens, held.weights);
    return held;
  }
  template <typename Cut, int kColumns>
  __device__ __forceinline__ void finish(const Item& item, int tile,
                                         const Sums<Cut, kColumns>& sums, std::byte*,
                                         const Held<kColumns>& held) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4, hidden = weight.rows;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      int2 tokens = held.tokens;
      float2 weights = held.weights;
      if constexpr (!Held<kColumns>::kHasSlots) load_slots(item, i, tokens, weights);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * tile + g + 8 * half;
        if (row >= hidden) continue;
        const float* d = &sums[0][4 * i + 2 * half];
        const float row_add = half == 0 ? held.add.x : held.add.y;
        const float2 made =
            make_float2(d[0] * product_scale + row_add, d[1] * product_scale + row_add);
        if (tokens.x >= 0)
          add_to_residual(x + int64_t{tokens.x} * hidden + row, weights.x * made.x);
        if (tokens.y >= 0)
          add_to_residual(x + int64_t{tokens.y} * hidden + row, weights.y * made.y);
      }
    }
  }
  __device__ __forceinline__ void drain() const {}
};

/// Tiles of a streamed block of `rows` rows of an expert, 12 to 16, so that its last block misses
/// the fewest: 2,880 rows are 12 blocks of 15 tiles.
inline int32_t tiles_of_block(int32_t rows) {
  const int32_t all = ceil_div(rows, 16);
  int32_t best = 16;
  for (int32_t tiles = 15; tiles >= 12; --tiles)
    if (round_up(all, tiles) < round_up(all, best)) best = tiles;
  return best;
}

/// Launches both products, with tiles cut as Cut, in kernels of kWidths. kAdds: the second product
/// adds to x. down_scale: product_scale of the second. gate_up: the first task, without its items.
template <typename Cut, bool kAdds, int... kWidths>
void launch_grouped(const char* name, const ExpertsParams& p, const GroupedMemory& memory,
                    const GateUpProduct& gate_up, float down_scale) {
  const SortedPairs& pairs = memory.pairs;
  const auto launch = [&]<typename Task>(Task task, int32_t tiles = Cut::kRows / 16) {
    const int32_t rows = round_up(task.weight.rows, Task::kRowsTogether);
    task.items = {.tiles = pairs.tiles,
                  .num_tiles = pairs.num_tiles,
                  .row_blocks = ceil_div(rows, 16 * tiles),
                  .tiles_a_block = tiles};
    const int64_t most_items = int64_t{pairs.max_tiles} * task.items.row_blocks;
    launch_product<DType::kMXFP4, Cut, kWidths...>(name, task, most_items,
                                                   launch_stream(p.launch.stream));
  };
  launch(GateUp{gate_up});
  const DownProduct down = down_task(p, memory, down_scale);
  if constexpr (kAdds) {
    launch(DownAdds{{down}, pairs.slot_token, pairs.slot_weight, reinterpret_cast<float2*>(p.x)},
           tiles_of_block(down.weight.rows));
  } else {
    launch(DownPairs{{down}, memory.pair_outputs});
    end_pairs(p, memory);
  }
}

}  // namespace moxie::gemm
