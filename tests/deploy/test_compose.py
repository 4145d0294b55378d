"""deploy/compose: read by Docker Compose itself, and its commands run as processes.

No container is started: images of Prometheus and Grafana cannot be fetched everywhere.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

from processes import MODEL, ROOT, Process, wait_for
from server import free_port

COMPOSE = ROOT / "deploy/compose"
PROGRAMS = pathlib.Path(sys.executable).parent


def merged(*files):
    """What Docker Compose makes of the files."""
    words = [word for file in files for word in ("-f", str(COMPOSE / file))]
    command = [PROGRAMS / "docker-compose", *words, "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "GRAFANA_PASSWORD": "secret"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_files_follow_the_published_schema():
    files = [str(COMPOSE / name) for name in ("compose.yml", "gpu.yml")]
    done = subprocess.run([PROGRAMS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_password_is_asked_for():
    done = subprocess.run([PROGRAMS / "docker-compose", "-f", COMPOSE / "compose.yml", "config"],
                          capture_output=True, text=True, check=False,
                          env={name: os.environ[name] for name in os.environ if name != "GRAFANA_PASSWORD"})
    assert done.returncode != 0 and "GRAFANA_PASSWORD" in done.stderr


def test_what_is_mounted_and_built_is_there():
    for service in merged("compose.yml")["services"].values():
        for volume in service.get("volumes", []):
            assert volume["type"] != "bind" or pathlib.Path(volume["source"]).exists()
        if build := service.get("build"):
            file = pathlib.Path(build["context"]) / build["dockerfile"]
            assert build.get("target", "FROM") in file.read_text()


def test_only_loopback_ports_are_published():
    for service in merged("compose.yml")["services"].values():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1"


def test_workers_outlive_their_drain():
    for files in (["compose.yml"], ["compose.yml", "gpu.yml"]):
        for name in ("worker-1", "worker-2"):
            worker = merged(*files)["services"][name]
            args = dict(word.split("=", 1) for word in worker["command"] if "=" in word)
            drain = int(args["--drain-delay"]) + int(args["--drain-timeout"])
            assert int(worker["stop_grace_period"].rstrip("s")) > drain
            assert worker["read_only"] and worker["cap_drop"] == ["ALL"]
            assert list(worker["networks"]) == ["inside"]


def test_gpus():
    services = merged("compose.yml", "gpu.yml")["services"]
    devices = [services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
               for name in ("worker-1", "worker-2")]
    assert devices == [["0"], ["1"]]
    assert "--device=cuda" in services["worker-1"]["command"]
    assert "--threads=1" not in services["worker-1"]["command"]


@pytest.fixture(scope="module")
def stack():
    """Workers and router with the commands of compose.yml, on free ports."""
    services = merged("compose.yml")["services"]
    ports = {name: free_port() for name in ("worker-1", "worker-2", "router", "metrics")}

    def words(name):
        for word in services[name]["command"]:
            for worker in ("worker-1", "worker-2"):
                word = word.replace(f"http://{worker}:8000", f"http://127.0.0.1:{ports[worker]}")
            yield (word.replace("0.0.0.0", "127.0.0.1").replace("--port=8000", f"--port={ports[name]}")
                   .replace("--port=8080", f"--port={ports['router']}")
                   .replace("--prometheus-port=29000", f"--prometheus-port={ports['metrics']}"))
    with Process(os.environ["MOXIE_BINARY"], *words("worker-1"), port=ports["worker-1"]) as first, \
            Process(os.environ["MOXIE_BINARY"], *words("worker-2"), port=ports["worker-2"]) as second:
        for worker in (first, second):
            wait_for(lambda w=worker: w.get("/readyz").status == 200, "a worker", process=worker)
        with Process(PROGRAMS / "vllm-router", *words("router"), port=ports["router"]) as router:
            wait_for(lambda: router.get("/readiness").status == 200, "the router", process=router)
            router.workers, router.metrics_port = (first, second), ports["metrics"]
            yield router


def test_the_router_answers_from_both_workers(stack):
    for number in range(8):
        answer = stack.post("/v1/chat/completions", {"model": MODEL, "messages": [
            {"role": "user", "content": f"What is {number} + 25?"}]})
        assert answer.status == 200 and str(number + 25) in answer.text
    assert stack.get("/liveness").status == 200  # what the chart's probe asks
    served = [line for worker in stack.workers for line in worker.get("/metrics").text.splitlines()
              if line.startswith("http_requests_total") and 'handler="/v1/chat/completions"' in line]
    assert sum(int(line.rsplit(" ", 1)[1]) for line in served) == 8
    stack.port, port = stack.metrics_port, stack.port
    try:
        assert "vllm_router" in stack.get("/metrics").text
    finally:
        stack.port = port


def test_the_health_check(stack):
    (worker, _), script = stack.workers, ROOT / "deploy/healthcheck.sh"

    def code(*words, port):
        return subprocess.run([script, *words], env={**os.environ, "MOXIE_PORT": str(port)}, check=False,
                              capture_output=True, timeout=30).returncode
    assert code(port=worker.port) == 0
    assert code("/readyz", port=worker.port) == 0
    assert code("/no-such-route", port=worker.port) == 1
    assert code(port=free_port()) == 1


def test_prometheus_asks_the_services_of_compose():
    services = merged("compose.yml")["services"]
    for file in ("moxie.yml", "router.yml"):
        for group in yaml.safe_load((ROOT / "deploy/prometheus/targets" / file).read_text()):
            for target in group["targets"]:
                name, port = target.split(":")
                assert any(word.endswith(f"port={port}") for word in services[name]["command"])
    (provider,) = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/dashboards/moxie.yml").read_text())["providers"]
    mounted = [volume["target"] for volume in services["grafana"]["volumes"]]
    assert provider["options"]["path"] + "/moxie.json" in mounted
    (source,) = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
