"""The vectors of tests/data/moe_fp8 as NumPy arrays. Arrays of uint8 and uint16 hold the bits of E4M3
and BF16, which NumPy has no types for."""

import json
import pathlib
import struct

import numpy

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "moe_fp8"
TYPES = {"F32": "<f4", "F64": "<f8", "I32": "<i4", "BF16": "<u2", "F8_E4M3": "u1"}
INPUTS = ("routing_logits", "routing_bias", "hidden_states", "hidden_states_scale", "gemm1_weights",
          "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale", "local_expert_offset",
          "routed_scaling_factor")


def read(path):
    data = pathlib.Path(path).read_bytes()
    length, = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in entry["data_offsets"])
        array = numpy.frombuffer(data[begin:end], TYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"]).copy()
    return tensors


def arguments():
    """The arguments of moe_fp8_block_scale by name, with an output of NaN."""
    found = read(FOLDER / "small.safetensors")
    named = {name: found[name] for name in INPUTS}
    for name in "local_expert_offset", "routed_scaling_factor":
        named[name] = named[name].item()
    tokens, hidden = named["hidden_states"].shape
    named["output"] = numpy.full((tokens, hidden), 0x7FC0, "<u2")
    return named


def bf16_values(bits):
    return (bits.astype("<u4") << 16).view("<f4").astype("f8")
