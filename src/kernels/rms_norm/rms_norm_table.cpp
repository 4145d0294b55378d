// The table of rms_norm, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace moxie {
namespace {

const char* refuses_pairs(const RmsNormParams& p) {
  return p.y_form == XForm::kF32 ? nullptr : "y of two floats a value";
}
double rms_norm_us(const RmsNormParams& p, const DeviceRates& rates) {
  return predicted_us(Op<RmsNormParams>::work(p), rates, rates.bf16_gflops,
                      {.read = 0.5, .fixed_us = 1.0});
}
uint64_t no_workspace(const RmsNormParams&) { return 0; }

const Row<RmsNormParams> kRows[] = {
    {.name = "rms_norm_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value",
     .limits = "any number of tokens; double precision, one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_pairs,
     .predict_us = reference_us<RmsNormParams>,
     .workspace = no_workspace,
     .run = rms_norm_reference},
    {.name = "rms_norm_f32_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value",
     .limits = "any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_pairs,
     .predict_us = rms_norm_us,
     .workspace = no_workspace,
     .run = rms_norm_f32_portable},
#if MOXIE_HAS_CUDA
    {.name = "rms_norm_any_f32_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "x and y of one float or two a value; a multiple of 4 columns, up to 16384",
     .limits = "any number of tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = rms_norm_any_f32_cuda_refuses,
     .predict_us = rms_norm_us,
     .workspace = no_workspace,
     .run = rms_norm_any_f32_cuda},
#endif
};

}  // namespace

std::span<const Row<RmsNormParams>> Op<RmsNormParams>::rows() { return kRows; }

Work Op<RmsNormParams>::work(const RmsNormParams& p) {
  return {.bytes = 8.0 * p.num_tokens * p.width, .flops = 4.0 * p.num_tokens * p.width};
}

}  // namespace moxie
