// attend on FlashInfer's FA3 template (flashinfer 0.6.0, PrefillWithKVCacheKernel with
// SparseCollectiveMainloop): wgmma with tiles of 192 tokens of a query head, keys gathered page by
// page. The main loop is FlashInfer's; the order of the tiles, the sink, and the end, which writes
// F32 from registers, are ours. Compiled for sm_90a only.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>

#include "core/cuda_part.h"
#include "kernels/attend/attend_flashinfer_launch.cuh"
#include "kernels/attend/attend_flashinfer_plan.h"
#include "kernels/attend/attend_rows.h"

namespace moxie {
namespace {

constexpr const char* kRowName = "attend_bf16_prefill_flashinfer_fa3_sm90";
constexpr float kLog2E = 1.4426950408889634f;
// FlashInfer's own choice for this head size and paged keys.
constexpr int kTileTokens = 192, kTileKeys = 96, kStages = 2;

struct SinkParams {
  const float* sinks;  // null: none
  float scale_log2;
};

// FlashInfer's running softmax; the sink is added to the sum at the end. All rows of a tile are one
// head.
template <int kRows>
struct SinkSoftmax : flashinfer::OnlineSoftmax<kRows, /*WITH_SCALE=*/true> {
  using Base = flashinfer::OnlineSoftmax<kRows, true>;
  float sink_log2;

  __device__ SinkSoftmax(float scale_log2, float sink) : Base(scale_log2), sink_log2(sink) {}

  template <typename Scores>
  __device__ __forceinline__ void finalize(Scores&, float) {
    flashinfer::SumOp<float> sum;
    flashinfer::quad_allreduce_(this->row_sum, this->row_sum, sum);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float all =
          this->row_sum(i) + exp2f(sink_log2 - this->row_max(i) * this->sm_scale_log2);
      this->scores_scale(i) = __fdividef(1.0f, all);
    }
  }
};

// The kernel's hooks.
struct SinkAttention {
  float scale_log2, sink_log2;

  template <typename MainloopParams, typename Coordinates>
  __device__ SinkAttention(const MainloopParams& params, const Coordinates& coordinates) {
    const SinkParams& p = params.additional_params;
    scale_log2 = p.scale_log2;
    const int head = cute::get<1>(coordinates);
    sink_log2 = p.sinks == nullptr ? -INFINITY : p.sinks[head] * kLog2E;
  }
  template <int kRows>
  __device__ auto GetAttentionUpdater() const {
    return SinkSoftmax<kRows>(scale_log2, sink_log2);
  }
  template <typename MainloopParams>
  __device__ __forceinline__ float LogitsTransform(const MainloopParams&, float logit, int, int,
                                                   int, int, int) const {
    return logit;
  }
};

// Each item is a tile and a head. Items are dealt to the blocks, heaviest first, alternating
// between rising and falling block numbers, so that each block gets about as much.
struct TileDealer {
  struct Params {
    const FlashinferTile* tiles;
    const int32_t* num_tiles;
    int num_heads, group;
  };
  struct WorkTileInfo {
    int round, item, num_items;
    FlashinferTile tile;

    __device__ bool is_valid(const Params&) const { return item < num_items; }
    __device__ auto get_block_coord(const Params& p) const {
      const int head = item % p.num_heads;
      return cute::tuple{/*q_tile_idx=*/0, head,           head / p.group,
                         tile.first_token, tile.first_key, tile.num_tokens,
                         tile.num_keys,    /*batch_idx=*/0};
    }
  };

  __device__ WorkTileInfo get_initial_work(const Params& p) const { return deal(p, 0); }
  template <bool kIsProducer = false>
  __device__ WorkTileInfo get_next_work(const Params& p, const WorkTileInfo& work) const {
    return deal(p, work.round + 1);
  }
  __device__ void init_consumer() const {}
  __device__ void prefetch_next_work(const Params&, const WorkTileInfo&) const {}
  __device__ void broadcast_next_work(const WorkTileInfo&) const {}

 private:
  __device__ static WorkTileInfo deal(const Params& p, int round) {
    const auto blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    WorkTileInfo work{.round = round,
                      .item = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block),
                      .num_items = *p.num_tiles * p.num_heads,
                      .tile = {}};
    if (work.item < work.num_items) work.tile = p.tiles[work.item / p.num_heads];
    return work;
  }
};

// Writes the sums to `a` as F32, a row of 64 values for each token of the tile.
template <typename Traits>
struct FloatEpilogue {
  struct Params {
    float* a;
    int num_heads;
  };

  __device__ static void prefetch_tma_descriptors(const Params&) {}
  __device__ static void store_tail() {}

  template <typename Coordinates, typename Shared, typename Sums, typename LogSums, typename Mma>
  __device__ void store(const Params& p, const Sums& sums, const LogSums&, Shared&, Mma mma,
                        int thread, const Coordinates& coordinates) const {
    const auto places = mma.get_thread_slice(thread).partition_C(
        cute::make_identity_tensor(cute::select<0, 1>(typename Traits::TileShape_PDV{})));
    float* rows = rows_of(p, coordinates);
    const int num_tokens = cute::get<5>(coordinates);
    // A thread's values come in pairs of neighbouring columns.
#pragma unroll
    for (int i = 0; i < cute::size(sums); i += 2) {
      const int token = cute::get<0>(places(i)), column = cute::get<1>(places(i));
      if (token >= num_tokens) continue;
      *reinterpret_cast<float2*>(rows + token * row_stride(p) + column) =
          make_float2(sums(i), sums(i + 1));
    }
  }

  // A tile without keys: a page that it needs is missing.
  template <typename Coordinates, typename Shared>
  __device__ void store_zero(const Params& p, Shared&, int thread,
                             const Coordinates& coordinates) const {
    float* rows = rows_of(p, coordinates);
    const int num_values = cute::get<5>(coordinates) * kFlashinferDim;
    for (int i = thread; i < num_values; i += Traits::NUM_MMA_THREADS)
      rows[i / kFlashinferDim * row_stride(p) + i % kFlashinferDim] = __int_as_float(0x7FC00000);
  }

 private:
  __device__ static int64_t row_stride(const Params& p) {
    return int64_t{p.num_heads} * kFlashinferDim;
  }
  template <typename Coordinates>
  __device__ static float* rows_of(const Params& p, const Coordinates& coordinates) {
    return p.a + cute::get<3>(coordinates) * row_stride(p) +
           cute::get<1>(coordinates) * kFlashinferDim;
  }
};

using Bf16 = cutlass::bfloat16_t;
using Traits = flashinfer::AttentionKernelTraits</*USE_TMA_LOAD_KV=*/false, kFlashinferDim,
                                                 kFlashinferDim, kTileTokens, kTileKeys, kStages,
                                                 Bf16, Bf16, Bf16, int32_t, SinkAttention>;
using Mainloop = flashinfer::SparseCollectiveMainloop<SinkParams, Traits, /*CAUSAL=*/true>;
using Epilogue = FloatEpilogue<Traits>;

// The kernel of a window layer begins with the first block of keys, of which a tile may see only
// some. Keys are listed from the first one seen, so that the kernel never reads a released page.
FlashinferPlanOptions options_of(const AttendParams& params) {
  return {.tile_tokens = kTileTokens, .lists_keys = params.window > 0};
}

Mainloop::Params mainloop_params(const AttendParams& params, const FlashinferPlan& plan) {
  const KvLayer& kv = params.kv;
  const bool is_listed = params.window > 0;
  const int64_t page_stride = is_listed ? kFlashinferDim : kv.page_stride_bytes / 2;
  const auto keys =
      flashinfer::get_gmem_layout(0, params.num_kv_heads, kFlashinferDim, kFlashinferDim,
                                  int64_t{kv.page_tokens} * kFlashinferDim);
  return Mainloop::to_underlying_arguments(
      {reinterpret_cast<const Bf16*>(plan.q),
       flashinfer::get_gmem_layout(params.batch.num_tokens, params.num_heads, kFlashinferDim,
                                   int64_t{params.num_heads} * kFlashinferDim, kFlashinferDim),
       reinterpret_cast<const Bf16*>(kv.k), keys, reinterpret_cast<const Bf16*>(kv.v), keys,
       is_listed ? plan.key_rows : kv.page_table, params.window - 1, page_stride, page_stride,
       is_listed ? 1u : static_cast<uint32_t>(kv.page_tokens),
       SinkParams{params.sinks, params.scale * kLog2E}});
}

template <bool kHasWindow>
void launch(const AttendParams& params, const FlashinferPlan& plan) {
  const int num_sms = num_multiprocessors();
  const int64_t num_items = int64_t{plan.most_tiles} * params.num_heads;
  launch_flashinfer(
      kRowName,
      flashinfer::PrefillWithKVCacheKernel<Mainloop, Epilogue, Traits, kHasWindow, /*CAUSAL=*/true,
                                           TileDealer>,
      dim3(static_cast<unsigned>(std::min<int64_t>(num_sms, num_items))), dim3(Traits::NUM_THREADS),
      sizeof(Traits::SharedStorage), launch_stream(params.launch.stream),
      mainloop_params(params, plan), Epilogue::Params{params.a, params.num_heads},
      TileDealer::Params{plan.tiles, plan.num_tiles, params.num_heads, kFlashinferGroup});
}

}  // namespace

const char* attend_flashinfer_fa3_refuses(const AttendParams& params) {
  return flashinfer_refuses(params);
}

// As measured on an H200: slower than the wgmma row everywhere.
double attend_flashinfer_fa3_cost(const AttendParams& params) {
  const FlashinferTimes times{.wave = params.window > 0 ? 1500.0 : 1000.0,
                              .item = params.window > 0 ? 10.0 : 8.8,
                              .heads = params.num_heads};
  return behind_prefill_sm90(params, flashinfer_cost(params, kTileTokens, times));
}

uint64_t attend_flashinfer_fa3_workspace(const AttendParams& params) {
  return flashinfer_workspace(params, options_of(params));
}

void attend_bf16_prefill_flashinfer_fa3_sm90(const AttendParams& params) {
  if (params.batch.num_tokens == 0) return;
  const FlashinferPlan plan = plan_flashinfer(kRowName, params, options_of(params));
  if (params.window > 0) {
    launch<true>(params, plan);
  } else {
    launch<false>(params, plan);
  }
}

}  // namespace moxie
