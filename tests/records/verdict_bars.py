"""Whether the verdicts of `moxie bench compare` and `moxie bench --vs` hold their bars on real samples
of a busy machine: one binary against itself, with planted changes, and against switches that cost.

    python3 verdict_bars.py MOXIE FOLDER [--runs 20] [--tests "-p 128 -n 32"] [--samples 20]
        [--pairs 0] [--judge 0] [--load 0] [--json OUT]
        [--slow "-p 0 -n 32" "--kernel out=out_any_f32_gemv_portable"]...

Records go to FOLDER; one that is there already is not measured again, so a run that was ended goes
on, and records can be judged again. In turn, so that all parts meet the same load:

- runs: `bench` with --samples; neighbours are compared, each with the one before it.
- in turn: `bench --vs` with a switch that changes nothing (--pairs samples a side; 0: as many as
  --vs takes by itself), judged again by `bench compare` of that one record, by its first --judge
  pairs if given.
- slow: `bench --vs` with the tests and switches of each --slow, which do cost. Their true cost is
  not known: the median over the pairs of all runs stands for it.

A change is planted by multiplying the samples of the second side, in the record: the noise is the
machine's, the change is exact. The bars, for each series: the same is called different at most once
in 20, a change of 5% is found in 19 of 20 where samples were taken in turn (two runs are shown, and
are no bar: a drift between them cannot be told from a change), and a change of 1% is never called
the wrong way. Ends with 1 if one does not hold. --load starts so many processes that work in bursts
of a second or two. Needs Python's library alone.
"""

import argparse
import collections
import copy
import json
import math
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

NOTHING = "--kv-dtype auto"  # the default
FACTORS = (1.0, 0.95, 1.05, 0.99, 1.01)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MOXIE_")}


def work_in_bursts(seed):
    """What a build does to a machine: for ever, a core for a while, then a pause."""
    rng = random.Random(seed)
    block = rng.randbytes(1 << 20) + bytes(1 << 20)
    while True:
        end = time.monotonic() + rng.expovariate(1 / 1.5)
        while time.monotonic() < end:
            zlib.compress(block)
        time.sleep(rng.expovariate(1 / 0.8))


def percentile(ordered, share):
    rank = share * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def summary(samples):
    ordered = sorted(samples)
    middle = statistics.median(samples)
    shares = {f"p{share}": percentile(ordered, share / 100) for share in (50, 90, 95, 99)}
    return {"mean": statistics.fmean(samples), "median": middle, "min": ordered[0], "max": ordered[-1],
            "stdev": statistics.stdev(samples) if len(samples) > 1 else 0.0,
            "mad": statistics.median(abs(one - middle) for one in samples), **shares}


def changed(record, factor, of, most):
    """The record with the samples of the series that `of` takes multiplied, of the first `most`."""
    record = copy.deepcopy(record)
    for series in record["results"]:
        scale = factor if of(series["name"]) else 1.0
        series["samples"] = [scale * one for one in series["samples"][:most]]
        for limit in {"limit_gb_s", "limit_launches_s"} & series.keys():
            series[limit] = series[limit][:most]
        series.update(summary(series["samples"]))
    return record


class Bench:
    """Measures what is not there yet, and has records judged by the program."""

    def __init__(self, moxie, folder):
        self.moxie, self.folder = moxie, pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def record(self, name, *arguments):
        path = self.folder / f"{name}.json"
        if not path.exists():
            start = time.monotonic()
            part = path.with_suffix(".part")
            subprocess.run([self.moxie, "bench", *arguments, "--record", str(part)], check=True,
                           env=ENVIRONMENT, stdout=subprocess.DEVNULL)
            part.rename(path)
            print(f"{name}: {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        return json.loads(path.read_text())

    def verdicts(self, *records):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, record in enumerate(records):
                paths.append(str(pathlib.Path(folder) / f"{number}.json"))
                pathlib.Path(paths[-1]).write_text(json.dumps(record))
            done = subprocess.run([self.moxie, "bench", "compare", *paths, "--json"], env=ENVIRONMENT,
                                  capture_output=True, text=True)
        if done.returncode not in (0, 1) or not done.stdout:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)["series"]


class Count:
    """Verdicts of one series under one planted factor."""

    def __init__(self):
        self.verdicts, self.shown = collections.Counter(), []

    def add(self, one):
        self.verdicts[one["verdict"]] += 1
        rounded = {key: float(f"{one[key]:.5g}") for key in ("median_a", "median_b", "difference", "low", "high", "p")}
        self.shown.append({**rounded, "units": one["units"], "verdict": one["verdict"]})


def fault_of(factor, count, in_turn):
    """What bar does not hold; empty: all do."""
    runs = sum(count.verdicts.values())
    if factor == 1:
        wrong = count.verdicts["faster"] + count.verdicts["slower"]
        return f"the same is called different in {wrong} of {runs}" if 20 * wrong > runs else ""
    right, wrong = ("slower", "faster") if factor < 1 else ("faster", "slower")
    if count.verdicts[wrong]:
        return f"called {wrong} in {count.verdicts[wrong]} of {runs}"
    if in_turn and abs(factor - 1) > 0.03 and 20 * count.verdicts[right] < 19 * runs:
        return f"found in {count.verdicts[right]} of {runs}"
    return ""


def judged(bench, pairs_of_records, of, in_turn, most):
    """Rows of the document: for each factor and series the counts; every verdict without a change."""
    rows = []
    for factor in FACTORS:
        counts = collections.defaultdict(Count)
        for *before, last in pairs_of_records:
            for one in bench.verdicts(*before, changed(last, factor, of, most)):
                counts[one["name"]].add(one)
        for name, count in counts.items():
            rows.append({"series": name, "planted": factor, "verdicts": dict(count.verdicts),
                         "fault": fault_of(factor, count, in_turn), **({"runs": count.shown} if factor == 1 else {})})
    return rows


def show(title, rows):
    print(f"\n{title}\n| series | planted | faster | slower | same | unclear | bar |\n"
          "|---|---:|---:|---:|---:|---:|---|")
    for row in rows:
        cells = [str(row["verdicts"].get(verdict, 0)) for verdict in ("faster", "slower", "same", "unclear")]
        planted = row["planted"] if isinstance(row["planted"], str) else f"{row['planted'] - 1:+.0%}"
        print(f"| {row['series']} | {planted} | {' | '.join(cells)} | {row['fault'] or 'holds'} |")


def cost_rows(bench, switches, records, most):
    """Of switches that cost: no bar, since what they cost depends on the load, too."""
    rows = []
    counts, logs = collections.defaultdict(Count), collections.defaultdict(list)
    for record in records:
        record = changed(record, 1, lambda _: False, most)
        for one in bench.verdicts(record):
            counts[one["name"]].add(one)
        samples = {series["name"]: series["samples"] for series in record["results"]}
        for name in counts:
            logs[name] += [math.log(b / a) for a, b in zip(samples[name], samples[f"{name} with {switches}"])]
    for name, count in counts.items():
        cost = math.expm1(statistics.median(logs[name]))
        rows.append({"series": name, "planted": f"{switches} ({cost:+.1%})", "verdicts": dict(count.verdicts),
                     "median_of_all_pairs": cost, "fault": "", "runs": count.shown})
    return rows


def loads(records):
    return [record["environment"]["load_average"][0] for record in records]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moxie", help="the program")
    parser.add_argument("folder", help="of the records")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tests", default="-p 128 -n 32", help="switches of bench, as one word")
    parser.add_argument("--samples", type=int, default=20, help="of a single run")
    parser.add_argument("--pairs", type=int, default=0, help="samples a side of --vs; 0: its default")
    parser.add_argument("--judge", type=int, default=0, help="pairs that are judged; 0: all")
    parser.add_argument("--slow", action="append", default=[], nargs=2, metavar=("TESTS", "SWITCHES"),
                        help="switches that cost, and the tests for them, each as one word")
    parser.add_argument("--load", type=int, default=0, help="processes that work in bursts beside")
    parser.add_argument("--json", default="")
    return parser.parse_args()


def measure(bench, args):
    tests = ["--model", "embedded", *shlex.split(args.tests)]
    pairs = ["-r", str(args.pairs)] if args.pairs else []
    runs, turns, slow = [], [], {switches: [] for _, switches in args.slow}
    for number in range(args.runs + 1):
        runs.append(bench.record(f"run{number:02}", *tests, "-r", str(args.samples)))
        if number == args.runs:
            break
        turns.append(bench.record(f"turn{number:02}", *tests, *pairs, "--vs", NOTHING))
        for at, (of_slow, switches) in enumerate(args.slow):
            slow[switches].append(bench.record(f"slow{at}_{number:02}", "--model", "embedded",
                                               *shlex.split(of_slow), *pairs, "--vs", switches))
    return runs, turns, slow


def main():
    args = arguments()
    bench = Bench(args.moxie, args.folder)
    burners = [subprocess.Popen([sys.executable, __file__, "--burn", str(seed)]) for seed in range(args.load)]
    try:
        runs, turns, slow = measure(bench, args)
    finally:
        for burner in burners:
            burner.kill()
    most = args.judge or None
    first = turns[0]
    tables = {
        "two runs": judged(bench, list(zip(runs, runs[1:])), lambda _: True, False, None),
        "in turn": judged(bench, [(record,) for record in turns],
                          lambda name: name.endswith(f" with {NOTHING}"), True, most)}
    for switches, records in slow.items():
        tables[f"in turn, {switches}"] = cost_rows(bench, switches, records, most)
    for title, rows in tables.items():
        show(title, rows)
    every = [*runs, *turns, *(record for records in slow.values() for record in records)]
    print(f"\nload average before the runs: {min(loads(every)):.1f} to {max(loads(every)):.1f}, "
          f"median {statistics.median(loads(every)):.1f}")
    if args.json:
        environment = first["environment"]
        document = {"tests": args.tests, "samples": args.samples, "pairs": most or len(first["results"][0]["samples"]),
                    "cpu": environment["cpu"], "cores": environment["cores"], "commit": environment["commit"],
                    "load_average": {"two runs": loads(runs), "in turn": loads(turns),
                                     **{f"in turn, {name}": loads(of) for name, of in slow.items()}},
                    "tables": tables}
        pathlib.Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(row["fault"] for rows in tables.values() for row in rows) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--burn"]:
        work_in_bursts(int(sys.argv[2]))
    try:
        sys.exit(main())
    except (RuntimeError, OSError, subprocess.CalledProcessError) as lost:
        sys.exit(f"{type(lost).__name__}: {lost}")
