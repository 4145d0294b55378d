"""`moxie eval` from outside: the engine and an endpoint give the same answers, and bad endpoints end a
run without losing what was answered.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

from server import Server, clean_environment

SET = pathlib.Path(__file__).parents[2] / "models" / "tiny" / "eval.jsonl"
TASKS = ("addition", "json", "tool calls", "compare")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Three questions of a few tasks, and one with choices."""
    lines, taken = [], {}
    for line in SET.read_text().splitlines():
        task = json.loads(line)["task"]
        taken[task] = taken.get(task, 0) + 1
        if task in TASKS and taken[task] <= 3:
            lines.append(line)
    assert len(lines) == 3 * len(TASKS)
    lines.append(json.dumps({"id": "c", "task": "choices", "question": "Which number is the greatest?",
                             "choices": ["4", "17", "9"], "answer": "B"}))
    path = tmp_path_factory.mktemp("eval") / "few.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def moxie_eval(*arguments, check=True):
    done = subprocess.run([os.environ["MOXIE_BINARY"], "eval", *map(str, arguments)],
                          capture_output=True, text=True, timeout=300, env=clean_environment())
    if check:
        assert done.returncode == 0, done.stderr
    return done


def samples_of(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {(line["effort"], line["task"], line["id"]): line for line in lines}


def test_engine_and_endpoint_give_the_same_answers(questions, tmp_path):
    common = [questions, "--reasoning-effort", "low,high", "--max-tokens", "300", "--concurrency", "4"]
    engine = json.loads(moxie_eval(*common, "--batch-invariant", "on", "--device", "cpu", "--samples",
                                   tmp_path / "engine.jsonl", "--json").stdout)
    with Server("--batch-invariant", "on", "--device", "cpu") as server:
        endpoint = json.loads(moxie_eval(*common, "--url", f"http://127.0.0.1:{server.port}", "--samples",
                                         tmp_path / "endpoint.jsonl", "--json").stdout)
    ours, theirs = (samples_of(tmp_path / name) for name in ("engine.jsonl", "endpoint.jsonl"))
    assert len(ours) == 2 * 13 and ours.keys() == theirs.keys()
    for key, sample in ours.items():
        for field in ("content", "reasoning", "finish_reason", "verdict", "extracted", "prompt_tokens",
                      "completion_tokens", "request_hash", "calls"):
            assert sample[field] == theirs[key][field], (key, field)
    assert engine["results"] == endpoint["results"]
    assert engine["device"] == "cpu" and engine["kernel_path"] and endpoint["kernel_path"] == []
    total = [row for row in engine["results"] if row["task"] is None]
    assert [row["effort"] for row in total] == ["low", "high"]
    for row in total:
        assert row["questions"] == 13 and row["right"] >= 8, row
        assert row["interval_95"][0] < row["accuracy"] < row["interval_95"][1]


def test_an_interrupted_run_goes_on(questions, tmp_path):
    samples = tmp_path / "samples.jsonl"
    command = [questions, "--reasoning-effort", "high", "--max-tokens", "300", "--device", "cpu",
               "--concurrency", "1", "--batch-invariant", "on", "--samples", samples]
    process = subprocess.Popen([os.environ["MOXIE_BINARY"], "eval", *map(str, command)],
                               stderr=subprocess.PIPE, text=True, env=clean_environment())
    end = time.monotonic() + 120
    while time.monotonic() < end and not (samples.exists() and samples.read_text().count("\n") >= 3):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    assert "interrupted" in process.stderr.read()
    kept = samples_of(samples)
    assert 2 <= len(kept) < 13
    resumed = moxie_eval(*command)
    assert f"{len(kept)} answers are there already" in resumed.stderr
    whole = samples_of(samples)
    assert len(whole) == 13 and all(whole[key] == value for key, value in kept.items())
    other = moxie_eval(*command, "--top-p", "0.5", check=False)
    assert other.returncode == 1 and "another run" in other.stderr


def test_switches_are_compared_in_pairs(questions, tmp_path):
    record = tmp_path / "record.json"
    report = json.loads(moxie_eval(questions, "--reasoning-effort", "low", "--max-tokens", "100", "--device",
                                   "cpu", "--compare-switches", "--kernel attend=auto", "--compare-switches",
                                   "--mxfp4-layers all --kv-dtype=fp8_e4m3", "--record", record,
                                   "--json").stdout)
    same, moved = report["switches"]
    assert same["switch"] == "--kernel attend=auto"
    assert same["mean_kl"] < 1e-9 and same["newly_right"] == same["newly_wrong"] == 0
    assert same["mcnemar_p"] == 1 and same["accuracy_change"] == 0
    assert moved["mean_kl"] > 1e-4 and moved["perplexity"] != report["perplexity"]
    assert moved["accuracy_change_interval_95"][0] <= moved["accuracy_change"]
    written = json.loads(record.read_text())
    assert {series["name"] for series in written["results"]} >= {"addition@low", "choices@low"}
    assert all(set(series["samples"]) <= {0, 1} for series in written["results"])


def test_usage_faults(questions):
    for arguments in ([], [questions, "--reasoning-effort", "extreme"],
                      [questions, "--reasoning-effort", "low,low"],
                      [questions, "--compare-switches", "--kv-dtyp bf16"],
                      [questions, "--compare-switches", "--model x"],
                      [questions, "--url", "http://x", "--compare-switches", "--kv-dtype bf16"]):
        done = moxie_eval(*arguments, check=False)
        assert done.returncode == 2, (arguments, done.stderr)


def test_faults_of_files(questions, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(questions.read_text() + '{"id": "x", "question": "?", "answr": "y"}\n')
    done = moxie_eval(bad, check=False)
    assert done.returncode == 1 and "bad.jsonl: line 14" in done.stderr and "did you mean answer" in done.stderr
    assert moxie_eval(tmp_path / "none.jsonl", check=False).returncode == 1
    done = moxie_eval(questions, questions, check=False)
    assert done.returncode == 1 and "twice" in done.stderr or "once" in done.stderr
    assert moxie_eval(questions, "--record", tmp_path / "no" / "r.json", check=False).returncode == 1


class BadEndpoint:
    """Answers chat completions with what `answer(count)` gives: (status, headers, body)."""

    def __init__(self, answer):
        outer, self.count = self, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.count += 1
                status, headers, body = answer(outer.count)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def run(self, questions, *more):
        return moxie_eval(questions, "--url", f"http://127.0.0.1:{self.server.server_port}/v1", "--model", "m",
                          "--reasoning-effort", "low", "--concurrency", "1", "--timeout", "20", *more, check=False)


def completion(content):
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}],
                       "usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()


@pytest.mark.parametrize("status, body, said", [
    (401, b'{"error": {"message": "no key"}}', "no key"),
    (500, b"oops", "status 500: oops"),
    (200, b"<html>", "no JSON object"),
    (200, b"{}", "no choices"),
    (200, b'{"choices": [{}]}', "no message"),
    (200, b'{"choices": [{"message": {"tool_calls": [3]}}]}', "without a function"),
    (200, b"[" * 100000, "no JSON object"),
])
def test_bad_answers_end_the_run_with_what_was_answered_kept(questions, tmp_path, status, body, said):
    with BadEndpoint(lambda count: (200, {}, completion("7")) if count < 3 else (status, {}, body)) as bad:
        done = bad.run(questions, "--samples", tmp_path / "s.jsonl")
        assert done.returncode == 1 and said in done.stderr, done.stderr
        assert len(samples_of(tmp_path / "s.jsonl")) == 2


def test_a_busy_endpoint_is_asked_again(questions):
    def answer(count):
        return (429, {"Retry-After": "1"}, b"{}") if count == 2 else (200, {}, completion("B"))

    with BadEndpoint(answer) as busy:
        done = busy.run(questions, "--json")
        assert done.returncode == 0, done.stderr
        assert busy.count == 14
    total = [row for row in json.loads(done.stdout)["results"] if row["task"] is None]
    assert total[0]["questions"] == 13 and total[0]["completion_tokens"] == 26


def test_nobody_listens(questions):
    done = moxie_eval(questions, "--url", "http://127.0.0.1:1", check=False)
    assert done.returncode == 1 and "127.0.0.1:1" in done.stderr
    assert moxie_eval(questions, "--url", "ftp://x", check=False).returncode == 1
