// The memory that a model takes and the least work of a token, computed before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "core/bytes.h"
#include "engine/kv.h"
#include "engine/speculation.h"
#include "kernels/experts/experts.h"
#include "model/checkpoint.h"
#include "model/draft_head.h"

namespace moxie {

struct PlanPart {
  std::string name;  ///< "weights", "kv cache (full layers)", ...
  uint64_t bytes = 0;
};
/// The part with a head's weights, cache and activations.
inline constexpr const char* kDraftHeadPart = "draft head";

/// Pages of both pools of the cache.
struct KvPages {
  int64_t full = 0, window = 0;
};

struct MemoryPlan {
  std::vector<PlanPart> parts;
  uint64_t total_bytes = 0;      ///< CPU: peak of the process; CUDA: of the device's memory
  uint64_t available_bytes = 0;  ///< what the device has free now; CUDA: without our context
  int32_t max_model_len = 0, max_num_seqs = 0, max_batch_tokens = 0;
  KvPages pages;
  bool fits = false;
  std::string advice;  ///< if it does not fit: what would
};

/// What a plan depends on besides the checkpoint.
struct PlanRequest {
  LoadOptions load;
  DType kv_dtype = DType::kBF16;
  int32_t max_model_len = 0;  ///< 0: the greatest that fits, at most kDefaultContext
  int32_t max_num_seqs = 1;
  int32_t max_batch_tokens = 0;  ///< 0: what suits the device and fits
  int32_t max_logit_rows = 1;
  size_t num_taps = 0;
  uint64_t kv_cache_bytes = 0;             ///< 0, kAutoKvBytes, or of both pools
  const DraftCheckpoint* draft = nullptr;  ///< null: no head
  SpeculationOptions speculation;          ///< of the head
};

/// For kv_cache_bytes: the size of a server's cache. CUDA: nine tenths of the memory that all else
/// leaves free. CPU: a quarter of it, but no more than the weights take or, if that is more,
/// kSmallServerCacheWeights times the weights up to kSmallServerCacheBytes. Never less than one
/// sequence of the whole context needs, never more than all sequences need.
inline constexpr uint64_t kAutoKvBytes = UINT64_MAX;
inline constexpr uint64_t kSmallServerCacheBytes = uint64_t{512} << 20,
                          kSmallServerCacheWeights = 8;

/// Context of a sequence where none is asked for and memory allows it.
inline constexpr int32_t kDefaultContext = 16384;

/// Default numbers of tokens of a launch, at least two a sequence: for rows that go through groups
/// of tokens, and for GEMM rows, which need many tokens to read each expert seldom.
inline constexpr int32_t kDefaultBatchTokens = 512, kDefaultGemmBatchTokens = 8192;

/// The tokens of a launch where none are asked for, before it is known whether they fit.
int32_t default_batch_tokens(const KernelChooser& kernels, const PlanRequest& request,
                             int32_t hidden, int32_t max_len);

/// A cache that takes no more than this in F32 is kept in F32: exactness costs no time there.
inline constexpr uint64_t kSmallCacheBytes = uint64_t{128} << 20;

/// GPU memory of a process besides its buffers: the context, the code of kernels and recorded
/// graphs. Measured on an H200 (driver 580, CUDA 13.0): the context alone takes 527 MiB.
inline constexpr uint64_t kCudaContextBytes = uint64_t{560} << 20;

/// Reads `--kv-dtype`: bf16, fp8_e4m3, f32 or auto. auto is f32 if every row is a reference row, or
/// if the whole cache is small (kSmallCacheBytes) and the model narrow (kLeastBf16AttendWidth);
/// else bf16. CUDA rows read bf16 and fp8 only. `max_model_len` 0 means kDefaultContext.
Result<DType> choose_kv_dtype(const std::string& text, const GptOssConfig& config,
                              const KernelChooser& kernels, int32_t max_model_len,
                              int32_t max_num_seqs, uint64_t kv_cache_bytes = 0);

/// Pages of both pools in `kv_cache_bytes` bytes; 0: the pages that `max_num_seqs` sequences of the
/// whole context need at once. Otherwise the window pool gets the pages that `max_num_seqs` running
/// sequences need, if that leaves the full layers half of the bytes, and a fifth of the rest for
/// cached prefixes. At least one sequence of the whole context fits in any case.
KvPages kv_pages(const KvShape& shape, uint64_t kv_cache_bytes, int32_t max_model_len,
                 int32_t max_num_seqs, int32_t chunk);

KvShape kv_shape(const GptOssConfig& config, DType kv_dtype);

/// Sizes of the head for an engine with these sizes. The cache's pages are the target's full pages
/// and some of the head's own, for tokens that the target has no pages for.
DraftHead::Options draft_head_options(const DraftConfig& config, const SpeculationOptions& options,
                                      const KvShape& shape, int64_t num_full_pages,
                                      int32_t max_model_len, int32_t max_batch_tokens,
                                      int32_t max_num_seqs, DeviceKind device);

/// The most pages of its own that the head needs for one sequence.
int32_t draft_own_pages(const DraftConfig& config, int32_t num_drafts, int32_t page_tokens);

/// The plan on a device with `available_bytes` free (CUDA: once the context is made, as
/// DeviceProperties has it); `kernels` says which device that is and which rows may run.
MemoryPlan plan_memory(const Checkpoint& checkpoint, const PlanRequest& request,
                       uint64_t available_bytes, const KernelChooser& kernels);

/// The least bytes and operations of one decode token at depth `depth` for `streams` streams whose
/// tokens choose experts independently.
Work decode_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                 int64_t depth, int32_t streams);

}  // namespace moxie
