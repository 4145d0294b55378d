"""Whether speculation changes texts: greedy answers of servers with drafts against those of one
without, token by token, over questions of all tasks of the embedded model.

    python3 lossless.py MOXIE [--methods ngram,eagle3,dflash] [--prompts 200] [--max-tokens 300]
        [--clients 16] [--model M] [--device D] [--flags "..."] [--adaptive off] [--margin X]
        [--ids] [--json OUT] [--answers OUT]

Servers run one after another: first without drafts, then with each method. --model needs the tokens
of gpt-oss's conversations; --ids asks with random ids instead, which any model takes. Drafts are
all verified; with --adaptive on as many as pay.

Rows of kernels for one token and for several may round differently. So an answer may leave the one
without drafts where the two likeliest tokens are nearly as likely: there the two are printed with
their log-probabilities. Ends with 1 if those of the server without drafts are further apart than
--margin (in nats; default 0 on the CPU, 0.1 elsewhere), if a request was lost, or if nothing was
drafted. --answers writes the answers without drafts by task, as `moxie profile --texts` reads them.
Needs Python's library alone.
"""

import argparse
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
import shlex
import sys

import server as servers

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools" / "tiny"))
import generate  # noqa: E402

COMPLETIONS, TOKENIZE = "/v1/completions", "/tokenize"
EFFORTS = ("high", "medium", "low")
METHOD_FLAGS = {"ngram": ("--prompt-lookup-min", "1", "--prompt-lookup-max", "4")}
CONTROL = re.compile(r"(<\|\w+\|>)")
# A conversation that has every control token of a prompt.
WITH_ALL_CONTROLS = {"messages": [
    {"role": "user", "content": "x"},
    {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
        "name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "y"}], "return_token_strs": True}
Question = collections.namedtuple("Question", "task ids")


class Encoder:
    """Harmony texts to ids, by the server's own tokenizer."""

    def __init__(self, server):
        self.server, self.known = server, {"": []}
        shown = self.post(WITH_ALL_CONTROLS)
        self.known.update({text: [token]
                           for text, token in zip(shown["token_strs"], shown["tokens"])
                           if CONTROL.fullmatch(text)})

    def post(self, body):
        answer = self.server.post(TOKENIZE, body)
        if answer.status != 200:
            raise RuntimeError(f"{TOKENIZE}: {answer.text[:300]} (a model without conversations "
                               "is asked with --ids)")
        return answer.json()

    def encode(self, text):
        ids = []
        for piece in CONTROL.split(text):
            if piece not in self.known:
                if CONTROL.fullmatch(piece):
                    raise RuntimeError(f"the model has no {piece}: ask it with --ids")
                self.known[piece] = self.post({"prompt": piece})["tokens"]
            ids += self.known[piece]
        return ids


def questions_of_tasks(server, args):
    """Task by task and effort by effort in turn, from seeds that the model was not trained on."""
    encoder, found = Encoder(server), []
    for number in range(args.prompts):
        task = generate.NAMES[number % len(generate.NAMES)]
        turn = number // len(generate.NAMES)
        effort = args.effort or EFFORTS[turn % len(EFFORTS)]
        rng = random.Random(f"{generate.EVAL_SEED} {task} {effort} {turn}")
        parts = generate.single(rng, generate.sample_of(task, rng, effort), effort)
        found.append(Question(f"{task}, {effort}", encoder.encode(parts[0][0])))
    return found


def questions_of_ids(server, args):
    refused = server.post(COMPLETIONS, {"prompt": [2**31 - 1]}).json()["error"]["message"]
    vocab = int(re.search(r"\(0 to (\d+)\)", refused).group(1)) + 1
    rng = random.Random(1)
    return [Question("ids", [rng.randrange(vocab) for _ in range(rng.randrange(1, 200))])
            for _ in range(args.prompts)]


class Answer:
    """Ids, at each place the two likeliest with their log-probabilities, and counts of drafts."""

    def __init__(self, document):
        choice = document["choices"][0]
        self.ids = choice["token_ids"]
        self.best = [sorted(((value, name) for name, value in top.items()), reverse=True)[:2]
                     for top in choice["logprobs"]["top_logprobs"]]
        self.drafts = document["usage"].get("speculation", {})

    def margin(self, place):
        """Between the two likeliest; None where the list has none: behind the last token."""
        if place >= len(self.best) or len(self.best[place]) < 2:
            return None
        return self.best[place][0][0] - self.best[place][1][0]

    def shown(self, place):
        token = self.ids[place] if place < len(self.ids) else "the end"
        best = self.best[place] if place < len(self.best) else []
        return f"{token} of " + ", ".join(f"{name} {value:.6f}" for value, name in best)


def answers_of(server, questions, args):
    def ask(question):
        answer = server.post(COMPLETIONS, {
            "prompt": question.ids, "temperature": 0, "max_tokens": args.max_tokens, "logprobs": 2,
            "return_token_ids": True, "return_tokens_as_token_ids": True,
            "skip_special_tokens": False, "ignore_eos": args.ids}, timeout=args.hang)
        if answer.status != 200:
            raise RuntimeError(f"{question.task}: {answer.status} {answer.text[:300]}")
        return Answer(answer.json())
    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        return list(pool.map(ask, questions))


def compare(method, questions, plain, drafted, margin):
    """The method's row of the document; prints where texts differ."""
    counts = collections.Counter()
    differing = []
    for question, one, other in zip(questions, plain, drafted):
        counts.update({name: value for name, value in other.drafts.items()
                       if not isinstance(value, list)})
        if one.ids == other.ids:
            continue
        place = next((at for at, (a, b) in enumerate(zip(one.ids, other.ids)) if a != b),
                     min(len(one.ids), len(other.ids)))
        apart = one.margin(place)
        differing.append({"task": question.task, "place": place, "margin": apart,
                          "prompt_tokens": len(question.ids)})
        print(f"  {question.task}: token {place} of {len(one.ids)} behind a prompt of "
              f"{len(question.ids)}: without drafts {one.shown(place)}; with {other.shown(place)}",
              flush=True)
    # Two texts of which one ends where the other goes on differ in a token, too: its end.
    known = [math.inf if one["margin"] is None else one["margin"] for one in differing]
    most = max(known, default=0.0)
    row = {"method": method, "texts": len(questions), "equal": len(questions) - len(differing),
           "tokens": sum(len(one.ids) for one in drafted), **counts,
           "most_apart": None if math.isinf(most) else most,
           "differing": differing, "fault": ""}
    if num_far := sum(margin < one for one in known):
        row["fault"] = f"{num_far} texts differ by more than {margin} nats"
    elif not counts["draft_tokens"]:
        row["fault"] = "nothing was drafted"
    differ = f"{len(differing)} differ"
    if differing:
        differ += f" first where the best two are within {most:.6f} nats"
    per_launch = 1 + counts["accepted_tokens"] / max(1, counts["drafts"])
    fault = f"; FAULT: {row['fault']}" if row["fault"] else ""
    print(f"{method}: {len(questions)} texts, {row['equal']} equal, {differ}; {row['tokens']} tokens, "
          f"{per_launch:.2f} a launch with drafts{fault}", flush=True)
    return row


def write_answers(path, questions, answers):
    by_task = collections.defaultdict(list)
    for question, answer in zip(questions, answers):
        by_task[question.task.split(",")[0]].append({"prompt": question.ids, "answer": answer.ids})
    with open(path, "w") as file:
        json.dump(by_task, file)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moxie", help="the program")
    parser.add_argument("--methods", default="ngram,eagle3,dflash", help="in this order; empty: none")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--clients", type=int, default=16, help="requests at once")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="cpu", help="as the server takes it")
    parser.add_argument("--flags", default="", help="more of the servers', in one word")
    parser.add_argument("--adaptive", choices=("on", "off"), default="off")
    parser.add_argument("--margin", type=float, help="nats; default 0 on the CPU, 0.1 elsewhere")
    parser.add_argument("--ids", action="store_true", help="prompts of random ids")
    parser.add_argument("--hang", type=float, default=600, help="seconds an answer may take")
    parser.add_argument("--start", type=float, default=servers.START_S, help="seconds to come up")
    parser.add_argument("--effort", default="", help="of all questions, instead of each in turn")
    parser.add_argument("--json", default="")
    parser.add_argument("--answers", default="")
    args = parser.parse_args()
    if args.margin is None:
        args.margin = 0.0 if args.device == "cpu" else 0.1
    return args


def main():
    args = arguments()
    os.environ["MOXIE_BINARY"] = args.moxie
    flags = ["--model", args.model, "--device", args.device, *shlex.split(args.flags)]
    with servers.Server(*flags, start_s=args.start) as server:
        make = questions_of_ids if args.ids else questions_of_tasks
        questions = make(server, args)
        plain = answers_of(server, questions, args)
    print(f"without: {len(plain)} texts, {sum(len(one.ids) for one in plain)} tokens", flush=True)
    if args.answers:
        write_answers(args.answers, questions, plain)
    rows = []
    for method in filter(None, args.methods.split(",")):
        spec = ["--spec", method, "--spec-adaptive", args.adaptive, *METHOD_FLAGS.get(method, ())]
        with servers.Server(*flags, *spec, start_s=args.start) as server:
            rows.append(compare(method, questions, plain, answers_of(server, questions, args),
                                args.margin))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"model": args.model, "device": args.device, "flags": args.flags,
                       "adaptive": args.adaptive, "margin": args.margin, "clients": args.clients,
                       "max_tokens": args.max_tokens, "methods": rows}, file)
    return 1 if any(row["fault"] for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError, EOFError) as lost:
        sys.exit(f"{type(lost).__name__}: {lost}")
