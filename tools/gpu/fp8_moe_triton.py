"""moe_fp8_block_scale as a fused MoE in Triton, the peer of fp8_moe_peers.py: the public recipe,
written from its mathematics. Routing and sorting are on the device, two grouped GEMMs in E4M3 apply
the scales every 128 of k, the intermediate is requantised to E4M3 for 1 x 128, pairs are written in
BF16 and summed in F32. Only pairs of local experts are computed, and the host waits for nothing.
"""

import concurrent.futures
import functools
import math
import os

import torch
import triton
import triton.language as tl

GROUPS, KEPT_GROUPS, TOP, BLOCK = 8, 4, 8, 128  # of the definition


# The pairs of an expert stand in `bucket` [local, tokens] in any order. A pair's row in the GEMMs'
# outputs is the number of pairs of the experts before its own, plus its place in the bucket. What
# changes with T is not specialised, so that a kernel compiled once serves every T.

@triton.jit(do_not_specialize=["tokens", "offset"])
def route(logits, bias, counts, bucket, chosen, place, weight, tokens, offset, factor,
          GROUPS: tl.constexpr, SIZE: tl.constexpr, KEPT: tl.constexpr, TOP: tl.constexpr,
          LOCAL: tl.constexpr):
    token = tl.program_id(0)
    groups, lanes = tl.arange(0, GROUPS), tl.arange(0, SIZE)
    at = groups[:, None] * SIZE + lanes[None, :]
    score = tl.sigmoid(tl.load(logits + token * GROUPS * SIZE + at))
    biased = score + tl.load(bias + at).to(tl.float32)
    others = tl.where(lanes[None, :] == tl.argmax(biased, 1)[:, None], float("-inf"), biased)
    of_group = tl.max(biased, 1) + tl.max(others, 1)
    kept = groups < 0
    for _ in tl.static_range(KEPT):
        best = groups == tl.argmax(of_group, 0)
        kept = kept | best
        of_group = tl.where(best, float("-inf"), of_group)
    score = tl.reshape(score, (GROUPS * SIZE,))
    biased = tl.reshape(tl.where(kept[:, None], biased, float("-inf")), (GROUPS * SIZE,))
    experts, choices = tl.arange(0, GROUPS * SIZE), tl.arange(0, TOP)
    ids = tl.zeros((TOP,), tl.int32)
    weights = tl.zeros((TOP,), tl.float32)
    for i in tl.static_range(TOP):
        best = tl.argmax(biased, 0)
        ids = tl.where(choices == i, best, ids)
        weights = tl.where(choices == i, tl.sum(tl.where(experts == best, score, 0.0), 0), weights)
        biased = tl.where(experts == best, float("-inf"), biased)
    weights = weights / (tl.sum(weights, 0) + 1e-20) * factor
    ids -= offset
    local = (ids >= 0) & (ids < LOCAL)
    safe = tl.where(local, ids, 0)
    places = tl.atomic_add(counts + safe, 1, mask=local)
    pair = token * TOP + choices
    tl.store(bucket + safe.to(tl.int64) * tokens + places, pair, mask=local)
    tl.store(chosen + pair, tl.where(local, ids, -1))
    tl.store(place + pair, places, mask=local)
    tl.store(weight + pair, weights)


@triton.jit(do_not_specialize=["tokens", "scale_stride"])
def grouped_gemm(a, a_scale, w, w_scale, counts, bucket, out, tokens, scale_stride, N, K,
                 GATHER: tl.constexpr, LOCAL: tl.constexpr, PADDED: tl.constexpr,
                 TOP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 STAGES: tl.constexpr, SWAP: tl.constexpr):
    """out [pairs, N] = a [rows, K] by w [LOCAL, N, K] of each pair's expert. Programs stride over
    the tiles, whose number only the device knows. An expert's tiles of one strip of N are
    neighbours, so that its weights come from L2 after the first. SWAP computes the transpose:
    Triton takes wgmma only where the dot has 64 rows, which the weights always have."""
    tl.static_assert(not SWAP or BLOCK_N <= 128)
    experts = tl.arange(0, PADDED)
    count = tl.load(counts + experts, mask=experts < LOCAL, other=0)
    m_tiles = (count + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(m_tiles, 0) * (N // BLOCK_N)
    k = tl.arange(0, 128)
    for item in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert = tl.sum((ends <= item).to(tl.int32), 0)
        here = experts == expert
        first = tl.sum(tl.where(experts < expert, count, 0), 0)
        rows = tl.sum(tl.where(here, count, 0), 0)
        strip = tl.sum(tl.where(here, m_tiles, 0), 0)
        inner = item - tl.sum(tl.where(here, ends - m_tiles * (N // BLOCK_N), 0), 0)
        row = inner % strip * BLOCK_M + tl.arange(0, BLOCK_M)
        column = inner // strip * BLOCK_N + tl.arange(0, BLOCK_N)
        valid = row < rows
        if GATHER:
            pair = tl.load(bucket + expert.to(tl.int64) * tokens + row, mask=valid, other=0)
            source = pair // TOP
        else:
            source = first + row
        a_at = a + source.to(tl.int64)[:, None] * K + k[None, :]
        w_at = w + expert.to(tl.int64) * N * K + column[:, None] * K + k[None, :]
        a_scale_at = a_scale + source
        w_scale_at = w_scale + expert * (N // 128) * (K // 128)
        if BLOCK_N > 128:
            w_scale_at += column // 128 * (K // 128)
        else:
            w_scale_at += inner // strip * BLOCK_N // 128 * (K // 128)
        sums = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
        for _ in tl.range(0, K // 128, num_stages=STAGES):
            x = tl.load(a_at, mask=valid[:, None], other=0.0)
            y = tl.load(w_at)
            x_scale = tl.load(a_scale_at, mask=valid, other=0.0)
            y_scale = tl.load(w_scale_at)
            if SWAP:
                sums += tl.dot(y, x.T) * (x_scale * y_scale)[None, :]
            elif BLOCK_N > 128:
                sums += tl.dot(x, y.T) * x_scale[:, None] * y_scale[None, :]
            else:
                sums += tl.dot(x, y.T) * (x_scale * y_scale)[:, None]
            a_at += 128
            w_at += 128
            a_scale_at += scale_stride
            w_scale_at += 1
        tl.store(out + (first + row).to(tl.int64)[:, None] * N + column[None, :],
                 (sums.T if SWAP else sums).to(out.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["capacity"])
def activate(gate_up, out, out_scale, counts, capacity, I, LOCAL: tl.constexpr,
             PADDED: tl.constexpr, BLOCKS: tl.constexpr):
    experts = tl.arange(0, PADDED)
    rows = tl.sum(tl.load(counts + experts, mask=experts < LOCAL, other=0), 0)
    block = tl.arange(0, BLOCKS)
    at = block[:, None] * 128 + tl.arange(0, 128)[None, :]
    for item in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), item, tl.int64)
        up = tl.load(gate_up + row * 2 * I + at, mask=at < I, other=0.0).to(tl.float32)
        gate = tl.load(gate_up + row * 2 * I + I + at, mask=at < I, other=0.0).to(tl.float32)
        value = gate * tl.sigmoid(gate) * up
        greatest = tl.max(tl.abs(value), 1)
        scale = tl.where(greatest > 0, greatest / 448.0, 1.0)  # 448: E4M3's greatest
        tl.store(out + row * I + at, (value / scale[:, None]).to(tl.float8e4nv), mask=at < I)
        tl.store(out_scale + block.to(tl.int64) * capacity + row, scale, mask=block * 128 < I)


@triton.jit
def combine(pairs, chosen, place, weight, counts, out, H, LOCAL: tl.constexpr,
            PADDED: tl.constexpr, TOP: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, PADDED)
    count = tl.load(counts + experts, mask=experts < LOCAL, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for i in tl.static_range(TOP):
        expert = tl.load(chosen + token * TOP + i)
        if expert >= 0:
            row = tl.sum(tl.where(experts < expert, count, 0), 0) + tl.load(place + token * TOP + i)
            value = tl.load(pairs + row.to(tl.int64) * H + column, mask=column < H, other=0.0)
            total += tl.load(weight + token * TOP + i) * value.to(tl.float32)
    tl.store(out + token * H + column, total.to(tl.bfloat16), mask=column < H)


def candidates(named):
    """(BLOCK_M, BLOCK_N, warps, stages, SWAP) worth a try for the mean number of pairs an expert,
    at most 8."""
    tokens, experts = named["routing_logits"].shape
    if tokens * TOP <= 4 * experts:
        tiles = [(16, 64, 4, 4, True), (16, 64, 4, 5, True), (16, 128, 4, 3, True),
                 (16, 128, 4, 5, True), (16, 128, 8, 4, True), (16, 64, 4, 5, False),
                 (16, 128, 4, 4, False), (16, 128, 8, 4, False)]
    elif tokens * TOP <= 64 * experts:
        tiles = [(16, 128, 4, 4, True), (32, 64, 4, 4, True), (32, 128, 4, 4, True),
                 (32, 128, 8, 4, True), (64, 128, 4, 3, True), (32, 128, 4, 4, False),
                 (64, 128, 4, 4, False), (64, 128, 8, 4, False)]
    else:
        tiles = [(64, 128, 4, 3, False), (64, 128, 4, 4, False), (64, 128, 8, 4, False),
                 (64, 256, 8, 3, False), (64, 256, 8, 4, False), (128, 64, 4, 4, False),
                 (128, 128, 8, 3, False), (128, 128, 8, 4, False)]
    columns = math.gcd(*(named[f"gemm{i}_weights"].shape[1] for i in (1, 2)))
    return [tile for tile in tiles if columns % tile[1] == 0]


class FusedMoe:
    """Buffers and launches for these inputs, and the tiles of both GEMMs, which tune() chooses."""

    def __init__(self, named):
        self.named, self.local = named, len(named["gemm1_weights"])
        self.tokens, self.experts = named["routing_logits"].shape
        self.hidden, self.inner = named["hidden_states"].shape[1], named["gemm2_weights"].shape[2]
        self.padded = triton.next_power_of_2(self.local)
        self.capacity = self.tokens * min(TOP, self.local)  # rows: the host does not know the pairs
        device = named["routing_logits"].device
        self.processors = (torch.cuda.get_device_properties(device).multi_processor_count
                           if device.type == "cuda" else 1)
        empty = lambda shape, kind: torch.empty(shape, dtype=kind, device=device)  # noqa: E731
        self.counts = empty(self.local, torch.int32)
        self.bucket = empty((self.local, self.tokens), torch.int32)
        self.chosen, self.place = (empty((self.tokens, TOP), torch.int32) for _ in range(2))
        self.weight = empty((self.tokens, TOP), torch.float32)
        self.gate_up = empty((self.capacity, 2 * self.inner), torch.bfloat16)
        self.act = empty((self.capacity, self.inner), torch.float8_e4m3fn)
        self.act_scale = empty((self.inner // BLOCK, self.capacity), torch.float32)
        self.pairs = empty((self.capacity, self.hidden), torch.bfloat16)
        self.tiles = [candidates(named)[0]] * 2

    def route(self):
        self.counts.zero_()
        route[(self.tokens,)](
            self.named["routing_logits"], self.named["routing_bias"], self.counts, self.bucket,
            self.chosen, self.place, self.weight, self.tokens, self.named["local_expert_offset"],
            self.named["routed_scaling_factor"], GROUPS, self.experts // GROUPS, KEPT_GROUPS, TOP,
            self.local, num_warps=1)

    def gemm(self, second, tile, compile_only=False):
        block_m, block_n, warps, stages, swap = tile
        w, w_scale = (self.named[f"gemm{second + 1}_weights{end}"] for end in ("", "_scale"))
        a, a_scale, out = ((self.act, self.act_scale, self.pairs) if second else
                           (self.named["hidden_states"], self.named["hidden_states_scale"],
                            self.gate_up))
        most = (min(self.local, self.capacity) + self.capacity // block_m) * (w.shape[1] // block_n)
        grid = (min(most, 4 * self.processors),)
        launch = (functools.partial(grouped_gemm.warmup, grid=grid) if compile_only else
                  grouped_gemm[grid])
        launch(a, a_scale, w, w_scale, self.counts, self.bucket, out, self.tokens,
               a_scale.shape[1], w.shape[1], w.shape[2], not second, self.local, self.padded, TOP,
               block_m, block_n, stages, swap, num_warps=warps, num_stages=stages)

    def activate(self):
        activate[(min(self.capacity, 8 * self.processors),)](
            self.gate_up, self.act, self.act_scale, self.counts, self.capacity, self.inner,
            self.local, self.padded, triton.next_power_of_2(self.inner // BLOCK))

    def __call__(self, output):
        self.route()
        self.gemm(0, self.tiles[0])
        self.activate()
        self.gemm(1, self.tiles[1])
        combine[(self.tokens, triton.cdiv(self.hidden, 1024))](
            self.pairs, self.chosen, self.place, self.weight, self.counts, output, self.hidden,
            self.local, self.padded, TOP, 1024)

    def compile_candidates(self):
        """Compiles both GEMMs for the candidates in threads. What is compiled serves every T."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            with triton.AsyncCompileMode(pool):
                for tile in candidates(self.named):
                    for second in range(2):
                        self.gemm(second, tile, compile_only=True)

    def tune(self, measure):
        """Chooses the tiles of each GEMM by its time on the pairs of these inputs. measure: {tile:
        call} to {tile: time}."""
        self.route()
        for second in range(2):
            calls = {}
            for tile in candidates(self.named):
                try:
                    self.gemm(second, tile)
                except triton.runtime.errors.OutOfResources as error:
                    print(f"T = {self.tokens}: GEMM {second + 1} has no tile {tile}: {error}")
                else:
                    calls[tile] = functools.partial(self.gemm, second, tile)
            times = measure(calls)
            self.tiles[second] = min(times, key=times.get)
            if not second:
                self.activate()
