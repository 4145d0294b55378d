// unembed for many rows: they are gathered, normed, rounded to BF16 and multiplied with decoded
// weights.
#include <cstring>

#include "kernels/gemv/gemm_product.h"
#include "kernels/scratch.h"
#include "kernels/unembed/unembed_rows.h"

namespace moxie {
namespace {

struct Parts {
  float* t;          // [rows, hidden], normed
  uint16_t* groups;  // t, packed
  uint64_t bytes;
};

Parts lay_out(const UnembedParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<float>(int64_t{p.num_rows} * p.hidden);
  parts.groups =
      scratch.take<uint16_t>(ceil_div(p.num_rows, kGroupTokens) * group_values(p.hidden));
  parts.bytes = scratch.bytes();
  return parts;
}

void run(const UnembedParams& p, const GemmKernels& gemm) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t vocab = p.weight.rows;
  parallel_rms_norm(
      pool, gemm, [&](int32_t i) { return p.x + int64_t{p.row_idx[i]} * p.hidden; }, p.num_rows,
      p.hidden, p.norm_weight, p.rms_eps, parts.t);
  pack_groups(
      pool, gemm, [&](int32_t i) { return parts.t + int64_t{i} * p.hidden; }, p.num_rows, p.hidden,
      parts.groups);
  parallel_gemm(pool, gemm, p.weight, parts.groups, p.num_rows,
                [&](int32_t output, int32_t row, const float* sums) {
                  std::memcpy(p.logits + int64_t{row} * vocab + output, sums,
                              static_cast<size_t>(std::min(32, vocab - output)) * 4);
                });
}

double cost(const UnembedParams& p, const GemmKernels& gemm) {
  return gemm_cost(gemm, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_rows,
                   kLeastGemmTokens, p.hidden);
}

}  // namespace

const char* unembed_any_bf16_gemm_refuses(const UnembedParams& p) { return gemm_refuses(p.weight); }

uint64_t unembed_any_bf16_gemm_workspace(const UnembedParams& p) {
  return lay_out(p, nullptr).bytes;
}

double unembed_any_bf16_gemm_amx_cost(const UnembedParams& p) { return cost(p, kGemmAmx); }
void unembed_any_bf16_gemm_amx(const UnembedParams& p) { run(p, kGemmAmx); }
double unembed_any_bf16_gemm_avx512bf16_cost(const UnembedParams& p) {
  return cost(p, kGemmAvx512Bf16);
}
void unembed_any_bf16_gemm_avx512bf16(const UnembedParams& p) { run(p, kGemmAvx512Bf16); }

}  // namespace moxie
