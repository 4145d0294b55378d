// The table of gather, and its least work.
#include "kernels/gather/gather_rows.h"
#include "kernels/gemv/cuda_times.h"

namespace moxie {
namespace {

const char* refuses(const GatherParams& p) {
  return p.kind == LinkKind::kThreads || p.kind == LinkKind::kSockets ? nullptr
                                                                      : "ranks are not on CPUs";
}
double copy_us(const GatherParams& p, const DeviceRates& rates) {
  constexpr double kMeetingUs = 1.0;
  return kMeetingUs + 1e-3 * Op<GatherParams>::work(p).bytes / rates.read_gb_s;
}
#if MOXIE_HAS_CUDA
const char* refuses_peers(const GatherParams& p) {
  return p.kind == LinkKind::kPeers ? nullptr : "ranks are not GPUs of one process";
}
// Units of four lie at multiples of 16 bytes in every row.
const char* refuses_units(const GatherParams& p) {
  return p.vocab % kLogitUnit != 0 ? "the vocabulary is no multiple of 16" : refuses_peers(p);
}
// About a rank's: all ranks must choose the same row, whose parts differ a little.
double part_floats(const GatherParams& p) { return 0.5 * p.num_rows * p.vocab; }
double peers_us(const GatherParams& p, const DeviceRates&) { return rank_mail_us(part_floats(p)); }
double units_us(const GatherParams& p, const DeviceRates&) {
  return rank_units_us(4.0 * part_floats(p));
}
#endif
uint64_t no_workspace(const GatherParams&) { return 0; }

const Row<GatherParams> kRows[] = {
    {.name = "gather_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "ranks that are threads or processes",
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
     .supports = "ranks that are threads or processes",
     .limits = "exact; any number of rows",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = copy_us,
     .workspace = no_workspace,
     .run = gather_f32_copy_portable},
#if MOXIE_HAS_CUDA
    {.name = "gather_f32_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "GPUs of one process that write to each other's memory",
     .limits = "exact; any number of rows",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_peers,
     .predict_us = peers_us,
     .workspace = no_workspace,
     .run = gather_f32_peers_cuda},
    {.name = "gather_f32_units_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "GPUs of one process that write to each other's memory; a vocabulary in 16s",
     .limits = "exact; for many rows",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_units,
     .predict_us = units_us,
     .workspace = no_workspace,
     .run = gather_f32_units_peers_cuda},
#endif
};

}  // namespace

std::span<const Row<GatherParams>> Op<GatherParams>::rows() { return kRows; }

Work Op<GatherParams>::work(const GatherParams& p) {
  return {.bytes = 8.0 * p.num_rows * p.vocab, .flops = 0};
}

}  // namespace moxie
