// The table of gate, and its least work.
#include "kernels/gate/gate_rows.h"
#include "kernels/gemv/cuda_times.h"

namespace moxie {
namespace {

const char* refuses_nothing(const GateParams&) { return nullptr; }
double gate_us(const GateParams& p, const DeviceRates& rates) {
  return predicted_us(Op<GateParams>::work(p), rates, rates.bf16_gflops,
                      {.read = 0.5, .fixed_us = 1.0});
}
uint64_t no_workspace(const GateParams&) { return 0; }

const Row<GateParams> kRows[] = {
    {.name = "gate_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "gate and up of one float a value",
     .limits = "any number of tokens; double precision, one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_nothing,
     .predict_us = reference_us<GateParams>,
     .workspace = no_workspace,
     .run = gate_reference},
    {.name = "gate_f32_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "gate and up of one float a value",
     .limits = "any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_nothing,
     .predict_us = gate_us,
     .workspace = no_workspace,
     .run = gate_f32_portable},
#if MOXIE_HAS_CUDA
    {.name = "gate_f32_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "gate and up of one float a value; a multiple of 4 columns",
     .limits = "any number of tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = gate_f32_cuda_refuses,
     .predict_us = gate_us,
     .workspace = no_workspace,
     .run = gate_f32_cuda},
#endif
};

}  // namespace

std::span<const Row<GateParams>> Op<GateParams>::rows() { return kRows; }

Work Op<GateParams>::work(const GateParams& p) {
  return {.bytes = 12.0 * p.num_tokens * p.width, .flops = 4.0 * p.num_tokens * p.width};
}

}  // namespace moxie
