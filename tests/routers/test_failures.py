"""One of two servers ends under eight clients of a router: what the clients see of it."""

import json
import signal
import time

import pytest

from clients import CLIENTS, STREAMING, Clients
from router import LAUNCH, Router
from server import HANG_S, Server

pytestmark = pytest.mark.routers

LONG = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True, "max_tokens": 100,
        "temperature": 0}
AFTER = 4  # requests of each client once the server is gone


class Leaving(Server):
    """A server that its test ends."""

    def __exit__(self, *_):
        self.stop()


def text_of(choices):
    parts = [choice.get("message") or choice.get("delta") or {} for choice in choices]
    return "".join((part.get("reasoning") or "") + (part.get("content") or "") for part in parts)


def is_whole(attempt, response, expected):
    if not attempt.streams:
        return text_of(response.json()["choices"]) == expected
    events = response.events()
    return events[-1] == "[DONE]" and expected == "".join(
        text_of(event["choices"]) for event in events[:-1])


def logged(server):
    """The requests that it has answered."""
    lines = [line for line in server.output().splitlines() if line.startswith("{")]
    return {json.loads(line).get("request_id") for line in lines}


def end_one_of_two(name, how, *flags, router_flags=()):
    """The server that stays, all requests, and when the other was told to end."""
    with Server("--threads", "1", "--log-format", "json") as stays, \
            Leaving("--threads", "1", *flags) as leaves, \
            Router(name, "round_robin", [stays, leaves], *router_flags) as router:
        expected = text_of(stays.post("/v1/chat/completions", LONG).json()["choices"])
        with Clients(router, LONG, lambda *answer: is_whole(*answer, expected)) as clients:
            # More than the clients that do not stream: some of these are streams.
            end = time.monotonic() + HANG_S
            while leaves.metric("vllm:num_requests_running") <= CLIENTS - STREAMING:
                assert time.monotonic() < end
            ended = time.monotonic()
            leaves.process.send_signal(how)
            assert leaves.process.wait(HANG_S) == (0 if how == signal.SIGTERM else -how)
            clients.wait_for_each(AFTER, time.monotonic())
        print({how.name: name, "attempts": len(clients.attempts),
               "faults": [attempt for attempt in clients.attempts if attempt.fault]})
        return logged(stays), clients.attempts, ended


def test_a_killed_server_takes_only_its_streams_with_it():
    answered, attempts, ended = end_one_of_two("vllm-router", signal.SIGKILL)
    lost = [attempt for attempt in attempts if attempt.fault]
    assert lost and len(lost) <= CLIENTS
    for attempt in lost:
        assert attempt.streams and attempt.answered, attempt  # others are asked again
        assert attempt.began < ended and attempt.name not in answered, attempt


@pytest.mark.parametrize("name", LAUNCH)
def test_a_server_that_is_told_to_end_takes_no_call_with_it(name):
    _, attempts, _ = end_one_of_two(name, signal.SIGTERM)
    assert not [attempt for attempt in attempts if attempt.fault]


def test_without_retries_a_drain_delay_is_what_saves_the_calls():
    # The delay is longer than vllm-router takes to see that the server's health is gone.
    _, attempts, _ = end_one_of_two(
        "vllm-router", signal.SIGTERM, "--drain-delay", "6", router_flags=[
            "--disable-retries", "--health-check-interval-secs", "1", "--health-failure-threshold", "1"])
    assert not [attempt for attempt in attempts if attempt.fault]
