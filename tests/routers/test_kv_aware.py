"""vllm-router's kv_aware policy on events of real servers: the prompt tokens that it credits a server
with are those that the server has cached.
"""

import re
import struct
import threading
import time

import pytest
import zmq

from kv_events import flags
from router import Router
from server import HANG_S, MODEL, Server

pytestmark = pytest.mark.routers

PAGE = 16
CREDIT = re.compile(r"KV prefix decision .*credited_prefix_tokens=(\d+)")


class KvRouter(Router):
    """The router in front of one server, following events at `endpoint`."""

    def __init__(self, worker, endpoint):
        url = f"http://127.0.0.1:{worker.port}"
        replay = source_of(worker)["replay_endpoint"]
        super().__init__("vllm-router", "kv_aware", [worker], "--log-level", "debug",
                         "--kv-event-source", f"{url}={endpoint}",
                         "--kv-event-replay-source", f"{url}={replay}",
                         "--kv-event-model", MODEL, "--kv-event-block-size", str(PAGE))

    def output(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", super().output())  # without its colours

    def is_ready(self):
        return self.get("/health").status == 200  # no prompt is asked: it would be cached

    def credit(self, prompt):
        """The tokens of the prompt that the server is credited with; then it has all cached."""
        known = len(CREDIT.findall(self.output()))
        assert ask(self, prompt).status == 200
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            found = CREDIT.findall(self.output())
            if len(found) > known:
                return int(found[-1])
            time.sleep(0.02)
        raise RuntimeError("no decision in the router's log:\n" + self.output()[-3000:])

    def credits(self, prompt, tokens):
        """Asks until so many are credited: events take a moment. The server has the prompt cached, so
        that asking changes nothing."""
        end = time.monotonic() + HANG_S
        while (credit := self.credit(prompt)) != tokens:
            assert time.monotonic() < end, f"{credit} tokens are credited, not {tokens}"
            time.sleep(0.1)


def ask(target, prompt):
    # One token is drawn and never run, so that a prompt takes no pages but its own.
    return target.post("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})


def prompt_of(server, number, tokens):
    """A text of so many tokens that shares no page with those of other numbers."""
    text = f"{number} {number}"
    while True:
        count = len(server.post("/tokenize", {"prompt": text}).json()["tokens"])
        if count == tokens:
            return text
        assert count < tokens, "a word too many"
        text += " the" if tokens - count < 20 else " the" * (tokens - count - 10)


@pytest.fixture
def worker():
    with Server("--threads", "1", "--kv-cache-memory", "6MiB", "--max-model-len", "512", *flags()) as running:
        yield running


def source_of(worker):
    return worker.get("/kv_event_sources").json()["0"]


def test_credit_is_what_is_cached(worker):
    """0, 128 of 134 tokens, 96 after two of their eight pages went, 0 after clearing, 128 again."""
    prompt = prompt_of(worker, 1, 134)
    with KvRouter(worker, source_of(worker)["endpoint"]) as router:
        assert router.credit(prompt) == 0
        router.credits(prompt, 128)

        # Other prompts take all free pages and two more: the last ones of the prompt, which were
        # released first. The last of them leaves a page for the question whether its events came.
        assert worker.idle(HANG_S)
        num_pages = int(worker.metric("moxie:kv_pages", 'layers="full"'))
        assert worker.metric("moxie:kv_pages_cached", 'layers="full"') == 8
        last = prompt_of(worker, 3, 8 * PAGE + 5)  # nine pages, of which eight are cached
        for fill in (prompt_of(worker, 2, (num_pages - 8 + 2 - 9) * PAGE), last):
            assert ask(worker, fill).status == 200
        assert worker.idle(HANG_S)
        assert worker.metric("moxie:kv_events_total", 'type="removed"') == 2
        router.credits(last, 128)
        assert router.credit(prompt) == 96

        assert worker.post("/flush_cache", {}).status == 200
        after = prompt_of(worker, 4, 40)
        assert ask(worker, after).status == 200
        router.credits(after, 32)
        assert router.credit(prompt) == 0
        router.credits(prompt, 128)


class LossyLink:
    """Passes a server's batches on to the router, but for those that it is told to withhold."""

    def __init__(self, endpoint):
        self.context = zmq.Context()
        self.withheld, self.passed, self.withholds, self.ends = [], [], False, False
        self.sub, self.pub = self.context.socket(zmq.SUB), self.context.socket(zmq.PUB)
        self.sub.subscribe(b"")
        self.sub.connect(endpoint)
        self.endpoint = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.ends:
            if not self.sub.poll(20):
                continue
            parts = self.sub.recv_multipart()
            number = struct.unpack(">Q", parts[1])[0]
            if self.withholds:
                self.withheld.append(number)
            else:
                self.pub.send_multipart(parts)
                self.passed.append(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ends = True
        self.thread.join()
        self.context.destroy(linger=0)


def test_a_batch_that_was_lost_is_asked_for_again(worker):
    with LossyLink(source_of(worker)["endpoint"]) as link, KvRouter(worker, link.endpoint) as router:
        end = time.monotonic() + HANG_S
        number = 10
        while router.credit(prompt_of(worker, number, 40)) != 32:  # until it follows the events
            assert time.monotonic() < end
            number += 1
            assert ask(worker, prompt_of(worker, number, 40)).status == 200
        replays = worker.metric("moxie:kv_events_replays_total")
        link.withholds = True
        lost = prompt_of(worker, 2, 134)
        assert ask(worker, lost).status == 200
        while not link.withheld:
            assert time.monotonic() < end
            time.sleep(0.02)
        link.withholds = False
        assert ask(worker, prompt_of(worker, 3, 40)).status == 200  # its batch shows the gap
        while worker.metric("moxie:kv_events_replays_total") == replays:
            assert time.monotonic() < end, "no replay was asked for"
            time.sleep(0.05)
        assert max(link.passed) > max(link.withheld)
        router.credits(lost, 128)
