#!/usr/bin/env python3
"""Times moe_fp8_block_scale of moxie_ops beside a fused MoE in Triton, in one process, on the same
tensors, by the same rule.

    PYTHONPATH=SITE python3 tools/gpu/fp8_moe_peers.py [-T 1,7,901] [--json FILE] [--commit HASH]

SITE is where moxie_ops and apache-tvm-ffi are installed. The Triton peer is tuned for each T.
Without a GPU, `TRITON_INTERPRET=1 ... --check-only` with a small shape checks the outputs alone.
Ends with 1 if an output is wrong.
"""

import argparse
import functools
import itertools
import json
import os
import platform
import statistics
import sys

import torch
import triton
import triton.language as tl

try:
    import moxie_ops
except ImportError as error:
    moxie_ops, missing = None, error

from fp8_moe_triton import BLOCK, GROUPS, KEPT_GROUPS, TOP, FusedMoe

TOKENS = [1, 7, 14, 15, 16, 32, 52, 58, 62, 80, 901, 11948, 14107]
DRY_ROUNDS = 10
SAMPLE = 64  # tokens that are compared with float64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCES = {"0.01, 0.01": (1e-2, 1e-2), "0.1, 0.2": (0.1, 0.2)}  # absolute, relative
RULE = ("CUDA graph of the whole call (graph: false where capture failed), a buffer of twice the "
        "L2 written before each run, device events, median; competitors take turns in each round")


def round_as_pytorch(data, source, target, _):
    """For the interpreter, whose own conversion of Triton 3.6 loses the carry of a mantissa."""
    kinds = {tl.float8e4nv: torch.float8_e4m3fn, tl.bfloat16: torch.bfloat16,
             tl.float16: torch.float16, tl.float32: torch.float32}
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
    value = torch.frombuffer(bytearray(data.tobytes()), dtype=kinds[source]).to(kinds[target])
    found = value.view(bits[target.primitive_bitwidth]).numpy()
    return found.view(f"u{target.primitive_bitwidth // 8}").reshape(data.shape)


@triton.jit
def read_all(source, found, WORDS: tl.constexpr, LOADS: tl.constexpr):
    at = source + tl.program_id(0).to(tl.int64) * WORDS * LOADS + tl.arange(0, WORDS)
    total = tl.zeros((WORDS,), tl.int32)
    for i in tl.static_range(LOADS):
        total ^= tl.load(at + i * WORDS)
    tl.store(found + tl.program_id(0), tl.xor_sum(total, 0))


def make_weights(flags):
    """The definition's weights: E4M3 of a normal clamped to +-2, and normal scales."""
    random = torch.Generator(DEVICE).manual_seed(flags.seed)
    named = {}
    for i, (n, k) in enumerate([(2 * flags.intermediate, flags.hidden),
                                (flags.hidden, flags.intermediate)], 1):
        w = torch.empty((flags.local_experts, n, k), dtype=torch.float8_e4m3fn, device=DEVICE)
        for expert in w:
            expert.copy_(torch.randn((n, k), device=DEVICE, generator=random).clamp_(-2, 2))
        named[f"gemm{i}_weights"] = w
        named[f"gemm{i}_weights_scale"] = torch.randn(
            (flags.local_experts, n // BLOCK, k // BLOCK), device=DEVICE, generator=random)
    return named


def make_inputs(flags, weights, tokens, seed):
    """The arguments in the definition's order, without the output."""
    random = torch.Generator(DEVICE).manual_seed(seed)
    normal = lambda *shape: torch.randn(shape, device=DEVICE, generator=random)  # noqa: E731
    return {
        "routing_logits": normal(tokens, flags.experts),
        "routing_bias": (0.01 * normal(flags.experts)).to(torch.bfloat16),
        "hidden_states": normal(tokens, flags.hidden).clamp_(-2, 2).to(torch.float8_e4m3fn),
        "hidden_states_scale": normal(flags.hidden // BLOCK, tokens),
        **weights,
        "local_expert_offset": flags.offset,
        "routed_scaling_factor": flags.factor,
    }


def routing(named):
    """[tokens, local experts] in float64: weights of the chosen experts, 0 for the others."""
    score = torch.sigmoid(named["routing_logits"])
    biased = score + named["routing_bias"].float()
    grouped = biased.view(len(biased), GROUPS, -1)
    groups = grouped.topk(2, dim=2).values.sum(2).topk(KEPT_GROUPS, dim=1).indices
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=DEVICE).scatter_(1, groups, True)
    chosen = grouped.masked_fill(~kept[:, :, None], -torch.inf).flatten(1).topk(TOP, dim=1).indices
    weights = score.double().gather(1, chosen)
    weights *= named["routed_scaling_factor"] / (weights.sum(1, keepdim=True) + 1e-20)
    offset, local = named["local_expert_offset"], len(named["gemm1_weights"])
    every = torch.zeros_like(score, dtype=torch.float64).scatter_(1, chosen, weights)
    return every[:, offset:offset + local]


def reference(named, weights, sample):
    """The sampled tokens' outputs in float64."""
    over = lambda scale, dim: scale.double().repeat_interleave(BLOCK, dim)  # noqa: E731
    x = named["hidden_states"].float()[sample].double()
    x *= over(named["hidden_states_scale"][:, sample].t(), 1)
    output = torch.zeros_like(x)
    for expert in (weights[sample] != 0).any(0).nonzero().flatten().tolist():
        w1, w2 = (named[f"gemm{i}_weights"][expert].float().double() *
                  over(over(named[f"gemm{i}_weights_scale"][expert], 0), 1) for i in (1, 2))
        mine = weights[sample, expert].nonzero().flatten()
        up, gate = (x[mine] @ w1.t()).chunk(2, 1)
        inner = torch.nn.functional.silu(gate) * up
        output[mine] += weights[sample[mine], expert, None] * (inner @ w2.t())
    return output


def check(run, named, weights, sample, expected):
    """The share of the sample's outputs that match at each of TOLERANCES, and a fault or None."""
    output = torch.full_like(named["hidden_states"], torch.nan, dtype=torch.bfloat16)
    run(output)
    if not output.isfinite().all():
        return {name: 0.0 for name in TOLERANCES}, "NaN, infinity, or elements not written"
    error = (output[sample].double() - expected).abs()
    relative = error / (expected.abs() + 1e-8)
    matched = {name: ((error <= atol) | (relative <= rtol)).double().mean().item()
               for name, (atol, rtol) in TOLERANCES.items()}
    if output[(weights == 0).all(1)].any():
        return matched, "a token without a local expert is not zero"
    if matched["0.1, 0.2"] < 0.85:
        return matched, "less than 0.85 of the outputs match at 0.1 and 0.2"
    return matched, None


def captured(call):
    """What runs the call, and whether that is a CUDA graph. The call has run before."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError as error:
        print(f"not captured, timed without a graph: {error}", file=sys.stderr)
        torch.cuda.synchronize()
        return call, False
    return graph.replay, True


def measure(calls, rounds, dry=DRY_ROUNDS):
    """{name: (median us, whether by a graph)}, by RULE; the order of a round is moved on by one."""
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8,
                        device=DEVICE)
    runs, events = {}, {name: [] for name in calls}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        runs[name] = captured(call)
    names = list(calls)
    for i in range(dry + rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)  # cycles: the host gets ahead of the device
            flush.fill_(i % 256)
            begin.record()
            runs[name][0]()
            end.record()
            if i >= dry:
                events[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: (statistics.median(1e3 * begin.elapsed_time(end) for begin, end in pairs),
                   runs[name][1]) for name, pairs in events.items()}


def read_rate(tensor):
    """Bytes a second of the fastest of a few plain kernels that read the tensor."""
    words = tensor.view(-1).view(torch.int32)
    calls, read_bytes = {}, {}
    for sizes in (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8):
        programs = words.numel() // (sizes[0] * sizes[1])
        found = torch.empty(programs, dtype=torch.int32, device=DEVICE)
        calls[sizes] = functools.partial(read_all[(programs,)], words, found, *sizes)
        read_bytes[sizes] = 4 * sizes[0] * sizes[1] * programs
    return max(1e6 * read_bytes[sizes] / us for sizes, (us, _) in measure(calls, rounds=20).items())


def competitors(flags, named, peer):
    """{name: call with the output}; "chosen" is the row that moxie_ops takes by itself."""
    calls = {}
    if not flags.peer_only:
        for row in moxie_ops.rows("cuda:0" if DEVICE == "cuda" else "cpu"):
            if row["runs"]:
                calls[row["name"]] = functools.partial(moxie_ops.moe_fp8_block_scale,
                                                       *named.values(), row=row["name"])
        calls["chosen"] = functools.partial(moxie_ops.moe_fp8_block_scale, *named.values())
    return {**calls, "triton": peer}


def compare(flags, weights_named, tokens, rate):
    """Checks and times every competitor at one T: a record of the JSON."""
    for seed in itertools.count(flags.seed + tokens, 1_000_000):  # one token often has none local
        named = make_inputs(flags, weights_named, tokens, seed)
        weights = routing(named)
        local = (weights != 0).any(1).nonzero().flatten()
        if len(local):
            break
    order = torch.randperm(len(local), generator=torch.Generator().manual_seed(flags.seed))
    sample = local[order[:SAMPLE].to(DEVICE)]
    touched = int((weights != 0).any(0).sum())
    record = {"tokens": tokens, "touched": touched, "pairs": int((weights != 0).sum()),
              "seed": seed, "sample": len(sample), "competitors": {}}
    expected = reference(named, weights, sample)
    peer = FusedMoe(named)
    runs = competitors(flags, named, peer)
    if not flags.check_only:
        peer.compile_candidates()
        peer.tune(lambda calls: {tile: us for tile, (us, _) in measure(calls, 10, 3).items()})
        record["triton_tiles"] = peer.tiles
        of_expert = sum(x[0].numel() * x.element_size() for x in weights_named.values())
        record["bytes_bound_us"] = 1e6 * touched * of_expert / rate
    for name in list(runs):
        try:
            matched, fault = check(runs[name], named, weights, sample, expected)
        except RuntimeError as error:  # a row says so by its name: more than 8 tokens
            if not str(error).startswith(f"{name}: "):
                raise
            record["competitors"][name] = {"refused": str(error)}
            del runs[name]
        else:
            record["competitors"][name] = {"matched": matched, "fault": fault}
    if not flags.check_only:
        output = torch.empty_like(named["hidden_states"], dtype=torch.bfloat16)
        calls = {name: functools.partial(run, output) for name, run in runs.items()}
        for name, (us, graph) in measure(calls, flags.rounds).items():
            record["competitors"][name].update(us=us, graph=graph)
    return record


def show(records):
    """The tables: times, then matched shares, each with one column for a competitor."""
    names = list(records[0]["competitors"])
    short = [name.replace("moe_fp8_block_scale_", "") for name in names]
    widths = [max(len(name), 15) for name in short]
    cells = lambda texts: "".join(f"  {text:>{w}}" for text, w in zip(texts, widths))  # noqa: E731
    if "bytes_bound_us" in records[0]:
        print(f"\nmicroseconds\n{'T':>6} {'touched':>8} {'pairs':>6} {'bytes bound':>12}"
              f"{cells(short)}  triton / chosen")
        for x in records:
            us = {name: found["us"] for name, found in x["competitors"].items() if "us" in found}
            ratio = f"{us['triton'] / us['chosen']:.2f}" if "chosen" in us else ""
            shown = (format(us[name], ".1f") if name in us else "refused" for name in names)
            print(f"{x['tokens']:>6} {x['touched']:>8} {x['pairs']:>6} {x['bytes_bound_us']:>12.1f}"
                  f"{cells(shown)}  {ratio:>15}")
    print(f"\nmatched shares at absolute and relative tolerances {' / '.join(TOLERANCES)}\n"
          f"{'T':>6} {'tokens':>6}{cells(short)}")
    for x in records:
        matched = (x["competitors"][name].get("matched", {}).values() for name in names)
        shares = (" / ".join(format(share, ".4f") for share in pair) for pair in matched)
        print(f"{x['tokens']:>6} {x['sample']:>6}{cells(shares)}")


def token_counts(text):
    return [int(count) for count in text.split(",")]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-T", dest="tokens", default=TOKENS, type=token_counts,
                        help="numbers of tokens: 1,7,901")
    for name, value in [("experts", 256), ("local-experts", 32), ("hidden", 7168),
                        ("intermediate", 2048), ("offset", 32), ("seed", 1), ("rounds", 50)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--factor", type=float, default=2.5)
    parser.add_argument("--json", help="a file for every figure")
    parser.add_argument("--commit", help="of moxie_ops, for the JSON")
    parser.add_argument("--check-only", action="store_true", help="no timing, no tuning")
    parser.add_argument("--peer-only", action="store_true", help="without moxie_ops")
    flags = parser.parse_args(arguments)
    size = flags.experts // GROUPS
    if flags.experts % GROUPS or size < TOP // KEPT_GROUPS or size & (size - 1):
        parser.error(f"--experts: expected {GROUPS} groups of a power of two, 2 or more")
    sizes = flags.local_experts, flags.hidden, flags.intermediate, flags.rounds
    if min(*flags.tokens, *sizes) < 1:
        parser.error("-T, --rounds and the sizes: expected 1 or more")
    if flags.hidden % BLOCK or flags.intermediate % BLOCK:
        parser.error(f"--hidden, --intermediate: expected multiples of {BLOCK}")
    if flags.offset < 0 or flags.offset + flags.local_experts > flags.experts:
        parser.error("--offset: the local experts end behind the last expert")
    if moxie_ops is None and not flags.peer_only:
        parser.error(f"{missing}: install moxie_ops where PYTHONPATH names it, or pass --peer-only")
    if DEVICE == "cpu" and not flags.check_only:
        parser.error("PyTorch finds no CUDA device: only --check-only runs without one")
    if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("PyTorch finds no CUDA device: set TRITON_INTERPRET=1")
    return flags


def main(arguments=None):
    flags = parse(arguments)
    if DEVICE == "cpu":
        triton.runtime.interpreter._convert_float = round_as_pytorch
    weights, rate = make_weights(flags), None
    report = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, interpreted",
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "triton": triton.__version__, "cuda": torch.version.cuda},
        "commit": flags.commit, "flags": vars(flags), "rule": RULE, "records": []}
    if not flags.peer_only:
        report["versions"]["moxie_ops"] = moxie_ops.__version__
    print(report["device"], report["versions"], flush=True)
    if not flags.check_only:
        rate = read_rate(weights["gemm1_weights"])
        report["read_bytes_per_s"] = rate
        print(f"a plain kernel reads {rate / 1e12:.3f} TB/s", flush=True)
    faults = 0
    for tokens in flags.tokens:
        report["records"].append(compare(flags, weights, tokens, rate))
        for name, found in report["records"][-1]["competitors"].items():
            if found.get("fault"):
                faults += 1
                print(f"T = {tokens}, {name}: {found['fault']}", file=sys.stderr)
        print(f"T = {tokens} done", flush=True)
        if flags.json:
            with open(flags.json, "w") as file:
                json.dump(report, file, indent=1)
    show(report["records"])
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
