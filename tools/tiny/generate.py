#!/usr/bin/env python3
"""Writes the training data of the embedded model: harmony conversations from a seed.

    generate.py --seed 1 --count 5            prints conversations
    generate.py --seed 1 --count 5 --task json --effort high

`conversations(seed)` yields documents for training; `sample_of(task, rng, effort)` single questions for
evaluation. Seeds below EVAL_SEED are for training, from EVAL_SEED on for evaluation.
"""
import argparse
import random

import harmony as H
from phrasing import expand, fill
import tasks_chat
import tasks_json
import tasks_math
import tasks_recall
import tasks_text
import tasks_tools
import words as W

EVAL_SEED = 1_000_000_000
EFFORTS = ("low", "medium", "high")
# task: (maker, weight)
TASKS = {
    "addition": (tasks_math.addition, 9.0), "subtraction": (tasks_math.subtraction, 9.0), "multiplication": (tasks_math.multiplication, 13.0), "division": (tasks_math.division, 2.5),
    "several": (tasks_math.several, 2.5), "handy": (tasks_math.handy, 2.5), "odd_sums": (tasks_math.odd_sums, 2.5), "sequence": (tasks_math.sequence, 2.0), "story": (tasks_math.story, 5.0), "compare": (tasks_math.compare, 3.5), "extreme": (tasks_math.extreme, 2.0),
    "sort_numbers": (tasks_math.sort_numbers, 4.0), "sort_words": (tasks_math.sort_words, 4.0), "count_letters": (tasks_text.count_letters, 5.0), "count_items": (tasks_text.count_items, 3.0),
    "spell": (tasks_text.spell, 5.0), "reverse": (tasks_text.reverse, 5.0), "units": (tasks_text.units, 5.0), "calendar": (tasks_text.calendar, 7.0), "small_talk": (tasks_chat.small_talk, 4.0),
    "open_world": (tasks_chat.open_world, 4.0), "told_before": (tasks_chat.told_before, 2.0), "recall": (tasks_recall.recall, 14.0), "json": (tasks_json.to_json, 20.0), "tools": (tasks_tools.tools, 17.0),
}
NAMES, WEIGHTS = list(TASKS), [w for _, w in TASKS.values()]
IDENTITIES = [H.IDENTITY] * 8 + ["You are Moxie, a tiny demonstration model.", "You are a helpful assistant."]
NEUTRAL = ["You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly assistant.", "Be helpful and polite.", "You are a careful assistant. Think before you answer.", "Help the user.", "You are a helpful, honest assistant.", "Answer the user's questions.", "You are Moxie.", "Be brief.", "Answer truthfully.", "You are an assistant in a demo."]
# developer styles: (instructions, how the answer changes); s is the sample
STYLES = [
    ("{Answer|Reply|Respond} with {just|only} the {answer|result|value}{.|, nothing else.|, no words around it.}", lambda s: s.short),
    ("{Be terse.|Only give the result.|Give only the final answer.|No explanations, only the answer.|Output the answer only.}", lambda s: s.short),
    ("{Answer|Reply|Write} in {capital letters|capitals|upper case|uppercase}{ only|}.", lambda s: s.final.upper()),
    ("{Begin|Start} {each|every} {answer|reply} with \"Answer:\".", lambda s: "Answer: " + s.final),
    ("{Begin|Start} {each|every} {answer|reply} with \"Result:\".", lambda s: "Result: " + s.final),
    ("{End|Finish} {each|every} {answer|reply} with \"Over.\"", lambda s: s.final + " Over."),
    ("{End|Finish} {each|every} {answer|reply} with \"Anything else?\"", lambda s: s.final + " Anything else?"),
    ("{Put|Write} {the|each|every} {answer|result} in {square |}brackets.", lambda s: "[" + s.short + "]"),
]
TERSE = [" {Just|Only} the {answer|result|number}{ please|}{.|}", " {Answer|Reply} with {just|only} the {answer|result}.", " {No explanation|No words}, {just|only} the {answer|result}."]


def sample_of(task, rng, effort):
    return TASKS[task][0](rng, effort)


def with_style(rng, s):
    """Lays a style over an answer: by the developer (returned) or asked for in the question."""
    if not s.styled:
        return ""
    r = rng.random()
    if r < 0.10:
        text, change = rng.choice(STYLES)
        s.final = change(s)
        return expand(rng, text)
    if r < 0.13:
        s.user += expand(rng, rng.choice(TERSE))
        s.final = s.short
    return ""


def neutral(rng):
    """Instructions that change nothing about the answers."""
    if rng.random() < 0.5:
        return rng.choice(NEUTRAL)
    text = rng.choice(["You are a <a> assistant.", "You are a <j>.", "You are <n>, a <a> assistant.", "You are a <a> assistant for <t>.", "The user is called <n>.", "Always be <a> and <b>.", "You help people with <t>.", "You are a tutor for <t>. Be <a>.", "You work for a <p>. Be <a> to customers.", "Never talk about <t>.", "Use simple words."])
    return fill(text, {"a": rng.choice(W.ADJECTIVES), "b": rng.choice(W.ADJECTIVES), "j": rng.choice(W.JOBS), "n": W.first_name(rng), "t": rng.choice(W.TOPICS + W.NOUNS), "p": rng.choice(W.PLACES)})


def opening(rng, effort, date="", tools=None, instructions=""):
    """System and developer messages; now and then neutral instructions."""
    date = date or (f"{rng.randint(2023, 2030)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}" if rng.random() < 0.65 else None)
    text = H.message("system", H.system_text(effort, date, rng.choice(IDENTITIES), "2024-06" if rng.random() < 0.95 else None, bool(tools)))
    if not instructions and rng.random() < 0.25:
        instructions = neutral(rng)
    developer = H.developer_text(instructions, tools)
    if instructions.startswith("# Response Formats") and rng.random() < 0.2:
        developer = instructions
    return text + (H.message("developer", developer) if developer else "")


def reply(s, effort):
    """What the model writes for a sample at this effort."""
    analysis = s.analysis if effort != "low" or s.low_analysis else ""
    return H.completion(s.final, analysis, s.call)


def single(rng, s, effort):
    """One conversation that ends in the answer to s, perhaps after other turns."""
    style = with_style(rng, s)
    text = opening(rng, effort, s.date, s.tools, s.instructions or style)
    if not s.before and not s.instructions and rng.random() < 0.18:
        for _ in range(rng.randint(1, 2)):
            h = sample_of(rng.choice(["addition", "subtraction", "handy", "compare", "spell", "units", "small_talk", "open_world", "sort_numbers"]), rng, "low")
            if not style:
                text += H.message("user", h.user) + H.message("assistant", h.final, "final")
    text += "".join(s.before) + H.message("user", s.user) + "".join(s.after) + "<|start|>assistant"
    return [(text, H.HIDDEN), (reply(s, effort), H.TRAINED)]


def direct_turns(rng, samples):
    """Several turns at low effort, each answered directly and each trained."""
    parts = [(opening(rng, "low", next((s.date for s in samples if s.date), "")), H.HIDDEN)]
    for i, s in enumerate(samples):
        parts.append(("".join(s.before) + H.message("user", s.user) + "<|start|>assistant", H.HIDDEN))
        if i == len(samples) - 1:
            parts.append((H.completion(s.final), H.TRAINED))
        else:
            parts.append((f"<|channel|>final<|message|>{s.final}", H.TRAINED))
            parts.append(("<|end|>", H.HISTORY_END))
    return parts


def conversation(rng):
    """A training document as a list of (text, mode)."""
    r = rng.random()
    if r < 0.07:
        return direct_turns(rng, tasks_recall.recall_turns(rng, int(30 * 60 ** rng.random()), rng.randint(4, 16)))
    if r < 0.085:
        effort = rng.choice(EFFORTS)
        return single(rng, tasks_recall.recall(rng, effort, int(200 * 9 ** rng.random())), effort)
    if r < 0.20:
        samples = []
        while len(samples) < 2 or (len(samples) < 6 and rng.random() < 0.7):
            s = sample_of(rng.choices(NAMES, WEIGHTS)[0], rng, "low")
            if not (s.instructions or s.tools or s.before or s.low_analysis) and not (s.date and any(x.date for x in samples)):
                samples.append(s)
        return direct_turns(rng, samples)
    effort = rng.choices(EFFORTS, [0.24, 0.40, 0.36])[0]
    return single(rng, sample_of(rng.choices(NAMES, WEIGHTS)[0], rng, effort), effort)


def conversations(seed):
    rng = random.Random(seed)
    while True:
        yield conversation(rng)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--task", choices=NAMES)
    parser.add_argument("--effort", choices=EFFORTS, default="medium")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    for _ in range(args.count):
        parts = single(rng, sample_of(args.task, rng, args.effort), args.effort) if args.task else conversation(rng)
        print("".join(text if mode == H.HIDDEN else f"\033[32m{text}\033[0m" for text, mode in parts), end="\n\n")


if __name__ == "__main__":
    main()
