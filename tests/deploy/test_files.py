"""What can be said of deploy/ in seconds, without the programs that it is for: files parse, metrics,
switches, routes, images and ports are those of the program and of each other.

The other tests here run the programs: tools/check.sh deploy.
"""

import json
import os
import re
import subprocess

import pytest
import yaml

import expressions
from processes import ROOT

DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
TEMPLATES = DEPLOY / "helm/moxie/templates"
YAML = [path for path in FILES if path.suffix in (".yml", ".yaml") and TEMPLATES not in path.parents]
# Switches of other programs: every --word in deploy/ is the server's or one of these.
OTHERS = set("""
  format target volume build-arg from chmod gid uid no-create-home home-dir shell no-install-recommends no-cache-dir
  interval timeout start-period retries build rm no-deps now namespace
  config.file storage.tsdb.path
  policy worker-urls health-check-interval-secs prometheus-host prometheus-port selector
  service-discovery service-discovery-port service-discovery-namespace
  pool-name pool-namespace pool-group config-file grpc-health-port
  engine endpoint start-timeout http-port
""".split())


@pytest.fixture(scope="module")
def switches():
    """Of `moxie serve` and `moxie pull`, with serve's environment variables."""
    said = "".join(subprocess.run([os.environ["MOXIE_BINARY"], command, "--help"], capture_output=True,
                                  text=True, check=True).stdout for command in ("serve", "pull"))
    return set(re.findall(r"--([a-z][-a-z0-9]+)", said)), set(re.findall(r"MOXIE_[A-Z0-9_]+", said))


def text_of(name):
    (path,) = [path for path in FILES if str(path.relative_to(DEPLOY)) == name]
    return path.read_text()


def serve_arguments():
    """The words after `serve` in every file that starts a server with a list of them."""
    found = {}
    for path in FILES:
        if path.suffix not in (".yml", ".yaml"):
            continue
        for block in re.findall(r"^( *)- serve\n((?:\1(?:- |#|\{\{).*\n)+)", path.read_text(), re.M):
            found.setdefault(str(path.relative_to(DEPLOY)), []).extend(
                re.findall(r"- (--\S+)", block[1]))
    return found


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_yaml_parses(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    assert documents and all(document is not None for document in documents)


def test_every_metric_is_one_of_the_server(server):
    server.chat()
    server.chat(temperature="hot")  # an answer that is no 2xx
    samples = expressions.samples_of(server.get("/metrics").text) | expressions.MADE_BY_PROMETHEUS
    named = {}
    for where, expression in [*expressions.of_dashboard(), *expressions.of_alerts()]:
        metrics = expressions.metrics_in(expression)
        assert metrics, f"no metric found in {where}: {expression}"
        named |= dict.fromkeys(metrics, where)
    for path in FILES:  # the autoscaler's query and whatever else names one
        if path.name != "moxie.json":
            found = re.findall(r"\b(?:vllm|moxie):(?!cpu\b|cuda\b)[a-z_]+", path.read_text())
            named |= dict.fromkeys(found, path.name)
    assert len(named) > 20
    assert {name: where for name, where in named.items() if name not in samples} == {}


def test_metrics_are_found_in_expressions():
    found = expressions.metrics_in(
        'histogram_quantile(0.9, sum by (le, a) (rate(x:y_bucket{job=~"z", q="w"}[5m]))) / m > 1e3')
    assert found == {"x:y_bucket", "m"}


def test_every_switch_is_one_of_the_program(switches):
    flags, _ = switches
    arguments = serve_arguments()
    assert {"compose/compose.yml", "compose/gpu.yml", "kubernetes/base/deployment.yaml",
            "helm/moxie/templates/deployment.yaml", "kubernetes/gpu/gpu.yaml"} <= set(arguments)
    for name, words in arguments.items():
        for word in words:
            assert word[2:].split("=")[0] in flags, f"{name}: {word}"
    for path in FILES:
        used = set(re.findall(r"(?<![-\w])--([a-z][-a-z0-9]+(?:\.[a-z]+)*)", path.read_text()))
        assert used - flags - OTHERS == set(), path


def test_every_variable_is_one_of_the_program(switches):
    _, variables = switches
    ours = {"MOXIE_BINARY", "MOXIE_PORT_", "MOXIE_SERVICE_HOST"}  # of the Ray application; examples
    for path in FILES:
        used = set(re.findall(r"\bMOXIE_[A-Z0-9_]+", path.read_text()))
        assert used - variables - ours == set(), path


def test_the_unit_and_its_environment_start_a_server(switches):
    """The flags that the program takes are in --help; the values must do too."""
    env = dict(line.split("=", 1) for line in text_of("systemd/moxie.env").splitlines()
               if line and not line.startswith("#"))
    assert set(env) <= switches[1]
    done = subprocess.run([os.environ["MOXIE_BINARY"], "serve", "--max-queue", "-1"], capture_output=True,
                          text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 2 and "--max-queue" in done.stderr and "MOXIE_" not in done.stderr


def test_every_route_answers(server):
    """Routes in probes, health checks and scrapes are the server's."""
    routes = set()
    for path in FILES:
        routes |= set(re.findall(r"/(?:livez|readyz|health|metrics|ping|v1/models)\b(?!:)", path.read_text()))
    assert {"/livez", "/readyz", "/metrics"} <= routes
    for route in routes:
        assert server.get(route).status == 200, route


def test_images_and_ports_agree():
    (targets,) = [set(re.findall(r"^FROM \S+ AS (\S+)$", text_of("Containerfile"), re.M))]
    assert {"cpu", "cuda", "prebuilt"} <= targets
    for path in FILES:
        for tag in re.findall(r"(?<![\w/-])moxie:(?!kv_|steps|loop|failed|computed|host|device)([a-z]+)",
                              path.read_text()):
            assert tag in targets, path
        for tag in re.findall(r"moxie-router:(\S+?)(?=[\s`\"']|$)", path.read_text(), re.M):
            assert tag in text_of("compose/router-requirements.txt").strip().split("==")[1], path
    values = yaml.safe_load(text_of("helm/moxie/values.yaml"))
    assert values["image"] == {"repository": "moxie", "tag": "cpu", "pullPolicy": "IfNotPresent"}
    for words in serve_arguments().values():
        assert "--port=8000" in words and "--host=0.0.0.0" in words
    assert "EXPOSE 8000" in text_of("Containerfile") and "EXPOSE 8080 29000" in text_of(
        "compose/router.Containerfile")
    users = {re.search(r"USER (\d+):\1", text_of(name))[1]
             for name in ("Containerfile", "compose/router.Containerfile")}
    assert users == {"10001"} and "runAsUser: 10001" in text_of("kubernetes/base/deployment.yaml")


def test_versions_agree():
    chart = yaml.safe_load(text_of("helm/moxie/Chart.yaml"))
    said = subprocess.run([os.environ["MOXIE_BINARY"], "--version"], capture_output=True, text=True,
                          check=True).stdout
    assert said.split()[1] == chart["appVersion"]
    tests = (ROOT / "tests/deploy/requirements.txt").read_text()
    assert text_of("compose/router-requirements.txt").strip() in tests


def test_the_dashboard_is_whole():
    document = expressions.dashboard()
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = {}
    for panel in document["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
    variables = {"$" + variable["name"] for variable in document["templating"]["list"]}
    for panel in expressions.panels():
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            used = set(re.findall(r"\$[a-z]\w*", target["expr"]))
            assert {"$job", "$instance"} <= used <= variables, target["expr"]
    assert json.dumps(document, indent=1) + "\n" == text_of("grafana/moxie.json")


def test_no_two_python_files_differ_in_a_pinned_version():
    pins = {}
    for path in [*DEPLOY.rglob("*requirements.txt"), *(ROOT / "tests").rglob("requirements*.txt")]:
        for name, version in re.findall(r"^([\w.-]+?)(?:\[\w+\])?==(\S+)$", path.read_text(), re.M):
            assert pins.setdefault(name.lower(), version) == version, f"{name} in {path}"
