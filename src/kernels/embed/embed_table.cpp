// The table of embed, and its least work.
#include "kernels/embed/embed_rows.h"
#include "kernels/gemv/cuda_times.h"

namespace moxie {
namespace {

const char* refuses_format(const EmbedParams& params) {
  switch (params.table.format) {
    case DType::kF32:
    case DType::kBF16:
      return nullptr;
    case DType::kQ8_0:
      return params.table.cols % 32 == 0 ? nullptr : "Q8_0 rows are whole blocks of 32";
    default:
      return "the table is not F32, BF16 or Q8_0";
  }
}
#if MOXIE_HAS_CUDA
const char* refuses_cuda(const EmbedParams& params) {
  if (params.table.cols % 4 != 0) return "columns are not a multiple of 4";
  return refuses_format(params);
}
#endif
double embed_us(const EmbedParams& p, const DeviceRates& rates) {
  return predicted_us(Op<EmbedParams>::work(p), rates, rates.bf16_gflops,
                      {.read = 0.5, .fixed_us = 2.0});
}
uint64_t no_workspace(const EmbedParams&) { return 0; }

const Row<EmbedParams> kRows[] = {
    {.name = "embed_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "F32, BF16, Q8_0 tables",
     .limits = "exact; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_format,
     .predict_us = reference_us<EmbedParams>,
     .workspace = no_workspace,
     .run = embed_reference},
    {.name = "embed_any_f32_gather_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "F32, BF16, Q8_0 tables",
     .limits = "exact; any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_format,
     .predict_us = embed_us,
     .workspace = no_workspace,
     .run = embed_any_f32_gather_portable},
#if MOXIE_HAS_CUDA
    {.name = "embed_any_f32_gather_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "F32, BF16, Q8_0 tables; columns a multiple of 4",
     .limits = "exact; any number of tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_cuda,
     .predict_us = embed_us,
     .workspace = no_workspace,
     .run = embed_any_f32_gather_cuda},
#endif
};

}  // namespace

std::span<const Row<EmbedParams>> Op<EmbedParams>::rows() { return kRows; }

Work Op<EmbedParams>::work(const EmbedParams& params) {
  const double tokens = params.num_tokens;
  return {.bytes = tokens *
                   (static_cast<double>(params.table.row_bytes()) + 4.0 * params.table.cols + 4.0),
          .flops = params.table.format == DType::kQ8_0 ? tokens * params.table.cols : 0.0};
}

}  // namespace moxie
