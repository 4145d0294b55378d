"""The gpt-oss architecture for training: packed rows, MXFP4 experts in the loop, flex attention with sinks.

Parameters are stacked over layers, FP32 masters; matrices enter the products as BF16, expert matrices as
the BF16 values of their MXFP4 codes (straight-through gradients), all other weights rounded to BF16. Inside,
the gate rows of an expert come first and the up rows after them; the files interleave them (see export.py).
"""
import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    experts: int = 16
    active: int = 4
    inter: int = 256
    window: int = 128
    theta: float = 150000.0
    factor: float = 32.0
    original: int = 4096


def rope_table(cfg, length, device):
    """cos and sin [length, head_dim / 2] of untruncated YaRN, scaled by 0.1 ln(factor) + 1."""
    half = cfg.head_dim // 2
    i = torch.arange(half, dtype=torch.float64)
    freq = cfg.theta ** (2 * i / cfg.head_dim)
    low = half * math.log(cfg.original / (32.0 * 2 * math.pi)) / math.log(cfg.theta)
    high = half * math.log(cfg.original / (1.0 * 2 * math.pi)) / math.log(cfg.theta)
    ramp = ((i - low) / (high - low)).clamp(0, 1)
    inv = ramp / (cfg.factor * freq) + (1 - ramp) / freq
    angle = torch.arange(length, dtype=torch.float64)[:, None] * inv[None]
    m = 0.1 * math.log(cfg.factor) + 1
    return (angle.cos() * m).float().to(device), (angle.sin() * m).float().to(device)


def mxfp4_exponents(blocks):
    """Scale exponents of blocks [..., 32]: the least 2^e at which the greatest magnitude is at most 6."""
    amax = blocks.abs().amax(-1, keepdim=True)
    bits = (amax / 6.0).contiguous().view(torch.int32)
    return (((bits + 0x007FFFFF) >> 23) - 127).clamp(-120, 120)


def mxfp4_round(w):
    """w [..., K] to the nearest values of MXFP4 in blocks of 32 along K, ties to even."""
    b = w.float().reshape(*w.shape[:-1], w.shape[-1] // 32, 32)
    scale = ((mxfp4_exponents(b) + 127) << 23).view(torch.float32)
    x = b / scale
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2.0, 0.5, torch.where(a < 4.0, 1.0, 2.0))
    q = torch.round(a / step) * step * torch.sign(x)
    return (q * scale).reshape(w.shape)


class FakeQuant(torch.autograd.Function):
    """MXFP4 rounding to BF16 with a straight-through gradient."""

    @staticmethod
    def forward(ctx, w):
        return mxfp4_round(w).bfloat16()

    @staticmethod
    def backward(ctx, g):
        return g.float()


class Dispatch(torch.autograd.Function):
    """Rows of t [T, H] copied to their experts' places [4T, H]; the gradient gathers them back."""

    @staticmethod
    def forward(ctx, t, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return t[order // k]

    @staticmethod
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return g[inverse].view(-1, ctx.k, g.shape[-1]).sum(1), None, None, None


class Permute(torch.autograd.Function):
    """d[inverse], with the gradient g[order]."""

    @staticmethod
    def forward(ctx, d, order, inverse):
        ctx.save_for_backward(order)
        return d[inverse]

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return g[order], None, None


class ExpertBias(torch.autograd.Function):
    """x + bias[expert]; the bias gradient is one product with the one-hot experts."""

    @staticmethod
    def forward(ctx, x, bias, expert):
        ctx.save_for_backward(expert)
        ctx.num = bias.shape[0]
        return x + bias[expert].to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (expert,) = ctx.saved_tensors
        hot = (expert[:, None] == torch.arange(ctx.num, device=expert.device)[None]).to(g.dtype)
        return g, (hot.t() @ g).float(), None


def norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def rounded(p):
    """A small weight as the file will hold it: BF16 values, FP32 arithmetic, straight-through."""
    return p + (p.bfloat16().float() - p).detach()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def attention_in(x, w_norm, wq, bq, wk, bk, wv, bv, cos, sin, dims):
    """Norm, QKV and rotary: x [B, S, H] to q [B, heads, S, D], k and v [B, kv_heads, S, D]."""
    heads, kv_heads, dim = dims
    t = norm(x, rounded(w_norm)).bfloat16()
    w = torch.cat((wq, wk, wv)).bfloat16()
    b = torch.cat((bq, bk, bv)).bfloat16()
    qkv = F.linear(t, w, b).view(*x.shape[:2], heads + 2 * kv_heads, dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), 2)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)


def block_rest(x, a, lse, sinks, wo, bo, w_norm, wr, br, gate_up, b_gate_up, down, b_down, active):
    """Sinks, output projection, router and experts: the residual stream after the layer, and the balance loss."""
    a = a * torch.sigmoid(lse - rounded(sinks)[None, :, None])[..., None].to(a.dtype)
    a = a.transpose(1, 2).reshape(*x.shape[:2], -1)
    x = x + F.linear(a, wo.bfloat16(), bo.bfloat16())
    t32 = norm(x, rounded(w_norm)).view(-1, x.shape[-1])
    logits = F.linear(t32, rounded(wr), rounded(br))
    top, ids = logits.topk(active, -1)
    weights = top.softmax(-1)
    num_experts = wr.shape[0]
    flat = ids.view(-1)
    order = torch.argsort(flat.to(torch.uint8), stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    expert = flat[order]
    counts = (flat[:, None] == torch.arange(num_experts, device=flat.device)[None]).sum(0)
    ends = counts.cumsum(0).to(torch.int32)
    rows = Dispatch.apply(t32.bfloat16(), order, inverse, active)
    h = ExpertBias.apply(torch._grouped_mm(rows, gate_up.transpose(-2, -1), offs=ends), rounded(b_gate_up), expert).float()
    g, u = h.chunk(2, -1)
    g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
    h = (g * torch.sigmoid(1.702 * g) * (u + 1)).bfloat16()
    d = ExpertBias.apply(torch._grouped_mm(h, down.transpose(-2, -1), offs=ends), rounded(b_down), expert)
    y = (Permute.apply(d, order, inverse).view(-1, active, x.shape[-1]).float() * weights[..., None]).sum(1)
    share = counts.float() / flat.numel()
    balance = num_experts * (share * logits.softmax(-1).mean(0)).sum()
    return x + y.view_as(x), balance


def head_loss(x, w_norm, head, where, target):
    """Cross-entropy at the flat places `where` with labels `target` (-1: none): (sum, number right per place)."""
    t = norm(x.view(-1, x.shape[-1])[where], rounded(w_norm)).bfloat16()
    logits = F.linear(t, head.bfloat16()).float()
    loss = F.cross_entropy(logits, target, ignore_index=-1, reduction="sum")
    return loss, logits.argmax(-1) == target


def dense_attention(q, k, v, mask):
    """The plain form for small tests: output without sinks, and the log-sum-exp."""
    rep = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
    s = (q.float() @ k.float().transpose(-1, -2)) * q.shape[-1] ** -0.5
    s = s.masked_fill(~mask[:, None], float("-inf"))
    return (s.softmax(-1) @ v.float()).to(q.dtype), s.logsumexp(-1)


class Model(torch.nn.Module):
    """Parameters and forward pass; `attend(layer, q, k, v)` returns the attention output and its log-sum-exp."""

    def __init__(self, cfg, seed=1):
        super().__init__()
        self.cfg = cfg
        g = torch.Generator().manual_seed(seed)
        L, H, E, I = cfg.layers, cfg.hidden, cfg.experts, cfg.inter
        Q, K = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim

        def normal(std, *shape):
            return torch.nn.Parameter(torch.randn(*shape, generator=g) * std)

        def const(value, *shape):
            return torch.nn.Parameter(torch.full(shape, value))

        s = H ** -0.5
        self.embed, self.head, self.w_final = normal(1.0, cfg.vocab, H), normal(0.5 * s, cfg.vocab, H), const(1.0, H)
        self.w_in, self.w_post, self.sinks = const(1.0, L, H), const(1.0, L, H), const(0.0, L, cfg.heads)
        self.wq, self.wk, self.wv, self.wo = normal(s, L, Q, H), normal(s, L, K, H), normal(s, L, K, H), normal(0.2 * Q ** -0.5, L, H, Q)
        self.bq, self.bk, self.bv, self.bo = const(0.0, L, Q), const(0.0, L, K), const(0.0, L, K), const(0.0, L, H)
        self.wr, self.br = normal(0.3 * s, L, E, H), const(0.0, L, E)
        self.gate_up, self.down = normal(s, L, E, 2 * I, H), normal(0.2 * I ** -0.5, L, E, H, I)
        self.b_gate_up, self.b_down = const(0.0, L, E, 2 * I), const(0.0, L, E, H)
        self.attention_in, self.block_rest, self.head_loss, self.quant = attention_in, block_rest, head_loss, FakeQuant.apply

    def compile(self):
        self.attention_in, self.block_rest, self.head_loss = torch.compile(attention_in), torch.compile(block_rest), torch.compile(head_loss)
        self.quant = torch.compile(FakeQuant.apply)

    def trunk(self, ids, cos, sin, attend):
        """ids [B, S], cos and sin [B, S, D / 2]: the residual stream after the last layer and the balance loss."""
        cfg = self.cfg
        x = F.embedding(ids, self.embed).bfloat16().float()
        dims = (cfg.heads, cfg.kv_heads, cfg.head_dim)
        stacks = [p.unbind(0) for p in (self.w_in, self.wq, self.bq, self.wk, self.bk, self.wv, self.bv)]
        rest = [p.unbind(0) for p in (self.sinks, self.wo, self.bo, self.w_post, self.wr, self.br, self.quant(self.gate_up), self.b_gate_up, self.quant(self.down), self.b_down)]
        balance = 0.0
        for i in range(cfg.layers):
            q, k, v = self.attention_in(x, *(s[i] for s in stacks), cos, sin, dims)
            a, lse = attend(i, q, k, v)
            x, b = self.block_rest(x, a, lse, *(s[i] for s in rest), cfg.active)
            balance = balance + b
        return x, balance / cfg.layers


class FlexMasks:
    """Block masks of packed rows for flex attention: causal within documents, full and with the window.

    The tensors are made once and refilled for every batch, so that compiled code is never compiled again.
    """

    def __init__(self, cfg, batch, length, device):
        from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
        self.block_mask, self.window = BlockMask, cfg.window
        self.scale = cfg.head_dim ** -0.5
        n = length // 128
        self.n = n
        self.starts = torch.zeros(batch, length, dtype=torch.int32, device=device)
        starts = self.starts

        def full(b, h, q, k):
            return (k <= q) & (k >= starts[b, q])

        def sliding(b, h, q, k):
            return (k <= q) & (k >= starts[b, q]) & (q - k < cfg.window)

        self.mods = (sliding, full)
        self.masks = [self.build(torch.zeros(batch, n, dtype=torch.int64, device=device), w) for w in (0, 1)]
        flex = torch.compile(flex_attention)
        self.call = lambda q, k, v, m: flex(q, k, v, block_mask=m, scale=self.scale, enable_gqa=True, return_aux=AuxRequest(lse=True))

    def build(self, first, which):
        """Masks from the first block that each block of queries may need."""
        n = self.n
        at = torch.arange(n, device=first.device)
        if which == 0:
            first = torch.maximum(first, (at - (self.window + 126) // 128)[None])
        count = (at[None] - first + 1).to(torch.int32)[:, None]
        allowed = (at[None, None] >= first[..., None]) & (at[None, None] <= at[None, :, None])
        index = torch.argsort((~allowed).to(torch.int8), dim=-1, stable=True).to(torch.int32)[:, None]
        return self.block_mask.from_kv_blocks(count, index, BLOCK_SIZE=128, mask_mod=self.mods[which])

    def refill(self, starts):
        self.starts.copy_(starts)
        first = starts[:, ::128].long() // 128
        for which in (0, 1):
            fresh, held = self.build(first, which), self.masks[which]
            for name in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
                getattr(held, name).copy_(getattr(fresh, name))

    def attend(self, layer, q, k, v):
        out, aux = self.call(q, k, v, self.masks[layer % 2])
        return out, aux.lse


class DenseMasks:
    """The same attention by explicit masks, for tests."""

    def __init__(self, cfg, batch, length, device):
        self.window = cfg.window

    def refill(self, starts):
        n = starts.shape[1]
        at = torch.arange(n, device=starts.device)
        full = (at[None, None] <= at[None, :, None]) & (at[None, None] >= starts[..., None])
        self.masks = (full & (at[None, :, None] - at[None, None] < self.window), full)

    def attend(self, layer, q, k, v):
        return dense_attention(q, k, v, self.masks[layer % 2])
