"""The exported model in plain torch, from the files alone: greedy generation in batches with a KV cache.

FP32 by default. Every expert is computed for every token and weighted by the router, which is simple and, at
this size, quick enough; `logits` is the whole-sequence form that the checks use.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import model as M

LUT = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def mxfp4_decode(blocks, scales):
    """blocks [..., n, 16] and scales [..., n] to FP32 [..., 32 n]."""
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()
    return (LUT[codes] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


class Plain:
    def __init__(self, folder, device="cpu", dtype=torch.float32):
        c = json.load(open(os.path.join(folder, "config.json")))
        w = load_file(os.path.join(folder, "model.safetensors"))
        to = lambda t: t.to(dtype).to(device)
        self.device, self.dtype, self.c = device, dtype, c
        self.cfg = M.Config(c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["num_local_experts"], c["num_experts_per_tok"], c["intermediate_size"], c["sliding_window"])
        self.embed, self.final, self.head = to(w["model.embed_tokens.weight"]), w["model.norm.weight"].float().to(device), to(w["lm_head.weight"])
        self.layers = []
        for i in range(self.cfg.layers):
            p = f"model.layers.{i}."
            a = p + "self_attn."
            get = lambda n: to(w[n])
            e = p + "mlp.experts."
            self.layers.append(dict(
                w_in=w[p + "input_layernorm.weight"].float().to(device), w_post=w[p + "post_attention_layernorm.weight"].float().to(device),
                wqkv=torch.cat([get(a + x + "_proj.weight") for x in "qkv"]), bqkv=torch.cat([get(a + x + "_proj.bias") for x in "qkv"]), wo=get(a + "o_proj.weight"), bo=get(a + "o_proj.bias"), sinks=w[a + "sinks"].float().to(device),
                wr=w[p + "mlp.router.weight"].float().to(device), br=w[p + "mlp.router.bias"].float().to(device),
                gu=to(mxfp4_decode(w[e + "gate_up_proj_blocks"], w[e + "gate_up_proj_scales"])), bgu=get(e + "gate_up_proj_bias"), dn=to(mxfp4_decode(w[e + "down_proj_blocks"], w[e + "down_proj_scales"])), bdn=get(e + "down_proj_bias"),
                window=c["layer_types"][i] == "sliding_attention"))
        self.cos, self.sin = M.rope_table(self.cfg, 8192, device)

    def experts(self, l, x):
        """x [n, hidden] after the layer's attention: the experts' sum."""
        t = M.norm(x.float(), l["w_post"])
        top, ids = F.linear(t, l["wr"], l["br"]).topk(self.cfg.active, -1)
        weight = torch.zeros(x.shape[0], self.cfg.experts, device=x.device).scatter_(1, ids, top.softmax(-1))
        t = t.to(self.dtype)
        out = torch.zeros_like(x)
        if x.shape[0] > 1024 or (x.shape[0] > 8 and x.device.type == "cpu"):
            for e in range(self.cfg.experts):
                rows = weight[:, e].nonzero()[:, 0]
                if len(rows):
                    out.index_add_(0, rows, (self.expert(l, t[rows], e) * weight[rows, e, None]).to(out.dtype))
            return out
        h = torch.einsum("nh,eih->eni", t, l["gu"]) + l["bgu"][:, None]
        g, u = h[..., ::2].clamp(max=7.0), h[..., 1::2].clamp(-7.0, 7.0)
        y = torch.einsum("eni,ehi->enh", g * torch.sigmoid(1.702 * g) * (u + 1), l["dn"]) + l["bdn"][:, None]
        return (y * weight.t()[..., None].to(y.dtype)).sum(0)

    def expert(self, l, t, e):
        h = F.linear(t, l["gu"][e], l["bgu"][e])
        g, u = h[:, ::2].clamp(max=7.0), h[:, 1::2].clamp(-7.0, 7.0)
        return F.linear(g * torch.sigmoid(1.702 * g) * (u + 1), l["dn"][e], l["bdn"][e])

    def forward(self, ids, positions, cache, slots, visible, boundaries=None):
        """ids and positions [B, n]; writes keys and values at cache slots; visible [B, n, slots] per kind of layer.

        A list `boundaries` gets the residual stream before every layer and after the last."""
        cfg = self.cfg
        B, n = ids.shape
        x = self.embed[ids]
        cos, sin = self.cos[positions][:, :, None], self.sin[positions][:, :, None]
        rows = torch.arange(B, device=ids.device)[:, None]
        for l, (ck, cv) in zip(self.layers, cache):
            if boundaries is not None:
                boundaries.append(x)
            t = M.norm(x.float(), l["w_in"]).to(self.dtype)
            q, k, v = F.linear(t, l["wqkv"], l["bqkv"]).view(B, n, -1, cfg.head_dim).split((cfg.heads, cfg.kv_heads, cfg.kv_heads), 2)
            q, k = M.rotate(q, cos, sin), M.rotate(k, cos, sin)
            ck[rows, slots], cv[rows, slots] = k, v
            m = visible[int(l["window"])].shape[-1]
            q = q.view(B, n, cfg.kv_heads, -1, cfg.head_dim)
            s = torch.einsum("bnkgd,bmkd->bkgnm", q.float(), ck[:, :m].float()) * cfg.head_dim ** -0.5
            s = s.masked_fill(~visible[int(l["window"])][:, None, None], float("-inf"))
            sink = l["sinks"].view(1, cfg.kv_heads, -1, 1, 1).expand(B, -1, -1, n, 1)
            p = torch.cat((s, sink), -1).softmax(-1)[..., :-1]
            a = torch.einsum("bkgnm,bmkd->bnkgd", p, cv[:, :m].float()).reshape(B, n, -1).to(self.dtype)
            x = x + F.linear(a, l["wo"], l["bo"])
            x = x + self.experts(l, x.view(B * n, -1)).view_as(x)
        if boundaries is not None:
            boundaries.append(x)
        return x

    def new_cache(self, B, length):
        shape = (B, length, self.cfg.kv_heads, self.cfg.head_dim)
        return [(torch.zeros(shape, device=self.device, dtype=self.dtype), torch.zeros(shape, device=self.device, dtype=self.dtype)) for _ in self.layers]

    def masks(self, query, keys):
        full = keys[None, None] <= query[..., None]
        return {0: full, 1: full & (query[..., None] - keys[None, None] < self.cfg.window)}

    def unembed(self, x):
        return F.linear(M.norm(x.float(), self.final).to(self.dtype), self.head).float()

    @torch.no_grad()
    def logits(self, ids):
        """ids [n] to logits [n, vocab]."""
        at = torch.arange(len(ids), device=self.device)[None]
        x = self.forward(ids[None].to(self.device), at, self.new_cache(1, len(ids)), at, self.masks(at, at[0]))
        return self.unembed(x)[0]

    @torch.no_grad()
    def generate(self, prompts, stops, max_new):
        """Greedy continuations of lists of ids; a list ends with its stop token."""
        B = len(prompts)
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        longest = int(lengths.max())
        ids = torch.zeros(B, longest, dtype=torch.long, device=self.device)
        for i, p in enumerate(prompts):
            ids[i, :len(p)] = torch.tensor(p, device=self.device)
        cache = self.new_cache(B, longest + max_new)
        at = torch.arange(longest, device=self.device)[None].expand(B, -1)
        x = self.forward(ids, at, cache, at, self.masks(at, at[0]))
        nxt = self.unembed(x[torch.arange(B, device=self.device), lengths - 1]).argmax(-1)
        stop = torch.tensor(stops, device=self.device)
        keys = torch.arange(longest + max_new, device=self.device)
        out = torch.full((B, max_new), stops[0], device=self.device)
        rows = torch.arange(B, device=self.device)  # the prompts still going
        out[:, 0] = nxt
        for step in range(max_new - 1):
            if step % 8 == 0:
                going = ~torch.isin(out[rows, :step + 1], stop).any(-1)
                if not going.any():
                    break
                if going.float().mean() < 0.8:
                    rows, nxt, lengths = rows[going], nxt[going], lengths[going]
                    cache = [(k[going], v[going]) for k, v in cache]
            pos = (lengths + step)[:, None]
            visible = self.masks(pos, keys[:longest + step + 1])
            x = self.forward(nxt[:, None], pos, cache, pos, visible)
            nxt = self.unembed(x[:, 0]).argmax(-1)
            out[rows, step + 1] = nxt
        rows = out.tolist()
        for i, r in enumerate(rows):
            end = next((j for j, t in enumerate(r) if t in stops), len(r) - 1)
            rows[i] = r[:end + 1]
        return rows
