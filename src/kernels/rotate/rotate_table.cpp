// The table of rotate, and its least work.
#include "kernels/gemv/cuda_times.h"
#include "kernels/rotate/rotate_rows.h"

namespace moxie {
namespace {

const char* refuses_nothing(const RotateParams&) { return nullptr; }
double rotate_us(const RotateParams& p, const DeviceRates& rates) {
  return predicted_us(Op<RotateParams>::work(p), rates, rates.bf16_gflops,
                      {.read = 0.5, .fixed_us = 1.0});
}
uint64_t no_workspace(const RotateParams&) { return 0; }

const Row<RotateParams> kRows[] = {
    {.name = "rotate_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "cache in f32, bf16 or fp8_e4m3",
     .limits = "any number of tokens; double precision, one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_nothing,
     .predict_us = reference_us<RotateParams>,
     .workspace = no_workspace,
     .run = rotate_reference},
    {.name = "rotate_f32_portable",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "cache in f32, bf16 or fp8_e4m3",
     .limits = "any number of tokens; head_dim a multiple of 32 up to 256",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = rotate_f32_portable_refuses,
     .predict_us = rotate_us,
     .workspace = no_workspace,
     .run = rotate_f32_portable},
#if MOXIE_HAS_CUDA
    {.name = "rotate_any_f32_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "cache in f32, bf16 or fp8_e4m3",
     .limits = "any number of tokens; head_dim a multiple of 32 up to 256",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = rotate_f32_portable_refuses,
     .predict_us = rotate_us,
     .workspace = no_workspace,
     .run = rotate_any_f32_cuda},
#endif
};

}  // namespace

std::span<const Row<RotateParams>> Op<RotateParams>::rows() { return kRows; }

Work Op<RotateParams>::work(const RotateParams& p) {
  const double tokens = p.batch.num_tokens, dim = p.head_dim;
  const double keyed = 2.0 * p.num_kv_heads, queries = p.q != nullptr ? p.num_heads : 0;
  const auto cache_bytes = static_cast<double>(p.kv.row_bytes(p.head_dim));
  return {.bytes = tokens * ((8.0 * queries + 4.0 * keyed) * dim + keyed * cache_bytes),
          .flops = 6.0 * tokens * (queries + keyed) * dim};
}

}  // namespace moxie
