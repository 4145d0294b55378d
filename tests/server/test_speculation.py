"""A server with --spec ngram answers what a server without it answers, and says what came of its
drafts: in usage, in the metrics, and in /server_info."""

import json
import os
import re
import subprocess
import time

import pytest

from server import MODEL, Server, skip_without_structured_output

CHAT, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
TOKENS = 5
FLAGS = ("--spec", "ngram", "--spec-tokens", str(TOKENS), "--prompt-lookup-min", "1",
         "--prompt-lookup-max", "4")
REPEATS = "Say it again: red, green, blue, red, green, blue, red, green, blue, red, green, blue."
SCHEMA = {"type": "json_schema", "json_schema": {"name": "list", "schema": {
    "type": "object", "required": ["words", "count"], "additionalProperties": False, "properties": {
        "words": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 4,
                  "maxItems": 9},
        "count": {"type": "integer"}}}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


@pytest.fixture(scope="module", params=["on", "off"])
def drafting(request):
    with Server(*FLAGS, "--spec-adaptive", request.param) as running:
        running.always_drafts = request.param == "off"
        yield running


def chat(text=REPEATS, **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 120, **fields}


ASKED = {
    "greedy": (CHAT, chat()),
    "greedy, other text": (CHAT, chat("What is 17 + 25?")),
    "seeded": (CHAT, chat(temperature=1, seed=5)),
    "seeded, filtered": (CHAT, chat(temperature=1.3, top_p=0.9, top_k=20, min_p=0.01, seed=6)),
    "n": (CHAT, chat(temperature=1, seed=7, n=4)),
    "schema": (CHAT, chat(response_format=SCHEMA)),
    "schema, seeded": (CHAT, chat(response_format=SCHEMA, temperature=1, seed=8)),
    "penalties": (CHAT, chat(frequency_penalty=0.4, presence_penalty=0.3)),
    "repetition": (CHAT, chat(repetition_penalty=1.2)),
    "bias": (CHAT, chat(logit_bias={"5": 3, "300": -100}, min_tokens=30)),
    "stop strings": (CHAT, chat(stop=["green, blue", "never this"])),
    "logprobs": (CHAT, chat(logprobs=True, top_logprobs=3)),
    "tools": (CHAT, chat("What is the weather in Paris?", tools=[WEATHER])),
    "forced tools": (CHAT, chat("Paris, Paris, Paris", tools=[WEATHER], tool_choice="required")),
    "completion": (TEXTS, {"prompt": "one two three one two three one two", "max_tokens": 90}),
    "completion, echo": (TEXTS, {"prompt": "one two one two one", "max_tokens": 60, "echo": True,
                                 "logprobs": 2}),
    "completion, several": (TEXTS, {"prompt": ["a b c a b c a", "c c c c c"], "max_tokens": 60, "n": 2,
                                    "temperature": 1, "seed": 1}),
    "response": (RESPONSES, {"input": REPEATS, "max_output_tokens": 120}),
    "message": (MESSAGES, {"model": MODEL, **chat()}),
    "message, hot": (MESSAGES, {"model": MODEL, **chat(temperature=1, top_k=1)}),
}


def without_numbers(value):
    """The answer but for ids, times, usage and the last digits of log-probabilities."""
    if isinstance(value, dict):
        return {name: without_numbers(one) for name, one in value.items()
                if name not in ("id", "created", "created_at", "completed_at", "usage", "call_id")}
    if isinstance(value, list):
        return [without_numbers(one) for one in value]
    return round(value, 2) if isinstance(value, float) else value


def check_counts(counts):
    assert list(counts) == ["drafts", "draft_tokens", "accepted_tokens", "accepted_per_position"]
    places = counts["accepted_per_position"]
    assert len(places) == TOKENS and sum(places) == counts["accepted_tokens"]
    assert places == sorted(places, reverse=True)
    assert counts["drafts"] <= counts["draft_tokens"] <= counts["drafts"] * TOKENS
    assert counts["accepted_tokens"] <= counts["draft_tokens"] and places[0] <= counts["drafts"]


@pytest.mark.parametrize("name", ASKED)
def test_answers_are_those_of_a_server_without(server, drafting, name):
    path, body = ASKED[name]
    plain, drafted = server.post(path, body), drafting.post(path, body)
    skip_without_structured_output(plain.status == 400 and "not available" in plain.text)
    assert plain.status == drafted.status == 200, drafted.text
    plain, drafted = plain.json(), drafted.json()
    assert without_numbers(drafted) == without_numbers(plain)
    counts = drafted["usage"].pop("speculation")
    check_counts(counts)
    assert "speculation" not in plain["usage"]
    tokens = "output_tokens" if path in (RESPONSES, MESSAGES) else "completion_tokens"
    assert drafted["usage"][tokens] == plain["usage"][tokens]
    assert counts["accepted_tokens"] < drafted["usage"][tokens]


def test_metrics_are_the_sum_of_usage(drafting):
    names = {"drafts": "num_drafts", "draft_tokens": "num_draft_tokens",
             "accepted_tokens": "num_accepted_tokens"}

    def counters():
        read = {name: drafting.metric(f"vllm:spec_decode_{metric}_total")
                for name, metric in names.items()}
        places = [drafting.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                                  f'position="{place}"') for place in range(TOKENS)]
        return {**read, "accepted_per_position": places}

    def settled():  # those of requests before may still be on their way
        read = counters()
        while True:
            time.sleep(0.2)
            if (again := counters()) == read:
                return read
            read = again

    before = settled()
    asked = []
    # Whether an adaptive server drafts depends on what launches cost here: it may find that drafts do
    # not pay, and has few from then on.
    while len(asked) < 4 or not any(one["accepted_tokens"] for one in asked):
        if len(asked) >= 30:
            assert not drafting.always_drafts, "no draft was accepted in 30 texts"
            break
        body = chat(temperature=0.5, seed=len(asked)) if len(asked) % 2 else chat()
        asked.append(drafting.post(CHAT, body).json()["usage"]["speculation"])
    sums = {name: sum(one[name] for one in asked) for name in names}
    end = time.monotonic() + 10
    while True:  # the service tells its counters behind the answers of a step
        after = counters()
        told = {name: after[name] - before[name] for name in names}
        if told == sums or time.monotonic() > end:
            break
    assert told == sums
    for place in range(TOKENS):
        assert (after["accepted_per_position"][place] - before["accepted_per_position"][place] ==
                sum(one["accepted_per_position"][place] for one in asked))


def test_streams_have_the_counts_in_their_usage(server, drafting):
    for path, body in ((CHAT, chat()), (TEXTS, ASKED["completion"][1])):
        whole = drafting.post(path, body).json()
        events = drafting.post(path, {**body, "stream": True,
                                      "stream_options": {"include_usage": True}}).events()
        check_counts(events[-2]["usage"]["speculation"])
        choice = "text" if path == TEXTS else "delta"
        text = "".join(event["choices"][0][choice] if path == TEXTS else
                       event["choices"][0][choice].get("content") or "" for event in events[:-2])
        assert text == (whole["choices"][0]["text"] if path == TEXTS else
                        whole["choices"][0]["message"]["content"] or "")
    events = drafting.post(RESPONSES, {"input": REPEATS, "max_output_tokens": 120,
                                       "stream": True}).events()
    done = [event for event in events if event != "[DONE]" and
            event["type"] in ("response.completed", "response.incomplete")]
    check_counts(done[0]["response"]["usage"]["speculation"])
    events = drafting.post(MESSAGES, {**ASKED["message"][1], "stream": True}).events()
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    check_counts(events[-2]["usage"]["speculation"])
    assert "speculation" not in events[0]["message"]["usage"]  # nothing is drafted yet


def test_server_info_names_the_method(server, drafting):
    info = drafting.get("/server_info").json()["speculation"]
    assert info["method"] == "ngram" and info["num_speculative_tokens"] == TOKENS
    assert "speculation" not in server.get("/server_info").json()
    assert "spec_decode" not in server.get("/metrics").text
    assert f"drafts   ngram, at most {TOKENS} tokens" in drafting.output()


def test_a_plan_counts_what_a_server_with_a_head_counts():
    for method in ("eagle3", "dflash"):
        with Server("--spec", method) as running:
            memory, head = (re.search(pattern, running.output(), re.M).group(1) for pattern in (
                r"^  memory   (.*) of .* free", r"draft head ([^,\n]*)"))
            line = re.search(r"^  drafts   (.*)", running.output(), re.M).group(1)
        plan = json.loads(subprocess.run(
            [os.environ["MOXIE_BINARY"], "plan", "--json", "--spec", method],
            capture_output=True, check=True).stdout)["serve"]
        assert plan["speculation"]["head"]["boundaries"] == [2, 5, 7]
        assert line.startswith(f"{method}, boundaries 2, 5, 7 of the target, ")
        assert ("mask token 4066" in line) == (method == "dflash")
        for said, counted in ((memory, plan["total_bytes"]),
                              (head, plan["speculation"]["head"]["bytes"])):
            assert said.endswith(" MiB") and abs(float(said[:-4]) - counted / 2**20) < 0.06


def test_vllms_config_starts_the_same():
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4,
              "prompt_lookup_min": 2, "rejection_sample_method": "standard"}
    with Server("--speculative-config", json.dumps(config)) as running:
        usage = running.post(CHAT, chat()).json()["usage"]["speculation"]
        assert len(usage["accepted_per_position"]) == 3
        assert "rejection_sample_method is not used here" in running.output()
