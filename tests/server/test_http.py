"""HTTP itself: connections, limits of trust, headers, probes, logs."""

import json
import os
import re
import socket
import ssl
import subprocess
import time

import pytest

from server import Connection, Server, clean_environment, flags_for_all, synthetic_model_flags


def test_keep_alive_and_pipelining(server):
    with server.connect() as connection:
        for _ in range(3):
            connection.send_request("GET", "/version")
            assert connection.read_response().json()["version"]
        connection.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" * 50 +
                        b"GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        statuses = [connection.read_response().status for _ in range(51)]
        assert statuses == [200] * 50 + [404]
        assert connection.is_closed()


@pytest.mark.parametrize("target, status", [
    ("http://anywhere/health", 200), ("HTTPS://anywhere:1/health?a=b", 200), ("http://anywhere", 200),
    ("http://anywhere?a=/health", 200), ("http://anywhere/nothing", 404), ("http:///health", 400),
    ("ftp://anywhere/health", 400), ("anywhere/health", 400)])
def test_targets_may_name_a_host(server, target, status):
    with server.connect() as connection:
        connection.send_request("GET", target)
        assert connection.read_response().status == status


def test_empty_lines_before_a_request_are_ignored(server):
    with server.connect() as connection:
        for before in (b"\r\n", b"", b"\r\n" * 4):
            connection.send(before + b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.read_response().status == 200
        for byte in b"\r\n":
            connection.send(b"%c" % byte)
            time.sleep(0.05)
        connection.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.read_response().status == 200
        connection.send(b"\r\n" * 100)
        assert connection.read_response().status == 400
        assert connection.is_closed()


def test_http_1_0_closes(server):
    with server.connect() as connection:
        connection.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.read_response().status == 200
        assert connection.is_closed()


def test_http_1_0_stream_ends_with_the_connection(server):
    body = json.dumps({"messages": [{"role": "user", "content": "What is 1 + 1?"}],
                       "stream": True}).encode()
    with server.connect() as connection:
        connection.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\n\r\n" % len(body) + body)
        status, headers = connection.read_head()
        assert status == 200 and "transfer-encoding" not in headers
        assert connection.is_closed()
        assert connection.buffer.endswith(b"data: [DONE]\n\n")


def test_head_has_no_body(server):
    with server.connect() as connection:
        connection.send_request("HEAD", "/health")
        response = connection.read_response(has_body=False)
        assert response.status == 200 and int(response.headers["content-length"]) > 0
        connection.send_request("GET", "/health")
        assert connection.read_response().status == 200


def test_chunked_body_and_expect(server):
    body = b"{\"prompt\": \"hello\"}"
    with server.connect() as connection:
        connection.send(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                        b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in body:
            connection.send(b"1\r\n%c\r\n" % byte)
        connection.send(b"0\r\n\r\n")
        assert connection.read_response().json()["count"] > 0
        connection.send(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body))
        assert connection.read_head()[0] == 100
        connection.send(body)
        assert connection.read_response().status == 200


def test_request_ids_are_echoed_or_made(server):
    assert server.get("/health", headers=[("X-Request-Id", "abc-1.2:3_4")]).headers[
        "x-request-id"] == "abc-1.2:3_4"
    made = server.get("/health", headers=[("X-Request-Id", "no spaces \"please\"")])
    assert re.fullmatch(r"req_[0-9a-z]{24}", made.headers["x-request-id"])
    assert server.get("/nowhere").headers["x-request-id"]


def test_cors_is_closed_unless_opened(server):
    origin = [("Origin", "https://a.example")]
    assert "access-control-allow-origin" not in server.get("/health", headers=origin).headers
    with Server("--allowed-origin", "https://a.example") as opened:
        answered = opened.get("/health", headers=origin)
        assert answered.headers["access-control-allow-origin"] == "https://a.example"
        other = opened.get("/health", headers=[("Origin", "https://b.example")])
        assert "access-control-allow-origin" not in other.headers
        preflight = opened.request("OPTIONS", "/v1/chat/completions", headers=origin + [
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os")])
        assert preflight.status == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]


def test_keys_guard_every_route_but_the_probes(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# for tests\nfrom-file\n")
    with Server("--api-key", "given", "--api-key-file", str(keys)) as guarded:
        for path in ("/health", "/livez", "/readyz"):
            assert guarded.get(path).status == 200
        document = guarded.get("/openapi.json", headers=[("Authorization", "Bearer given")]).json()
        num_guarded = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["security"] == []:
                    continue
                response = guarded.request(method.upper(), path.replace("{", "").replace("}", ""))
                assert response.status == 401, (method, path)
                num_guarded += 1
        assert num_guarded > 10
        for headers, status in (
                ([("Authorization", "Bearer given")], 200), ([("x-api-key", "from-file")], 200),
                ([("Authorization", "Bearer from-file")], 200),
                ([("Authorization", "Bearer give")], 401), ([("Authorization", "given")], 401),
                ([("Authorization", "Bearer givengiven")], 401), ([("x-api-key", "")], 401)):
            response = guarded.get("/v1/models", headers=headers)
            assert response.status == status, headers
            if status == 401:
                assert response.json()["error"]["code"] == "invalid_api_key"
        # A body is not even read without a key.
        with guarded.connect() as connection:
            connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n"
                            b"Content-Length: 1000000\r\n\r\n")
            assert connection.read_response().status == 401
        log = guarded.output()
        assert "from-file" not in log and "given" not in log


def test_access_log_as_json():
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with Server("--log-format", "json") as logging:
        logging.get("/version", headers=[("traceparent", f"00-{trace}-00f067aa0ba902b7-01"),
                                         ("X-Request-Id", "mine")])
        logging.get("/version", headers=[("traceparent", "00-nonsense-01")])
        logging.get("/nowhere")
        time.sleep(0.1)
        lines = [json.loads(line) for line in logging.output().splitlines() if line.startswith("{")]
    lines = [line for line in lines if line["event"] == "request"]
    assert [line["path"] for line in lines] == ["/version", "/version", "/nowhere"]
    assert lines[0]["trace_id"] == trace and lines[0]["request_id"] == "mine"
    assert "trace_id" not in lines[1]
    assert lines[2]["status"] == 404
    assert all(line["duration_s"] >= 0 and line["bytes"] > 0 for line in lines)


def test_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    with Server("--ssl-cert", str(certificate), "--ssl-key", str(key)) as secure:
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        plain = secure.connect()  # a client that speaks no TLS disturbs nobody
        plain.send(b"GET /health HTTP/1.1\r\n\r\n")
        with Connection(context.wrap_socket(secure.connect().raw)) as connection:
            for stream in (True, False):
                connection.send_request("POST", "/v1/chat/completions", {
                    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
                    "stream": stream})
                response = connection.read_response()
                text = "".join(event["choices"][0]["delta"].get("content") or ""
                               for event in response.events()[:-1]) if stream else response.text
                assert "42" in text
        assert plain.is_closed()
        plain.raw.close()


def test_health_is_503_while_loading(tmp_path):
    # The banner names the port when the model is there, so this server is told one; and its model
    # takes a while to make: the embedded one is there before anyone asks.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = Server("--port", str(port),
                     *synthetic_model_flags(tmp_path, hidden_size=1024, intermediate_size=1024,
                                            num_local_experts=64))
    running.port = port
    try:
        seen = set()
        end = time.monotonic() + 30
        while time.monotonic() < end and 200 not in seen:
            try:
                seen.add(running.get("/health").status)
            except OSError:
                pass
        assert seen == {200, 503}
    finally:
        assert running.stop() == 0


def test_banner_is_short_and_its_curl_line_works(server):
    banner = [line for line in server.output().splitlines() if not line.startswith("moxie info")]
    start = next(i for i, line in enumerate(banner) if line.startswith("moxie 0"))
    banner = banner[start:start + 13]
    lines = [line for line in banner if line.startswith(("moxie 0", "  "))]
    assert len(lines) <= 13
    command = "\n".join(lines[-2:]).split("try", 1)[1]
    answer = json.loads(subprocess.run(["bash", "-c", command], capture_output=True,
                                       check=True).stdout)
    assert "42" in answer["choices"][0]["message"]["content"]


USER = {"role": "user", "content": "x"}


def schema_of(document, path):
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_openapi_document_is_complete_and_true(server):
    document = server.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    # Every route answers something else than "unknown", and every reference resolves.
    for path, methods in document["paths"].items():
        if path == "/v1/watch":  # a stream without an end: test_page.py
            continue
        for method in methods:
            filled = path.replace("{model}", "moxie-embedded").replace("{id}", "resp_none")
            body = {} if method == "post" else None
            response = server.request(method.upper(), filled, body)
            if response.status == 404:
                assert response.json()["error"]["code"] != "unknown_url", path
    for reference in re.findall(r'"\$ref": ?"#([^"]+)"', json.dumps(document)):
        at = document
        for part in reference.strip("/").split("/"):
            at = at[part]
    # What the schema of a field says is what the server does.
    chat = schema_of(document, "/v1/chat/completions")
    checked = 0
    for name, field in chat["properties"].items():
        base = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        if field.get("type") in ("number", "integer") and "maximum" in field:
            over = server.post("/v1/chat/completions", {**base, name: field["maximum"] + 1})
            assert over.status == 400 and over.json()["error"]["param"] == name, name
            checked += 1
        if field.get("type") in ("number", "integer", "boolean"):
            wrong = server.post("/v1/chat/completions", {**base, name: "text"})
            assert wrong.status == 400 and wrong.json()["error"]["code"] == "invalid_type", name
            checked += 1
        if field.get("x-moxie") == "ignored":
            assert server.post("/v1/chat/completions", {**base, name: "x"}).status == 200, name
            checked += 1
        if field.get("x-moxie") == "refused":
            refused = server.post("/v1/chat/completions", {**base, name: {"a": 1}})
            assert refused.json()["error"]["code"] == "unsupported_parameter", name
            checked += 1
    assert checked > 40
    # What is required is asked for, and what is not required is not.
    for path, body in (("/v1/messages", {"model": "moxie-embedded", "messages": [USER], "max_tokens": 1}),
                       ("/v1/messages/render", {"model": "moxie-embedded", "messages": [USER], "max_tokens": 1}),
                       ("/v1/messages/count_tokens", {"model": "moxie-embedded", "messages": [USER]}),
                       ("/v1/chat/completions/render", {"messages": [USER]}),
                       ("/v1/completions/render", {"prompt": "x"}), ("/v1/responses/render", {"input": "x"})):
        required = schema_of(document, path)["required"]
        assert set(required) == set(body), path
        assert server.post(path, body).status == 200, path
        for name in required:
            short = server.post(path, {key: value for key, value in body.items() if key != name})
            assert short.status == 400 and "Missing required" in short.json()["error"]["message"], (path, name)
    # Words and counts that the schema names are taken; of /tokenize, all fields of a chat.
    for effort in chat["properties"]["reasoning_effort"]["enum"]:
        assert server.post("/v1/chat/completions/render", {"messages": [USER], "reasoning_effort": effort}
                           ).status == 200, effort
    said = server.post("/v1/chat/completions", {"messages": [USER], "reasoning_effort": "x"}).json()
    for effort in chat["properties"]["reasoning_effort"]["enum"]:
        assert f"'{effort}'" in said["error"]["message"]
    assert set(chat["properties"]) < set(schema_of(document, "/tokenize")["properties"])
    unknown = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                                   "temprature": 1})
    assert unknown.status == 400
    assert "'temperature'" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm:num_requests_waiting",
                                  "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
                                  "vllm:gpu_prefix_cache_hit_rate", "vllm:prompt_tokens_total",
                                  "vllm:generation_tokens_total", "vllm:request_success_total",
                                  "vllm:time_to_first_token_seconds_bucket",
                                  "vllm:inter_token_latency_seconds_sum",
                                  "vllm:e2e_request_latency_seconds_count",
                                  "vllm:request_queue_time_seconds_bucket",
                                  "vllm:prefix_cache_queries_total", "vllm:cache_config_info",
                                  "vllm:iteration_tokens_total_bucket"])
def test_metrics_have_vllms_names(server, name):
    server.metric(name)


def test_metrics_add_up():
    with Server() as fresh:
        prompt = answer = 0
        for n in (1, 2):
            usage = fresh.chat("What is 3 + 4?", n=n, temperature=1).json()["usage"]
            prompt += usage["prompt_tokens"]
            answer += usage["completion_tokens"]
        usage = fresh.chat("What is 3 + 4?", stop=["="]).json()["usage"]
        prompt += usage["prompt_tokens"]
        answer += usage["completion_tokens"]
        assert fresh.metric("vllm:prompt_tokens_total") == prompt
        assert fresh.metric("vllm:generation_tokens_total") == answer
        assert fresh.metric("vllm:request_success_total", 'finished_reason="stop"') == 4
        text = fresh.get("/metrics").text
        names = re.findall(r"^# TYPE (\S+) ", text, re.M)
        assert len(names) == len(set(names)), "a metric is declared twice"
        buckets = re.findall(r'^vllm:time_to_first_token_seconds_bucket\{.*le="([^"]+)"\} (\d+)$',
                             text, re.M)
        counts = [int(count) for _, count in buckets]
        assert counts == sorted(counts) and counts[-1] == 4 and buckets[-1][0] == "+Inf"


@pytest.mark.parametrize("flags", [(), ("--max-num-seqs", "8", "--kv-cache-memory", "48MiB")])
def test_plan_says_what_serve_takes(flags):
    done = subprocess.run([os.environ["MOXIE_BINARY"], "plan", "--json", *flags,
                           *flags_for_all(flags)], check=True,
                          stdout=subprocess.PIPE, env=clean_environment())
    plan = json.loads(done.stdout)["serve"]
    with Server(*flags) as planned:
        for kind in ("full", "window"):
            assert plan[f"{kind}_pages"] == planned.metric("moxie:kv_pages", f'layers="{kind}"')
        assert f"context  {plan['max_model_len']} tokens, {plan['max_num_seqs']} requests at once" in (
            planned.output())


def test_a_cache_that_is_raised_is_said():
    with Server("--kv-cache-memory", "1KiB", "--max-model-len", "512") as running:
        assert re.search(r"--kv-cache-memory 1.*KiB: the cache takes .* --max-model-len 512",
                         running.output()), running.output()
