// What the matrix products for many tokens accept, and what they cost.
#include "kernels/gemv/gemm_product.h"

#include "kernels/registry.h"

namespace moxie {

const char* gemm_refuses(const PackedMatrix& matrix) {
  if (matrix.layout != PackedLayout::kRows16) return "weights are not in the CPU's packed layout";
  if (matrix.format != DType::kMXFP4 && matrix.format != DType::kBF16) {
    return "weights are not mxfp4 or bf16: others do not fit bf16 exactly";
  }
  if (matrix.format == DType::kMXFP4 && matrix.cols % 32 != 0) {
    return "columns are not a multiple of 32";
  }
  if (matrix.cols % 2 != 0) return "columns are not even";
  return nullptr;
}

double gemm_ns(const GemmKernels& gemm, double num_weights, double num_tokens) {
  return num_weights * (gemm.decode_ns + num_tokens * gemm.apply_ns);
}

double gemm_cost(const GemmKernels& gemm, double num_weights, double num_tokens,
                 double least_tokens, int32_t cols) {
  constexpr int32_t kLeastCols = 1024;
  if (num_tokens < least_tokens || cols < kLeastCols) return kNeverUs;
  return gemm_ns(gemm, num_weights, num_tokens);
}

}  // namespace moxie
