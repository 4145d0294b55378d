// The table of reduce, and its least work.
#include "kernels/rank_rows.h"
#include "kernels/reduce/reduce_rows.h"

namespace moxie {
namespace {

#if MOXIE_HAS_CUDA
// Of rows that may find the parts of out sent.
const char* refuses_sent(const ReduceParams& p) {
  if (p.forms.reduce != ReduceForm::kSent) return nullptr;
  if (p.num_ranks != 2) return "out sends its parts between two ranks";
  return p.hidden % 8 != 0 ? "the hidden size is no multiple of 8" : nullptr;
}
const char* refuses_units(const ReduceParams& p) {
  if (const char* why = refuses_sent(p)) return why;
  if (p.forms.reduce == ReduceForm::kRounded) {
    if (p.forms.x != XForm::kF32) return "x of two floats with parts in bf16";
    if (p.hidden % 8 != 0) return "the hidden size is no multiple of 8";
  }
  return p.hidden % 4 != 0 ? "the hidden size is no multiple of 4" : refuses_peer_link(p);
}
const char* refuses_bf16_words(const ReduceParams& p) {
  if (const char* why = refuses_sent(p)) return why;
  return p.hidden % 2 != 0 ? "the hidden size is odd" : refuses_peer_link(p);
}
constexpr const char* kAnyXOfPeers =
    "x of one float or two a value; GPUs of one process that write to each other's memory";
double peers_us(const ReduceParams& p, const DeviceRates&) {
  return rank_mail_us(1.0 * p.num_tokens * p.hidden, p.num_ranks);
}
// In narrow models rounding shows and gains nothing, as in rows of matrix products.
double rounded_us(const ReduceParams& p, double us) {
  constexpr int32_t kLeastTokens = 32;
  return p.hidden < kLeastGemmHidden || p.num_tokens < kLeastTokens ? kNeverUs : us;
}
// With kSent the mean of both places, behind out and behind experts.
double with_sent_us(const ReduceParams& p, double us) {
  const double values = 1.0 * p.num_tokens * p.hidden;
  return rounded_us(
      p, p.forms.reduce == ReduceForm::kSent ? 0.5 * (us + rank_sent_us(20 * values)) : us);
}
double bf16_us(const ReduceParams& p, const DeviceRates&) {
  return with_sent_us(p, rank_mail_us(0.5 * p.num_tokens * p.hidden, p.num_ranks));
}
double units_us(const ReduceParams& p, const DeviceRates&) {
  return with_sent_us(p, rank_units_us(2.0 * p.num_tokens * p.hidden, p.num_ranks));
}
double two_shot_us(const ReduceParams& p, const DeviceRates&) {
  return rounded_us(p, rank_slices_us(2.0 * p.num_tokens * p.hidden, p.num_ranks));
}
// Rows that also take parts as rows of many tokens leave them.
constexpr Row<ReduceParams> units_row(const char* name, const char* limits,
                                      double (*predict_us)(const ReduceParams&, const DeviceRates&),
                                      void (*run)(const ReduceParams&), const char* ran_on) {
  Row<ReduceParams> row =
      peers_row<ReduceParams>(name, kAnyXOfPeers, limits, refuses_units, predict_us, run, ran_on);
  row.forms.reduce.add(ReduceForm::kRounded);
  return row;
}
// The row with kSent in its forms.
constexpr Row<ReduceParams> with_sent(Row<ReduceParams> row) {
  row.forms.reduce.add(ReduceForm::kSent);
  return row;
}
constexpr const char* kAnyXOfNccl =
    "x of one float or two a value; processes with a GPU each, and NCCL";
const char* refuses_bf16_nccl(const ReduceParams& p) {
  return p.hidden % 4 != 0 ? "the hidden size is no multiple of 4" : refuses_nccl_link(p);
}
double nccl_f32_us(const ReduceParams& p, const DeviceRates&) {
  return nccl_us(4.0 * p.num_tokens * p.hidden);
}
double nccl_bf16_us(const ReduceParams& p, const DeviceRates&) {
  return rounded_us(p, nccl_us(2.0 * p.num_tokens * p.hidden));
}
#endif

const Row<ReduceParams> kRows[] = {
    {.name = "reduce_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value; ranks that are threads or processes",
     .limits = "double precision; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_cpu_link<ReduceParams>,
     .predict_us = reference_us<ReduceParams>,
     .workspace = no_link_workspace<ReduceParams>,
     .run = reduce_reference},
    {.name = "reduce_f32_one_shot_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "x of one float a value; ranks that are threads or processes",
     .limits = "F32; any number of tokens",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_cpu_link<ReduceParams>,
     .predict_us = link_read_us<ReduceParams>,
     .workspace = no_link_workspace<ReduceParams>,
     .run = reduce_f32_one_shot_portable},
#if MOXIE_HAS_CUDA
    peers_row<ReduceParams>("reduce_any_one_shot_peers_cuda", kAnyXOfPeers,
                            "F32; any number of tokens", refuses_peer_link, peers_us,
                            reduce_any_one_shot_peers_cuda),
    with_sent(peers_row<ReduceParams>("reduce_any_bf16_peers_cuda", kAnyXOfPeers,
                                      "parts rounded to bf16; for some tokens; an even hidden size",
                                      refuses_bf16_words, bf16_us, reduce_any_bf16_peers_cuda)),
    with_sent(units_row("reduce_any_bf16_units_peers_cuda",
                        "parts rounded to bf16; for many tokens", units_us,
                        reduce_any_bf16_units_peers_cuda, kRanAnyCuda)),
    units_row("reduce_any_bf16_two_shot_peers_cuda",
              "parts and their sum rounded to bf16; for many tokens of three ranks or more",
              two_shot_us, reduce_any_bf16_two_shot_peers_cuda, kRanOnH100),
    nccl_row<ReduceParams>("reduce_any_nccl_cuda", kAnyXOfNccl, "F32; any number of tokens",
                           refuses_nccl_link, nccl_f32_us, reduce_any_nccl_cuda),
    nccl_row<ReduceParams>("reduce_any_bf16_nccl_cuda", kAnyXOfNccl,
                           "parts rounded to bf16; for many tokens", refuses_bf16_nccl,
                           nccl_bf16_us, reduce_any_bf16_nccl_cuda),
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
