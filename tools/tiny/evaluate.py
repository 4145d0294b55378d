#!/usr/bin/env python3
"""Accuracy of the embedded model by task and effort: greedy answers to questions of seeds never trained on.

    evaluate.py --model models/tiny --count 100              a table; --json FILE writes it
    evaluate.py --model models/tiny --aims                   only the tasks with a stated aim
    evaluate.py --model models/tiny --ask "What is 17 * 23?" one answer
    evaluate.py --model models/tiny --against-transformers   logits against GptOssForCausalLM
"""
import argparse
import json
import os
import random
import re
import time

import torch

import generate
import harmony as H
import pack
from eval_tasks import AIMS
from plain import Plain


def parse(text):
    """(analysis, final, call) of a completion that follows `<|start|>assistant`."""
    analysis = final = None
    call = None
    for part in ("<|start|>assistant" + text).split("<|start|>assistant")[1:]:
        m = re.match(r"(.*?)<\|message\|>(.*?)(<\|end\|>|<\|return\|>|<\|call\|>|$)", part, re.S)
        if not m:
            continue
        head, body, end = m.groups()
        to = re.search(r"to=functions\.(\S+?)(?=[\s<]|$)", head)
        if to:
            call = (to.group(1), body, "<|constrain|>json" in head and end == "<|call|>")
        elif "<|channel|>analysis" in head:
            analysis = body
        elif "<|channel|>final" in head and end == "<|return|>":
            final = body
    return analysis, final, call


def is_right(s, text):
    kind = s.check[0]
    _, final, call = parse(text)
    if kind == "call":
        if not call or call[0] != s.check[1] or not call[2]:
            return False
        try:
            return json.loads(call[1]) == s.check[2]
        except ValueError:
            return False
    if final is None or call:
        return False
    if kind == "json":
        try:
            return json.loads(final) == s.check[1]
        except ValueError:
            return False
    want = s.check[1]
    numbers = re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"(?<=\d) - (?=\d)", " ", final))
    if kind == "number":
        return bool(numbers) and numbers[-1] == want
    if kind == "number2":
        return want in numbers[1:]
    if kind == "exact":
        return final.strip() == want
    if kind == "lead":
        return final.startswith(want)
    if kind == "lastword":
        return re.findall(r"\w+", final)[-1:] == [want]
    return want.lower() in final.lower()  # a name may stand first in the sentence


def is_well_formed_call(s, text):
    """A call of the right tool whose arguments are JSON, whatever their values."""
    call = parse(text)[2]
    try:
        return bool(call and call[2] and call[0] == s.check[1] and isinstance(json.loads(call[1]), dict))
    except ValueError:
        return False


class Judge:
    def __init__(self, folder, device, dtype, batch):
        self.plain = Plain(folder, device, dtype)
        self.enc = pack.Encoder(os.path.join(folder, "tokenizer.json"))
        self.stops = json.load(open(os.path.join(folder, "generation_config.json")))["eos_token_id"]
        self.batch = batch

    def answers(self, prompts, max_new=500, seconds=0):
        """Completions as text, in the order of the prompts; None where the seconds (0: no limit) did not suffice."""
        ids = [self.enc.tok.encode(p, add_special_tokens=False).ids for p in prompts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = [None] * len(ids)
        parts, i = [], 0
        while i < len(order):
            longest = len(ids[order[min(len(order), i + self.batch) - 1]])
            step = max(1, min(self.batch, 160000 // (longest + 200) if self.plain.device != "cpu" else self.batch))
            parts.append(order[i:i + step])
            i += step
        random.Random(1).shuffle(parts)
        began = time.time()
        for part in parts:
            if seconds and time.time() - began > seconds:
                break
            for j, r in zip(part, self.plain.generate([ids[k] for k in part], self.stops, max_new)):
                out[j] = self.enc.tok.decode(r, skip_special_tokens=False)
        return out

    def run(self, tasks, count, efforts, seed, misses=0, seconds=0):
        table, cases = {}, []
        for i, (name, maker) in enumerate(tasks.items()):
            for effort in efforts:
                rng = random.Random(generate.EVAL_SEED + seed * 1000 + i * 3 + generate.EFFORTS.index(effort))
                for _ in range(count):
                    s = maker(rng, effort)
                    s.styled = False
                    cases.append((name, effort, s, generate.single(rng, s, effort)[0][0]))
        random.Random(seed).shuffle(cases)
        texts = self.answers([c[3] for c in cases], seconds=seconds)
        for (name, effort, s, prompt), text in zip(cases, texts):
            if text is None:
                continue
            row = table.setdefault(name, {}).setdefault(effort, [0, 0, 0])
            ok = is_right(s, text)
            row[0] += ok
            row[1] += 1
            row[2] += s.check[0] == "call" and is_well_formed_call(s, text)
            if not ok and misses > 0 and row[1] - row[0] <= misses:
                print(f"MISS {name} {effort}: {s.user[-300:]!r}\n   want {s.check!r}\n   got {text!r}")
        return table


def show(table, efforts):
    cell = lambda rows, e, i: f"{100 * rows[e][i] / rows[e][1]:9.1f}%" if e in rows else " " * 10
    print(f"{'task':28}" + "".join(f"{e:>10}" for e in efforts) + "     asked")
    for name in sorted(table):
        rows = table[name]
        print(f"{name:28}" + "".join(cell(rows, e, 0) for e in efforts) + f"{sum(r[1] for r in rows.values()):10}")
        if name == "tool calls":
            print(f"{'  right tool, well formed':28}" + "".join(cell(rows, e, 2) for e in efforts))


def against_transformers(folder, prompts=4):
    """Greatest difference of FP32 logits to transformers' on conversations of unseen seeds."""
    from transformers import GptOssForCausalLM
    theirs = GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").float()
    ours, enc = Plain(folder), pack.Encoder(os.path.join(folder, "tokenizer.json"))
    rng = random.Random(generate.EVAL_SEED)
    worst = 0.0
    for _ in range(prompts):
        (ids, _), = enc.many([generate.conversation(rng)])
        ids = torch.tensor(ids[:1500])
        with torch.no_grad():
            a = theirs(ids[None]).logits[0].float()
        b = ours.logits(ids)
        worst = max(worst, (a - b).abs().max().item())
        print(f"{len(ids)} tokens: greatest difference {(a - b).abs().max().item():.2e}, top-1 equal at {(a.argmax(-1) == b.argmax(-1)).float().mean().item():.4f}")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--misses", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0, help="stop asking after so long")
    parser.add_argument("--aims", action="store_true")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--effort", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--ask", action="append")
    parser.add_argument("--against-transformers", action="store_true")
    args = parser.parse_args()
    if args.against_transformers:
        print(f"greatest difference {against_transformers(args.model):.2e}")
        return
    cuda = torch.cuda.is_available()
    judge = Judge(args.model, "cuda" if cuda else "cpu", torch.bfloat16 if cuda else torch.float32, args.batch or (1024 if cuda else 96))
    efforts = args.effort.split(",") if args.effort else list(generate.EFFORTS)
    if args.ask:
        for effort in efforts:
            prompts = [H.message("system", H.system_text(effort, "2026-01-15")) + H.message("user", q) + "<|start|>assistant" for q in args.ask]
            for q, text in zip(args.ask, judge.answers(prompts)):
                print(f"[{effort}] {q}\n   {text}")
        return
    tasks = {} if args.aims else {n: m for n, (m, _) in generate.TASKS.items()}
    tasks = {**AIMS, **tasks}
    if args.tasks:
        tasks = {n: tasks[n] for n in args.tasks.split(",")}
    table = judge.run(tasks, args.count, efforts, args.seed, args.misses, args.seconds)
    show(table, efforts)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(table, f, indent=1)


if __name__ == "__main__":
    main()
