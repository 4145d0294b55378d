// The table of attend, and its least work.
#include <algorithm>

#include "kernels/attend/attend_rows.h"
#include "kernels/attend/attend_tile.h"
#include "kernels/gemv/cuda_times.h"

namespace moxie {
namespace {

const char* refuses_shape(const AttendParams& params) {
  if (params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0)
    return "query heads are not a multiple of KV heads";
  if (params.head_dim <= 0 || params.kv.page_tokens <= 0) return "empty heads or pages";
  switch (params.kv.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF8E4M3:
      return nullptr;
    default:
      return "the cache is not F32, BF16 or F8E4M3";
  }
}
uint64_t no_workspace(const AttendParams&) { return 0; }

const char* flash_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_flash_refuses(params);
}
const char* flash_neon_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_flash_neon_refuses(params);
}
#if defined(__x86_64__)
const char* flash_bf16_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_flash_bf16_refuses(params);
}
constexpr const char* kFlashBf16Supports =
    "BF16, F8E4M3 cache; head size a multiple of 32 up to 128, up to 128 heads a KV head";
constexpr const char* kFlashBf16Limits =
    "queries and weights to 2^-9, F32 sums, so by default only from 16 tokens a sequence and a "
    "width of 2,048; same result for any batch and threads";
#endif
#if MOXIE_HAS_CUDA
// Of rows that stage their outputs.
const char* refuses_staged(const AttendParams& params) {
  if (params.forms.a == AForm::kBf16Staged && params.batch.num_tokens < kLeastStagedTokens)
    return "staged outputs of fewer than 8 tokens take more memory";
  return refuses_shape(params);
}
const char* split_refuses(const AttendParams& params) {
  const char* why = refuses_staged(params);
  return why != nullptr ? why : attend_split_cuda_refuses(params);
}
template <DType kCache>
const char* prefill_refuses(const AttendParams& params) {
  if (const char* why = refuses_staged(params)) return why;
  if (params.kv.dtype != kCache)
    return kCache == DType::kBF16 ? "the cache is not BF16" : "the cache is not F8E4M3";
  return attend_prefill_refuses(params);
}
const char* plain_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_plain_cuda_refuses(params);
}
#endif
#ifdef MOXIE_HAS_FLASHINFER
const char* fa2_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_flashinfer_fa2_refuses(params);
}
const char* fa3_refuses(const AttendParams& params) {
  const char* why = refuses_shape(params);
  return why != nullptr ? why : attend_flashinfer_fa3_refuses(params);
}
constexpr const char* kFlashinferSupports =
    "BF16 cache; head size 64, 8 heads a KV head, pages of any size; flashinfer 0.6.0";
#endif
constexpr const char* kFlashSupports =
    "F32, BF16, F8E4M3 cache; head size a multiple of 16 up to 256, up to 128 heads a KV head";
constexpr const char* kFlashLimits = "F32 sums; any tokens; same result for any batch and threads";

// What the flash rows with one kind of arithmetic share.
struct FlashKind {
  const char* supports;
  const char* limits;
  const char* ran_on;
  const char* (*refuses)(const AttendParams&);
};
constexpr FlashKind kF32 = {kFlashSupports, kFlashLimits, "x86-64", flash_refuses};
constexpr FlashKind kF32Portable = {kFlashSupports, kFlashLimits, kRanAnyCpu, flash_refuses};
constexpr FlashKind kF32Neon = {kFlashSupports, kFlashLimits, kRanEmulated, flash_neon_refuses};
#if defined(__x86_64__)
constexpr FlashKind kBf16 = {kFlashBf16Supports, kFlashBf16Limits, "x86-64", flash_bf16_refuses};
#endif

// A CPU row's time, in tenths of that of the AVX-512 row in F32. Rows in BF16 run only from 16
// tokens a sequence and a width of 2,048 on. kIsDot: products by vdpbf16ps.
template <int kTenths, bool kIsBf16 = false, bool kIsDot = false>
double flash_us(const AttendParams& params, const DeviceRates& rates) {
  if (kIsBf16 && !attend_flash_bf16_is_worth_it(params)) return kNeverUs;
  return 0.1 * kTenths * (kIsDot ? rates.bf16_dot_cost : 1) *
         predicted_us(Op<AttendParams>::work(params), rates, rates.bf16_gflops,
                      {.read = 0.7, .products = 0.3, .fixed_us = 3.0});
}
#if MOXIE_HAS_CUDA
// The time of the split row, which reads the keys anew for each token.
double split_us(const AttendParams& params, const DeviceRates& rates) {
  const double width = static_cast<double>(params.num_heads) * params.head_dim;
  const double shown = Op<AttendParams>::work(params).flops / (4.0 * width);
  const double bytes =
      shown * 2.0 * params.num_kv_heads * static_cast<double>(params.kv.row_bytes(params.head_dim));
  return 3.0 + 1e-3 * bytes / (0.55 * rates.read_gb_s);
}
// The cost of the row that shares the kernel, and a tenth for the order.
double attend_ordered_sm90_cost(const AttendParams& params) {
  return 1.1 * attend_prefill_sm90_cost(params);
}
// The time of a row whose cost is relative to the split row's.
template <double (*kTimesSplit)(const AttendParams&)>
double beside_split_us(const AttendParams& params, const DeviceRates& rates) {
  return kTimesSplit(params) * split_us(params, rates);
}
#endif

template <const AttendTileCode& kCode>
constexpr Row<AttendParams> flash_row(const char* name, Features needs, const FlashKind& kind,
                                      double (*predict_us)(const AttendParams&,
                                                           const DeviceRates&)) {
  return {.name = name,
          .device = DeviceKind::kCpu,
          .needs = needs,
          .supports = kind.supports,
          .limits = kind.limits,
          .ran_on = kind.ran_on,
          .layout = PackedLayout::kRows16,
          .is_batch_invariant = true,
          .refuses = kind.refuses,
          .predict_us = predict_us,
          .workspace = attend_flash_workspace,
          .run = [](const AttendParams& params) { attend_flash(params, kCode); }};
}

#if MOXIE_HAS_CUDA
// What our rows for many tokens share.
template <DType kCache = DType::kBF16>
constexpr Row<AttendParams> prefill_row(const char* name, Features needs, const char* limits,
                                        double (*predict_us)(const AttendParams&,
                                                             const DeviceRates&),
                                        void (*run)(const AttendParams&)) {
  return {
      .name = name,
      .device = DeviceKind::kCuda,
      .needs = needs,
      .supports =
          kCache == DType::kBF16
              ? "BF16 cache; head size 64, 8 heads a KV head, pages of a multiple of 16 tokens"
              : "F8E4M3 cache; head size 64, 8 heads a KV head, pages of a multiple of 16 tokens",
      .limits = limits,
      .ran_on = needs == kSm90a ? "H200" : kRanAnyCuda,
      .layout = PackedLayout::kFragment16x32,
      .forms = {.x = kAnyX,
                .q = {QForm::kF32, QForm::kBf16Staged},
                .a = {AForm::kF32, AForm::kBf16Staged}},
      .refuses = prefill_refuses<kCache>,
      .predict_us = predict_us,
      .workspace = attend_prefill_workspace,
      .run = run};
}
constexpr Row<AttendParams> in_order(Row<AttendParams> row) {
  row.is_batch_invariant = true;
  return row;
}
constexpr const char* kPrefillLimits =
    "queries and weights to 2^-9, F32 sums; best for 100 tokens or more";
constexpr const char* kOrderedLimits =
    "queries and weights to 2^-9, F32 sums; best for 100 tokens or more; same result for any batch "
    "and chunks";
#endif

const Row<AttendParams> kRows[] = {
    {.name = "attend_reference",
     .device = DeviceKind::kCpu,
     .needs = kFeatureNone,
     .supports = "F32, BF16, F8E4M3 cache; any heads, head size, window, page size",
     .limits = "double precision; one thread",
     .ran_on = kRanAnyCpu,
     .layout = PackedLayout::kRows16,
     .is_batch_invariant = true,
     .refuses = refuses_shape,
     .predict_us = reference_us<AttendParams>,
     .workspace = no_workspace,
     .run = attend_reference},
    flash_row<kAttendTilePortable>("attend_any_f32_flash_portable", kFeatureNone, kF32Portable,
                                   flash_us<40>),
#if defined(__x86_64__)
    flash_row<kAttendTileAvx2>("attend_any_f32_flash_avx2", kAvx2, kF32, flash_us<20>),
    flash_row<kAttendTileAvx512>("attend_any_f32_flash_avx512", kAvx512, kF32, flash_us<10>),
    flash_row<kAttendTileAmx>("attend_any_bf16_flash_amx", kAvx512 | kAvx512Bf16 | kAmxBf16, kBf16,
                              flash_us<2, true>),
    flash_row<kAttendTileAvx512Bf16>("attend_any_bf16_flash_avx512bf16", kAvx512 | kAvx512Bf16,
                                     kBf16, flash_us<5, true, true>),
#endif
    flash_row<kAttendTileNeon>("attend_any_f32_flash_neon", kNeon, kF32Neon, flash_us<20>),
#if MOXIE_HAS_CUDA
    {.name = "attend_any_f32_split_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "BF16, F8E4M3 cache; head size 64, up to 16 heads a KV head",
     .limits = "queries and weights to 2^-17, F32 sums; best for 1 to 8 tokens",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .a = {AForm::kF32, AForm::kBf16Staged}, .l1 = kAnyL1},
     .refuses = split_refuses,
     .predict_us = split_us,
     .workspace = no_workspace,
     .run = attend_any_f32_split_cuda},
    prefill_row("attend_bf16_prefill_wgmma_sm90", kSm90a, kPrefillLimits,
                beside_split_us<attend_prefill_sm90_cost>, attend_bf16_prefill_wgmma_sm90),
    in_order(prefill_row("attend_bf16_ordered_wgmma_sm90", kSm90a, kOrderedLimits,
                         beside_split_us<attend_ordered_sm90_cost>,
                         attend_bf16_ordered_wgmma_sm90)),
    prefill_row<DType::kF8E4M3>("attend_e4m3_prefill_wgmma_sm90", kSm90a, kPrefillLimits,
                                beside_split_us<attend_prefill_sm90_cost>,
                                attend_e4m3_prefill_wgmma_sm90),
    in_order(prefill_row<DType::kF8E4M3>("attend_e4m3_ordered_wgmma_sm90", kSm90a, kOrderedLimits,
                                         beside_split_us<attend_ordered_sm90_cost>,
                                         attend_e4m3_ordered_wgmma_sm90)),
    in_order(prefill_row("attend_bf16_ordered_mma_cuda", kCudaAny, kOrderedLimits,
                         beside_split_us<attend_ordered_mma_cost>, attend_bf16_ordered_mma_cuda)),
#ifdef MOXIE_HAS_FLASHINFER
    {.name = "attend_bf16_prefill_flashinfer_fa2_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = kFlashinferSupports,
     .limits = "queries and weights to 2^-9, F32 sums; logits above -50,000 before the scale",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .refuses = fa2_refuses,
     .predict_us = beside_split_us<attend_flashinfer_fa2_cost>,
     .workspace = attend_flashinfer_fa2_workspace,
     .run = attend_bf16_prefill_flashinfer_fa2_cuda},
    {.name = "attend_bf16_prefill_flashinfer_fa3_sm90",
     .device = DeviceKind::kCuda,
     .needs = kSm90a,
     .supports = kFlashinferSupports,
     .limits = "queries and weights to 2^-9, F32 sums; logits above -50,000 before the scale",
     .ran_on = "H200",
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .refuses = fa3_refuses,
     .predict_us = beside_split_us<attend_flashinfer_fa3_cost>,
     .workspace = attend_flashinfer_fa3_workspace,
     .run = attend_bf16_prefill_flashinfer_fa3_sm90},
#endif
    {.name = "attend_any_f32_plain_cuda",
     .device = DeviceKind::kCuda,
     .needs = kCudaAny,
     .supports = "F32, BF16, F8E4M3 cache; head size up to 512",
     .limits = "F32; any number of tokens, slow",
     .ran_on = kRanAnyCuda,
     .layout = PackedLayout::kFragment16x32,
     .forms = {.x = kAnyX, .l1 = kAnyL1},
     .is_batch_invariant = true,
     .refuses = plain_refuses,
     .predict_us = [](const AttendParams& p, const DeviceRates& r) { return 50 * split_us(p, r); },
     .workspace = no_workspace,
     .run = attend_any_f32_plain_cuda},
#endif
};

// Keys shown to the tokens (summed), and distinct keys read.
struct KeyCounts {
  double shown = 0;
  double read = 0;
};

KeyCounts count_keys(const AttendParams& params) {
  const Ragged& batch = params.batch;
  KeyCounts counts;
  if (params.launch.device == DeviceKind::kCpu && batch.positions != nullptr &&
      batch.row_offsets != nullptr) {
    for (int32_t seq = 0; seq < batch.num_seqs; ++seq) {
      int32_t first_read = INT32_MAX, last_read = -1;
      for (int32_t t = batch.row_offsets[seq]; t < batch.row_offsets[seq + 1]; ++t) {
        const int32_t last = batch.positions[t];
        const int32_t first = params.window > 0 ? std::max(0, last - params.window + 1) : 0;
        counts.shown += last - first + 1;
        first_read = std::min(first_read, first);
        last_read = std::max(last_read, last);
      }
      if (last_read >= 0) counts.read += last_read - first_read + 1;
    }
    return counts;
  }
  // Positions are on another device: assume that every sequence has the mean number of tokens, n,
  // and the mean depth. n consecutive tokens that see m keys on average read m + (n - 1) / 2
  // distinct ones.
  const double tokens = batch.num_tokens, seqs = std::max(1, batch.num_seqs);
  if (tokens == 0) return counts;
  const double per_seq = tokens / seqs;
  double mean = std::max(1.0, static_cast<double>(batch.num_visible_keys) / tokens);
  if (params.window > 0) mean = std::min(mean, static_cast<double>(params.window));
  counts.shown = mean * tokens;
  counts.read = seqs * (mean + (per_seq - 1) / (params.window > 0 ? 1 : 2));
  return counts;
}

}  // namespace

std::span<const Row<AttendParams>> Op<AttendParams>::rows() { return kRows; }

Work Op<AttendParams>::work(const AttendParams& params) {
  const KeyCounts keys = count_keys(params);
  const double width = static_cast<double>(params.num_heads) * params.head_dim;
  const double row_bytes = static_cast<double>(params.kv.row_bytes(params.head_dim));
  return {.bytes = keys.read * 2.0 * params.num_kv_heads * row_bytes +
                   8.0 * params.batch.num_tokens * width,
          .flops = 4.0 * keys.shown * width};
}

}  // namespace moxie
