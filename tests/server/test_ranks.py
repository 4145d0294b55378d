"""Ranks that are processes, over the loopback: the same text as of one, and whatever happens to one
of them ends all with a message."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from server import Server, clean_environment, free_port, small_model_flags

PROMPT = "Name the planets."
COMMON = ["--device", "cpu", "--threads", "2"]


def torchrun(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def open_mpi(rank, size, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "MASTER_PORT": str(port)}


def start(flags, environment, command="run"):
    return subprocess.Popen([os.environ["MOXIE_BINARY"], command, *COMMON, *flags],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True,
                            env={**clean_environment(), **environment})


@contextlib.contextmanager
def world(flags, size=2, variables=torchrun, command="run", differ=None, more=None):
    """`differ`: rank -> its flags instead of `flags`; `more`: rank -> environment beside."""
    port = free_port()
    ranks = [start((differ or {}).get(rank, flags),
                   {**variables(rank, size, port), **(more or {}).get(rank, {})}, command)
             for rank in range(size)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGCONT)
                rank.kill()
            rank.communicate()


def end(process, seconds=60):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def text_of(out):
    return json.loads(out)["content"]


def text_of_one(*flags):
    status, out, err = end(start([PROMPT, "--max-tokens", "48", "--json", *flags], {}))
    assert status == 0, err
    return text_of(out)


@pytest.mark.parametrize("size,variables,flags", [
    (2, torchrun, []), (4, open_mpi, ["--seed", "7", "--temperature", "1"]),
    (2, torchrun, ["--enable-expert-parallel", "--spec", "ngram"]),
    (2, torchrun, ["--spec", "eagle3", "--spec-adaptive", "off"]),
    (4, open_mpi, ["--spec", "dflash", "--spec-adaptive", "off", "--seed", "7",
                   "--temperature", "1"]),
])
def test_the_text_is_that_of_one_process(size, variables, flags):
    expected = text_of_one(*(flag for flag in flags if flag != "--enable-expert-parallel"))
    with world([PROMPT, "--max-tokens", "48", "--json", *flags], size, variables) as ranks:
        for number, rank in enumerate(ranks):
            status, out, err = end(rank)
            assert status == 0, (number, err)
            if number == 0:
                assert text_of(out) == expected
                if "--spec-adaptive" in flags:
                    assert json.loads(out)["speculation"]["accepted_tokens"] > 0
            else:
                assert out == ""


def test_a_draft_head_is_needed_by_the_first_rank_alone():
    drafted = [PROMPT, "--max-tokens", "48", "--json", "--spec", "eagle3"]
    with world(drafted, differ={1: [*drafted, "--spec-model", "/nowhere"]}) as ranks:
        outputs = [end(rank) for rank in ranks]
    assert all(status == 0 for status, _, _ in outputs), outputs
    assert text_of(outputs[0][1]) == text_of_one()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_mpirun_starts_it():
    expected = text_of_one()
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
         "-x", f"MASTER_PORT={free_port()}", os.environ["MOXIE_BINARY"], "run", *COMMON,
         PROMPT, "--max-tokens", "48", "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert text_of(done.stdout) == expected


def expect_refused(flags_of_the_other, expected):
    with world([PROMPT], differ={1: [PROMPT, *flags_of_the_other]}) as ranks:
        for rank in ranks:
            status, out, err = end(rank)
            assert status == 1 and out == "", err
            assert expected in err


def test_what_differs_is_refused_by_name():
    expect_refused(["--mxfp4-layers", "all"], "--mxfp4-layers is all on rank 1, moe on rank 0")


def test_another_model_is_refused_by_name(tmp_path):
    expect_refused(small_model_flags(tmp_path)[:2], "the model's files is synthetic on rank 1")


def test_a_world_of_another_size_is_refused_by_name():
    with world([PROMPT], more={1: {"WORLD_SIZE": "4"}}) as ranks:
        for rank in ranks:
            status, _, err = end(rank)
            assert status == 1
            assert "rank 1 is one of 4, rank 0 of 2" in err


def test_a_rank_that_cannot_load_ends_all():
    with world([PROMPT], differ={1: [PROMPT, "--model", "/nowhere"]}) as ranks:
        for rank in ranks:
            status, _, err = end(rank)
            assert status == 1 and "/nowhere" in err


@pytest.mark.parametrize("environment,expected", [
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
    ({"RANK": "0", "WORLD_SIZE": "999"}, "WORLD_SIZE"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}, "MASTER_PORT"),
])
def test_an_environment_that_makes_no_sense_is_an_error(environment, expected):
    status, _, err = end(start([PROMPT], environment))
    assert status == 1 and expected in err


def test_strangers_at_the_meeting_are_dropped():
    import socket
    port = free_port()
    first = start([PROMPT, "--max-tokens", "4"], torchrun(0, 2, port))
    deadline = time.monotonic() + 30
    while True:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), 1)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: moxie\r\n\r\n")
    second = start([PROMPT, "--max-tokens", "4"], torchrun(1, 2, port))
    for process in (first, second):
        status, _, err = end(process)
        assert status == 0, err
    stranger.close()


class RankServer(Server):
    """Rank 0 of a server whose other rank is self.other."""

    def __init__(self):
        port = free_port()
        flags = ["--max-model-len", "4096"]
        self.other = start(flags, torchrun(1, 2, port), "serve")
        super().__init__(*COMMON, *flags, env=torchrun(0, 2, port), start_s=20)

    def __exit__(self, *_):  # the tests say how each ends
        for process in (self.other, self.process):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        self.process.wait()
        self.other.communicate()


def test_a_server_answers_and_ends_with_its_ranks():
    with RankServer() as server:
        assert server.chat(max_tokens=8).status == 200
        of_rank = {name: [server.metric(name, f'rank="{rank}"') for rank in (0, 1)]
                   for name in ("moxie:rank_weights_bytes", "moxie:rank_exchanges_total",
                                "moxie:rank_exchange_seconds_total")}
        assert all(value > 0 for value in of_rank["moxie:rank_weights_bytes"])
        assert of_rank["moxie:rank_exchanges_total"][0] >= 8  # the other says so each second
        assert of_rank["moxie:rank_exchange_seconds_total"][0] > 0
        assert server.stop() == 0
        status, _, err = end(server.other)
        assert status == 0, err


def begin_stream(connection, max_tokens):
    connection.send_request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Count."}], "stream": True,
        "max_tokens": max_tokens, "ignore_eos": True})
    status, headers = connection.read_head()
    assert status == 200
    return headers


def test_a_signal_to_all_ranks_lets_running_requests_end():
    with RankServer() as server, server.connect() as connection:
        headers = begin_stream(connection, 1000)
        for process in (server.other, server.process):
            process.send_signal(signal.SIGTERM)
        body = connection.read_body(headers)
        assert b'"finish_reason":"length"' in body and body.endswith(b"data: [DONE]\n\n")
        assert server.process.wait(20) == 0, server.output()
        status, _, err = end(server.other, 15)
        assert status == 0, err


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_another_rank_and_so_all(signals):
    with RankServer() as server:
        server.other.send_signal(signals[0])
        time.sleep(0.5)
        assert server.other.poll() is None
        assert server.chat(max_tokens=4).status == 200
        server.other.send_signal(signals[1])
        assert server.other.wait(5) == -signals[1]
        assert server.process.wait(15) == 1
        assert "rank 1 (127.0.0.1)" in server.output()


def test_a_rank_that_is_lost_while_the_server_drains_is_a_fault():
    with RankServer() as server, server.connect() as connection:
        begin_stream(connection, 3500)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        server.other.kill()
        assert server.process.wait(15) == 1
        assert "rank 1 (127.0.0.1)" in server.output()


def test_an_interrupt_of_all_ranks_ends_them():
    with world(["-p", "0", "-n", "3000"], command="bench") as ranks:
        time.sleep(3)
        assert all(rank.poll() is None for rank in ranks)
        began = time.monotonic()
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        statuses = [end(rank, 15)[0] for rank in ranks]
        assert statuses[0] == -signal.SIGINT and statuses[1] != 0
        assert time.monotonic() - began < 5


def test_an_idle_rank_that_is_lost_is_told_to_those_who_ask():
    with RankServer() as server:
        assert server.get("/health").status == 200
        server.other.kill()
        deadline = time.monotonic() + 2
        while (health := server.get("/health")).status == 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        refused = server.chat(max_tokens=4)
        assert refused.status == 503
        assert "rank 1 (127.0.0.1)" in refused.json()["error"]["message"]
        for answer in (health, server.get("/readyz"), server.get("/livez")):
            assert answer.status == 503
            assert "rank 1 (127.0.0.1)" in answer.json()["error"]
        assert server.process.wait(15) == 1


def test_a_rank_that_waits_says_for_whom():
    port = free_port()
    process = start([PROMPT], torchrun(1, 2, port))
    try:
        line = next(line for line in process.stderr if "waiting for" in line)
    finally:
        process.kill()
        process.communicate()
    assert f"127.0.0.1:{port}: Connection refused" in line


def test_a_first_rank_that_cannot_load_ends_all():
    began = time.monotonic()
    with world([PROMPT], differ={0: [PROMPT, "--model", "/nowhere"]}) as ranks:
        for rank in ranks:
            status, _, err = end(rank)
            assert status == 1 and "/nowhere" in err
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("command,flags,named", [
    ("run", [PROMPT, "--tools", "no-such-tools.json"], "no-such-tools.json"),
    ("bench", ["-p", "0", "-n", "1", "--report", "no-such-folder/report.html"], "no-such-folder"),
])
def test_a_first_rank_that_fails_before_it_loads_ends_all(command, flags, named):
    began = time.monotonic()
    with world(flags, command=command) as ranks:
        for rank in ranks:
            status, _, err = end(rank)
            assert status == 1 and named in err, err
    assert time.monotonic() - began < 10


def test_a_first_rank_that_fails_once_loaded_ends_all():
    with world(["word " * 5000, "--max-model-len", "256"]) as ranks:
        for rank in ranks:
            status, _, err = end(rank)
            assert status == 1 and "where 255 fit" in err, err


def test_a_first_rank_whose_port_is_taken_ends_all():
    import socket
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with world(["--port", str(port)], command="serve") as ranks:
            for rank in ranks:
                status, _, err = end(rank)
                assert status == 1 and str(port) in err


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_rank_that_is_killed_ends_the_other_with_a_message(victim, is_idle):
    with RankServer() as server:
        assert server.chat(max_tokens=4).status == 200
        with contextlib.ExitStack() as stack:
            if not is_idle:
                begin_stream(stack.enter_context(server.connect()), 3500)
                time.sleep(0.3)
            began = time.monotonic()
            (server.process if victim == 0 else server.other).kill()
            if victim == 0:
                status, _, err = end(server.other, 15)
                assert status == 1
                assert "rank 0" in err
            else:
                assert server.process.wait(15) == 1
                assert "rank 1 (127.0.0.1)" in server.output()
                assert "(?)" not in server.output()
            assert time.monotonic() - began < 10


def test_a_rank_that_stalls_ends_all():
    with RankServer() as server:
        assert server.chat(max_tokens=4).status == 200
        began = time.monotonic()
        server.other.send_signal(signal.SIGSTOP)
        assert server.process.wait(30) == 1
        assert time.monotonic() - began < 15
        assert "rank 1" in server.output() and "has not answered for 10 s" in server.output()
        server.other.send_signal(signal.SIGCONT)
        status, _, err = end(server.other, 15)
        assert status == 1 and "rank" in err
