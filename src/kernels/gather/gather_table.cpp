// The table of gather, and its least work.
#include "kernels/gather/gather_rows.h"

namespace moxie {
namespace {

const char* refuses(const GatherParams& p) {
  return p.kind == LinkKind::kThreads ? nullptr : "ranks are not threads of one process";
}
double copy_us(const GatherParams& p, const DeviceRates& rates) {
  constexpr double kMeetingUs = 1.0;
  return kMeetingUs + 1e-3 * Op<GatherParams>::work(p).bytes / rates.read_gb_s;
}
uint64_t no_workspace(const GatherParams&) { return 0; }

const Row<GatherParams> kRows[] = {
    {.name = "gather_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "ranks in one process",
     .limits = "exact; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = reference_us<GatherParams>,
     .workspace = no_workspace,
     .run = gather_reference},
    {.name = "gather_f32_copy_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "ranks in one process",
     .limits = "exact; any number of rows",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = copy_us,
     .workspace = no_workspace,
     .run = gather_f32_copy_portable},
};

}  // namespace

std::span<const Row<GatherParams>> Op<GatherParams>::rows() { return kRows; }

Work Op<GatherParams>::work(const GatherParams& p) {
  return {.bytes = 8.0 * p.num_rows * p.vocab, .flops = 0};
}

}  // namespace moxie
