// The table of reduce, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/reduce/reduce_rows.h"

namespace moxie {
namespace {

const char* refuses(const ReduceParams& p) {
  return p.kind == LinkKind::kThreads || p.kind == LinkKind::kSockets ? nullptr
                                                                      : "ranks are not on CPUs";
}
double one_shot_us(const ReduceParams& p, const DeviceRates& rates) {
  constexpr double kMeetingUs = 1.0;
  return kMeetingUs + 1e-3 * Op<ReduceParams>::work(p).bytes / rates.read_gb_s;
}
#if MOXIE_HAS_CUDA
const char* refuses_peers(const ReduceParams& p) {
  return p.kind == LinkKind::kPeers ? nullptr : "ranks are not GPUs of one process";
}
const char* refuses_units(const ReduceParams& p) {
  return p.hidden % 4 != 0 ? "the hidden size is no multiple of 4" : refuses_peers(p);
}
double peers_us(const ReduceParams& p, const DeviceRates&) {
  return rank_mail_us(1.0 * p.num_tokens * p.hidden);
}
// In narrow models rounding shows and gains nothing, as in rows of matrix products.
double rounded_us(const ReduceParams& p, double us) {
  constexpr int32_t kLeastTokens = 32;
  return p.hidden < kLeastGemmHidden || p.num_tokens < kLeastTokens ? kNeverUs : us;
}
double bf16_us(const ReduceParams& p, const DeviceRates&) {
  return rounded_us(p, rank_mail_us(0.5 * p.num_tokens * p.hidden));
}
double units_us(const ReduceParams& p, const DeviceRates&) {
  return rounded_us(p, rank_units_us(2.0 * p.num_tokens * p.hidden));
}
#endif
uint64_t no_workspace(const ReduceParams&) { return 0; }

const Row<ReduceParams> kRows[] = {
    {.name = "reduce_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value; ranks that are threads or processes",
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
     .supports = "x of one float a value; ranks that are threads or processes",
     .limits = "F32; any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses,
     .predict_us = one_shot_us,
     .workspace = no_workspace,
     .run = reduce_f32_one_shot_portable},
#if MOXIE_HAS_CUDA
    {.name = "reduce_any_one_shot_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports =
         "x of one float or two a value; GPUs of one process that write to each other's memory",
     .limits = "F32; any number of tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_peers,
     .predict_us = peers_us,
     .workspace = no_workspace,
     .run = reduce_any_one_shot_peers_cuda},
    {.name = "reduce_any_bf16_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports =
         "x of one float or two a value; GPUs of one process that write to each other's memory",
     .limits = "parts rounded to bf16; for some tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_peers,
     .predict_us = bf16_us,
     .workspace = no_workspace,
     .run = reduce_any_bf16_peers_cuda},
    {.name = "reduce_any_bf16_units_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports =
         "x of one float or two a value; GPUs of one process that write to each other's memory",
     .limits = "parts rounded to bf16; for many tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = refuses_units,
     .predict_us = units_us,
     .workspace = no_workspace,
     .run = reduce_any_bf16_units_peers_cuda},
#endif
};

}  // namespace

std::span<const Row<ReduceParams>> Op<ReduceParams>::rows() { return kRows; }

// Its own part and x are read, x is written, the next part cleared; others' parts are theirs.
Work Op<ReduceParams>::work(const ReduceParams& p) {
  const double values = 1.0 * p.num_tokens * p.hidden;
  return {.bytes = 16 * values, .flops = values};
}

}  // namespace moxie
