#!/usr/bin/env python3
"""Trains the embedded model on one GPU: generates, packs, trains, exports.

    train.py --minutes 24 --work /tmp/tiny_run --out models/tiny
    train.py --micro --steps 3 --work /tmp/micro      a toy on the CPU, to test the pipeline

Worker processes write packed shards; the trainer reads each once. The learning rate follows the clock (warm-up,
flat, linear to zero), so a run ends when its minutes are over. Checkpoints hold the FP32 masters; `--resume`
goes on from one, or from an exported directory. MXFP4 rounding is in the loop from the first step.
"""
import argparse
import json
import multiprocessing
import os
import queue
import random
import shutil
import threading
import time

import numpy as np
import torch

import export
import generate
import model as M
import pack

MUON = {"wq": 1, "wk": 1, "wv": 1, "wo": 1, "gate_up": 2, "down": 1}  # name: matrices stacked along the rows
ADAM_RATES = {"embed": 0.01, "head": 0.004, "wr": 0.003}
ADAM_DEFAULT = 0.004


def orthogonal(g, dtype=torch.bfloat16):
    """Newton-Schulz steps towards the nearest orthogonal matrices of a stack [N, m, n]."""
    x = g.to(dtype)
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if flip else x


class Muon:
    """Momentum orthogonalised matrix by matrix, with decoupled weight decay."""

    def __init__(self, params, decay=0.1, compiled=False):
        self.params = params
        self.moment = {n: torch.zeros_like(p) for n, p in params.items()}
        self.decay = decay
        self.orthogonal = torch.compile(orthogonal, dynamic=False) if compiled else orthogonal

    @torch.no_grad()
    def step(self, rate, momentum):
        for name, p in self.params.items():
            m = self.moment[name]
            m.lerp_(p.grad, 1 - momentum)
            g = torch.lerp(p.grad, m, momentum)
            rows = p.shape[-2] // MUON[name]
            u = self.orthogonal(g.reshape(-1, rows, p.shape[-1])).view_as(p)
            p.mul_(1 - rate * self.decay).add_(u.to(p.dtype), alpha=-rate * max(1.0, rows / p.shape[-1]) ** 0.5)


def rate_at(fraction, flat):
    """The learning rate's share of its peak at a fraction of the run: warm-up, flat, linear to nearly zero."""
    if fraction < 0.01:
        return fraction / 0.01
    return 1.0 if fraction < flat else max(0.005, (1.0 - fraction) / (1.0 - flat))


class Loader(threading.Thread):
    """Reads shards as they appear and hands out batches as pinned tensors."""

    def __init__(self, folder, batch, device):
        super().__init__(daemon=True)
        self.folder, self.batch, self.device = folder, batch, device
        self.queue = queue.Queue(8)
        self.waiting = 0

    def run(self):
        rows = []
        while os.path.isdir(self.folder):
            names = [f for f in os.listdir(self.folder) if f.endswith(".npy") and ".tmp" not in f]
            self.waiting = len(names)
            if not names:
                time.sleep(0.02)
                continue
            random.shuffle(names)
            for f in names[:16]:
                path = os.path.join(self.folder, f)
                rows += list(np.load(path))
                os.remove(path)
            random.shuffle(rows)
            while len(rows) >= self.batch:
                t = torch.from_numpy(np.stack(rows[:self.batch]).astype(np.int32))
                rows = rows[self.batch:]
                self.queue.put(t.pin_memory() if self.device.type == "cuda" else t)


class Evaluator:
    """Documents of fixed unseen seeds; exact agreement of all trained tokens under teacher forcing."""

    def __init__(self, enc, per_task, batch, length):
        packer = pack.Packer(enc.pad, length)
        tags = []
        for i, task in enumerate(generate.NAMES):
            rng = random.Random(generate.EVAL_SEED + i)
            for j in range(per_task * 3):
                effort = generate.EFFORTS[j % 3]
                s = generate.sample_of(task, rng, effort)
                s.styled = False
                (ids, labels), = enc.many([generate.single(rng, s, effort)])
                labels = list(labels)
                if packer.add(ids, _Tagged(labels, len(tags))):
                    tags.append((task, effort))
        packer.flush()
        rows = packer.done
        while len(rows) % batch:
            rows.append(rows[-1])
        self.tags, self.batches = tags, []
        for i in range(0, len(rows), batch):
            part = rows[i:i + batch]
            spans = [(r, at, at + len(ids), labels.tag) for r, row in enumerate(part) for at, ids, labels in row[3]]
            self.batches.append((torch.from_numpy(np.stack([np.stack([r[0].astype(np.int16), r[1], r[2]]) for r in part]).astype(np.int32)), spans))

    def table(self, trainer):
        right, total = {}, {}
        seen = set()
        for data, spans in self.batches:
            agree = trainer.agreement(data)
            for r, a, b, tag in spans:
                if tag not in seen:
                    seen.add(tag)
                    key = self.tags[tag]
                    total[key] = total.get(key, 0) + 1
                    right[key] = right.get(key, 0) + bool(agree[r, a:b].all())
        return {k: right[k] / total[k] for k in total}


class _Tagged(list):
    def __init__(self, items, tag):
        super().__init__(items)
        self.tag = tag


class Trainer:
    def __init__(self, cfg, args, device):
        self.cfg, self.args, self.device = cfg, args, device
        self.model = M.Model(cfg).to(device)
        if args.resume:
            state = export.read(args.resume) if os.path.isdir(args.resume) else torch.load(args.resume, map_location=device)
            self.model.load_state_dict({k: v.float() for k, v in state.items()})
        cuda = device.type == "cuda"
        if cuda:
            self.model.compile()
        self.masks = (M.FlexMasks if cuda else M.DenseMasks)(cfg, args.batch, args.length, device)
        self.cos, self.sin = M.rope_table(cfg, args.length, device)
        params = dict(self.model.named_parameters())
        self.muon = Muon({n: params[n] for n in MUON}, compiled=cuda)
        groups = [{"params": [p], "lr": ADAM_RATES.get(n, ADAM_DEFAULT), "peak": ADAM_RATES.get(n, ADAM_DEFAULT)} for n, p in params.items() if n not in MUON]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda)
        self.capacity = 0

    def prepare(self, data):
        data = data.to(self.device, non_blocking=True)
        ids, labels, starts = data.unbind(1)
        self.masks.refill(starts)
        position = torch.arange(self.args.length, device=self.device)[None] - starts
        return ids, labels, self.cos[position], self.sin[position]

    def places(self, labels):
        """Flat places with a label, to a fixed number of them."""
        flat = labels.reshape(-1)
        order = torch.argsort((flat < 0).to(torch.uint8), stable=True)[:self.capacity]
        return order, flat[order].long()

    def loss(self, data):
        ids, labels, cos, sin = self.prepare(data)
        if not self.capacity:
            self.capacity = min(labels.numel(), int((labels >= 0).sum().item() * 1.25) // 256 * 256 + 256)
        x, balance = self.model.trunk(ids, cos, sin, self.masks.attend)
        where, target = self.places(labels)
        total, right = self.model.head_loss(x, self.model.w_final, self.model.head, where, target)
        count = (target >= 0).sum()
        return total / count, balance, right.sum() / count, count

    def agreement(self, data):
        """[B, S] where the likeliest token is the label or no label is."""
        ids, labels, cos, sin = self.prepare(data)
        x, _ = self.model.trunk(ids, cos, sin, self.masks.attend)
        x = x.detach()
        out = torch.ones_like(labels, dtype=torch.bool)
        with torch.no_grad():
            for r in range(x.shape[0]):
                t = M.norm(x[r], self.model.w_final.bfloat16().float()).bfloat16()
                out[r] = ((t @ self.model.head.bfloat16().t()).argmax(-1) == labels[r]) | (labels[r] < 0)
        return out.cpu().numpy()

    def step(self, data, fraction):
        share = rate_at(fraction, self.args.flat)
        loss, balance, right, count = self.loss(data)
        (loss + 0.01 * balance).backward()
        for g in self.adam.param_groups:
            g["lr"] = g["peak"] * self.args.rate * share
        self.muon.step(0.02 * self.args.rate * share, 0.95)
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach(), balance.detach(), right.detach(), count

    def save(self, path):
        torch.save({k: v.detach().cpu() for k, v in self.model.state_dict().items()}, path + ".tmp")
        os.rename(path + ".tmp", path)


def report(table, log):
    tasks = list(dict.fromkeys(t for t, _ in table))
    log("exact (low/medium/high): " + "  ".join(t + " " + "/".join(f"{100 * table.get((t, e), 0):.0f}" for e in generate.EFFORTS) for t in tasks))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps (tests)")
    parser.add_argument("--work", required=True, help="folder for shards' log, checkpoints and results")
    parser.add_argument("--shards", default="/dev/shm/tiny_shards")
    parser.add_argument("--tokenizer", default="models/tiny/tokenizer.json")
    parser.add_argument("--out", default="", help="export the result here when done")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=pack.LENGTH)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="scales all learning rates")
    parser.add_argument("--resume", default="")
    parser.add_argument("--flat", type=float, default=0.4, help="fraction of the run before the rates fall")
    parser.add_argument("--eval-every", type=float, default=150.0, help="seconds")
    parser.add_argument("--per-task", type=int, default=40, help="evaluation documents per task and effort")
    parser.add_argument("--micro", action="store_true", help="a toy model on the CPU")
    return parser.parse_args()


def main():
    args = arguments()
    began = time.time()
    os.makedirs(args.work, exist_ok=True)
    shutil.rmtree(args.shards, ignore_errors=True)
    os.makedirs(args.shards)
    if args.micro:
        args.batch, args.workers, args.per_task = 2, 1, 1
    ctx = multiprocessing.get_context("spawn")
    for i in range(args.workers):
        ctx.Process(target=pack.worker, args=(i, args.seed * 1000 + i, args.shards, args.tokenizer, 8, 16, args.length), daemon=True).start()
    log_file = open(os.path.join(args.work, "log.txt"), "a")

    def log(text):
        print(text, flush=True)
        log_file.write(text + "\n")
        log_file.flush()

    device = torch.device("cuda" if torch.cuda.is_available() and not args.micro else "cpu")
    cfg = M.Config(hidden=64, layers=2, heads=2, kv_heads=1, experts=8, inter=64) if args.micro else M.Config()
    torch.manual_seed(args.seed)
    trainer = Trainer(cfg, args, device)
    log(f"parameters {sum(p.numel() for p in trainer.model.parameters()):,}")
    evaluator = Evaluator(pack.Encoder(args.tokenizer), args.per_task, args.batch, args.length)
    loader = Loader(args.shards, args.batch, device)
    loader.start()
    log(f"ready after {time.time() - began:.0f} s; {len(evaluator.tags)} evaluation documents in {len(evaluator.batches)} batches")

    start = None
    steps = tokens = trained = 0
    last = time.time()
    last_eval = time.time()
    while True:
        data = loader.queue.get()
        now = time.time()
        elapsed = 0.0 if start is None else now - start
        # the minutes count from the call, so that compiling and evaluating are inside them
        fraction = min(1.0, elapsed / max(1.0, args.minutes * 60 - (0 if start is None else start - began)))
        if (args.steps and steps >= args.steps) or now - began >= args.minutes * 60:
            break
        loss, balance, right, count = trainer.step(data, max(fraction, 0.0005))
        steps += 1
        tokens += args.batch * args.length
        if steps == 3:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.time()
            last, at_step = start, steps
            log(f"first steps after {start - began:.0f} s")
        if steps > 3 and (steps - 3) % 100 == 0 or args.micro:
            values = [float(v) for v in (loss, balance, right, count)]
            now = time.time()
            log(f"step {steps} at {now - began:.0f} s, fraction {fraction:.3f}: loss {values[0]:.4f}, right {values[2]:.4f}, balance {values[1]:.3f}, "
                f"labels {values[3]:.0f}/{trainer.capacity}, {args.batch * args.length * 100 / (now - last) / 1e6:.3f} M tokens/s, shards waiting {loader.waiting}, queue {loader.queue.qsize()}")
            if values[3] > trainer.capacity * 0.98:
                log("capacity for labels is nearly used")
            last = now
        if start and time.time() - last_eval > args.eval_every:
            report(evaluator.table(trainer), log)
            trainer.save(os.path.join(args.work, "checkpoint.pt"))
            last_eval = last = time.time()
    report(evaluator.table(trainer), log)
    trainer.save(os.path.join(args.work, "checkpoint.pt"))
    torch.save({k: v.detach().bfloat16().cpu() for k, v in trainer.model.state_dict().items()}, os.path.join(args.work, "compact.pt"))
    log(f"{steps} steps, {tokens / 1e6:.0f} M tokens in {time.time() - began:.0f} s")
    shutil.rmtree(args.shards, ignore_errors=True)
    if args.out:
        export.write(trainer.model, cfg, args.out)
        log(f"exported to {args.out} after {time.time() - began:.0f} s")
    json.dump({"steps": steps, "tokens": tokens, "seconds": time.time() - began}, open(os.path.join(args.work, "done.json"), "w"))
    os._exit(0)


if __name__ == "__main__":
    main()
