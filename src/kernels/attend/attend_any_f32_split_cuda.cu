// attend on CUDA for few tokens: split over keys, the query heads of a KV head together.
//
// A block of eight warps works for one tile of tokens and one KV head on its share of the keys.
// Each warp runs independently: cp.async copies the keys and values of its next tiles into its own
// shared memory, mma.sync makes logits and weighted sums, softmax is F32 with a running maximum.
// Queries and weights enter the products as a high and a low part, 16 bits or more together. The
// warps' sums are merged in shared memory, those of a cluster's blocks through distributed shared
// memory, where the sink is added. Only the answer is written to global memory. Many sequences over
// a window have a kernel of their own (attend_split_window.cuh).
#include <algorithm>

#include "core/cuda_launch.cuh"
#include "core/cuda_part.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/attend/attend_split_window.cuh"

namespace moxie {
namespace {

using namespace attend_split;

template <DType kFormat, int kRows, int kSlots>
__global__ void __launch_bounds__(kThreads, kRows == 8 ? 2 : 1)
    attend_split(const __grid_constant__ SplitParams p) {
  using F = Format<kFormat>;
  using S = BlockShape<kRows>;
  static_assert(kSlots * F::kStageBytes >= kRows * kDim * 4, "the warp's sums go into its slots");
  constexpr int kElementsLog = kRows == 8 ? 9 : kRows == 16 ? 10 : 11;
  static_assert(1 << kElementsLog == kRows * kDim);
  __shared__ Shared<kRows> shared;
  extern __shared__ __align__(128) std::byte slots[];

  const auto thread = static_cast<int32_t>(threadIdx.x);
  __builtin_assume(thread >= 0 && thread < kThreads);
  const int lane = thread % 32, warp = thread / 32;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t rank = block % p.num_splits;
  const int32_t kv_head = block / p.num_splits % p.num_kv_heads;
  const TokenTile tile = find_tile(p, block / p.num_splits / p.num_kv_heads, lane);

  // How many blocks share the keys that the tile sees.
  const SeenKeys seen = seen_keys(p, tile);
  constexpr int32_t kKeysOfBlock = kKeysOfWarp * kWarps;
  const int32_t num_active =
      max(1, min(p.num_splits, (seen.num_keys() + kKeysOfBlock - 1) / kKeysOfBlock));
  if (tile.num_tokens == 0 || rank >= num_active) {
    if (num_active > 1) cluster_arrive();
    wait_for_previous();
    launch_next();
    return;
  }

  // The first blocks, at most eight, each finish a slice of the rows' elements.
  const int owners_log = min(3, 31 - __clz(num_active)), slice_log = kElementsLog - owners_log;
  const int32_t slice = 1 << slice_log, slice_rows = max(1, slice / kDim), padded = slice + 2;
  const bool is_owner = rank < 1 << owners_log;
  if (num_active > 1) {
    if (thread == 0 && is_owner) {
      init_barrier(&shared.barrier);
      expect_bytes(&shared.barrier,
                   static_cast<uint32_t>(num_active * (slice * 4 + slice_rows * 8)));
    }
    cluster_arrive();
  }

  // This warp's tiles are start, start + stride, ...
  const int32_t start = warp * num_active + rank, stride = num_active * kWarps;
  const uint32_t ring =
      shared_address(slots) + static_cast<uint32_t>(warp * p.num_slots * F::kStageBytes);
  auto keys = keys_of_warp<F, kSlots>(p, tile, seen, kv_head, start, stride, ring, lane);
  const int32_t num_old = keys.num_old(p, tile, seen, start, stride);

  keys.start(p);
  if (thread < kRows) {
    const int32_t head = thread - token_of(p, thread) * p.group;
    shared.sinks[thread] =
        p.sinks == nullptr ? -INFINITY : p.sinks[kv_head * p.group + head] * kLog2E;
  }
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i < num_old) keys.fetch(p);
  }
  Queries<F, kRows> queries;
  const int64_t first_row =
      static_cast<int64_t>(tile.first_token) * p.num_heads + kv_head * p.group;
  queries.locate(p, shared, p.q + first_row * kDim, tile.num_tokens * p.group, warp, lane);
  Sums<F, kRows> sums;
  sums.clear(lane);
#pragma unroll
  for (int r = 0; r < S::kLaneRows; ++r) {
    const int32_t token = min(token_of(p, sums.row_of(r, sums.g)), tile.num_tokens - 1);
    sums.last_seen[r] =
        token == 0 ? seen.first_position : __ldcg(p.positions + tile.first_token + token);
  }
  if (num_active > 1) cluster_wait();  // every block has initialised its barrier
  wait_for_previous();
  launch_next();

  queries.load();
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i >= num_old) keys.fetch(p);
  }
  queries.store(p, shared, warp, lane);
  __syncthreads();
  sums.load_q(shared, lane);
  sums.add_tiles(p, seen, keys);

  // Merge the warps: every thread takes pairs of columns.
  if (sums.c == 0) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) shared.m[warp][sums.row_of(r, sums.g)] = sums.m[r];
  }
  wait_for_copies<0>();
  if (__any_sync(~0u, keys.page_missing)) {
#pragma unroll
    for (int r = 0; r < S::kLaneRows; ++r) sums.l[r] = __int_as_float(0x7FC00000);
  }
  __syncthreads();
  float* warp_sums = reinterpret_cast<float*>(slots);
  const int warp_size = p.num_slots * F::kStageBytes / 4;
  sums.store(shared, warp_sums + warp * warp_size, shared.l[warp]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < S::kPairs; ++i) {
    const int32_t element = 2 * (i * kThreads + thread);
    const int32_t row = element / kDim, column = element % kDim;
    float m = shared.m[0][row], l = 0.0f, x = 0.0f, y = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const auto pair = *reinterpret_cast<const float2*>(warp_sums + w * warp_size +
                                                         sum_at(row, column / 4) + column % 4);
      m = fmaxf(m, shared.m[w][row]);
      l += shared.l[w][row], x += pair.x, y += pair.y;
    }
    if (num_active == 1) {
      write_answer(p, tile, kv_head, row, column, shared.sinks[row], m, l, x, y);
      continue;
    }
    const int32_t owner = element >> slice_log, in_slice = element & (slice - 1);
    send(&shared.from_splits[rank * padded + in_slice], &shared.barrier, owner, x, y);
    // Once for each row, or for each share of a row that a block owns.
    if (in_slice % kDim == 0) {
      send(&shared.ml_from_splits[rank * slice_rows + in_slice / kDim], &shared.barrier, owner, m,
           l);
    }
  }
  if (num_active == 1 || !is_owner) return;
  wait_cluster_barrier(&shared.barrier, 0);
  // Neighbouring lanes take the same pair of columns, each of one block.
  static_assert(kMaxSplits <= 16, "four steps reach over 16 lanes");
  const int lanes_log = 32 - __clz(num_active - 1);
#pragma unroll 1
  for (int32_t idx = thread; idx < slice / 2 << lanes_log; idx += kThreads) {
    const int32_t from = idx & ((1 << lanes_log) - 1), in_slice = 2 * (idx >> lanes_log);
    float2 ml = make_float2(kLowest, 0.0f), pair = make_float2(0.0f, 0.0f);
    if (from < num_active) {
      ml = shared.ml_from_splits[from * slice_rows + in_slice / kDim];
      pair = *reinterpret_cast<const float2*>(&shared.from_splits[from * padded + in_slice]);
    }
    float m = ml.x;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < lanes_log) m = fmaxf(m, __shfl_xor_sync(~0u, m, 1 << step));
    }
    const float factor = power_of_two(ml.x - m);
    float l = factor * ml.y, x = factor * pair.x, y = factor * pair.y;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step < lanes_log) {
        l += __shfl_xor_sync(~0u, l, 1 << step);
        x += __shfl_xor_sync(~0u, x, 1 << step);
        y += __shfl_xor_sync(~0u, y, 1 << step);
      }
    }
    const int32_t element = (rank << slice_log) + in_slice, row = element / kDim;
    if (from == 0) {
      write_answer(p, tile, kv_head, row, element % kDim, shared.sinks[row], m, l, x, y);
    }
  }
}

// ---- The launch ---------------------------------------------------------------------------------
constexpr const char* kRowName = "attend_any_f32_split_cuda";

struct DeviceLimits {
  int num_sms = 0, shared_of_sm = 0, shared_of_block = 0;
};
DeviceLimits device_limits(const Launch& launch) {
  DeviceLimits limits;
  limits.num_sms = num_multiprocessors();
  SharedMemory shared = shared_memory();
  if (const uint64_t most = launch.most_shared; most > 0) {
    shared.of_block = std::min(shared.of_block, most);
    shared.of_sm = std::min(shared.of_sm, most + 1024);
  }
  limits.shared_of_block = static_cast<int>(shared.of_block);
  limits.shared_of_sm = static_cast<int>(shared.of_sm);
  return limits;
}

// Whether `num_clusters` clusters of `size` blocks fit on the device with one block an SM. The rate
// at which one SM can read keys is limited: two blocks on one SM would finish last.
bool fits_one_a_sm(void (*kernel)(SplitParams), int64_t num_clusters, int size,
                   const DeviceLimits& limits) {
  const int shared = limits.shared_of_sm / 2;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<uint64_t>(shared));
  if (size > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(size), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(num_clusters * size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int num_resident = 0;
  if (cudaOccupancyMaxActiveClusters(&num_resident, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // a size that this device does not take
    return false;
  }
  return num_resident >= num_clusters;
}

// The most keys that a tile of tokens sees.
int64_t most_keys_of(const AttendParams& params, const SplitParams& split) {
  const int64_t most_keys = int64_t{params.kv.table_stride} * params.kv.page_tokens;
  return split.window > 0 ? std::min<int64_t>(most_keys, split.window + split.tile_tokens - 1)
                          : most_keys;
}

template <DType kFormat, int kRows, int kSlots>
void launch_split(const AttendParams& params, SplitParams split, const DeviceLimits& limits,
                  cudaStream_t stream) {
  using F = Format<kFormat>;
  constexpr int64_t kFewestSlots = ceil_div(kRows * kDim * 4, F::kStageBytes);
  static_assert(kSlots > 2 || kWarps * kSlots * F::kStageBytes + sizeof(Shared<kRows>) <=
                                  kPortableSharedBytes,
                "any device has a form with two slots");
  auto* kernel = attend_split<kFormat, kRows, kSlots>;
  const int64_t most_keys = most_keys_of(params, split);
  const int64_t num_clusters = int64_t{split.num_tiles} * split.num_kv_heads;

  // As many blocks as there are SMs, but no block without keys.
  int64_t splits =
      std::min({int64_t{code_has_clusters() ? kMaxSplits : 1}, limits.num_sms / num_clusters,
                ceil_div<int64_t>(most_keys, kKeysOfWarp * kWarps)});
  while (splits > 1 && !fits_one_a_sm(kernel, num_clusters, static_cast<int>(splits), limits))
    --splits;
  splits = std::max<int64_t>(splits, 1);
  split.num_splits = static_cast<int32_t>(splits);
  // Another block joins only when the warps of the blocks before it have kKeysOfWarp keys.
  int64_t tiles_of_warp = ceil_div(most_keys, splits * kWarps * int64_t{F::kKeys});
  if (splits > 1) tiles_of_warp = std::max<int64_t>(tiles_of_warp, ceil_div(kKeysOfWarp, F::kKeys));
  split.num_slots = static_cast<int32_t>(std::clamp<int64_t>(tiles_of_warp, kFewestSlots, kSlots));
  int shared_bytes = kWarps * split.num_slots * F::kStageBytes;
  // Otherwise blocks share SMs, especially beside the last blocks of the previous kernel.
  if (splits > 1) shared_bytes = std::max(shared_bytes, limits.shared_of_sm / 2);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_clusters * splits)),
                          .num_threads = kThreads,
                          .shared_bytes = static_cast<uint64_t>(shared_bytes),
                          .cluster = split.num_splits,
                          .programmatic = true,
                          .leaves_l1 = params.launch.l1 == L1Form::kL1};
  launch_kernel(kRowName, kernel, split, shape, stream);
}

template <DType kFormat, int kSlots>
void launch_window(const AttendParams& params, SplitParams split, cudaStream_t stream) {
  split.num_slots = kSlots;
  launch_kernel(kRowName, attend_split_window<kFormat, kSlots>, split,
                {.grid = dim3(static_cast<unsigned>(
                     ceil_div(split.num_tiles * split.num_kv_heads, kWindowWarps))),
                 .num_threads = 32 * kWindowWarps,
                 .shared_bytes = uint64_t{kWindowWarps * kSlots * Format<kFormat>::kStageBytes},
                 .programmatic = true,
                 .leaves_l1 = params.launch.l1 == L1Form::kL1},
                stream);
}
// Whether a warp takes a tile and a KV head alone: few keys, and more such units than the device
// runs blocks of. Two blocks an SM have longer rings, four hide more of the waiting.
template <DType kFormat>
bool launches_window(const AttendParams& params, const SplitParams& split,
                     const DeviceLimits& limits, cudaStream_t stream) {
  constexpr int kFewer = 6, kMore = 3;
  constexpr int kFewerBytes = kWindowWarps * kFewer * Format<kFormat>::kStageBytes;
  static_assert(kWindowWarps * kMore * Format<kFormat>::kStageBytes <= kPortableSharedBytes);
  const int64_t units = int64_t{split.num_tiles} * split.num_kv_heads;
  if (most_keys_of(params, split) > kFewKeys || units <= 2 * limits.num_sms) return false;
  const bool is_one_round = units <= 2 * kWindowWarps * limits.num_sms;
  if (is_one_round && limits.shared_of_block >= kFewerBytes) {
    launch_window<kFormat, kFewer>(params, split, stream);
  } else {
    launch_window<kFormat, kMore>(params, split, stream);
  }
  return true;
}

bool aligned(const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; }

}  // namespace

const char* attend_split_cuda_refuses(const AttendParams& params) {
  const KvLayer& kv = params.kv;
  if (params.head_dim != kDim) return "head size is not 64";
  if (params.num_heads / params.num_kv_heads > 16) return "more than 16 query heads for a KV head";
  if (kv.dtype != DType::kBF16 && kv.dtype != DType::kF8E4M3)
    return "the cache is not BF16 or F8E4M3";
  if (kv.page_stride_bytes > INT64_C(0xFFFFFFFF)) return "pages are 4 GiB or more apart";
  if (int64_t{kv.table_stride} * kv.page_tokens * kv.page_tokens > INT64_C(0xFFFFFFFF))
    return "the sequences' greatest length times the tokens of a page is 2^32 or more";
  return nullptr;
}

void attend_any_f32_split_cuda(const AttendParams& params) {
  const Ragged& batch = params.batch;
  const KvLayer& kv = params.kv;
  if (batch.num_tokens == 0) return;
  CHECK(aligned(params.q) && aligned(params.a) && aligned(kv.k) && aligned(kv.v) &&
            kv.page_stride_bytes % 16 == 0,
        "attend wants q, a and the pages aligned to 16 bytes");
  const int32_t group = params.num_heads / params.num_kv_heads;
  // Tokens of one sequence share the keys of a block, as far as its rows suffice. A window has few
  // keys: there tokens share only if there are more blocks than the device runs at a time.
  const DeviceLimits limits = device_limits(params.launch);
  const int32_t tokens_of_seq = ceil_div(batch.num_tokens, std::max(1, batch.num_seqs));
  const int64_t wanted_rows = int64_t{group} * tokens_of_seq;
  const bool few = params.window > 0 && params.window <= kFewKeys &&
                   batch.num_tokens * params.num_kv_heads <= 2 * limits.num_sms;
  int32_t num_rows = group <= 8 ? 8 : 16;
  if (!few && tokens_of_seq > 2 && wanted_rows > 8)
    num_rows = tokens_of_seq <= kFewTokens ? 16 : 32;
  const int32_t tile_tokens = num_rows / group;
  // A sequence may end anywhere in a tile: whatever the lengths, there are at most this many tiles.
  const auto num_tiles = static_cast<int32_t>(
      (int64_t{batch.num_tokens} + int64_t{batch.num_seqs} * (tile_tokens - 1)) / tile_tokens);
  const auto page_tokens = static_cast<uint32_t>(kv.page_tokens);
  const SplitParams split{
      .q = params.q,
      .k = kv.k,
      .v = kv.v,
      .sinks = params.sinks,
      .a = params.a,
      .positions = batch.positions,
      .seq_idx = batch.seq_idx,
      .row_offsets = batch.row_offsets,
      .page_table = kv.page_table,
      .scale_log2 = params.scale * kLog2E,
      .page_stride_bytes = static_cast<uint32_t>(kv.page_stride_bytes),
      // 2^32 / page_tokens, rounded up; for page_tokens = 1 that would be 2^32, and the mask adds
      // the key instead.
      .page_magic =
          page_tokens == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) - 1) / page_tokens + 1),
      .page_mask = page_tokens == 1 ? ~0u : 0,
      .num_tokens = batch.num_tokens,
      .num_seqs = batch.num_seqs,
      .num_tiles = num_tiles,
      .in_block = params.is_block ? batch.num_tokens : 0,
      .table_stride = kv.table_stride,
      .page_tokens = kv.page_tokens,
      .num_heads = params.num_heads,
      .num_kv_heads = params.num_kv_heads,
      .group = group,
      .window = params.window,
      .group_magic = static_cast<uint32_t>(ceil_div(65536, group)),
      .tile_tokens = tile_tokens,
      .num_splits = 1,
      .num_slots = 1,
      .by_row = params.window > 0 || kv.page_tokens % kRun != 0,
      .staged_tokens =
          params.forms.a == AForm::kBf16Staged ? round_up(batch.num_tokens, gemm::kStagedRows) : 0};
  cudaStream_t stream = launch_stream(params.launch.stream);
  const bool bf16 = kv.dtype == DType::kBF16;
  constexpr DType kBF16 = DType::kBF16, kF8 = DType::kF8E4M3;
  if (num_rows == 8) {
    auto* launches = bf16 ? launches_window<kBF16> : launches_window<kF8>;
    if (launches(params, split, limits, stream)) return;
  }
  auto* launch = bf16 ? launch_split<kBF16, 32, 2> : launch_split<kF8, 32, 2>;
  if (num_rows == 16) launch = bf16 ? launch_split<kBF16, 16, 2> : launch_split<kF8, 16, 2>;
  if (num_rows == 8) {
    constexpr int kThreeSlots = 96 * 1024 + static_cast<int>(sizeof(Shared<8>));
    launch = bf16 ? launch_split<kBF16, 8, 2> : launch_split<kF8, 8, 2>;
    // Window layers and full layers use the same kernel: two would compete for the instruction
    // cache.
    if (limits.shared_of_block >= kThreeSlots)
      launch = bf16 ? launch_split<kBF16, 8, 3> : launch_split<kF8, 8, 3>;
  }
  launch(params, split, limits, stream);
}

}  // namespace moxie
