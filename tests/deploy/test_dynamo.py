"""Dynamo's frontend and the bridge in front of a server, found by files: no etcd, no NATS.

MOXIE_DYNAMO names the interpreter that has what deploy/dynamo/requirements.txt lists.
"""

import os
import signal
import threading

import pytest

from processes import ASK, MODEL, ROOT, TOOL, Process, wait_for
from server import Server, free_port

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def worker():
    with Server("--threads", "1", "--reasoning-field", "reasoning_content") as running:
        yield running


@pytest.fixture(scope="module")
def planes(tmp_path_factory):
    return {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(tmp_path_factory.mktemp("dynamo")),
            "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq", "PYTHONDONTWRITEBYTECODE": "1"}


def start_bridge(worker, planes):
    return Process(os.environ["MOXIE_DYNAMO"], ROOT / "deploy/dynamo/bridge.py", "--engine",
                   f"http://127.0.0.1:{worker.port}", "--drain-timeout", 300, env=planes)


@pytest.fixture(scope="module")
def frontend(worker, planes):
    port = free_port()
    with start_bridge(worker, planes) as bridge, \
            Process(os.environ["MOXIE_DYNAMO"], "-m", "dynamo.frontend", "--http-host", "127.0.0.1",
                    "--http-port", port, port=port, env=planes) as running:
        wait_for(lambda: MODEL in running.get("/v1/models").text, "the model is listed", process=running)
        running.bridge = bridge
        yield running


def ask(frontend, status=200, **fields):
    response = frontend.post(CHAT, {"model": MODEL, "messages": ASK, **fields})
    assert response.status == status, response.text + frontend.bridge.output() + frontend.output()
    return response


def message(frontend, **fields):
    return ask(frontend, **fields).json()["choices"][0]["message"]


def test_chat(frontend, worker):
    answer = message(frontend)
    alone = worker.chat().json()["choices"][0]["message"]
    assert answer["content"] == alone["content"] and answer["content"]
    assert answer["reasoning_content"] == alone["reasoning_content"] and answer["reasoning_content"]


def test_usage(frontend, worker):
    usage, alone = ask(frontend).json()["usage"], worker.chat().json()["usage"]
    assert all(usage[name] == alone[name] for name in ("prompt_tokens", "completion_tokens"))


def test_stream(frontend):
    expected = message(frontend)
    events = ask(frontend, stream=True, stream_options={"include_usage": True}).events()
    assert events[-1] == "[DONE]" and len(events) > 10
    deltas = [event["choices"][0]["delta"] for event in events[:-1] if event["choices"]]
    for field in ("content", "reasoning_content"):
        assert "".join(delta.get(field) or "" for delta in deltas) == expected[field]
    assert events[-2]["usage"]["completion_tokens"] > 0


def test_tools(frontend):
    call = message(frontend, tools=[TOOL], tool_choice="required", max_tokens=200)["tool_calls"][0]
    assert call["function"]["name"] == "add"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("effort", ["none", "low", "high"])
def test_reasoning_effort(frontend, worker, effort, stream):
    response = ask(frontend, reasoning_effort=effort, stream=stream)
    alone = worker.chat(reasoning_effort=effort).json()["choices"][0]["message"]
    if stream:  # an error of the worker comes inside a stream, after the 200
        assert '"error"' not in response.text, response.text + frontend.bridge.output()
        deltas = [event["choices"][0]["delta"] for event in response.events()[:-1] if event["choices"]]
        reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    else:
        reasoning = response.json()["choices"][0]["message"].get("reasoning_content")
    assert (reasoning or "") == (alone["reasoning_content"] or "")


def test_a_faulty_request_is_the_clients_fault(frontend):
    assert ask(frontend, 400, logit_bias={"99999999": 1}).status == 400


def test_a_client_that_leaves_ends_its_request(frontend, worker):
    long = {"model": MODEL, "messages": ASK, "ignore_eos": True, "max_tokens": 15000, "stream": True}
    with frontend.connect() as client:
        client.send_request("POST", CHAT, long)
        assert client.read_head()[0] == 200
        wait_for(lambda: worker.metric("vllm:num_requests_running") == 1, "the request runs")
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "the request has ended")


def test_a_bridge_that_is_told_to_end_finishes_its_requests(frontend, worker, planes):
    """The last test: the frontend has no worker after it."""
    texts = []
    fields = {"ignore_eos": True, "max_tokens": 400, "temperature": 0}
    asking = threading.Thread(target=lambda: texts.append(ask(frontend, **fields).json()))
    asking.start()
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 1, "the request runs")
    frontend.bridge.process.send_signal(signal.SIGTERM)
    asking.join(300)
    assert texts and texts[0]["usage"]["completion_tokens"] == 400
    assert frontend.bridge.process.wait(60) == 0, frontend.bridge.output()
