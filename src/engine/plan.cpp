// Adds up the sizes; shrinks the context to what fits, and gives the reason.
#include "engine/plan.h"

#include <fmt/format.h>

#include <cmath>

#include "core/rank_gather.h"
#include "engine/kv_dtype.h"
#include "engine/launch_arrays.h"
#include "kernels/attend/attend.h"
#include "model/eight_bits_cuda.h"
#include "model/gpt_oss.h"
#include "model/shard.h"

namespace moxie {
namespace {

// Code, stacks, tokenizer tables and heap of a process that has loaded a model. Measured; a test
// compares a plan with the peak seen.
constexpr uint64_t kProcessBytes = uint64_t{34} << 20;

struct Sizes {
  KvPages pages;
  uint64_t weights = 0, rotary = 0, full = 0, window = 0, activations = 0, arrays = 0, process = 0,
           draft = 0, mail = 0;
  uint64_t total() const {
    return weights + rotary + full + window + activations + arrays + process + draft + mail;
  }
};

Sizes sizes_for(const GptOssConfig& config, const ModelWeights& layout, uint64_t weight_bytes,
                const PlanRequest& request, uint64_t kv_cache_bytes, const KernelChooser& kernels,
                int32_t max_len) {
  const KvShape shape = kv_shape(config, request.kv_dtype);
  const int32_t chunk = std::min(request.max_batch_tokens, max_len);
  Sizes sizes;
  sizes.weights = weight_bytes;
  sizes.rotary = 4ull * static_cast<uint64_t>(max_len) * config.head_dim;
  sizes.pages = kv_pages(shape, kv_cache_bytes, max_len, request.max_num_seqs, chunk);
  sizes.full = static_cast<uint64_t>(sizes.pages.full) * shape.full_page_bytes();
  sizes.window = static_cast<uint64_t>(sizes.pages.window) * shape.window_page_bytes();
  sizes.activations =
      activation_bytes(config, layout, request.kv_dtype, kernels, request.max_batch_tokens,
                       request.max_logit_rows, request.num_taps)
          .total();
  if (request.draft != nullptr)
    sizes.draft = DraftHead::bytes(
        *request.draft, draft_head_options(request.draft->config(), request.speculation, shape,
                                           sizes.pages.full, max_len, request.max_batch_tokens,
                                           request.max_num_seqs, kernels.device()));
  if (kernels.device() == DeviceKind::kCpu) {
    sizes.process = kProcessBytes;
    return sizes;
  }
  // Block tables, ids and positions of one launch; the decode loop has its own, of the same size.
  const LaunchArrays::Limits limits{.num_tokens = request.max_batch_tokens,
                                    .num_seqs = request.max_num_seqs,
                                    .num_logit_rows = request.max_logit_rows,
                                    .table_stride = ceil_div(max_len, shape.page_tokens)};
  sizes.arrays = 2 * limits.bytes();
  sizes.process = kCudaContextBytes;
  if (const int32_t n = config.share.num_ranks; n > 1)
    sizes.mail = config.share.link == LinkKind::kNccl ? rank_gather_bytes(n) : rank_mail_bytes(n);
  return sizes;
}

// kAutoKvBytes in bytes, given the sizes with a cache of one sequence.
uint64_t auto_kv_bytes(const Sizes& least, uint64_t available, bool on_cpu) {
  const uint64_t one = least.full + least.window;
  const uint64_t others = least.total() - one;
  const uint64_t left = available > others ? available - others : 0;
  if (!on_cpu) return std::max(one, left / 10 * 9);
  const uint64_t of_small =
      std::min(kSmallServerCacheBytes, kSmallServerCacheWeights * least.weights);
  return std::max(one, std::min(left / 4, std::max(least.weights, of_small)));
}

int32_t least_batch_tokens(const PlanRequest& request) {
  return std::max(kDefaultBatchTokens, 2 * request.max_num_seqs);
}

std::string advice_for(const GptOssConfig& config, const PlanRequest& request, const Sizes& sizes,
                       uint64_t available) {
  const uint64_t fixed = sizes.weights + sizes.activations + sizes.process + sizes.draft;
  const bool launches_help = request.max_batch_tokens > least_batch_tokens(request) &&
                             sizes.total() - sizes.activations < available;
  const std::string launches =
      fmt::format("launches of fewer than {} tokens, whose scratch takes {}",
                  request.max_batch_tokens, format_bytes(sizes.activations));
  const std::string free = format_bytes(available) + " is free";
  if (fixed > available && launches_help) return launches + "; " + free;
  if (fixed > available) {
    std::string text = fmt::format("the weights alone take {} of {} free",
                                   format_bytes(sizes.weights), format_bytes(available));
    const bool all = request.load.mxfp4_layers.qkv && request.load.mxfp4_layers.o &&
                     request.load.mxfp4_layers.lm_head;
    if (!all) text += "; --mxfp4-layers all makes them smaller";
    if (config.num_experts > 32) text += "; gpt-oss-20b takes about 13 GiB";
    return text;
  }
  return fmt::format("--max-model-len or --max-num-seqs lower, or --kv-dtype fp8_e4m3{}; {}",
                     launches_help ? ", or " + launches : "", free);
}

}  // namespace

int32_t default_batch_tokens(const KernelChooser& kernels, const PlanRequest& request,
                             int32_t hidden, int32_t max_len) {
  const bool has_gemm =
      kernels.device() == DeviceKind::kCuda && (kernels.features() & kCudaAny) != 0;
  if (!has_gemm || hidden < kLeastGemmHidden) return least_batch_tokens(request);
  const int64_t all = int64_t{max_len} * request.max_num_seqs;
  const auto most = static_cast<int32_t>(std::min<int64_t>(kDefaultGemmBatchTokens, all));
  return std::max(least_batch_tokens(request), most);
}

Result<DType> choose_kv_dtype(const std::string& text, const GptOssConfig& config,
                              const KernelChooser& kernels, int32_t max_model_len,
                              int32_t max_num_seqs, uint64_t kv_cache_bytes) {
  const auto asked = parse_kv_dtype(text);
  if (!asked) return fail(asked.error());
  if (*asked) return **asked;
  if (kernels.device() == DeviceKind::kCuda) return DType::kBF16;
  const KvShape shape = kv_shape(config, DType::kF32);
  const int32_t context =
      std::min(max_model_len > 0 ? max_model_len : kDefaultContext, config.max_positions);
  const uint64_t needed = static_cast<uint64_t>(max_num_seqs) *
                          static_cast<uint64_t>(shape.full_pages(context)) *
                          shape.full_page_bytes();
  const uint64_t bytes = kv_cache_bytes > 0 ? std::min(kv_cache_bytes, needed) : needed;
  const bool is_narrow = config.q_width() < kLeastBf16AttendWidth;
  const bool exact = kernels.choice().all_reference() || (is_narrow && bytes <= kSmallCacheBytes);
  return exact ? DType::kF32 : DType::kBF16;
}

KvPages kv_pages(const KvShape& shape, uint64_t kv_cache_bytes, int32_t max_model_len,
                 int32_t max_num_seqs, int32_t chunk) {
  const int64_t seqs = max_num_seqs;
  const KvPages one{shape.full_pages(max_model_len), shape.window_pages(max_model_len, chunk)};
  const KvPages all{seqs * one.full, seqs * one.window};
  if (kv_cache_bytes == 0) return all;
  const auto full_bytes = std::max<int64_t>(1, static_cast<int64_t>(shape.full_page_bytes()));
  const auto window_bytes = std::max<int64_t>(1, static_cast<int64_t>(shape.window_page_bytes()));
  const auto bytes =
      static_cast<int64_t>(std::min<uint64_t>(kv_cache_bytes, static_cast<uint64_t>(INT64_MAX)));
  // Pages of running sequences: a window each, and the chunk of prompts being computed.
  const int64_t running = seqs * shape.window_pages(max_model_len, 1) + one.window;
  int64_t window = std::min(running, bytes / 2 / window_bytes);
  window += std::max<int64_t>(0, bytes - one.full * full_bytes - window * window_bytes) / 5 /
            window_bytes;
  window = shape.num_window_layers == 0 ? 0 : std::clamp(window, one.window, all.window);
  const int64_t full = (bytes - window * window_bytes) / full_bytes;
  return {shape.num_full_layers == 0 ? 0 : std::clamp(full, one.full, all.full), window};
}

KvShape kv_shape(const GptOssConfig& config, DType kv_dtype) {
  return {.num_full_layers = config.num_full_layers(),
          .num_window_layers = config.num_window_layers(),
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .window = config.sliding_window,
          .dtype = kv_dtype};
}

int32_t draft_own_pages(const DraftConfig& config, int32_t num_drafts, int32_t page_tokens) {
  return ceil_div(std::max(config.block, num_drafts + 1), page_tokens) + 1;
}

DraftHead::Options draft_head_options(const DraftConfig& config, const SpeculationOptions& options,
                                      const KvShape& shape, int64_t num_full_pages,
                                      int32_t max_model_len, int32_t max_batch_tokens,
                                      int32_t max_num_seqs, DeviceKind device) {
  const int32_t num_drafts = most_drafts(options, config);
  // Launches of more tokens are followed in several passes.
  constexpr int32_t kMostRows = 1024;
  const int32_t rows =
      std::max({std::min(max_batch_tokens, kMostRows), config.block, num_drafts + 1, 64});
  const int32_t rows_of_one =
      std::max(config.block, config.kind == DraftKind::kPeagle ? num_drafts : 1);
  const int32_t num_together = std::clamp(rows / rows_of_one, 1, std::max(max_num_seqs, 1));
  return {.format = options.dtype == "bf16" ? DType::kBF16 : DType::kMXFP4,
          .kv_dtype = shape.dtype,
          .max_rows = rows,
          .max_positions = max_model_len + std::max(config.block, num_drafts) + 1,
          .num_pages = static_cast<int32_t>(num_full_pages) +
                       num_together * draft_own_pages(config, num_drafts, shape.page_tokens),
          .page_tokens = shape.page_tokens,
          .num_kept = 2 * max_num_seqs * (num_drafts + 1),
          .device = device};
}

MemoryPlan plan_memory(const Checkpoint& checkpoint, const PlanRequest& asked,
                       uint64_t available_bytes, const KernelChooser& kernels) {
  PlanRequest request = asked;
  const auto of_rank = config_of_rank(checkpoint.config(), asked.load.ranks, asked.load.rank);
  CHECK(of_rank.has_value(), of_rank ? "" : of_rank.error().message());
  const GptOssConfig& config = *of_rank;
  const bool on_cpu = kernels.device() == DeviceKind::kCpu;
  LoadOptions load = request.load;
  load.device = kernels.device();
  if (!on_cpu) available_bytes += kCudaContextBytes;
  const ModelWeights layout = checkpoint.layout(load);
  const uint64_t weight_bytes =
      checkpoint.packed_bytes(load) + (takes_eight_bits(kernels) ? eight_bits_bytes(layout) : 0);
  uint64_t kv_cache_bytes = request.kv_cache_bytes;
  const auto sizes_at = [&](int32_t max_len) {
    if (request.kv_cache_bytes == kAutoKvBytes) {
      kv_cache_bytes =
          auto_kv_bytes(sizes_for(config, layout, weight_bytes, request, 1, kernels, max_len),
                        available_bytes, on_cpu);
    }
    return sizes_for(config, layout, weight_bytes, request, kv_cache_bytes, kernels, max_len);
  };
  MemoryPlan plan{.available_bytes = available_bytes, .max_num_seqs = request.max_num_seqs};
  plan.max_model_len = request.max_model_len > 0
                           ? std::min(request.max_model_len, config.max_positions)
                           : std::min(kDefaultContext, config.max_positions);
  if (asked.max_batch_tokens == 0)
    request.max_batch_tokens =
        default_batch_tokens(kernels, request, config.hidden, plan.max_model_len);
  Sizes sizes = sizes_at(plan.max_model_len);
  while (asked.max_batch_tokens == 0 && sizes.total() > available_bytes &&
         request.max_batch_tokens / 2 >= least_batch_tokens(request)) {
    request.max_batch_tokens /= 2;
    sizes = sizes_at(plan.max_model_len);
  }
  plan.max_batch_tokens = request.max_batch_tokens;
  if (request.max_model_len == 0) {
    while (sizes.total() > available_bytes && plan.max_model_len > 1024) {
      plan.max_model_len /= 2;
      sizes = sizes_at(plan.max_model_len);
    }
  }
  plan.pages = sizes.pages;
  plan.parts = {{"weights", sizes.weights},
                {"kv cache, full layers", sizes.full},
                {"kv cache, window layers", sizes.window},
                {"activations and scratch", sizes.activations},
                {"rotary table", sizes.rotary}};
  if (!on_cpu) plan.parts.push_back({"launch arrays", sizes.arrays});
  if (sizes.mail > 0) plan.parts.push_back({"between ranks", sizes.mail});
  if (sizes.draft > 0) plan.parts.push_back({kDraftHeadPart, sizes.draft});
  plan.parts.push_back({on_cpu ? "process" : "CUDA context and code", sizes.process});
  plan.total_bytes = sizes.total();
  plan.fits = plan.total_bytes <= available_bytes;
  if (!plan.fits) plan.advice = advice_for(config, request, sizes, available_bytes);
  return plan;
}

Work decode_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                 int64_t depth, int32_t streams) {
  Batch batch{.num_logit_rows = streams};
  batch.ragged.num_tokens = batch.ragged.num_seqs = streams;
  batch.ragged.num_visible_keys = (depth + 1) * streams;
  const auto distinct = static_cast<int32_t>(
      std::lround(expected_distinct_experts(config.num_experts, config.top_k, streams)));
  return least_work(config, formats, kv_dtype, batch, distinct).total();
}

}  // namespace moxie
