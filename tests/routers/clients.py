"""Clients that ask a router without a pause, and note what became of each request."""

import dataclasses
import threading
import time

from calls import CHAT
from server import HANG_S, MODEL, Response

CLIENTS = 8
STREAMING = 6  # of these clients stream, the others wait for whole answers


@dataclasses.dataclass
class Attempt:
    name: str  # the request's X-Request-Id, which routers pass on
    streams: bool
    began: float  # when it was sent
    is_answered: bool = False  # the head of an answer 200 came
    fault: str = ""  # why it counts as failed


class Clients:
    """They ask as long as the `with` lasts, all the same. `is_expected` judges an answer 200."""

    def __init__(self, router, body, is_expected):
        self.router, self.body, self.is_expected = router, body, is_expected
        self.attempts, self.ending = [], threading.Event()
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        for thread in self.threads:
            thread.join()

    def _run(self, client):
        number = 0
        while not self.ending.is_set():
            attempt = Attempt(f"client-{client}-{number}", client < STREAMING, time.monotonic())
            try:
                self._ask(attempt)
            except (OSError, EOFError, ValueError, AssertionError) as fault:
                attempt.fault = f"{type(fault).__name__}: {fault}"[:300]
            self.attempts.append(attempt)
            number += 1

    def _ask(self, attempt):
        with self.router.connect() as connection:
            connection.send_request("POST", CHAT,
                                    {**self.body, "model": MODEL, "stream": attempt.streams},
                                    [("X-Request-Id", attempt.name)])
            status, headers = connection.read_head()
            attempt.is_answered = status == 200
            response = Response(status, headers, connection.read_body(headers))
            assert status == 200, f"{status} {response.text}"
            assert self.is_expected(attempt, response), response.text[-200:]

    def wait_for_each(self, count, since):
        """Until every client has had so many requests that it sent after `since`."""
        done, moved = [], time.monotonic()
        while not all(done.count(str(client)) >= count for client in range(CLIENTS)):
            assert time.monotonic() - moved < HANG_S, f"no request has ended for {HANG_S} s: {done}"
            time.sleep(0.05)
            before, done = len(done), [attempt.name.split("-")[1] for attempt in list(self.attempts)
                                       if attempt.began > since]
            if len(done) > before:
                moved = time.monotonic()
