"""Records of every command that writes them: their form, what reads them, and what survives."""

import copy
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import time

import jsonschema
import pytest

MOXIE = os.environ["MOXIE_BINARY"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MOXIE_")}
SCHEMA = pathlib.Path(__file__).parents[2] / "docs" / "record.schema.json"
OP = ("op bench moe_fp8_block_scale -T 1,3 --experts 64 --local-experts 2 --hidden 256 --intermediate 128 "
      "--device cpu")
COMMANDS = {
    "bench": "bench --device cpu -p 16 -n 4 -r 6",
    "profile": "profile --device cpu -p 16 -n 4 -r 1",
    "score": "score --device cpu --ids 1,2,3,4,5",
    "op bench": OP,
}


def moxie(*arguments, cwd=None, check=None, env=None):
    done = subprocess.run([MOXIE, *arguments], capture_output=True, text=True, timeout=300, cwd=cwd,
                          env={**ENVIRONMENT, **(env or {})})
    if check is not None:
        assert done.returncode == check, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def validator():
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """One record of each kind: its path by its kind."""
    folder = tmp_path_factory.mktemp("records")
    paths = {}
    for kind, command in COMMANDS.items():
        paths[kind] = folder / (kind.replace(" ", "_") + ".json")
        moxie(*command.split(), "--record", str(paths[kind]), check=0)
    return paths


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def scaled(record, factor):
    """The record as if every sample had been `factor` times as large."""
    record = copy.deepcopy(record)
    summary = "mean stdev median mad min max p50 p90 p95 p99".split()
    for series in record["results"]:
        series["samples"] = [factor * sample for sample in series["samples"]]
        for key in summary:
            series[key] *= factor
    return record


def write(path, record):
    path.write_text(json.dumps(record))
    return str(path)


@pytest.mark.parametrize("kind", COMMANDS)
def test_follows_the_schema(kind, records, validator):
    record = read(records[kind])
    validator.validate(record)
    assert record["kind"] == kind and record["command"]["name"] == kind
    for series in record["results"]:
        assert series["median"] == pytest.approx(statistics.median(series["samples"]))
    assert record["kernel_path"] and record["results"]
    assert record["weights"]["model"]


def test_says_where_switches_came_from(tmp_path, validator):
    path = tmp_path / "r.json"
    config = tmp_path / "c.json"
    config.write_text('{"repetitions": 2}')
    moxie("bench", "-p", "8", "-n", "0", "--device", "cpu", "--config", str(config), "--record", str(path),
          env={"MOXIE_THREADS": "1"}, check=0)
    record = read(path)
    sources = {name: entry["source"] for name, entry in record["configuration"].items()}
    assert (sources["--n-prompt"], sources["--threads"], sources["--repetitions"], sources["--kv-dtype"]) == (
        "flag", "env", "config", "default")
    assert {"--n-prompt=8", "--threads=1", "--repetitions=2"} <= set(record["command"]["arguments"])
    assert not any("--record" in word for word in record["command"]["arguments"])


def places(value, pointer=()):
    """Every place of a document but those inside `details` and the values of `configuration`."""
    if pointer:
        yield pointer
    if pointer == ("details",):
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:3] if isinstance(value, list) else items:
        yield from places(inner, (*pointer, key))


def parent_of(record, pointer):
    for key in pointer[:-1]:
        record = record[key]
    return record


def mutations(record):
    """(what, pointer of the fault, damaged record); each breaks the form."""
    for pointer in places(record):
        is_switch = pointer[0] == "configuration" and len(pointer) == 2
        parent = parent_of(record, pointer)
        # Records of before the self-test do not say what is proven, most machines no energy.
        is_optional = (pointer[0], pointer[-1]) in {("kernel_path", "proven"), ("results", "joules_per_token")}
        if isinstance(parent, dict) and not is_switch and not is_optional:
            damaged = copy.deepcopy(record)
            del parent_of(damaged, pointer)[pointer[-1]]
            yield "removed", pointer, damaged
        damaged = copy.deepcopy(record)
        parent_of(damaged, pointer)[pointer[-1]] = [{}]
        yield "another type", pointer, damaged
        value = parent[pointer[-1]]
        if isinstance(value, dict) and pointer not in (("details",), ("configuration",)):
            damaged = copy.deepcopy(record)
            parent_of(damaged, pointer)[pointer[-1]]["unknown"] = 1
            yield "unknown key", (*pointer, "unknown"), damaged


@pytest.mark.parametrize("kind", COMMANDS)
def test_schema_and_program_refuse_the_same_damage(kind, records, validator, tmp_path):
    record = read(records[kind])
    every = list(mutations(record))
    assert len(every) > 200
    for what, pointer, damaged in every:
        assert not validator.is_valid(damaged), (what, pointer)
    damaged_file = tmp_path / "damaged.json"
    for what, pointer, damaged in every[:: max(1, len(every) // 40)]:
        done = moxie("bench", "compare", str(records[kind]), write(damaged_file, damaged), check=1)
        assert re.search("/" + str(pointer[0]), done.stderr), (what, pointer, done.stderr)
        assert str(damaged_file) in done.stderr


def test_takes_the_energy_of_a_token(records, validator, tmp_path):
    record = read(records["bench"])
    record["results"][0]["joules_per_token"] = 0.75
    validator.validate(record)
    path = write(tmp_path / "energy.json", record)
    moxie("bench", "compare", path, path, check=0)
    record["results"][0]["joules_per_token"] = "0.75"
    assert not validator.is_valid(record)
    done = moxie("bench", "compare", path, write(tmp_path / "damaged.json", record), check=1)
    assert "/results/0/joules_per_token: expected a number" in done.stderr


def test_refuses_hostile_files(records, tmp_path):
    text = records["bench"].read_text()
    for name, content, message in [
        ("cut", text[: len(text) // 2], "cut off"),
        ("deep", "[" * 1_000_000, "nested deeper"),
        ("nan", text.replace('"mean": ', '"mean": NaN, "x": ', 1), "at byte"),
        ("version", text.replace('"schema_version": 2', '"schema_version": 9'), "this program reads 2"),
        ("empty", "", "at byte"),
    ]:
        path = tmp_path / name
        path.write_text(content)
        assert message in moxie("bench", "compare", str(records["bench"]), str(path), check=1).stderr, name
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(10 << 30)
    assert "10737418240 bytes" in moxie("bench", "compare", str(large), str(large), check=1).stderr


def test_compares_with_a_verdict(records, tmp_path):
    """One record against itself made faster and slower by 20%; the samples of one run are its noise."""
    record = read(records["op bench"])
    record["environment"]["cpu_used_by_others"] = 0
    for series in record["results"]:  # whatever this machine's noise is, it does not decide here
        series["samples"] = [100 + i % 5 for i in range(20)]
        summary = {"mean": 102, "stdev": statistics.stdev(series["samples"]), "median": 102, "mad": 1, "min": 100,
                   "max": 104, "p50": 102, "p90": 104, "p95": 104, "p99": 104}
        series.update(summary)
    same = write(tmp_path / "same.json", record)
    slow = write(tmp_path / "slow.json", scaled(record, 1.2))

    def compare(a, b, check):
        return json.loads(moxie("bench", "compare", a, b, "--json", check=check).stdout)

    assert {s["verdict"] for s in compare(same, same, 0)["series"]} == {"same"}
    worse = compare(same, slow, 1)
    assert worse["regression"] and {s["verdict"] for s in worse["series"]} == {"slower"}
    assert worse["series"][0]["difference"] == pytest.approx(0.2)
    assert {s["verdict"] for s in compare(slow, same, 0)["series"]} == {"faster"}


def test_holds_the_rate_of_launches_against_a_difference(records, validator, tmp_path):
    """20% slower: by itself, and where the host started kernels as much slower."""
    record = read(records["bench"])
    record["environment"]["cpu_used_by_others"] = 0
    samples = [100 + i % 5 for i in range(20)]
    for series in record["results"]:
        series.update({"samples": samples, "limit_gb_s": [], "limit_launches_s": [5e5] * 20, "mean": 102,
                       "stdev": statistics.stdev(samples), "median": 102, "mad": 1, "min": 100, "max": 104,
                       "p50": 102, "p90": 104, "p95": 104, "p99": 104})
    slow, slow_host = scaled(record, 0.8), scaled(record, 0.8)
    for series in slow_host["results"]:
        series["limit_launches_s"] = [3.95e5] * 20
    before = write(tmp_path / "before.json", record)
    for other, check, verdict in [(slow, 1, "slower"), (slow_host, 0, "unclear")]:
        validator.validate(other)
        done = moxie("bench", "compare", before, write(tmp_path / "other.json", other), "--json", check=check)
        assert {s["verdict"] for s in json.loads(done.stdout)["series"]} == {verdict}
    assert "the host starts kernels" in json.loads(done.stdout)["series"][0]["because"]


def test_warns_of_conditions_and_refuses_other_units(records, tmp_path):
    record = read(records["bench"])
    other = copy.deepcopy(record)
    other["environment"]["commit"] = "b" * 40
    done = moxie("bench", "compare", str(records["bench"]), write(tmp_path / "o.json", other))
    assert "not alike: commit" in done.stderr
    other["results"][0]["unit"] = "ms"
    done = moxie("bench", "compare", str(records["bench"]), write(tmp_path / "u.json", other), check=1)
    assert "the units of" in done.stderr
    assert "are of 'bench' and 'score'" in moxie(
        "bench", "compare", str(records["bench"]), str(records["score"]), check=1).stderr


def test_compares_documents_of_json(tmp_path, validator):
    path = tmp_path / "bench.json"
    path.write_text(moxie(*COMMANDS["bench"].split(), "--json", check=0).stdout)
    validator.validate(read(path)["record"])
    compared = json.loads(moxie("bench", "compare", str(path), str(path), "--json", check=0).stdout)
    assert [s["name"] for s in compared["series"]] == ["pp16", "tg4"]


def test_an_unwritable_place_is_told_before_anything_is_measured(tmp_path):
    for flag, message in [("--record", "cannot write the record"), ("--history", "cannot be opened")]:
        start = time.monotonic()
        done = moxie("bench", "--device", "cpu", "-n", "100000", "-p", "0", flag, str(tmp_path / "no" / "x"), check=1)
        assert message in done.stderr and "| test" not in done.stdout
        assert time.monotonic() - start < 60  # not the time of the test asked for
    assert "is a folder" in moxie("bench", "--record", str(tmp_path), check=1).stderr


def wait_for(path, run):
    deadline = time.monotonic() + 200
    while not path.exists() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


LONG = ["bench", "--device", "cpu", "-p", "8", "-n", "2400", "-r", "1"]  # its second test lasts seconds


def test_what_was_measured_outlives_the_run(tmp_path, validator):
    path = tmp_path / "r.json"
    run = subprocess.Popen([MOXIE, *LONG, "--record", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(path, run)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    record = read(path)
    validator.validate(record)
    assert [series["name"] for series in record["results"]] == ["pp8"]


def test_a_record_without_a_place_is_kept_elsewhere(tmp_path, validator):
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    run = subprocess.Popen([MOXIE, *LONG, "--record", str(place / "r.json")], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, "TMPDIR": str(elsewhere)})
    wait_for(place / "r.json", run)
    shutil.rmtree(place)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 1
    found = re.search(r"the record is in (\S+\.json)", errors)
    assert found and found[1].startswith(str(elsewhere)), errors
    validator.validate(read(found[1]))


def test_replays_from_another_folder(records, tmp_path, validator):
    after = tmp_path / "after.json"
    done = moxie("bench", "replay", str(records["score"]), "--record", str(after), "--json", cwd=tmp_path,
                 env={"MOXIE_IDS": "9,9"}, check=0)
    compared = json.loads(done.stdout)
    assert {s["name"]: s["verdict"] for s in compared["series"]} == {"nll": "same", "perplexity": "same"}
    validator.validate(read(after))
    assert read(after)["command"] == read(records["score"])["command"]


def test_replay_writes_no_file_that_a_record_names(records, tmp_path):
    record = read(records["score"])
    record["command"]["arguments"].append(f"--logits={tmp_path / 'l.safetensors'}")
    done = moxie("bench", "replay", write(tmp_path / "r.json", record), check=1)
    assert "--logits" in done.stderr and not (tmp_path / "l.safetensors").exists()
    record["command"]["name"] = "serve"
    assert "cannot be run again" in moxie("bench", "replay", write(tmp_path / "r.json", record), check=1).stderr


def test_history_is_kept_and_filtered(tmp_path):
    database = str(tmp_path / "h.db")
    for _ in range(2):
        moxie("bench", "--device", "cpu", "-p", "8", "-n", "4", "-r", "2", "--history", database, check=0)
    points = json.loads(moxie("bench", "history", "--history", database, "--json", check=0).stdout)["points"]
    assert [point["series"] for point in points] == ["pp8", "tg4", "pp8", "tg4"]
    listed = moxie("bench", "history", "--history", database, "--series", "tg4", check=0).stdout
    assert listed.count("| tg4 ") == 2 and "| pp8 " not in listed
    plot = moxie("bench", "history", "--history", database, "--plot", check=0).stdout
    assert plot.count("*") >= 4 and "2 runs" in plot
    assert "nothing" in moxie("bench", "history", "--history", database, "--commit", "zz", check=0).stdout


def test_a_history_that_cannot_be_used_loses_no_record(tmp_path):
    command = ["bench", "--device", "cpu", "-p", "8", "-n", "0", "-r", "2"]
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"x" * 4096)
    assert "damaged" in moxie(*command, "--history", str(damaged), check=1).stderr
    assert "damaged" in moxie("bench", "history", "--history", str(damaged), check=1).stderr
    database, record = tmp_path / "h.db", tmp_path / "r.json"
    moxie(*command, "--history", str(database), check=0)
    run = subprocess.Popen([MOXIE, *LONG, "--history", str(database), "--record", str(record)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(record, run)  # it looked at the history before
    with sqlite3.connect(database) as other:
        other.execute("BEGIN EXCLUSIVE")
        _, errors = run.communicate(timeout=300)
    assert run.returncode == 1
    assert "locked" in errors and str(record) in errors and read(record)["results"]


def test_two_engines_in_turn(tmp_path, validator):
    path = tmp_path / "vs.json"
    done = moxie("bench", "--device", "cpu", "-p", "16", "-n", "4", "-r", "16", "--vs", "--kernel experts=reference",
                 "--record", str(path), "--json", check=0)
    document = json.loads(done.stdout)
    assert [s["name"] for s in document["series"]] == ["pp16", "tg4"]
    # The reference row takes many times as long; on a busy machine 16 pairs may not show it.
    assert {s["verdict"] for s in document["series"]} <= {"slower", "unclear"}
    record = read(path)
    validator.validate(record)
    rows = {(k["of"], k["name"]) for k in record["kernel_path"] if k["step"] == "experts"}
    assert ("tg4 with --kernel experts=reference", "experts_reference") in rows
    assert not any(of == "tg4" and name == "experts_reference" for of, name in rows)
    assert "no row" in moxie("bench", "--vs", "--kernel experts=nothing").stderr
    assert moxie("bench", "--vs", "-p 3").returncode == 2


def test_switches_stand_behind_the_subcommand(records):
    done = moxie("bench", "-p", "3", "compare", str(records["bench"]), str(records["bench"]), check=2)
    assert "--n-prompt" in done.stderr
