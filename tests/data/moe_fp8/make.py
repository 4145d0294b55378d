#!/usr/bin/env python3
"""Writes the vectors of moe_fp8_block_scale: inputs and float64 outputs, from the definition alone.

    python3 tests/data/moe_fp8/make.py

Plain Python: floats are float64, sums are exact (math.fsum). Only routing is in float32, as the
definition has it; the script fails if a choice is so close that rounding could turn it. It shares
no code with the engine. Files: small.safetensors (the ten inputs) and small_expected.safetensors
(the output as F64, before the rounding to BF16).
"""
import json
import math
import os
import random
import struct

TOKENS, HIDDEN, INTER, BLOCK = 6, 384, 256, 128
EXPERTS, LOCAL, OFFSET, GROUPS, KEPT, TOP_K = 64, 2, 9, 8, 4, 8
FACTOR = 2.5


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def e4m3(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def route(logits, bias):
    """[(expert, weight)] of one token."""
    s = [f32(sigmoid(x)) for x in logits]
    b = [f32(x + y) for x, y in zip(s, bias)]
    size = EXPERTS // GROUPS
    scores = [sum(sorted(b[g * size : (g + 1) * size])[-2:]) for g in range(GROUPS)]
    order = sorted(range(GROUPS), key=lambda g: -scores[g])
    assert scores[order[KEPT - 1]] - scores[order[KEPT]] > 1e-4, "groups are too close"
    allowed = sorted(
        (e for g in order[:KEPT] for e in range(g * size, (g + 1) * size)), key=lambda e: -b[e]
    )
    assert b[allowed[TOP_K - 1]] - b[allowed[TOP_K]] > 1e-4, "experts are too close"
    chosen = allowed[:TOP_K]
    total = math.fsum(s[e] for e in chosen) + 1e-20
    return [(e, s[e] / total * FACTOR) for e in chosen]


def main():
    rng = random.Random(20)
    in_blocks, mid_blocks = HIDDEN // BLOCK, INTER // BLOCK

    def codes(n):  # all codes but the two NaNs
        return bytes(rng.randrange(127) | rng.randrange(2) << 7 for _ in range(n))

    def floats(n, scale=1.0):
        return [f32(rng.gauss(0, scale)) for _ in range(n)]

    logits = floats(TOKENS * EXPERTS)
    # Local experts, whose group must be kept, are chosen often but not always.
    bias_bits = [bf16_bits(rng.gauss(0, 0.05) + (0.3 if 8 <= e < 16 else 0)) for e in range(EXPERTS)]
    bias = [bf16(x) for x in bias_bits]
    hidden, hidden_scale = codes(TOKENS * HIDDEN), floats(in_blocks * TOKENS, 0.01)
    gemm1 = codes(LOCAL * 2 * INTER * HIDDEN)
    gemm1_scale = floats(LOCAL * 2 * mid_blocks * in_blocks, 0.002)
    gemm2, gemm2_scale = codes(LOCAL * HIDDEN * INTER), floats(LOCAL * in_blocks * mid_blocks)
    value = [e4m3(code) for code in range(256)]

    output, num_pairs = [0.0] * (TOKENS * HIDDEN), 0
    for t in range(TOKENS):
        a = [
            value[hidden[t * HIDDEN + k]] * hidden_scale[(k // BLOCK) * TOKENS + t]
            for k in range(HIDDEN)
        ]
        for expert, weight in route(logits[t * EXPERTS : (t + 1) * EXPERTS], bias):
            e = expert - OFFSET
            if not 0 <= e < LOCAL:
                continue
            num_pairs += 1
            product = []
            for n in range(2 * INTER):
                row = (e * 2 * INTER + n) * HIDDEN
                scales = (e * 2 * mid_blocks + n // BLOCK) * in_blocks
                product.append(
                    math.fsum(
                        value[gemm1[row + k]] * gemm1_scale[scales + k // BLOCK] * a[k]
                        for k in range(HIDDEN)
                    )
                )
            h = [gate * sigmoid(gate) * up for up, gate in zip(product[:INTER], product[INTER:])]
            for n in range(HIDDEN):
                row = (e * HIDDEN + n) * INTER
                scales = (e * in_blocks + n // BLOCK) * mid_blocks
                output[t * HIDDEN + n] += weight * math.fsum(
                    value[gemm2[row + k]] * gemm2_scale[scales + k // BLOCK] * h[k]
                    for k in range(INTER)
                )
    print(num_pairs, "pairs; tokens without one:", [
        t for t in range(TOKENS) if not any(output[t * HIDDEN : (t + 1) * HIDDEN])])
    print("greatest output", max(map(abs, output)))

    def pack(kind, values):
        return struct.pack(f"<{len(values)}{kind}", *values)

    write("small", [
        ("routing_logits", "F32", [TOKENS, EXPERTS], pack("f", logits)),
        ("routing_bias", "BF16", [EXPERTS], pack("H", bias_bits)),
        ("hidden_states", "F8_E4M3", [TOKENS, HIDDEN], hidden),
        ("hidden_states_scale", "F32", [in_blocks, TOKENS], pack("f", hidden_scale)),
        ("gemm1_weights", "F8_E4M3", [LOCAL, 2 * INTER, HIDDEN], gemm1),
        ("gemm1_weights_scale", "F32", [LOCAL, 2 * mid_blocks, in_blocks], pack("f", gemm1_scale)),
        ("gemm2_weights", "F8_E4M3", [LOCAL, HIDDEN, INTER], gemm2),
        ("gemm2_weights_scale", "F32", [LOCAL, in_blocks, mid_blocks], pack("f", gemm2_scale)),
        ("local_expert_offset", "I32", [1], pack("i", [OFFSET])),
        ("routed_scaling_factor", "F32", [1], pack("f", [FACTOR])),
    ])
    write("small_expected", [("output", "F64", [TOKENS, HIDDEN], pack("d", output))])


def write(name, tensors):
    header, at = {}, 0
    for tensor, dtype, shape, data in tensors:
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors))


if __name__ == "__main__":
    main()
