"""Clients as people have them, unmodified: each ends without error and gets what it asked for."""

import asyncio
import datetime
import http.server
import json
import os
import subprocess
import sys
import threading

import anthropic
import openai
import pytest
from pydantic import BaseModel, TypeAdapter

from server import MODEL, skip_without_structured_output

ASK = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
           "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
                                         "parameters": WEATHER}}
FLAT_TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city",
             "parameters": WEATHER, "strict": True}
WEATHER_ASK = "What is the weather in Paris?"


class Event(BaseModel):
    name: str
    day: int


def check(kind, document):
    """`document` is what the client's type says. The clients themselves build their types unchecked."""
    return TypeAdapter(kind).validate_python(document, strict=True)


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none",
                         max_retries=0)


@pytest.fixture(scope="session")
def claude(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none",
                               max_retries=0)


def test_openai_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_openai_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
    assert "42" in answer.choices[0].message.content
    assert answer.choices[0].message.reasoning == answer.choices[0].message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def test_openai_errors(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=7)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=ASK)


def test_openai_stream(client):
    said, usage = "", None
    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, stream=True,
                                                stream_options={"include_usage": True}):
        if chunk.choices:
            said += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert "42" in said and usage.total_tokens > 0


def test_openai_async(server):
    async def many():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1",
                                      api_key="none") as client:
            async def one(a):
                stream = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"What is {a} + 25?"}],
                    stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return await asyncio.gather(*(one(a) for a in range(10, 26)))
    answers = asyncio.run(many())
    right = [str(a + 25) in answer for a, answer in zip(range(10, 26), answers)]
    assert sum(right) >= 15, answers


def test_openai_tools_and_their_results(client):
    messages = [{"role": "user", "content": WEATHER_ASK}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0]
    assert first.finish_reason == "tool_calls"
    call = first.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    assert second.choices[0].message.content


def test_openai_tool_stream(client):
    with client.chat.completions.stream(model=MODEL, tools=[{**TOOL, "function": {
            **TOOL["function"], "strict": True}}],
            messages=[{"role": "user", "content": WEATHER_ASK}]) as stream:
        for _ in stream:
            pass
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}


@pytest.mark.parametrize("choice", ["required", {"type": "function",
                                                 "function": {"name": "get_weather"}}])
def test_openai_forced_tools(client, choice):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL],
                                            tool_choice=choice)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert set(json.loads(answer.choices[0].message.tool_calls[0].function.arguments)) == {"city"}


def test_openai_parse(client):
    answer = client.chat.completions.parse(model=MODEL, response_format=Event, max_tokens=400,
                                           messages=[{"role": "user", "content": "An event?"}])
    assert isinstance(answer.choices[0].message.parsed, Event)
    after = client.chat.completions.create(model=MODEL, max_tokens=1, messages=[
        {"role": "user", "content": "An event?"}, answer.choices[0].message, *ASK])
    assert after.usage.completion_tokens == 1


@pytest.mark.parametrize("member", ["provider_specific_fields", "thinking_blocks", "reasoning_items"])
def test_answers_come_back_as_clients_hold_them(client, member):
    """LiteLLM adds these to the messages that it returns, and agents append such a message."""
    held = {"role": "assistant", "content": "Hello.", member: {"refusal": None}}
    client.chat.completions.create(model=MODEL, max_tokens=1, messages=[*ASK, held, *ASK])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, max_tokens=1, messages=[
            {"role": "user", "content": "Hello.", member: {}}])


def test_openai_completions(client):
    answer = client.completions.create(model=MODEL, prompt="The sum of", max_tokens=8, logprobs=1)
    assert answer.choices[0].text and answer.choices[0].logprobs.tokens
    chunks = list(client.completions.create(model=MODEL, prompt="The sum of", max_tokens=8,
                                            stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_openai_completions_with_logprobs_of_their_own_tokens(client, server):
    from openai.types import Completion
    answer = server.post("/v1/completions", {"prompt": "The sum of", "max_tokens": 4, "logprobs": 0})
    lists = check(Completion, answer.json()).choices[0].logprobs
    assert lists.top_logprobs == [{token: logprob} for token, logprob in
                                  zip(lists.tokens, lists.token_logprobs)]


def test_openai_responses(client):
    answer = client.responses.create(model=MODEL, input="What is 17 + 25?", metadata={"a": "b"})
    assert "42" in answer.output_text and answer.status == "completed"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.metadata == {"a": "b"}
    kept = client.responses.retrieve(answer.id)
    assert kept.output_text == answer.output_text
    after = client.responses.create(model=MODEL, input="What is 2 + 3?",
                                    previous_response_id=answer.id)
    assert "5" in after.output_text
    assert after.usage.input_tokens > answer.usage.input_tokens
    assert len(client.responses.input_items.list(after.id).data) == 1
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    short = client.responses.create(model=MODEL, input="What is 17 + 25?", max_output_tokens=4,
                                    store=False)
    assert short.status == "incomplete"
    assert short.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(short.id)


def test_openai_responses_stream(client):
    with client.responses.stream(model=MODEL, input="What is 17 + 25?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "42" in final.output_text
    types = [event.type for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    for kind in ("output_item.added", "content_part.added", "reasoning_text.delta",
                 "reasoning_text.done", "output_text.delta", "output_text.done",
                 "content_part.done", "output_item.done"):
        assert "response." + kind in types
    assert [event.sequence_number for event in events] == list(range(len(events)))
    # Everything between an item's beginning and its end names that item.
    at = -1
    for event in events:
        if event.type == "response.output_item.added":
            at += 1
        if hasattr(event, "output_index"):
            assert event.output_index == at


def test_openai_responses_tools(client):
    with client.responses.stream(model=MODEL, input=WEATHER_ASK, tools=[FLAT_TOOL]) as stream:
        types = {event.type for event in stream}
        first = stream.get_final_response()
    assert {"response.function_call_arguments.delta",
            "response.function_call_arguments.done"} <= types
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}
    chained = client.responses.create(model=MODEL, input=[result], previous_response_id=first.id,
                                      tools=[FLAT_TOOL])
    # The same by hand, without the store.
    items = [{"role": "user", "content": WEATHER_ASK},
             *(item.model_dump(exclude_none=True) for item in first.output), result]
    by_hand = client.responses.create(model=MODEL, input=items, tools=[FLAT_TOOL], store=False)
    assert chained.output_text == by_hand.output_text != ""
    assert chained.usage.input_tokens == by_hand.usage.input_tokens


def test_openai_responses_parse(client):
    answer = client.responses.parse(model=MODEL, input="An event?", text_format=Event,
                                    max_output_tokens=400)
    assert isinstance(answer.output_parsed, Event)


def test_openai_responses_background(client, server):
    running = client.responses.create(model=MODEL, input="Count.", background=True, temperature=1,
                                      extra_body={"ignore_eos": True})
    assert running.status == "in_progress"
    assert client.responses.retrieve(running.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x", previous_response_id=running.id)
    assert client.responses.cancel(running.id).status == "cancelled"
    assert client.responses.retrieve(running.id).status == "cancelled"
    assert server.idle()
    done = client.responses.create(model=MODEL, input="What is 17 + 25?", background=True)
    while (kept := client.responses.retrieve(done.id)).status == "in_progress":
        pass
    assert kept.status == "completed" and "42" in kept.output_text
    assert client.responses.cancel(done.id).status == "completed"


def test_openai_responses_are_of_their_types(server):
    from openai.types.responses import Response, ResponseStreamEvent
    for fields in ({}, {"tools": [FLAT_TOOL], "input": WEATHER_ASK}, {"max_output_tokens": 20},
                   {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
                   {"background_options": {"completion_window": "soonest"}}):
        body = {"input": "What is 17 + 25?", **fields}
        answer = server.post("/v1/responses", body).json()
        check(Response, answer)
        assert (answer["completed_at"] is not None) == (answer["status"] == "completed")
        for event in server.post("/v1/responses", {**body, "stream": True}).events():
            check(ResponseStreamEvent, event)


def test_openai_responses_count_tokens(client):
    fields = {"model": MODEL, "input": WEATHER_ASK, "tools": [FLAT_TOOL], "instructions": "Be brief."}
    counted = client.responses.input_tokens.count(**fields)
    assert counted.object == "response.input_tokens"
    answer = client.responses.create(**fields, max_output_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens


def test_openai_responses_stream_again(client):
    with client.responses.create(model=MODEL, input="What is 17 + 25?", background=True,
                                 stream=True) as stream:
        seen = [next(iter(stream)) for _ in range(5)]  # and the connection is lost
    id = seen[0].response.id
    rest = list(client.responses.retrieve(id, stream=True, starting_after=4))
    assert [event.sequence_number for event in seen + rest] == list(range(len(seen + rest)))
    assert rest[-1].type == "response.completed" and "42" in rest[-1].response.output_text
    whole = list(client.responses.retrieve(id, stream=True))
    assert whole[5:] == rest and whole[:5] == seen
    assert list(client.responses.retrieve(id, stream=True, starting_after=1000)) == []
    running = client.responses.create(model=MODEL, input="Count.", background=True, stream=True,
                                      temperature=1, extra_body={"ignore_eos": True})
    id = next(iter(running)).response.id
    again = client.responses.retrieve(id, stream=True, starting_after=2)
    assert next(iter(again)).sequence_number == 3
    assert client.responses.cancel(id).status == "cancelled"
    for stream in (running, again):  # both hear of it
        assert list(stream)[-1].type == "response.cancelled"
    plain = client.responses.create(model=MODEL, input="x", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError):
        client.responses.retrieve(plain.id, stream=True)


def test_openai_responses_input_items(client):
    texts = [f"What is {i} + 1?" for i in range(45)]
    answer = client.responses.create(model=MODEL, max_output_tokens=2, input=[
        {"role": "user", "content": text} for text in texts])
    listed = lambda **fields: [item.content[0].text for item in
                               client.responses.input_items.list(answer.id, **fields)]
    assert listed() == texts[::-1]  # page after page
    assert listed(order="asc", limit=7) == texts
    page = client.responses.input_items.list(answer.id, limit=2, order="asc")
    assert len(page.data) == 2 and page.has_more
    assert page.data[-1].id == page.last_id
    for fields in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "nothing"}):
        with pytest.raises(openai.BadRequestError):
            client.responses.input_items.list(answer.id, **fields)


def test_openai_responses_input_items_are_of_their_types(client, server):
    from openai.types.responses import ResponseItemList
    answer = client.responses.create(model=MODEL, max_output_tokens=2, input=[
        {"role": "user", "content": "a"}, {"role": "developer", "content": ["b", "c"]},
        {"role": "user", "content": [{"type": "text", "text": "d"}]},
        {"role": "assistant", "content": "e"},
        {"type": "reasoning", "content": "f"},
        {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "g"},
        {"type": "message", "id": "msg_h", "role": "user", "content": "h"}])
    page = server.get(f"/v1/responses/{answer.id}/input_items?order=asc").json()
    items = check(ResponseItemList, page).data
    assert [part.type for item in items[:4] for part in item.content] == [
        "input_text", "input_text", "input_text", "input_text", "output_text"]
    assert [item.id.split("_")[0] for item in items] == [
        "msg", "msg", "msg", "msg", "rs", "fc", "fco", "msg"]
    assert items[-1].id == "msg_h"


def test_openai_responses_leave_out_tools_of_the_platform(client):
    answer = client.responses.create(
        model=MODEL, input=WEATHER_ASK, tools=[{"type": "web_search"}, FLAT_TOOL],
        include=["web_search_call.action.sources", "reasoning.encrypted_content"])
    assert answer.output[-1].name == "get_weather"
    assert len(answer.warnings) == 1 and "web_search" in answer.warnings[0]
    for tools in ([{"type": "custom", "name": "f"}], [{"type": "computer_use_preview"}]):
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model=MODEL, input="x", tools=tools)
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}],
                                tool_choice="required")


def test_openai_responses_stop(client):
    answer = client.responses.create(model=MODEL, input="What is 17 + 25?", extra_body={"stop": "="})
    assert answer.status == "completed" and answer.output_text == "17 + 25 "


def test_every_field_of_the_clients_is_known(server):
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import message_create_params as beta_create_params
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params
    paths = server.get("/openapi.json").json()["paths"]
    # Anthropic's client sends these as headers.
    headers = {"workspace_id", "user_profile_id", "betas"}
    for path, types in (
            ("/v1/chat/completions", (chat_create_params.CompletionCreateParamsNonStreaming,
                                      chat_create_params.CompletionCreateParamsStreaming)),
            ("/v1/completions", (completion_create_params.CompletionCreateParamsNonStreaming,
                                 completion_create_params.CompletionCreateParamsStreaming)),
            ("/v1/responses", (response_create_params.ResponseCreateParamsNonStreaming,
                               response_create_params.ResponseCreateParamsStreaming)),
            ("/v1/messages", (message_create_params.MessageCreateParamsNonStreaming,
                              message_create_params.MessageCreateParamsStreaming,
                              beta_create_params.MessageCreateParamsNonStreaming)),
            ("/v1/messages/count_tokens", (message_count_tokens_params.MessageCountTokensParams,))):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        names = set().union(*(kind.__required_keys__ | kind.__optional_keys__ for kind in types))
        assert len(names) > 8
        assert names - headers <= set(body["properties"]), path


def test_anthropic_messages(claude):
    answer = claude.messages.create(model=MODEL, max_tokens=300, messages=ASK,
                                    thinking={"type": "enabled", "budget_tokens": 4096})
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert "42" in answer.content[1].text and answer.stop_reason == "end_turn"
    plain = claude.messages.create(model=MODEL, max_tokens=300, messages=ASK, system="Be brief.")
    assert [block.type for block in plain.content] == ["text"]
    count = claude.messages.count_tokens(model=MODEL, messages=ASK, system="Be brief.")
    used = plain.usage
    assert count.input_tokens == used.input_tokens + used.cache_read_input_tokens
    cut = claude.messages.create(model=MODEL, max_tokens=300, messages=ASK, stop_sequences=["="])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == "="
    short = claude.messages.create(model=MODEL, max_tokens=3, messages=ASK)
    assert short.stop_reason == "max_tokens"
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=MODEL, max_tokens=0, messages=ASK)


def test_anthropic_stream(claude):
    with claude.messages.stream(model=MODEL, max_tokens=300, messages=ASK,
                                thinking={"type": "enabled", "budget_tokens": 4096}) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert "42" in final.content[1].text and final.usage.output_tokens > 0
    assert events[0] == "message_start" and events[-1] == "message_stop"


def test_anthropic_thinking_ends_with_its_signature(claude):
    events = list(claude.messages.create(
        model=MODEL, max_tokens=300, messages=ASK, stream=True,
        thinking={"type": "enabled", "budget_tokens": 4096}))
    first = [event for event in events if getattr(event, "index", None) == 0]
    assert first[0].content_block.type == "thinking"
    deltas = [event.delta.type for event in first[1:-1]]
    assert len(deltas) > 1
    assert deltas == ["thinking_delta"] * (len(deltas) - 1) + ["signature_delta"]


def test_anthropic_messages_are_of_their_types(server):
    from anthropic.types import Message, RawMessageStreamEvent
    tool = {"name": "get_weather", "input_schema": WEATHER}
    for fields in ({"thinking": {"type": "adaptive"}}, {"tools": [tool]}, {"stop_sequences": ["="]}):
        body = {"model": MODEL, "max_tokens": 300, "messages": ASK, **fields}
        answer = check(Message, server.post("/v1/messages", body).json())
        assert 0 < answer.usage.output_tokens_details.thinking_tokens < answer.usage.output_tokens
        for event in server.post("/v1/messages", {**body, "stream": True}).events():
            if event["type"] != "ping":
                check(RawMessageStreamEvent, event)


def test_anthropic_models(claude, server):
    from anthropic.types import ModelInfo
    listed = server.get("/v1/models").json()
    check(ModelInfo, {**listed["data"][0], "created_at":
                      datetime.datetime.fromisoformat(listed["data"][0]["created_at"])})
    assert [(model.id, model.display_name) for model in claude.models.list()] == [(MODEL, MODEL)]
    assert claude.models.retrieve(MODEL).max_input_tokens == listed["data"][0]["max_model_len"]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_tool_runner(claude, stream):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city"""
        asked.append(city)
        return "18 degrees"

    runner = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=300, tools=[get_weather], stream=stream,
        messages=[{"role": "user", "content": WEATHER_ASK}])
    assert runner.until_done().content[-1].text
    assert asked == ["Paris"]
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.beta.messages.create(model=MODEL, max_tokens=300, messages=ASK,
                                    thread={"type": "create"})
    assert caught.value.body["error"]["details"]["unsupported"] == ["thread"]


def test_anthropic_tools(claude):
    tool = {"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}
    messages = [{"role": "user", "content": WEATHER_ASK}]
    first = claude.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[tool])
    assert first.stop_reason == "tool_use" and first.content[-1].input == {"city": "Paris"}
    with claude.messages.stream(model=MODEL, max_tokens=300, messages=messages,
                                tools=[tool]) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == {"city": "Paris"}
    messages += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "content": "18 degrees",
                                               "tool_use_id": first.content[-1].id}]}]
    second = claude.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=[tool])
    assert second.content
    forced = claude.messages.create(model=MODEL, max_tokens=300, messages=ASK, tools=[tool],
                                    tool_choice={"type": "any"})
    assert forced.content[-1].type == "tool_use"


def test_anthropic_warnings(claude):
    fields = {"model": MODEL, "max_tokens": 300, "messages": ASK, "tools": [
        {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}}]}
    whole = claude.messages.create(**fields)
    with claude.messages.create(**fields, stream=True) as stream:
        last = [event for event in stream if event.type == "message_delta"][-1]
    skip_without_structured_output(not hasattr(whole, "warnings"))
    assert "not is not supported" in whole.warnings[0] and last.warnings == whole.warnings


def test_anthropic_context_management(claude):
    fields = {"model": MODEL, "max_tokens": 300, "messages": ASK}
    answer = claude.messages.create(**fields, extra_body={"context_management": {"edits": [
        {"type": "clear_thinking_20251015", "keep": "all"}]}})
    assert "42" in answer.content[-1].text
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**fields, extra_body={"context_management": {"edits": [
            {"type": "clear_tool_uses_20250919"}]}})


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_openai_agents_with_tools(server, interface):
    import agents
    agents.set_tracing_disabled(True)
    asked = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Weather of a city"""
        asked.append(city)
        return "18 degrees"

    async def run():
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
        model = (agents.OpenAIChatCompletionsModel if interface == "chat" else
                 agents.OpenAIResponsesModel)(model=MODEL, openai_client=client)
        agent = agents.Agent(name="Helper", instructions="Be brief.", tools=[get_weather],
                             model=model)
        whole = await agents.Runner.run(agent, WEATHER_ASK, max_turns=4)
        streamed = agents.Runner.run_streamed(agent, WEATHER_ASK, max_turns=4)
        async for _ in streamed.stream_events():
            pass
        await client.close()
        return whole.final_output, streamed.final_output

    whole, streamed = asyncio.run(run())
    assert asked == ["Paris", "Paris"]
    assert whole and streamed


class Book(http.server.BaseHTTPRequestHandler):
    """The text that llama-benchy cuts its prompts from."""

    def do_GET(self):
        text = " ".join(f"Chapter {i}. It rained, and nobody came." for i in range(2000)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def test_llama_benchy(server, tmp_path):
    result = tmp_path / "result.json"
    tokenizer = os.path.join(os.path.dirname(__file__), "..", "..", "models", "tiny")
    library = http.server.HTTPServer(("127.0.0.1", 0), Book)
    threading.Thread(target=library.serve_forever, daemon=True).start()
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "llama-benchy"), "--base-url",
         f"http://127.0.0.1:{server.port}/v1", "--model", MODEL, "--tokenizer", tokenizer,
         "--book-url", f"http://127.0.0.1:{library.server_port}/book", "--pp", "64", "--tg", "16",
         "--runs", "2", "--concurrency", "1", "4", "--exact-tg", "--no-cache", "--skip-coherence",
         "--exit-on-first-fail", "--format", "json", "--save-result", str(result)],
        capture_output=True, text=True, timeout=100,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)})
    library.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    benchmarks = json.loads(result.read_text())["benchmarks"]
    assert len(benchmarks) >= 2
