// qkv for many tokens: the norm, rounded to BF16, then one task for each head and chunk of tokens.
// A task multiplies with decoded weights, adds the bias, rotates and writes q or appends to the
// cache.
#include "kernels/gemv/gemm_product.h"
#include "kernels/qkv/qkv_head.h"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

// Tokens for which a task decodes a head's weights once; their outputs of the head are kept on its
// stack.
constexpr int32_t kChunkTokens = 256;

struct Parts {
  float* t;          // [tokens, hidden], normed
  uint16_t* groups;  // t, packed
  uint64_t bytes;
};

Parts lay_out(const QkvParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<float>(int64_t{p.batch.num_tokens} * p.hidden);
  parts.groups =
      scratch.take<uint16_t>(ceil_div(p.batch.num_tokens, kGroupTokens) * group_values(p.hidden));
  parts.bytes = scratch.bytes();
  return parts;
}

void multiply_head(const QkvParams& p, const GemmKernels& gemm, const uint16_t* groups,
                   int32_t head, int32_t token, int32_t num_tokens) {
  float heads[kChunkTokens * kMaxHeadDim];  // [tokens, head_dim]
  for (int32_t first = 0; first < p.head_dim; first += 32) {
    const int32_t output = head * p.head_dim + first;
    multiply_tile_pair(gemm, p.weight, output / 32, groups, num_tokens,
                       [&](int32_t group, const float* sums) {
                         const int32_t begin = group * kGroupTokens;
                         const int32_t end = std::min(begin + kGroupTokens, num_tokens);
                         for (int32_t i = begin; i < end; ++i) {
                           float* to = heads + i * p.head_dim + first;
                           const float* from = sums + (i - begin) * 32;
                           for (int32_t k = 0; k < 32; ++k) to[k] = from[k] + p.bias[output + k];
                         }
                       });
  }
  for (int32_t i = 0; i < num_tokens; ++i) {
    finish_head(p, token + i, head, heads + i * p.head_dim);
  }
}

void run(const QkvParams& p, const GemmKernels& gemm) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_tokens = p.batch.num_tokens;
  parallel_rms_norm(
      pool, gemm, [&](int32_t i) { return p.x + int64_t{i} * p.hidden; }, num_tokens, p.hidden,
      p.norm_weight, p.rms_eps, parts.t);
  pack_groups(
      pool, gemm, [&](int32_t i) { return parts.t + int64_t{i} * p.hidden; }, num_tokens, p.hidden,
      parts.groups);
  const int64_t num_heads = p.num_heads + 2 * p.num_kv_heads;
  const int64_t num_chunks = ceil_div(num_tokens, kChunkTokens);
  const double ns = gemm_ns(gemm, static_cast<double>(p.weight.rows) * p.weight.cols, num_tokens);
  split_work(pool, num_heads * num_chunks, ns, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const auto head = static_cast<int32_t>(unit % num_heads);
      const auto token = static_cast<int32_t>(unit / num_heads) * kChunkTokens;
      multiply_head(p, gemm, parts.groups + token / kGroupTokens * group_values(p.hidden), head,
                    token, std::min(kChunkTokens, num_tokens - token));
    }
  });
}

double cost(const QkvParams& p, const GemmKernels& gemm) {
  return gemm_cost(gemm, static_cast<double>(p.weight.rows) * p.weight.cols, p.batch.num_tokens,
                   kLeastGemmTokens, p.hidden);
}

}  // namespace

const char* qkv_any_bf16_gemm_refuses(const QkvParams& p) {
  if (const char* why = head_refuses(p)) return why;
  return gemm_refuses(p.weight);
}

uint64_t qkv_any_bf16_gemm_workspace(const QkvParams& p) { return lay_out(p, nullptr).bytes; }

double qkv_any_bf16_gemm_amx_cost(const QkvParams& p) { return cost(p, kGemmAmx); }
void qkv_any_bf16_gemm_amx(const QkvParams& p) { run(p, kGemmAmx); }
double qkv_any_bf16_gemm_avx512bf16_cost(const QkvParams& p) { return cost(p, kGemmAvx512Bf16); }
void qkv_any_bf16_gemm_avx512bf16(const QkvParams& p) { run(p, kGemmAvx512Bf16); }

}  // namespace moxie
