"""Programs beside the server: started on free ports, with their output in a file, and ended."""

import contextlib
import http.client
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from server import Asked

ROOT = pathlib.Path(__file__).resolve().parents[2]
START_S = 180  # machines may be busy with other things
MODEL = "moxie-embedded"
ASK = [{"role": "user", "content": "What is 17 + 25?"}]
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds two numbers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"]}}}


def wait_for(condition, what, within=START_S, process=None):
    """The condition's first true value. Connections that fail count as not yet."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        with contextlib.suppress(OSError, EOFError, http.client.HTTPException):
            if found := condition():
                return found
        if process is not None and process.process.poll() is not None:
            break
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {within} s\n" + (process.output() if process else ""))


class Process(Asked):
    """A program; with a port it can be asked."""

    def __init__(self, *command, port=None, env=None, **more):
        self.port = port
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**os.environ, **(env or {})}, start_new_session=True, **more)

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")[-5000:]

    def stop(self, within=60):
        """SIGTERM to it, and after `within` seconds SIGKILL to it and all it has started."""
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
