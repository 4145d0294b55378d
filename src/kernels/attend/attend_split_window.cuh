// Attention of many sequences over a window: a warp takes a token's KV head alone.
//
// A window has so few keys that a block of eight warps would spend its time waiting: for the
// positions, the pages, one tile of keys each, and then for one another to merge their sums. A warp
// that walks over all of them has nothing to merge, and the SM reads for its others meanwhile.
#pragma once

#include "kernels/attend/attend_split_warp.cuh"

namespace moxie::attend_split {

constexpr int kWindowWarps = 4;  // of a block; each has a unit: a tile of tokens and a KV head

template <DType kFormat, int kSlots>
__global__ void __launch_bounds__(32 * kWindowWarps)
    attend_split_window(const __grid_constant__ SplitParams p) {
  using F = Format<kFormat>;
  extern __shared__ __align__(128) std::byte slots[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int32_t unit = static_cast<int32_t>(blockIdx.x) * kWindowWarps + warp;
  const int32_t kv_head = unit % p.num_kv_heads;
  TokenTile tile{};
  if (unit < p.num_tiles * p.num_kv_heads) tile = find_tile(p, unit / p.num_kv_heads, lane);
  if (tile.num_tokens == 0) {
    wait_for_previous();
    launch_next();
    return;
  }
  const SeenKeys seen = seen_keys(p, tile);
  const uint32_t ring =
      shared_address(slots) + static_cast<uint32_t>(warp * p.num_slots * F::kStageBytes);
  auto keys = keys_of_warp<F, kSlots>(p, tile, seen, kv_head, 0, 1, ring, lane);
  const int32_t num_old = keys.num_old(p, tile, seen, 0, 1);
  keys.start(p);
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i < num_old) keys.fetch(p);
  }
  Sums<F, 8> sums;
  sums.clear(lane);
  const int32_t row = sums.g, token = token_of(p, row), head = row - token * p.group;
  const bool is_row = token < tile.num_tokens;
  const int64_t at =
      static_cast<int64_t>(tile.first_token + token) * p.num_heads + kv_head * p.group + head;
  sums.last_seen[0] =
      token == 0 || !is_row ? seen.first_position : __ldcg(p.positions + tile.first_token + token);
  const float sink =
      p.sinks == nullptr || !is_row ? -INFINITY : p.sinks[kv_head * p.group + head] * kLog2E;
  wait_for_previous();
  launch_next();

  float4 q[4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    q[step] =
        is_row
            ? __ldcg(reinterpret_cast<const float4*>(p.q + at * kDim + F::q_column(step, sums.c)))
            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll 1
  for (int i = 0; i < kSlots - 1; ++i) {
    if (i >= num_old) keys.fetch(p);
  }
  sums.take_q(q, p.scale_log2);
  sums.add_tiles(p, seen, keys);
  wait_for_copies<0>();

  float l = sums.l[0];
  l += __shfl_xor_sync(~0u, l, 1);
  l += __shfl_xor_sync(~0u, l, 2);
  if (__any_sync(~0u, keys.page_missing)) l = __int_as_float(0x7FC00000);
  if (!is_row) return;
  const float part = part_of_sums(sums.m[0], l, sink);
  float x[16];
  sums.columns(0, part, x);
  if (p.staged_tokens > 0) {
#pragma unroll
    for (int i = 0; i < 16; i += 2)
      write_staged(p, tile.first_token + token, kv_head * p.group + head, 16 * sums.c + i, x[i],
                   x[i + 1]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<float4*>(p.a + at * kDim + 16 * sums.c + 4 * i) =
        make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

}  // namespace moxie::attend_split
