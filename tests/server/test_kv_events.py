"""Events of the KV cache: what strict readers of their sockets see, and what bad ones cannot do."""

import json
import os
import pathlib
import socket
import struct
import subprocess
import threading
import time

import pytest
import zmq

from kv_events import Reader, flags
from server import HANG_S, Server, clean_environment

WORDS = "one two three four five six seven eight nine ten eleven twelve".split()


def text_of(number, length=30):
    """Texts that differ from their first word on."""
    return " ".join(WORDS[(number + i * (number + 1)) % len(WORDS)] for i in range(length)) + f" {number}"


def complete(server, text, **fields):
    response = server.post("/v1/completions", {"prompt": text, "max_tokens": 4, **fields})
    assert response.status == 200, response.text
    return response.json()


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def port_of(endpoint):
    return int(endpoint.rsplit(":", 1)[1])


@pytest.fixture(scope="module")
def publisher():
    with Server("--threads", "1", *flags()) as running:
        yield running


@pytest.fixture
def reader(publisher):
    """Has read all that came before the test."""
    with Reader(publisher) as running:
        running.heal()
        assert running.agrees(publisher)
        yield running


@pytest.fixture(scope="module")
def small():
    """Evicts, keeps two batches for replay, and merges nearly all batches."""
    with Server("--threads", "1", "--kv-cache-memory", "6MiB", "--max-model-len", "512",
                *flags(buffer_steps=2, hwm=10, max_queue_size=1, topic="kv@a@b")) as running:
        yield running


def test_the_first_batch_forgets_what_a_server_before_had(publisher):
    with Reader(publisher) as first:
        number, batch = first.replay(0)[0]
    assert number == 0 and [type(event).__name__ for event in batch.events] == ["AllBlocksCleared"]


def test_pages_of_prompts_and_answers_are_told(publisher, reader):
    text = text_of(1)
    answer = complete(publisher, text, max_tokens=40, ignore_eos=True, return_token_ids=True)
    tokens = ids_of(publisher, text) + answer["choices"][0]["token_ids"]
    whole = (len(tokens) - 1) // 16 * 16  # the last token is never run
    reader.catch_up(lambda: reader.agrees(publisher))
    assert (None, tokens[:whole]) in reader.held.chains()
    assert all(len(chain) <= whole or chain[:16] != tokens[:16] for _, chain in reader.held.chains())


def test_a_salt_is_in_the_extra_key_of_the_first_page(publisher, reader):
    text = text_of(2)
    tokens = ids_of(publisher, text)
    whole = len(tokens) // 16 * 16
    for salt in ("pepper", "größe"):
        complete(publisher, text, cache_salt=salt)
    complete(publisher, text)
    reader.catch_up(lambda: reader.agrees(publisher))
    salts = {salt for salt, chain in reader.held.chains() if chain == tokens[:whole]}
    assert salts == {"pepper", "größe", None}


def test_requests_side_by_side_cancelled_ones_and_choices_leave_no_trace_of_their_own(publisher, reader):
    def ask(number):
        if number % 4 == 0:  # its client goes
            with publisher.connect() as connection:
                connection.send_request("POST", "/v1/completions", {
                    "prompt": text_of(number), "max_tokens": 3000, "ignore_eos": True, "stream": True})
                connection.read_head()
        else:
            complete(publisher, text_of(number % 6), n=1 + number % 3, temperature=1, max_tokens=30)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10, 22)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.catch_up(lambda: reader.agrees(publisher))
    assert {len(chain) % 16 for _, chain in reader.held.chains()} == {0}


def test_flushing_is_told(publisher, reader):
    complete(publisher, text_of(3))
    reader.catch_up(lambda: reader.agrees(publisher))
    before = reader.held.num_cleared
    assert reader.held.pages and publisher.post("/flush_cache", {}).status == 200
    reader.catch_up(lambda: reader.held.num_cleared == before + 1)
    assert not reader.held.pages and reader.agrees(publisher)


def test_replay_is_what_was_sent(publisher, reader):
    live = []
    first = reader.next
    for number in range(40, 44):
        complete(publisher, text_of(number))
    while not reader.agrees(publisher):
        live.append(reader.receive())
        reader.read(*live[-1])
    assert len(live) > 2 and [number for number, _ in live] == list(range(first, first + len(live)))
    assert reader.replay(first) == live
    assert reader.replay(first + 2) == live[2:]
    assert reader.replay(reader.next) == [] and reader.replay(reader.next + 1000) == []
    assert reader.replay(2**64 - 1) == []
    assert reader.replay(first, zmq.REQ) == live[:1]


def test_a_gap_is_healed_by_replay(publisher, reader):
    reader.sub.close()
    for number in range(50, 53):
        complete(publisher, text_of(number))
    assert not reader.agrees(publisher)
    reader.subscribe()
    number = reader.next
    while reader.next == number:  # until a batch shows the gap
        complete(publisher, text_of(60 + number % 7), cache_salt=str(time.time()))
        if came := reader.receive(0.2):
            assert came[0] > number
            reader.heal()
    reader.catch_up(lambda: reader.agrees(publisher))
    again = Reader(publisher, subscribes=False)
    with again:
        again.heal()
        assert again.held.pages == reader.held.pages


def test_under_eviction_readers_hold_what_is_cached(small):
    with Reader(small, b"kv@a@b") as reader:
        reader.heal()
        for number in range(100, 116):
            complete(small, text_of(number, 60), max_tokens=2, cache_salt="s" * (number % 3))
            while came := reader.receive(0):
                if came[0] > reader.next:  # beyond the ten that may wait for it
                    reader.heal()
                elif came[0] == reader.next:
                    reader.read(*came)
        reader.catch_up(lambda: reader.agrees(small))
        assert reader.held.num_removed > 0
        told = [small.metric("moxie:kv_events_total", f'type="{kind}"') for kind in ("stored", "removed")]
        assert told[0] - told[1] == len(reader.held.pages) and told[1] > 40


def test_replay_of_batches_that_are_gone_tells_the_whole(small):
    complete(small, text_of(131))
    assert small.metric("moxie:kv_events_batches_total") > 5
    with Reader(small, b"kv@a@b", subscribes=False) as late:
        late.heal_until_it_agrees(small)
        assert late.held.num_cleared >= 1
        batches = late.replay(1)
        assert batches[-1][0] == late.next - 1
        assert late.replay(late.next - 1)[0][0] == late.next - 1
    assert small.metric("moxie:kv_events_snapshots_total") >= 1


def test_a_failed_launch_clears_what_it_may_have_spoilt():
    with Server("--threads", "1", "--debug-fault", "token:4000", *flags()) as faulty:
        with Reader(faulty) as reader:
            reader.heal()
            complete(faulty, text_of(1))
            reader.catch_up(lambda: reader.held.pages and reader.agrees(faulty))
            before = reader.held.num_cleared
            assert faulty.post("/v1/completions", {"prompt": [4000] * 40, "max_tokens": 2}).status == 500
            reader.catch_up(lambda: reader.held.num_cleared > before)
            assert reader.agrees(faulty)


# Bad readers

def greeting():
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(kind):
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return b"\x04" + bytes([len(body)]) + body


def raw(endpoint, data=b""):
    connection = socket.create_connection(("127.0.0.1", port_of(endpoint)), HANG_S)
    connection.sendall(data)
    return connection


JUNK = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": bytes(range(256)) * 40,
    "old": b"\x01\x00" * 30,
    "half_a_greeting": greeting()[:20],
    "long_frame": greeting() + ready(b"DEALER") + b"\x02" + struct.pack(">Q", 2**62) + b"x" * 1000,
    "long_message": greeting() + ready(b"SUB") + b"\x02" + struct.pack(">Q", 100000) + b"x" * 100000,
    "no_command": greeting() + b"\x04\x05\xff\xff\xff\xff\xff",
    "topic_of_junk": greeting() + ready(b"SUB") + b"\x00\x05\x07junk" + b"\x00\x03\x00no",
    "not_a_reader": greeting() + ready(b"PUSH") + b"\x00\x03abc",
    "empty_parts": greeting() + ready(b"DEALER") + b"\x01\x00" * 500 + b"\x00\x00",
    "short_number": greeting() + ready(b"DEALER") + b"\x01\x00\x00\x03abc",
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_on_either_socket_is_without_effect(publisher, reader, kind):
    for endpoint in (reader.source["endpoint"], reader.source["replay_endpoint"]):
        for _ in range(3):
            with raw(endpoint) as connection:
                try:
                    connection.sendall(JUNK[kind])
                    connection.settimeout(0.02)
                    connection.recv(1000)
                except OSError:
                    pass  # closed meanwhile, or nothing to read
    complete(publisher, text_of(4), cache_salt=kind)
    reader.catch_up(lambda: reader.agrees(publisher))
    assert reader.replay(reader.next - 1)[-1][0] == reader.next - 1


def test_requests_of_another_form_are_not_answered(publisher, reader):
    with reader.context.socket(zmq.DEALER) as asks:
        asks.linger = 0
        asks.connect(reader.source["replay_endpoint"])
        for parts in ([b"x"], [b"", b"", bytes(8)], [b"", bytes(7)], [b"", bytes(9)], [b"", b""]):
            asks.send_multipart(parts)
        asks.send_multipart([b"", struct.pack(">Q", 2**63)])  # later than all: the end
        assert asks.poll(HANG_S * 1000)
        assert asks.recv_multipart() == [b"", b"", b"\xff" * 8, b""]
        assert not asks.poll(50)


def test_readers_that_take_nothing_hold_up_nobody(small):
    with Reader(small, b"kv@a@b") as reader:
        reader.heal()
        source = reader.source
        stuck = [raw(source["endpoint"], greeting() + ready(b"SUB") + b"\x00\x01\x01") for _ in range(3)]
        # Each asks for everything a thousand times.
        ask = b"\x01\x00\x00\x08" + bytes(8)
        stuck += [raw(source["replay_endpoint"], greeting() + ready(b"DEALER") + ask * 1000)
                  for _ in range(2)]
        for number in range(140, 152):
            complete(small, text_of(number, 60), max_tokens=2)
        reader.heal()
        reader.catch_up(lambda: reader.agrees(small))
        assert small.metric("moxie:kv_events_dropped_total") == 0
        for connection in stuck:
            connection.close()


def test_it_ends_in_time_with_readers_of_all_kinds():
    with Server("--threads", "1", *flags()) as running:
        with Reader(running) as reader:
            stuck = raw(reader.source["endpoint"], greeting() + ready(b"SUB") + b"\x00\x01\x01")
            complete(running, text_of(5))
            reader.heal()
            assert running.stop() == 0, running.output()
            stuck.close()


# Configuration

def test_sources_are_as_bound():
    with Server("--threads", "1", *flags(endpoint="tcp://*:0", replay_endpoint=None, hwm=7)) as running:
        source = running.get("/kv_event_sources").json()
        port = port_of(source["0"]["endpoint"])
        assert source == {"0": {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}",
            "replay_endpoint": None, "buffer_steps": 10000, "hwm": 7, "max_queue_size": 100000,
            "topic": ""}}
        with Reader(running) as reader:
            number = -1
            while number < 1:  # the subscription takes a moment
                complete(running, text_of(6), cache_salt=str(time.time()))
                number = (reader.receive(0.1) or (-1,))[0]
        taken = subprocess.run(
            [os.environ["MOXIE_BINARY"], "serve", "--port", "0", *flags(endpoint=f"tcp://127.0.0.1:*",
             replay_endpoint=f"tcp://127.0.0.1:{port}")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=clean_environment())
        assert taken.returncode == 1 and f"tcp://127.0.0.1:{port}" in taken.stderr, taken.stderr
        assert "in use" in taken.stderr


def test_an_endpoint_without_a_wildcard_is_connected(tmp_path):
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.subscribe(b"kv@")
        port = sub.bind_to_random_port("tcp://127.0.0.1")
        endpoint, ipc = f"tcp://127.0.0.1:{port}", f"ipc://{tmp_path}/replay"
        with Server("--threads", "1", *flags(endpoint=endpoint, replay_endpoint=ipc, topic="kv@x@y")) as running:
            source = running.get("/kv_event_sources").json()["0"]
            assert (source["endpoint"], source["replay_endpoint"]) == (endpoint, ipc)
            with Reader(running, b"kv@x@y", subscribes=False) as reader:
                while not sub.poll(100):
                    complete(running, text_of(7), cache_salt=str(time.time()))
                assert sub.recv_multipart()[0] == b"kv@x@y"
                reader.heal()
                assert reader.agrees(running)


def threads_and_libraries(server):
    folder = pathlib.Path(f"/proc/{server.process.pid}")
    names = {(task / "comm").read_text().strip() for task in (folder / "task").iterdir()}
    return names, (folder / "maps").read_text()


def test_without_the_switch_there_is_no_thread_and_no_library(server, publisher):
    def traces(running):
        names, maps = threads_and_libraries(running)
        return (any("kv-events" in name for name in names), any("ZMQ" in name for name in names),
                "libzmq" in maps, "moxie:kv_events" in running.get("/metrics").text)

    assert traces(publisher) == (True, True, True, True)
    assert traces(server) == (False, False, False, False)
    assert server.get("/kv_event_sources").json() == {}
    for config in ({"enable_kv_cache_events": False, "publisher": "zmq"},
                   {"enable_kv_cache_events": True, "publisher": "null"}):
        with Server("--threads", "1", "--kv-events-config", json.dumps(config)) as off:
            assert traces(off) == (False, False, False, False)
            assert off.get("/kv_event_sources").json() == {}


def serve_that_fails(*words, env=None):
    done = subprocess.run([os.environ["MOXIE_BINARY"], "serve", "--port", "0", *words],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env={**clean_environment(), **(env or {})})
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_bad_configurations_are_usage_faults():
    for config, named in (('{"enable_kv_events": true}', "enable_kv_events"), ("yes", "JSON object"),
                          ('{"hwm": "many"}', "hwm"),
                          ('{"endpoint": "tcp://*:99999"}', "1 to 65535")):
        code, text = serve_that_fails("--kv-events-config", config)
        assert code == 2 and "--kv-events-config" in text and named in text, text
    code, text = serve_that_fails(*flags(), "--prefix-caching", "off")
    assert code == 2 and "--prefix-caching off" in text, text


def test_endpoints_that_cannot_be_are_clear_failures():
    for fields in ({"replay_endpoint": "tcp://no.such.interface:1"},
                   {"endpoint": "ipc:///no/such/folder/events"}):
        code, text = serve_that_fails(*flags(**fields))
        assert code == 1 and "--kv-events-config" in text and "cannot listen on" in text, text


def test_a_machine_without_libzmq_is_told_the_package(tmp_path):
    (tmp_path / "libzmq.so.5").write_bytes(b"no library")
    code, text = serve_that_fails(*flags(), env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert code == 1 and "libzmq5" in text and "was not found" in text, text
