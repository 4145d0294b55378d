"""`moxie pull` when the hub, the network, the disk or the environment are against it: what it says, and
that nothing is written that should not be.
"""

import hashlib
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

import pytest

from home import FETCHED, SHARD, Home, noise, small_files, statuses
from hub import File, Hub


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
    error = home.fails(repo=repo, code=2)
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
