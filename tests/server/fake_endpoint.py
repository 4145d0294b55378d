"""An OpenAI-compatible endpoint that counts words as tokens and misbehaves on demand."""

import contextlib
import http.server
import json
import threading
import time

TEMPLATE_TOKENS = 10


def words_of(body):
    texts = [m["content"] for m in body["messages"]] if "messages" in body else [body["prompt"]]
    return sum(len(text.split()) for text in texts)


def event(document):
    text = document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False).encode()
    return b"data: " + text + b"\n\n"


def role():
    return event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def token(text="a "):
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def usage(prompt, completion):
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


def last(reason="length"):
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})


DONE = event(b"[DONE]")


def good(handler, body, tokens=None, pause_s=0.002):
    """A whole answer, a piece a token."""
    count = tokens or body["max_tokens"]
    handler.begin_stream()
    handler.piece(role())
    for _ in range(count):
        time.sleep(pause_s)
        handler.piece(token())
    handler.piece(last() + usage(words_of(body) + TEMPLATE_TOKENS, count) + DONE)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def document(self, document, status=200, headers=()):
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", len(data)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def piece(self, data):
        self.wfile.write(data)
        self.wfile.flush()

    def do_GET(self):
        if self.path == "/v1/models":
            self.document({"object": "list", "data": [{"id": "fake", "object": "model"}]})
        else:
            self.document({"error": {"message": "no such route"}}, 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.owner.headers.append(dict(self.headers))
        if self.path == "/tokenize" and self.server.owner.has_tokenizer:
            self.document({"count": words_of(body) + TEMPLATE_TOKENS, "tokens": []})
        elif self.path == "/tokenize":
            self.document({"detail": "Not Found"}, 404)
        elif not body.get("stream"):
            self.document({"choices": [{"index": 0, "message": {"content": "a"}}],
                           "usage": {"prompt_tokens": words_of(body) + TEMPLATE_TOKENS, "completion_tokens": 1}})
        else:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.server.owner.answer(self, body)


class FakeEndpoint:
    """`behave(handler, body)` answers streams, after `num_good` that are answered well."""

    def __init__(self, behave=good, num_good=0, has_tokenizer=True):
        self.behave, self.num_good, self.has_tokenizer = behave, num_good, has_tokenizer
        self.num_streams, self.headers, self.lock = 0, [], threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.owner = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler, body):
        with self.lock:
            self.num_streams += 1
            is_good = self.num_streams <= self.num_good
        (good if is_good else self.behave)(handler, body)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
