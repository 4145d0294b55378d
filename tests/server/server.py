"""Runs the server under test, and speaks HTTP to it without a client library.

MOXIE_BINARY names the program; it is started on a free port with the embedded model, or with
MOXIE_SANITIZED=1 with one of next to no work: there threads and memory are tested, not kernels.
MOXIE_SERVER_FLAGS holds flags with a value each that every server gets, where its test does not give
the same flag: "--device cuda --kv-cache-memory 1GiB".
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time

START_S = 60
HANG_S = 120  # no answer for so long is none: machines may be busy with other things
MODEL = "moxie-embedded"
SANITIZED = os.environ.get("MOXIE_SANITIZED") == "1"
MEASURED = re.compile(r"^moxie info: (memory reads|the memory's read bandwidth) ", re.MULTILINE)


def skip_without_structured_output(is_missing):
    """`is_missing`: whether the server says that its build has none. Where the build has it (CMake
    then sets MOXIE_STRUCTURED_OUTPUT=1) that is a failure."""
    if is_missing:
        import pytest  # the programs that share this file do without
        assert os.environ.get("MOXIE_STRUCTURED_OUTPUT") != "1", "structured output is missing"
        pytest.skip("this build has no structured output")


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("MOXIE_")}


def synthetic_model_flags(folder, **sizes):
    """A model of other sizes than the embedded one, with its tokens."""
    tiny = pathlib.Path(__file__).parents[2] / "models" / "tiny" / "config.json"
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(tiny.read_text()), **sizes}))
    return ["--model", f"synthetic:{path}", "--tokenizer", "embedded", "--served-model-name", MODEL]


def small_model_flags(folder):
    """A model of next to no work."""
    tiny = pathlib.Path(__file__).parents[2] / "models" / "tiny" / "config.json"
    layers = json.loads(tiny.read_text())["layer_types"][:2]
    return synthetic_model_flags(folder, hidden_size=64, intermediate_size=64,
                                 num_hidden_layers=len(layers), layer_types=layers,
                                 num_attention_heads=2, num_key_value_heads=1, num_local_experts=4)


def flags_for_all(flags=()):
    """MOXIE_SERVER_FLAGS but what `flags` give."""
    words = shlex.split(os.environ.get("MOXIE_SERVER_FLAGS", ""))
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in flags for word in pair]


def free_port():
    """Below the ports that systems give out, so that no other test's server gets it meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Asked:
    """What answers HTTP on self.port of this machine."""

    def connect(self, timeout=HANG_S):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Connection(connection)

    def request(self, method, path, body=None, headers=(), timeout=HANG_S):
        with self.connect(timeout) as connection:
            connection.send_request(method, path, body, headers)
            return connection.read_response()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def chat(self, text="What is 17 + 25?", **fields):
        return self.post("/v1/chat/completions",
                         {"messages": [{"role": "user", "content": text}], **fields})

    def metric(self, name, labels=""):
        for line in self.get("/metrics").text.splitlines():
            if line.startswith((name + "{", name + " ")) and labels in line:
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)


class Server(Asked):
    def __init__(self, *flags, env=None, start_s=START_S):
        self.start_s = start_s
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.folder = tempfile.TemporaryDirectory()
        if SANITIZED and "--model" not in flags:
            flags = (*flags, *small_model_flags(self.folder.name))
        self.process = subprocess.Popen(
            [os.environ["MOXIE_BINARY"], "serve", *([] if "--port" in flags else ["--port", "0"]), *flags,
             *flags_for_all(flags)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={**clean_environment(), **(env or {})})
        self.port = None
        self.tls = "--ssl-key" in flags

    def output(self):
        with open(self.log.name, errors="replace") as file:
            return file.read()

    def wait_ready(self):
        end = time.monotonic() + self.start_s
        while time.monotonic() < end:
            found = re.search(r"^  url +https?://\S+:(\d+)/v1$", self.output(), re.M)
            if found:
                self.port = int(found.group(1))
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError("the server did not come up:\n" + self.output())

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode

    def __enter__(self):
        try:
            return self.wait_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None:
            assert code == 0, self.output()[-3000:]

    def is_measured(self):
        """Whether it has measured its memory's bandwidth, which it does while idle: that takes memory."""
        return MEASURED.search(self.output()) is not None

    def measured(self, within=30):
        end = time.monotonic() + within
        while time.monotonic() < end and not self.is_measured():
            time.sleep(0.02)
        return self.is_measured()

    def idle(self, within=2.0):
        """Whether nothing runs, waits or holds pages within so many seconds."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            names = ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:kv_cache_usage_perc")
            if all(self.metric(name) == 0 for name in names):
                return True
            time.sleep(0.02)
        return False


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of each server-sent event; the last is "[DONE]"."""
        parts = [part for part in self.text.split("\n\n") if part and not part.startswith(":")]
        found = []
        for part in parts:
            data = [line[6:] for line in part.splitlines() if line.startswith("data: ")]
            assert len(data) == 1, part
            found.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
        return found


class Connection:
    def __init__(self, raw):
        self.raw, self.buffer = raw, b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.raw.close()

    def send(self, data):
        self.raw.sendall(data)

    def send_request(self, method, path, body=None, headers=()):
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b""))

    def _fill(self):
        data = self.raw.recv(65536)
        if not data:
            raise EOFError(self.buffer)
        self.buffer += data

    def _until(self, mark):
        while mark not in self.buffer:
            self._fill()
        head, self.buffer = self.buffer.split(mark, 1)
        return head

    def _exactly(self, count):
        while len(self.buffer) < count:
            self._fill()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def read_head(self):
        lines = self._until(b"\r\n\r\n").decode().split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        return int(lines[0].split()[1]), headers

    def read_response(self, has_body=True):
        status, headers = self.read_head()
        while status == 100:
            status, headers = self.read_head()
        has_body = has_body and status != 204
        return Response(status, headers, self.read_body(headers) if has_body else b"")

    def read_body(self, headers):
        if headers.get("transfer-encoding") != "chunked":
            return self._exactly(int(headers["content-length"]))
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._exactly(size)
            assert self._exactly(2) == b"\r\n"
        assert self._until(b"\r\n") == b""
        return body

    def is_closed(self, within=5.0):
        self.raw.settimeout(within)
        try:
            while data := self.raw.recv(65536):
                self.buffer += data
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
