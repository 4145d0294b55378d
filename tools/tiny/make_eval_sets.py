#!/usr/bin/env python3
"""Writes the questions of the model's card as a set for `moxie eval`, from seeds never trained on.

    make_eval_sets.py --count 10 --out models/tiny/eval.jsonl       the committed set
    make_eval_sets.py --count 100 --seed 2 --out sets.jsonl          as many questions as the card's cells
    make_eval_sets.py --count 100 --tasks "recall,JSON" --out sets.jsonl

Questions are those of evaluate.py, with the identity and the date that a server gives: samples that need
another date are left out. A line's "match" says what evaluate.py's checks say.
"""
import argparse
import json
import random
import re

import generate
import harmony as H
from eval_tasks import AIMS

MESSAGE = re.compile(r"<\|start\|>(.*?)<\|message\|>(.*?)(<\|end\|>|<\|call\|>)", re.S)


def messages_of(parts):
    """Rendered messages in the form of a chat completion."""
    out, reasoning = [], ""
    for head, body, end in MESSAGE.findall("".join(parts)):
        role = re.match(r"[\w.]+", head).group()
        called = re.search(r"to=functions\.([\w-]+)", head)
        if called:
            call = {"id": f"call_{len(out)}", "type": "function", "function": {"name": called.group(1), "arguments": body}}
            out.append({"role": "assistant", "content": None, **({"reasoning_content": reasoning} if reasoning else {}), "tool_calls": [call]})
            reasoning = ""
        elif role.startswith("functions."):
            out.append({"role": "tool", "tool_call_id": out[-1]["tool_calls"][0]["id"], "content": body})
        elif "<|channel|>analysis" in head:
            reasoning = body
        else:
            out.append({"role": role, "content": body})
    return out


def escaped(text):
    return re.sub(r"[][\\.*+?(){}|^$]", r"\\\g<0>", text)


def match_of(check):
    """(match, answer) of a set for a sample's check."""
    kind, want = check[0], check[1]
    if kind == "call":
        return "call", {"name": want, "arguments": check[2]}
    if kind == "number2":  # a number behind the first
        return "regex", f"[0-9].*[^0-9.]{escaped(want)}([^0-9.]|\\.?$|\\.[^0-9])"
    if kind == "lastword":
        return "regex", f"(^|[^[:alnum:]_]){escaped(want)}[^[:alnum:]_]*$"
    return {"number": "number", "exact": "exact", "lead": "starts_with", "json": "json", "text": "contains"}[kind], want


def line_of(task, i, sample):
    match, answer = match_of(sample.check)
    before = messages_of(sample.before)
    instructions = sample.instructions
    if instructions:
        before.insert(0, {"role": "developer", "content": instructions})
    line = {"id": f"{i}", "task": task}
    if sample.after:
        line["messages"] = before + [{"role": "user", "content": sample.user}] + messages_of(sample.after)
    else:
        if before:
            line["messages"] = before
        line["question"] = sample.user
    if sample.tools:
        line["tools"] = [{"type": "function", "function": {k: v for k, v in tool.items() if v is not None}} for tool in sample.tools]
    return {**line, "match": match, "answer": answer}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="questions a task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", default="", help="comma-separated; default: all")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    tasks = {**AIMS, **{name: maker for name, (maker, _) in generate.TASKS.items()}}
    chosen = args.tasks.split(",") if args.tasks else list(tasks)
    with open(args.out, "w") as f:
        for index, (task, maker) in enumerate(tasks.items()):
            if task not in chosen:
                continue
            rng = random.Random(f"{generate.EVAL_SEED} {args.seed} {index}")
            lines = []
            while len(lines) < args.count:
                sample = maker(rng, "medium")
                if not sample.date:
                    lines.append(line_of(task, len(lines), sample))
            for line in lines:
                f.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
