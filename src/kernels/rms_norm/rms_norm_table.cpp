// The table of rms_norm, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace moxie {
namespace {

const char* refuses_nothing(const RmsNormParams&) { return nullptr; }
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
     .refuses = refuses_nothing,
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
     .refuses = refuses_nothing,
     .predict_us = rms_norm_us,
     .workspace = no_workspace,
     .run = rms_norm_f32_portable},
};

}  // namespace

std::span<const Row<RmsNormParams>> Op<RmsNormParams>::rows() { return kRows; }

Work Op<RmsNormParams>::work(const RmsNormParams& p) {
  return {.bytes = 8.0 * p.num_tokens * p.width, .flops = 4.0 * p.num_tokens * p.width};
}

}  // namespace moxie
