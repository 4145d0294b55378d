// experts for many tokens: BF16 activations, decoded weights, F32 sums. (token, slot) pairs are
// sorted by expert and packed in groups of 16; no group has pairs of two experts. Then three
// passes: gate/up pairs of tiles -> clamped SwiGLU -> h, packed as it is made; down tiles -> y, a
// row a pair; and each token's rows of y added into x by rising expert, without atomics, so that
// the result is the same for any threads and other tokens. Both products go expert by expert, so
// that a thread finds an expert's activations in its own cache for all of its tiles.
#include <algorithm>
#include <cstring>

#include "kernels/experts/experts_mx.h"
#include "kernels/experts/experts_pairs.h"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemv/gemm_product.h"

namespace moxie {
namespace {

// Pairs of tiles that a thread takes at a time: few enough for threads of unequal speed to end
// together, enough to fetch an expert's activations seldom.
constexpr int64_t kPairsAtATime = 8;

struct Group {
  int32_t first, count;  // of SortedPairs::pairs
};

struct Parts : SortedPairs {
  int32_t* first_group;  // [experts + 1] of active expert i
  Group* groups;         // [most groups]
  uint16_t* t;           // packed groups of p.t's rows
  uint16_t* h;           // packed groups of activations
  float* y;              // [pairs, hidden] in the order of SortedPairs::pairs
  uint64_t bytes;
};

Parts lay_out(const ExpertsParams& p, std::byte* base) {
  const int64_t num_pairs = int64_t{p.num_tokens} * p.top_k;
  const int64_t most_groups =
      num_pairs / kGroupTokens + std::min<int64_t>(num_pairs, p.gate_up.num_experts);
  Scratch scratch(base);
  Parts parts;
  parts.take_from(p, scratch);
  parts.first_group = scratch.take<int32_t>(p.gate_up.num_experts + 1);
  parts.groups = scratch.take<Group>(most_groups);
  parts.t = scratch.take<uint16_t>(most_groups * group_values(p.hidden));
  parts.h = scratch.take<uint16_t>(most_groups * group_values(p.intermediate));
  parts.y = scratch.take<float>(num_pairs * p.hidden);
  parts.bytes = scratch.bytes();
  return parts;
}

// Cuts each expert's pairs into groups; returns the number of groups.
int32_t make_groups(const Parts& parts, int32_t num_active) {
  int32_t num_groups = 0;
  for (int32_t i = 0; i < num_active; ++i) {
    parts.first_group[i] = num_groups;
    for (int32_t at = parts.offsets[i]; at < parts.offsets[i + 1]; at += kGroupTokens) {
      parts.groups[num_groups++] = {at, std::min(kGroupTokens, parts.offsets[i + 1] - at)};
    }
  }
  parts.first_group[num_active] = num_groups;
  return num_groups;
}

void pack_tokens(const ExpertsParams& p, const GemmKernels& gemm, const Parts& parts,
                 int32_t num_groups) {
  ThreadPool& pool = *p.launch.stream->pool;
  split_work(pool, num_groups, 0.2 * num_groups * kGroupTokens * p.hidden,
             [&](int64_t begin, int64_t end) {
               const float* rows[kGroupTokens];
               for (int64_t i = begin; i < end; ++i) {
                 const Group& group = parts.groups[i];
                 for (int32_t n = 0; n < group.count; ++n) {
                   const int32_t token = parts.pairs[group.first + n] / p.top_k;
                   rows[n] = p.t + int64_t{token} * p.hidden;
                 }
                 gemm.pack_group(rows, group.count, p.hidden, parts.t + i * group_values(p.hidden));
               }
             });
}

// Computes gate/up pairs of tiles begin..end-1 of active expert i. A pair of tiles holds the gates
// and the ups of the same 16 outputs.
void gate_up(const ExpertsParams& p, const GemmKernels& gemm, const Parts& parts, int32_t i,
             int32_t begin, int32_t end) {
  const int32_t e = parts.active[i], first = parts.first_group[i];
  const int32_t num_pairs = parts.offsets[i + 1] - parts.offsets[i];
  const PackedMatrix weight = p.gate_up.expert(e);
  uint16_t* h = parts.h + first * group_values(p.intermediate);
  for (int32_t pair = begin; pair < end; ++pair) {
    const float* bias = p.gate_up_bias + int64_t{e} * p.gate_up.rows + pair * 32;
    multiply_tile_pair(gemm, weight, pair, parts.t + first * group_values(p.hidden), num_pairs,
                       [&](int32_t group, const float* sums) {
                         gemm.swiglu_group(sums, parts.groups[first + group].count, bias, bias + 16,
                                           p.swiglu_alpha, p.swiglu_limit, pair * 16,
                                           h + group * group_values(p.intermediate));
                       });
  }
}

// Computes down pairs of tiles begin..end-1 of active expert i, into y.
void down(const ExpertsParams& p, const GemmKernels& gemm, const Parts& parts, int32_t i,
          int32_t begin, int32_t end) {
  const int32_t first = parts.first_group[i];
  const PackedMatrix weight = p.down.expert(parts.active[i]);
  for (int32_t pair = begin; pair < end; ++pair) {
    const int32_t output = pair * 32, num_outputs = std::min(32, p.hidden - output);
    multiply_tile_pair(gemm, weight, pair, parts.h + first * group_values(p.intermediate),
                       parts.offsets[i + 1] - parts.offsets[i], [&](int32_t at, const float* sums) {
                         const Group& group = parts.groups[first + at];
                         float* y = parts.y + int64_t{group.first} * p.hidden + output;
                         for (int32_t n = 0; n < group.count; ++n, y += p.hidden, sums += 32) {
                           std::memcpy(y, sums, static_cast<size_t>(num_outputs) * sizeof(float));
                         }
                       });
  }
}

// Calls each(i, begin, end) over `num_tile_pairs` of every active expert i, shared among threads.
template <typename Each>
void for_tiles(ThreadPool& pool, int32_t num_active, int64_t num_tile_pairs, Each each) {
  pool.share(num_active * num_tile_pairs, kPairsAtATime,
             [&](int64_t begin, int64_t end) { for_rows(begin, end, num_tile_pairs, each); });
}

void run(const ExpertsParams& p, const GemmKernels& gemm) {
  if (p.num_tokens == 0) return;
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_active = sort_pairs(p, parts);
  if (num_active == 0) return;
  const int32_t num_groups = make_groups(parts, num_active);
  const int32_t num_pairs = parts.offsets[num_active];
  pack_tokens(p, gemm, parts, num_groups);
  if (p.intermediate % 32 != 0) {
    // No tile writes the last columns of h's last block, and zeros times NaN would be NaN.
    std::memset(parts.h, 0, static_cast<size_t>(num_groups * group_values(p.intermediate)) * 2);
  }
  for_tiles(pool, num_active, p.gate_up.num_tiles() / 2,
            [&](int32_t i, int32_t begin, int32_t end) { gate_up(p, gemm, parts, i, begin, end); });
  for_tiles(pool, num_active, ceil_div(p.down.num_tiles(), 2),
            [&](int32_t i, int32_t begin, int32_t end) { down(p, gemm, parts, i, begin, end); });
  split_work(pool, p.num_tokens, 1.0 * num_pairs * p.hidden, [&](int64_t begin, int64_t end) {
    add_outputs(p, parts, parts.y, gemm.add_scaled, begin, end);
  });
}

double cost(const ExpertsParams& p, const GemmKernels& gemm) {
  // Assumes that the pairs are spread evenly over all experts.
  const double num_experts = p.gate_up.num_experts;
  return gemm_cost(gemm, 3.0 * p.hidden * p.intermediate * num_experts,
                   expected_pairs(p) / num_experts, gemm.least_pairs,
                   std::min(p.hidden, p.intermediate));
}

}  // namespace

const char* experts_any_bf16_gemm_refuses(const ExpertsParams& p) {
  if (const char* why = refuses_mx(p)) return why;
  if (p.gate_up.rows % 32 != 0) return "gate and up rows are not in pairs of tiles";
  if (const char* why = gemm_refuses(p.gate_up)) return why;
  return gemm_refuses(p.down);
}

uint64_t experts_any_bf16_gemm_workspace(const ExpertsParams& p) {
  return lay_out(p, nullptr).bytes;
}

double experts_any_bf16_gemm_amx_cost(const ExpertsParams& p) { return cost(p, kGemmAmx); }
void experts_any_bf16_gemm_amx(const ExpertsParams& p) { run(p, kGemmAmx); }
double experts_any_bf16_gemm_avx512bf16_cost(const ExpertsParams& p) {
  return cost(p, kGemmAvx512Bf16);
}
void experts_any_bf16_gemm_avx512bf16(const ExpertsParams& p) { run(p, kGemmAvx512Bf16); }

}  // namespace moxie
