#!/usr/bin/env python3
"""Golden vectors of the embedded model from transformers' GptOssForCausalLM (FP32, eager attention, CPU).

    make_goldens.py --model models/tiny --out tests/data/tiny_goldens

Writes goldens.safetensors: for case i `i.ids` (I32 [n]), `i.top_ids` (I32 [n, 8]) and `i.top_logits` (F32 [n, 8]),
`i.logsumexp` (F32 [n]), `i.last_logits` (F32 [vocab], after the whole prompt) and `i.greedy` (I32, the greedy
continuation up to a stop token or 48 tokens); and goldens.json with the prompts and versions.
"""
import argparse
import json
import os
import random

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoTokenizer, GptOssForCausalLM

import generate
import harmony as H
import tasks_json
import tasks_math
import tasks_recall
import tasks_tools

PROMPTS = [("low", "What is 1234 + 567?"), ("medium", "Which is larger, 9.11 or 9.9?"), ("high", "What is 47 * 36?"), ("medium", "Who are you?")]


def prompts():
    """(name, text) of each case: short questions, a tool call, JSON, and a recall far beyond the window."""
    for effort, question in PROMPTS:
        yield f"{effort}: {question}", H.message("system", H.system_text(effort, "2026-01-15")) + H.message("user", question) + "<|start|>assistant"
    rng = random.Random(generate.EVAL_SEED + 77)
    for name, maker, effort in (("tool call", tasks_tools.tool_call, "medium"), ("tool result", tasks_tools.from_result, "low"), ("JSON", tasks_json.from_record, "medium")):
        yield name, generate.single(rng, maker(rng, effort), effort)[0][0]
    yield "recall", generate.single(rng, tasks_recall.recall(rng, "medium", 900), "medium")[0][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--out", default="tests/data/tiny_goldens")
    args = parser.parse_args()
    tok = AutoTokenizer.from_pretrained(args.model)
    # on a CPU the experts are dequantised to BF16 (exactly); the arithmetic is to be FP32
    model = GptOssForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").float().eval()
    stops = set(model.generation_config.eos_token_id)
    tensors, cases = {}, []
    for i, (name, text) in enumerate(prompts()):
        ids = tok(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model(ids, use_cache=True)
            logits = out.logits[0].float()
            greedy, past, last = [], out.past_key_values, logits[-1]
            while len(greedy) < 48:
                greedy.append(int(last.argmax()))
                if greedy[-1] in stops:
                    break
                step = model(torch.tensor([[greedy[-1]]]), past_key_values=past, use_cache=True)
                past, last = step.past_key_values, step.logits[0, -1].float()
        top = logits.topk(8, -1)
        tensors.update({f"{i}.ids": ids[0].to(torch.int32), f"{i}.top_ids": top.indices.to(torch.int32), f"{i}.top_logits": top.values.contiguous(), f"{i}.logsumexp": logits.logsumexp(-1), f"{i}.last_logits": logits[-1].clone(), f"{i}.greedy": torch.tensor(greedy, dtype=torch.int32)})
        cases.append({"name": name, "num_tokens": ids.shape[1], "prompt": text if ids.shape[1] < 600 else text[:200] + "...", "completion": tok.decode(greedy)})
        print(name, ids.shape[1], "tokens:", tok.decode(greedy))
    os.makedirs(args.out, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(args.out, "goldens.safetensors"))
    with open(os.path.join(args.out, "goldens.json"), "w") as f:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32", "attention": "eager", "cases": cases}, f, indent=1, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
