#!/usr/bin/env python3
"""Tokens a step of a draft head by task, as Moxie's server counts them, on prompts of seeds never trained on.

    measure_draft.py --kind eagle3 --head models/tiny/eagle3 --moxie build/release/moxie
    measure_draft.py --kind dflash --head models/tiny/dflash --effort high,medium,low --json FILE

Greedy answers, every draft verified (`--spec-adaptive off`). A step emits one token and the accepted drafts.
"""
import argparse
import json
import os
import random
import subprocess
import threading
import urllib.request

import generate
import pack


def prompts_of(enc, task, effort, count):
    """Token ids of unseen prompts, up to where the assistant begins."""
    rng = random.Random(f"{generate.EVAL_SEED} {task} {effort}")
    prompts = []
    while len(prompts) < count:
        (ids, labels), = enc.many([generate.single(rng, generate.sample_of(task, rng, effort), effort)])
        prompts.append(ids[:next(p for p, label in enumerate(labels) if label >= 0) + 1])
    return prompts


class Server:
    """`moxie serve` on a free port, for as long as the block runs."""

    def __init__(self, args):
        self.command = [args.moxie, "serve", "--device", args.device, "--threads", str(args.threads), "--model", args.model, "--port", "0", "--spec", args.kind, "--spec-model", args.head, "--spec-dtype", args.dtype, "--spec-adaptive", "off"]
        if args.slots:
            self.command += ["--spec-tokens", str(args.slots)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line.split()[:1] == ["url"]:
                self.url = line.split()[1]
            if line.split()[:1] == ["try"]:
                break
        else:
            raise SystemExit("moxie serve ended: " + "".join(said))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()  # the log must not fill the pipe
        self.name = json.load(urllib.request.urlopen(self.url + "/models"))["data"][0]["id"]
        return self

    def answer(self, prompt):
        body = json.dumps({"model": self.name, "prompt": prompt, "temperature": 0, "max_tokens": 400}).encode()
        request = urllib.request.Request(self.url + "/completions", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("eagle3", "dflash"), required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--slots", type=int, default=0, help="drafts a step; 0: what the head takes")
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--moxie", default="build/release/moxie")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--effort", default="high")
    parser.add_argument("--count", type=int, default=8, help="prompts of each task and effort")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    enc = pack.Encoder(os.path.join(args.model, "tokenizer.json"))
    table, whole = {}, {}
    with Server(args) as server:
        for task in generate.NAMES:
            for effort in args.effort.split(","):
                steps = accepted = 0
                positions = []
                for prompt in prompts_of(enc, task, effort, args.count):
                    counts = server.answer(prompt)["usage"].get("speculation")
                    if not counts:
                        continue  # an answer of one token
                    steps += counts["drafts"]
                    accepted += counts["accepted_tokens"]
                    positions = [a + b for a, b in zip(counts["accepted_per_position"], positions or [0] * len(counts["accepted_per_position"]))]
                table.setdefault(task, {})[effort] = {"steps": steps, "accepted": accepted, "accepted_per_position": positions}
                total = whole.setdefault(effort, {"steps": 0, "accepted": 0, "accepted_per_position": [0] * len(positions)})
                total["steps"] += steps
                total["accepted"] += accepted
                total["accepted_per_position"] = [a + b for a, b in zip(total["accepted_per_position"], positions)]
            print(f"{task:16}" + "".join(f"{1 + row['accepted'] / max(1, row['steps']):8.2f}" for row in table[task].values()), flush=True)
    for effort, total in whole.items():
        rates = " ".join(f"{a / total['steps']:.3f}" for a in total["accepted_per_position"])
        print(f"all, {effort}: {1 + total['accepted'] / total['steps']:.3f} tokens a step over {total['steps']} steps; accepted by position {rates}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"tasks": table, "all": whole}, f, indent=1)


if __name__ == "__main__":
    main()
