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
# A router may send each attempt of a request to the server that is gone, until the failures of all
# requests, ten by default, open that server's circuit. More attempts than these reach the other.
RETRIES = ["--retry-max-retries", "12"]


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


def end_one_of_two(name, how, *flags, router_flags):
    """Names of the requests that the other answered, all requests, and when the one was gone."""
    with Server("--threads", "1", "--log-format", "json") as stays, \
            Leaving("--threads", "1", *flags) as leaves, \
            Router(name, "round_robin", [stays, leaves], *router_flags) as router:
        expected = text_of(stays.post("/v1/chat/completions", LONG).json()["choices"])
        with Clients(router, LONG, lambda *answer: is_whole(*answer, expected)) as clients:
            # More than the clients that do not stream: some of these are streams.
            end = time.monotonic() + HANG_S
            while leaves.metric("vllm:num_requests_running") <= CLIENTS - STREAMING:
                assert time.monotonic() < end
            leaves.process.send_signal(how)
            assert leaves.process.wait(HANG_S) == (0 if how == signal.SIGTERM else -how)
            gone = time.monotonic()
            clients.wait_for_each(AFTER, gone)
    return logged(stays), clients.attempts, gone


def test_a_killed_server_takes_only_its_streams_with_it():
    of_the_other, attempts, gone = end_one_of_two("vllm-router", signal.SIGKILL,
                                                   router_flags=RETRIES)
    lost = [attempt for attempt in attempts if attempt.fault]
    assert lost, "no stream was under way: nothing is tested"
    for attempt in lost:
        assert attempt.streams and attempt.is_answered and attempt.began < gone, attempt
        assert attempt.name not in of_the_other, attempt
    later = {attempt.name for attempt in attempts if attempt.began > gone}
    assert len(later) >= AFTER * CLIENTS and later <= of_the_other


@pytest.mark.parametrize("name", LAUNCH)
def test_a_server_that_is_told_to_end_takes_no_call_with_it(name):
    _, attempts, _ = end_one_of_two(name, signal.SIGTERM, router_flags=RETRIES)
    assert not [attempt for attempt in attempts if attempt.fault]


def test_without_retries_a_drain_delay_is_what_saves_the_calls():
    # The delay is longer than vllm-router takes to see that the server's health is gone.
    flags = ["--disable-retries", "--health-check-interval-secs", "1",
             "--health-failure-threshold", "1"]
    _, attempts, _ = end_one_of_two("vllm-router", signal.SIGTERM, "--drain-delay", "6",
                                    router_flags=flags)
    assert not [attempt for attempt in attempts if attempt.fault]
