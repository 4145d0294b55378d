"""The page at /, and /v1/watch, which it shows: bytes, headers, keys, events, and how a stream ends."""

import base64
import gzip
import hashlib
import json
import re
import signal
import socket
import time

from server import HANG_S, MODEL, Server, synthetic_model_flags

KEY = [("Authorization", "Bearer k")]


class Watch:
    """A connection that reads the events of /v1/watch."""

    def __init__(self, server, query="?interval_ms=100", headers=()):
        self.connection = server.connect()
        self.connection.send_request("GET", "/v1/watch" + query, headers=headers)
        self.status, self.headers = self.connection.read_head()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.raw.close()

    def event(self):
        """The next event; None at the stream's end."""
        size = int(self.connection._until(b"\r\n"), 16)
        data = self.connection._exactly(size + 2)[:-2].decode()
        if size == 0:
            return None
        return self.event() if data.startswith(":") else json.loads(data.removeprefix("data: "))


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_page_is_one_file_without_outside_resources(server):
    response = server.get("/")
    assert response.status == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://", response.text)
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval)\b", response.text)
    assert "{{" not in response.text.split("<style>")[0]


def test_policy_allows_what_the_page_holds_and_nothing_else(server):
    response = server.get("/")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    style = re.search(r"<style>(.*?)</style>", response.text, re.S).group(1)
    script = re.search(r"<script type=\"module\">(.*?)</script>", response.text, re.S).group(1)
    assert policy == {"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'",
                      "form-action": "'none'", "frame-ancestors": "'none'", "style-src": hash_of(style),
                      "script-src": hash_of(script)}
    assert not re.search(r"<[^>]+\s(style|on\w+)=", response.text.split("<script")[0])
    assert response.headers["x-content-type-options"] == "nosniff"


def test_page_is_compressed_for_those_who_take_it(server):
    plain = server.get("/")
    for accepted in ("gzip", "br, GZIP;q=0.5", "deflate,gzip"):
        packed = server.get("/", headers=[("Accept-Encoding", accepted)])
        assert packed.headers["content-encoding"] == "gzip", accepted
        assert gzip.decompress(packed.body) == plain.body
        assert packed.headers["etag"] != plain.headers["etag"]
        assert packed.headers["vary"] == "Accept-Encoding"
    for accepted in ("identity", "gzip;q=0", "gzip;q=0.0", "br", ""):
        assert "content-encoding" not in server.get("/", headers=[("Accept-Encoding", accepted)]).headers, accepted


def test_page_known_by_its_tag_is_not_sent_again(server):
    tag = server.get("/").headers["etag"]
    for known in (tag, "W/" + tag, f'"other", {tag}', "*"):
        with server.connect() as connection:
            connection.send_request("GET", "/", headers=[("If-None-Match", known)])
            response = connection.read_response(has_body=False)
            assert response.status == 304 and response.headers["etag"] == tag, known
            assert "content-length" not in response.headers
            connection.send_request("GET", "/", headers=[("If-None-Match", '"other"')])
            assert connection.read_response().status == 200


def test_head_of_page_and_of_watch_have_no_body(server):
    size = len(server.get("/").body)
    with server.connect() as connection:
        connection.send_request("HEAD", "/")
        response = connection.read_response(has_body=False)
        assert response.status == 200 and int(response.headers["content-length"]) == size
        connection.send_request("HEAD", "/v1/watch")
        response = connection.read_response(has_body=False)
        assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
        connection.send_request("GET", "/health")
        assert connection.read_response().status == 200


def test_page_needs_no_key_and_watch_does():
    with Server("--api-key", "k") as server:
        assert server.get("/").status == 200
        assert server.get("/v1/watch").status == 401
        with Watch(server, headers=KEY) as watch:
            assert watch.status == 200 and watch.event()["state"] == "ok"


def test_without_the_page_its_path_is_unknown():
    with Server("--ui", "off", "--api-key", "k") as server:
        assert server.get("/").status == 401
        response = server.get("/", headers=KEY)
        assert response.status == 404 and response.json()["error"]["code"] == "unknown_url"
        with Watch(server, headers=KEY) as watch:
            assert watch.status == 200


def test_first_event_comes_at_once_and_tells_of_the_server(server):
    with Watch(server, "?interval_ms=10000") as watch:
        assert watch.headers["content-type"].startswith("text/event-stream")
        event = watch.event()
    about = event["about"]
    assert event["state"] == "ok" and about["model"] == "moxie-embedded" and about["device"]
    assert any(part["part"] == "weights" and part["bytes"] > 0 for part in about["memory"])
    assert sum(part["bytes"] for part in about["memory"]) == about["memory_bytes"]
    assert event["requests"] == {"running": 0, "waiting": 0}
    assert event["kv"]["full"]["pages"] > 0 and event["kv"]["page_tokens"] > 0
    assert "tokens" not in event and "seconds" not in event


def test_events_add_up_to_what_was_drawn(server):
    with Watch(server) as watch:
        watch.event()
        usage = server.chat("What is 17 + 25?", max_tokens=200).json()["usage"]
        assert usage["completion_tokens"] > 0
        events = []
        while sum(event["tokens"]["generated"] for event in events) < usage["completion_tokens"]:
            events.append(watch.event())
            assert len(events) < 600, "the tokens were not reported"
    assert sum(event["tokens"]["generated"] for event in events) == usage["completion_tokens"]
    assert all("about" not in event and event["seconds"] > 0 for event in events)
    assert sum(event["launches"]["count"] for event in events) >= usage["completion_tokens"]
    for event in events:
        rate = event["tokens"]["generated"] / event["seconds"]
        assert abs(event["tokens"]["generated_per_s"] - rate) <= 0.01 * rate + 1e-3
        if event["memory_limit"]["share"] is not None:
            assert event["memory_limit"]["read_gb_s"] > 0 and event["memory_limit"]["share"] > 0
    steps = {name: sum(event["launches"]["step_seconds"].get(name, 0) for event in events)
             for name in events[-1]["launches"]["step_seconds"]}
    assert {"qkv", "attend", "out", "experts", "unembed", "sample"} <= steps.keys()
    assert all(seconds > 0 for seconds in steps.values())


def test_interval_has_bounds(server):
    for wrong in ("99", "10001", "fast", "-1", "1e3", ""):
        response = server.get("/v1/watch?interval_ms=" + wrong)
        assert response.status == 400, wrong
        assert response.json()["error"]["param"] == "interval_ms"
    with Watch(server, "?interval_ms=100") as often, Watch(server, "?interval_ms=10000") as seldom:
        assert seldom.event()
        for _ in range(4):
            assert often.event()
        seldom.connection.raw.settimeout(0.2)
        try:
            assert not seldom.connection.raw.recv(1)
        except TimeoutError:
            pass  # it had one event while the other had four


def test_watchers_are_bounded_and_leave_room_when_they_go():
    with Server() as server:
        watches = [Watch(server, "?interval_ms=10000") for _ in range(16)]
        assert all(watch.status == 200 and watch.event()["state"] == "ok" for watch in watches)
        response = server.get("/v1/watch")
        assert response.status == 429 and response.json()["error"]["code"] == "too_many_watchers"
        assert int(response.headers["retry-after"]) >= 1
        for watch in watches:
            watch.connection.raw.close()
        end, status = time.monotonic() + HANG_S, 429
        while status == 429 and time.monotonic() < end:
            with Watch(server) as watch:
                status = watch.status
            time.sleep(0.05)
        assert status == 200


def test_watcher_that_reads_nothing_is_dropped():
    with Server("--max-stream-buffer", "1024", "--write-timeout", "1") as server:
        with socket.socket() as slow:  # segments and buffers as small as can be: they are full soon
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(b"GET /v1/watch?interval_ms=100 HTTP/1.1\r\nHost: h\r\n\r\n")
            end = time.monotonic() + HANG_S
            while '/v1/watch" 200 aborted' not in server.output() and time.monotonic() < end:
                time.sleep(0.1)
        assert '/v1/watch" 200 aborted' in server.output()
        assert server.chat().status == 200


def test_drain_ends_the_streams():
    with Server() as server:
        with Watch(server, "?interval_ms=10000") as watch:
            watch.event()
            server.process.send_signal(signal.SIGTERM)
            assert watch.event()["state"] == "draining"
            assert watch.event() is None


def test_page_and_watch_are_answered_while_the_model_loads(tmp_path):
    # The banner names the port when the model is there, so this server is told one.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = Server("--port", str(port), *synthetic_model_flags(
        tmp_path, hidden_size=1024, intermediate_size=1024, num_local_experts=64))
    running.port = port
    try:
        end = time.monotonic() + HANG_S
        states = []
        while "ok" not in states and time.monotonic() < end:
            try:
                with Watch(running) as watch:
                    assert running.get("/").status == 200
                    while "ok" not in states:
                        event = watch.event()
                        states.append(event["state"])
            except OSError:
                pass  # it does not listen yet
        assert states[0] == "loading" and states[-1] == "ok"
        assert event["about"]["model"] == MODEL  # the first event that knows the model
    finally:
        assert running.stop() == 0


def test_openapi_describes_both(server):
    paths = server.get("/openapi.json").json()["paths"]
    assert paths["/"]["get"]["security"] == []
    assert paths["/v1/watch"]["get"]["parameters"][0]["name"] == "interval_ms"
