"""Prometheus itself reads a live server with the configuration of deploy/prometheus, and answers every
expression of the dashboard and of the alerts. promtool checks the files and tests the alerts.

Needs Debian's package prometheus (tools/setup.sh deploy).
"""

import json
import shutil
import subprocess
import urllib.parse

import pytest
import yaml

import expressions
from processes import ASK, ROOT, Process, wait_for
from server import free_port

PROMETHEUS = ROOT / "deploy/prometheus"


def promtool(*words):
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_configuration_and_the_rules():
    promtool("check", "config", str(PROMETHEUS / "prometheus.yml"))
    promtool("check", "rules", str(PROMETHEUS / "alerts.yml"))


def test_the_alerts_do_what_they_say():
    promtool("test", "rules", str(PROMETHEUS / "alerts_test.yml"))
    tested = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    for name, _ in expressions.of_alerts():  # each fires once, and is silent once
        cases = [case["exp_alerts"] for test in tested for case in test["alert_rule_test"]
                 if case["alertname"] == name]
        assert any(cases) and not all(cases), name


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(PROMETHEUS, folder, dirs_exist_ok=True)
    (folder / "targets/moxie.yml").write_text(yaml.safe_dump([{"targets": [f"127.0.0.1:{server.port}"]}]))
    config = yaml.safe_load((folder / "prometheus.yml").read_text())
    config["global"]["scrape_interval"] = "1s"  # for the test's sake; all else is as provided
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with Process("prometheus", f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
                 port=port, cwd=folder) as running:
        wait_for(lambda: running.get("/-/ready").status == 200, "Prometheus", process=running)
        wait_for(lambda: ask(running, 'up{job="moxie"} == 1'), "the server is scraped", process=running)
        for _ in range(3):  # traffic between two scrapes, so that there are rates
            server.chat()
            server.post("/v1/chat/completions", {"messages": ASK, "temperature": "hot"})
            for rate in ("vllm:generation_tokens_total", 'http_requests_total{status="400"}'):
                wait_for(lambda r=rate: ask(running, f"rate({r}[1m])"), f"a rate of {rate}")
        yield running


def ask(prometheus, expression):
    answer = prometheus.get("/api/v1/query?query=" + urllib.parse.quote(expression))
    assert answer.status == 200, expression + answer.text
    return answer.json()["data"]["result"]


@pytest.mark.parametrize("name, expression", expressions.of_dashboard(),
                         ids=[name for name, _ in expressions.of_dashboard()])
def test_the_dashboard_gets_an_answer(prometheus, name, expression):
    for variable, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    assert ask(prometheus, expression), name


@pytest.mark.parametrize("name, expression", expressions.of_alerts(),
                         ids=[name for name, _ in expressions.of_alerts()])
def test_alerts_are_evaluated_and_silent_for_a_server_that_is_well(prometheus, name, expression):
    firing = [alert for alert in ask(prometheus, expression)
              if not alert["metric"].get("job", "").endswith("router")]
    assert firing == []
    (rule,) = [rule for group in prometheus.get("/api/v1/rules").json()["data"]["groups"]
               for rule in group["rules"] if rule["name"] == name]
    assert rule["health"] in ("ok", "unknown") and "lastError" not in rule


def test_a_target_that_does_not_answer_is_down(prometheus):
    """The router of the provided targets is not there."""
    wait_for(lambda: ask(prometheus, 'up{job="moxie-router"} == 0'), "the missing router is down")
    down = dict(expressions.of_alerts())["MoxieDown"]
    assert [alert["metric"]["job"] for alert in ask(prometheus, down)] == ["moxie-router"]


def test_the_variables_of_the_dashboard(prometheus):
    for variable in expressions.dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            label = variable["name"]
            values = prometheus.get(f"/api/v1/label/{label}/values?match[]=vllm:num_requests_running")
            assert json.loads(values.text)["data"], label
