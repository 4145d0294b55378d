"""Fields of requests, and what they do to answers."""

import json
import os
import re
import threading
import time

import pytest

from server import skip_without_structured_output

ASK = [{"role": "user", "content": "What is 17 + 25?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def ask(server, status=200, **fields):
    response = server.post(CHAT, {"messages": ASK, **fields})
    assert response.status == status, response.text
    return response.json()


@pytest.mark.parametrize("fields, param, code", [
    ({"temperature": 3}, "temperature", "decimal_above_max_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"top_p": 1.5}, "top_p", "decimal_above_max_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"n": 10**30}, "n", "invalid_type"),
    ({"stop": [""]}, "stop[0]", "empty_string"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stop": ["a"] * 17}, "stop", "array_above_max_length"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "decimal_above_max_value"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "integer_below_min_value"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
    ({"model": "gpt-5"}, "model", "model_not_found"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name",
     "invalid_value"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
     "tools[0].function.parameters", "invalid_type"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}},
      "tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.schema",
     "missing_required_parameter"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex",
     "invalid_value"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"functions": []}, "functions", "unsupported_parameter"),
    ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": {}}, "messages", "invalid_type"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].type", "unsupported_content_type"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "none"}]},
     "messages[0].tool_call_id", "invalid_value"),
])
def test_faulty_fields_are_named(server, fields, param, code):
    response = server.post(CHAT, {"messages": ASK, "max_tokens": 2, **fields} if "max_tokens" not in
                           fields and "min_tokens" not in fields else {"messages": ASK, **fields})
    assert response.status == (404 if param == "model" else 400), response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    assert error["message"] and error["type"] == "invalid_request_error"


def test_null_is_absent(server):
    names = ["temperature", "top_p", "n", "stop", "max_tokens", "tools", "tool_choice", "seed",
             "response_format", "logit_bias", "stream", "stream_options", "logprobs", "functions",
             "reasoning_effort", "best_of", "user"]
    assert ask(server, **{name: None for name in names})["choices"][0]["finish_reason"] == "stop"


def test_stop_strings_across_tokens(server):
    whole = ask(server)["choices"][0]["message"]["content"]
    assert len(whole) > 8
    for begin in range(1, len(whole) - 3):
        stop = whole[begin:begin + 3]
        expected = whole[:whole.index(stop)]
        answer = ask(server, stop=[stop, "never this"])["choices"][0]
        assert (answer["message"]["content"] or "") == expected
        assert answer["finish_reason"] == "stop" and answer["stop_reason"] == stop
        events = server.post(CHAT, {"messages": ASK, "stop": stop, "stream": True}).events()
        streamed = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1])
        assert streamed == expected
    kept = ask(server, stop=["="], include_stop_str_in_output=True)["choices"][0]["message"]["content"]
    assert kept == whole[:whole.index("=") + 1]


def test_streams_say_what_documents_say(server):
    fields = {"messages": ASK, "logprobs": True, "top_logprobs": 2, "seed": 3, "temperature": 1, "n": 2}
    whole = server.post(CHAT, fields).json()
    events = server.post(CHAT, {**fields, "stream": True,
                                "stream_options": {"include_usage": True}}).events()
    assert events[-1] == "[DONE]" and events[-2]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-2]["usage"][name] == whole["usage"][name]
    for choice in whole["choices"]:
        mine = [event["choices"][0] for event in events[:-2]
                if event["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"]["role"] == "assistant"
        for name in ("content", "reasoning", "reasoning_content"):
            streamed = "".join(part["delta"].get(name) or "" for part in mine)
            assert streamed == (choice["message"][name] or "")
        tokens = [entry for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert tokens == choice["logprobs"]["content"]
        assert "".join(entry["token"] for entry in tokens) == choice["message"]["content"]
        assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in tokens)
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_seeds_repeat_and_choices_differ(server):
    fields = {"messages": [{"role": "user", "content": "Tell me something."}], "temperature": 2,
              "n": 4, "max_tokens": 30}
    said = lambda seed: [str(choice["message"]["reasoning"]) + str(choice["message"]["content"])
                         for choice in server.post(CHAT, {**fields, "seed": seed}).json()["choices"]]
    first = said(11)
    assert said(11) == first
    assert len(set(first)) > 1
    assert said(12)[:3] == first[1:]  # choice i draws with seed + i


def test_lengths(server):
    answer = ask(server, max_completion_tokens=5)
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] is None
    assert ask(server, min_tokens=100, max_tokens=110)["usage"]["completion_tokens"] >= 100
    assert ask(server, ignore_eos=True, max_tokens=150)["usage"]["completion_tokens"] == 150


def test_bias_and_allowed_ids(server):
    token = server.post("/tokenize", {"prompt": "5"}).json()["tokens"][0]
    answer = server.post(TEXT, {"prompt": "1 2 3", "logit_bias": {str(token): 100}, "max_tokens": 4})
    assert answer.json()["choices"][0]["text"] == "5555"
    answer = server.post(TEXT, {"prompt": "1 2 3", "allowed_token_ids": [token], "max_tokens": 3})
    assert answer.json()["choices"][0]["text"] == "555"
    answer = server.post(TEXT, {"prompt": "1 2 3", "logit_bias": {str(token): 100}, "max_tokens": 4,
                                "stop_token_ids": [token]}).json()["choices"][0]
    assert answer["finish_reason"] == "stop" and answer["stop_reason"] == token


def test_the_token_that_ends_an_answer_is_no_part_of_its_text(server):
    five, equals = (server.post("/tokenize", {"prompt": text}).json()["tokens"][0] for text in ("5", " ="))
    text = {"prompt": "1 2 3", "logit_bias": {str(five): 100}, "max_tokens": 4, "stop_token_ids": [five]}
    for fields, expected in (({}, ""), ({"include_stop_str_in_output": True}, "5"),
                             ({"skip_special_tokens": False}, "")):
        answer = server.post(TEXT, {**text, **fields, "logprobs": 0}).json()
        assert answer["choices"][0]["text"] == expected
        assert answer["choices"][0]["logprobs"]["tokens"] == ["5"]  # an entry for each drawn token
        assert answer["usage"]["completion_tokens"] == 1
        events = server.post(TEXT, {**text, **fields, "stream": True}).events()
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == expected
    for keeps in (False, True):
        choice = ask(server, stop_token_ids=[equals], include_stop_str_in_output=keeps)["choices"][0]
        assert choice["message"]["content"] == "17 + 25" + (" =" if keeps else "")
        assert choice["stop_reason"] == equals
    bound = server.post(TEXT, {"prompt": "1 2 3", "max_tokens": 9, "skip_special_tokens": False,
                               "structured_outputs": {"regex": "[0-9]{3}"}})
    skip_without_structured_output(bound.status == 400 and "not available" in bound.text)
    assert re.fullmatch("[0-9]{3}", bound.json()["choices"][0]["text"])


def test_completions(server):
    ids = server.post("/tokenize", {"prompt": "The sum of"}).json()["tokens"]
    by_text = server.post(TEXT, {"prompt": "The sum of", "max_tokens": 8}).json()
    by_ids = server.post(TEXT, {"prompt": ids, "max_tokens": 8}).json()
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
    assert by_text["usage"]["prompt_tokens"] == len(ids)
    many = server.post(TEXT, {"prompt": ["The sum of", "17"], "n": 2, "max_tokens": 8,
                              "temperature": 0}).json()
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    assert many["choices"][0]["text"] == many["choices"][1]["text"] == by_text["choices"][0]["text"]
    echoed = server.post(TEXT, {"prompt": "The sum of", "max_tokens": 8, "echo": True,
                                "logprobs": 1}).json()["choices"][0]
    assert echoed["text"] == "The sum of" + by_text["choices"][0]["text"]
    tokens = echoed["logprobs"]["tokens"]  # special ones have entries and no text
    assert re.sub(r"<\|[a-z]+\|>", "", "".join(tokens)) == echoed["text"]
    assert len(tokens) == len(ids) + 8
    assert echoed["logprobs"]["token_logprobs"][0] is None
    assert all(value <= 0 for value in echoed["logprobs"]["token_logprobs"][1:])
    only = server.post(TEXT, {"prompt": "The sum of", "max_tokens": 0, "echo": True,
                              "logprobs": 1}).json()
    assert only["choices"][0]["text"] == "The sum of"
    assert only["usage"]["completion_tokens"] == 0
    assert len(only["choices"][0]["logprobs"]["tokens"]) == len(ids)
    events = server.post(TEXT, {"prompt": "The sum of", "max_tokens": 8, "stream": True,
                                "echo": True}).events()
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == echoed["text"]
    assert server.post(TEXT, {"prompt": "x", "max_tokens": 0}).status == 400


def test_tokens_round_trip(server):
    for text in ("Hello, world", "Grüße 日本 🙂", " \n\t x", ""):
        tokens = server.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
        assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
        assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"] == text
    assert server.post("/detokenize", {"tokens": [10**6]}).status == 400
    assert server.post("/tokenize", {"prompt": "a", "messages": None}).status == 200
    both = server.post("/tokenize", {"prompt": "a", "messages": ASK})
    assert both.status == 400 and "exclude one another" in both.json()["error"]["message"]
    chat = server.post("/tokenize", {"messages": ASK}).json()
    rendered = server.post(CHAT + "/render", {"messages": ASK}).json()
    assert chat["tokens"] == rendered["token_ids"]
    assert rendered["prompt"].endswith("<|start|>assistant")
    assert ask(server)["usage"]["prompt_tokens"] == chat["count"]
    many = server.post(TEXT + "/render", {"prompt": ["a", "b c"]}).json()
    assert [entry["prompt"] for entry in many] == ["a", "b c"]


def test_roles_and_reasoning_reach_the_prompt(server):
    rendered = server.post(CHAT + "/render", {
        "reasoning_effort": "high",
        "tools": [{"type": "function", "function": {"name": "get-weather.v2", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "Weather in Rome?"},
            {"role": "assistant", "content": None, "reasoning_content": "I ask the tool.",
             "tool_calls": [{"id": "c1", "type": "function", "function": {
                 "name": "get-weather.v2", "arguments": "{\"city\":\"Rome\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]}).json()["prompt"]
    for part in ("Reasoning: high", "Be brief.\n\nBe kind.", "type get-weather.v2",
                 "<|channel|>analysis<|message|>I ask the tool.",
                 "to=functions.get-weather.v2", "{\"city\":\"Rome\"}",
                 "functions.get-weather.v2 to=assistant<|channel|>commentary<|message|>sunny"):
        assert part in rendered, part
    none = server.post(CHAT + "/render", {
        "messages": ASK, "tool_choice": "none",
        "tools": [{"type": "function", "function": {"name": "f"}}]}).json()["prompt"]
    assert "# Tools" not in none


def test_second_turn_recomputes_only_what_changed(server):
    first = ask(server, cache_salt="turns")
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    answer = first["choices"][0]["message"]["content"]
    second = server.post(CHAT, {"cache_salt": "turns", "messages": ASK + [
        {"role": "assistant", "content": answer}, {"role": "user", "content": "And 1 + 1?"}]}).json()
    details = second["usage"]["prompt_tokens_details"]
    first_prompt = first["usage"]["prompt_tokens"]
    assert first_prompt - 16 <= details["cached_tokens"] <= second["usage"]["prompt_tokens"]
    assert details["cache_report"]


def test_token_ids_are_returned(server):
    answer = ask(server, return_token_ids=True, max_tokens=9)
    assert len(answer["choices"][0]["token_ids"]) == 9
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    events = server.post(CHAT, {"messages": ASK, "max_tokens": 9, "return_token_ids": True,
                                "stream": True}).events()
    ids = sum((event["choices"][0].get("token_ids", []) for event in events[:-1]), [])
    assert ids == answer["choices"][0]["token_ids"]


@pytest.mark.parametrize("fields", [{}, {"stop": ["never written"]}, {"skip_special_tokens": False}])
def test_special_tokens_have_logprobs_like_others(server, fields):
    start = server.post(CHAT + "/render", {"messages": ASK}).json()["token_ids"][0]
    body = {"prompt": "1 2 3", "logit_bias": {str(start): 100}, "max_tokens": 6, "logprobs": 1,
            "ignore_eos": True, **fields}
    answer = server.post(TEXT, body).json()
    choice, text = answer["choices"][0], "" if "skip_special_tokens" not in fields else "<|start|>"
    assert choice["text"] == 6 * text and answer["usage"]["completion_tokens"] == 6
    lists = choice["logprobs"]
    assert lists["tokens"] == 6 * ["<|start|>"] and len(lists["token_logprobs"]) == 6
    assert lists["text_offset"] == [i * len(text) for i in range(6)]
    parts = [event["choices"][0] for event in server.post(TEXT, {**body, "stream": True}).events()[:-1]]
    assert sum((part["logprobs"]["tokens"] for part in parts), []) == lists["tokens"]


def test_the_token_that_ends_a_completion_has_logprobs(server):
    whole = ask(server, temperature=0, return_token_ids=True)
    answer = whole["choices"][0]["token_ids"]
    prompt = server.post(CHAT + "/render", {"messages": ASK}).json()["token_ids"] + answer[:-1]
    fields = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    for echoed in (0, len(prompt)):
        body = {**fields, "echo": echoed > 0}
        choice = server.post(TEXT, body).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        lists = choice["logprobs"]
        assert [len(values) for values in lists.values()] == 4 * [echoed + 1]
        assert lists["tokens"][-1].startswith("<|") and lists["token_logprobs"][-1] <= 0
        assert lists["text_offset"][-1] == len(choice["text"])
        events = server.post(TEXT, {**body, "stream": True}).events()[:-1]
        parts = [event["choices"][0]["logprobs"] for event in events]
        assert {name: sum((part[name] for part in parts), []) for name in lists} == lists
    # A stop token that was asked for, too.
    first = server.post(TEXT, {**fields, "prompt": "The sum of", "return_token_ids": True}).json()
    token = first["choices"][0]["token_ids"][0]
    stopped = server.post(TEXT, {**fields, "prompt": "The sum of", "stop_token_ids": [token]}).json()
    choice = stopped["choices"][0]
    assert choice["text"] == "" and choice["stop_reason"] == token
    assert choice["logprobs"]["tokens"] == first["choices"][0]["logprobs"]["tokens"]


def test_prompt_logprobs(server):
    answer = ask(server, prompt_logprobs=1, max_tokens=1)
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert all(entry["logprob"] <= 0 for at in answer["prompt_logprobs"][1:] for entry in at.values())


def test_include_reasoning_false(server):
    answer = ask(server, include_reasoning=False)["choices"][0]["message"]
    assert answer["reasoning"] is None and answer["content"]
    events = server.post(CHAT, {"messages": ASK, "include_reasoning": False, "stream": True}).events()
    assert not any("reasoning" in event["choices"][0]["delta"] for event in events[:-1])


@pytest.mark.parametrize("fields, check", [
    ({"guided_regex": "[0-9]{3}-[a-z]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
    ({"guided_choice": ["red", "green"]}, lambda text: text in ("red", "green")),
    ({"structured_outputs": {"choice": ["yes"]}}, lambda text: text == "yes"),
    ({"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}},
                      "required": ["a"], "additionalProperties": False}},
     lambda text: isinstance(json.loads(text)["a"], int)),
    ({"response_format": {"type": "json_object"}, "temperature": 0, "messages": [
        {"role": "user", "content": "Write JSON with the fields name and age: Anna is 30 years old."}]},
     lambda text: isinstance(json.loads(text), dict)),
    ({"guided_grammar": "root ::= \"ab\" | \"cd\""}, lambda text: text in ("ab", "cd")),
])
def test_structured_outputs(server, fields, check):
    for stream in (False, True):
        response = server.post(CHAT, {"messages": ASK, "temperature": 1, "seed": 1, "max_tokens": 600,
                                      "stream": stream, **fields})
        skip_without_structured_output(response.status == 400 and "not available" in response.text)
        assert response.status == 200, response.text
        if stream:
            text = "".join(event["choices"][0]["delta"].get("content") or ""
                           for event in response.events()[:-1])
        else:
            text = response.json()["choices"][0]["message"]["content"]
        assert check(text), text


def test_schema_that_cannot_be_enforced_is_400(server):
    response = server.post(CHAT, {"messages": ASK, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}})
    assert response.status == 400
    assert response.json()["error"]["param"].startswith("response_format")


def need_structured_output(server):
    response = server.post(CHAT, {"messages": ASK, "guided_choice": ["yes"]})
    if "not available" in response.text:
        pytest.skip("this build has no structured output")


@pytest.mark.parametrize("parameters, word", [
    ({"type": "strnig"}, "strnig"),
    ({"type": "object", "properties": {"a": {"type": "string", "minLength": "1"}}}, "minLength"),
    ({"type": "object", "not": {}, "properties": []}, "properties"),
])
def test_a_tool_whose_parameters_are_no_schema_is_400(server, parameters, word):
    need_structured_output(server)
    for strict in ({}, {"strict": False}, {"strict": True}):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters, **strict}}]
        for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
            error = ask(server, 400, tools=tools, tool_choice=choice)["error"]
            assert error["param"] == "tools" and word in error["message"]


def test_a_call_that_must_come_is_bound_unless_the_tool_is_not_strict(server):
    need_structured_output(server)
    function = {"name": "f", "parameters": {"type": "object", "not": {"required": ["a"]}}}

    def answer(status, choice, **strict):
        tools = [{"type": "function", "function": {**function, **strict}}]
        return ask(server, status, tools=tools, tool_choice=choice, max_tokens=200)

    for choice, strict in (("auto", {}), ("auto", {"strict": False}), ("required", {"strict": False})):
        relaxed = answer(200, choice, **strict)["choices"][0]
        assert "not is not supported" in relaxed["warnings"][0]
    for choice, strict in (("required", {}), ("required", {"strict": True}), ("auto", {"strict": True}),
                           ({"type": "function", "function": {"name": "f"}}, {})):
        assert "not is not supported" in answer(400, choice, **strict)["error"]["message"]


def text_of(server, prompt="The sum of", **fields):
    return server.post(TEXT, {"prompt": prompt, "max_tokens": 24, **fields}).json()["choices"][0]["text"]


def test_bad_words_are_not_written(server):
    plain = text_of(server)
    words = [word for word in plain.split() if word.isalpha()]
    for word in words[:3]:
        assert word not in text_of(server, bad_words=[word]).split()
    pair = " ".join(words[:2])
    assert pair in plain and pair not in text_of(server, bad_words=[pair])
    assert text_of(server, bad_words=["nothing of this"]) == plain
    # Harmony's own words are no text of the answer.
    answer = ask(server, bad_words=["analysis", "final", "assistant"])["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] and answer["message"]["reasoning"]
    for fields in ({"bad_words": ["a"], "allowed_token_ids": [5]}, {"bad_words": [""]},
                   {"bad_words": "a"}, {"bad_words": ["a"] * 1025}):
        assert ask(server, 400, **fields)["error"]["param"].startswith("bad_words")


def test_what_leaves_no_token_is_the_requests_fault(server):
    response = server.post(CHAT, {"messages": ASK, "guided_choice": ["yes"], "bad_words": ["yes"]})
    skip_without_structured_output("not available" in response.text)
    assert response.json()["choices"][0]["message"]["content"] == "yes"  # the schema goes first
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in ({"guided_choice": ["yes"]}, {"response_format": {"type": "json_object"}},
                   {"tools": tools}, {"tools": tools, "tool_choice": "required"}):
        for stream in (False, True):
            error = ask(server, 400, allowed_token_ids=[5], stream=stream, **fields)["error"]
            assert error["param"] == "allowed_token_ids"
    # Nothing can follow the "a" of this grammar.
    error = ask(server, 400, guided_grammar="root ::= \"a\" [b-c] x\nx ::= [^\\x00-\\U0010ffff]")
    assert error["error"]["type"] == "invalid_request_error"


def test_truncated_prompts(server):
    ids = server.post("/tokenize", {"prompt": "one two three four five six seven"}).json()["tokens"]
    for fields, kept in (({"truncate_prompt_tokens": 3}, ids[-3:]),
                         ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, ids[:3]),
                         ({"truncate_prompt_tokens": 1000}, ids),
                         ({"truncate_prompt_tokens": -1}, ids)):
        for prompt in (ids, "one two three four five six seven"):
            rendered = server.post(TEXT + "/render", {"prompt": prompt, **fields}).json()
            assert rendered[0]["token_ids"] == kept, fields
    limit = server.get("/v1/models").json()["data"][0]["max_model_len"]
    usage = server.post(TEXT, {"prompt": "word " * 100_000, "max_tokens": 5,
                               "truncate_prompt_tokens": -1}).json()["usage"]
    assert usage["prompt_tokens"] == limit - 5
    for fields in ({"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": -2},
                   {"truncation_side": "middle"}, {"truncate_prompt_tokens": 10**6, "prompt": [5] * limit}):
        assert server.post(TEXT, {"prompt": "x", **fields}).status == 400


def test_tokens_are_named_by_ids(server):
    fields = {"logprobs": True, "top_logprobs": 2}
    plain = ask(server, **fields)["choices"][0]["logprobs"]["content"]
    named = ask(server, return_tokens_as_token_ids=True, **fields)["choices"][0]["logprobs"]["content"]
    ids = [int(entry["token"].removeprefix("token_id:")) for entry in named]
    assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == "".join(
        entry["token"] for entry in plain)
    assert [entry["bytes"] for entry in named] == [entry["bytes"] for entry in plain]
    fields = {"prompt": "The sum", "logprobs": 1, "max_tokens": 4, "return_token_ids": True}
    plain = server.post(TEXT, fields).json()["choices"][0]
    named = server.post(TEXT, {**fields, "return_tokens_as_token_ids": True}).json()["choices"][0]
    assert named["logprobs"]["tokens"] == [f"token_id:{id}" for id in named["token_ids"]]
    assert named["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 1}, {"logprobs": 2, "n": 2},
                                    {"echo": True, "logprobs": 0, "max_tokens": 0}])
def test_completions_stream_logprobs_as_documents_have_them(server, fields):
    fields = {"prompt": ["The sum of", "17"], "max_tokens": 6, "seed": 4, "temperature": 1, **fields}
    whole = server.post(TEXT, fields).json()["choices"]
    events = server.post(TEXT, {**fields, "stream": True}).events()
    for choice in whole:
        mine = [event["choices"][0] for event in events[:-1]
                if event["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert sum((part["logprobs"][name] for part in mine), []) == choice["logprobs"][name]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]


def test_head_of_a_stream_has_no_body(server):
    events = server.post("/v1/responses", {"input": "x", "max_output_tokens": 2, "background": True,
                                           "stream": True}).events()
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    assert server.get(path).events() == events
    with server.connect() as connection:
        connection.send_request("HEAD", path)
        assert connection.read_response(has_body=False).status == 200
        connection.send_request("GET", "/health")
        assert connection.read_response().json()["status"] == "ok"


def test_responses_leave_out_what_is_too_long(server):
    said = lambda name, length: {"role": "user", "content": f"My name is {name}. " + "word " * length}
    items = [said("Anna", 2000),
             {"type": "function_call", "call_id": "c", "name": "f", "arguments": "word " * 6000},
             {"type": "function_call_output", "call_id": "c", "output": "word " * 6000},
             said("Ben", 3000), said("Carl", 20)]
    ends = {"stop_token_ids": list(range(4096))}  # with the first token
    fields = {"input": items, "max_output_tokens": 5000, **ends}
    error = server.post("/v1/responses", fields).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    whole = server.post("/v1/responses", {**fields, "truncation": "auto"}).json()
    # Without Anna's and the call it would fit, but a result without its call tells nothing.
    assert whole["truncation"] == "auto" and "first 3 messages" in whole["warnings"][-1]
    assert 3000 < whole["usage"]["input_tokens"] < 3300
    # What was left out is kept, and left out of what follows.
    next_turn = {"previous_response_id": whole["id"], "input": "Who am I?", **ends}
    assert server.post("/v1/responses", next_turn).status == 400
    assert server.post("/v1/responses", {**next_turn, "truncation": "auto"}).status == 200
    # The last message stays, and what fits is left alone.
    alone = server.post("/v1/responses", {"input": "word " * 20_000, "truncation": "auto"})
    assert alone.status == 400 and alone.json()["error"]["code"] == "context_length_exceeded"
    short = server.post("/v1/responses", {"input": "Hello", "truncation": "auto", "max_output_tokens": 1})
    assert "warnings" not in short.json() or "truncation" not in str(short.json()["warnings"])
    assert server.post("/v1/responses", {"input": "x", "truncation": "middle"}).status == 400


def test_long_constraints_hold_up_only_one_another(server):
    need_structured_output(server)
    slow = [threading.Thread(target=server.post, daemon=True, args=(
        TEXT, {"prompt": "a", "max_tokens": 1, "guided_choice": [f"{i:03d}{j:03d}" * 16 for j in range(500)]}))
        for i in range(4)]
    for thread in slow:
        thread.start()
    time.sleep(0.3)  # they are read
    assert server.post(CHAT, {"messages": ASK, "max_tokens": 1}).status == 200
    assert sum(thread.is_alive() for thread in slow) >= 3
    for thread in slow:
        thread.join()
    error = server.post(TEXT, {"prompt": "a", "guided_choice": ["ab" * 10_000] * 10}).json()["error"]
    assert error["param"] == "guided_choice" and "131072 bytes" in error["message"]


DEAD_END = 'root ::= "a" b\nb ::= [^\\x00-\\U0010ffff]'


@pytest.mark.parametrize("path, fields", [
    (CHAT, {"messages": ASK, "max_tokens": 400}), (TEXT, {"prompt": "x", "max_tokens": 400}),
    ("/v1/responses", {"input": "What is 17 + 25?", "max_output_tokens": 400})])
def test_dead_ends_are_the_requests_fault(server, path, fields):
    fields = {**fields, "structured_outputs": {"grammar": DEAD_END}}
    answer = server.post(path, fields)
    skip_without_structured_output("not available" in answer.text)
    assert answer.status == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    events = server.post(path, {**fields, "stream": True}).events()
    if path == "/v1/responses":
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "invalid_prompt"
    else:
        assert events[-2]["error"]["type"] == "invalid_request_error" and events[-1] == "[DONE]"


def test_what_no_queue_could_hold_is_400(server):
    error = server.post(TEXT, {"prompt": ["a"] * 1024, "n": 64, "max_tokens": 1})
    assert error.status == 400 and "65536 answers" in error.json()["error"]["message"]
    error = server.post(TEXT, {"prompt": ["word " * 8000] * 100, "n": 50, "max_tokens": 1})
    assert error.status == 400 and error.json()["error"]["param"] == "n"
    most = server.post(TEXT, {"prompt": ["a"] * 64, "n": 64, "max_tokens": 1})
    assert len(most.json()["choices"]) == 4096


def test_kernels_that_ran_are_listed(server):
    before = {(row["step"], row["name"]): row["launches"]
              for row in server.get("/debug/kernels").json()["kernels"]}
    ask(server, max_tokens=5)
    after = server.get("/debug/kernels").json()
    assert after["model"] == "embedded" and after["device"] not in ("", "auto")
    for step in ("embed", "qkv", "attend", "out", "route", "experts", "unembed", "sample"):
        assert any(row["step"] == step and row["launches"] > before.get((step, row["name"]), 0)
                   for row in after["kernels"]), step


def test_offsets_count_characters(server):
    answer = server.post(TEXT, {"prompt": "Gr\u00fc\u00dfe 17 + 25", "echo": True, "logprobs": 0,
                                "max_tokens": 4, "temperature": 0}).json()["choices"][0]
    lists = answer["logprobs"]
    whole = [(token, offset) for token, offset in zip(lists["tokens"], lists["text_offset"])
             if "\ufffd" not in token]  # not the half of a character
    assert len(whole) > 8 and len(answer["text"].encode()) > len(answer["text"])
    for token, offset in whole:
        assert answer["text"][offset:].startswith(token), (token, offset)


def test_json_without_white_space(server):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {
        "type": "integer"}, "minItems": 2, "maxItems": 3}}, "required": ["a", "b"]}
    for fields in ({"json": schema}, {"json_object": True}):
        answer = server.post(CHAT, {"messages": ASK, "max_tokens": 500, "temperature": 1, "seed": 4,
                                    "structured_outputs": {**fields, "disable_any_whitespace": True}})
        skip_without_structured_output(answer.status == 400 and "not available" in answer.text)
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            text = choice["message"]["content"]
            json.loads(text)
            assert not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)), text
        else:
            assert "json" not in fields, choice


# Sampling and extra parameters of vLLM's two request classes, as of 2026.
VLLM = """add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
    chat_template_kwargs continue_final_message documents ec_transfer_params echo frequency_penalty
    ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias
    logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs min_p min_tokens
    mm_processor_kwargs n parallel_tool_calls presence_penalty priority prompt_logprobs
    reasoning_effort repetition_detection repetition_penalty request_id response_format
    return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
    return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens
    spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options
    structured_outputs temperature thinking_token_budget tool_choice tools top_k top_logprobs top_p
    truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
    guided_whitespace_pattern structural_tag""".split()
CHAT_ONLY = """add_generation_prompt chat_template chat_template_kwargs continue_final_message documents
    include_reasoning max_completion_tokens media_io_kwargs mm_processor_kwargs parallel_tool_calls
    reasoning_effort return_prompt_text tool_choice tools top_logprobs""".split()


RESPONSES_TOO = """top_k min_p include_stop_str_in_output skip_special_tokens request_id priority
    mm_processor_kwargs cache_salt enable_response_messages previous_input_messages previous_response
    structured_outputs repetition_penalty seed stop ignore_eos vllm_xargs logit_bias""".split()


def test_every_field_of_vllm_is_known(server):
    paths = server.get("/openapi.json").json()["paths"]
    for path, names in ((CHAT, VLLM), (TEXT, set(VLLM) - set(CHAT_ONLY) | {"prompt_embeds"}),
                        ("/v1/responses", RESPONSES_TOO)):
        known = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        assert set(names) <= set(known), set(names) - set(known)


def test_every_field_stands_in_the_documentation(server):
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "api.md")
    with open(page) as file:
        words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]+`", file.read()))))
    for path, methods in server.get("/openapi.json").json()["paths"].items():
        for operation in methods.values():
            names = {parameter["name"] for parameter in operation.get("parameters", [])}
            if "requestBody" in operation:
                names |= set(operation["requestBody"]["content"]["application/json"]["schema"][
                    "properties"])
            assert names <= words, (path, names - words)


# What follows are complaints about other servers for this model.

def test_faults_are_no_200_in_streams(server):
    for fields in ({"messages": [{"role": "user", "content": "word " * 20_000}]},
                   {"response_format": {"type": "json_schema", "json_schema": {
                       "name": "n", "schema": {"type": "nonsense"}}}},
                   {"model": "other"}, {"tool_choice": "required"}):
        response = server.post(CHAT, {"messages": ASK, "stream": True, **fields})
        assert response.status in (400, 404) and response.json()["error"]["message"]


def test_chunks_hold_no_null_role_or_content(server):
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in ({}, {"n": 2}, {"tools": tools, "tool_choice": "required"}, {"max_tokens": 3}):
        response = server.post(CHAT, {"messages": ASK, "stream": True, **fields})
        if response.status == 400 and "not available" in response.text:
            continue
        roles = 0
        for event in response.events()[:-1]:
            delta = event["choices"][0]["delta"]
            assert None not in delta.values(), event
            roles += "role" in delta
        assert roles == fields.get("n", 1)


def test_hot_answers_stay_whole(server):
    """At a temperature that breaks headers, nothing fails, and no control token is shown."""
    asked = {"messages": [{"role": "user", "content": "Tell me something."}], "temperature": 2,
             "max_tokens": 120, "n": 8}
    for fields in ({}, {"tools": [{"type": "function", "function": {"name": "web-browsing.v2",
                    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}]}):
        for seed in (1, 100, 200):
            for choice in server.post(CHAT, {**asked, **fields, "seed": seed}).json()["choices"]:
                message, reason = choice["message"], choice["finish_reason"]
                calls = message.get("tool_calls") or []
                shown = [message["content"] or "", message["reasoning"] or ""]
                shown += [call["function"]["arguments"] for call in calls]
                for name in ("start", "end", "message", "channel", "constrain", "return", "call"):
                    assert not any(f"<|{name}|>" in text for text in shown), shown
                assert (reason == "tool_calls") == (bool(calls) and reason != "length")
                assert reason in ("stop", "length", "tool_calls") and any(shown + calls)


def test_names_with_dashes_and_dots_are_called(server):
    for name in ("web-browsing", "get.weather.v2", "a_b-c.d"):
        for stream in (False, True):
            response = server.post(CHAT, {
                "messages": ASK, "stream": stream, "temperature": 1, "seed": 5, "max_tokens": 400,
                "tool_choice": {"type": "function", "function": {"name": name}},
                "tools": [{"type": "function", "function": {"name": other, "parameters": {
                    "type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"],
                    "additionalProperties": False}}} for other in ("web", name)]})
            skip_without_structured_output(response.status == 400 and "not available" in response.text)
            if stream:
                parts = [part["function"] for event in response.events()[:-1]
                         for part in event["choices"][0]["delta"].get("tool_calls", [])]
                called = parts[0]["name"], "".join(part["arguments"] for part in parts)
            else:
                call = response.json()["choices"][0]["message"]["tool_calls"][0]["function"]
                called = call["name"], call["arguments"]
            assert called[0] == name
            assert list(json.loads(called[1])) == ["q"]  # an object, in no array


def test_allowed_tools(server):
    tools = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "b", "c")]
    allowed = lambda names, mode="required": {"type": "allowed_tools", "allowed_tools": {
        "mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]}}
    fields = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
              "tools": tools, "temperature": 1, "n": 8, "seed": 1, "max_tokens": 300}
    response = server.post(CHAT, {**fields, "tool_choice": allowed(["b", "c"])})
    skip_without_structured_output(response.status == 400 and "not available" in response.text)
    called = [choice["message"]["tool_calls"][0]["function"]["name"]
              for choice in response.json()["choices"] if choice["finish_reason"] == "tool_calls"]
    assert called and set(called) <= {"b", "c"}
    for choice in server.post(CHAT, {**fields, "tool_choice": allowed(["b"], "auto")}).json()["choices"]:
        assert all(call["function"]["name"] == "b" for call in choice["message"].get("tool_calls") or [])
    render = lambda choice: server.post(CHAT + "/render", {
        "messages": ASK, "tools": tools, "tool_choice": choice}).json()["prompt"]
    assert render(allowed(["b"])) == render("auto")  # the prompt stays the same, and cached
    flat = server.post("/v1/responses", {"input": "x", "max_output_tokens": 300, "tools": [
        {"type": "function", "name": name} for name in ("b", "c")], "tool_choice": {
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "c"}]}})
    assert flat.json()["output"][-1]["name"] == "c"
    for choice in (allowed([]), allowed(["d"]), allowed(["b"], "none"), {"type": "allowed_tools"}):
        error = ask(server, 400, tools=tools, tool_choice=choice)["error"]
        assert error["param"].startswith("tool_choice")


def test_reasoning_stays_free_beside_a_schema_and_tools(server):
    for with_tools in (False, True):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        response = server.post(CHAT, {
            "messages": ASK, "temperature": 0, "max_tokens": 400,
            **({"tools": tools} if with_tools else {}),
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
                "type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                "additionalProperties": False}}}})
        skip_without_structured_output(response.status == 400 and "not available" in response.text)
        choice = response.json()["choices"][0]
        assert choice["message"]["reasoning"] and not choice["message"]["reasoning"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"])["sum"], int)
        else:
            assert with_tools and choice["finish_reason"] == "tool_calls"


def test_a_tool_loop_finds_its_prefix_again(server):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    fields = {"tools": tools, "cache_salt": "loop"}
    first = server.post(CHAT, {"messages": messages, **fields}).json()
    message = first["choices"][0]["message"]
    call = message["tool_calls"][0]
    messages += [{name: message[name] for name in ("role", "content", "reasoning", "tool_calls")},
                 {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"}]
    second = server.post(CHAT, {"messages": messages, **fields}).json()
    page = 16
    written = first["usage"]["total_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    # The reasoning of an unfinished loop comes back, so that what was written is found too.
    assert first["usage"]["prompt_tokens"] < cached
    assert written - 2 * page <= cached <= second["usage"]["prompt_tokens"]
