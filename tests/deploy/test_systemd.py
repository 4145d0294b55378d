"""deploy/systemd, read by systemd's own tools without a running systemd; and the unit's sandbox, as far
as it can be had without one, around a real server."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from processes import ROOT, Process, wait_for
from server import free_port

UNITS = ROOT / "deploy/systemd"
DROP_INS = ["gpu.conf", "keys.conf"]
MOST_EXPOSURE = {"": 1.6, "gpu.conf": 1.8, "keys.conf": 1.6}


@pytest.fixture
def tree(tmp_path):
    """A root folder with the unit and a program at the place that it names."""
    def make(*drop_ins):
        units = tmp_path / "etc/systemd/system"
        units.mkdir(parents=True)
        shutil.copy(UNITS / "moxie.service", units)
        for drop_in in drop_ins:
            (units / "moxie.service.d").mkdir(exist_ok=True)
            shutil.copy(UNITS / drop_in, units / "moxie.service.d")
        for program in ("usr/local/bin/moxie", "usr/bin/nvidia-modprobe"):
            (tmp_path / program).parent.mkdir(parents=True)
            (tmp_path / program).write_text("")
            (tmp_path / program).chmod(0o755)
        for target in ("sysinit", "basic", "shutdown", "multi-user", "network-online"):
            (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\n")
        (tmp_path / "bin").mkdir()
        shutil.copy("/bin/kill", tmp_path / "bin/kill")
        return tmp_path
    return make


def settings(name):
    """The [Service] settings of a file, each with the list of its values."""
    found = {}
    for line in (UNITS / name).read_text().splitlines():
        if match := re.match(r"([A-Z][A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def analyze(*words):
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("drop_ins", [[], *([name] for name in DROP_INS), DROP_INS])
def test_systemd_finds_no_fault(tree, drop_ins):
    done = analyze("verify", "--man=no", "--recursive-errors=yes", f"--root={tree(*drop_ins)}",
                   "moxie.service")
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def test_systemd_would_find_one(tree):
    root = tree()
    unit = root / "etc/systemd/system/moxie.service"
    unit.write_text(unit.read_text().replace("Type=exec", "Type=fast"))
    done = analyze("verify", "--man=no", f"--root={root}", "moxie.service")
    assert "service type" in done.stderr


@pytest.mark.parametrize("drop_in", MOST_EXPOSURE)
def test_exposure(tree, drop_in):
    """systemd's own measure, 0 (confined) to 10."""
    done = analyze("security", "--offline=true", "--no-pager", f"--root={tree(*filter(None, [drop_in]))}",
                   f"--threshold={int(10 * MOST_EXPOSURE[drop_in])}", "moxie.service")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


def test_the_unit_waits_for_the_drain():
    env = dict(line.split("=", 1) for line in (UNITS / "moxie.env").read_text().splitlines()
               if line and not line.startswith("#"))
    (stop,) = settings("moxie.service")["TimeoutStopSec"]
    assert int(stop) > int(env["MOXIE_DRAIN_DELAY"]) + int(env["MOXIE_DRAIN_TIMEOUT"])


def test_the_server_runs_with_the_units_settings(tmp_path):
    """As a user without rights, with the environment file, and with the unit's limits that need no
    systemd: no new privileges, no capabilities, and nothing mapped that is both written and run."""
    assert os.geteuid() == 0, "needs root, to become another user"
    env = dict(line.split("=", 1) for line in (UNITS / "moxie.env").read_text().splitlines()
               if line and not line.startswith("#"))
    assert settings("moxie.service")["MemoryDenyWriteExecute"] == ["yes"]
    port = free_port()
    env |= {"MOXIE_PORT": str(port), "MOXIE_DRAIN_TIMEOUT": "5", "MOXIE_THREADS": "1", "HOME": "/"}
    # The folders that the unit names, below one that this user may write to, as StateDirectory makes it.
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    os.chown(state, 65534, 65534)
    for variable in settings("moxie.service")["Environment"]:
        name, _, folder = variable.partition("=")
        assert folder.startswith("/var/lib/moxie/"), "what the unit writes belongs into its StateDirectory"
        env[name] = folder.replace("/var/lib/moxie", str(state))
    binary = tmp_path / "moxie"
    shutil.copy(os.environ["MOXIE_BINARY"], binary)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    with Process("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
                 "--bounding-set=-all", "--inh-caps=-all", binary, "serve", port=port, env=env,
                 cwd="/") as server:
        wait_for(lambda: server.get("/readyz").status == 200, "the server", process=server)
        assert '"choices"' in server.post("/v1/completions", {"prompt": "17 + 25 ="}).text
        assert (state / "cache/moxie/self-test.json").is_file(), "the next start would test again"
        pid = server.process.pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M) and re.search(r"^CapBnd:\t0+$", status, re.M)
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
        assert not [line for line in maps if re.match(r"\S+ .wx", line)]
        assert server.stop() == 0


def calls_of(words):
    """The system calls that a SystemCallFilter allows."""
    found = set()
    for word in words:
        if not word.startswith("@"):
            found.add(word)
            continue
        done = analyze("--no-pager", "syscall-filter", word)
        assert done.returncode == 0, done.stderr
        found |= calls_of([line.strip() for line in done.stdout.splitlines()[1:]
                           if line.startswith("    ") and not line.strip().startswith("#")])
    return found


def test_the_servers_system_calls_are_allowed(tmp_path):
    allowed = calls_of(settings("moxie.service")["SystemCallFilter"][0].split())
    assert len(allowed) > 100 and "mount" not in allowed
    port, counts = free_port(), tmp_path / "counts"
    with Process("strace", "-f", "-c", "-U", "name", "-o", counts, os.environ["MOXIE_BINARY"], "serve",
                 "--port", port, "--threads", 2, port=port) as server:
        wait_for(lambda: server.get("/readyz").status == 200, "the server", process=server)
        assert server.post("/v1/completions", {"prompt": "17 + 25 ="}).status == 200
        children = pathlib.Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGTERM)  # strace passes none on
        assert server.process.wait(60) == 0, server.output()
    used = {line.strip() for line in counts.read_text().splitlines()
            if re.fullmatch(r"[a-z][a-z0-9_]+", line.strip())} - {"syscall", "total"}
    assert {"futex", "mmap", "execve"} <= used
    assert used - allowed == set()
