"""Two servers behind vllm-router and sglang-router: every call answers as one server alone does.

These tests are no part of a plain run. The routers have an environment of their own:

    python3 -m venv /tmp/routers
    /tmp/routers/bin/pip install -r tests/server/requirements-routers.txt
    MOXIE_BINARY=build/dev/moxie MOXIE_ROUTERS=/tmp/routers/bin \
        python -m pytest -m routers tests/server/test_routers.py

MOXIE_ROUTERS is the folder of the routers' programs; without it the tests use the interpreter's own.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from server import MODEL, Server, clean_environment, skip_without_structured_output

pytestmark = pytest.mark.routers

START_S = 60
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
POLICIES = ["round_robin", "cache_aware", "power_of_two"]
ASK = [{"role": "user", "content": "What is 17 + 25?"}]
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]}}}
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["sum"], "additionalProperties": False}
CALLS = {
    "chat": (CHAT, {"messages": ASK}),
    "stream": (CHAT, {"messages": ASK, "stream": True, "stream_options": {"include_usage": True}}),
    "tools": (CHAT, {"messages": ASK, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}),
    "json_schema": (CHAT, {"messages": ASK, "max_tokens": 300, "response_format": {
        "type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}}),
    "logprobs": (CHAT, {"messages": ASK, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 3,
                        "temperature": 1, "max_tokens": 100}),
    "completions": (TEXT, {"prompt": "17 + 25 =", "max_tokens": 12}),
    "completions_stream": (TEXT, {"prompt": "3 + 4 =", "max_tokens": 12, "stream": True}),
    "completions_list": (TEXT, {"prompt": ["3 + 4 =", "5 + 6 ="], "max_tokens": 8, "logprobs": 1}),
}


def program(name):
    folder = pathlib.Path(os.environ.get("MOXIE_ROUTERS", pathlib.Path(sys.executable).parent))
    assert (folder / name).exists(), f"{folder} has no {name}: see the head of this file"
    return [str(folder / name)] if name == "vllm-router" else [
        str(folder / "python"), "-m", "sglang_router.launch_router"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Router(Server):
    """A router's process, which is asked as a server is."""

    def __init__(self, name, policy, workers):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.port = free_port()
        urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
        self.process = subprocess.Popen(
            [*program(name), "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy,
             "--prometheus-port", str(free_port()), "--worker-urls", *urls],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=clean_environment(),
            start_new_session=True)

    def wait_ready(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, EOFError):
                if all(self.post(path, {**body, "model": MODEL, "stream": False}).status == 200
                       for path, body in (CALLS["chat"], CALLS["completions"])):
                    return self
            time.sleep(0.2)
        raise RuntimeError("the router did not come up:\n" + self.output()[-3000:])

    def stop(self):
        with contextlib.suppress(ProcessLookupError):  # with what the launcher has started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return 0


@pytest.fixture(scope="module")
def workers():
    with Server("--threads", "1") as first, Server("--threads", "1") as second:
        yield [first, second]


@pytest.fixture(scope="module")
def alone(workers):
    """What one server says to each call."""
    return {name: call(workers[0], name) for name in CALLS}


@pytest.fixture(scope="module", params=[(name, policy) for name in ("vllm-router", "sglang-router")
                                        for policy in POLICIES], ids="-".join)
def router(request, workers):
    with Router(*request.param, workers) as running:
        yield running


def call(target, name):
    """The answer to a call, without what differs from call to call."""
    path, body = CALLS[name]
    response = target.post(path, {**body, "model": MODEL})
    if name in ("tools", "json_schema"):
        skip_without_structured_output(response.status == 400 and "not available" in response.text)
    assert response.status == 200, response.text
    if not body.get("stream"):
        document = response.json()
        assert document["usage"]["completion_tokens"] > 0
        return [essence(choice) for choice in document["choices"]]
    events = response.events()
    assert events[-1] == "[DONE]"
    if "stream_options" in body:
        assert events[-2]["usage"]["completion_tokens"] > 0 and events[-2]["choices"] == []
    texts = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            for field, text in choice.get("delta", {"text": choice.get("text")}).items():
                texts[field] = texts.get(field, "") + (text or "")
    return texts


def essence(choice):
    message = choice.get("message", {})
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return [choice["finish_reason"], choice.get("text"), message.get("content"),
            message.get("reasoning_content"), calls, choice["logprobs"]]


def served(workers, handler, status="200"):
    total = 0
    for worker in workers:
        with contextlib.suppress(KeyError):
            total += worker.metric("http_requests_total", f'handler="{handler}",method="GET",'
                                                          f'status="{status}"')
    return total


@pytest.mark.parametrize("name", CALLS)
def test_a_router_changes_no_answer(router, alone, name):
    for _ in range(4):  # each worker's turn
        assert call(router, name) == alone[name]


@pytest.mark.parametrize("router", [("vllm-router", "power_of_two"), ("sglang-router", "power_of_two")],
                         indirect=True, ids="-".join)
def test_load_is_asked_and_told(router, workers):
    before = served(workers, "/get_load")
    end = time.monotonic() + 120  # they ask from time to time: about every 30 s
    while served(workers, "/get_load") == before:
        assert time.monotonic() < end, "no router has asked for the load"
        call(router, "chat")
        time.sleep(0.2)
    assert served(workers, "/get_load", "404") == 0


@pytest.mark.parametrize("router", [("sglang-router", "round_robin")], indirect=True, ids="-".join)
def test_sixty_calls_leave_the_circuit_closed(router, alone):
    # An open circuit answers 503 for a minute, after about ten calls.
    for number in range(60):
        name = ("chat", "completions", "stream")[number % 3]
        assert call(router, name) == alone[name], number


@pytest.mark.parametrize("name", ["vllm-router", "sglang-router"])
def test_a_worker_that_leaves_takes_no_call_with_it(name):
    with Server("--threads", "1") as stays, Server("--threads", "1", "--drain-delay", "2") as leaves, \
            Router(name, "round_robin", [stays, leaves]) as running:
        expected = call(stays, "chat")
        faults, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    assert call(running, "chat") == expected
                except (AssertionError, OSError, EOFError) as fault:
                    faults.append(str(fault)[:300])

        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        time.sleep(1)
        leaves.process.send_signal(signal.SIGTERM)
        try:
            assert leaves.process.wait(30) == 0
            time.sleep(2)
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert not faults
