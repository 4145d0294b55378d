"""Converts a Hugging Face gpt-oss checkpoint to the `original/` layout: fused q, k, v rows, other
names, other configuration keys; the numbers stay as they are.

    python3 hf_to_original.py MODEL_FOLDER OUT_FOLDER
"""
import argparse
import json
import os

import numpy as np

from hf_checkpoint import Checkpoint, write_safetensors

LAYER_NAMES = {
    "attn.norm.scale": "input_layernorm.weight",
    "attn.sinks": "self_attn.sinks",
    "attn.out.weight": "self_attn.o_proj.weight",
    "attn.out.bias": "self_attn.o_proj.bias",
    "mlp.norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.router.weight",
    "mlp.gate.bias": "mlp.router.bias",
    "mlp.mlp1_weight.blocks": "mlp.experts.gate_up_proj_blocks",
    "mlp.mlp1_weight.scales": "mlp.experts.gate_up_proj_scales",
    "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.mlp2_weight.blocks": "mlp.experts.down_proj_blocks",
    "mlp.mlp2_weight.scales": "mlp.experts.down_proj_scales",
    "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
}


def original_tensors(model):
    def copy(name, source):
        return (name, model.dtype(source), model.array(source))

    tensors = [copy("embedding.weight", "model.embed_tokens.weight")]
    for layer in range(model.config["num_hidden_layers"]):
        here, there = f"block.{layer}.", f"model.layers.{layer}."
        for kind in ("weight", "bias"):
            parts = [there + f"self_attn.{p}_proj.{kind}" for p in "qkv"]
            fused = np.concatenate([model.array(p) for p in parts])
            tensors.append((here + f"attn.qkv.{kind}", model.dtype(parts[0]), fused))
        for name, source in LAYER_NAMES.items():
            tensors.append(copy(here + name, there + source))
    tensors.append(copy("norm.scale", "model.norm.weight"))
    tensors.append(copy("unembedding.weight", "lm_head.weight"))
    return tensors


def original_config(config):
    rope = config.get("rope_parameters") or config["rope_scaling"]
    keys = ("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "head_dim",
            "num_attention_heads", "num_key_value_heads", "sliding_window")
    return {
        **{key: config[key] for key in keys},
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "swiglu_limit": config.get("swiglu_limit", 7.0),
        "initial_context_length": rope["original_max_position_embeddings"],
        "rope_theta": rope.get("rope_theta", config.get("rope_theta", 150000.0)),
        "rope_scaling_factor": rope["factor"],
        "rope_ntk_alpha": rope["beta_slow"],
        "rope_ntk_beta": rope["beta_fast"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    args = parser.parse_args()
    model = Checkpoint(args.model)
    os.makedirs(args.out, exist_ok=True)
    write_safetensors(os.path.join(args.out, "model.safetensors"), original_tensors(model))
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(original_config(model.config), file, indent=1)
    # The layout itself has no tokenizer; readers look in the folder above `original/`.
    tokenizer = os.path.join(args.model, "tokenizer.json")
    if os.path.exists(tokenizer):
        with open(tokenizer, "rb") as source, \
             open(os.path.join(args.out, "tokenizer.json"), "wb") as target:
            target.write(source.read())


if __name__ == "__main__":
    main()
