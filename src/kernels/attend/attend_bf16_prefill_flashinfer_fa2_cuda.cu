// attend on FlashInfer's FA2 template (flashinfer 0.6.0, BatchPrefillWithPagedKVCacheKernel): BF16
// mma from sm_80 on, tiles of 16 or 2 tokens and a KV head. The kernel is FlashInfer's; the plan of
// the tiles and the variant (window, sinks, missing pages) are ours.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variant_helper.cuh>
#include <flashinfer/page.cuh>

#include "kernels/attend/attend_flashinfer_launch.cuh"
#include "kernels/attend/attend_flashinfer_plan.h"
#include "kernels/attend/attend_rows.h"

namespace moxie {
namespace {

constexpr const char* kRowName = "attend_bf16_prefill_flashinfer_fa2_cuda";

// The kernel's parameters, by FlashInfer's names.
struct Fa2Params {
  using DTypeQ = __nv_bfloat16;
  using DTypeKV = __nv_bfloat16;
  using DTypeO = float;
  using IdType = int32_t;

  DTypeQ* q;
  flashinfer::paged_kv_t<DTypeKV, IdType> paged_kv;
  DTypeO* o;
  float* lse;
  IdType *q_indptr, *o_indptr, *request_indices, *qo_tile_indices, *kv_tile_indices;
  IdType* kv_chunk_size_ptr;
  bool* block_valid_mask;
  flashinfer::uint_fastdiv group_size;
  uint32_t q_stride_n, q_stride_h;
  bool partition_kv;

  const FlashinferTile* tiles;
  const float* sinks;
  float scale_log2;
  int32_t window;
};

constexpr float kLog2E = 1.4426950408889634f;

// The kernel's hooks. A request is a tile of tokens.
struct SinkAttention : flashinfer::AttentionVariantBase {
  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2;

  __device__ SinkAttention(const Fa2Params& p, uint32_t tile, uint8_t*)
      : qo_len(static_cast<uint32_t>(p.tiles[tile].num_tokens)),
        kv_len(static_cast<uint32_t>(p.tiles[tile].num_keys)),
        window_left(p.window > 0 ? static_cast<uint32_t>(p.window - 1) : kv_len),
        sm_scale_log2(p.scale_log2) {}

  __device__ __forceinline__ bool LogitsMask(const Fa2Params&, uint32_t, uint32_t token,
                                             uint32_t key, uint32_t, uint32_t) const {
    return key + window_left + qo_len >= kv_len + token;
  }
  // The sink is one more key without a value. m is a power of two's exponent, d is relative to 2^m.
  __device__ __forceinline__ void update_m_d(const Fa2Params& p, uint32_t, uint32_t head, float& m,
                                             float& d, float& scale) const {
    if (p.sinks != nullptr) d += exp2f(p.sinks[head] * kLog2E - m);
    scale = kv_len == 0 ? __int_as_float(0x7FC00000) : __fdividef(1.0f, d);
  }
  __device__ __forceinline__ float OutputTransform(const Fa2Params&, float output, uint32_t,
                                                   uint32_t, uint32_t, float&, float&,
                                                   float scale) const {
    return output * scale;
  }
};

// kTileRows: rows, each a token's query head. The other sizes are FlashInfer's own choices for a
// device with 228 KiB of shared memory an SM.
template <int kTileRows>
using Traits = flashinfer::KernelTraits<
    flashinfer::MaskMode::kCausal, kTileRows, flashinfer::get_num_mma_q(kTileRows),
    /*NUM_MMA_KV=*/4, kFlashinferDim / 16, kFlashinferDim / 16,
    flashinfer::get_num_warps_q(kTileRows), flashinfer::get_num_warps_kv(kTileRows),
    flashinfer::PosEncodingMode::kNone, __nv_bfloat16, __nv_bfloat16, float, float, int32_t,
    SinkAttention>;

constexpr int kManyRows = 128, kFewRows = 16;

// The rows of a tile: FlashInfer takes the small tile if sequences have two tokens or fewer.
int rows_of(const AttendParams& params) {
  const Ragged& batch = params.batch;
  return int64_t{batch.num_tokens} * kFlashinferGroup > int64_t{batch.num_seqs} * kFewRows
             ? kManyRows
             : kFewRows;
}
FlashinferPlanOptions options_of(const AttendParams& params) {
  return {.tile_tokens = rows_of(params) / kFlashinferGroup};
}

template <int kTileRows>
void launch(const AttendParams& params, const FlashinferPlan& plan, const Fa2Params& fa2) {
  using T = Traits<kTileRows>;
  static_assert(!T::IsInvalid());
  launch_flashinfer(
      kRowName, flashinfer::BatchPrefillWithPagedKVCacheKernel<T, Fa2Params>,
      dim3(static_cast<unsigned>(plan.most_tiles), 1, static_cast<unsigned>(params.num_kv_heads)),
      dim3(32, T::NUM_WARPS_Q, T::NUM_WARPS_KV), sizeof(typename T::SharedStorage),
      launch_stream(params.launch.stream), fa2);
}

}  // namespace

const char* attend_flashinfer_fa2_refuses(const AttendParams& params) {
  return flashinfer_refuses(params);
}

// Measured on an H200; other devices use the same numbers. Among shapes that the wgmma row can run,
// this row was faster only for many sequences of a few tokens each in a window layer: for all
// others its cost is above the wgmma row's (docs/decisions/2026-11-21-flashinfer-rows.md).
double attend_flashinfer_fa2_cost(const AttendParams& params) {
  constexpr int32_t kFewTokens = 8, kManySeqs = 64;
  const int64_t tokens = params.batch.num_tokens, seqs = params.batch.num_seqs;
  const bool has_window = params.window > 0, is_short = tokens <= 2 * kFewTokens * seqs;
  const int rows = rows_of(params);
  // The split row is slower for a token of a short sequence. With small tiles this row won always.
  double item = has_window ? 5.0 : 8.2;
  if (is_short) item = has_window ? 3.0 : 4.6;
  if (rows == kFewRows) item = 2.4;
  const double cost = flashinfer_cost(
      params, rows / kFlashinferGroup,
      {.wave = has_window ? 1100.0 : 1400.0, .item = item, .heads = params.num_kv_heads});
  const bool has_won = has_window && seqs >= kManySeqs && tokens <= kFewTokens * seqs;
  return has_won ? cost : behind_prefill_sm90(params, cost);
}

uint64_t attend_flashinfer_fa2_workspace(const AttendParams& params) {
  return flashinfer_workspace(params, options_of(params));
}

void attend_bf16_prefill_flashinfer_fa2_cuda(const AttendParams& params) {
  if (params.batch.num_tokens == 0) return;
  const KvLayer& kv = params.kv;
  const FlashinferPlan plan = plan_flashinfer(kRowName, params, options_of(params));
  const auto num_kv_heads = static_cast<uint32_t>(params.num_kv_heads);
  const auto page_tokens = static_cast<uint32_t>(kv.page_tokens);
  const int64_t strides[3] = {kv.page_stride_bytes / 2, int64_t{kv.page_tokens} * kFlashinferDim,
                              kFlashinferDim};
  Fa2Params fa2{};
  fa2.q = reinterpret_cast<__nv_bfloat16*>(plan.q);
  // Sequences' lengths come from the tiles: the lengths of last pages are not read.
  fa2.paged_kv = flashinfer::paged_kv_t<__nv_bfloat16, int32_t>(
      num_kv_heads, page_tokens, kFlashinferDim, static_cast<uint32_t>(plan.most_tiles),
      flashinfer::QKVLayout::kHND, reinterpret_cast<__nv_bfloat16*>(kv.k),
      reinterpret_cast<__nv_bfloat16*>(kv.v), strides, const_cast<int32_t*>(kv.page_table),
      plan.first_key, /*last_page_len=*/nullptr);
  fa2.o = params.a;
  fa2.q_indptr = fa2.o_indptr = plan.first_token;
  fa2.request_indices = plan.tile_idx;
  fa2.qo_tile_indices = fa2.kv_tile_indices = plan.zeros;
  fa2.kv_chunk_size_ptr = plan.num_tiles;  // read, but without effect unless keys are split
  fa2.block_valid_mask = plan.is_used;
  fa2.group_size = flashinfer::uint_fastdiv(kFlashinferGroup);
  fa2.q_stride_n = static_cast<uint32_t>(params.num_heads) * kFlashinferDim;
  fa2.q_stride_h = kFlashinferDim;
  fa2.tiles = plan.tiles;
  fa2.sinks = params.sinks;
  fa2.scale_log2 = params.scale * kLog2E;
  fa2.window = params.window;
  if (rows_of(params) == kManyRows) {
    launch<kManyRows>(params, plan, fa2);
  } else {
    launch<kFewRows>(params, plan, fa2);
  }
}

}  // namespace moxie
