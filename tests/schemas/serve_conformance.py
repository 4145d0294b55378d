#!/usr/bin/env python3
"""The server's structured output over the schemas of tests/data/schemas: at temperature 1 every answer
must hold, as content (streaming and not) and as the arguments of a tool call.

serve_conformance.py MOXIE [--suite FOLDER] [--seeds N] [--only NAME...] [--url URL]

MOXIE is the program, started with its embedded model unless --url names a running server. --suite
takes the schemas of the official suite (FOLDER is its draft) instead: at temperature 1.5, as content,
with as many refused as official_suite.py allows. MOXIE_SCHEMA_SEEDS sets the number of seeds too; the
bar is 20, of the suite 3; a test run takes fewer.
"""

import argparse
import collections
import concurrent.futures
import copy
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import checking
import official_suite
from validate_walks import OPEN

PARALLEL = 16
MAX_TOKENS = 1500


def start(binary):
    """The server's process and its URL, once it is ready."""
    process = subprocess.Popen(
        [binary, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        match = re.search(r"https?://[0-9.]+:\d+", line)
        if match:
            threading.Thread(target=process.stdout.read, daemon=True).start()  # keep the pipe empty
            break
    else:
        sys.exit("the server did not start:\n" + "".join(lines))
    url = match[0]
    for _ in range(600):
        try:
            urllib.request.urlopen(url + "/readyz", timeout=5).read()
            return process, url
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    sys.exit("the server did not become ready")


class Refused(Exception):
    """The server cannot enforce the schema, and says so."""


def post(url, body):
    request = urllib.request.Request(
        url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        return urllib.request.urlopen(request, timeout=300)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code == 400 and json.loads(text)["error"]["param"].startswith("response_format"):
            raise Refused(text[:500]) from None
        raise AssertionError(f"{error.code}: {text[:500]}") from None


def whole_answer(url, body):
    """(content, arguments by call, finish_reason) of an answer in one piece."""
    choice = json.load(post(url, body))["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    return (
        choice["message"].get("content"),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
    )


def streamed_answer(url, body):
    content, calls, reason = "", [], None
    with post(url, {**body, "stream": True}) as response:
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                delta = choice["delta"]
                content += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    if call["function"].get("name"):
                        calls.append([call["function"]["name"], ""])
                    calls[-1][1] += call["function"].get("arguments") or ""
                reason = choice.get("finish_reason") or reason
    return content or None, [tuple(call) for call in calls], reason


def request_of(name, schema, seed, form, temperature):
    body = {
        "messages": [{"role": "user", "content": f"Fill in {name.replace('_', ' ')}."}],
        "temperature": temperature,
        "seed": seed,
        "max_completion_tokens": MAX_TOKENS,
        "reasoning_effort": "low",
    }
    if form == "tool":
        body["tools"] = [
            {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}},
            {"type": "function",
             "function": {"name": "fill_in", "description": "Takes the data", "strict": True,
                          "parameters": schema}},
        ]
        body["tool_choice"] = {"type": "function", "function": {"name": "fill_in"}}
    else:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "strict": True, "schema": schema},
        }
    return body


def check(url, schema, temperature, name, seed, form, streaming, twice_is_fault):
    """None, or what is wrong; "length" where the answer was cut, "refused: ..." where there is none."""
    if form == "tool" and not (isinstance(schema, dict) and schema.get("type") == "object"):
        # A tool takes an object; references into the schema keep their place at the root.
        moved = {key: schema.pop(key) for key in ("$defs",) if key in schema}
        schema = {**moved, "type": "object", "properties": {"value": schema}, "required": ["value"],
                  "additionalProperties": False}
    body = request_of(name, schema, seed, form, temperature)
    try:
        content, calls, reason = (streamed_answer if streaming else whole_answer)(url, body)
    except Refused as error:
        return f"refused: {error}"
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return str(error)
    if reason == "length":
        return "length"
    if form == "tool":
        if content or reason != "tool_calls" or [call[0] for call in calls] != ["fill_in"]:
            return f"no call of fill_in alone: {reason} {calls} {content!r}"
        text = calls[0][1]
    else:
        if calls or reason != "stop" or content is None:
            return f"no answer: {reason} {calls} {content!r}"
        text = content
    fault = checking.fault(text, schema, twice_is_fault)
    return fault and f"{fault}: {text[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--suite")
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("MOXIE_SCHEMA_SEEDS", 1)))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--url")
    arguments = parser.parse_args()
    if arguments.suite:
        suite = official_suite.load(arguments.suite)
        schemas = {name: group["schema"] for name, group in suite.items()}
    else:
        schemas = {name: checking.load(name) for name in checking.names()}
    names = arguments.only or list(schemas)
    forms = ("content",) if arguments.suite else ("content", "tool")
    temperature = 1.5 if arguments.suite else 1
    tasks = [
        (name, seed, form, streaming)
        for name in names
        for seed in range(1, arguments.seeds + 1)
        for form in forms
        for streaming in ((seed % 2 == 1,) if arguments.seeds == 1 else (False, True))
    ]
    process, url = (None, arguments.url) if arguments.url else start(arguments.binary)
    begun = time.monotonic()

    def run(task):
        once = not arguments.suite and task[0] not in OPEN
        return check(url, copy.deepcopy(schemas[task[0]]), temperature, *task, once)

    try:
        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            results = list(pool.map(run, tasks))
    finally:
        if process:
            process.terminate()
            process.wait(timeout=60)
    cut, refused = collections.Counter(), set()
    faults = []
    for task, result in zip(tasks, results):
        if result == "length":
            cut[task[0]] += 1
        elif arguments.suite and result and result.startswith("refused:"):
            refused.add(task[0])
        elif result:
            faults.append(f"{task}: {result}")
    num_answers = sum(task[0] not in refused for task in tasks)
    enforced = len(names) - len(refused)
    print(f"{enforced} of {len(names)} schemas enforced, {num_answers} answers in "
          f"{time.monotonic() - begun:.0f} s: {len(faults)} faults, {sum(cut.values())} cut by "
          "max_completion_tokens")
    if cut:
        print("cut:", dict(cut.most_common()))
    least = official_suite.NUM_ENFORCED_OVER_HTTP
    if arguments.suite and not arguments.only and enforced < least:
        faults.append(f"fewer than {least} schemas are enforced")
    print("\n".join(faults[:40]))
    # A cut answer is no fault of the grammar, but a schema that hardly ever ends is one.
    sys.exit(1 if faults or not tasks or sum(cut.values()) > num_answers // 20 else 0)


if __name__ == "__main__":
    main()
