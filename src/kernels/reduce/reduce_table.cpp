// The table of reduce, and its least work.
#include "kernels/reduce/reduce_rows.h"

namespace moxie {
namespace {

const char* refuses(const ReduceParams& p) {
  return p.kind == LinkKind::kThreads ? nullptr : "ranks are not threads of one process";
}
double one_shot_us(const ReduceParams& p, const DeviceRates& rates) {
  constexpr double kMeetingUs = 1.0;
  return kMeetingUs + 1e-3 * Op<ReduceParams>::work(p).bytes / rates.read_gb_s;
}
uint64_t no_workspace(const ReduceParams&) { return 0; }

const Row<ReduceParams> kRows[] = {
    {.name = "reduce_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value; ranks in one process",
     .limits = "double precision; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = reference_us<ReduceParams>,
     .workspace = no_workspace,
     .run = reduce_reference},
    {.name = "reduce_f32_one_shot_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value; ranks in one process",
     .limits = "F32; any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = one_shot_us,
     .workspace = no_workspace,
     .run = reduce_f32_one_shot_portable},
};

}  // namespace

std::span<const Row<ReduceParams>> Op<ReduceParams>::rows() { return kRows; }

// Its own part and x are read, x is written, the next part cleared; others' parts are theirs.
Work Op<ReduceParams>::work(const ReduceParams& p) {
  const double values = 1.0 * p.num_tokens * p.hidden;
  return {.bytes = 16 * values, .flops = values};
}

}  // namespace moxie
