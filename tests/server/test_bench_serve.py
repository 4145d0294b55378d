"""`moxie bench serve` against this server, whose own counters it must agree with, and against endpoints
that break off, lie or never end."""

import itertools
import json
import os
import signal
import subprocess
import time

import pytest

import fake_endpoint as fake
from fake_endpoint import FakeEndpoint
from server import SANITIZED, Server, clean_environment, free_port

# A test measures this many requests before its endpoint misbehaves; one more is the probe.
NUM_GOOD = 5


def command(*flags):
    return [os.environ["MOXIE_BINARY"], "bench", "serve", *map(str, flags)]


def bench(*flags, code=0, timeout=300):
    done = subprocess.run(command(*flags), capture_output=True, text=True, timeout=timeout,
                          env=clean_environment())
    assert done.returncode == code, done.stdout + done.stderr
    return done


def measured(*flags, **more):
    return json.loads(bench("--json", *flags, **more).stdout)


def small(endpoint, *more):
    return ("--url", endpoint.url, "-p", 64, "-n", 5, "--warm-up", 0, "--max-errors", 2, *more)


def kinds(document):
    return {error["kind"] for test in document["tests"] for error in test["errors"]}


# ---- this server ----------------------------------------------------------------------------------

COUNTERS = {"requests": "vllm:request_success_total", "prompt_tokens": "vllm:prompt_tokens_total",
            "completion_tokens": "vllm:generation_tokens_total",
            "ttft_s": "vllm:time_to_first_token_seconds_sum", "gaps_s": "vllm:inter_token_latency_seconds_sum"}


def counters(server):
    text = server.get("/metrics").text.splitlines()
    return {key: sum(float(line.rsplit(" ", 1)[1]) for line in text if line.startswith(name + "{"))
            for key, name in COUNTERS.items()}


@pytest.mark.parametrize("flags", [("--concurrency", 1), ("--concurrency", 4), ("--rate", 20)])
def test_agrees_with_the_servers_own_counters(server, flags):
    """Raw completions of full length: each token is one event. The server's clock begins when the request
    has come and ends when a token is drawn, so this side has the socket and its own turns beside them: up
    to 5 ms a request where 2% are less. Counts agree in each run; times must in one of five, since
    another process may hold this side's processor in the others."""
    apart = []
    for _ in range(5):
        assert server.idle()
        before = counters(server)
        document = measured("--url", f"http://127.0.0.1:{server.port}", "--endpoint", "completions", "-p", 96,
                            "-n", 24, "--requests", 12, "--ignore-eos", *flags)
        assert server.idle()
        after = counters(server)
        traffic = document["endpoints"][0]["traffic"]
        for key in ("requests", "prompt_tokens", "completion_tokens"):
            assert traffic[key] == after[key] - before[key], key
        test = document["tests"][0]
        assert test["tokens"]["prompt"] == 12 * 96 and test["tokens"]["output"] == 12 * 24
        assert test["tokens"]["prompts_of_other_length"] == 0
        apart = []
        for key in ("ttft_s", "gaps_s"):
            of_server = after[key] - before[key]
            if abs(traffic[key] - of_server) > max(0.02 * of_server, 0.005 * traffic["requests"]):
                apart.append((key, traffic[key], of_server))
        if SANITIZED or not apart:
            return
    pytest.fail(f"times of this side and of the server: {apart}")


def test_chat_prompts_have_the_asked_length(server):
    document = measured("--url", f"http://127.0.0.1:{server.port}/v1", "-p", "128,200", "-d", "0,150", "-n", 8,
                        "--requests", 3)
    assert document["endpoints"][0]["prompts_counted_by"] == "tokenize"
    assert [test["name"] for test in document["tests"]] == [
        "pp128 tg8 c1", "pp200 tg8 c1", "pp128 tg8 d150 c1", "pp200 tg8 d150 c1"]
    for test in document["tests"]:
        assert test["tokens"]["prompt"] == 3 * (test["n_prompt"] + test["depth"])
        assert test["tokens"]["prompts_of_other_length"] == 0
        for figure in ("ttft_ms", "e2e_ms"):
            assert test[figure]["count"] == 3 and 0 < test[figure]["p50"] <= test[figure]["p99"]


def test_a_loaded_context_is_found_in_the_cache_and_prompts_otherwise_are_not(server):
    flags = ("--url", f"http://127.0.0.1:{server.port}", "--endpoint", "completions", "--ignore-eos", "-p", 64,
             "-d", 192, "-n", 4, "--requests", 4)
    alone = measured(*flags)["tests"][0]
    assert alone["tokens"]["cached"] == 0
    loaded = measured(*flags, "--prefix-cache")["tests"][0]
    assert loaded["tokens"]["prompt"] == 4 * 256
    assert 4 * 128 <= loaded["tokens"]["cached"] <= 4 * 192


def test_a_server_beside_itself_is_no_faster_than_itself(server):
    """Both names are of one server: whatever is called, it is not called of counts."""
    url = f"http://127.0.0.1:{server.port}"
    document = measured("--url", url, "--url", url + "/v1", "-p", 80, "-n", 4, "--requests", 16,
                        "--latency-mode", "none")  # on a busy machine it may exceed the prompt's time
    assert [test["requests"] for test in document["tests"]] == [16, 16]
    assert {v["figure"] for v in document["verdicts"]} == {
        "ttft", "tpot", "itl", "e2e", "pp", "pp_ttft", "tg", "output"}
    assert {v["verdict"] for v in document["verdicts"]} <= {"faster", "slower", "same", "unclear"}


def test_a_key_is_needed_sent_and_kept_out_of_the_record(tmp_path):
    with Server("--api-key", "secret-key") as server:
        url = f"http://127.0.0.1:{server.port}"
        assert "--api-key" in bench("--url", url, code=1).stderr
        path = tmp_path / "record.json"
        done = bench("--url", url, "--api-key", "secret-key", "-p", 100, "-n", 4, "--requests", 2, "--json",
                     "--record", path)
        assert "secret-key" not in done.stdout + done.stderr + path.read_text()
        record = json.loads(path.read_text())
        assert record["kind"] == "serve"
        names = [series["name"] for series in record["results"]]
        assert "pp100 tg4 c1 ttft" in names and len(names) == len(set(names))
        # "pp" and "pp_ttft" have fewer where a request was answered sooner than the probe for the latency.
        samples = {series["name"].rsplit(" ", 1)[1]: series["samples"] for series in record["results"]}
        assert len(samples["ttft"]) == len(samples["e2e"]) == 2


# ---- endpoints that keep to the form ----------------------------------------------------------------


def test_the_form_of_a_stream_does_not_matter():
    def answer(handler, body):
        handler.begin_stream()
        text = (b": hello\r\n\r\n" + fake.role() + fake.token("\u20ac") * 2 + b"event: x\r\ndata: " +
                fake.token("\u20ac")[6:-2] + b"\r\n\r\n: ping\n\n" + fake.token("\u20ac") * 2 + fake.last() +
                fake.usage(fake.words_of(body) + 10, 5) + b"data: [DONE]")
        for at in range(0, len(text), 7):  # also within a character
            handler.piece(text[at:at + 7])

    with FakeEndpoint(answer) as endpoint:
        test = measured(*small(endpoint, "--requests", 3))["tests"][0]
    assert test["requests"] == 3 and test["tokens"] == {
        "prompt": 3 * 64, "cached": 0, "output": 15, "events": 15, "prompts_of_other_length": 0}


def test_times_are_those_of_the_events():
    def answer(handler, body):
        handler.begin_stream()
        time.sleep(0.1)
        handler.piece(fake.role())
        time.sleep(0.1)
        for _ in range(4):
            handler.piece(fake.token())
            time.sleep(0.05)
        handler.piece(fake.token() + fake.last() + fake.usage(64, 5) + fake.DONE)

    with FakeEndpoint(answer) as endpoint:
        test = measured(*small(endpoint, "--requests", 4, "--latency-mode", "none"))["tests"][0]
    # No less than was slept, since a sleep is never shorter; but the first token may be read late.
    assert min(test["ttft_ms"]["samples"]) >= 200 and min(test["tpot_ms"]["samples"]) >= 40
    assert min(test["e2e_ms"]["samples"]) >= 400
    assert max(test["pp_tok_s"]["samples"]) <= 640
    assert max(test["pp_ttft_tok_s"]["samples"]) <= 320
    assert len(test["itl_ms"]["samples"]) == 16


def test_events_that_came_together_have_no_time_between_them():
    """One write of several chunks of the encoding: what their reading took is no time of the endpoint."""
    def answer(handler, body):
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        events = [fake.token() for _ in range(5)] + [fake.last() + fake.usage(64, 5) + fake.DONE]
        handler.piece(b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in events) + b"0\r\n\r\n")

    with FakeEndpoint(answer) as endpoint:
        test = measured(*small(endpoint, "--requests", 4))["tests"][0]
    assert test["requests"] == 4 and test["itl_ms"]["samples"] == [0] * 16
    assert test["tpot_ms"]["samples"] == [] and test["tg_tok_s"]["samples"] == []


def test_requests_by_a_rate_take_the_whole_duration():
    with FakeEndpoint() as endpoint:
        begin = time.monotonic()
        test = measured("--url", endpoint.url, "-p", 64, "-n", 5, "--rate", 0.001, "--duration", 1,
                        "--seed", 1)["tests"][0]
        took_s = time.monotonic() - begin
    assert test["requests"] == 1 and took_s < 60, "the next request would come after minutes"
    assert 0.99 <= test["seconds"] < 60 and test["requests_s"] < 1.01


def test_tests_that_are_named_twice_run_once():
    with FakeEndpoint() as endpoint:
        flags = small(endpoint, "--requests", 1)
        assert len(measured(*flags, "--concurrency", "1,2,1")["tests"]) == 2
        assert len(measured(*flags, "--rate", "50,50.0")["tests"]) == 1


def test_tokens_behind_the_last_text_are_no_part_of_its_time():
    def event(text, count):
        return fake.event({"choices": [{"index": 0, "delta": {"content": text}, "token_ids": [7] * count}]})

    def answer(handler, body):
        handler.begin_stream()
        for _ in range(3):
            handler.piece(event("a ", 1))
            time.sleep(0.05)
        handler.piece(event("", 2) + fake.last() + fake.usage(64, 5) + fake.DONE)

    with FakeEndpoint(answer) as endpoint:
        test = measured(*small(endpoint, "--requests", 4))["tests"][0]
    assert test["tokens"]["output"] == 4 * 5
    # Two gaps for two tokens, 50 ms each, not for four; the first piece may be read late.
    assert min(test["tpot_ms"]["samples"]) >= 40


def test_an_endpoint_without_tokenizer_is_measured_by_usage():
    with FakeEndpoint(has_tokenizer=False) as endpoint:
        document = measured(*small(endpoint, "--requests", 3))
    assert document["endpoints"][0]["prompts_counted_by"] == "usage"
    assert document["tests"][0]["tokens"]["prompt"] == 3 * 64
    assert any("/tokenize" in note for note in document["notes"])


def test_an_endpoint_that_knows_no_token_ids():
    def answer(handler, body):
        if "return_token_ids" in body:
            return handler.document({"error": {"message": "unknown field"}}, 400)
        fake.good(handler, body)

    with FakeEndpoint(answer) as endpoint:
        assert measured(*small(endpoint, "--requests", 3))["tests"][0]["requests"] == 3


def test_the_slower_of_two_is_called_slower():
    """In one of three runs: beside other load a run may be unclear. Never faster."""
    for _ in range(3):
        with FakeEndpoint() as one, FakeEndpoint(lambda h, b: fake.good(h, b, pause_s=0.02)) as two:
            document = measured(*small(one, "--url", two.url, "--requests", 16))
        called = {v["figure"]: v["verdict"] for v in document["verdicts"]}
        figures = {called[name] for name in ("e2e", "tpot", "tg")}
        assert "faster" not in figures and "same" not in figures, called
        if figures == {"slower"}:
            return
    pytest.fail(f"{called}")


def test_goodput_counts_bars():
    with FakeEndpoint(lambda h, b: fake.good(h, b, pause_s=0.02)) as endpoint:
        flags = small(endpoint, "--requests", 4)
        assert measured(*flags, "--goodput", "tpot_ms=10000,ttft_ms=100000")["tests"][0]["goodput"]["share"] == 1
        assert measured(*flags, "--goodput", "tpot_ms=10000,e2e_ms=99")["tests"][0]["goodput"]["share"] == 0


# ---- endpoints that do not --------------------------------------------------------------------------


def stalls(handler, _):
    handler.begin_stream()
    handler.piece(fake.role() + fake.token())
    time.sleep(3)


def pings_for_ever(handler, _):
    handler.begin_stream()
    while True:
        handler.piece(b": ping\n\n")
        time.sleep(0.05)


def dies(handler, _):
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.piece(fake.role() + fake.token())
    handler.close_connection = True


def endless(handler, _):
    handler.begin_stream()
    while True:
        handler.piece(fake.token() * 10)


def one_line(handler, _):
    handler.begin_stream()
    handler.piece(b"data: ")
    for _ in range(1024):
        handler.piece(b"x" * (1 << 20))


def sends(*pieces):
    def answer(handler, _):
        handler.begin_stream()
        handler.piece(b"".join(pieces))
    return answer


def status(code, headers=()):
    return lambda handler, _: handler.document({"error": {"message": "what is wrong"}}, code, headers)


FAULTS = {
    "stalls": (stalls, "stalled", "not a byte"),
    "pings": (pings_for_ever, "timeout", "no end within"),
    "dies": (dies, "closed", "within the answer"),
    "endless": (endless, "runaway", "no end"),
    "one_line": (one_line, "bad_stream", "longer than"),
    "no_done": (sends(fake.role(), fake.token(), fake.last()), "bad_stream", "without [DONE]"),
    "garbage": (sends(fake.role(), b"data: {\"choices\": [\n\n", fake.DONE), "bad_stream", "no JSON object"),
    "half_a_character": (sends(b"data: {\"choices\":[{\"text\":\"\xe2\x82\"}]}\n\n", fake.DONE), "bad_stream", "no JSON"),
    "too_few_in_usage": (sends(fake.token() * 5, fake.last(), fake.usage(64, 1), fake.DONE), "usage", "5 events"),
    "too_many_in_usage": (sends(fake.token() * 5, fake.last(), fake.usage(64, 999), fake.DONE), "usage", "at most 5"),
    "usage_below_0": (sends(fake.token(), fake.usage(64, -1), fake.DONE), "bad_stream", "not a number of tokens"),
    "no_text": (sends(fake.role(), fake.last(), fake.usage(64, 0), fake.DONE), "no_content", "no text"),
    "ends_at_once": (sends(fake.role(), fake.last("stop"), fake.usage(64, 1), fake.DONE), "no_content", "--ignore-eos"),
    "no_stream": (lambda h, _: h.document({"choices": []}), "no_content", "no event"),
    "error_event": (sends(fake.role(), fake.event({"error": {"message": "it broke"}})), "error_event", "it broke"),
    "http_400": (status(400), "http_400", "what is wrong"),
    "http_500": (status(500), "http_500", "what is wrong"),
    "http_429": (status(429, [("Retry-After", "1")]), "http_429", "Retry-After: 1 s"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_was_measured_before_a_fault_is_kept(name, tmp_path):
    behave, kind, words = FAULTS[name]
    path = tmp_path / "record.json"
    with FakeEndpoint(behave, num_good=NUM_GOOD + 1) as endpoint:
        done = bench(*small(endpoint, "--requests", 20, "--stall-timeout", 0.5, "--timeout", 2), "--json",
                     "--record", path, code=1, timeout=60)
    document = json.loads(done.stdout)
    assert kinds(document) == {kind}
    assert words in done.stderr and words in document["tests"][0]["errors"][0]["first"]
    assert document["tests"][0]["requests"] == NUM_GOOD
    assert document["tests"][0]["errors"][0]["count"] == 2 and "max-errors" in document["stopped"]
    series = {s["name"]: s for s in json.loads(path.read_text())["results"]}
    assert len(series["pp64 tg5 c1 e2e"]["samples"]) == NUM_GOOD


@pytest.mark.parametrize("name", FAULTS)
def test_an_endpoint_that_never_answers_well_is_told_at_once(name):
    behave, _, words = FAULTS[name]
    with FakeEndpoint(behave) as endpoint:
        done = bench(*small(endpoint, "--stall-timeout", 0.5, "--timeout", 2), code=1, timeout=60)
    assert "moxie: error: " in done.stderr and words in done.stderr


def test_one_fault_among_many_is_counted_and_told():
    turns = itertools.count()

    def answer(handler, body):
        (status(503) if next(turns) == 7 else fake.good)(handler, body)

    with FakeEndpoint(answer) as endpoint:
        done = bench(*small(endpoint, "--requests", 12, "--concurrency", 4), "--json", code=1)
    test = json.loads(done.stdout)["tests"][0]
    assert test["requests"] == 11 and [e["count"] for e in test["errors"]] == [1]
    assert "1 requests failed" in done.stderr


@pytest.mark.parametrize("flags", [(), ("--rate", 20)])
def test_a_full_endpoint_is_given_the_time_it_asks_for(flags):
    times = []

    def answer(handler, body):
        times.append(time.monotonic())
        (status(429, [("Retry-After", "1")]) if len(times) == 3 else fake.good)(handler, body)

    with FakeEndpoint(answer) as endpoint:
        bench(*small(endpoint, "--requests", 40, *flags), code=1)
    # By a rate more may be under way when the answer comes.
    assert max(after - before for before, after in itertools.pairwise(times[2:])) >= 0.9


def test_nothing_listens_and_no_http():
    done = bench("--url", f"http://127.0.0.1:{free_port()}", code=1)
    assert "is the server running" in done.stderr
    assert "no address" in bench("--url", "127.0.0.1:1", code=2).stderr
    assert "--url" in bench(code=2).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(number, tmp_path):
    path = tmp_path / "record.json"
    with FakeEndpoint(num_good=10**6) as endpoint:
        process = subprocess.Popen(command(*small(endpoint, "--requests", 10**6, "--json", "--record", path)),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=clean_environment())
        while endpoint.num_streams < 6:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, error = process.communicate(timeout=30)
    assert process.returncode == 1 and "interrupted" in error
    document = json.loads(out)
    assert document["stopped"] == "interrupted" and document["tests"][0]["requests"] >= 4
    assert json.loads(path.read_text())["results"]


@pytest.mark.parametrize("flags", [("--rate", "0"), ("--rate", "a"), ("--concurrency", "0"), ("--goodput", "x=1"),
                                   ("--endpoint", "embeddings"), ("--requests", "4", "--duration", "1"),
                                   ("--duration", "-1"), ("--api-key", "a b")])
def test_usage(flags):
    done = bench("--url", "http://127.0.0.1:1", *flags, code=2)
    assert flags[0] in done.stderr
