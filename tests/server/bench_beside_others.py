"""`moxie bench serve` beside llama-benchy on one server, and against llama.cpp's server: whether figures
mean the same, whether a request is lost, and whether counts and times are those that servers count.

    MOXIE_BINARY=build/release/moxie python3 bench_beside_others.py [--parts times,benchy,engines]
        [--rounds 8] [--runs 3] [--requests 32] [--threads 1] [--record FILE]

Three parts:
  times    an endpoint whose events come at fixed times: both tools, the same figures within 1%
  benchy   the embedded model, llama-benchy and bench serve in turns A B B A: pp and tg of both, each as
           a share of what the server's own counters say of the same requests, too: on a busy machine
           the server's speed changes more from run to run than anything that could be found
  engines  bench serve against the embedded model and against llama.cpp's server with the same
           weights, in one run (--record keeps it); then against the latter alone, one stream at a time

Needs from PyPI, where this Python is: llama-benchy, xllamacpp (llama.cpp's server in a wheel) and
numpy. Nothing is downloaded by them: the tokenizer is models/tiny's, the text that llama-benchy cuts
its prompts from comes from here. --threads is each server's: with one, a machine of two cores has one
for the clients, and llama.cpp's threads do not wait for each other while another process has a core.
Ends with 1 if a request was lost, a count differs, or a figure differs by more than --bar (2%; of
`times`: 1%) and by more than its noise.
"""

import argparse
import contextlib
import functools
import http.server
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import fake_endpoint as fake
from server import Asked, Server, clean_environment, free_port

ROOT = pathlib.Path(__file__).parents[2]
TINY = ROOT / "models" / "tiny"
PROMPT, TOKENS, DEPTHS, STREAMS = 512, 32, (0, 1024), (1, 4)
FIXED_BAR = 0.01
MOXIE_COUNTERS = {
    "requests": ("vllm:request_success_total",), "prompt_tokens": ("vllm:prompt_tokens_total",),
    "completion_tokens": ("vllm:generation_tokens_total",),
    "ttft_s": ("vllm:time_to_first_token_seconds_sum",), "gaps_s": ("vllm:inter_token_latency_seconds_sum",)}
SNAPSHOT = {**MOXIE_COUNTERS, "gaps": ("vllm:inter_token_latency_seconds_count",)}
# Of a prompt's time llama.cpp counts what it computes, without waiting for a turn; it counts no requests.
LLAMA_COUNTERS = {
    "prompt_tokens": ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
    "completion_tokens": ("llamacpp:tokens_predicted_total",), "ttft_s": ("llamacpp:prompt_seconds_total",),
    "gaps_s": ("llamacpp:tokens_predicted_seconds_total",)}
problems = []


def check(is_good, text):
    print(("  " if is_good else "! ") + text, flush=True)
    if not is_good:
        problems.append(text)


def counters(server, names):
    values = {}
    for line in server.get("/metrics").text.splitlines():
        if line and not line.startswith("#"):
            name = re.split(r"[{ ]", line, maxsplit=1)[0]
            values[name] = values.get(name, 0) + float(line.rsplit(" ", 1)[1])
    return {key: sum(values[name] for name in of) for key, of in names.items()}


# ---- the other engine -------------------------------------------------------------------------------


def serve_llama(gguf, port, threads):
    """Runs in a process of its own until standard input ends."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias, params.port = gguf, {"embedded"}, port
    params.n_parallel, params.n_ctx, params.endpoint_metrics = 8, 8 * 4096, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


class LlamaServer(Asked):
    def __init__(self, gguf, threads):
        self.port = free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve-llama", gguf.name, str(self.port), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=gguf.parent)
        if not any(line.startswith("listening") for line in iter(self.process.stdout.readline, "")):
            self.log.seek(0)
            raise RuntimeError("llama.cpp's server did not come up:\n" + self.log.read()[-3000:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(20)


# ---- the two tools ----------------------------------------------------------------------------------


def listed(numbers):
    return ",".join(map(str, numbers))


def moxie_bench(*flags, cwd=None):
    moxie = os.path.abspath(os.environ["MOXIE_BINARY"])
    done = subprocess.run([moxie, "bench", "serve", "--json", "--ignore-eos", "-p", str(PROMPT), "-n", str(TOKENS),
                           *map(str, flags)],
                          capture_output=True, text=True, env=clean_environment(), cwd=cwd)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        check(False, f"bench serve ended with {done.returncode}")
    return json.loads(done.stdout)


def samples_of_moxie(url, runs, depths, *more):
    """By depth and figure: a sample a request."""
    tests = moxie_bench("--url", url, "-d", listed(depths), "--requests", runs, *more)["tests"]
    if any(t["requests"] != runs or t["errors"] for t in tests):
        check(False, f"bench serve lost a request: {[t['errors'] for t in tests]}")
    return {(t["depth"], figure): t[figure + "_tok_s"]["samples"] for t in tests for figure in ("pp", "tg")}


class Words(http.server.BaseHTTPRequestHandler):
    """What llama-benchy cuts its prompts from: words that are one token each, so that a text of n tokens
    has n tokens again when the server reads it."""

    def do_GET(self):
        data = self.text().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    @staticmethod
    @functools.cache
    def text():
        vocabulary = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"]
        words = sorted(word[1:] for word in vocabulary if re.fullmatch("\u0120[a-z]{2,}", word))
        draw = random.Random(1)
        return "".join(" " + draw.choice(words) for _ in range(100_000))

    def log_message(self, *_):
        pass


class Benchy:
    """Its prompts begin at random places of the text, so that a prefix cache finds the template alone, as
    with bench serve: --no-cache would take the template out of the cache, too."""

    def __init__(self, folder):
        self.folder = folder
        self.library = http.server.HTTPServer(("127.0.0.1", 0), Words)
        threading.Thread(target=self.library.serve_forever, daemon=True).start()

    def samples(self, url, model, runs, depths, *more):
        path = pathlib.Path(self.folder) / "benchy.json"
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "llama_benchy", "--base-url", url + "/v1", "--model", model,
             "--tokenizer", str(TINY), "--book-url", f"http://127.0.0.1:{self.library.server_port}/words",
             "--pp", str(PROMPT), "--tg", str(TOKENS), "--depth", *map(str, depths), "--runs", str(runs),
             "--exact-tg", "--skip-coherence", "--exit-on-first-fail", "--format", "json",
             "--save-result", str(path), *more],
            capture_output=True, text=True,
            env={**clean_environment(), "HOME": str(self.folder), "HF_HUB_OFFLINE": "1"})
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        found = {}
        for one in json.loads(path.read_text())["benchmarks"]:
            for figure in ("pp", "tg"):
                found[one["context_size"], figure] = one[figure + "_req_throughput"]["values"]
        if any(len(of) != runs for of in found.values()):
            check(False, f"llama-benchy lost a request: {found}")
        return found


# ---- parts ------------------------------------------------------------------------------------------


def at_times(has_ids, num_first, num_behind):
    """A stream of fixed times: the role after 1 s, text from 1.1 s on, every 40 ms. `num_first`: tokens of
    the first event; `num_behind`: tokens without text, 40 ms each, behind the last text."""

    def event(text, count):
        choice = {"index": 0, "delta": {"content": text} if text else {}}
        return fake.event({"choices": [{**choice, **({"token_ids": [7] * count} if has_ids else {})}]})

    def answer(handler, body):
        begin = time.monotonic()

        def send_at(seconds, data):
            time.sleep(max(0, begin + seconds - time.monotonic()))
            handler.piece(data)

        handler.begin_stream()
        send_at(1, fake.role())
        num_texts = body["max_tokens"] - num_first - num_behind + 1
        for number in range(num_texts):
            send_at(1.1 + 0.04 * number, event("a ", 1 if number else num_first))
        send_at(1.1 + 0.04 * (num_texts - 1 + num_behind), event("", num_behind) + fake.last() + fake.usage(
            PROMPT, body["max_tokens"]) + fake.DONE)

    return answer


def part_times(benchy, args):
    cases = {"events of a token": (False, 1, 0), "token_ids, four in the first event": (True, 4, 0),
             "token_ids, three without text behind the last": (True, 4, 3)}
    for name, case in cases.items():
        with fake.FakeEndpoint(at_times(*case)) as endpoint:
            ours = samples_of_moxie(endpoint.url, args.runs, (0,), "--latency-mode", "none")
            theirs = benchy.samples(endpoint.url, "fake", args.runs, (0,), "--latency-mode", "none")
        for key, values in ours.items():
            # What disturbs a request only makes its prompt longer.
            of = max if key[1] == "pp" else statistics.median
            a, b = of(theirs[key]), of(values)
            check(abs(b / a - 1) <= FIXED_BAR,
                  f"{name}: {key[1]}: llama-benchy {a:.2f}, bench serve {b:.2f} tok/s ({b / a - 1:+.2%})")


def rate(samples):
    """Of all requests together: the harmonic mean of their rates."""
    return len(samples) / sum(1 / one for one in samples)


def rates_of(grown):
    """What the server says of the same requests: prompt tokens a second until the first token, and 1 / the
    time of a token."""
    return {"pp": grown["prompt_tokens"] / grown["ttft_s"], "tg": grown["gaps"] / grown["gaps_s"]}


def difference(before, after):
    return {key: after[key] - before[key] for key in after}


def of_benchy(benchy, server, model, runs, depth):
    snapshots = pathlib.Path(benchy.folder) / "snapshots"
    snapshots.unlink(missing_ok=True)
    command = shlex.join([sys.executable, __file__, "--snapshot", str(server.port), str(snapshots)])
    url = f"http://127.0.0.1:{server.port}"
    found = benchy.samples(url, model, runs, (depth,), "--post-run-cmd", command)
    taken = [json.loads(line) for line in snapshots.read_text().splitlines()]
    assert len(taken) == runs + 1  # the first is behind its own warm-up
    return found, difference(taken[0], taken[-1])


class AfterProbe(threading.Thread):
    """Counters behind the one request that bench serve sends before those that it measures."""

    def __init__(self, server):
        super().__init__()
        self.server, self.taken = server, None
        self.count = counters(server, SNAPSHOT)["requests"] + 1

    def run(self):
        while self.taken is None or self.taken["requests"] < self.count:
            self.taken = counters(self.server, SNAPSHOT)
            time.sleep(0.02)


def of_moxie(server, runs, depth):
    begin = AfterProbe(server)
    begin.start()
    found = samples_of_moxie(f"http://127.0.0.1:{server.port}", runs, (depth,), "--warm-up", 0)
    begin.join()
    grown = difference(begin.taken, counters(server, SNAPSHOT))
    assert grown["requests"] == runs, grown
    return found, grown


def interval(ratios):
    """The median of ratios of neighbouring runs, and 95% of what other rounds might have given."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(10_000))
    return [x - 1 for x in (statistics.median(ratios), medians[250], medians[-251])]


def deviation(values):
    middle = statistics.median(values)
    return statistics.median(abs(v - middle) for v in values) / middle


def part_benchy(benchy, args):
    rates, shares = {}, {}  # by depth, figure and tool: one a round
    with Server("--model", "embedded", "--threads", args.threads, "--no-access-log") as server:
        assert server.measured()
        model = server.get("/v1/models").json()["data"][0]["id"]
        run = {"llama-benchy": lambda depth: of_benchy(benchy, server, model, args.runs, depth),
               "bench serve": lambda depth: of_moxie(server, args.runs, depth)}
        for number in range(args.rounds):
            for depth in DEPTHS:
                for tool in list(run) if number % 2 == 0 else reversed(run):
                    found, grown = run[tool](depth)
                    assert server.idle()
                    text = []
                    for (_, figure), samples in found.items():
                        its = rates_of(grown)[figure]
                        rates.setdefault((depth, figure, tool), []).append(rate(samples))
                        shares.setdefault((depth, figure, tool), []).append(rate(samples) / its)
                        text.append(f"{figure} {rate(samples):.1f}, by the server {its:.1f}")
                    print(f"  round {number + 1}, d{depth}, {tool}: {'; '.join(text)}", flush=True)
    print(f"medians of {args.rounds} rounds, with their deviations (MAD):")
    for depth in DEPTHS:
        for figure in ("pp", "tg"):
            for tool in run:
                of, part = rates[depth, figure, tool], shares[depth, figure, tool]
                print(f"  {figure} d{depth}, {tool}: {statistics.median(of):.1f} tok/s ({deviation(of):.1%}), "
                      f"{statistics.median(part):.2%} ({deviation(part):.2%}) of the server's")
            ratios = [interval([b / a for a, b in zip(*(of[depth, figure, tool] for tool in run))])
                      for of in (rates, shares)]
            middle, low, high = ratios[1]
            check(low <= 0 <= high or abs(middle) <= args.bar,
                  f"{figure} d{depth}: bench serve beside llama-benchy: " + ", ".join(
                      f"{name} {middle:+.2%} (95%: {low:+.2%} to {high:+.2%})"
                      for name, (middle, low, high) in zip(("rates", "shares of the server's"), ratios)))


def compare(name, endpoint, before, after, keys, bar):
    for key in keys:
        ours, its = endpoint["traffic"][key], after[key] - before[key]
        apart = ours / its - 1
        check(abs(apart) <= bar if key.endswith("_s") else ours == its,
              f"{name}: {key}: {ours:.6g} here, {its:.6g} by its own counters ({apart:+.2%})")


def part_engines(folder, args):
    gguf = pathlib.Path(folder) / "embedded.gguf"
    subprocess.run([sys.executable, ROOT / "tools" / "convert" / "hf_to_gguf.py", TINY, gguf], check=True)
    record = ["--record", "bench_serve.json"] if args.record else []  # it names no folder of this machine
    common = ["--endpoint", "completions", "-d", listed(DEPTHS), "--requests", args.requests]
    with Server("--model", "embedded", "--threads", args.threads, "--no-access-log") as moxie, \
            LlamaServer(gguf, int(args.threads)) as llama:
        assert moxie.measured()
        urls = [f"http://127.0.0.1:{one.port}" for one in (moxie, llama)]
        before = counters(moxie, MOXIE_COUNTERS), counters(llama, LLAMA_COUNTERS)
        both = moxie_bench(*common, "--url", urls[0], "--url", urls[1], "--concurrency", listed(STREAMS), *record,
                           cwd=folder)
        after = counters(moxie, MOXIE_COUNTERS), counters(llama, LLAMA_COUNTERS)
        if args.record:
            shutil.copyfile(pathlib.Path(folder) / "bench_serve.json", args.record)
        names = dict(zip(urls, ("moxie", "llama.cpp")))
        for test in both["tests"]:
            check(test["requests"] == args.requests and not test["errors"] and
                  test["tokens"]["prompts_of_other_length"] == 0,
                  f"{names[test['url']]}, {test['name']}: {test['requests']} of {args.requests} requests; "
                  f"ttft {test['ttft_ms']['p50']:.1f}, tpot {test['tpot_ms']['p50']:.2f} ms, pp "
                  f"{test['pp_tok_s']['median']:.0f}, tg {test['tg_tok_s']['median']:.0f}, output "
                  f"{test['output_tok_s']:.1f} tok/s")
        for note in both["notes"]:
            print("  note:", note)
        compare("moxie", both["endpoints"][0], before[0], after[0], MOXIE_COUNTERS, args.bar)
        counts = ("prompt_tokens", "completion_tokens")
        compare("llama.cpp", both["endpoints"][1], before[1], after[1], counts, args.bar)
        alone = moxie_bench(*common, "--url", urls[1])
        again = counters(llama, LLAMA_COUNTERS)
        compare("llama.cpp alone", alone["endpoints"][0], after[1], again, LLAMA_COUNTERS, args.bar)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="times,benchy,engines")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="requests a round, depth and tool")
    parser.add_argument("--requests", type=int, default=32, help="of each test of engines")
    parser.add_argument("--threads", default="1", help="of each server")
    parser.add_argument("--bar", type=float, default=0.02)
    parser.add_argument("--record")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        benchy = Benchy(folder)
        for part in args.parts.split(","):
            print(f"\n{part}", flush=True)
            if part == "engines":
                part_engines(folder, args)
            else:
                {"times": part_times, "benchy": part_benchy}[part](benchy, args)
    print(f"\n{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve-llama"]:
        with contextlib.suppress(KeyboardInterrupt):
            serve_llama(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if sys.argv[1:2] == ["--snapshot"]:
        asked = Asked()
        asked.port = int(sys.argv[2])
        with open(sys.argv[3], "a") as file:
            file.write(json.dumps(counters(asked, SNAPSHOT)) + "\n")
        sys.exit()
    sys.exit(main())
