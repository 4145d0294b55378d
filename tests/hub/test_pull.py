"""`moxie pull` against a hub of our own on the loopback interface: what it fetches, where it puts it, and
what interruptions leave.
"""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time

import pytest

from home import FETCHED, SHARD, TIMEOUT_S, Home, noise, statuses
from hub import File, Hub

PIECE = 16 << 20  # what one request asks for


# What is fetched, and where it lies.

def test_a_pull_fills_the_cache_and_a_second_one_fetches_nothing(hub, home):
    report = home.pull()
    assert report["repo"] == "org/model" and report["revision"] == "main" and report["commit"] == hub.commit
    assert report["path"] == str(home.snapshot(hub))
    assert statuses(report) == dict.fromkeys(FETCHED, "fetched")
    assert report["bytes"] == sum(hub.files[path].size for path in FETCHED) == sum(f["bytes"] for f in report["files"])
    assert {f["path"]: f["etag"] for f in report["files"]} == {path: hub.files[path].etag for path in FETCHED}
    assert report["seconds"] > 0
    home.holds(hub, FETCHED)
    assert (home.repo / "refs" / "main").read_text() == hub.commit
    asked = len(hub.asked("store"))
    assert statuses(home.pull()) == dict.fromkeys(FETCHED, "cached")
    assert len(hub.asked("store")) == asked
    assert len(hub.asked("hub", "/resolve/")) == len(FETCHED) - 1  # an empty file needs no request


def test_huggingface_hub_sees_the_same_files(hub, home):
    home.pull()
    code = """
import huggingface_hub, json, os, pathlib, sys
folder = huggingface_hub.snapshot_download("org/model", local_files_only=True)
one = huggingface_hub.hf_hub_download("org/model", "config.json", local_files_only=True)
info = huggingface_hub.scan_cache_dir()
assert not info.warnings, info.warnings
[repo] = info.repos
[revision] = repo.revisions
print(json.dumps({"folder": folder, "one": one, "repo": repo.repo_id, "commit": revision.commit_hash,
                  "refs": sorted(revision.refs), "files": {f.file_name: f.size_on_disk for f in revision.files},
                  "blobs": sorted(f.blob_path.name for f in revision.files)}))
"""
    done = subprocess.run([os.sys.executable, "-c", code], env=home.environment(HF_HUB_OFFLINE="1"),
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["folder"] == str(home.snapshot(hub)) and seen["one"] == seen["folder"] + "/config.json"
    assert seen["repo"] == "org/model" and seen["commit"] == hub.commit and seen["refs"] == ["main"]
    assert seen["files"] == {path: hub.files[path].size for path in FETCHED}
    assert seen["blobs"] == sorted(hub.files[path].etag for path in FETCHED)


def test_what_huggingface_hub_fetched_is_not_fetched_again(hub, home):
    code = ("import huggingface_hub; print(huggingface_hub.hf_hub_download('org/model', 'config.json'), "
            f"huggingface_hub.hf_hub_download('org/model', '{SHARD}'))")
    done = subprocess.run([os.sys.executable, "-c", code], env=home.environment(HF_HUB_DISABLE_XET="1"),
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found = statuses(home.pull())
    assert found["config.json"] == found[SHARD] == "cached" and found["tokenizer.json"] == "fetched"
    home.holds(hub, FETCHED)


def test_revisions_become_references(hub, home):
    hub.refs["refs/pr/1"] = hub.commit
    assert home.pull(repo="org/model@refs/pr/1")["revision"] == "refs/pr/1"
    assert (home.repo / "refs" / "refs" / "pr" / "1").read_text() == hub.commit
    home.pull("--revision", "v1.0")
    assert (home.repo / "refs" / "v1.0").read_text() == hub.commit
    home.pull(repo="org/model@" + hub.commit)  # a commit needs none
    assert sorted(path.name for path in (home.repo / "refs").iterdir()) == ["refs", "v1.0"]
    assert "two revisions" in home.fails("--revision", "main", repo="org/model@v1.0", code=2)


def test_include_names_other_files(hub, home):
    report = home.pull("--include", "original/*", "--include", "README*")
    assert list(statuses(report)) == ["README.md", "original/model.safetensors"]
    home.holds(hub, ["README.md", "original/model.safetensors"])
    assert "no file matches" in home.fails("--include", "*.bin?")


def test_only_gguf_and_only_original(tmp_path):
    ggufs = {name: File(noise(1000, seed), is_large=True) for seed, name in enumerate(
        ["m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf", "m-MXFP4.gguf", "mmproj-m.gguf"])}
    with Hub({"README.md": File(b"x"), **ggufs}) as hub:
        assert list(statuses(Home(tmp_path / "a", hub.endpoint).pull())) == ["m-MXFP4.gguf"]
        del hub.files["m-MXFP4.gguf"]
        assert list(statuses(Home(tmp_path / "b", hub.endpoint).pull())) == list(ggufs)[:2]
        hub.files["m-Q8_0.gguf"] = File(b"q")
        error = Home(tmp_path / "c", hub.endpoint).fails()
        assert "2 models in GGUF" in error and "m-Q8_0.gguf" in error and "--include" in error
    with Hub({"original/config.json": File(b"{}"), "original/model.safetensors": File(b"w")}) as hub:
        assert list(statuses(Home(tmp_path / "d", hub.endpoint).pull())) == list(hub.files)


def test_a_dry_run_writes_nothing(hub, home):
    report = home.pull("--dry-run")
    assert report["dry_run"] and statuses(report) == dict.fromkeys(FETCHED, "absent")
    text = home.run("--dry-run").stdout
    assert re.search(r"absent +300000 +293\.0 KiB  model-00001", text) and "6 files" in text.splitlines()[-1]
    assert not home.repo.exists() and not hub.asked("store")


def test_output_for_people_and_for_scripts(hub, home):
    done = home.run()
    assert done.stdout == f"{home.snapshot(hub)}\n"
    assert re.search(r"^\[\d/6\] fetched +293\.0 KiB  model-00001", done.stderr, re.M), done.stderr
    assert "moxie run --model org/model" in done.stderr
    quiet = home.run("--quiet")
    assert quiet.stdout == f"{home.snapshot(hub)}\n" and quiet.stderr == ""
    help_text = subprocess.run([os.environ["MOXIE_BINARY"], "pull", "--help"], capture_output=True, text=True).stdout
    assert "moxie pull openai/gpt-oss-20b" in help_text


def test_a_terminal_gets_a_bar(hub, home):
    hub.fault("store", hub.files[SHARD].etag, bytes_a_second=400_000)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([os.environ["MOXIE_BINARY"], "pull", "org/model"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=theirs, env=home.environment())
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert re.search(rb"\r +\d+%  \d+\.\d KiB of \d+\.\d KiB  \d+\.\d KiB/s  0:0\d left  ", shown), shown
    assert shown.endswith(b'moxie run --model org/model "Hello"\r\n'), shown


# The token.

def test_the_token_goes_to_the_hub_alone(hub, home):
    home.pull(HF_TOKEN=" hf_secret\n")
    assert all(headers.get("Authorization") == "Bearer hf_secret" for _, headers in hub.asked("hub"))
    assert hub.asked("store") and not any("Authorization" in headers for _, headers in hub.asked("store"))


def test_the_token_may_lie_in_a_file(hub, home):
    (home.folder / "token").write_text("hf_of_file\n")
    home.pull("--include", "config.json")
    assert all(headers["Authorization"] == "Bearer hf_of_file" for _, headers in hub.asked("hub"))
    assert "hf_other" not in home.fails(HF_TOKEN="hf_other\x01x")


# Interruptions.

def test_a_cut_connection_goes_on_where_it_broke(hub, home):
    hub.fault("store", hub.files[SHARD].etag, times=2, cut_after=100_000)
    done = home.run()
    assert done.returncode == 0 and "the connection broke" in done.stderr and "try 2 of 5" in done.stderr
    ranges = [headers.get("Range") for path, headers in hub.asked("store", hub.files[SHARD].etag)]
    assert ranges[0] is None and len(ranges) == 3
    assert all(re.fullmatch(r"bytes=\d+-299999", text) for text in ranges[1:]), ranges
    home.holds(hub, FETCHED)


def test_a_failed_pull_is_resumed_by_the_next(hub, home):
    hub.fault("store", hub.files[SHARD].etag, times=1, cut_after=150_000)
    error = home.fails("--tries", "1")
    assert "are kept" in error and "the same command" in error
    [(name, size)] = [(n, s) for n, s in home.incomplete().items() if n.startswith(hub.files[SHARD].etag)]
    assert size == 150_000
    assert not home.snapshot(hub).exists() and not (home.repo / "refs").exists()
    partial = home.pull("--dry-run")
    assert statuses(partial)[SHARD] == "partial"
    assert statuses(home.pull())[SHARD] == "resumed"
    assert hub.asked("store", hub.files[SHARD].etag)[-1][1]["Range"] == "bytes=150000-299999"
    home.holds(hub, FETCHED)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_server_without_ranges_starts_over(hub, home, is_damaged):
    (home.repo / "blobs").mkdir(parents=True)
    blob = home.repo / "blobs" / (hub.files[SHARD].etag + ".incomplete")
    begun = hub.files[SHARD].content[:100_000]
    blob.write_bytes(bytes(100_000) if is_damaged else begun)
    hub.fault("store", "", ignores_range=True, times=1 if is_damaged else 1 << 30)
    report = home.pull()
    assert statuses(report)[SHARD] == "fetched"
    home.holds(hub, FETCHED)


def test_what_an_earlier_pull_left_damaged_is_fetched_again(hub, home):
    (home.repo / "blobs").mkdir(parents=True)
    blob = home.repo / "blobs" / (hub.files[SHARD].etag + ".incomplete")
    blob.write_bytes(bytes(100_000))
    done = home.run()
    assert done.returncode == 0 and "damaged; starting over" in done.stderr
    home.holds(hub, FETCHED)
    hub.files["more.json"] = File(b"{}")
    longer = home.repo / "blobs" / (hub.files["more.json"].etag + ".incomplete")
    longer.write_bytes(b"longer than it should be")
    assert statuses(home.pull())["more.json"] == "fetched"


def test_ctrl_c_keeps_what_came(hub, home):
    hub.fault("store", hub.files[SHARD].etag, bytes_a_second=300_000)
    process = home.start()
    end = time.monotonic() + 20
    while not any(home.incomplete().values()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1 and "interrupted" in err and "are kept" in err, err
    hub.faults.clear()
    assert "resumed" in statuses(home.pull()).values()
    home.holds(hub, FETCHED)


def test_a_killed_pull_leaves_nothing_that_looks_whole(hub, home):
    hub.fault("store", hub.files[SHARD].etag, bytes_a_second=300_000)
    process = home.start()
    end = time.monotonic() + 20
    while not any(home.incomplete().values()) and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert not home.snapshot(hub).exists() and not (home.repo / "refs").exists()
    shown = subprocess.run([os.environ["MOXIE_BINARY"], "inspect", "org/model"], env=home.environment(),
                           capture_output=True, text=True, timeout=TIMEOUT_S)
    assert shown.returncode == 1 and "moxie pull org/model" in shown.stderr
    hub.faults.clear()
    home.pull()
    home.holds(hub, FETCHED)


def test_large_files_come_over_several_connections(tmp_path):
    content = noise(1 << 20) * 50 + b"end"  # four pieces
    with Hub({"config.json": File(b"{}"), "model.safetensors": File(content, is_large=True)}) as hub:
        etag = hub.files["model.safetensors"].etag
        hub.fault("store", etag, times=1, delay_s=0.3)  # the first piece comes last
        hub.fault("store", etag, times=1, cut_after=5_000_000)
        home = Home(tmp_path, hub.endpoint)
        home.pull("--connections", "3")
        home.holds(hub, list(hub.files))
        asked = [headers.get("Range") for _, headers in hub.asked("store", etag)]
        assert {f"bytes={at}-{min(at + PIECE, len(content)) - 1}" for at in range(0, len(content), PIECE)} <= set(asked)
        assert len(hub.asked("hub", "/resolve/")) <= 4  # the store's address serves the other pieces
        # A store that ignores ranges sends the whole content to the first that asks.
        hub.fault("store", etag, ignores_range=True)
        other = Home(tmp_path / "other", hub.endpoint)
        other.pull("--connections", "3")
        other.holds(hub, list(hub.files))


def test_an_address_of_the_store_that_ended_is_asked_for_again(tmp_path):
    content = noise(1 << 20) * 40
    with Hub({"model.safetensors": File(content, is_large=True)}) as hub:
        hub.fault("store", "", times=1)
        hub.fault("store", "", times=1, status=403)
        home = Home(tmp_path, hub.endpoint)
        home.pull("--connections", "1")
        home.holds(hub, list(hub.files))
        assert len(hub.asked("hub", "/resolve/")) == 2


def test_two_pulls_at_once_fetch_each_blob_once(hub, home):
    hub.fault("store", "", bytes_a_second=1_000_000)
    pulls = [home.start("--json") for _ in range(2)]
    reports = []
    for process in pulls:
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        reports.append(statuses(json.loads(out)))
    for path in FETCHED:
        assert sorted(report[path] for report in reports) == ["cached", "fetched"], (path, reports)
    home.holds(hub, FETCHED)


def test_the_lock_is_huggingface_hubs(hub, home):
    lock = home.folder / "hub" / ".locks" / "models--org--model" / (hub.files["config.json"].etag + ".lock")
    lock.parent.mkdir(parents=True)
    code = ("import filelock, sys\nwith filelock.FileLock(sys.argv[1]):\n"
            "  print('held', flush=True)\n  sys.stdin.read()")
    holder = subprocess.Popen([os.sys.executable, "-c", code, str(lock)], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    process = home.start()
    try:
        line = ""
        while "another process fetches it" not in line:
            line = process.stderr.readline()
            assert line
        assert process.poll() is None
    finally:
        holder.communicate("")
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    home.holds(hub, FETCHED)


def test_a_fetched_checkpoint_is_found_by_its_name(tmp_path):
    nano = pathlib.Path(__file__).parents[1] / "data" / "goldens" / "nano-a"
    files = {name: File((nano / name).read_bytes(), is_large=name.endswith("safetensors"))
             for name in ("config.json", "model.safetensors")}
    with Hub(files) as hub:
        home = Home(tmp_path, hub.endpoint)
        home.pull()
        shown = subprocess.run([os.environ["MOXIE_BINARY"], "inspect", "org/model", "--json"],
                               env=home.environment(), capture_output=True, text=True, timeout=TIMEOUT_S)
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout)["path"] == str(home.snapshot(hub))
