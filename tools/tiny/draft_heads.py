"""Draft heads of the embedded model: EAGLE-3 and DFlash, to train, to draft with and to write to files.

A head is a dictionary of FP32 masters under the names of the files. Matrices enter the products as the values
of their MXFP4 codes (straight-through gradients), and the files hold those values in BF16, so that a head drafts
the same in both formats. Both heads share the target's embedding and lm_head.

Both predict from a base position P, the last one whose features exist: t_{P+1} is known, slot s = 0, 1, ...
drafts t_{P+2+s}. `taps` are the target's residual streams after some of its layers, side by side.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import model as M

HEADS, KV_HEADS, DIM = 4, 1, 64
BOUNDARIES = (2, 5, 7)  # a boundary counts the layers before it
MASK_ID = 4066          # a reserved control token, which no text holds


class Quantised(torch.autograd.Function):
    """MXFP4 rounding in FP32, with a straight-through gradient."""

    @staticmethod
    def forward(ctx, w):
        return M.mxfp4_round(w)

    @staticmethod
    def backward(ctx, g):
        return g


def pick(x, at):
    """x [D, N, ...] at the places at [D, R] of every document; places past the end give the last."""
    at = at.clamp(max=x.shape[1] - 1)
    return x[torch.arange(len(x), device=x.device)[:, None], at]


class Head:
    """What both heads share: parameters, files and the target's tables."""
    kind, slots, num_layers, inter = "", 0, 1, 0

    def __init__(self, target, device, seed=1):
        self.cfg, self.embed, self.unembed, self.device = target.cfg, target.embed.float(), target.head.float(), device
        self.cos, self.sin = M.rope_table(self.cfg, 8192, device)
        g = torch.Generator().manual_seed(seed)
        self.p = {name: (torch.randn(shape, generator=g) * scale if scale else torch.full(shape, fill)).to(device) for name, shape, scale, fill in self.shapes()}
        self.p["norm.weight"] = target.final.clone()
        self.use_masters()

    def use_masters(self):
        """The next passes see the masters as they now are."""
        self.w = {n: Quantised.apply(t.requires_grad_()) if t.dim() == 2 else t.requires_grad_() for n, t in self.p.items()}

    def shapes(self):
        """(name, shape, scale of random values or 0, fill) of all tensors but `norm.weight`."""
        h, q, kv, first = self.cfg.hidden, HEADS * DIM, KV_HEADS * DIM, self.first_width()
        yield "fc.weight", (h, len(BOUNDARIES) * h), (len(BOUNDARIES) * h) ** -0.5, 0
        yield "norm.weight", (h,), 0, 1.0
        for i in range(self.num_layers):
            base, inputs = f"layers.{i}.", first if i == 0 else h
            for name in ("input_layernorm", "post_attention_layernorm"):
                yield f"{base}{name}.weight", (h,), 0, 1.0
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                yield f"{base}self_attn.{name}_proj.weight", (rows, inputs), inputs ** -0.5, 0
            yield f"{base}self_attn.o_proj.weight", (h, q), 0.2 * q ** -0.5, 0
            for name in ("gate", "up"):
                yield f"{base}mlp.{name}_proj.weight", (self.inter, h), h ** -0.5, 0
            yield f"{base}mlp.down_proj.weight", (h, self.inter), 0.2 * self.inter ** -0.5, 0

    def heads_of(self, x, name, at=None):
        """x through q, k or v, as heads [..., heads, DIM]; rotated to the positions `at` if they are given."""
        y = F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))
        y = y.view(*x.shape[:-1], -1, DIM)
        norm = self.w.get(name.replace("_proj", "_norm") + ".weight")
        if norm is not None:
            y = M.norm(y, norm)
        return y if at is None else M.rotate(y, self.cos[at][..., None, :], self.sin[at][..., None, :])

    def finish(self, i, x, attended):
        """The residual stream x after the rest of layer i."""
        base = f"layers.{i}."
        x = x + F.linear(attended.flatten(-2), self.w[base + "self_attn.o_proj.weight"], self.w.get(base + "self_attn.o_proj.bias"))
        m = M.norm(x, self.w[base + "post_attention_layernorm.weight"])
        m = F.silu(F.linear(m, self.w[base + "mlp.gate_proj.weight"])) * F.linear(m, self.w[base + "mlp.up_proj.weight"])
        return x + F.linear(m, self.w[base + "mlp.down_proj.weight"])

    def logits(self, y):
        return F.linear(M.norm(y, self.w["norm.weight"]), self.unembed)

    def layer_config(self):
        c = self.cfg
        return {"hidden_act": "silu", "hidden_size": c.hidden, "intermediate_size": self.inter, "num_hidden_layers": self.num_layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM, "vocab_size": c.vocab, "rms_norm_eps": 1e-05, "max_position_embeddings": 131072,
                "layer_types": ["full_attention"] * self.num_layers,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": c.theta, "factor": c.factor, "original_max_position_embeddings": c.original, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        state = {n: (M.mxfp4_round(t.detach()) if t.dim() == 2 else t.detach()).bfloat16().cpu().contiguous() for n, t in self.p.items()}
        save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config(), f, indent=2)
            f.write("\n")

    def read(self, folder):
        for name, t in load_file(os.path.join(folder, "model.safetensors")).items():
            self.p[name] = t.float().to(self.device)
        self.use_masters()


class Eagle(Head):
    """EAGLE-3: one layer over pairs (t_{P+1}, feature of P); slot s + 1 takes slot s's output as its feature."""
    kind, slots, inter = "eagle3", 3, 736

    def first_width(self):
        return 2 * self.cfg.hidden

    def shapes(self):
        yield from super().shapes()
        yield "input_norm.weight", (len(BOUNDARIES) * self.cfg.hidden,), 0, 1.0
        yield "layers.0.hidden_norm.weight", (self.cfg.hidden,), 0, 1.0

    def calibrate(self, taps):
        """Gives every boundary the same weight at first, however large its values are."""
        sizes = taps.float().pow(2).mean(tuple(range(taps.dim() - 1))).view(len(BOUNDARIES), -1).mean(-1).sqrt()
        self.p["input_norm.weight"] = (sizes.mean() / sizes).repeat_interleave(self.cfg.hidden).to(self.device)
        self.use_masters()

    def pair(self, tokens, h):
        return torch.cat((M.norm(self.embed[tokens], self.w["layers.0.input_layernorm.weight"]), h), -1)

    def forward(self, ids, taps, rows, slots=0):
        """ids [D, N], taps [D, N, 3 hidden], base positions rows [D, R]: logits of every slot [D, R, vocab]."""
        g = F.linear(M.norm(taps.float(), self.w["input_norm.weight"]), self.w["fc.weight"])
        h = M.norm(g, self.w["layers.0.hidden_norm.weight"])
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.pair(ids.roll(-1, 1), h)
        k, v = self.heads_of(x, "layers.0.self_attn.k_proj", at)[:, :, 0], self.heads_of(x, "layers.0.self_attn.v_proj")[:, :, 0]
        hidden = at > rows[..., None]  # [D, R, N]
        x, h, own_k, own_v, out = pick(x, rows), pick(h, rows), [], [], []
        for s in range(slots or self.slots):
            if s:
                h = M.norm(y, self.w["layers.0.hidden_norm.weight"])
                x = self.pair(pick(ids, rows + 1 + s), h)
                own_k.append(self.heads_of(x, "layers.0.self_attn.k_proj", rows + s)[:, :, 0])
                own_v.append(self.heads_of(x, "layers.0.self_attn.v_proj")[:, :, 0])
            q = self.heads_of(x, "layers.0.self_attn.q_proj", rows + s) * DIM ** -0.5
            scores = torch.einsum("drhk,dnk->drhn", q, k).masked_fill(hidden[:, :, None], float("-inf"))
            scores = torch.cat([scores] + [torch.einsum("drhk,drk->drh", q, own)[..., None] for own in own_k], -1).softmax(-1)
            a = torch.einsum("drhn,dnk->drhk", scores[..., :len(at)], v)
            for j, own in enumerate(own_v):
                a = a + scores[..., len(at) + j, None] * own[:, :, None]
            y = self.finish(0, h, a)
            out.append(self.logits(y))
        return out

    def config(self):
        return {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": self.cfg.vocab, "eagle_aux_hidden_state_layer_ids": list(BOUNDARIES),
                "norm_before_fc": True, "norm_before_residual": True, "norm_output": False, "fc_norm": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
                "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": self.slots}], "verifier": {"architectures": ["GptOssForCausalLM"], "name_or_path": "models/tiny"}},
                "transformer_layer_config": {"model_type": "llama", "attention_bias": False, **self.layer_config()}}


class DFlash(Head):
    """DFlash: the block [t_{P+1}, MASK, ...] sees the features of the context and all of itself, in one pass."""
    kind, slots, num_layers, inter = "dflash", 5, 2, 320

    def first_width(self):
        return self.cfg.hidden

    def shapes(self):
        yield from super().shapes()
        h = self.cfg.hidden
        yield "hidden_norm.weight", (h,), 0, 1.0
        for i in range(self.num_layers):
            base = f"layers.{i}.self_attn."
            for name, rows in (("q", HEADS * DIM), ("k", KV_HEADS * DIM), ("v", KV_HEADS * DIM), ("o", h)):
                yield f"{base}{name}_proj.bias", (rows,), 0, 0.0
            for name in "qk":
                yield f"{base}{name}_norm.weight", (DIM,), 0, 1.0

    def calibrate(self, taps):
        sizes = taps.float().pow(2).mean(tuple(range(taps.dim() - 1))).view(len(BOUNDARIES), -1).mean(-1).sqrt()
        self.p["fc.weight"] = (self.p["fc.weight"].detach() * (sizes.mean() / sizes).repeat_interleave(self.cfg.hidden).to(self.device))
        self.use_masters()

    def forward(self, ids, taps, rows, slots=0):
        """As Eagle.forward; the block holds all slots, of which the first `slots` are returned."""
        f = M.norm(F.linear(taps.float(), self.w["fc.weight"]), self.w["hidden_norm.weight"])
        at = torch.arange(ids.shape[1], device=ids.device)
        hidden = (at > rows[..., None])[:, :, None, None]  # [D, R, 1, 1, N]
        block = torch.arange(self.slots + 1, device=ids.device)
        places = rows[..., None] + 1 + block  # [D, R, B]
        tokens = torch.where(block == 0, pick(ids, rows + 1)[..., None], MASK_ID)
        x = self.embed[tokens]
        for i in range(self.num_layers):
            base = f"layers.{i}.self_attn."
            k, v = self.heads_of(f, base + "k_proj", at)[:, :, 0], self.heads_of(f, base + "v_proj")[:, :, 0]
            u = M.norm(x, self.w[f"layers.{i}.input_layernorm.weight"])
            q = self.heads_of(u, base + "q_proj", places) * DIM ** -0.5
            own_k, own_v = self.heads_of(u, base + "k_proj", places)[:, :, :, 0], self.heads_of(u, base + "v_proj")[:, :, :, 0]
            scores = torch.einsum("drbhk,dnk->drbhn", q, k).masked_fill(hidden, float("-inf"))
            scores = torch.cat((scores, torch.einsum("drbhk,drmk->drbhm", q, own_k)), -1).softmax(-1)
            a = torch.einsum("drbhn,dnk->drbhk", scores[..., :len(at)], v) + torch.einsum("drbhm,drmk->drbhk", scores[..., len(at):], own_v)
            x = self.finish(i, x, a)
        return list(self.logits(x[:, :, 1:1 + (slots or self.slots)]).unbind(2))

    def config(self):
        return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "attention_bias": True, "block_size": self.slots + 1, "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [b - 1 for b in BOUNDARIES]},
                "num_target_layers": self.cfg.layers, "tie_word_embeddings": False, "torch_dtype": "bfloat16", **self.layer_config()}


KINDS = {"eagle3": Eagle, "dflash": DFlash}
