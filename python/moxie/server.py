"""Server: starts `moxie serve` on a free port, waits until it answers, and ends it.

The server ends with this process, however that ends: Linux sends it SIGTERM (PR_SET_PDEATHSIG) when
the thread that started it ends, which is therefore a thread of ours that lives as long as the server.
Standard library only.
"""

import collections
import ctypes
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request

from .binary import find_binary

_PR_SET_PDEATHSIG = 1
_URL = re.compile(r"^  url +(https?://\S+?)/v1\s*$")
_NUM_LOG_LINES = 40  # kept for errors
_KILL_AFTER_S = 10  # behind drain_s, in which a server ends by itself
_libc = ctypes.CDLL(None)  # loaded before a fork, behind which little may be done


class ServerFailed(RuntimeError):
    """The server did not start, or it ended. The message holds the last lines of its log."""


class RequestFailed(RuntimeError):
    """The server refused a request: `status`, and the `error` object of its answer."""

    def __init__(self, status, error):
        super().__init__(f"HTTP {status}: {error.get('message', error)}")
        self.status, self.error = status, error


def _switch_words(switches):
    """max_num_seqs=8 as --max-num-seqs 8; True: a switch without a value; a list: repeated."""
    words = []
    for name, value in switches.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [flag, str(one)]
    return words


class Server:
    """A server of one model, for tests, scripts and notebooks.

    model: as --model takes it. start_s: seconds until it must be ready. drain_s: seconds that running
    requests get when it is closed. timeout_s: seconds without a byte after which a request fails.
    Other keywords are switches of `moxie serve`: Server(threads=2, kv_cache_memory="1GiB").
    """

    def __init__(self, model="embedded", *, start_s=600, drain_s=2, timeout_s=600, binary=None,
                 api_key=None, **switches):
        self.timeout_s = timeout_s
        self._drain_s = drain_s
        self.base_url = None
        self._api_key = api_key
        self._log = collections.deque(maxlen=_NUM_LOG_LINES)
        self._found_url = threading.Event()
        self._started = threading.Event()
        self._process = None
        self._start_error = None
        words = [binary or find_binary(), "serve", "--model", model,
                 *_switch_words({"host": "127.0.0.1", "port": 0, "drain_timeout": drain_s, **switches})]
        environment = {name: value for name, value in os.environ.items() if name != "MOXIE_BINARY"}
        if api_key is not None:  # other users of the machine see command lines, not variables
            environment["MOXIE_API_KEY"] = api_key
        self._thread = threading.Thread(target=self._run, args=(words, environment), daemon=True)
        self._thread.start()
        try:
            self._wait_ready(start_s)
        except BaseException:
            self.close()
            raise

    def chat(self, messages, *, stream=False, **fields):
        """The answer's text; with stream=True an iterator of its pieces.

        messages: the user's text, or a list of messages in OpenAI's form. Other keywords are fields
        of /v1/chat/completions: max_tokens=100, temperature=0.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._texts("/v1/chat/completions", {"messages": messages, **fields}, stream,
                           lambda choice: choice["delta" if stream else "message"].get("content"))

    def complete(self, prompt, *, stream=False, **fields):
        """The text that continues `prompt`; with stream=True an iterator of its pieces."""
        return self._texts("/v1/completions", {"prompt": prompt, **fields}, stream,
                           lambda choice: choice["text"])

    def request(self, path, body=None):
        """The JSON of any route: `body` is posted, without one it is a GET."""
        with self._open(path, body) as answer:
            return json.load(answer)

    def metrics(self):
        """GET /metrics as a dict: {'vllm:num_requests_running{...}': 0.0}."""
        with self._open("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def log(self):
        """The last lines of the server's log."""
        return "\n".join(self._log)

    @property
    def pid(self):
        return self._process.pid

    def close(self):
        """Ends the server: SIGTERM, with which running requests get drain_s, then SIGKILL."""
        self._started.wait()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._drain_s + _KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<moxie.Server {self.base_url or 'that is not ready'}>"

    def _run(self, words, environment):
        """The thread that starts the server, reads its log and stays until it has ended."""
        parent = os.getpid()

        def end_with_parent():
            _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
            if os.getppid() != parent:  # it ended before the line above
                os._exit(1)

        try:
            self._process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=end_with_parent)
        except OSError as error:
            self._start_error = error
        finally:
            self._started.set()
        if self._process is None:
            self._found_url.set()
            return
        with self._process.stdout as lines:
            for line in lines:
                self._log.append(line.rstrip("\n"))
                found = _URL.match(line)
                if found and self.base_url is None:
                    self.base_url = found.group(1)
                    self._found_url.set()
        self._process.wait()
        self._found_url.set()

    def _wait_ready(self, start_s):
        if not self._found_url.wait(start_s):
            raise ServerFailed(f"not ready after {start_s} s; its log:\n{self.log()}")
        if self._start_error is not None:
            raise ServerFailed(f"the program cannot be started: {self._start_error}")
        if self.base_url is None:
            raise ServerFailed(f"it ended with {self._process.returncode}; its log:\n{self.log()}")

    def _open(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.base_url + path, data, headers)
        try:
            # No proxy: the server is on this machine.
            return _without_proxy.open(asked, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            try:
                said = json.loads(text)["error"]
            except (ValueError, KeyError, TypeError):
                said = {"message": text}
            raise RequestFailed(error.code, said) from None
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error):
        end = time.monotonic() + 1
        while self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        code = self._process.poll()
        state = "still runs" if code is None else f"ended with {code}"
        return ServerFailed(f"no answer: {error}; the server {state}; its log:\n{self.log()}")

    def _texts(self, path, body, stream, text_of):
        if not stream:
            return text_of(self.request(path, body)["choices"][0]) or ""
        return self._stream(self._open(path, {**body, "stream": True}), text_of)

    def _stream(self, answer, text_of):
        try:
            with answer:
                for line in answer:
                    if not line.startswith(b"data: "):
                        continue
                    data = line[6:].strip()
                    if data == b"[DONE]":
                        return
                    event = json.loads(data)
                    if "error" in event:
                        raise RequestFailed(200, event["error"])
                    for choice in event.get("choices", []):
                        text = text_of(choice)
                        if text:
                            yield text
        except OSError as error:
            raise self._lost(error) from error
        raise self._lost("the stream ended before its end mark")


_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
