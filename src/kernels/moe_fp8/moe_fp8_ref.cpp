// The reference row of moe_fp8_block_scale: routing as the definition has it, in F32; products and
// sums in double precision, which F32 and then BF16 round at the end.
#include <algorithm>
#include <cmath>

#include "core/formats.h"
#include "core/threads.h"
#include "kernels/moe_fp8/moe_fp8_routing.h"
#include "kernels/moe_fp8/moe_fp8_rows.h"

namespace moxie {
namespace {

struct Parts {
  MoeFp8Pairs pairs;
  double* a;      // [tokens, hidden], scaled
  double* h;      // [tokens, intermediate] of one expert's pairs
  double* y;      // [tokens, hidden]
  double* codes;  // [256] value of an E4M3 code
  uint64_t bytes;
};

Parts lay_out(const MoeFp8Params& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.pairs.take_from(p, p.num_tokens, scratch);
  parts.a = scratch.take<double>(int64_t{p.num_tokens} * p.hidden);
  parts.h = scratch.take<double>(int64_t{p.num_tokens} * p.intermediate);
  parts.y = scratch.take<double>(int64_t{p.num_tokens} * p.hidden);
  parts.codes = scratch.take<double>(256);
  parts.bytes = scratch.bytes();
  return parts;
}

// A row of weights times a row of activations. `scales` are those of the weights' row of blocks.
double dot(const double* codes, const uint8_t* w, const float* scales, const double* x, int32_t n) {
  double sum = 0;
  for (int32_t block = 0; block < n / kFp8Block; ++block) {
    double of_block = 0;
    for (int32_t k = block * kFp8Block; k < (block + 1) * kFp8Block; ++k)
      of_block += codes[w[k]] * x[k];
    sum += of_block * scales[block];
  }
  return sum;
}

void add_expert(const MoeFp8Params& p, const Parts& parts, int32_t e) {
  const int32_t begin = parts.pairs.offsets[e], end = parts.pairs.offsets[e + 1];
  const int32_t in_blocks = p.hidden / kFp8Block, mid_blocks = p.intermediate / kFp8Block;
  ThreadPool& pool = *p.launch.stream->pool;
  auto up_gate = [&](int64_t i, int) {
    const uint8_t* w = p.gemm1_weights + (int64_t{e} * 2 * p.intermediate + i) * p.hidden;
    const float* scales =
        p.gemm1_weights_scale + (int64_t{e} * 2 * mid_blocks + i / kFp8Block) * in_blocks;
    const int64_t to_gate = int64_t{p.intermediate} * p.hidden;
    for (int32_t at = begin; at < end; ++at) {
      const double* a = parts.a + int64_t{parts.pairs.tokens[at]} * p.hidden;
      const double up = dot(parts.codes, w, scales, a, p.hidden);
      const double gate =
          dot(parts.codes, w + to_gate, scales + int64_t{mid_blocks} * in_blocks, a, p.hidden);
      parts.h[int64_t{at - begin} * p.intermediate + i] = gate / (1.0 + std::exp(-gate)) * up;
    }
  };
  pool.run(p.intermediate, up_gate);
  auto down = [&](int64_t i, int) {
    const uint8_t* w = p.gemm2_weights + (int64_t{e} * p.hidden + i) * p.intermediate;
    const float* scales =
        p.gemm2_weights_scale + (int64_t{e} * in_blocks + i / kFp8Block) * mid_blocks;
    for (int32_t at = begin; at < end; ++at) {
      const double* h = parts.h + int64_t{at - begin} * p.intermediate;
      parts.y[int64_t{parts.pairs.tokens[at]} * p.hidden + i] +=
          parts.pairs.weights[at] * dot(parts.codes, w, scales, h, p.intermediate);
    }
  };
  pool.run(p.hidden, down);
}

}  // namespace

uint64_t moe_fp8_reference_workspace(const MoeFp8Params& p) { return lay_out(p, nullptr).bytes; }

void moe_fp8_reference(const MoeFp8Params& p) {
  const Parts parts = lay_out(p, p.launch.workspace);
  for (int32_t code = 0; code < 256; ++code)
    parts.codes[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  sort_moe_fp8_pairs(p, 0, p.num_tokens, parts.pairs);
  for (int32_t token = 0; token < p.num_tokens; ++token) {
    for (int32_t k = 0; k < p.hidden; ++k) {
      const int64_t at = int64_t{token} * p.hidden + k;
      const double scale = p.hidden_states_scale[int64_t{k / kFp8Block} * p.num_tokens + token];
      parts.a[at] = parts.codes[p.hidden_states[at]] * scale;
      parts.y[at] = 0;
    }
  }
  for (int32_t e = 0; e < p.num_local_experts; ++e)
    if (parts.pairs.offsets[e] < parts.pairs.offsets[e + 1]) add_expert(p, parts, e);
  for (int64_t i = 0; i < int64_t{p.num_tokens} * p.hidden; ++i)
    p.output[i] = f32_to_bf16(static_cast<float>(parts.y[i]));
}

}  // namespace moxie
