// moe_fp8_block_scale on the CPU: expert after expert, up and gate, then down, each shared among
// the threads by rows of weights.
//
// For a few tokens an expert, weights are decoded in registers and used at once. For more, a strip
// of 32 rows is decoded block by block and used for up to 256 tokens. A thread owns the
// outputs of its strips and experts come in rising order, so that a sum's order depends neither on
// the threads nor on their number.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/formats.h"
#include "core/threads.h"
#include "kernels/moe_fp8/moe_fp8_lanes.h"
#include "kernels/moe_fp8/moe_fp8_routing.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"

namespace moxie {
namespace {

// More tokens are taken in pieces: an expert's weights are read again, and scratch stays small
// (hidden 7168: 0.5 GB).
constexpr int32_t kMostTokens = 8192;

struct Parts {
  MoeFp8Pairs pairs;
  std::byte* a;   // packed groups of an expert's tokens, or a few tokens
  std::byte* h;   // the same of the intermediate
  float* scales;  // BF16: [groups, hidden / 128, 16] or, of a few tokens, [tokens, hidden / 128]
  float* few;     // [most_few, intermediate]: h of a few tokens
  float* y;       // [tokens, hidden]
  float* codes;   // [256] values of E4M3 codes
  uint64_t bytes;
};

int32_t piece_of(const MoeFp8Params& p) { return std::min(p.num_tokens, kMostTokens); }
int32_t groups_of(int32_t num_tokens) { return ceil_div(num_tokens, kMoeFp8Group); }

// Bytes of a packed group: one part of BF16 for activations, two for the intermediate.
int64_t a_bytes(const MoeFp8Params& p, const MoeFp8Kernels& kernels) {
  return int64_t{p.hidden} * kMoeFp8Group * (kernels.is_bf16 ? 2 : 4);
}
int64_t h_bytes(const MoeFp8Params& p) { return int64_t{p.intermediate} * kMoeFp8Group * 4; }

Parts lay_out(const MoeFp8Params& p, const MoeFp8Kernels& kernels, std::byte* base) {
  const int32_t num_tokens = piece_of(p);
  const int64_t num_groups = groups_of(num_tokens);
  Scratch scratch(base);
  Parts parts;
  parts.pairs.take_from(p, num_tokens, scratch);
  parts.a = scratch.take<std::byte>(
      std::max(num_groups * a_bytes(p, kernels), int64_t{kernels.most_few} * p.hidden * 4));
  parts.h = scratch.take<std::byte>(num_groups * h_bytes(p));
  parts.scales =
      scratch.take<float>(kernels.is_bf16 ? num_groups * (p.hidden / kFp8Block) * kMoeFp8Group : 0);
  parts.few = scratch.take<float>(int64_t{kernels.most_few} * p.intermediate);
  parts.y = scratch.take<float>(int64_t{num_tokens} * p.hidden);
  parts.codes = scratch.take<float>(256);
  parts.bytes = scratch.bytes();
  return parts;
}

// One expert with its pairs in a launch.
struct Expert {
  int32_t first_token;  // of the piece
  const int32_t* tokens;
  const float* weights;
  int32_t count;
  const uint8_t *up, *gate, *down;
  const float *up_scales, *gate_scales, *down_scales;
};

Expert expert_of(const MoeFp8Params& p, const Parts& parts, int32_t first_token, int32_t e) {
  const int32_t begin = parts.pairs.offsets[e];
  const int64_t weights = int64_t{p.intermediate} * p.hidden;
  const int64_t blocks = weights / (kFp8Block * kFp8Block);
  return {.first_token = first_token,
          .tokens = parts.pairs.tokens + begin,
          .weights = parts.pairs.weights + begin,
          .count = parts.pairs.offsets[e + 1] - begin,
          .up = p.gemm1_weights + 2 * e * weights,
          .gate = p.gemm1_weights + (2 * e + 1) * weights,
          .down = p.gemm2_weights + e * weights,
          .up_scales = p.gemm1_weights_scale + 2 * e * blocks,
          .gate_scales = p.gemm1_weights_scale + (2 * e + 1) * blocks,
          .down_scales = p.gemm2_weights_scale + e * blocks};
}

float* y_of(const MoeFp8Params& p, const Parts& parts, const Expert& expert, int32_t i) {
  return parts.y + int64_t{expert.tokens[i] - expert.first_token} * p.hidden;
}

// ---- A few tokens -------------------------------------------------------------------------------

// The bits of values that are E4M3's: exact.
uint16_t exact_bf16(float value) { return static_cast<uint16_t>(f32_to_bits(value) >> 16); }

// Packs an expert's tokens; returns what lies there.
MoeFp8Few pack_few(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
                   const Expert& expert) {
  const int32_t num_blocks = p.hidden / kFp8Block;
  for (int32_t i = 0; i < expert.count; ++i) {
    const int32_t token = expert.tokens[i];
    const uint8_t* codes = p.hidden_states + int64_t{token} * p.hidden;
    for (int32_t block = 0; block < num_blocks; ++block) {
      const float scale = p.hidden_states_scale[int64_t{block} * p.num_tokens + token];
      const int64_t at = int64_t{i} * p.hidden + block * kFp8Block;
      const uint8_t* from = codes + block * kFp8Block;
      if (kernels.is_bf16) {
        parts.scales[i * num_blocks + block] = scale;
        auto* to = reinterpret_cast<uint16_t*>(parts.a) + at;
        for (int32_t k = 0; k < kFp8Block; ++k) to[k] = exact_bf16(parts.codes[from[k]]);
      } else {
        auto* to = reinterpret_cast<float*>(parts.a) + at;
        for (int32_t k = 0; k < kFp8Block; ++k) to[k] = parts.codes[from[k]] * scale;
      }
    }
  }
  return {.packed = parts.a,
          .scales = kernels.is_bf16 ? parts.scales : nullptr,
          .num_tokens = expert.count};
}

// h of a few tokens for the second product: F32 as it is, BF16 in two parts.
MoeFp8Few pack_intermediate(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
                            int32_t num_tokens) {
  if (!kernels.is_bf16)
    return {.packed = reinterpret_cast<const std::byte*>(parts.few), .num_tokens = num_tokens};
  auto* to = reinterpret_cast<uint16_t*>(parts.h);
  for (int32_t i = 0; i < num_tokens; ++i, to += 2 * p.intermediate) {
    const float* h = parts.few + int64_t{i} * p.intermediate;
    for (int32_t k = 0; k < p.intermediate; ++k) {
      to[k] = f32_to_bf16(h[k]);
      to[p.intermediate + k] = f32_to_bf16(h[k] - bf16_to_f32(to[k]));
    }
  }
  return {.packed = parts.h, .num_parts = 2, .num_tokens = num_tokens};
}

void run_few(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
             const Expert& expert) {
  constexpr int32_t kRows = kMoeFp8FewRows, kRowsOfTask = 16;
  const int32_t n = expert.count, in_blocks = p.hidden / kFp8Block,
                mid_blocks = p.intermediate / kFp8Block;
  const MoeFp8Few a = pack_few(p, kernels, parts, expert);
  ThreadPool& pool = *p.launch.stream->pool;
  pool.share(p.intermediate, kRowsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t at = row * p.hidden, scale = row / kFp8Block * in_blocks;
      const int64_t ahead = at + int64_t{kRows} * p.hidden;
      float up[kRows * kMoeFp8MostFew], gate[kRows * kMoeFp8MostFew];
      kernels.multiply_few(expert.up + at, expert.up_scales + scale, p.hidden, a, expert.up + ahead,
                           up);
      kernels.multiply_few(expert.gate + at, expert.gate_scales + scale, p.hidden, a,
                           expert.gate + ahead, gate);
      for (int32_t i = 0; i < kRows * n; ++i)
        parts.few[int64_t{i % n} * p.intermediate + row + i / n] =
            gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
  });
  const MoeFp8Few h = pack_intermediate(p, kernels, parts, n);
  pool.share(p.hidden, kRowsOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += kRows) {
      const int64_t at = row * p.intermediate;
      float y[kRows * kMoeFp8MostFew];
      kernels.multiply_few(expert.down + at, expert.down_scales + row / kFp8Block * mid_blocks,
                           p.intermediate, h, expert.down + at + int64_t{kRows} * p.intermediate,
                           y);
      for (int32_t i = 0; i < kRows * n; ++i)
        y_of(p, parts, expert, i % n)[row + i / n] += expert.weights[i % n] * y[i];
    }
  });
}

// ---- Groups of tokens ---------------------------------------------------------------------------

// Packs the activations of 16 tokens, with zeros for missing ones.
void pack_group(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
                const Expert& expert, int32_t group) {
  std::byte* to = parts.a + group * a_bytes(p, kernels);
  const int32_t first = group * kMoeFp8Group, count = std::min(kMoeFp8Group, expert.count - first);
  if (count < kMoeFp8Group) std::memset(to, 0, static_cast<size_t>(a_bytes(p, kernels)));
  for (int32_t block = 0; block < p.hidden / kFp8Block; ++block) {
    const float* scales = p.hidden_states_scale + int64_t{block} * p.num_tokens;
    float* to_scales =
        parts.scales + (int64_t{group} * (p.hidden / kFp8Block) + block) * kMoeFp8Group;
    if (kernels.is_bf16) std::fill_n(to_scales, kMoeFp8Group, 0.0f);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t token = expert.tokens[first + i];
      const int64_t column = int64_t{block} * kFp8Block;
      const uint8_t* codes = p.hidden_states + int64_t{token} * p.hidden + column;
      if (kernels.is_bf16) {
        uint16_t* at = reinterpret_cast<uint16_t*>(to) + column * kMoeFp8Group + 2 * i;
        to_scales[i] = scales[token];
        for (int32_t k = 0; k < kFp8Block; ++k)
          at[k / 2 * 2 * kMoeFp8Group + k % 2] = exact_bf16(parts.codes[codes[k]]);
      } else {
        float* at = reinterpret_cast<float*>(to) + column * kMoeFp8Group + i;
        for (int32_t k = 0; k < kFp8Block; ++k)
          at[k * kMoeFp8Group] = parts.codes[codes[k]] * scales[token];
      }
    }
  }
}

// Calls done(first group, sums) for the products of a strip with all groups, as many at a time as
// one call takes.
template <typename Done>
void multiply_strip(const MoeFp8Kernels& kernels, const MoeFp8Strip& strip,
                    const MoeFp8Groups& groups, Done done) {
  alignas(64) float sums[kMoeFp8MaxGroups * kMoeFp8GroupSums];
  for (int32_t group = 0; group < groups_of(groups.num_tokens); group += kMoeFp8MaxGroups) {
    MoeFp8Groups some = groups;
    some.packed += group * groups.group_bytes;
    if (groups.scales != nullptr)
      some.scales += int64_t{group} * (strip.cols / kFp8Block) * kMoeFp8Group;
    some.num_tokens =
        std::min(groups.num_tokens - group * kMoeFp8Group, kMoeFp8MaxGroups * kMoeFp8Group);
    kernels.multiply(strip, some, sums);
    for (int32_t i = 0; i < groups_of(some.num_tokens); ++i)
      done(group + i, sums + i * kMoeFp8GroupSums);
  }
}

void run_groups(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
                const Expert& expert) {
  const int32_t num_groups = groups_of(expert.count), in_blocks = p.hidden / kFp8Block,
                mid_blocks = p.intermediate / kFp8Block;
  ThreadPool& pool = *p.launch.stream->pool;
  pool.share(num_groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group)
      pack_group(p, kernels, parts, expert, static_cast<int32_t>(group));
  });
  const MoeFp8Groups a{.packed = parts.a,
                       .group_bytes = a_bytes(p, kernels),
                       .scales = kernels.is_bf16 ? parts.scales : nullptr,
                       .num_tokens = expert.count};
  pool.share(p.intermediate, 16, [&](int64_t row, int64_t) {
    const int64_t at = row * p.hidden, scale = row / kFp8Block * in_blocks;
    const MoeFp8Strip strip{.half = {expert.up + at, expert.gate + at},
                            .scales = {expert.up_scales + scale, expert.gate_scales + scale},
                            .cols = p.hidden,
                            .rows_ahead = 16};
    multiply_strip(kernels, strip, a, [&](int32_t group, const float* sums) {
      kernels.swiglu(sums, static_cast<int32_t>(row), p.intermediate, parts.h + group * h_bytes(p));
    });
  });
  const MoeFp8Groups h{.packed = parts.h,
                       .group_bytes = h_bytes(p),
                       .num_parts = kernels.is_bf16 ? 2 : 1,
                       .num_tokens = expert.count};
  pool.share(p.hidden, kMoeFp8Strip, [&](int64_t row, int64_t) {
    const int64_t at = row * p.intermediate;
    const float* scales = expert.down_scales + row / kFp8Block * mid_blocks;
    const MoeFp8Strip strip{.half = {expert.down + at, expert.down + at + 16 * p.intermediate},
                            .scales = {scales, scales},
                            .cols = p.intermediate,
                            .rows_ahead = kMoeFp8Strip};
    multiply_strip(kernels, strip, h, [&](int32_t group, const float* sums) {
      const int32_t first = group * kMoeFp8Group;
      const int32_t count = std::min(kMoeFp8Group, expert.count - first);
      float* out[kMoeFp8Group];
      for (int32_t i = 0; i < count; ++i) out[i] = y_of(p, parts, expert, first + i) + row;
      kernels.add_outputs(sums, expert.weights + first, count, out);
    });
  });
}

void run_piece(const MoeFp8Params& p, const MoeFp8Kernels& kernels, const Parts& parts,
               int32_t first, int32_t count) {
  constexpr int64_t kValuesOfTask = 1 << 14;
  ThreadPool& pool = *p.launch.stream->pool;
  const int64_t num_values = int64_t{count} * p.hidden;
  sort_moe_fp8_pairs(p, first, count, parts.pairs);
  pool.share(num_values, kValuesOfTask,
             [&](int64_t begin, int64_t end) { std::fill(parts.y + begin, parts.y + end, 0.0f); });
  for (int32_t e = 0; e < p.num_local_experts; ++e) {
    const Expert expert = expert_of(p, parts, first, e);
    if (expert.count > kernels.most_few)
      run_groups(p, kernels, parts, expert);
    else if (expert.count > 0)
      run_few(p, kernels, parts, expert);
  }
  uint16_t* output = p.output + int64_t{first} * p.hidden;
  pool.share(num_values, kValuesOfTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) output[i] = f32_to_bf16(parts.y[i]);
  });
}

}  // namespace

double moe_fp8_gemm_cost(const MoeFp8Params& p, const MoeFp8Kernels& kernels, double dot_cost) {
  const MoeFp8Load load = expected_moe_fp8_load(p);
  // The intermediate in two parts: a third of the products counts twice.
  const double apply_ns =
      kernels.apply_ns * (kernels.is_bf16 ? 4.0 / 3 : 1) * (kernels.is_dot ? dot_cost : 1);
  return 3.0 * p.hidden * p.intermediate *
         (load.num_touched * kernels.decode_ns + load.num_pairs * apply_ns);
}

uint64_t moe_fp8_gemm_workspace(const MoeFp8Params& p, const MoeFp8Kernels& kernels) {
  return lay_out(p, kernels, nullptr).bytes;
}

void moe_fp8_gemm(const MoeFp8Params& p, const MoeFp8Kernels& kernels) {
  const Parts parts = lay_out(p, kernels, p.launch.workspace);
  for (int32_t code = 0; code < 256; ++code)
    parts.codes[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  for (int32_t first = 0; first < p.num_tokens; first += kMostTokens)
    run_piece(p, kernels, parts, first, std::min(kMostTokens, p.num_tokens - first));
}

}  // namespace moxie
