// out for many tokens: BF16 activations, decoded weights, F32 sums; the bias and the residual are
// added after each pair of tiles.
#include "kernels/gemv/gemm_product.h"
#include "kernels/out/out_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  uint16_t* groups;  // `a`, packed
  uint64_t bytes;
};

Parts lay_out(const OutParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.groups =
      scratch.take<uint16_t>(ceil_div(p.num_tokens, kGroupTokens) * group_values(p.weight.cols));
  parts.bytes = scratch.bytes();
  return parts;
}

void run(const OutParams& p, const GemmKernels& gemm) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t rows = p.weight.rows, cols = p.weight.cols;
  pack_groups(
      pool, gemm, [&](int32_t i) { return p.a + int64_t{i} * cols; }, p.num_tokens, cols,
      parts.groups);
  parallel_gemm(pool, gemm, p.weight, parts.groups, p.num_tokens,
                [&](int32_t output, int32_t token, const float* sums) {
                  float* x = p.x + int64_t{token} * rows + output;
                  const int32_t count = std::min(32, rows - output);
                  if (p.overwrites) std::fill_n(x, count, 0.0f);
                  gemm.add_scaled(sums, p.bias + output, 1.0f, count, x);
                });
}

double cost(const OutParams& p, const GemmKernels& gemm) {
  return gemm_cost(gemm, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_tokens,
                   kLeastGemmTokens, std::min(p.weight.rows, p.weight.cols));
}

}  // namespace

const char* out_any_bf16_gemm_refuses(const OutParams& p) { return gemm_refuses(p.weight); }

uint64_t out_any_bf16_gemm_workspace(const OutParams& p) { return lay_out(p, nullptr).bytes; }

double out_any_bf16_gemm_amx_cost(const OutParams& p) { return cost(p, kGemmAmx); }
void out_any_bf16_gemm_amx(const OutParams& p) { run(p, kGemmAmx); }
double out_any_bf16_gemm_avx512bf16_cost(const OutParams& p) { return cost(p, kGemmAvx512Bf16); }
void out_any_bf16_gemm_avx512bf16(const OutParams& p) { run(p, kGemmAvx512Bf16); }

}  // namespace moxie
