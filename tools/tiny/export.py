#!/usr/bin/env python3
"""Writes a trained model as a Hugging Face gpt-oss directory: BF16 weights, MXFP4 experts, configuration.

    export.py CHECKPOINT OUT
"""
import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file

import model as M

CODES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def mxfp4_encode(w):
    """w [E, rows, K] to blocks [E, rows, K / 32, 16] and scales [E, rows, K / 32]; low nibble first."""
    w = w.float()
    b = w.reshape(*w.shape[:-1], w.shape[-1] // 32, 32)
    e = M.mxfp4_exponents(b)
    values = M.mxfp4_round(w).reshape(b.shape) / ((e + 127) << 23).view(torch.float32)
    code = torch.bucketize(values.abs(), CODES).to(torch.uint8)
    assert torch.equal(CODES[code.long()], values.abs())
    code = code | ((values < 0).to(torch.uint8) << 3)
    return code[..., 0::2] | (code[..., 1::2] << 4), (e[..., 0] + 127).to(torch.uint8)


def interleaved(w):
    """Gate rows then up rows [E, 2 I, ...] to gate, up, gate, up."""
    gate, up = w.chunk(2, 1)
    return torch.stack((gate, up), 2).reshape(w.shape)


def tensors(p):
    """All tensors of the file from the named parameters p (on the CPU)."""
    bf = lambda t: t.detach().float().bfloat16().contiguous()
    out = {"model.embed_tokens.weight": bf(p["embed"]), "model.norm.weight": bf(p["w_final"]), "lm_head.weight": bf(p["head"])}
    for i in range(p["wq"].shape[0]):
        base = f"model.layers.{i}."
        for mine, theirs in (("wq", "q_proj.weight"), ("bq", "q_proj.bias"), ("wk", "k_proj.weight"), ("bk", "k_proj.bias"), ("wv", "v_proj.weight"), ("bv", "v_proj.bias"), ("wo", "o_proj.weight"), ("bo", "o_proj.bias"), ("sinks", "sinks")):
            out[base + "self_attn." + theirs] = bf(p[mine][i])
        out[base + "input_layernorm.weight"], out[base + "post_attention_layernorm.weight"] = bf(p["w_in"][i]), bf(p["w_post"][i])
        out[base + "mlp.router.weight"], out[base + "mlp.router.bias"] = bf(p["wr"][i]), bf(p["br"][i])
        for mine, theirs, arranged in (("gate_up", "gate_up_proj", interleaved), ("down", "down_proj", lambda w: w)):
            blocks, scales = mxfp4_encode(arranged(p[mine][i].detach()))
            out[base + f"mlp.experts.{theirs}_blocks"], out[base + f"mlp.experts.{theirs}_scales"] = blocks.contiguous(), scales.contiguous()
            out[base + f"mlp.experts.{theirs}_bias"] = bf(arranged(p["b_" + mine][i].detach()))
    return out


def read(folder):
    """The parameters of an exported directory, as training names and arranges them."""
    from plain import mxfp4_decode
    w = load_file(os.path.join(folder, "model.safetensors"))
    num = json.load(open(os.path.join(folder, "config.json")))["num_hidden_layers"]
    stack = lambda suffix: torch.stack([w[f"model.layers.{i}.{suffix}"].float() for i in range(num)])
    p = {"embed": w["model.embed_tokens.weight"].float(), "w_final": w["model.norm.weight"].float(), "head": w["lm_head.weight"].float(), "w_in": stack("input_layernorm.weight"), "w_post": stack("post_attention_layernorm.weight"), "wr": stack("mlp.router.weight"), "br": stack("mlp.router.bias"), "sinks": stack("self_attn.sinks")}
    for x in "qkvo":
        p["w" + x], p["b" + x] = stack(f"self_attn.{x}_proj.weight"), stack(f"self_attn.{x}_proj.bias")
    apart = lambda t: torch.cat((t[:, :, 0::2], t[:, :, 1::2]), 2)
    for mine, theirs, arranged in (("gate_up", "gate_up_proj", apart), ("down", "down_proj", lambda t: t)):
        name = "mlp.experts." + theirs
        p[mine] = arranged(torch.stack([mxfp4_decode(w[f"model.layers.{i}.{name}_blocks"], w[f"model.layers.{i}.{name}_scales"]) for i in range(num)]))
        p["b_" + mine] = arranged(stack(name + "_bias"))
    return p


def config(cfg, ids):
    return {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": ids["<|return|>"], "experts_per_token": cfg.active, "head_dim": cfg.head_dim, "hidden_act": "silu",
        "hidden_size": cfg.hidden, "initial_context_length": cfg.original, "initializer_range": 0.02, "intermediate_size": cfg.inter, "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(cfg.layers)],
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": cfg.heads, "num_experts_per_tok": cfg.active, "num_hidden_layers": cfg.layers, "num_key_value_heads": cfg.kv_heads, "num_local_experts": cfg.experts,
        "output_router_logits": False, "pad_token_id": ids["<|endoftext|>"],
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": cfg.factor, "original_max_position_embeddings": cfg.original, "rope_type": "yarn", "truncate": False}, "rope_theta": int(cfg.theta),
        "router_aux_loss_coef": 0.01, "sliding_window": cfg.window, "swiglu_limit": 7.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": cfg.vocab}


def write(model, cfg, out):
    state = model if isinstance(model, dict) else model.state_dict()
    p = {k: v.detach().float().cpu() for k, v in state.items()}
    os.makedirs(out, exist_ok=True)
    save_file(tensors(p), os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    vocab = {t["content"]: t["id"] for t in json.load(open(os.path.join(out, "tokenizer.json")))["added_tokens"]}
    def dump(name, value):
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")

    dump("config.json", config(cfg, vocab))
    dump("generation_config.json", {"bos_token_id": vocab["<|startoftext|>"], "do_sample": False, "eos_token_id": [vocab["<|return|>"], vocab["<|endoftext|>"], vocab["<|call|>"]], "pad_token_id": vocab["<|endoftext|>"]})
    dump("tokenizer_config.json", {"bos_token": "<|startoftext|>", "clean_up_tokenization_spaces": False, "eos_token": "<|return|>", "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072, "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})


if __name__ == "__main__":
    state = torch.load(sys.argv[1], map_location="cpu")
    write(state, M.Config(), sys.argv[2])
