"""Fields of requests, and what they do to answers."""

import json

import pytest

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
    assert "".join(echoed["logprobs"]["tokens"]) == echoed["text"]
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
        if response.status == 400 and "not available" in response.text:
            pytest.skip("this build has no structured output")
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
