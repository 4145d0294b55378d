"""`moxie validate --url` against this server, and against endpoints that prove nothing."""

import json
import os
import subprocess

from fake_endpoint import FakeEndpoint
from server import clean_environment


def validate(url, *flags):
    command = [os.environ["MOXIE_BINARY"], "validate", "--json", "--url", url, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=clean_environment())
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def address(server):
    return f"http://127.0.0.1:{server.port}"


def names(level, key):
    return [entry["name"] for entry in level[key]]


def test_levels_that_can_be_seen_from_outside_pass(server):
    code, report = validate(address(server), "--level", "3", "--quick", "--forbid", "experts=reference")
    assert code == 0 and report["valid"], report
    assert [level["level"] for level in report["levels"]] == [1, 1.5, 2, 3]
    smoke, path, correctness, stress = report["levels"]
    assert "kernels are counted" in names(path, "checks")
    assert "rows that ran are those planned" in names(path, "omitted")
    assert "KL and perplexity against the reference" in names(correctness, "omitted")
    assert "growth of memory" in names(stress, "omitted")
    assert report["conditions"]["url"] == address(server)


def test_speeds_are_of_prompts_that_no_cache_has(server):
    """The prefix cache of the server is on: it finds the template, and nothing of the run before."""
    for _ in range(2):
        _, report = validate(address(server), "--level", "4", "--quick")
        speeds = report["levels"][-1]
        assert speeds["level"] == 4 and not speeds["not_run"], report
        cached = [check for check in speeds["checks"] if check["name"] == "prompts were computed"]
        assert cached and cached[0]["passed"], cached
        assert any(figure["name"].startswith("pp512 ") for figure in speeds["figures"]), speeds["omitted"]


def test_a_row_that_did_not_run_makes_it_invalid(server):
    code, report = validate(address(server), "--level", "2", "--expect", "experts=reference")
    assert code == 1 and not report["valid"]
    assert [level["passed"] for level in report["levels"]] == [True, False, False]
    assert report["levels"][2]["not_run"] == "level 1.5 failed"
    assert report["invalid_because"]


def test_an_endpoint_that_tells_no_kernels_is_invalid():
    with FakeEndpoint() as endpoint:
        code, report = validate(endpoint.url, "--level", "4")
        assert code == 1 and not report["valid"]
        ran = [level["level"] for level in report["levels"] if not level["not_run"]]
        assert ran in ([1], [1, 1.5])


def test_nobody_listens():
    code, report = validate("http://127.0.0.1:9", "--level", "1")
    assert code == 1 and not report["valid"]
    assert "127.0.0.1:9" in report["levels"][0]["checks"][-1]["value"]
