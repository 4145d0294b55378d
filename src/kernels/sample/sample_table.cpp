// The table of sample, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/rank_rows.h"
#include "kernels/sample/advance.h"
#include "kernels/sample/sample_rows.h"

namespace moxie {
namespace {

uint64_t no_workspace(const SampleParams&) { return 0; }

// Draws, then moves the streams of a decode loop on; rows on CUDA do so by their kernels.
template <void (*kDraw)(const SampleParams&)>
void draw_and_advance(const SampleParams& params) {
  kDraw(params);
  if (params.advance != nullptr) advance_cpu(params);
}

// The time of a row that takes kTimes times as long as the fastest: one pass over the logits.
template <int kTimes>
double scan_us(const SampleParams& p, const DeviceRates& rates) {
  return kTimes *
         predicted_us(Op<SampleParams>::work(p), rates, rates.bf16_gflops, {.fixed_us = 2.0});
}

const Row<SampleParams> kRows[] = {
    {.name = "sample_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "every request",
     .limits = "double precision; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_part,
     .predict_us = reference_us<SampleParams>,
     .workspace = no_workspace,
     .run = draw_and_advance<sample_reference>},
    {.name = "sample_any_f32_scan_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "every request",
     .limits = "the reference's tokens exactly; log-probabilities to F32",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_part,
     .predict_us = scan_us<4>,
     .workspace = sample_scan_workspace,
     .run = draw_and_advance<sample_any_f32_scan_portable>},
#if defined(__x86_64__)
    {.name = "sample_any_f32_scan_avx2",
     .device = DeviceKind::kCpu,
     .needs = kAvx2,
     .supports = "every request",
     .limits = "the reference's tokens exactly; log-probabilities to F32",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_part,
     .predict_us = scan_us<2>,
     .workspace = sample_scan_workspace,
     .run = draw_and_advance<sample_any_f32_scan_avx2>},
    {.name = "sample_any_f32_scan_avx512",
     .device = DeviceKind::kCpu,
     .needs = kAvx512,
     .supports = "every request",
     .limits = "the reference's tokens exactly; log-probabilities to F32",
     .ran_on = "x86-64",
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_part,
     .predict_us = scan_us<1>,
     .workspace = sample_scan_workspace,
     .run = draw_and_advance<sample_any_f32_scan_avx512>},
#endif
#if MOXIE_HAS_CUDA
    {.name = "sample_f32_gumbel_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "every request; vocabularies up to 1048576",
     .limits = "any number of rows; F32 scores: tokens differ only at ties closer than 1e-5",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .is_batch_invariant = true,
     .refuses = sample_f32_gumbel_cuda_refuses,
     .predict_us = scan_us<1>,
     .workspace = sample_f32_gumbel_cuda_workspace,
     .run = sample_f32_gumbel_cuda},
    {.name = "sample_f32_gumbel_peers_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "requests without penalties, masks, top-k, top-p, min-p and log-probabilities; "
                 "ranks on GPUs of one process with a part of the ids each",
     .limits = "any number of rows; F32 scores: tokens differ only at ties closer than 1e-5",
     .ran_on = kRanOnH100,
     .layout = PackedLayout::kFragment16x32,
     .is_batch_invariant = true,
     .refuses = sample_f32_gumbel_peers_cuda_refuses,
     .predict_us =
         [](const SampleParams& p, const DeviceRates& rates) {
           return scan_us<1>(p, rates) + rank_mail_us(p.num_rows, 2);
         },
     .workspace = sample_plain_workspace,
     .run = sample_f32_gumbel_peers_cuda},
#endif
};

}  // namespace

std::span<const Row<SampleParams>> Op<SampleParams>::rows() { return kRows; }

Work Op<SampleParams>::work(const SampleParams& params) {
  const bool is_part = params.kind != LinkKind::kNone;
  const double logits =
      static_cast<double>(params.num_rows) * (is_part ? params.part_width : params.vocab);
  return {.bytes = 4.0 * logits, .flops = logits};
}

}  // namespace moxie
