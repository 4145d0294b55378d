"""Two servers behind a router, with each of its policies: calls answer as one server alone does."""

import contextlib
import time

import pytest

from calls import CALLS, call
from router import POLICIES, Router

pytestmark = pytest.mark.routers

# Routes that a router does not have.
LACKS = {"sglang-router": ("messages", "messages_stream")}
ALL = [(name, policy) for name, policies in POLICIES.items() for policy in policies]


@pytest.fixture(scope="module", params=ALL, ids="-".join)
def router(request, workers):
    with Router(*request.param, workers) as running:
        running.name = request.param[0]
        yield running


def requests_of(worker):
    return worker.metric("vllm:e2e_request_latency_seconds_count")


def asked(workers, handler, status="200"):
    total = 0
    for worker in workers:
        with contextlib.suppress(KeyError):
            total += worker.metric("http_requests_total",
                                   f'handler="{handler}",method="GET",status="{status}"')
    return total


@pytest.mark.parametrize("name", CALLS)
def test_a_router_changes_no_answer(router, alone, name):
    if name in LACKS.get(router.name, ()):
        path, body = CALLS[name]
        assert router.post(path, body).status == 404
        return
    for _ in range(4):  # each worker's turn
        assert call(router, name) == alone[name]


@pytest.mark.parametrize("router", [(name, "round_robin") for name in POLICIES], indirect=True,
                         ids="-".join)
def test_sixty_calls_leave_the_circuit_closed(router, workers, alone):
    # An open circuit answers 503 for a minute, after about ten calls.
    before = [requests_of(worker) for worker in workers]
    for number in range(60):
        name = ("chat", "completions", "stream")[number % 3]
        assert call(router, name) == alone[name], number
    assert [requests_of(worker) for worker in workers] == [count + 30 for count in before]


@pytest.mark.parametrize("router", [("vllm-router", "power_of_two"),
                                    ("sglang-router", "power_of_two")], indirect=True, ids="-".join)
def test_load_is_asked_and_told(router, workers):
    before = asked(workers, "/get_load")
    end = time.monotonic() + 120  # they ask from time to time: about every 30 s
    while asked(workers, "/get_load") == before:
        assert time.monotonic() < end, "no router has asked for the load"
        call(router, "chat")
        time.sleep(0.2)
    assert asked(workers, "/get_load", "404") == 0
