"""One call of each kind, and what of its answer has to be the same every time."""

from server import MODEL, skip_without_structured_output

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
QUESTION = "What is 17 + 25?"
ASK = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]}}}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["sum"], "additionalProperties": False}
ANSWER = {"input": QUESTION, "temperature": 0, "store": False}
MESSAGE = {**ASK, "max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}}
STREAM = {"stream": True}
CALLS = {
    "chat": (CHAT, ASK),
    "stream": (CHAT, {**ASK, **STREAM, "stream_options": {"include_usage": True}}),
    "tools": (CHAT, {**ASK, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    "json_schema": (CHAT, {**ASK, "max_tokens": 300, "response_format": {
        "type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}}),
    "logprobs": (CHAT, {**ASK, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 3,
                        "temperature": 1, "max_tokens": 100}),
    "completions": (TEXT, {"prompt": "17 + 25 =", "max_tokens": 12, "temperature": 0}),
    "completions_stream": (TEXT, {"prompt": "3 + 4 =", "max_tokens": 12, "temperature": 0,
                                  **STREAM}),
    "completions_list": (TEXT, {"prompt": ["3 + 4 =", "5 + 6 ="], "max_tokens": 8, "logprobs": 1,
                                "temperature": 0}),
    "responses": (RESPONSES, ANSWER),
    "responses_stream": (RESPONSES, {**ANSWER, **STREAM}),
    "messages": (MESSAGES, MESSAGE),
    "messages_stream": (MESSAGES, {**MESSAGE, **STREAM}),
}


def call(target, name):
    """The answer to a call, without what differs from call to call."""
    path, body = CALLS[name]
    response = target.post(path, {**body, "model": MODEL})
    if name in ("tools", "json_schema"):
        skip_without_structured_output(response.status == 400 and "not available" in response.text)
    assert response.status == 200, response.text
    return (STREAMED if body.get("stream") else WHOLE)[path](response)


def whole_choices(response):
    document = response.json()
    assert document["usage"]["completion_tokens"] > 0
    return [essence(choice) for choice in document["choices"]]


def essence(choice):
    message = choice.get("message", {})
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return [choice["finish_reason"], choice.get("text"), message.get("content"),
            message.get("reasoning_content"), calls, choice["logprobs"]]


def whole_response(response):
    document = response.json()
    assert document["status"] == "completed" and document["usage"]["output_tokens"] > 0
    return [[item["type"], [part["text"] for part in item["content"]]]
            for item in document["output"]]


def whole_message(response):
    document = response.json()
    assert document["usage"]["output_tokens"] > 0
    return [document["stop_reason"], document["content"]]


def streamed_choices(response):
    events = response.events()
    assert events[-1] == "[DONE]"
    texts = {}
    for event in events[:-1]:
        if event.get("usage"):  # of the whole answer, in an event of its own
            assert event["usage"]["completion_tokens"] > 0 and event["choices"] == []
            texts["usage"] = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            for field, text in choice.get("delta", {"text": choice.get("text")}).items():
                texts[field] = texts.get(field, "") + (text or "")
    return texts


def streamed_parts(response):
    """The texts of the deltas, by type of event: of responses and of messages."""
    events = response.events()
    assert events[-1]["type"] in ("response.completed", "message_stop")
    texts = {}
    for event in events:
        delta = event.get("delta", "")
        if isinstance(delta, dict):
            delta = delta.get("text") or delta.get("thinking") or delta.get("stop_reason") or ""
        texts[event["type"]] = texts.get(event["type"], "") + delta
    return texts


WHOLE = {CHAT: whole_choices, TEXT: whole_choices, RESPONSES: whole_response,
         MESSAGES: whole_message}
STREAMED = {CHAT: streamed_choices, TEXT: streamed_choices, RESPONSES: streamed_parts,
            MESSAGES: streamed_parts}
