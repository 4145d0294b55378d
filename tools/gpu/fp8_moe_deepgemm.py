#!/usr/bin/env python3
"""Times the two grouped products of an FP8 mixture of experts in DeepGEMM, for numbers of pairs of
a token and an expert: E4M3 by E4M3 with float scales for 1 x 128 and 128 x 128, hidden 7168,
intermediate 2048, 32 experts. Routing, gathering, SwiGLU and sums are not in it.

    PYTHONPATH=SITE python3 tools/gpu/fp8_moe_deepgemm.py [--pairs 11605,13748]

SITE holds the folder deep_gemm of vLLM's wheel (vllm/third_party), whose kernels are compiled at
first use: CUDA_HOME names a toolkit with nvcc. Needs PyTorch and a GPU of sm_90.
"""

import argparse
import statistics
import time

import deep_gemm
import torch

EXPERTS, HIDDEN, INTERMEDIATE, BLOCK = 32, 7168, 2048, 128
FLUSH_BYTES = 120 << 20  # twice an H200's L2
RUNS, DRY_RUNS, FIRST, LAST = 300, 10, 60, 50


def fp8(shape):
    values = torch.randn(shape, device="cuda").mul_(100).clamp_(-448, 448)
    return values.to(torch.float8_e4m3fn)


def weights(rows, columns):
    codes = torch.empty((EXPERTS, rows, columns), dtype=torch.float8_e4m3fn, device="cuda")
    for expert in range(EXPERTS):
        codes[expert] = fp8((rows, columns))
    scales = torch.rand((EXPERTS, rows // BLOCK, columns // BLOCK), device="cuda")
    return codes, scales * 1e-3 + 1e-4


def product(num_pairs, of_weights):
    """A call of the grouped product, and its rows with those that fill up experts."""
    codes, _ = of_weights
    _, rows, columns = codes.shape
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    share = torch.rand(EXPERTS) * 0.6 + 0.7
    counts = torch.multinomial(share, num_pairs, replacement=True).bincount(minlength=EXPERTS)
    experts = []
    for expert, count in enumerate(counts.tolist()):
        experts += [expert] * count + [-1] * (-count % alignment)
    num_rows = len(experts)
    scales = torch.rand((num_rows, columns // BLOCK), device="cuda") + 0.5
    pairs = (fp8((num_rows, columns)), deep_gemm.get_mn_major_tma_aligned_tensor(scales))
    output = torch.empty((num_rows, rows), dtype=torch.bfloat16, device="cuda")
    of_rows = torch.tensor(experts, dtype=torch.int32, device="cuda")
    return (lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(pairs, of_weights, output, of_rows),
            num_rows)


def microseconds(call):
    """Times of a CUDA graph of the call, behind a pause, L2 written with zeros before each."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    torch.cuda.synchronize()
    time.sleep(3)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(RUNS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="9458,11605,13748")
    wanted = [int(n) for n in parser.parse_args().pairs.split(",")]
    torch.manual_seed(1)
    print(torch.cuda.get_device_name(), "deep_gemm", deep_gemm.__version__)
    matrices = (("gate and up", weights(2 * INTERMEDIATE, HIDDEN)),
                ("down", weights(HIDDEN, INTERMEDIATE)))
    for num_pairs in wanted:
        for name, of_weights in matrices:
            call, num_rows = product(num_pairs, of_weights)
            times = microseconds(call)
            print(f"{num_pairs} pairs, {num_rows} rows, {name}: median of runs {DRY_RUNS} to "
                  f"{FIRST} {statistics.median(times[DRY_RUNS:FIRST]):.1f} us, of the last {LAST} "
                  f"of {RUNS} {statistics.median(times[-LAST:]):.1f} us", flush=True)


if __name__ == "__main__":
    main()
