"""Converts a Hugging Face gpt-oss checkpoint to GGUF: MXFP4 experts in ggml's nibble order, gate and
up apart (or --merged), dense matrices as asked, vectors as F32, the tokenizer's tables.

    python3 hf_to_gguf.py MODEL_FOLDER OUT.gguf [--merged] [--dense q8_0] [--split 3]
"""
import argparse
import json
import os
import struct

import numpy as np

from hf_checkpoint import Checkpoint, to_bf16

ALIGNMENT = 32
F32, F16, Q8_0, BF16, MXFP4 = 0, 1, 8, 30, 39  # ggml's numbers
DENSE = {"f32": F32, "f16": F16, "q8_0": Q8_0, "bf16": BF16}
U16, U32, I32, FLOAT, STRING, ARRAY = 2, 4, 5, 6, 8, 9  # value types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # token types


def text(value):
    data = value.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    formats = {U16: "<H", U32: "<I", I32: "<i", FLOAT: "<f"}
    body = text(value) if kind == STRING else struct.pack(formats[kind], value)
    return text(key) + struct.pack("<I", kind) + body


def array(key, kind, values):
    body = b"".join(text(v) for v in values) if kind == STRING else np.asarray(
        values, dtype="<i4").tobytes()
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + body


def quantize_q8_0(values):
    """Blocks of 32: FP16 scale amax / 127, then int8, rounded half away from zero."""
    blocks = values.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    scaled = blocks * inverse[:, None]
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    out = np.empty((blocks.shape[0], 34), dtype=np.uint8)
    out[:, :2] = scale.astype(np.float16)[:, None].view(np.uint8)
    out[:, 2:] = codes.view(np.uint8)
    return out


def ggml_mxfp4(blocks, scales):
    """[..., 16] bytes of adjacent pairs and their scales to [..., 17]: scale, then halves."""
    low, high = blocks & 15, blocks >> 4
    codes = np.stack([low, high], axis=-1).reshape(*blocks.shape[:-1], 32)
    out = np.empty((*blocks.shape[:-1], 17), dtype=np.uint8)
    out[..., 0] = scales
    out[..., 1:] = codes[..., :16] | (codes[..., 16:] << 4)
    return out


class Tensor:
    """Name, ggml type, shape (outermost first) and a function that makes the bytes."""

    def __init__(self, name, kind, shape, make):
        self.name, self.kind, self.shape, self.make = name, kind, tuple(shape), make

    def num_bytes(self):
        block, size = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), Q8_0: (32, 34),
                       MXFP4: (32, 17)}[self.kind]
        return int(np.prod(self.shape, dtype=np.int64)) // block * size


def model_tensors(model, dense, merged):
    tensors = []

    def vector(name, source, rows=slice(None)):
        values = model.f32(source)[..., rows]
        tensors.append(Tensor(name, F32, values.shape, lambda: values))

    def matrix(name, source):
        def make():
            if dense == BF16 and model.dtype(source) == "BF16":
                return model.array(source)
            values = model.f32(source)
            return {F32: lambda: values, F16: lambda: values.astype(np.float16),
                    BF16: lambda: to_bf16(values), Q8_0: lambda: quantize_q8_0(values)}[dense]()
        tensors.append(Tensor(name, dense, model.array(source).shape, make))

    def experts(name, source, order=slice(None)):
        blocks, scales = model.array(source + "_blocks"), model.array(source + "_scales")
        num_rows = len(np.arange(blocks.shape[1])[order])
        shape = (blocks.shape[0], num_rows, blocks.shape[2] * 32)
        tensors.append(Tensor(name, MXFP4, shape, lambda: ggml_mxfp4(
            np.asarray(blocks[:, order]), np.asarray(scales[:, order]))))

    matrix("token_embd.weight", "model.embed_tokens.weight")
    for layer in range(model.config["num_hidden_layers"]):
        here, there = f"blk.{layer}.", f"model.layers.{layer}."
        vector(here + "attn_norm.weight", there + "input_layernorm.weight")
        for ours, theirs in (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
                             ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
                             ("ffn_gate_inp", "mlp.router")):
            matrix(here + ours + ".weight", there + theirs + ".weight")
            vector(here + ours + ".bias", there + theirs + ".bias")
        vector(here + "attn_sinks.weight", there + "self_attn.sinks")
        vector(here + "post_attention_norm.weight", there + "post_attention_layernorm.weight")
        gate_up, bias = there + "mlp.experts.gate_up_proj", there + "mlp.experts.gate_up_proj_bias"
        if merged:
            num_rows = model.array(bias).shape[-1]
            order = np.concatenate([np.arange(0, num_rows, 2), np.arange(1, num_rows, 2)])
            experts(here + "ffn_gate_up_exps.weight", gate_up, order)
            vector(here + "ffn_gate_up_exps.bias", bias, order)
        else:
            for name, order in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2))):
                experts(here + f"ffn_{name}_exps.weight", gate_up, order)
                vector(here + f"ffn_{name}_exps.bias", bias, order)
        experts(here + "ffn_down_exps.weight", there + "mlp.experts.down_proj")
        vector(here + "ffn_down_exps.bias", there + "mlp.experts.down_proj_bias")
    vector("output_norm.weight", "model.norm.weight")
    matrix("output.weight", "lm_head.weight")
    return tensors


def config_pairs(config):
    rope = config.get("rope_parameters") or config["rope_scaling"]
    theta = rope.get("rope_theta", config.get("rope_theta", 150000.0))
    at = "gpt-oss."
    return [
        pair("general.architecture", STRING, "gpt-oss"),
        pair("general.file_type", U32, 38),
        pair(at + "vocab_size", U32, config["vocab_size"]),
        pair(at + "context_length", U32, config.get("max_position_embeddings", 131072)),
        pair(at + "block_count", U32, config["num_hidden_layers"]),
        pair(at + "embedding_length", U32, config["hidden_size"]),
        pair(at + "feed_forward_length", U32, config["intermediate_size"]),
        pair(at + "expert_feed_forward_length", U32, config["intermediate_size"]),
        pair(at + "expert_count", U32, config["num_local_experts"]),
        pair(at + "expert_used_count", U32, config["num_experts_per_tok"]),
        pair(at + "attention.head_count", U32, config["num_attention_heads"]),
        pair(at + "attention.head_count_kv", U32, config["num_key_value_heads"]),
        pair(at + "attention.key_length", U32, config.get("head_dim", 64)),
        pair(at + "attention.value_length", U32, config.get("head_dim", 64)),
        pair(at + "attention.layer_norm_rms_epsilon", FLOAT, config.get("rms_norm_eps", 1e-5)),
        pair(at + "attention.sliding_window", U32, config.get("sliding_window", 128)),
        pair(at + "rope.freq_base", FLOAT, theta),
        pair(at + "rope.scaling.type", STRING, "yarn"),
        pair(at + "rope.scaling.factor", FLOAT, rope["factor"]),
        pair(at + "rope.scaling.original_context_length", U32,
             rope["original_max_position_embeddings"]),
        pair(at + "rope.scaling.yarn_beta_fast", FLOAT, rope["beta_fast"]),
        pair(at + "rope.scaling.yarn_beta_slow", FLOAT, rope["beta_slow"]),
    ]


def tokenizer_pairs(folder, config):
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocab_size = config["vocab_size"]
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = token, NORMAL
    for added in tokenizer.get("added_tokens", []):
        i = added["id"]
        tokens[i], types[i] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    pairs = [
        pair("tokenizer.ggml.model", STRING, "gpt2"),
        pair("tokenizer.ggml.pre", STRING, "gpt-4o"),
        array("tokenizer.ggml.tokens", STRING, tokens),
        array("tokenizer.ggml.token_type", I32, types),
        array("tokenizer.ggml.merges", STRING, merges),
    ]
    for key, name in (("eos", "eos_token_id"), ("padding", "pad_token_id")):
        if isinstance(config.get(name), int):
            pairs.append(pair(f"tokenizer.ggml.{key}_token_id", U32, config[name]))
    return pairs


def write_gguf(path, pairs, tensors):
    entries, at = [], 0
    for tensor in tensors:
        dims = tensor.shape[::-1]  # innermost first
        entries.append(text(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                                       tensor.kind, at))
        at += tensor.num_bytes() + -tensor.num_bytes() % ALIGNMENT
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    header += b"".join(pairs) + b"".join(entries)
    with open(path, "wb") as file:
        file.write(header + b"\0" * (-len(header) % ALIGNMENT))
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.make())
            assert data.nbytes == tensor.num_bytes(), tensor.name
            data.tofile(file)
            file.write(b"\0" * (-data.nbytes % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--merged", action="store_true", help="ffn_gate_up_exps in one tensor")
    parser.add_argument("--dense", choices=sorted(DENSE), default="bf16")
    parser.add_argument("--split", type=int, default=1, metavar="N",
                        help="N files OUT-0000K-of-0000N.gguf")
    args = parser.parse_args()
    model = Checkpoint(args.model)
    tensors = model_tensors(model, DENSE[args.dense], args.merged)
    pairs = config_pairs(model.config) + tokenizer_pairs(args.model, model.config)
    if args.split <= 1:
        write_gguf(args.out, pairs, tensors)
        return
    stem = args.out.removesuffix(".gguf")
    for part in range(args.split):
        mine = tensors[len(tensors) * part // args.split:len(tensors) * (part + 1) // args.split]
        split = [pair("split.no", U16, part), pair("split.count", U16, args.split),
                 pair("split.tensors.count", I32, len(tensors))]
        write_gguf(f"{stem}-{part + 1:05d}-of-{args.split:05d}.gguf",
                   (pairs if part == 0 else []) + split, mine)


if __name__ == "__main__":
    main()
