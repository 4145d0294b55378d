"""deploy/Containerfile and the router's, built by buildah on a Debian 12 that mmdebstrap makes, and run.

A built program (MOXIE_BINARY) goes into the image's `prebuilt` target. With --full the `cpu` target is
built too: the program from nothing, inside the image, which takes long. The `cuda` target needs an image
of NVIDIA and is not built here.

The image is run by mount namespaces and chroot, since containers cannot be started everywhere: with the
user, the environment and the command of the image's configuration, a read-only root, a writable /cache
and /tmp, no capabilities and no way to new privileges. Needs root and tools/setup.sh deploy.
"""

import json
import os
import pathlib
import shutil
import subprocess
import threading

import pytest

from processes import ASK, MODEL, ROOT, Process, wait_for
from server import free_port

CACHE = ROOT / "build/deploy"  # of the base system: 170 MB, made once
CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
CHAT = "/v1/chat/completions"
IN_THE_ROOT = """set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount --bind "$CACHE" "$ROOT/cache"
cd /
exec setpriv --no-new-privs --inh-caps=-all chroot --userspec="$USER_OF_IMAGE" --groups= "$ROOT" \
  /usr/bin/env -i "$@"
"""


class Buildah:
    def __init__(self, folder):
        self.words = ["buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run"),
                      "--storage-driver", "vfs"]

    def __call__(self, *words):
        done = subprocess.run([*self.words, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout.strip()

    def build(self, file, context, *words):
        tag = f"moxie-test:{context.name}"
        self("build", "--isolation", "chroot", "--pull=never", "--format", "docker", "--tag", tag,
             "--volume", f"{CERTIFICATES.parent}:/certs:ro",  # this machine may have some of its own
             "--build-arg", f"PIP_CERT=/certs/{CERTIFICATES.name}", "--file", file, *words, context)
        return tag


class Image:
    """An image's files and configuration, and its commands run in them."""

    def __init__(self, buildah, tag, cache):
        self.buildah, self.cache = buildah, cache
        self.container = buildah("from", "--pull=never", tag)
        self.root = buildah("mount", self.container)
        self.config = json.loads(buildah("inspect", "--type", "image", tag))["Docker"]["config"]

    def start(self, *words, port=None, env=(), entrypoint=None):
        """The image's entry point with these words (none: with the image's own)."""
        command = [*(self.config["Entrypoint"] if entrypoint is None else entrypoint),
                   *(words or (self.config.get("Cmd") or () if entrypoint is None else ()))]
        return Process("unshare", "--mount", "sh", "-c", IN_THE_ROOT, "sh",
                       *(self.config.get("Env") or ()), *env,
                       *command, port=port,
                       env={"ROOT": self.root, "CACHE": str(self.cache),
                            "USER_OF_IMAGE": self.config["User"]})

    def code(self, *words, **more):
        with self.start(*words, **more) as process:
            return process.process.wait(120), process.output()

    def serve(self, *words):
        port = free_port()
        env = ["MOXIE_HOST=127.0.0.1", f"MOXIE_PORT={port}", "MOXIE_THREADS=1"]
        server = self.start(*words, port=port, env=env)
        wait_for(lambda: server.get("/readyz").status == 200, "the image's server", process=server)
        return server


@pytest.fixture(scope="module")
def base():
    assert os.geteuid() == 0, "needs root, for mounts and other users"
    archive = CACHE / "debian12.tar"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}.tar")
        done = subprocess.run(["mmdebstrap", "--variant=minbase", "bookworm", part], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        part.rename(archive)
    return archive


@pytest.fixture(scope="module")
def buildah(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    run = Buildah(folder)
    container = run("from", "scratch")
    run("add", "--quiet", container, base, "/")
    run("commit", "--quiet", "--rm", container, "debian:12")
    yield run
    run("rm", "--all")
    run("rmi", "--all", "--force")
    shutil.rmtree(folder, ignore_errors=True)


def copied(to, files):
    for file in files:
        (to / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, to / file)


def pytest_generate_tests(metafunc):
    if "image" in metafunc.fixturenames:
        targets = ["prebuilt", *(["cpu"] if metafunc.config.getoption("--full") else [])]
        metafunc.parametrize("image", targets, indirect=True, scope="module")


@pytest.fixture(scope="module")
def image(request, buildah, tmp_path_factory):
    context = tmp_path_factory.mktemp(request.param)
    if request.param == "cpu":
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                                cwd=ROOT, capture_output=True, text=True, check=True).stdout
        copied(context, [file for file in listed.split("\0") if file and (ROOT / file).is_file()])
    else:
        copied(context, ["deploy/Containerfile", "deploy/healthcheck.sh", ".dockerignore"])
        (context / "dist").mkdir()
        shutil.copy(os.environ["MOXIE_BINARY"], context / "dist/moxie")
    tag = buildah.build(context / "deploy/Containerfile", context, "--target", request.param)
    cache = tmp_path_factory.mktemp("cache")
    os.chown(cache, 10001, 10001)
    return Image(buildah, tag, cache)


def test_configuration(image):
    config = image.config
    assert config["User"] == "10001:10001" and config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"] == ["/usr/local/bin/moxie"] and config["Cmd"] == ["serve"]
    assert list(config["ExposedPorts"]) == ["8000/tcp"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/moxie-healthcheck"]


def test_the_image_holds_no_tools_to_build_with(image):
    for program in ("gcc", "make", "python3", "git"):
        assert not os.path.exists(f"{image.root}/usr/bin/{program}")


def test_the_root_is_read_only_and_the_user_has_no_rights(image):
    assert image.code("/bin/sh", "-c", "id -u; id -g; grep CapEff /proc/self/status", entrypoint=[]) == (
        0, "10001\n10001\nCapEff:\t0000000000000000\n")
    code, said = image.code("/bin/sh", "-c", "touch /usr/local/x", entrypoint=[])
    assert code != 0 and "Read-only" in said
    code, said = image.code("/bin/sh", "-c", "touch /cache/x /tmp/x", entrypoint=[])
    assert code == 0, said


def health(image, server):
    code, _ = image.code(entrypoint=image.config["Healthcheck"]["Test"][1:],
                         env=[f"MOXIE_PORT={server.port}"])
    return code


def test_it_serves(image):
    with image.serve() as server:
        answer = server.post(CHAT, {"messages": ASK})
        assert answer.status == 200 and "42" in answer.text
        assert health(image, server) == 0
        assert server.stop() == 0
        assert health(image, server) != 0


def test_sigterm_drains(image):
    with image.serve("serve", "--drain-timeout", "60") as server, server.connect() as client:
        client.send_request("POST", CHAT, {"messages": ASK, "stream": True, "ignore_eos": True,
                                           "max_tokens": 1500})
        status, _ = client.read_head()
        assert status == 200
        codes = []
        stopping = threading.Thread(target=lambda: codes.append(server.stop(within=120)))
        stopping.start()
        text = b""
        while piece := client.raw.recv(65536):
            text += piece
        stopping.join()
        assert b"data: [DONE]" in text and codes == [0], server.output()


def test_pull_has_its_library_and_certificates(image):
    code, said = image.code("pull", "a/b", "--tries", "1",
                            env=[f"HF_ENDPOINT=http://127.0.0.1:{free_port()}"])
    assert code == 1 and "onnect" in said and "libcurl" not in said
    assert os.path.exists(f"{image.root}/etc/ssl/certs/ca-certificates.crt")


def test_the_routers_image(buildah, server, tmp_path):
    """As compose runs it: with a read-only root, in front of a server."""
    context = ROOT / "deploy/compose"
    image = Image(buildah, buildah.build(context / "router.Containerfile", context), tmp_path)
    assert image.config["User"] == "10001:10001"
    os.makedirs(f"{image.root}/cache", exist_ok=True)
    port = free_port()
    with image.start("--host=127.0.0.1", f"--port={port}", "--policy=cache_aware", "--worker-urls",
                     f"http://127.0.0.1:{server.port}", f"--prometheus-port={free_port()}",
                     port=port) as router:
        wait_for(lambda: router.get("/readiness").status == 200, "the router", process=router)
        assert "42" in router.post(CHAT, {"model": MODEL, "messages": ASK}).text
