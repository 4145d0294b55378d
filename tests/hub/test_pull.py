"""`moxie pull` against a hub of our own on the loopback interface: what it fetches, where it puts it, and
what it says and keeps when the hub, the network or the disk fail. MOXIE_BINARY names the program.
"""

import hashlib
import json
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

import pytest

from hub import File, Hub

PIECE = 16 << 20  # what one request asks for
TIMEOUT_S = 60


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def small_files():
    return {
        "config.json": File(b'{"model_type": "gpt_oss"}'),
        "README.md": File(b"# not fetched"),
        "model-00001-of-00002.safetensors": File(noise(300_000, 1), is_large=True),
        "model-00002-of-00002.safetensors": File(noise(200_001, 2), is_large=True),
        "model.safetensors.index.json": File(b'{"weight_map": {}}'),
        "tokenizer.json": File(noise(5_000, 3), is_large=True),
        "tokenizer_config.json": File(b""),
        "original/model.safetensors": File(noise(400_000, 4), is_large=True),
        "metal/model.bin": File(noise(400_000, 5), is_large=True),
    }


FETCHED = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
           "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
SHARD = "model-00001-of-00002.safetensors"


class Home:
    """A Hugging Face home of its own, and the program run with it."""

    def __init__(self, folder, endpoint):
        self.folder, self.endpoint = pathlib.Path(folder), endpoint
        self.repo = self.folder / "hub" / "models--org--model"

    def environment(self, **more):
        ours = re.compile(r"(HF|MOXIE|HUGGING|TRANSFORMERS|XDG)_.*|.*_(PROXY|BUNDLE)|SSL_CERT_FILE", re.I)
        kept = {name: value for name, value in os.environ.items() if not ours.fullmatch(name)}
        return {**kept, "HF_HOME": str(self.folder), "HF_ENDPOINT": self.endpoint, **more}

    def start(self, *flags, repo="org/model", **env):
        return subprocess.Popen([os.environ["MOXIE_BINARY"], "pull", repo, *flags], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment(**env))

    def run(self, *flags, repo="org/model", **env):
        process = self.start(*flags, repo=repo, **env)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def pull(self, *flags, **more):
        """A pull that works: its JSON."""
        done = self.run("--json", *flags, **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def fails(self, *flags, code=1, **more):
        """A pull that fails: what it says."""
        done = self.run(*flags, **more)
        assert done.returncode == code, (done.stdout, done.stderr)
        if code == 1:
            assert done.stderr.splitlines()[-1].startswith("moxie: error: "), done.stderr
        return done.stderr

    def snapshot(self, hub):
        return self.repo / "snapshots" / hub.commit

    def incomplete(self):
        return {path.name: path.stat().st_size for path in self.repo.glob("blobs/*.incomplete")}

    def holds(self, hub, paths):
        """Whether exactly these files are there and whole, each a relative link to its blob."""
        found = sorted(str(path.relative_to(self.snapshot(hub)))
                       for path in self.snapshot(hub).rglob("*") if not path.is_dir())
        assert found == sorted(paths)
        for path in paths:
            link = self.snapshot(hub) / path
            target = os.readlink(link)
            assert target == "../" * (2 + path.count("/")) + "blobs/" + hub.files[path].etag
            assert link.read_bytes() == hub.files[path].content
        assert not self.incomplete()
        assert not list(self.repo.rglob("*.tmp"))


@pytest.fixture
def hub():
    with Hub(small_files()) as running:
        yield running


@pytest.fixture
def home(hub, tmp_path):
    return Home(tmp_path, hub.endpoint)


def statuses(report):
    return {file["path"]: file["status"] for file in report["files"]}


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


# Answers that are no success.

def test_a_busy_or_broken_server_is_asked_again(hub, home):
    hub.fault("hub", "/revision/", times=1, status=500)
    hub.fault("hub", "/tree/", times=1, status=429, headers=[("Retry-After", "1")])
    hub.fault("store", hub.files[SHARD].etag, times=1, status=503)
    start = time.monotonic()
    done = home.run()
    assert done.returncode == 0 and time.monotonic() - start > 1, done.stderr
    assert "answered 500; try 2 of 5 in 0.5 s" in done.stderr
    assert "answered 429; try 2 of 5 in 1 s" in done.stderr
    home.holds(hub, FETCHED)


@pytest.mark.parametrize("status, headers, words", [
    (500, [], ["answered 500", "later"]),
    (429, [("Retry-After", "3600")], ["3600 s (429)", "HF_TOKEN"]),
    (401, [("X-Error-Code", "GatedRepo")], ["gated", "accept them at http://127.0.0.1", "/org/model", "HF_TOKEN"]),
    (401, [("X-Error-Code", "RepoNotFound")], ["no such repository, or it is private", "HF_TOKEN"]),
    (403, [], ["no such repository, or it is private (403)"]),
    (418, [], ["answered 418"]),
])
def test_the_error_says_what_to_do(hub, home, status, headers, words):
    hub.fault("hub", "/revision/", status=status, headers=headers)
    error = home.fails("--tries", "1")
    assert all(word in error for word in words), error


def test_a_token_that_is_refused_is_named_and_not_shown(hub, home):
    hub.fault("hub", "/revision/", status=401, headers=[("X-Error-Message", "Invalid \x1b[31mcredentials")])
    error = home.fails(HF_TOKEN="hf_secret")
    assert "refused the token of HF_TOKEN" in error and "hf_secret" not in error and "\x1b" not in error
    hub.faults.clear()
    hub.fault("hub", "/revision/", status=403, headers=[("X-Error-Code", "GatedRepo")])
    assert "with the account of the token in HF_TOKEN" in home.fails(HF_TOKEN="hf_secret")


def test_unknown_repositories_revisions_and_files(hub, home):
    assert "did you mean openai/gpt-oss-20b?" in home.fails(repo="openai/gpt-os-20b")
    assert "did you mean org/model@v1.0?" in home.fails(repo="org/model@v1.1")
    assert "no such repository" in home.fails(repo="org/other", HF_TOKEN="hf_x")
    hub.listing = [file.listed(path) for path, file in hub.files.items()]
    del hub.files["config.json"]
    assert "lists this file and does not have it" in home.fails()
    assert not (home.repo / "refs").exists()


@pytest.mark.parametrize("repo", ["", "a/b/c", "../x", "a/..", ".a/b", "a--b/c", "a b/c", "a/b@../x", "a/b@/x", "a/b@"])
def test_bad_names_are_refused_before_anything_is_asked(hub, home, repo):
    error = home.fails(repo=repo)
    assert "is no repo id" in error or "is no revision" in error
    assert not hub.requests


def test_lengths_and_hashes_are_checked(hub, home):
    shard = hub.files[SHARD]
    hub.fault("store", shard.etag, content=shard.content[:-1] + b"!")
    error = home.fails()
    assert "its hash is" in error and "what came is dropped" in error
    assert shard.etag + ".incomplete" not in home.incomplete()
    hub.faults.clear()
    hub.fault("store", shard.etag, content=shard.content + b"more")
    assert "lists 300000 bytes and sends 300004" in home.fails()
    hub.faults.clear()
    shutil.rmtree(home.repo)
    hub.fault("hub", "/resolve-cache/models/config.json", content=b'{"model_type": "gpt_osS"}')
    assert "its hash is" in home.fails()
    assert not home.snapshot(hub).exists() and not (home.repo / "refs").exists()
    hub.faults.clear()
    home.pull()
    home.holds(hub, FETCHED)


def test_a_hub_that_contradicts_its_listing(hub, home):
    hub.listing = [file.listed(path) for path, file in hub.files.items()]
    hub.files[SHARD].etag = hashlib.sha256(b"another").hexdigest()
    assert "lists the hash" in home.fails()
    hub.files.update(small_files())
    hub.files[SHARD].size += 1
    assert "lists 300000 bytes and answers 300001" in home.fails()


# Hostile hubs.

@pytest.mark.parametrize("path", [
    "../../../outside.json", "/tmp/outside.json", "a/../../b.json", "./a.json", "a//b.json", "a\nb.json",
    "\x1b[2Ja.json", "a\x7f.json", "a\u0085b.json", "a\\b.json", "x" * 256 + ".json", "a/" * 600 + "b.json"])
def test_hostile_file_names_write_nothing(hub, home, path):
    hub.files[path] = File(b"{}")
    error = home.fails("--include", "*.json")
    assert "lists a file whose name" in error
    assert not any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in error)
    assert not (home.folder / "hub").exists()


@pytest.mark.parametrize("entry", [
    {"oid": "../../x", "size": 1}, {"oid": "ab" * 20, "size": -1}, {"oid": "ab" * 20, "size": 1 << 60},
    {"oid": "ab" * 20}, {"oid": "AB" * 20, "size": 1}, {"oid": 7, "size": 1},
    {"oid": "ab" * 20, "size": 1, "lfs": {"oid": "ab", "size": 1}}])
def test_hostile_entries_are_refused(hub, home, entry):
    hub.listing = [{"type": "file", "path": "model.safetensors", **entry}]
    assert "no usable hash or size" in home.fails()


def test_answers_that_are_no_listing(hub, home):
    hub.listing = [1]
    assert "holds no objects" in home.fails()
    hub.listing = [File(b"{}").listed("config.json")] * 2
    assert "twice" in home.fails("--include", "*")
    hub.listing = None
    hub.fault("hub", "/tree/", times=1, status=200)
    assert "no JSON list" in home.fails()
    hub.files.update({"a.json": File(b"{}"), "a.json/b.json": File(b"[]")})
    assert "cannot be written" in home.fails("--include", "a.json*")
    assert not (home.repo / "refs").exists()
    hub.commit, hub.refs = "../../x", {"main": "../../x"}
    assert "names no commit" in home.fails()


def test_a_redirect_without_end_and_one_elsewhere(hub, home):
    hub.fault("hub", "/revision/", status=302, headers=[("Location", "/api/models/org/model/revision/main")])
    assert "redirects without end" in home.fails()
    hub.faults.clear()
    hub.fault("hub", "/revision/", status=302, headers=[("Location", "file:///etc/passwd")])
    assert "not safe" in home.fails()


# This machine.

def test_offline_is_said_before_anything_is_asked(hub, home):
    error = home.fails(HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE=1 forbids the network" in error and not hub.requests
    home.pull("--include", "config.json", HF_HUB_OFFLINE="0")


def test_nobody_listens_and_no_such_name(home):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        start = time.monotonic()
        error = home.fails(HF_ENDPOINT=f"http://127.0.0.1:{free.getsockname()[1]}")
    assert "no connection" in error and "HF_ENDPOINT" in error and time.monotonic() - start < 3
    # A label of 64 characters is refused by this machine's resolver itself.
    assert "cannot be resolved" in home.fails(HF_ENDPOINT="http://" + "x" * 64)
    assert "HF_ENDPOINT" in home.fails(HF_ENDPOINT="ftp://127.0.0.1")


def test_a_server_that_is_not_trusted(home, tmp_path):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "cert.pem"], capture_output=True)
    assert made.returncode == 0, made.stderr
    with Hub({"config.json": File(b"{}")}) as hub:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        hub.servers[0].socket = context.wrap_socket(hub.servers[0].socket, server_side=True)
        hub.endpoint = hub.endpoint.replace("http:", "https:")
        error = home.fails(HF_ENDPOINT=hub.endpoint)
        assert "cannot be trusted" in error and "SSL_CERT_FILE" in error
        home.pull("--include", "config.json", HF_ENDPOINT=hub.endpoint, SSL_CERT_FILE=str(tmp_path / "cert.pem"))
        home.holds(hub, ["config.json"])


@pytest.mark.skipif(os.environ.get("MOXIE_CURL_DLOPEN") != "1", reason="this build links libcurl")
def test_a_machine_without_libcurl(hub, home, tmp_path):
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (tmp_path / name).write_text("no library")
    error = home.fails(LD_LIBRARY_PATH=str(tmp_path))
    assert "libcurl" in error and "was not found" in error and "libcurl4" in error


class SmallDisk:
    """A file system of 4 MiB; skips the test where none can be mounted."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.folder], capture_output=True,
                              text=True)
        if done.returncode != 0:
            os.rmdir(self.folder)
            pytest.skip("no file system can be mounted here: " + done.stderr.strip())
        return pathlib.Path(self.folder)

    def __exit__(self, *_):
        subprocess.run(["umount", self.folder], check=True)
        os.rmdir(self.folder)


def test_a_disk_that_is_too_small_is_said_at_once():
    with SmallDisk() as disk, Hub({"model.safetensors": File(noise(6 << 20), is_large=True)}) as hub:
        error = Home(disk, hub.endpoint).fails()
        assert re.search(r"6\.0 MiB are to be fetched and \d\.\d MiB are free: \d\.\d MiB are missing", error), error
        assert not hub.asked("store") and "HF_HOME" in error


def test_a_disk_that_fills_up_in_the_middle():
    with SmallDisk() as disk, Hub({"model.safetensors": File(noise(3 << 20), is_large=True)}) as hub:
        def fill():
            (disk / "other").write_bytes(bytes(2 << 20))
        hub.fault("store", "", times=1, call=fill)
        home = Home(disk, hub.endpoint)
        error = home.fails()
        assert "the disk is full" in error and "are kept" in error, error
        assert not home.snapshot(hub).exists()
        (disk / "other").unlink()
        assert statuses(home.pull())["model.safetensors"] == "resumed"
        home.holds(hub, ["model.safetensors"])


def test_a_cache_that_may_not_be_written_is_read(hub):
    with SmallDisk() as disk:
        home = Home(disk, hub.endpoint)
        home.pull()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert statuses(home.pull()) == dict.fromkeys(FETCHED, "cached")
        assert "cannot be written" in home.fails("--include", "*.md")


def test_a_folder_that_cannot_be_written(hub, home):
    (home.folder / "hub").write_text("a file where the cache should be")
    error = home.fails()
    assert "cannot be written" in error and "HF_HOME" in error
