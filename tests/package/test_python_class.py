"""The package `moxie` of python/, as its wheel holds it or (MOXIE_BINARY) from the source folder."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import moxie

QUESTION, ANSWER = "What is 17 + 25?", "42"


@pytest.fixture(scope="module")
def server():
    with moxie.Server(threads=1) as running:
        yield running


def is_running(pid):
    """Whether the process is there and no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid, within_s=60):
    end = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def test_it_chats_whole_and_in_pieces(server):
    whole = server.chat(QUESTION)
    pieces = list(server.chat([{"role": "user", "content": QUESTION}], stream=True))
    assert ANSWER in whole
    assert len(pieces) > 1 and "".join(pieces) == whole


def test_it_completes(server):
    whole = server.complete("The ", max_tokens=8)
    assert whole and "".join(server.complete("The ", max_tokens=8, stream=True)) == whole


def test_metrics_count_what_was_asked(server):
    name = "vllm:generation_tokens_total"
    before = sum(value for key, value in server.metrics().items() if key.startswith(name))
    server.chat(QUESTION)
    after = sum(value for key, value in server.metrics().items() if key.startswith(name))
    assert after > before


def test_a_refused_request_says_why_and_the_server_goes_on(server):
    with pytest.raises(moxie.RequestFailed) as refused:
        server.chat(QUESTION, temperatur=0)
    assert refused.value.status == 400 and "temperature" in str(refused.value)
    with pytest.raises(moxie.RequestFailed):
        list(server.chat(QUESTION, stream=True, max_tokens=-1))
    assert ANSWER in server.chat(QUESTION)


def test_a_start_that_fails_shows_the_log():
    with pytest.raises(moxie.ServerFailed, match="no such file"):
        moxie.Server(model="/nowhere/model")
    with pytest.raises(moxie.ServerFailed, match="did you mean --max-num-seqs"):
        moxie.Server(max_num_seq=3)
    with pytest.raises(moxie.ServerFailed, match="cannot be started"):
        moxie.Server(binary="/nowhere/moxie")


def test_a_server_that_is_gone_is_said_with_its_log():
    with moxie.Server(threads=1, api_key="k") as server:
        assert server.request("/v1/models")["data"]
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.pid)
        with pytest.raises(moxie.ServerFailed, match="ready in"):
            server.chat(QUESTION)


def test_closing_ends_the_process_and_twice_is_once():
    server = moxie.Server(threads=1)
    server.close()
    server.close()
    assert not is_running(server.pid)


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_the_server_ends_with_the_process_that_started_it(how):
    code = ("import moxie, os, sys\nserver = moxie.Server(threads=1)\n"
            f"print(server.pid, flush=True)\n{how}")
    ended = subprocess.run([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, timeout=120)
    assert ends(int(ended.stdout))


def test_the_module_is_the_program():
    shown = subprocess.run([sys.executable, "-m", "moxie", "--version"], text=True, check=True,
                           capture_output=True, timeout=60)
    assert shown.stdout.startswith("moxie ") and shown.stderr == ""
