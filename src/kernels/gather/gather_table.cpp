// The table of gather, and its least work.
#include "kernels/gather/gather_rows.h"
#include "kernels/rank_rows.h"

namespace moxie {
namespace {

#if MOXIE_HAS_CUDA
// Units of four lie at multiples of 16 bytes in every row.
const char* refuses_units(const GatherParams& p) {
  return p.vocab % kLogitUnit != 0 ? "the vocabulary is no multiple of 16" : refuses_peer_link(p);
}
// About a rank's: all ranks must choose the same row, whose parts differ a little.
double part_floats(const GatherParams& p) { return 0.5 * p.num_rows * p.vocab; }
double peers_us(const GatherParams& p, const DeviceRates&) { return rank_mail_us(part_floats(p)); }
double units_us(const GatherParams& p, const DeviceRates&) {
  return rank_units_us(4.0 * part_floats(p));
}
double nccl_f32_us(const GatherParams& p, const DeviceRates&) {
  return nccl_us(4.0 * part_floats(p));
}
#endif

const Row<GatherParams> kRows[] = {
    {.name = "gather_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "ranks that are threads or processes",
     .limits = "exact; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_cpu_link<GatherParams>,
     .predict_us = reference_us<GatherParams>,
     .workspace = no_link_workspace<GatherParams>,
     .run = gather_reference},
    {.name = "gather_f32_copy_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "ranks that are threads or processes",
     .limits = "exact; any number of rows",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_cpu_link<GatherParams>,
     .predict_us = link_read_us<GatherParams>,
     .workspace = no_link_workspace<GatherParams>,
     .run = gather_f32_copy_portable},
#if MOXIE_HAS_CUDA
    peers_row<GatherParams>(
        "gather_f32_peers_cuda", "GPUs of one process that write to each other's memory",
        "exact; any number of rows", refuses_peer_link, peers_us, gather_f32_peers_cuda),
    peers_row<GatherParams>(
        "gather_f32_units_peers_cuda",
        "GPUs of one process that write to each other's memory; a vocabulary in 16s",
        "exact; for many rows", refuses_units, units_us, gather_f32_units_peers_cuda),
    nccl_row<GatherParams>("gather_f32_nccl_cuda", "processes with a GPU each, and NCCL",
                           "exact; any number of rows", refuses_nccl_link, nccl_f32_us,
                           gather_f32_nccl_cuda),
#endif
};

}  // namespace

std::span<const Row<GatherParams>> Op<GatherParams>::rows() { return kRows; }

Work Op<GatherParams>::work(const GatherParams& p) {
  return {.bytes = 8.0 * p.num_rows * p.vocab, .flops = 0};
}

}  // namespace moxie
