"""Mixed traffic on one server, and books of it: every request is answered or cut off on purpose,
what clients saw adds up to what /metrics says, all pages come back, memory does not grow, and the
log holds nothing unexpected.

    python3 soak.py MOXIE [--model M] [--device D] [--flags "..."] [--seconds 20]
        [--clients 1,4,16] [--rounds 2] [--max-prompt 5000] [--max-answer 600] [--long N]
        [--expect-preemptions] [--seed S] [--json OUT]

The seconds are shared by the phases: --rounds times one phase for each number of clients; 4:60 is
a phase of 4 clients with 60 seconds of its own. A client sends one drawn request after another;
its draws depend on the seed, the phase and its number alone. --long sends one prompt of 128 tokens
before all, whose answer has N. Memory is held against that after an earlier phase of as many
clients, the most that come twice. Needs Python's library alone. Ends with 1 if there was a fault;
the first are printed with the request that shows them.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time

import server as servers
from soak_requests import (TEXT, Ask, Draws, Got, WORDS, brief, faults_of, last_event_is_right,
                           read_document, read_event)

SETTLE_S = 10  # until everything is given back
STATUS_S = 5   # between the server's status lines
EXPECTED_LINES = [re.compile(text) for text in (
    r'moxie info: \S+ "(GET|POST) \S+" \d+( aborted)? \d+ bytes [\d.]+ s \S+$',
    r"moxie info: running \d+, waiting \d+, [\d.]+ tok/s, KV [\d.]+%"
    r"(, [\d.]+ tokens a draft, accepted [\d%, ]+ by position of \d+ drafts)?"
    r"(, \d+% of the memory's limit|, share of the memory's limit unknown)?$",
    r"moxie info: memory reads [\d.]+ GB/s$",
    r"moxie info: --kv-cache-memory [\d.]+ \w+: the cache takes [\d.]+ \w+, the least that holds a sequence",
    r"moxie info: stopping: new requests get 503, running ones have [\d.]+ s$",
    r"moxie [\d.]+\S*  .+ ready in [\d.]+ s$",
    r"  (device|kernels|tuning|proven|memory|context|drafts|output|keys|url|page|try) +\S",
    r" +-d '\{\"messages\":",
    r"(making|loading) weights: ",
    r"moxie warn: \d+ ranks share a GPU, \d+ multiprocessors each: slower than one rank$",
    # The texts asked for are unlike what a draft head was trained on.
    r"moxie warn: \w+: the first draft was accepted in only \d+ of \d+ launches: ",
)]


class Client:
    """One connection, made again when it was cut."""

    def __init__(self, port):
        self.port, self.writer = port, None

    async def close(self):
        if self.writer:
            self.writer.close()
            try:
                await self.writer.wait_closed()
            except OSError:
                pass
        self.writer = None

    async def send(self, method, path, body=None):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b"" if body is None else json.dumps(body).encode()
        self.writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                          "Content-Type: application/json\r\n"
                          f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers

    async def pieces(self, headers):
        if headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def whole(self, method, path, body=None):
        status, headers = await self.send(method, path, body)
        return status, b"".join([piece async for piece in self.pieces(headers)]).decode()

    async def ask(self, ask):
        got = Got()
        got.status, headers = await self.send("POST", ask.path, ask.body)
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if is_stream and ask.cut == 0:
            got.cut = True
        elif is_stream:
            await self.read_stream(ask, headers, got)
        else:
            text = b"".join([piece async for piece in self.pieces(headers)]).decode()
            if got.status == 200:
                read_document(got, ask.path, json.loads(text))
            else:
                got.error = text
        if got.cut:
            await self.close()
        return got

    async def read_stream(self, ask, headers, got):
        rest = b""
        async for piece in self.pieces(headers):
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                data = [line[6:] for line in event.splitlines() if line.startswith(b"data: ")]
                if not data:  # a comment
                    continue
                got.events += 1
                done = data[0] == b"[DONE]"
                read_event(got, ask.path, "[DONE]" if done else json.loads(data[0]))
                if ask.cut is not None and got.events >= ask.cut:
                    if not last_event_is_right(ask.path, got.last):
                        got.cut = True
                        return
        if rest:
            got.faults.append(f"half an event at the end: {rest[:200]}")


class Metrics:
    def __init__(self, text):
        self.values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                self.values[name] = float(value)

    def get(self, name, label=""):
        found = [value for key, value in self.values.items()
                 if key.split("{")[0] == name and label in key]
        if not found:
            raise KeyError(name)
        return sum(found)

    def posts(self):
        """Counts of requests by path and status."""
        found = collections.Counter()
        for key, value in self.values.items():
            if key.startswith("http_requests_total{") and 'method="POST"' in key:
                fields = dict(re.findall(r'(\w+)="([^"]*)"', key))
                found[fields["handler"], int(fields["status"])] += int(value)
        return found


class Books:
    """What the clients saw, summed."""

    def __init__(self):
        self.sent = self.answered = self.cut = self.refused = 0
        self.kinds, self.ends = collections.Counter(), collections.Counter()
        self.posts = collections.Counter()
        self.prompt = self.completion = 0
        self.cut_choices = 0
        self.cut_prompt, self.cut_completion = [0, 0], [0, 0]  # at least, at most
        self.twins = self.differing = 0

    def add(self, ask, got):
        self.kinds[ask.kind] += 1
        self.posts[ask.path, got.status] += 1
        if got.status != 200:
            self.refused += 1
        elif got.cut:
            self.cut += 1
            self.cut_choices += ask.n
            for at, sums in ((ask.prompt, self.cut_prompt),
                             ((got.shown, ask.n * ask.most), self.cut_completion)):
                sums[0] += at[0]
                sums[1] += at[1]
        else:
            self.answered += 1
            self.ends.update(got.ends.values())
            if got.usage:
                self.prompt += got.usage[0]
                self.completion += got.usage[1]

    def differences(self, before, after):
        """Where the server's counts are not the clients'; both settled."""
        found = []
        grown = lambda name, label="": after.get(name, label) - before.get(name, label)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:kv_cache_usage_perc", "moxie:kv_pages_used"):
            if after.get(name) != 0:
                found.append(f"{name} is {after.get(name)} when nothing runs")
        ends = {reason: grown("vllm:request_success_total", f'finished_reason="{reason}"')
                for reason in ("stop", "length", "tool_calls", "abort", "error")}
        if sum(ends.values()) != sum(self.ends.values()) + self.cut_choices:
            found.append(f"{sum(ends.values()):.0f} answers ended, clients saw "
                         f"{dict(self.ends)} and cut {self.cut_choices}: {ends}")
        for reason, count in ends.items():
            # One that was cut may have ended before the server knew.
            most = self.cut_choices if reason != "error" else 0
            if not self.ends[reason] <= count <= self.ends[reason] + most:
                found.append(f"{count:.0f} ended by {reason}, clients saw {self.ends[reason]}, cut "
                             f"{self.cut_choices}")
        for name, seen, cut in (
                ("vllm:generation_tokens_total", self.completion, self.cut_completion),
                ("vllm:request_generation_tokens_sum", self.completion, self.cut_completion),
                ("vllm:prompt_tokens_total", self.prompt, self.cut_prompt)):
            if not seen + cut[0] <= grown(name) <= seen + cut[1]:
                found.append(f"{name} grew by {grown(name):.0f}, clients saw {seen} and, of those "
                             f"cut, {cut[0]} to {cut[1]}")
        if grown("vllm:generation_tokens_total") != grown("vllm:request_generation_tokens_sum"):
            found.append("generation_tokens_total is not the sum over requests")
        if grown("moxie:failed_steps_total") != 0:
            found.append(f"{grown('moxie:failed_steps_total'):.0f} steps failed")
        posts = after.posts() - before.posts()
        if posts != self.posts:
            found.append(f"requests by path and status: server {dict(posts)}, clients "
                         f"{dict(self.posts)}")
        return found


class Soak:
    def __init__(self, args, running):
        self.args, self.server = args, running
        self.faults, self.fault_counts = [], collections.Counter()
        self.phases, self.kinds, self.num_posts = [], collections.Counter(), 0

    def fault(self, where, text, ask=None):
        self.fault_counts["phases" if ask is None else ask.kind] += 1
        if len(self.faults) < 40:
            entry = f"{where}: {text}"
            if ask is not None:
                cut = "" if ask.cut is None else f", to be cut after {ask.cut} events"
                entry += f"\n    POST {ask.path} {brief(ask.body)}{cut}"
            self.faults.append(entry)
            print("FAULT", entry, flush=True)

    async def metrics(self):
        client = Client(self.server.port)
        try:
            return Metrics((await client.whole("GET", "/metrics"))[1])
        finally:
            await client.close()

    async def prepare(self):
        client = Client(self.server.port)
        model = json.loads((await client.whole("GET", "/v1/models"))[1])["data"][0]
        refused = json.loads((await client.whole("POST", TEXT, {"prompt": [2**31 - 1]}))[1])
        vocab = int(re.search(r"\(0 to (\d+)\)", refused["error"]["message"]).group(1)) + 1
        tokens = json.loads((await client.whole("POST", "/tokenize",
                                                {"prompt": " ".join(WORDS)}))[1])
        status, text = await client.whole("POST", TEXT, {
            "prompt": "x", "max_tokens": 8, "structured_outputs": {"choice": ["a"]}})
        self.has_grammars = not (status == 400 and "not available" in text)
        self.num_posts += 3
        await client.close()
        self.draws = Draws(self.args, model["id"], vocab, sorted(set(tokens["tokens"])),
                           model["max_model_len"], self.has_grammars)

    async def one(self, client, ask, books, where):
        self.num_posts += 1
        books.sent += 1
        try:
            async with asyncio.timeout(self.args.hang):
                got = await client.ask(ask)
        except (TimeoutError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
            await client.close()
            self.fault(where, f"lost: {type(error).__name__} {error}", ask)
            return None
        for text in faults_of(ask, got):
            self.fault(where, text, ask)
        books.add(ask, got)
        return got

    async def work(self, phase, number, clients, end, books):
        rng = random.Random(f"{self.args.seed} {phase} {number}")
        client, where = Client(self.server.port), f"phase {phase}, client {number}"
        while time.monotonic() < end and self.server.process.poll() is None:
            ask = self.draws.draw(rng)
            if ask.kind == "twin" and clients == 1:
                await self.when_idle()
            first = await self.one(client, ask, books, where)
            if ask.kind != "twin":
                continue
            second = await self.one(client, ask, books, where)
            if first is None or second is None or first.status != 200 or second.status != 200:
                continue
            books.twins += 1
            if (first.texts, first.ends, first.usage) != (second.texts, second.ends, second.usage):
                books.differing += 1
                # Among others a request meets other batches, and other rounding.
                if clients == 1:
                    self.fault(where, f"twins differ: {dict(first.texts)} and "
                               f"{dict(second.texts)}", ask)
        await client.close()

    async def when_idle(self):
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            now = await self.metrics()
            if now.get("vllm:num_requests_running") + now.get("vllm:num_requests_waiting") == 0:
                return
            await asyncio.sleep(0.01)

    async def watch(self, seen):
        while True:
            now = await self.metrics()
            seen["running"] = max(seen["running"], now.get("vllm:num_requests_running"))
            seen["waiting"] = max(seen["waiting"], now.get("vllm:num_requests_waiting"))
            seen["kv"] = max(seen["kv"], now.get("vllm:kv_cache_usage_perc"))
            await asyncio.sleep(0.5)

    async def settled(self, books, before, where):
        """The metrics once they agree with the books, or what they are after SETTLE_S."""
        end = time.monotonic() + SETTLE_S
        while True:
            after = await self.metrics()
            found = books.differences(before, after)
            fds = after.get("process_open_fds") - before.get("process_open_fds")
            if fds > 0 and self.phases:  # in the first, some are opened for good
                found.append(f"{fds:.0f} more open descriptors than before")
            if not found or time.monotonic() > end:
                break
            await asyncio.sleep(0.05)
        for text in found:
            self.fault(where, text)
        return after

    async def resident_mib(self):
        """Of the idle server, once it has measured its memory's bandwidth, which takes some."""
        end = time.monotonic() + servers.HANG_S
        while time.monotonic() < end and not self.server.is_measured():
            await asyncio.sleep(0.05)
        return round((await self.metrics()).get("process_resident_memory_bytes") / 2**20, 1)

    async def phase(self, name, clients, work):
        books, seen = Books(), collections.defaultdict(float)
        before = await self.metrics()
        watching = asyncio.create_task(self.watch(seen))
        begin = time.monotonic()
        extra = await work(books)
        seconds = time.monotonic() - begin
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        after = await self.settled(books, before, f"after phase {name}")
        grown = lambda metric: after.get(metric) - before.get(metric)
        tokens = int(grown("vllm:generation_tokens_total"))
        self.phases.append({
            "phase": name, "clients": clients, "seconds": round(seconds, 2),
            "requests": books.sent, "answered": books.answered, "cut": books.cut,
            "refused": books.refused,
            "lost": books.sent - books.answered - books.cut - books.refused,
            "ends": dict(books.ends),
            "prompt_tokens": int(grown("vllm:prompt_tokens_total")), "tokens": tokens,
            "cached_tokens": int(grown("vllm:prefix_cache_hits_total")),
            "tok_s": round(tokens / seconds, 1), "most_running": int(seen["running"]),
            "most_waiting": int(seen["waiting"]), "most_kv": round(seen["kv"], 3),
            "preemptions": int(grown("vllm:num_preemptions_total")),
            "loop_steps": int(grown("moxie:loop_steps_total")),
            "steps": int(grown("moxie:steps_total")),
            "twins": books.twins, "twins_differ": books.differing,
            "resident_mib": await self.resident_mib(),
            **(extra or {})})
        self.kinds.update(books.kinds)
        print(row(self.phases[-1]), flush=True)

    async def long_answer(self, books):
        rng = random.Random(self.args.seed)
        ids = [rng.randrange(self.draws.vocab) for _ in range(128)]
        ask = Ask("long", TEXT, {
            "prompt": ids, "max_tokens": self.args.long, "ignore_eos": True, "temperature": 1,
            "seed": self.args.seed, "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}}, most=self.args.long, exact=True,
            prompt=(128, 128))
        client = Client(self.server.port)
        begin = time.monotonic()
        got = await self.one(client, ask, books, "long answer")
        await client.close()
        if got is None:
            return {}
        if got.ids != self.args.long:
            self.fault("long answer", f"{got.ids} ids in {got.events} events", ask)
        return {"events": got.events, "ids": got.ids,
                "answer_s": round(time.monotonic() - begin, 2)}

    async def traffic(self):
        args = self.args
        await self.prepare()
        first = await self.metrics()
        self.start_mib = round(first.get("process_resident_memory_bytes") / 2**20, 1)
        print(HEAD, flush=True)
        if args.long:
            await self.phase("long", 1, self.long_answer)
        shared = sum(own_s is None for _, own_s in args.clients) * args.rounds
        for number in range(args.rounds * len(args.clients)):
            clients, own_s = args.clients[number % len(args.clients)]
            seconds = args.seconds / shared if own_s is None else own_s
            if seconds <= 0:
                continue

            async def work(books):
                end = time.monotonic() + seconds
                await asyncio.gather(*(self.work(number + 1, i, clients, end, books)
                                       for i in range(clients)))
            await self.phase(number + 1, clients, work)
        last = await self.metrics()
        self.preemptions = int(last.get("vllm:num_preemptions_total"))
        self.failed_5xx = sum(count for (_, status), count in last.posts().items() if status >= 500)

    def memory(self):
        """MiB at the start, after two phases alike, and at the end."""
        found = {"start": self.start_mib, "end": self.phases[-1]["resident_mib"]}
        by_clients = collections.defaultdict(list)
        for one in self.phases:
            if one["phase"] != "long":
                by_clients[one["clients"]].append(one)
        again = [clients for clients, phases in by_clients.items() if len(phases) > 1]
        if again:
            alike = by_clients[max(again)]
            found["compared"] = {f"phase {one['phase']}, {one['clients']} clients":
                                 one["resident_mib"] for one in (alike[0], alike[-1])}
            found["grown"] = round(alike[-1]["resident_mib"] - alike[0]["resident_mib"], 1)
        return found

    def check_end(self):
        args = self.args
        grown = self.memory().get("grown", 0)
        if grown > args.grow_mib:
            self.fault("memory", f"{grown} MiB more than after an earlier phase alike: "
                       f"{self.memory()['compared']}")
        if args.expect_preemptions and self.preemptions == 0:
            self.fault("preemptions", "none: the pages sufficed, and nothing of it was tested")
        if self.failed_5xx:
            self.fault("statuses", f"{self.failed_5xx} of 500 or above")
        for name in ("answered", "cut", "refused"):
            if len(self.phases) > bool(args.long) and not sum(one[name] for one in self.phases):
                self.fault("traffic", f"no request was {name}: longer --seconds")

    def check_log(self, log):
        lines = log.splitlines()
        for line in lines:
            if not any(pattern.match(line) for pattern in EXPECTED_LINES):
                self.fault("log", repr(line[:500]))
        posts = sum('"POST ' in line for line in lines)
        if posts != self.num_posts:
            self.fault("log", f"{posts} lines of requests, {self.num_posts} were sent")
        num_status = sum(line.startswith("moxie info: running ") for line in lines)
        if num_status == 0 and any(one["seconds"] > STATUS_S + 1 for one in self.phases):
            self.fault("log", "no status line")
        return {"lines": len(lines), "status_lines": num_status}


COLUMNS = ("phase", "clients", "seconds", "requests", "answered", "cut", "refused", "lost",
           "prompt_tokens", "tokens", "tok_s", "most_running", "preemptions", "twins",
           "twins_differ", "resident_mib")
TITLES = {"prompt_tokens": "tokens in", "tokens": "out", "tok_s": "out/s",
          "most_running": "running", "preemptions": "preempted", "twins_differ": "differ",
          "resident_mib": "MiB"}
WIDTHS = {name: max(8, len(TITLES.get(name, name))) for name in COLUMNS}
HEAD = "  ".join(f"{TITLES.get(name, name):>{WIDTHS[name]}}" for name in COLUMNS)


def row(phase):
    return "  ".join(f"{str(phase[name]):>{WIDTHS[name]}}" for name in COLUMNS)


def phases_of(text):
    """"1,4:60": numbers of clients, and seconds where given."""
    return [(int(clients), float(seconds) if seconds else None)
            for clients, _, seconds in (word.partition(":") for word in text.split(","))]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moxie", help="the program")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="", help="as the server takes it")
    parser.add_argument("--flags", default="--kv-cache-memory 64MiB --max-model-len 8192",
                        help="more of the server's, in one word; on a CPU a page of the cache "
                        "counts as memory from its first use on: a cache of less than --grow-mib cannot "
                        "look like growth")
    parser.add_argument("--seconds", type=float, default=20,
                        help="of traffic, for the phases without seconds of their own")
    parser.add_argument("--clients", type=phases_of, default=phases_of("1,4,16"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-prompt", type=int, default=5000)
    parser.add_argument("--max-answer", type=int, default=600)
    parser.add_argument("--long", type=int, default=0, help="tokens of one answer before all")
    parser.add_argument("--expect-preemptions", action="store_true")
    parser.add_argument("--grow-mib", type=float, default=32,
                        help="MiB that a late phase may take more than an early one alike")
    parser.add_argument("--hang", type=float, default=servers.HANG_S,
                        help="seconds after which an answer is lost")
    parser.add_argument("--start", type=float, default=servers.START_S, help="seconds to come up")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", default="")
    parser.add_argument("--log", default="", help="where to keep the server's log")
    return parser.parse_args()


def main():
    args = arguments()
    os.environ["MOXIE_BINARY"] = args.moxie
    # One process reads all streams here, and may lag behind a GPU.
    flags = ["--model", args.model, "--max-stored-responses", "100",
             "--max-stream-buffer", str(64 << 20)]
    flags += ["--device", args.device] if args.device else []
    flags += shlex.split(args.flags)
    print(f"seed {args.seed}: moxie serve {' '.join(flags)}", flush=True)
    begin = time.monotonic()
    running = servers.Server(*flags, start_s=args.start)
    soak, exit_code, more = Soak(args, running), None, {}
    try:
        running.wait_ready()
        start_s = time.monotonic() - begin
        asyncio.run(soak.traffic())
        soak.check_end()
        begin_stop = time.monotonic()
        exit_code = running.stop()
        more = {"start_s": round(start_s, 2), "stop_s": round(time.monotonic() - begin_stop, 2)}
    except (RuntimeError, OSError, subprocess.TimeoutExpired, KeyError, ValueError,
            asyncio.IncompleteReadError) as error:
        soak.fault("run", f"{type(error).__name__}: {error}")
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
    if exit_code != 0:
        soak.fault("end", f"exit code {running.process.returncode} after SIGTERM")
    log = running.output()
    more.update(soak.check_log(log))
    if args.log:
        with open(args.log, "w") as file:
            file.write(log)
    total = lambda name: sum(one[name] for one in soak.phases)
    seconds = total("seconds")
    document = {
        "model": args.model, "device": args.device, "flags": args.flags, "seed": args.seed,
        "requests": total("requests"), "answered": total("answered"), "cut": total("cut"),
        "refused": total("refused"), "lost": total("lost"),
        "by_kind": dict(sorted(soak.kinds.items())),
        "prompt_tokens": total("prompt_tokens"), "cached_tokens": total("cached_tokens"),
        "tokens": total("tokens"), "seconds": round(seconds, 2),
        "tok_s": round(total("tokens") / seconds, 1) if seconds else None,
        "preemptions": getattr(soak, "preemptions", None),
        "twins": total("twins"), "twins_differ": total("twins_differ"),
        "memory_mib": soak.memory() if soak.phases else {},
        "structured_output": getattr(soak, "has_grammars", None), "exit_code": exit_code, **more,
        "phases": soak.phases, "num_faults": sum(soak.fault_counts.values()), "faults": soak.faults}
    if args.json:
        with open(args.json, "w") as file:
            json.dump(document, file)
    print(f"{document['requests']} requests: {document['answered']} answered, "
          f"{document['cut']} cut, {document['refused']} refused, {document['lost']} lost; "
          f"{document['tokens']} tokens in {seconds:.1f} s; memory {document['memory_mib']} MiB; "
          f"exit code {exit_code}; {document['num_faults']} faults")
    return 1 if document["num_faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
