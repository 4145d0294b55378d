// moe_fp8_block_scale for up to 16 tokens in one kernel: a block an SM, which routes all tokens by
// itself and reads one stream of weights, gate and up and then down, through its warps' rings.
//
// Launches of several kernels lose what each needs to start, and the sums of a token's experts cost
// a kernel of their own. Here down's first weights are on their way before gate and up have ended,
// and a block adds up its outputs over all experts. Between the two the grid meets once. All
// phases share one loop, and routing is short: in a launch with cold caches the code comes from
// DRAM, too.
//
// mma's eight columns are the tokens: column c has token c, and one of tokens 8 to 15, turned by
// so many columns that no expert has both tokens of one. Where no turn does that, such an expert is
// read once more: an entry is an expert with at most one token a column.
#include <cooperative_groups.h>

#include "core/cuda_launch.cuh"
#include "core/cuda_part.h"
#include "kernels/moe_fp8/moe_fp8_choose_cuda.cuh"
#include "kernels/moe_fp8/moe_fp8_few_cuda.cuh"
#include "kernels/moe_fp8/moe_fp8_rows.h"

namespace moxie {
namespace moe_fp8 {
namespace {

constexpr const char* kRow = "moe_fp8_block_scale_e4m3_f16_stream_sm90";
constexpr int kWarps = 16, kThreads = 32 * kWarps;
constexpr int kColumns = 8;     // mma's
constexpr int kMostGroups = 2;  // of as many tokens
constexpr int kChoicesOfGroup = 64;
constexpr int kSlots = 2, kSlotRows = 32;
constexpr int kSumsOfGroup = kColumns * kSlotRows;  // of a warp
constexpr int kMostStreamed = 5;                    // entries up to which weights leave L2 first

struct StreamTask {
  MoeFp8Params p;
  int32_t rows_of_block = 0;     // outputs, a multiple of 8
  __half* h = nullptr;           // [entries, columns with a token, intermediate]
  uint8_t* exponents = nullptr;  // [entries, columns with a token, intermediate / 16]
  uint32_t magic = 0;            // 2^32 / (intermediate / 128), rounded up; 0 for 1
};

__device__ __forceinline__ void copy_async_4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// For kGroups times 8 tokens.
template <int kGroups>
struct alignas(16) Shared {
  static constexpr int kMostTokens = kColumns * kGroups, kMostEntries = kChoicesOfGroup * kGroups;
  static constexpr int kSumsOfWarp = kSumsOfGroup * kGroups;
  std::byte ring[kWarps * kSlots * kSlotRows * kRowBytes];
  float sums[2][kWarps * kSumsOfWarp];  // of items in turn
  float weights[kMostEntries][kColumns];
  uint32_t entries[kMostEntries];  // expert, and from bit 16 on the columns of each 8 tokens
  float scales[kWarps][kSlots][2];
  int32_t num_entries, turn;
};

/// An entry's tokens: a bit each, of the second 8 in the order of columns.
__device__ __forceinline__ uint32_t tokens_of(uint32_t entry) { return entry >> 16; }
/// The second 8 of 16 bits, each `turn` columns further.
__device__ __forceinline__ uint32_t turned(uint32_t tokens, int turn) {
  const uint32_t second = tokens >> kColumns;
  return (tokens & 0xFF) | ((second << turn | second >> (kColumns - turn)) & 0xFF) << kColumns;
}
/// The column of a token, and its bit among an entry's tokens.
template <int kGroups>
__device__ __forceinline__ int column_of(int token, int turn) {
  return kGroups == 1 || token < kColumns ? token : (token + turn) % kColumns;
}
template <int kGroups>
__device__ __forceinline__ int bit_of(int token, int turn) {
  return token / kColumns * kColumns + column_of<kGroups>(token, turn);
}
/// The columns that have a token.
template <int kGroups>
__device__ __forceinline__ uint32_t columns_of(uint32_t tokens) {
  return kGroups == 1 ? tokens : (tokens | tokens >> kColumns) & 0xFF;
}
/// The token of a column that has one.
template <int kGroups>
__device__ __forceinline__ int token_of(uint32_t tokens, int column, int turn) {
  return kGroups == 1 || (tokens >> column & 1) != 0
             ? column
             : kColumns + ((column - turn) & (kColumns - 1));
}

/// Routes all tokens, a warp each: fills weights, entries and num_entries.
template <int kGroups>
__device__ __forceinline__ void route_all(const MoeFp8Params& p, Shared<kGroups>& shared) {
  constexpr int kExperts = 256, kMostTokens = Shared<kGroups>::kMostTokens;
  static_assert(kThreads % kExperts == 0 && kMostLocal <= kExperts && kMostTokens <= kWarps);
  static_assert(sizeof(shared.sums) >= 2 * sizeof(uint32_t) * kMostLocal);
  static_assert(sizeof(shared.ring) >= 2 * sizeof(float) * kMostTokens * kExperts);
  static_assert(sizeof(shared.ring) >= sizeof(uint32_t) * kMostTokens * 2 * kMostExperts);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* bits = reinterpret_cast<uint32_t*>(shared.sums);
  uint32_t* first_entries = bits + kMostLocal;
  auto* keys = reinterpret_cast<uint32_t*>(shared.ring);
  auto* scores = reinterpret_cast<float*>(keys) + kMostTokens * kExperts;
  // Half of the threads take the even tokens, half the odd ones.
  constexpr int kTurns = kThreads / kExperts;
  const auto expert = static_cast<int32_t>(threadIdx.x) % kExperts;
  const auto first = static_cast<int32_t>(threadIdx.x) / kExperts;
  if (first == 0) bits[expert] = 0;
  if (is_usual(p)) {
#pragma unroll 1
    for (int t = first; t < p.num_tokens; t += kTurns)
      copy_async_4(&scores[t * kExperts + expert], &p.routing_logits[t * kExperts + expert]);
    const uint32_t bias = p.routing_bias[expert];
    commit_copies();
    wait_for_copies<0>();
#pragma unroll 1
    for (int t = first; t < p.num_tokens; t += kTurns) {
      float& score = scores[t * kExperts + expert];
      score = sigmoid(score);
      keys[t * kExperts + expert] = biased_key(score, bias);
    }
  }
  __syncthreads();
  Choices choices;
  int32_t local = -1;
  if (warp < p.num_tokens) {
    if (is_usual(p)) {
      float score[8];
      uint32_t key[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        score[j] = scores[warp * kExperts + lane * 8 + j];
        key[j] = keys[warp * kExperts + lane * 8 + j];
      }
      choices = choose_of_256(p, score, key);
    } else {
      choices = choose_of_any(p, warp, keys + warp * num_keys(p));
    }
    local = choices.expert - p.local_expert_offset;
    if (lane >= p.top_k || local >= p.num_local_experts) local = -1;
    if (local >= 0) atomicOr(&bits[local], 1u << warp);
  }
  __syncthreads();
  if (warp == 0) {
    int32_t n = 0;
    int turn = 0;
    if constexpr (kGroups > 1) {
      // The turn with the fewest experts to read once more.
      int fewest = kMostLocal + 1;
#pragma unroll
      for (int t = 0; t < kColumns; ++t) {
        int num_twice = 0;
        for (int32_t e0 = 0; e0 < p.num_local_experts; e0 += 32) {
          const uint32_t tokens = turned(bits[e0 + lane], t);
          num_twice += __popc(__ballot_sync(~0u, (tokens & tokens >> kColumns) != 0));
        }
        if (num_twice < fewest) fewest = num_twice, turn = t;
      }
      if (lane == 0) shared.turn = turn;
    }
#pragma unroll 1
    for (int32_t e0 = 0; e0 < p.num_local_experts; e0 += 32) {
      const int32_t e = e0 + lane;
      uint32_t tokens = bits[e];  // zeros up to kMostLocal
      if constexpr (kGroups > 1) tokens = turned(tokens, turn);
      // Of two tokens in a column the second is in an entry of its own, behind the others'.
      const uint32_t second = kGroups == 1 ? 0 : tokens & tokens << kColumns;
      const uint32_t below = (1u << lane) - 1, some = __ballot_sync(~0u, tokens != 0);
      const uint32_t twice = kGroups == 1 ? 0 : __ballot_sync(~0u, second != 0);
      const int32_t at = n + __popc(some & below) + __popc(twice & below);
      const auto expert_bits = static_cast<uint32_t>(e);
      if (tokens != 0)
        shared.entries[at] = expert_bits | (tokens & ~second) << 16, first_entries[e] = at;
      if (second != 0) shared.entries[at + 1] = expert_bits | second << 16;
      n += __popc(some) + __popc(twice);
    }
    if (lane == 0) shared.num_entries = n;
  }
  __syncthreads();
  if (local >= 0) {
    uint32_t entry = first_entries[local];
    const int turn = kGroups == 1 ? 0 : shared.turn;
    if (kGroups > 1)
      entry += (tokens_of(shared.entries[entry]) >> bit_of<kGroups>(warp, turn) & 1) == 0;
    shared.weights[entry][column_of<kGroups>(warp, turn)] =
        choices.score / (choices.sum + 1e-20f) * p.routed_scaling_factor;
  }
  __syncthreads();
}

template <int kGroups>
__global__ void __launch_bounds__(kThreads, 1) stream_few(const __grid_constant__ StreamTask task) {
  extern __shared__ __align__(16) std::byte memory[];
  using S = Shared<kGroups>;
  S& shared = *reinterpret_cast<S*>(memory);
  const RowRing<kSlots, kSlotRows> ring(shared.ring);
  const MoeFp8Params& p = task.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const auto step = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  const int32_t in_blocks = p.hidden / kFp8Block, mid_blocks = p.intermediate / kFp8Block;
  // The activations come to L2 while tokens are routed.
  const int32_t line = block * kThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t num_lines = p.num_tokens * in_blocks;
  if (line < num_lines)
    prefetch(p.hidden_states + int64_t{line} * kFp8Block);
  else if ((line - num_lines) * 32 < num_lines)
    prefetch(p.hidden_states_scale + (line - num_lines) * 32);
  route_all(p, shared);

  const int32_t num_entries = shared.num_entries;
  const int turn = kGroups == 1 ? 0 : shared.turn;
  const int32_t num_columns = kGroups == 1 ? p.num_tokens : kColumns;
  const int32_t row_tiles = p.intermediate / kRows;
  const int32_t row_begin = block * task.rows_of_block;
  const int32_t row_end = min(p.hidden, row_begin + task.rows_of_block);
  const int32_t num_up = max(0, num_entries * row_tiles - block + step - 1) / step;
  const int32_t num_items = num_up + max(0, row_end - row_begin + kSlotRows - 1) / kSlotRows;
  // Of a number of blocks of the intermediate's columns, over the entries.
  const auto entry_of = [&](int32_t blocks_before, int32_t& rest) {
    const int32_t e =
        task.magic == 0
            ? blocks_before
            : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(blocks_before), task.magic));
    rest = blocks_before - e * mid_blocks;
    return e;
  };

  // The stream is cut into items of 32 rows: 16 of up and of gate each, then 32 outputs. An item is
  // cut into blocks of 128 columns, which the warps take in turns.
  struct Place {
    int32_t item, column;
  };
  const auto advance = [&](Place& at, int32_t by) {
    at.column += by;
    while (at.item < num_items) {
      const int32_t width = at.item < num_up ? in_blocks : num_entries * mid_blocks;
      if (at.column < width) break;
      at.column -= width, ++at.item;
    }
  };
  Place copied{0, 0};
  advance(copied, warp);
  Place at = copied;

  bool is_loaded = false;
  int num_unfilled = kSlots, slot = 0;
  uint4 raw[4] = {};
  uint32_t raw_scales[2] = {};
#pragma unroll 1
  for (int32_t item = -1;; ++item) {
    if (item == num_up && num_entries > 0) cooperative_groups::this_grid().sync();
    if (item >= num_items) break;
    const bool is_up = item < num_up;
    const int32_t first_row = row_begin + (item - num_up) * kSlotRows;  // down
    float sum[kGroups][2][4] = {};  // up: of the first group alone
#pragma unroll 1
    while (num_unfilled > 0 || at.item == item) {
      const bool is_filled = num_unfilled == 0, is_real = is_filled && is_loaded;
      uint32_t operand[2][4][2];
      float factor[2];
      uint32_t tokens = 0xFF;
      bool is_chosen[kGroups][2] = {{true, true}};
      if (is_real) {
        if (is_up) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t codes[4] = {raw[half].x, raw[half].y, raw[half].z, raw[half].w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
              widen_e4m3(codes[i], operand[half][i][0], operand[half][i][1]);
          }
#pragma unroll
          for (int c = 0; c < 2; ++c) factor[c] = __uint_as_float(raw_scales[c]);
        } else {
          const Middle middle{{raw[0], raw[1], raw[2], raw[3]}, {raw_scales[0], raw_scales[1]}};
          const float power = power_of_two(middle.align(operand) - kTop);
          int32_t column;
          const int32_t e = entry_of(at.column, column);
          tokens = tokens_of(shared.entries[e]);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            factor[c] = __shfl_sync(~0u, power, 8 * q + 4 * c);
            bool is_any = false;
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
              is_chosen[group][c] = (tokens >> (kColumns * group + 2 * q + c) & 1) != 0;
              is_any |= is_chosen[group][c];
            }
            factor[c] *= is_any ? shared.weights[e][2 * q + c] : 0;
          }
        }
        advance(at, kWarps);
      }
      is_loaded = is_filled && at.item < num_items && (at.item < num_up) == is_up;
      if (is_loaded) {
        if (is_up) {
          uint32_t of_entry = 0xFF;
          if constexpr (kGroups > 1) {
            int32_t unused;
            const int32_t tile = block + at.item * step;
            of_entry = tokens_of(shared.entries[entry_of(tile / (kFp8Block / kRows), unused)]);
          }
          // A column without a token keeps what it has: nobody reads its sums.
          const auto has_token = [&](int32_t column) {
            return kGroups == 1 ? column < p.num_tokens
                                : (columns_of<kGroups>(of_entry) >> column & 1) != 0;
          };
          if (has_token(g)) {
            const uint8_t* from = p.hidden_states +
                                  int64_t{token_of<kGroups>(of_entry, g, turn)} * p.hidden +
                                  at.column * kFp8Block + q * 16;
            raw[0] = __ldg(reinterpret_cast<const uint4*>(from));
            raw[1] = __ldg(reinterpret_cast<const uint4*>(from + 64));
          }
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            if (has_token(2 * q + c))
              raw_scales[c] =
                  __float_as_uint(__ldg(p.hidden_states_scale + at.column * p.num_tokens +
                                        token_of<kGroups>(of_entry, 2 * q + c, turn)));
          }
        } else {
          int32_t column;
          const int32_t e = entry_of(at.column, column);
          if ((columns_of<kGroups>(tokens_of(shared.entries[e])) >> g & 1) != 0) {
            const int64_t pair = int64_t{e} * num_columns + g;
            const __half* h = task.h + pair * p.intermediate + column * kFp8Block + q * 16;
#pragma unroll
            for (int i = 0; i < 4; ++i)
              raw[i] = __ldcg(reinterpret_cast<const uint4*>(h + 64 * (i / 2) + 8 * (i % 2)));
            const uint2 exponents = __ldcg(
                reinterpret_cast<const uint2*>(task.exponents + pair * row_tiles + column * 8));
            raw_scales[0] = exponents.x, raw_scales[1] = exponents.y;
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) raw[i] = {};
            raw_scales[0] = raw_scales[1] = kLeastExponent * 0x01010101u;
          }
        }
      }
      if (is_real) {
        wait_for_copies<kSlots - 1>();
        __syncwarp();
        float products[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t w[4][4];
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const uint4 words = ring.get(slot, 8 * r, 4 * half);
            w[r][0] = words.x, w[r][1] = words.y, w[r][2] = words.z, w[r][3] = words.w;
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            add_product(products[0], w[0][i], w[1][i], operand[half][i]);
            add_product(products[1], w[2][i], w[3][i], operand[half][i]);
          }
        }
        const float scales[2] = {shared.scales[warp][slot][0], shared.scales[warp][slot][1]};
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          if (kGroups > 1 && (tokens >> (kColumns * group) & 0xFF) == 0) continue;
#pragma unroll
          for (int r = 0; r < 4; ++r) {  // of 8 rows
            const bool is_second =
                is_up ? r >= 2 : (first_row + 8 * r) / kFp8Block != first_row / kFp8Block;
            const float scale = is_second ? scales[1] : scales[0];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const int i = r % 2 * 2 + c;
              const float value = products[r / 2][i] * (scale * factor[c]);
              sum[group][r / 2][i] += is_chosen[group][c] ? value : 0;
            }
          }
        }
        __syncwarp();
      }
      if (is_real || !is_filled) {
        if (copied.item < num_items) {
          const bool copies_up = copied.item < num_up;
          int32_t num_rows = kSlotRows, column;
          int64_t row, second_half;
          const uint8_t* from;
          const float* scale;
          if (copies_up) {
            const int32_t tile = block + copied.item * step;
            int32_t scale_row;
            const int32_t entry = entry_of(tile / (kFp8Block / kRows), scale_row);
            const int32_t e = shared.entries[entry] & 0xFFFF;
            column = copied.column;
            row = int64_t{e} * 2 * p.intermediate + (tile - entry * row_tiles) * kRows;
            second_half = int64_t{p.intermediate} * p.hidden;
            from = p.gemm1_weights;
            scale = p.gemm1_weights_scale +
                    ((e * 2 + lane % 2) * mid_blocks + scale_row) * in_blocks + column;
          } else {
            const int32_t e = shared.entries[entry_of(copied.column, column)] & 0xFFFF;
            const int32_t first = row_begin + (copied.item - num_up) * kSlotRows;
            num_rows = min(kSlotRows, row_end - first);
            row = int64_t{e} * p.hidden + first;
            second_half = int64_t{kRows} * p.intermediate;
            from = p.gemm2_weights;
            scale = p.gemm2_weights_scale +
                    (e * in_blocks + (first + lane % 2 * (num_rows - 1)) / kFp8Block) * mid_blocks +
                    column;
          }
          const int32_t stride = copies_up ? p.hidden : p.intermediate;
          from += (row + lane / 8) * stride + column * kFp8Block + lane % 8 * 16;
          const auto copy_all = [&](auto copy_16) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const uint8_t* rows = from + half * second_half;
#pragma unroll
              for (int r = 0; r < kRows; r += 4)
                if (half * kRows + r < num_rows)
                  copy_16(ring.target(slot, half * kRows + r), rows + int64_t{r} * stride);
            }
          };
          if (num_entries <= kMostStreamed)
            copy_all([](uint32_t to, const void* at) { copy_streamed_16(to, at); });
          else
            copy_all([](uint32_t to, const void* at) { copy_async_16(to, at); });
          if (lane < 2) copy_async_4(&shared.scales[warp][slot][lane], scale);
          advance(copied, kWarps);
        }
        commit_copies();
        slot = slot + 1 == kSlots ? 0 : slot + 1;
        if (!is_filled) --num_unfilled;
      }
    }
    if (item < 0) continue;
    // The warps' sums: [warp][group][up 0..3, gate 4..7, or of each 16 rows][lane].
    float* sums = shared.sums[item % 2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (is_up && group > 0) break;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        sums[warp * S::kSumsOfWarp + group * kSumsOfGroup + i * 32 + lane] =
            sum[group][i / 4][i % 4];
    }
    __syncthreads();
    if (is_up) {
      if (threadIdx.x < 8 * kRows) {
        // The 16 rows of a column are 16 lanes of a warp.
        const int column = static_cast<int>(threadIdx.x) / kRows, row = threadIdx.x % kRows;
        const float* from = sums + (row / 8 * 2 + column % 2) * 32 + row % 8 * 4 + column / 2;
        float up = 0, gate = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
          up += from[w * S::kSumsOfWarp], gate += from[w * S::kSumsOfWarp + 4 * 32];
        const MiddleValue value = middle_value(up, gate);
        const int32_t tile = block + item * step;
        int32_t scale_row;
        const int32_t e = entry_of(tile / (kFp8Block / kRows), scale_row);
        if ((columns_of<kGroups>(tokens_of(shared.entries[e])) >> column & 1) != 0) {
          const int64_t pair = int64_t{e} * num_columns + column;
          const int32_t own_tile = tile - e * row_tiles;
          task.h[pair * p.intermediate + own_tile * kRows + row] = value.h;
          if (row == 0) task.exponents[pair * row_tiles + own_tile] = value.exponent;
        }
      }
    } else {
      static_assert(kSlotRows * S::kMostTokens <= kThreads);
      const int row = threadIdx.x % kSlotRows, token = static_cast<int>(threadIdx.x) / kSlotRows;
      if (token < p.num_tokens && first_row + row < row_end) {
        const int column = column_of<kGroups>(token, turn);
        const float* from = sums + token / kColumns * kSumsOfGroup +
                            (row / 8 * 2 + column % 2) * 32 + row % 8 * 4 + column / 2;
        float value = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) value += from[w * S::kSumsOfWarp];
        p.output[int64_t{token} * p.hidden + first_row + row] =
            static_cast<uint16_t>(pack_bf16(value, 0.0f));
      }
    }
  }
}

/// Groups of tokens of the kernel that runs them.
int groups_of(const MoeFp8Params& p) { return p.num_tokens <= kColumns ? 1 : kMostGroups; }

StreamTask lay_out(const MoeFp8Params& p, std::byte* base, uint64_t* bytes = nullptr) {
  const int64_t choices = int64_t{p.num_tokens} * std::min(p.top_k, p.num_local_experts);
  const int64_t rows = choices * std::min(p.num_tokens, kColumns);
  Scratch scratch(base);
  StreamTask task{.p = p};
  const int32_t mid_blocks = p.intermediate / kFp8Block;
  if (mid_blocks > 1)
    task.magic = static_cast<uint32_t>(((uint64_t{1} << 32) + mid_blocks - 1) / mid_blocks);
  task.h = scratch.take<__half>(rows * p.intermediate);
  task.exponents = scratch.take<uint8_t>(rows * (p.intermediate / kRows));
  if (bytes != nullptr) *bytes = scratch.bytes();
  return task;
}

}  // namespace
}  // namespace moe_fp8

const char* moe_fp8_block_scale_e4m3_f16_stream_sm90_refuses(const MoeFp8Params& p) {
  using namespace moe_fp8;
  if (const char* why = moe_fp8_cuda_refuses(p)) return why;
  if (p.num_tokens > kColumns * kMostGroups ||
      int64_t{p.num_tokens} * std::min(p.top_k, p.num_local_experts) >
          int64_t{kChoicesOfGroup} * groups_of(p))
    return "more than 16 tokens, or 64 choices for each 8 of them";
  return nullptr;
}

uint64_t moe_fp8_block_scale_e4m3_f16_stream_sm90_workspace(const MoeFp8Params& p) {
  uint64_t bytes = 0;
  moe_fp8::lay_out(p, nullptr, &bytes);
  return bytes;
}

void moe_fp8_block_scale_e4m3_f16_stream_sm90(const MoeFp8Params& p) {
  using namespace moe_fp8;
  if (p.num_tokens == 0) return;
  const int units = num_multiprocessors();
  StreamTask task = lay_out(p, p.launch.workspace);
  task.rows_of_block = 8 * ceil_div(p.hidden / 8, units);
  const auto launch = [&]<int kGroups>() {
    launch_kernel(kRow, stream_few<kGroups>, task,
                  {.grid = dim3(static_cast<unsigned>(units)),
                   .num_threads = kThreads,
                   .shared_bytes = sizeof(Shared<kGroups>),
                   .cooperative = true},
                  launch_stream(p.launch.stream));
  };
  if (groups_of(p) == 1)
    launch.template operator()<1>();
  else
    launch.template operator()<kMostGroups>();
}

}  // namespace moxie
