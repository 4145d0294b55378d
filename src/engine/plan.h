// What a model takes in memory and what its limit is, computed before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "engine/kv.h"
#include "kernels/experts/experts.h"
#include "model/checkpoint.h"

namespace moxie {

struct PlanPart {
  std::string name;  ///< "weights", "kv cache (full layers)", ...
  uint64_t bytes = 0;
};

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
  uint64_t kv_cache_bytes = 0;  ///< 0, kAutoKvBytes, or of both pools
};

/// For kv_cache_bytes: what a server takes. CUDA: nine tenths of what is left beside the rest. CPU:
/// a quarter of it, and no more than the weights take or, with small ones, kSmallServerCacheWeights
/// times as much up to kSmallServerCacheBytes. Never less than a sequence of the whole context
/// needs, never more than all sequences would.
inline constexpr uint64_t kAutoKvBytes = UINT64_MAX;
inline constexpr uint64_t kSmallServerCacheBytes = uint64_t{512} << 20,
                          kSmallServerCacheWeights = 8;

/// Context of a sequence where none is asked for and memory allows it.
inline constexpr int32_t kDefaultContext = 16384;

/// Tokens of a launch where none are asked for: what rows for many tokens need to read each expert
/// seldom, or what is enough for rows that go through groups of tokens. At least two a sequence.
inline constexpr int32_t kDefaultBatchTokens = 512, kDefaultGemmBatchTokens = 8192;

/// A cache that takes no more than this at F32 is kept at F32: exactness is free there.
inline constexpr uint64_t kSmallCacheBytes = uint64_t{128} << 20;

/// What a process holds of a GPU besides its buffers: the context, the code of kernels and recorded
/// graphs. A measured constant of one H200 (driver 580, CUDA 13.0): the context alone is 527 MiB.
inline constexpr uint64_t kCudaContextBytes = uint64_t{560} << 20;

/// `--kv-dtype`: bf16, fp8_e4m3, f32, or auto: f32 where every row is the reference's, or the whole
/// cache is small (kSmallCacheBytes) and the model narrow (kLeastBf16AttendWidth), else bf16. CUDA
/// rows read bf16 and fp8 only. `max_model_len` 0 means kDefaultContext.
Result<DType> choose_kv_dtype(const std::string& text, const GptOssConfig& config,
                              const KernelChooser& kernels, int32_t max_model_len,
                              int32_t max_num_seqs, uint64_t kv_cache_bytes = 0);

/// Pages of both pools in `kv_cache_bytes` bytes; 0: those that `max_num_seqs` sequences of the
/// whole context need at once. Otherwise the window pool holds what as many sequences need while
/// they run, where that leaves the full layers half of the bytes, and a fifth of the rest for
/// prefixes to be found again; at least one sequence of the whole context fits in any case.
KvPages kv_pages(const KvShape& shape, uint64_t kv_cache_bytes, int32_t max_model_len,
                 int32_t max_num_seqs, int32_t chunk);

KvShape kv_shape(const GptOssConfig& config, DType kv_dtype);

/// The plan on a device with `available_bytes` free (CUDA: once the context is made, as
/// DeviceProperties has it); `kernels` says which device that is and which rows may run.
MemoryPlan plan_memory(const Checkpoint& checkpoint, const PlanRequest& request,
                       uint64_t available_bytes, const KernelChooser& kernels);

/// The least bytes and operations of one decode token at depth `depth` for `streams` streams whose
/// tokens choose experts independently.
Work decode_work(const GptOssConfig& config, const ModelWeights& formats, DType kv_dtype,
                 int64_t depth, int32_t streams);

/// "12.8 GiB", "24.6 MiB".
std::string format_bytes(uint64_t bytes);

}  // namespace moxie
