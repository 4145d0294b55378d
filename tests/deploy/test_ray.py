"""The Ray Serve application: a replica's process answers, streams, and is replaced when it dies.

MOXIE_RAY is the folder of the programs (ray, serve, python) that deploy/ray/requirements.txt brings.
"""

import os
import pathlib
import signal
import time

import pytest

from processes import ASK, MODEL, ROOT, Process, wait_for
from server import free_port

CHAT = "/v1/chat/completions"
CONFIG = """
proxy_location: HeadOnly
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
- name: moxie
  import_path: deploy.ray.app:app
  route_prefix: /
  args: {{model: embedded, cpus: 1, drain_s: 20, health_period_s: 1, flags: --ping-interval 1}}
"""


def children(pid):
    """The processes below one."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(int(child))]
    return found


def engines(cluster):
    """The process ids of `moxie serve` below the cluster."""
    binary = os.path.realpath(os.environ["MOXIE_BINARY"])
    found = []
    for pid in children(cluster.process.pid):
        try:
            if os.path.realpath(f"/proc/{pid}/exe") == binary:
                found.append(pid)
        except OSError:
            pass
    return found


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    programs = pathlib.Path(os.environ["MOXIE_RAY"])
    config = tmp_path_factory.mktemp("ray") / "serve.yaml"
    port, gcs = free_port(), free_port()
    config.write_text(CONFIG.format(port=port))
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
           "RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": "1",
           "RAY_ADDRESS": f"127.0.0.1:{gcs}", "MOXIE_BINARY": os.environ["MOXIE_BINARY"]}
    # A cluster of its own, so that it is ours to end. Two CPUs, whatever the machine has.
    with Process(programs / "ray", "start", "--head", "--block", "--port", gcs, "--num-cpus", 2,
                 "--include-dashboard", "false", "--disable-usage-stats",
                 "--object-store-memory", 100_000_000, env=env) as cluster:
        wait_for(lambda: "Ray runtime started" in cluster.output(), "the cluster", process=cluster)
        with Process(programs / "serve", "run", "--blocking", "--address", f"127.0.0.1:{gcs}",
                     config, port=port, env=env, cwd=ROOT) as running:
            running.cluster = cluster
            wait_for(lambda: running.get("/readyz").status == 200, "the application", process=running)
            yield running


def content(application):
    response = application.post(CHAT, {"messages": ASK})
    assert response.status == 200, response.text + application.output()
    return response.json()["choices"][0]["message"]["content"]


def test_chat(application):
    assert "42" in content(application)


def test_errors_pass_through(application):
    response = application.post(CHAT, {"messages": ASK, "temperature": "hot"})
    assert response.status == 400
    assert response.json()["error"]["param"] == "temperature"
    assert application.get("/v1/models").json()["data"][0]["id"] == MODEL


def test_a_stream_comes_in_pieces(application):
    with application.connect() as client:
        client.send_request("POST", CHAT, {"messages": ASK, "stream": True, "ignore_eos": True,
                                           "max_tokens": 3000})
        status, headers = client.read_head()
        assert status == 200 and headers["content-type"].startswith("text/event-stream")
        text = b""
        while text.count(b"data: ") < 5:
            text += client.raw.recv(65536)
        assert b"[DONE]" not in text  # the first pieces are here before the last is made
    # The client is gone: so is its request.
    running = "vllm:num_requests_running{"
    wait_for(lambda: [line for line in application.get("/metrics").text.splitlines()
                      if line.startswith(running) and line.endswith(" 0")], "the request has ended")
    text = application.post(CHAT, {"messages": ASK, "stream": True}).text
    assert text.endswith("data: [DONE]\n\n") and "42" in content(application)


def test_an_engine_that_is_killed_is_replaced(application):
    before = content(application)
    (killed,) = wait_for(lambda: engines(application.cluster), "the engine is found")
    os.kill(killed, signal.SIGKILL)
    (started,) = wait_for(
        lambda: [pid for pid in engines(application.cluster) if pid != killed], "a new engine",
        process=application)
    assert started != killed
    wait_for(lambda: application.get("/readyz").status == 200, "the new replica answers",
             process=application)
    assert content(application) == before


def test_no_engine_outlives_its_replica(application):
    """A replica that is killed outright takes its engine along."""
    (engine,) = wait_for(lambda: engines(application.cluster), "the engine is found")
    status = pathlib.Path(f"/proc/{engine}/status").read_text()
    replica = int(status.split("PPid:")[1].split()[0])
    os.kill(replica, signal.SIGKILL)
    end = time.monotonic() + 60
    while pathlib.Path(f"/proc/{engine}").exists():
        assert time.monotonic() < end, "the engine still runs"
        time.sleep(0.2)
    wait_for(lambda: application.get("/readyz").status == 200, "another replica answers",
             process=application)
