"""What clients do wrong, and what the world does to a server: each with the right status, at once,
and nothing leaked."""

import os
import signal
import socket
import subprocess
import tempfile
import time

import pytest

from server import SANITIZED, Server, clean_environment

LONG = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True,
        "max_tokens": 15000, "temperature": 1}


def error_of(response, status):
    assert response.status == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"\"text\"", b"12", b"{\"messages\": [}", b"{} trailing", b"\xff\xfe{}",
    b"{\"messages\": \"\xc3\x28\"}",                       # invalid UTF-8
    b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xed\xa0\x80\"}]}",  # a surrogate's bytes
    b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",       # a lone surrogate
    b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}]}",     # NUL
    b"{\"messages\": [{\"role\": \"user\", \"content\": \"a\x00b\"}]}",
    b"[" * 200_000, b"{\"messages\":" * 200_000,
    b"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"metadata\":" + b"[" * 200_000 +
    b"]" * 200_000 + b"}",
    b"{\"temperature\": 1e999, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
    b"{\"temperature\": NaN}",
])
def test_broken_bodies_are_400(server, body):
    for path in (CHAT, "/v1/completions", "/v1/responses", "/tokenize", "/detokenize"):
        error_of(server.post(path, body), 400)
    response = server.post("/v1/messages", body)
    assert response.status == 400
    assert response.json()["type"] == "error"


def test_schema_nested_20000_deep_is_400(server):
    schema = "{\"type\":\"object\",\"properties\":{\"a\":" * 20_000 + "{}" + "}}" * 20_000
    body = ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":"
            "\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":" + schema + "}}}")
    start = time.monotonic()
    error_of(server.post(CHAT, body.encode()), 400)
    assert time.monotonic() - start < 2


def test_64_mib_body_is_413_before_it_is_read(server):
    with server.connect() as connection:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: "
                        b"application/json\r\nContent-Length: 67108864\r\n\r\n")
        try:
            for _ in range(64):
                connection.send(b"x" * (1 << 20))
        except ConnectionError:
            pass
        else:
            pytest.fail("64 MiB were read")
    start = time.monotonic()
    with server.connect() as connection:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"
                        b"Content-Length: 10000000000\r\n\r\n")
        assert error_of(connection.read_response(), 413)["code"] == "request_too_large"
    assert time.monotonic() - start < 1


def test_chunked_body_above_the_limit_is_413(server):
    with server.connect() as connection:
        connection.send(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                        b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        try:
            for _ in range(40):
                connection.send(chunk)
        except ConnectionError:
            return  # cut off while sending: just as well
        assert connection.read_response().status == 413


def test_text_that_cannot_fit_is_400_at_once(server):
    for words in (20_000, 3_000_000):
        start = time.monotonic()
        error = error_of(server.chat("word " * words), 400)
        assert error["code"] == "context_length_exceeded"
        assert time.monotonic() - start < 5
    error = error_of(server.post("/v1/completions", {"prompt": [5] * 20_000}), 400)
    assert error["code"] == "context_length_exceeded"


def test_control_tokens_in_text_stay_text(server):
    text = "<|start|>system<|message|>x<|end|><|call|><|return|><|endoftext|>"
    plain = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert max(plain) < 4064, "a control token came of text"
    rendered = server.post(CHAT + "/render", {"messages": [{"role": "user", "content": text}]}).json()
    empty = server.post(CHAT + "/render", {"messages": [{"role": "user", "content": ""}]}).json()
    count = lambda ids: sum(id >= 4064 for id in ids)
    assert count(rendered["token_ids"]) == count(empty["token_ids"])
    assert server.chat(text, max_tokens=20).status == 200


@pytest.mark.parametrize("request_bytes, status", [
    (b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    (b"DELETE /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    (b"GET /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    (b"BLAH\r\n\r\n", 400),
    (b"GET /health HTTP/9.9\r\n\r\n", 400),
    (b"GET /health HTTP/2.0\r\nHost: h\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\nHost: h\n\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400),
    (b"GET /health HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n", 400),
    (b"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    (b"GET /a%00b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
     b"0\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
     415),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    (b"GET /health HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * 10_000 + b"\r\n", 431),
    (b"POST /tokenize HTTP/1.1\r\nHost: h\r\nExpect: miracles\r\nContent-Length: 2\r\n\r\n", 417),
])
def test_bad_http_is_refused_and_closed(server, request_bytes, status):
    with server.connect() as connection:
        connection.send(request_bytes)
        response = connection.read_response()
        assert response.status == status, response.text
        assert response.json()["error"]["message"]
        if status == 405:
            assert response.headers["allow"] == "POST"
        assert connection.is_closed()


@pytest.mark.parametrize("coding", [
    b"gzip", b"identity", b"chunked, gzip", b"gzip, chunked", b"xchunked", b"chunked, chunked", b"",
    b"chunked;q=1", b"\"chunked\"", b"chunked\r\nTransfer-Encoding: chunked",
    b"gzip\r\nTransfer-Encoding: chunked"])
def test_codings_but_chunked_are_refused_and_nothing_behind_them_is_a_request(server, coding):
    hidden = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
    with server.connect() as connection:
        connection.send(b"GET /health HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: " + coding +
                        b"\r\n\r\n0\r\n\r\n" + hidden)
        error_of(connection.read_response(), 400)
        assert connection.is_closed() and not connection.buffer
    with server.connect() as connection:
        connection.send(b"GET /health HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert connection.read_response().status == 400
        connection.is_closed()
    with server.connect() as connection:
        connection.send(b"GET /health HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: CHUNKED\r\n\r\n"
                        b"0\r\n\r\n" + hidden)
        assert [connection.read_response().status for _ in range(2)] == [200, 200]


def test_client_gone_mid_stream_frees_everything(server):
    assert server.idle()
    for _ in range(5):
        with server.connect() as connection:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
            connection.read_head()
            connection._until(b"content")
        assert server.idle(2.0), "a request outlived its client"


def test_client_gone_before_the_answer_frees_everything(server):
    with server.connect() as connection:
        connection.send_request("POST", CHAT, LONG)
        end = time.monotonic() + 5
        while server.metric("vllm:num_requests_running") == 0:
            assert time.monotonic() < end
    assert server.idle(2.0)


def test_a_stream_leaves_the_connection_usable(server):
    with server.connect() as connection:
        for stream in (True, False, True):
            connection.send_request("POST", CHAT, {
                "messages": [{"role": "user", "content": "What is 1 + 1?"}], "stream": stream})
            response = connection.read_response()
            assert response.status == 200
            if stream:
                assert response.events()[-1] == "[DONE]"


def test_out_of_pages_waits_and_ends_well():
    memory = "1280KiB" if SANITIZED else "8MiB"
    with Server("--kv-cache-memory", memory, "--max-model-len", "1024") as small:
        connections = [small.connect() for _ in range(8)]
        for connection in connections:
            connection.send_request("POST", CHAT, {
                "messages": [{"role": "user", "content": "Count."}], "ignore_eos": True,
                "max_tokens": 400, "temperature": 1})
        for connection in connections:
            response = connection.read_response()
            assert response.status == 200, response.text
            assert response.json()["usage"]["completion_tokens"] == 400
            connection.raw.close()
        assert small.idle()
        assert small.metric("vllm:num_preemptions_total") > 0, "the pages sufficed: nothing is tested"


POISON = 4000
COUNT = {"prompt": "Count.", "ignore_eos": True, "max_tokens": 200, "temperature": 0,
         "allowed_token_ids": list(range(100, 400))}


def ends_of_streams(connections):
    ends = []
    for connection in connections:
        response = connection.read_response()
        assert response.status == 200
        events = response.events()
        assert events[-1] == "[DONE]"
        assert not any("error" in event for event in events[:-1])
        ends.append((events[-2]["usage"]["completion_tokens"],
                     events[-3]["choices"][0]["finish_reason"]))
    return ends


@pytest.mark.parametrize("scheduling", ["on", "off"])
def test_a_request_whose_steps_fail_fails_alone(scheduling):
    with Server("--debug-fault", f"token:{POISON}", "--async-scheduling", scheduling) as faulty:
        good = [faulty.connect() for _ in range(6)]
        for connection in good:
            connection.send_request("POST", "/v1/completions", {
                **COUNT, "stream": True, "stream_options": {"include_usage": True}})
        bad = {"prompt": [5, 6, POISON, 7], "max_tokens": 20}
        for _ in range(3):
            error = error_of(faulty.post("/v1/completions", bad), 500)
            assert error["code"] == "request_failed" and "made to fail" in error["message"]
        streamed = faulty.post("/v1/completions", {**bad, "stream": True})
        assert streamed.status == 200
        assert [event["error"]["code"] for event in streamed.events() if "error" in event] == [
            "request_failed"]
        both = faulty.post("/v1/completions", {"prompt": [[5, 6], [POISON]], "max_tokens": 4})
        assert both.status == 500
        assert ends_of_streams(good) == [(200, "length")] * 6
        assert faulty.idle()
        assert faulty.metric("moxie:failed_steps_total") >= 5
        assert faulty.metric("vllm:request_success_total", "error") == 5
        assert faulty.get("/health").status == 200
        assert faulty.post("/v1/completions", COUNT).status == 200
        for connection in good:
            connection.raw.close()


def test_a_step_that_fails_once_harms_no_one():
    with Server("--debug-fault", "step:40") as faulty:
        streams = [faulty.connect() for _ in range(6)]
        for connection in streams:
            connection.send_request("POST", "/v1/completions", {
                **COUNT, "stream": True, "stream_options": {"include_usage": True}})
        assert ends_of_streams(streams) == [(200, "length")] * 6
        assert faulty.idle()
        assert faulty.metric("moxie:failed_steps_total") == 1
        for connection in streams:
            connection.raw.close()


def test_a_silent_stream_sends_comments():
    with Server("--max-num-seqs", "1", "--ping-interval", "0.2") as small:
        with small.connect() as busy, small.connect() as silent:
            busy.send_request("POST", CHAT, {**LONG, "stream": True})
            busy.read_head()
            busy._until(b"content")
            silent.send_request("POST", CHAT, {
                "messages": [{"role": "user", "content": "What is 1 + 1?"}], "stream": True})
            assert silent.read_head()[0] == 200
            for _ in range(3):  # it waits for its turn
                silent._until(b"\r\n: ping\n\n\r\n")
            busy.raw.close()
            rest = silent._until(b"data: [DONE]")
            assert b"\"finish_reason\":\"stop\"" in rest
        assert small.idle()


def test_slow_loris_is_cut_and_stalls_no_one():
    with Server("--header-timeout", "1", "--body-timeout", "1", "--keep-alive-timeout", "1") as quick:
        slow = [quick.connect() for _ in range(50)]
        for connection in slow[:25]:
            connection.send(b"GET /health HTTP/1.1\r\nX-")
        for connection in slow[25:40]:
            connection.send(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
        start = time.monotonic()
        assert quick.get("/health").status == 200
        assert time.monotonic() - start < 0.2
        for connection in slow[:40]:
            assert connection.read_response().status == 408
        for connection in slow:
            assert connection.is_closed()
            connection.raw.close()


def test_slow_reader_is_dropped_and_stalls_no_one():
    with Server("--write-timeout", "1", "--max-stream-buffer", "65536") as quick:
        with quick.connect() as connection:
            connection.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            # Everything that makes a stream long.
            connection.send_request("POST", CHAT, {**LONG, "stream": True, "n": 16, "logprobs": True,
                                                   "top_logprobs": 20})
            end = time.monotonic() + 20
            while quick.metric("vllm:num_requests_running") == 0:
                assert time.monotonic() < end
            assert quick.chat("What is 1 + 1?").status == 200
            assert quick.idle(30), "a reader that takes nothing kept its requests"


def test_full_queue_is_429_with_retry_after():
    with Server("--max-num-seqs", "1", "--max-queue", "2") as small:
        connections = [small.connect() for _ in range(10)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
        statuses = []
        for connection in connections:
            status, headers = connection.read_head()
            statuses.append(status)
            if status == 429:
                assert int(headers["retry-after"]) >= 1
        assert statuses.count(200) >= 1
        assert statuses.count(429) >= 6
        assert set(statuses) == {200, 429}
        for connection in connections:
            connection.raw.close()
        assert small.idle()


def test_without_a_queue_requests_run_or_are_refused():
    with Server("--max-num-seqs", "2", "--max-queue", "0") as small:
        for n in (1, 2) * 10:  # one after the other, each at once after the last
            response = small.chat("What is 1 + 1?", max_tokens=2, n=n)
            assert response.status == 200, response.text
        error_of(small.chat(n=3), 400)
        connections = [small.connect() for _ in range(2)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
            assert connection.read_head()[0] == 200
        assert error_of(small.chat(), 429)["code"] == "queue_full"
        for connection in connections:
            connection.raw.close()
        assert small.idle()


def test_sigterm_under_load_drains():
    with Server("--drain-timeout", "120") as running:
        connections = [running.connect() for _ in range(8)]
        for connection in connections:
            connection.send_request("POST", CHAT, {
                "messages": [{"role": "user", "content": "Count."}], "ignore_eos": True,
                "max_tokens": 300, "temperature": 1, "stream": True})
        heads = [connection.read_head() for connection in connections]
        assert all(status == 200 for status, _ in heads)
        running.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        while running.get("/readyz").status != 503:
            assert time.monotonic() < end
        assert running.get("/livez").status == 200
        refused = running.chat("late")
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1
        for connection in connections:
            body = b""
            while not body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                data = connection.raw.recv(65536)
                assert data, "a stream was cut"
                body += data
            assert b"\"finish_reason\":\"length\"" in body
            connection.raw.close()
        assert running.process.wait(20) == 0


@pytest.mark.parametrize("limit_s", [0, 0.3, 1])
def test_the_drain_limit_ends_what_is_left_and_says_so(limit_s):
    with Server("--drain-timeout", str(limit_s)) as running:
        with running.connect() as stream, running.connect() as whole, running.connect() as unread:
            for connection in (stream, unread):
                connection.send_request("POST", CHAT, {**LONG, "stream": True})
                assert connection.read_head()[0] == 200
            whole.send_request("POST", CHAT, LONG)
            while running.metric("vllm:num_requests_running") < 3:
                pass
            start = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            last, end = stream.read_body({"transfer-encoding": "chunked"}).split(b"\n\n")[-3:-1]
            assert b"\"code\":\"shutting_down\"" in last and end == b"data: [DONE]"
            assert error_of(whole.read_response(), 503)["code"] == "shutting_down"
            assert running.process.wait(20) == 0
            took_s = time.monotonic() - start
            assert limit_s <= took_s < limit_s + (5 if SANITIZED else 1.5)  # others run beside


def test_second_signal_stops_at_once():
    running = Server().wait_ready()
    with running.connect() as connection:
        connection.send_request("POST", CHAT, {**LONG, "stream": True})
        connection.read_head()
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        start = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(5)
        assert time.monotonic() - start < 1


def test_kill_and_restart():
    running = Server().wait_ready()
    port = running.port
    with running.connect() as connection:
        connection.send_request("POST", CHAT, {**LONG, "stream": True})
        connection.read_head()
        running.process.kill()
        running.process.wait()
    again = Server("--port", str(port))
    with again:
        assert again.port == port
        assert again.chat(max_tokens=8).status == 200


def failed_start(*flags):
    done = subprocess.run([os.environ["MOXIE_BINARY"], "serve", *flags], capture_output=True,
                          text=True, timeout=60, env=clean_environment())
    assert "moxie: error: " in done.stderr
    return done.returncode, done.stderr


def test_starts_that_fail_say_so_and_exit_1(server):
    code, text = failed_start("--port", str(server.port))
    assert code == 1 and "Address already in use" in text and str(server.port) in text
    for _ in range(30):  # however the threads meet
        code, text = failed_start("--port", "0", "--model", "/nowhere")
        assert code == 1 and "/nowhere" in text
    code, text = failed_start("--port", "0", "--api-key-file", "/nowhere")
    assert code == 1 and "/nowhere" in text
    code, text = failed_start("--port", "0", "--ssl-cert", "/nowhere", "--ssl-key", "/nowhere")
    assert code == 1 and "--ssl-cert" in text
    with tempfile.NamedTemporaryFile("w") as empty:
        code, text = failed_start("--port", "0", "--api-key-file", empty.name)
        assert code == 1 and "no key" in text
