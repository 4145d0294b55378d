"""The server as a worker behind a router: fields that routers add, what they ask, and how a worker
comes and goes."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server import Connection, Server, clean_environment, synthetic_model_flags

ASK = [{"role": "user", "content": "What is 17 + 25?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True,
        "max_tokens": 15000, "temperature": 1}
# As vllm-router 0.1.17 and sglang-router 0.3.2 send a request on.
ADDED = {"no_stop_trim": False, "return_hidden_states": False, "ignore_eos": False,
         "skip_special_tokens": True, "stream": False}
ADDED_TO_CHATS = {**ADDED, "separate_reasoning": True, "stream_reasoning": True, "logprobs": False,
                  "continue_final_message": False}


def ask(server, status=200, path=CHAT, **fields):
    prompt = {"messages": ASK} if path == CHAT else {"prompt": "17 + 25 ="}
    response = server.post(path, {**prompt, **fields})
    assert response.status == status, response.text
    return response.json()


def message_of(server, **fields):
    return ask(server, **fields)["choices"][0]["message"]


def deltas(server, **fields):
    response = server.post(CHAT, {"messages": ASK, "stream": True, **fields})
    assert response.status == 200, response.text
    return [event["choices"][0]["delta"] for event in response.events()[:-1]]


# Fields

def test_fields_that_routers_add_change_nothing(server):
    assert message_of(server, **ADDED_TO_CHATS) == message_of(server)
    texts = [ask(server, path=TEXT, **fields)["choices"][0]["text"] for fields in ({}, ADDED)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_no_stop_trim_is_include_stop_str_in_output(server, path):
    def text(**fields):
        choice = ask(server, path=path, stop=["2"], max_tokens=100, **fields)["choices"][0]
        assert choice["stop_reason"] == "2"
        return choice["text"] if path == TEXT else choice["message"]["content"]

    cut = text()
    assert "2" not in cut
    for fields in ({"no_stop_trim": True}, {"include_stop_str_in_output": True},
                   {"no_stop_trim": True, "include_stop_str_in_output": False},
                   {"include_stop_str_in_output": True, "no_stop_trim": False}):
        assert text(**fields) == cut + "2"
    assert text(no_stop_trim=False) == cut


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_hidden_states_are_refused(server, path):
    error = ask(server, 400, path, return_hidden_states=True)["error"]
    assert (error["param"], error["code"]) == ("return_hidden_states", "unsupported_parameter")
    assert "return_hidden_states" in error["message"]


@pytest.mark.parametrize("fields", [{"separate_reasoning": 1}, {"stream_reasoning": "no"},
                                    {"no_stop_trim": []}])
def test_wrong_types_are_named(server, fields):
    error = ask(server, 400, **fields)["error"]
    assert (error["param"], error["code"]) == (next(iter(fields)), "invalid_type")


def test_reasoning_that_is_not_separate_stands_in_the_content(server):
    apart = message_of(server)
    assert apart["reasoning"] and apart["content"]
    joined = message_of(server, separate_reasoning=False)
    assert joined["content"] == apart["reasoning"] + "\n\n" + apart["content"]
    assert joined["reasoning"] is None and joined["reasoning_content"] is None
    for more in ({}, {"stream_reasoning": False}, {"n": 2, "temperature": 0}):
        response = server.post(CHAT, {"messages": ASK, "stream": True, "separate_reasoning": False,
                                      **more})
        texts = [""] * more.get("n", 1)
        for event in response.events()[:-1]:
            choice = event["choices"][0]
            assert "reasoning" not in choice["delta"]
            texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == [joined["content"]] * len(texts)
    without = message_of(server, separate_reasoning=False, include_reasoning=False)
    assert without["content"] == apart["content"]


def test_reasoning_that_is_not_separate_leaves_the_rest_alone(server):
    plain = ask(server, logprobs=True, top_logprobs=1)["choices"][0]
    joined = ask(server, logprobs=True, top_logprobs=1, separate_reasoning=False)["choices"][0]
    assert joined["logprobs"] == plain["logprobs"]
    cut = message_of(server, stop=["4"], separate_reasoning=False)["content"]
    assert cut == plain["message"]["reasoning"] + "\n\n" + plain["message"]["content"].split("4")[0]


def test_reasoning_comes_as_a_whole_if_it_is_not_streamed(server):
    pieces = [delta for delta in deltas(server) if "reasoning" in delta]
    assert len(pieces) > 1
    whole = deltas(server, stream_reasoning=False)
    reasoning = [i for i, delta in enumerate(whole) if "reasoning" in delta]
    assert len(reasoning) == 1
    assert whole[reasoning[0]]["reasoning"] == "".join(delta["reasoning"] for delta in pieces)
    first_content = next(i for i, delta in enumerate(whole) if delta.get("content"))
    assert reasoning[0] < first_content
    # An answer that ends in its reasoning loses none of it.
    cut = deltas(server, stream_reasoning=False, max_tokens=5)
    assert [delta["reasoning"] for delta in cut if "reasoning" in delta] == [
        "".join(delta.get("reasoning", "") for delta in deltas(server, max_tokens=5))]


@pytest.mark.parametrize("field", ["chat_template_kwargs", "chat_template_args"])
def test_template_variables(server, field):
    def prompt(**fields):
        return server.post(CHAT + "/render", {"messages": ASK, **fields}).json()["prompt"]

    low, medium = prompt(reasoning_effort="low"), prompt()
    assert "Reasoning: low" in low and "Reasoning: medium" in medium
    assert prompt(**{field: {"reasoning_effort": "low"}}) == low
    # The request's own field counts, wherever it stands.
    for effort in ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}):
        assert prompt(**{field: {"reasoning_effort": "high"}, **effort}) == low
        assert prompt(**effort, **{field: {"reasoning_effort": "high"}}) == low
    assert prompt(**{field: {"reasoning_effort": "low"}, "reasoning": {"exclude": True}}) == low
    idle = {"enable_thinking": True, "thinking": True, "add_generation_prompt": True,
            "add_special_tokens": False, "continue_final_message": False, "builtin_tools": [],
            "documents": [], "tools": [], "anything": None}
    assert prompt(**{field: idle}) == medium
    for bad in ({"enable_thinking": False}, {"builtin_tools": ["python"]}, {"tools": [1]},
                {"model_identity": "x"}, {"unheard_of": 0}, {"x" * 1000: 1}):
        error = ask(server, 400, **{field: bad})["error"]
        key = next(iter(bad))[:64]
        assert (error["param"], error["code"]) == (f"{field}.{key}", "unsupported_parameter")
        assert key in error["message"]
    error = ask(server, 400, **{field: {"reasoning_effort": "extreme"}})["error"]
    assert (error["param"], error["code"]) == (field + ".reasoning_effort", "invalid_value")
    assert ask(server, 400, **{field: "low"})["error"]["code"] == "invalid_type"


def test_an_unknown_model_is_404_and_a_missing_one_is_not(server):
    assert ask(server, 404, model="unknown")["error"]["code"] == "model_not_found"
    assert message_of(server) == message_of(server, model=None)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_one_name_of_the_reasoning(server, field):
    other = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}[field]
    both = message_of(server)
    with Server("--reasoning-field", field) as single:
        message = message_of(single)
        assert other not in message
        assert message[field] == both[field]
        pieces = deltas(single)
        assert not any(other in delta for delta in pieces)
        assert "".join(delta.get(field, "") for delta in pieces) == both[field]


# Endpoints

def test_load_counts_requests(server):
    assert server.idle()
    assert server.get("/load").json() == {"server_load": 0}
    assert server.get("/get_load").json() == {"load": 0}
    with Server("--max-num-seqs", "2") as small:
        connections = [small.connect() for _ in range(3)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
        for connection in connections[:2]:
            connection.read_head()
        end = time.monotonic() + 20
        while small.get("/get_load").json()["load"] != 3 and time.monotonic() < end:
            time.sleep(0.02)
        assert small.get("/load").json() == {"server_load": 3}
        # The rate is of the last whole second, in which a busy machine may have made no token.
        while True:
            report = small.get("/v1/loads?include=core,queues,memory").json()
            if report["loads"][0]["gen_throughput"] > 0 or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["timestamp"])
        assert report["dp_rank_count"] == 1
        [load] = report["loads"]
        assert (load["num_running_reqs"], load["num_waiting_reqs"], load["num_total_reqs"]) == (2, 1, 3)
        assert load["num_waiting_uncached_tokens"] > 20
        assert 0 < load["num_used_tokens"] < load["max_total_num_tokens"]
        assert load["token_usage"] == pytest.approx(
            load["num_used_tokens"] / load["max_total_num_tokens"])
        assert load["gen_throughput"] > 0
        assert load["utilization"] == 1 and load["max_running_requests"] == 2
        assert small.metric("vllm:num_requests_waiting_by_reason", 'reason="capacity"') == 1
        for connection in connections:
            connection.raw.close()
        assert small.idle()
        assert small.get("/v1/loads").json()["loads"][0]["num_waiting_uncached_tokens"] == 0


def test_what_the_worker_is(server):
    served = server.get("/v1/models").json()["data"][0]
    for path in ("/server_info", "/get_server_info"):
        info = server.get(path).json()
        assert info["model_id"] == info["served_model_name"] == served["id"]
        assert info["model_path"] == served["root"]
        assert info["max_model_len"] == served["max_model_len"]
        assert info["kv_block_size"] == info["effective_attention_block_size"] == 16
        assert info["instance_id"] == server.get(path).json()["instance_id"]
        assert info["max_total_num_tokens"] == 16 * server.metric("moxie:kv_pages", 'layers="full"')
    for path in ("/model_info", "/get_model_info"):
        info = server.get(path).json()
        assert info["model_path"] == served["root"] and info["is_generation"] is True
        assert info["served_model_name"] == served["id"]
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}
    assert server.get("/kv_event_sources").json() == {}


def test_flush_cache_empties_what_is_cached():
    with Server() as fresh:
        def cached():
            response = fresh.chat("What is 3 + 4? " * 30, max_tokens=4).json()
            return response["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached() == 0 and cached() > 0
        assert fresh.post("/flush_cache", {}).json() == {"status": "ok"}
        assert fresh.metric("moxie:kv_pages_cached", 'layers="full"') == 0
        assert cached() == 0 and cached() > 0
        with fresh.connect() as connection:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
            connection.read_head()
            busy = fresh.request("POST", "/flush_cache")
            assert busy.status == 409 and busy.json()["error"]["code"] == "busy"
        assert fresh.idle()
        assert fresh.request("POST", "/flush_cache").status == 200
        assert fresh.get("/flush_cache").status == 405


def test_health_generate_draws_a_token(server):
    before = server.metric("vllm:generation_tokens_total")
    assert server.get("/health_generate").json() == {"status": "ok"}
    assert server.metric("vllm:generation_tokens_total") == before + 1


def test_health_generate_goes_before_what_waits():
    with Server("--max-num-seqs", "8") as busy:
        connections = [busy.connect() for _ in range(12)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "max_tokens": 60, "stream": True})
        assert busy.get("/health_generate").status == 200
        for connection in connections:
            connection.raw.close()
        assert busy.idle()


def test_health_generate_is_503_if_steps_fail():
    with Server("--debug-fault", "token:0") as faulty:
        failed = faulty.get("/health_generate")
        assert failed.status == 503 and int(failed.headers["retry-after"]) >= 1
        assert failed.json()["error"]["code"] == "no_token"
        assert faulty.get("/health").status == 200


def test_a_full_queue_is_no_fault_of_the_probe():
    with Server("--max-num-seqs", "1", "--max-queue", "1") as small:
        connections = [small.connect() for _ in range(2)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "max_tokens": 600, "stream": True})
            assert connection.read_head()[0] == 200
            while small.metric("vllm:num_requests_running") == 0:
                pass
        assert small.chat().status == 429
        probed = small.get("/health_generate")
        assert probed.status == 200, probed.text
        for connection in connections:
            connection.raw.close()
        assert small.idle()


def test_responses_are_rendered(server):
    chat = server.post(CHAT + "/render", {"messages": ASK}).json()
    rendered = server.post("/v1/responses/render", {"input": ASK[0]["content"]}).json()
    assert rendered == chat
    first = server.post("/v1/responses", {"input": ASK[0]["content"]}).json()
    second = server.post("/v1/responses/render", {
        "input": "And 1 more?", "previous_response_id": first["id"]}).json()
    assert ASK[0]["content"] in second["prompt"] and "And 1 more?" in second["prompt"]
    assert len(second["token_ids"]) == len(second["prompt_token_ids"]) > len(chat["token_ids"])
    for body, code in (({}, "missing_required_parameter"), ({"input": "x", "bad": 1},
                                                            "unknown_parameter")):
        refused = server.post("/v1/responses/render", body)
        assert refused.status == 400 and refused.json()["error"]["code"] == code
    assert server.post("/v1/responses/render", {
        "input": "x", "previous_response_id": "resp_none"}).status == 404
    # The route of a response's name stays what it was.
    assert server.get("/v1/responses/render").json()["error"]["code"] != "unknown_url"


def test_messages_are_rendered(server):
    body = {"model": "moxie-embedded", "max_tokens": 5, "messages": ASK}
    rendered = server.post("/v1/messages/render", body).json()
    counted = server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
    assert len(rendered["token_ids"]) == counted
    assert ASK[0]["content"] in rendered["prompt"]
    refused = server.post("/v1/messages/render", {"messages": ASK})
    assert refused.status == 400 and refused.json()["type"] == "error"
    refused = server.post("/v1/messages/render", {**body, "model": "other"})
    assert refused.status == 404 and refused.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff{}", b"[" * 100_000, b"{\"input\": 3}",
                                  b"{\"messages\": 3}", b"{\"model\": [], \"max_tokens\": 1e99}"])
def test_broken_bodies_are_400(server, body):
    for path in ("/v1/responses/render", "/v1/messages/render", CHAT):
        assert server.post(path, body).status == 400
    for fields in (b'"chat_template_args": ' + b'{"a":' * 400 + b"1" + b"}" * 400,
                   b'"chat_template_kwargs": {"": 1}', b'"separate_reasoning": {}'):
        response = server.post(
            CHAT, b'{"messages": [{"role": "user", "content": "x"}], ' + fields + b"}")
        assert response.status == 400, response.text
    assert server.post("/flush_cache", body).status in (200, 409)  # it has no fields


# Metrics

def families_of(text):
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), names
    for family in families:
        assert family.type != "unknown", family.name
    return {family.name: family for family in families}


def value_of(families, name, family=None, **labels):
    [sample] = [sample for sample in families[family or name].samples
                if sample.name == name and labels.items() <= sample.labels.items()]
    return sample.value


ROUTERS_READ = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc",
                "vllm:cache_config_info")


def test_families_stand_together(server):
    families = families_of(server.get("/metrics").text)
    for name in ROUTERS_READ + ("vllm:num_requests_waiting_by_reason", "vllm:engine_sleep_state",
                                "vllm:prompt_tokens_cached", "vllm:prompt_tokens_by_source",
                                "vllm:admission_rejections", "vllm:request_num_preemptions",
                                "vllm:request_prefill_kv_computed_tokens", "moxie:kv_pages"):
        assert name in families, name
    assert value_of(families, "vllm:engine_sleep_state", sleep_state="awake") == 1
    assert {sample.labels["layers"] for sample in families["moxie:kv_pages"].samples} == {
        "full", "window"}


def test_metrics_count_what_the_cache_had():
    with Server("--max-num-seqs", "1", "--max-queue", "1") as fresh:
        prompt = cached = 0
        for _ in range(3):
            usage = fresh.chat("What is 3 + 4? " * 30, max_tokens=4).json()["usage"]
            prompt += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        families = families_of(fresh.get("/metrics").text)
        assert value_of(families, "vllm:prompt_tokens_total", "vllm:prompt_tokens") == prompt
        assert value_of(families, "vllm:prompt_tokens_cached_total",
                        "vllm:prompt_tokens_cached") == cached
        for source, count in (("local_compute", prompt - cached), ("local_cache_hit", cached),
                              ("external_kv_transfer", 0)):
            assert value_of(families, "vllm:prompt_tokens_by_source_total",
                            "vllm:prompt_tokens_by_source", source=source) == count
        for name, total in (("vllm:request_prefill_kv_computed_tokens", prompt - cached),
                            ("vllm:request_num_preemptions", 0)):
            assert value_of(families, name + "_sum", name) == total
            assert value_of(families, name + "_count", name) == 3
        connections = [fresh.connect() for _ in range(6)]
        for connection in connections:
            connection.send_request("POST", CHAT, {**LONG, "stream": True})
        statuses = [connection.read_head()[0] for connection in connections]
        assert fresh.metric("vllm:admission_rejections_total",
                            'reason="max_num_queued_reqs"') == statuses.count(429) > 0
        assert fresh.metric("vllm:admission_rejections_total",
                            'reason="max_num_queued_tokens"') == 0
        for connection in connections:
            connection.raw.close()
        assert fresh.idle()


def test_metrics_are_there_while_the_model_loads(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = Server("--port", str(port),
                     *synthetic_model_flags(tmp_path, hidden_size=1024, intermediate_size=1024,
                                            num_local_experts=64))
    running.port = port
    try:
        loading = None
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                text = running.get("/metrics").text
                if running.get("/health").status == 503:
                    loading = text
                    break
            except OSError:
                pass
        families = families_of(loading)
        for name in ROUTERS_READ[:3]:
            assert value_of(families, name) == 0
        assert value_of(families, "vllm:cache_config_info", num_gpu_blocks="0",
                        block_size="16") == 1
        for path in ("/load", "/get_load", "/v1/loads", "/server_info", "/health_generate"):
            assert running.get(path).status in (200, 503)
        assert running.get("/is_sleeping").status == 200
        running.wait_ready()
        ready = families_of(running.get("/metrics").text)
        assert set(ready) == set(families)
        assert int(ready["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"]) > 0
    finally:
        assert running.stop() == 0


def test_metrics_without_a_key():
    with Server("--api-key", "secret") as guarded:
        assert guarded.get("/metrics").status == 401 and guarded.get("/version").status == 401
    with Server("--api-key", "secret", "--metrics-without-key", "on") as opened:
        assert opened.get("/metrics").status == 200 and opened.get("/version").status == 200
        assert opened.get("/metrics", headers=[("Authorization", "Bearer wrong")]).status == 200
        for path in ("/load", "/get_load", "/v1/loads", "/server_info", "/model_info", "/v1/models",
                     "/is_sleeping", "/kv_event_sources", "/health_generate", "/openapi.json"):
            assert opened.get(path).status == 401, path
        assert opened.request("POST", "/flush_cache").status == 401


# Coming and going

def test_drain_delay_takes_work_while_routers_notice():
    with Server("--drain-delay", "2") as leaving:
        leaving.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        while leaving.get("/readyz").status != 503:
            assert time.monotonic() - start < 1
        assert leaving.get("/health").json() == {"status": "draining"}
        assert leaving.get("/livez").status == 200
        assert leaving.chat(max_tokens=4).status == 200
        with leaving.connect() as connection:
            connection.send_request("POST", CHAT, {**LONG, "max_tokens": 5000, "stream": True})
            assert connection.read_head()[0] == 200
            while (late := leaving.chat(max_tokens=4)).status == 200:
                assert time.monotonic() - start < 10
            assert late.status == 503 and late.json()["error"]["code"] == "shutting_down"
            assert time.monotonic() - start > 1.5
            body = b""
            while not body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                data = connection.raw.recv(65536)
                assert data, "a stream was cut"
                body += data
        assert leaving.process.wait(20) == 0
        assert time.monotonic() - start > 1.9


def test_an_idle_server_stays_for_the_whole_delay():
    with Server("--drain-delay", "1") as leaving:
        start = time.monotonic()
        leaving.process.send_signal(signal.SIGTERM)
        assert leaving.process.wait(20) == 0
        assert time.monotonic() - start > 0.9


def make_certificate(folder, name):
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return key, certificate


def common_name(server):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Connection(context.wrap_socket(server.connect().raw)) as connection:
        der = connection.raw.getpeercert(binary_form=True)
        connection.send_request("GET", "/health")
        assert connection.read_response().status == 200
    names = re.findall(rb"\x55\x04\x03\x0c.([a-z]+)", der)
    return names[-1].decode()


def put(source, target):
    """Replaces a file at once, as those do that renew certificates."""
    fresh = target.with_suffix(".new")
    fresh.write_bytes(source.read_bytes())
    fresh.rename(target)


@pytest.mark.parametrize("names", [("--ssl-certfile", "--ssl-keyfile"), ("--ssl-cert", "--ssl-key")])
def test_a_certificate_is_renewed(tmp_path, names):
    old, new, other = (make_certificate(tmp_path, name) for name in ("old", "new", "other"))
    key, certificate = tmp_path / "live.key", tmp_path / "live.pem"
    put(old[0], key)
    put(old[1], certificate)
    with Server(names[0], str(certificate), names[1], str(key)) as secure:
        assert common_name(secure) == "old"
        context = ssl.create_default_context(cafile=old[1])
        context.check_hostname = False
        with Connection(context.wrap_socket(secure.connect().raw)) as kept:
            time.sleep(1.1)
            put(new[0], key)
            put(new[1], certificate)
            assert common_name(secure) == "new"
            kept.send_request("GET", "/health")  # on the old connection
            assert kept.read_response().status == 200
        # Faulty files: the certificate stays, with one line for each change.
        time.sleep(1.1)
        put(other[0], key)  # a key that does not fit
        assert common_name(secure) == "new"
        time.sleep(1.1)
        assert common_name(secure) == "new"
        assert secure.output().count("the new certificate is not used") == 1
        time.sleep(1.1)
        certificate.unlink()
        assert common_name(secure) == "new"
        assert secure.output().count("the new certificate is not used") == 2
        # A key with a password: nobody is asked for it.
        time.sleep(1.1)
        put(new[1], certificate)
        subprocess.run(["openssl", "rsa", "-aes256", "-passout", "pass:x", "-in", new[0], "-out",
                        tmp_path / "locked"], check=True, capture_output=True)
        put(tmp_path / "locked", key)
        assert common_name(secure) == "new"
        assert secure.output().count("the new certificate is not used") == 3
        # SIGHUP reads at once, and ends nothing.
        put(other[0], key)
        put(other[1], certificate)
        secure.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 5
        while common_name(secure) != "other":
            assert time.monotonic() < end
        assert secure.output().count("the certificate was read again") == 2


def test_a_hangup_without_a_certificate_changes_nothing():
    """deploy/systemd/moxie.service sends it on reload."""
    with Server() as plain:
        for count in (1, 2):
            plain.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + 5
            while plain.output().count("moxie info: SIGHUP: nothing to read again") < count:
                assert time.monotonic() < end and plain.process.poll() is None
        assert plain.get("/health").status == 200


@pytest.mark.parametrize("flags, words", [
    (("--ssl-cert", "a", "--ssl-certfile", "b"), ("--ssl-cert", "--ssl-certfile")),
    (("--ssl-cert", "a"), ("--ssl-cert", "--ssl-key", "both are needed")),
    (("--reasoning-field", "thoughts"), ("--reasoning-field", "reasoning_content")),
    (("--metrics-without-key", "yes"), ("--metrics-without-key", "on")),
    (("--drain-delay", "-1"), ("--drain-delay", "0")),
])
def test_wrong_switches_are_usage_faults(flags, words):
    done = subprocess.run([os.environ["MOXIE_BINARY"], "serve", *flags], capture_output=True,
                          text=True, timeout=60, env=clean_environment())
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_switches_are_variables_and_keys_too(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"reasoning-field": "reasoning", "api-key": "k"}))
    with Server("--config", str(config), env={"MOXIE_METRICS_WITHOUT_KEY": "on"}) as configured:
        assert configured.get("/metrics").status == 200
        response = configured.post(CHAT, {"messages": ASK}, headers=[("Authorization", "Bearer k")])
        assert "reasoning_content" not in response.json()["choices"][0]["message"]


def test_many_ask_at_once(server):
    """Probes and loads from many threads harm nothing."""
    paths = ("/load", "/get_load", "/v1/loads", "/server_info", "/model_info", "/metrics",
             "/health_generate")
    faults = []

    def run():
        for path in paths * 3:
            if server.get(path).status != 200:
                faults.append(path)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and server.idle()
