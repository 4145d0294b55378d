"""Runs a router in front of servers.

vllm-router is in the environment of tests/server/requirements.txt, whose interpreter runs the
tests. The others have an environment each, because both install a program named smg:
$MOXIE_ROUTERS/NAME, made by tools/python_env.sh from tests/routers/requirements-NAME.txt.
tools/check.sh routers makes all three and runs the tests.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from server import MODEL, Server, clean_environment, free_port

START_S = 120
LAUNCH = {"vllm-router": ["vllm-router"], "sglang-router": ["sglang-router", "launch"],
          "smg": ["smg", "launch"]}
POLICIES = {
    "vllm-router": ["round_robin", "random", "power_of_two", "cache_aware", "consistent_hash",
                    "sticky_least_loaded"],
    "sglang-router": ["round_robin", "random", "power_of_two", "cache_aware", "manual"],
    "smg": ["round_robin", "random", "power_of_two", "cache_aware", "least_load", "manual",
            "consistent_hashing", "prefix_hash"],
}


def program(name):
    if name == "vllm-router":
        folder = pathlib.Path(sys.executable).parent
    else:
        assert "MOXIE_ROUTERS" in os.environ, "MOXIE_ROUTERS is not set: see the head of router.py"
        folder = pathlib.Path(os.environ["MOXIE_ROUTERS"]) / name / "bin"
    command, *words = LAUNCH[name]
    assert (folder / command).exists(), f"{folder} has no {command}: see the head of router.py"
    return [str(folder / command), *words]


class Router(Server):
    """A router's process, which is asked as a server is."""

    def __init__(self, name, policy, workers, *flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.port, self.workers = free_port(), workers
        urls = [f"http://127.0.0.1:{worker.port}" for worker in workers]
        self.process = subprocess.Popen(
            [*program(name), "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy,
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), *flags,
             "--worker-urls", *urls],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=clean_environment(),
            start_new_session=True)

    def is_ready(self):
        """Whether each worker in turn answers, or as many times any."""
        return all(self.chat(model=MODEL, max_tokens=1).status == 200 for _ in self.workers)

    def wait_ready(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, EOFError):
                if self.is_ready():
                    return self
            time.sleep(0.1)
        raise RuntimeError("the router did not come up:\n" + self.output()[-3000:])

    def stop(self):
        with contextlib.suppress(ProcessLookupError):  # with what the launcher has started
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return 0
