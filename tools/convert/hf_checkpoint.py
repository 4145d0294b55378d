"""Reads a Hugging Face gpt-oss checkpoint (one safetensors file or shards with an index) with numpy
alone, and writes safetensors. BF16 comes as uint16."""
import json
import os
import struct

import numpy as np

NUMPY_TYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8}


class Checkpoint:
    """Tensors by name, mapped: `dtype(name)` is the stored type, `array(name)` the values."""

    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        index = os.path.join(folder, "model.safetensors.index.json")
        names = ["model.safetensors"]
        if os.path.exists(index):
            with open(index, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        self.tensors = {}
        for name in names:
            self._add(os.path.join(folder, name))

    def _add(self, path):
        with open(path, "rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(header_bytes))
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + header_bytes)
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                self.tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])

    def __contains__(self, name):
        return name in self.tensors

    def dtype(self, name):
        return self.tensors[name][0]

    def array(self, name):
        dtype, shape, data = self.tensors[name]
        return data.view(NUMPY_TYPES[dtype]).reshape(shape)

    def f32(self, name):
        """Values as float32, exactly."""
        return to_f32(self.array(name))


def to_f32(array):
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def to_bf16(values):
    """float32 to BF16 bits, rounding to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path, tensors):
    """`tensors`: list of (name, dtype, array)."""
    header, at = {}, 0
    for name, dtype, array in tensors:
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, array in tensors:
            file.write(np.ascontiguousarray(array).tobytes())
