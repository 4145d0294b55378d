// The table of tap, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/tap/tap_rows.h"

namespace moxie {
namespace {

const char* refuses_nothing(const TapParams&) { return nullptr; }
#if MOXIE_HAS_CUDA
const char* refuses_cuda(const TapParams& params) {
  return params.hidden % 4 == 0 ? nullptr : "columns are not a multiple of 4";
}
#endif
double tap_us(const TapParams& p, const DeviceRates& rates) {
  return predicted_us(Op<TapParams>::work(p), rates, rates.bf16_gflops,
                      {.read = 0.5, .fixed_us = 2.0});
}
uint64_t no_workspace(const TapParams&) { return 0; }

const Row<TapParams> kRows[] = {
    {.name = "tap_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value",
     .limits = "exact; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_nothing,
     .predict_us = reference_us<TapParams>,
     .workspace = no_workspace,
     .run = tap_reference},
    {.name = "tap_f32_copy_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value",
     .limits = "exact; any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_nothing,
     .predict_us = tap_us,
     .workspace = no_workspace,
     .run = tap_f32_copy_portable},
#if MOXIE_HAS_CUDA
    {.name = "tap_any_copy_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "x of one float or two a value; columns a multiple of 4",
     .limits = "exact but for the rounding of two floats' sum; any number of tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_cuda,
     .predict_us = tap_us,
     .workspace = no_workspace,
     .run = tap_any_copy_cuda},
#endif
};

}  // namespace

std::span<const Row<TapParams>> Op<TapParams>::rows() { return kRows; }

Work Op<TapParams>::work(const TapParams& p) {
  return {.bytes = 8.0 * p.num_tokens * p.hidden, .flops = 0};
}

}  // namespace moxie
