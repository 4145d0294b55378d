#!/usr/bin/env python3
"""Trains a draft head of the embedded model (EAGLE-3 or DFlash) on conversations of the generator.

    train_draft.py --kind eagle3 --minutes 19 --tokens 3072 --longest 640 --reuse 8 --out models/tiny/eagle3     on one core
    train_draft.py --kind dflash --minutes 8 --device cuda --reuse 2 --tokens 65536 --keep 100 --out models/tiny/dflash
    train_draft.py --kind dflash --produce --cache /tmp/batches --minutes 15         a second process makes the batches
    train_draft.py --kind eagle3 --check --out models/tiny/eagle3 --moxie build/release/moxie

Labels are the target's own distribution (its eight likeliest tokens) at the places that the assistant writes,
half of it moved to the likeliest token, which is what greedy decoding verifies. EAGLE-3 is trained by its own
rollout: later slots see the outputs of earlier ones. The target's features are computed without gradients and
kept for several steps, at other random base positions each time. The learning rate follows the clock.
"""
import argparse
import json
import os
import random
import subprocess
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file

import draft_heads
import generate
import model as M
import pack
from plain import Plain
from train import orthogonal, rate_at

TOP = 8


class Target:
    """The embedded model, its tokenizer, and what heads learn from it."""

    def __init__(self, folder, device):
        self.device = device
        self.plain = Plain(folder, device, torch.float32)
        self.enc = pack.Encoder(os.path.join(folder, "tokenizer.json"))

    @torch.no_grad()
    def batch(self, docs):
        """docs of (ids, labels): ids [D, N], taps, written [D, N] (the assistant wrote the next token), top ids and shares."""
        longest = max(len(ids) for ids, _ in docs)
        ids = torch.full((len(docs), longest), self.enc.pad)
        written = torch.zeros(len(docs), longest, dtype=torch.bool)
        for i, (row, labels) in enumerate(docs):
            ids[i, :len(row)] = torch.tensor(row)
            written[i, :len(row)] = torch.tensor(labels) >= 0
        ids, written = ids.to(self.device), written.to(self.device)
        taps, last = self.features(ids)
        top = torch.zeros(*ids.shape, TOP, dtype=torch.long, device=self.device)
        share = torch.zeros(*ids.shape, TOP, device=self.device)
        values, top[written] = self.plain.unembed(last[written]).topk(TOP, -1)
        share[written] = values.softmax(-1)
        return {"ids": ids, "taps": taps.half(), "written": written, "top": top, "share": share}

    @torch.no_grad()
    def features(self, ids):
        """The taps [D, N, 3 hidden] of ids [D, N], and the residual stream after the last layer."""
        at = torch.arange(ids.shape[1], device=self.device)[None].expand(len(ids), -1)
        boundaries = []
        last = self.plain.forward(ids, at, self.plain.new_cache(*ids.shape), at, self.plain.masks(at, at[0]), boundaries)
        return torch.cat([boundaries[b] for b in draft_heads.BOUNDARIES], -1), last


def documents(enc, seed, longest):
    """Endless (ids, labels) of conversations: every task as often as the root of its weight, most at high effort."""
    rng = random.Random(seed)
    weights = [w ** 0.5 for w in generate.WEIGHTS]
    while True:
        efforts = rng.choices(generate.EFFORTS, (0.1, 0.2, 0.7), k=256)
        made = [generate.single(rng, generate.sample_of(rng.choices(generate.NAMES, weights)[0], rng, e), e) for e in efforts]
        docs = sorted((d for d in enc.many(made) if len(d[0]) <= longest), key=lambda d: len(d[0]))
        yield docs


def batches(target, seed, longest, tokens):
    """Batches of documents of like lengths, of at most so many padded tokens, in random order."""
    rng = random.Random(seed)
    for docs in documents(target.enc, seed, longest):
        parts, part = [], []
        for d in docs:
            if part and (len(part) + 1) * len(d[0]) > tokens:
                parts.append(part)
                part = []
            part.append(d)
        parts += [part] if part else []
        rng.shuffle(parts)
        for part in parts:
            yield target.batch(part)


def produce(args, target):
    """Writes batches into the folder `--cache` until the minutes are over."""
    os.makedirs(args.cache, exist_ok=True)
    began, num = time.time(), 0
    for batch in batches(target, args.seed, args.longest, args.tokens):
        path = os.path.join(args.cache, f"{args.seed}_{num:05d}.pt")
        torch.save(batch, path + ".tmp")
        os.rename(path + ".tmp", path)
        num += 1
        if time.time() - began > args.minutes * 60 or num == args.steps:
            break
    print(f"{num} batches in {args.cache}")


class Cached:
    """Batches from a folder that another process fills; `fresh` gives one that has not been seen, or None."""

    def __init__(self, folder, device):
        self.folder, self.device, self.seen = folder, device, set()

    def fresh(self, wait=False):
        while True:
            found = sorted(f for f in os.listdir(self.folder) if f.endswith(".pt") and f not in self.seen)
            if found:
                self.seen.add(found[0])
                return torch.load(os.path.join(self.folder, found[0]), map_location=self.device)
            if not wait:
                return None
            time.sleep(0.5)


def bases(written, most):
    """Base positions [D, R] with a slot to learn, at most so many a document at random, and which are real."""
    good = written & torch.cat((written[:, 1:], torch.zeros_like(written[:, :1])), 1)
    order = torch.where(good, torch.rand(good.shape, device=good.device), -1.0)
    count = min(most, int(good.sum(1).max()))
    value, rows = order.topk(count, 1)
    return rows, value >= 0


def slot_masks(written, rows, real, slots):
    """For every slot, the rows [D, R] from which the assistant wrote every token up to the slot's."""
    masks = []
    for s in range(slots):
        place = rows + 1 + s
        real = real & draft_heads.pick(written, place) & (place < written.shape[1])
        masks.append(real)
    return masks


def loss_of(head, batch, rows, real, decay):
    """The weighted loss of all slots, and the share of each slot's rows whose likeliest token is the target's."""
    out = head.forward(batch["ids"], batch["taps"], rows)
    total, right = 0.0, []
    for s, (logits, mask) in enumerate(zip(out, slot_masks(batch["written"], rows, real, head.slots))):
        place = rows + 1 + s
        top, share = draft_heads.pick(batch["top"], place)[mask], draft_heads.pick(batch["share"], place)[mask]
        share = 0.5 * share
        share[:, 0] += 0.5
        logits = logits[mask]
        total = total + decay ** s * (logits.logsumexp(-1) - (logits.gather(-1, top) * share).sum(-1)).sum() / max(1, len(logits))
        right.append((logits.detach().argmax(-1) == top[:, 0]).float().mean())
    return total / sum(decay ** s for s in range(head.slots)), right


@torch.no_grad()
def accepted(head, ids, taps, start):
    """Of one text whose tokens from `start` on were written: drafts accepted from every base position on."""
    rows = torch.arange(start - 1, ids.shape[1] - 2, device=ids.device)[None]
    drafts = torch.stack([o.argmax(-1)[0] for o in head.forward(ids, taps, rows)], -1)
    places = rows[0][:, None] + 2 + torch.arange(head.slots, device=ids.device)
    real = torch.where(places < ids.shape[1], ids[0][places.clamp(max=ids.shape[1] - 1)], -1)
    return (drafts == real).long().cumprod(-1).sum(-1).tolist()


def steps_of(counts):
    """Steps of verification that a text takes: (tokens emitted after the first, steps)."""
    at = steps = 0
    while at < len(counts):
        at += 1 + counts[at]
        steps += 1
    return at, steps


class Muon:
    """Momentum orthogonalised matrix by matrix, for the matrices of a head; Adam for its vectors."""

    def __init__(self, head, rate):
        self.head, self.rate = head, rate
        self.moment = {n: torch.zeros_like(t) for n, t in head.p.items() if t.dim() == 2}
        self.adam = torch.optim.Adam([t for t in head.p.values() if t.dim() == 1], lr=0.004, betas=(0.9, 0.95))
        self.dtype = torch.bfloat16 if head.device.type == "cuda" else torch.float32

    @torch.no_grad()
    def step(self, share):
        for name, m in self.moment.items():
            p = self.head.p[name]
            m.lerp_(p.grad, 0.05)
            u = orthogonal(torch.lerp(p.grad, m, 0.95)[None], self.dtype)[0]
            rate = 0.02 * self.rate * share
            p.mul_(1 - rate * 0.1).add_(u.to(p.dtype), alpha=-rate * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
        self.adam.param_groups[0]["lr"] = 0.004 * self.rate * share
        self.adam.step()
        for p in self.head.p.values():
            p.grad = None


def held_out(target, per_task):
    """Texts of the generator at high effort from seeds of evaluation: (ids, where the assistant begins)."""
    texts = []
    for i, task in enumerate(generate.NAMES):
        rng = random.Random(generate.EVAL_SEED + 500_000 + i)
        for _ in range(per_task):
            s = generate.sample_of(task, rng, "high")
            (ids, labels), = target.enc.many([generate.single(rng, s, "high")])
            if len(ids) <= 1200:
                texts.append((torch.tensor(ids, device=target.device)[None], next(p for p, l in enumerate(labels) if l >= 0) + 1))
    return [(ids, target.features(ids)[0], start) for ids, start in texts]


def train(args, target, device):
    head = draft_heads.KINDS[args.kind](target.plain, device, args.seed)
    began = time.time()
    cached = Cached(args.cache, device) if args.cache else None
    source = batches(target, args.seed, args.longest, args.tokens)
    kept = [cached.fresh(wait=True) if cached else next(source)]
    if args.resume:
        head.read(args.resume)
    else:
        head.calibrate(kept[0]["taps"][kept[0]["written"]])
    print(f"{sum(t.numel() for t in head.p.values())} parameters", flush=True)
    texts = held_out(target, args.per_task)
    optimiser = Muon(head, args.rate)
    rng = random.Random(args.seed)
    begin = time.time()  # the learning rate follows the minutes that are left
    step = learnt = 0
    reported = time.time()
    while time.time() - began < args.minutes * 60 and not (args.steps and step >= args.steps):
        fresh = cached.fresh() if cached else next(source) if step and step % args.reuse == 0 else None
        if fresh:
            kept = (kept + [fresh])[-args.keep:]
        batch = fresh or rng.choice(kept)
        rows, real = bases(batch["written"], args.rows)
        loss, right = loss_of(head, batch, rows, real, args.decay)
        loss.backward()
        fraction = (time.time() - begin) / max(1.0, args.minutes * 60 - (begin - began))
        optimiser.step(rate_at(min(1.0, max(fraction, 0.001)), args.flat))
        head.use_masters()
        step += 1
        learnt += int(real.sum())
        if time.time() - reported > args.report or step == args.steps:
            emitted = [steps_of(accepted(head, *t)) for t in texts]
            print(f"step {step} at {time.time() - began:.0f} s, {learnt} base positions: loss {float(loss.detach()):.3f}, right " + " ".join(f"{float(r):.3f}" for r in right)
                  + f"; held-out tokens a step {sum(a for a, _ in emitted) / sum(b for _, b in emitted):.3f}", flush=True)
            head.write(args.out)
            reported = time.time()
    emitted = [steps_of(accepted(head, *t)) for t in texts]
    head.write(args.out)
    print(f"{step} steps, {learnt} base positions in {time.time() - began:.0f} s; held-out tokens a step {sum(a for a, _ in emitted) / sum(b for _, b in emitted):.3f}; wrote {args.out}")


@torch.no_grad()
def check(args, target, device):
    """Compares Moxie's draft logits and drafted ids with ours on a few conversations: 0 if all agree within 1e-2."""
    head = draft_heads.KINDS[args.kind](target.plain, device)
    head.read(args.out)
    rng = random.Random(generate.EVAL_SEED + 7)
    lists = []
    for task in ("addition", "spell", "json", "calendar"):
        (ids, _), = target.enc.many([generate.single(rng, generate.sample_of(task, rng, "high"), "high")])
        lists.append(ids[:rng.randint(40, 400)])
    with tempfile.TemporaryDirectory() as folder:
        json.dump(lists, open(os.path.join(folder, "ids.json"), "w"))
        out = os.path.join(folder, "out.safetensors")
        subprocess.run([args.moxie, "score", "--device", "cpu", "--model", args.model, "--spec", args.kind, "--spec-model", args.out, "--spec-dtype", args.dtype, "--kernel", "all=reference", "--kv-dtype", "f32", "--ids-file", os.path.join(folder, "ids.json"), "--draft-logits", out], check=True, stdout=subprocess.DEVNULL)
        theirs = load_file(out)
    worst, same = 0.0, True
    for i, row in enumerate(lists):
        ids = torch.tensor(row, device=device)[None]
        taps, last = target.features(ids)
        token = target.plain.unembed(last[0, -1:]).argmax(-1)
        ids = torch.cat((ids, token[None]), 1)
        taps = torch.cat((taps, taps[:, -1:]), 1)
        n = len(row)
        if args.kind == "eagle3":
            ours = head.forward(ids, taps, torch.arange(n, device=device)[None], 1)[0][0]
        else:
            ours = torch.cat([o[0] for o in head.forward(ids, taps, torch.tensor([[n - 1]], device=device))])
        drafts = []
        for slot in range(head.slots):  # a rollout: every slot sees the drafts before it
            drafts.append(head.forward(ids, taps, torch.tensor([[n - 1]], device=device), slot + 1)[slot][0, 0].argmax())
            ids, taps = torch.cat((ids, drafts[-1].view(1, 1)), 1), torch.cat((taps, taps[:, -1:]), 1)
        equal = [int(d) for d in drafts] == theirs[f"draft_ids.{i}"].flatten().tolist()
        same = same and equal
        gap = (ours.cpu() - theirs[f"draft_logits.{i}"]).abs().max().item()
        worst = max(worst, gap)
        print(f"sequence {i}, {n} tokens: greatest difference {gap:.2e}, greatest logit {ours.abs().max().item():.1f}, drafted ids {'equal' if equal else 'differ'}")
    print(f"greatest difference {worst:.2e}")
    return 0 if worst <= 1e-2 and same else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=list(draft_heads.KINDS), required=True)
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--out", default="", help="the head's folder")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (tests)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="scales all learning rates")
    parser.add_argument("--flat", type=float, default=0.3, help="fraction of the run before the rates fall")
    parser.add_argument("--decay", type=float, default=0.8, help="weight of a slot's loss by that of the slot before")
    parser.add_argument("--tokens", type=int, default=6144, help="of a batch, with padding")
    parser.add_argument("--longest", type=int, default=900, help="tokens of a conversation at most")
    parser.add_argument("--rows", type=int, default=48, help="base positions of a conversation at a step")
    parser.add_argument("--reuse", type=int, default=4, help="steps for every new batch")
    parser.add_argument("--keep", type=int, default=200, help="batches to choose from")
    parser.add_argument("--cache", default="", help="folder of batches: --produce writes them, training reads them as they appear (instead of --reuse)")
    parser.add_argument("--produce", action="store_true", help="only write batches into --cache, for either kind")
    parser.add_argument("--report", type=float, default=60.0, help="seconds")
    parser.add_argument("--per-task", type=int, default=2, help="held-out texts of each task")
    parser.add_argument("--resume", default="", help="go on from this head")
    parser.add_argument("--check", action="store_true", help="compare --out with moxie score, and end")
    parser.add_argument("--moxie", default="build/release/moxie")
    parser.add_argument("--dtype", default="bf16", help="of --check: bf16 or mxfp4")
    args = parser.parse_args()
    if not (args.cache if args.produce else args.out):
        parser.error("--produce needs --cache, everything else --out")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    device = torch.device(args.device)
    target = Target(args.model, device)
    if args.check:
        return check(args, target, device)
    if args.produce:
        produce(args, target)
        return 0
    train(args, target, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
