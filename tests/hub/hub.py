"""A small hub on the loopback interface, and a store on another port that it redirects to, as the public
hub does for large files. Faults are injected by path: see Hub.fault.
"""

import hashlib
import http.server
import json
import threading
import time
import urllib.parse

BLOCK = 1 << 16


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class File:
    """`size` and `etag` are what the listing says, the true ones unless a test wants others."""

    def __init__(self, content, is_large=False):
        self.content, self.is_large = content, is_large
        self.size = len(content)
        self.etag = hashlib.sha256(content).hexdigest() if is_large else git_hash(content)

    def listed(self, path):
        entry = {"type": "file", "path": path, "size": self.size, "oid": self.etag}
        if self.is_large:
            entry["oid"] = git_hash(b"pointer of " + self.etag.encode())
            entry["lfs"] = {"oid": self.etag, "size": self.size, "pointerSize": 134}
        return entry


class Fault:
    """What befalls requests; each field is off unless given."""

    def __init__(self, times=1 << 30, status=0, headers=(), cut_after=None, ignores_range=False, length=None,
                 content=None, delay_s=0.0, bytes_a_second=0, call=None):
        self.times, self.status, self.headers, self.cut_after = times, status, headers, cut_after
        self.ignores_range, self.length, self.content = ignores_range, length, content
        self.delay_s, self.bytes_a_second, self.call = delay_s, bytes_a_second, call


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, is_store = self.server.hub, self.server.is_store
        path = urllib.parse.urlsplit(self.path)
        with hub.mutex:
            hub.requests.append(("store" if is_store else "hub", self.path, dict(self.headers.items())))
            self.fault = hub.take_fault("store" if is_store else "hub", urllib.parse.unquote(path.path))
        time.sleep(self.fault.delay_s)
        if self.fault.call:
            self.fault.call()
        if self.fault.status:
            return self.answer(self.fault.status, b"an error <page>", self.fault.headers)
        if is_store:
            return self.send_content(hub.blobs()[path.path.rsplit("/", 1)[1]].content, {})
        parts = urllib.parse.unquote(path.path).split("/")[1:]
        if parts[:2] == ["api", "resolve-cache"]:
            return self.send_resolved("/".join(parts[3:]))
        if parts[:2] == ["api", "models"]:
            return self.api("/".join(parts[2:4]), self.path.split("?")[0].split("/")[5:], path.query)
        if len(parts) > 4 and parts[2] == "resolve":
            return self.resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        return self.answer(404, b"no such page")

    do_HEAD = do_GET  # huggingface_hub asks so first

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def json(self, document, headers=()):
        self.answer(200, json.dumps(document).encode(), [("Content-Type", "application/json"), *headers])

    def missing(self, code, status=404):
        self.answer(status, b"{}", [("X-Error-Code", code), ("X-Error-Message", "not there")])

    def api(self, repo, rest, query):
        hub = self.server.hub
        if repo != hub.repo:
            return self.missing("RepoNotFound", 401 if "Authorization" not in self.headers else 404)
        if rest[0] == "refs":
            refs = [{"name": name, "targetCommit": commit} for name, commit in hub.refs.items()]
            return self.json({"branches": refs, "tags": []})
        revision = urllib.parse.unquote(rest[1])
        commit = hub.refs.get(revision, revision)
        if commit != hub.commit:
            return self.missing("RevisionNotFound")
        if rest[0] == "revision":
            return self.json({"id": repo, "sha": commit})
        start = int(urllib.parse.parse_qs(query).get("cursor", ["0"])[0])
        listed = hub.listing or [file.listed(path) for path, file in hub.files.items()]
        headers = []
        if start + hub.page_size < len(listed):
            following = f"{hub.endpoint}{self.path.split('?')[0]}?recursive=true&cursor={start + hub.page_size}"
            headers = [("Link", f'<{following}>; rel="next"')]
        return self.json(listed[start:start + hub.page_size], headers)

    def resolve(self, repo, commit, path):
        hub = self.server.hub
        commit = hub.refs.get(commit, commit)
        if repo != hub.repo or commit != hub.commit or path not in hub.files:
            return self.missing("EntryNotFound")
        file = hub.files[path]
        if not file.is_large:  # as the public hub: to an address of its own
            quoted = urllib.parse.quote(f"/api/resolve-cache/models/{path}")
            return self.answer(307, b"moved", [("Location", quoted), ("X-Repo-Commit", commit),
                                               ("ETag", f'"{file.etag}"')])
        self.answer(302, b"moved", [
            ("Location", f"{hub.store_url}/blobs/{file.etag}?signature=x"), ("X-Repo-Commit", commit),
            ("X-Linked-Etag", f'"{file.etag}"'), ("X-Linked-Size", str(file.size))])

    def send_resolved(self, path):
        file = self.server.hub.files[path]
        self.send_content(file.content, {"ETag": f'W/"{file.etag}"', "X-Repo-Commit": self.server.hub.commit})

    def send_content(self, content, headers):
        fault = self.fault
        content = content if fault.content is None else fault.content
        begin, end, status = 0, len(content), 200
        asked = self.headers.get("Range")
        if asked and not fault.ignores_range:
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end, status = int(first), min(int(last or end - 1) + 1, end), 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - begin if fault.length is None else fault.length))
        self.end_headers()
        sent = 0
        if self.command == "HEAD":
            return
        while begin < end:
            count = min(BLOCK, end - begin)
            if fault.cut_after is not None:
                count = min(count, fault.cut_after - sent)
                if count <= 0:
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
            self.wfile.write(content[begin:begin + count])
            begin, sent = begin + count, sent + count
            if fault.bytes_a_second:
                time.sleep(count / fault.bytes_a_second)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # clients that go away


class Hub:
    """One repository at one commit."""

    def __init__(self, files, repo="org/model"):
        self.files, self.repo, self.commit = files, repo, "c0ffee" + "0" * 34
        self.refs = {"main": self.commit, "v1.0": self.commit}
        self.page_size, self.listing = 3, None
        self.requests, self.faults, self.mutex = [], [], threading.Lock()

    def blobs(self):
        return {file.etag: file for file in self.files.values()}

    def fault(self, side, path, **fields):
        """For the next requests to the "hub" or the "store" whose path holds `path`."""
        self.faults.append((side, path, Fault(**fields)))

    def take_fault(self, side, path):
        for faulty, part, fault in self.faults:
            if faulty == side and part in path and fault.times > 0:
                fault.times -= 1
                return fault
        return Fault()

    def asked(self, side, part=""):
        return [(path, headers) for where, path, headers in self.requests if where == side and part in path]

    def _serve(self, is_store):
        server = Server(("127.0.0.1", 0), Handler)
        server.hub, server.is_store = self, is_store
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def __enter__(self):
        self.servers = [self._serve(False), self._serve(True)]
        self.endpoint, self.store_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()
