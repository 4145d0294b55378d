"""A Hugging Face home for each test, and `moxie pull` run with it. MOXIE_BINARY names the program."""

import contextlib
import json
import os
import pathlib
import random
import re
import subprocess

from hub import File

TIMEOUT_S = 60


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


def small_files():
    return {
        "config.json": File(b'{"model_type": "gpt_oss"}'),
        "README.md": File(b"# not fetched"),
        "model-00001-of-00002.safetensors": File(noise(300_000, 1), is_large=True),
        "model-00002-of-00002.safetensors": File(noise(200_001, 2), is_large=True),
        "model.safetensors.index.json": File(b'{"weight_map": {}}'),
        "tokenizer.json": File(noise(5_000, 3), is_large=True),
        "tokenizer_config.json": File(b""),
        "original/model.safetensors": File(noise(400_000, 4), is_large=True),
        "metal/model.bin": File(noise(400_000, 5), is_large=True),
    }


FETCHED = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
           "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
SHARD = "model-00001-of-00002.safetensors"


class Home:
    """A Hugging Face home of its own, and the program run with it."""

    def __init__(self, folder, endpoint):
        self.folder, self.endpoint = pathlib.Path(folder), endpoint
        self.repo = self.folder / "hub" / "models--org--model"

    def environment(self, **more):
        ours = re.compile(r"(HF|MOXIE|HUGGING|TRANSFORMERS|XDG)_.*|.*_(PROXY|BUNDLE)|SSL_CERT_FILE", re.I)
        kept = {name: value for name, value in os.environ.items() if not ours.fullmatch(name)}
        return {**kept, "HF_HOME": str(self.folder), "HF_ENDPOINT": self.endpoint, **more}

    def start(self, *flags, repo="org/model", **env):
        return subprocess.Popen([os.environ["MOXIE_BINARY"], "pull", repo, *flags], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment(**env))

    def run(self, *flags, repo="org/model", **env):
        process = self.start(*flags, repo=repo, **env)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def pull(self, *flags, **more):
        """A pull that works: its JSON."""
        done = self.run("--json", *flags, **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def fails(self, *flags, code=1, **more):
        """A pull that fails: what it says."""
        done = self.run(*flags, **more)
        assert done.returncode == code, (done.stdout, done.stderr)
        if code == 1:
            assert done.stderr.splitlines()[-1].startswith("moxie: error: "), done.stderr
        return done.stderr

    def snapshot(self, hub):
        return self.repo / "snapshots" / hub.commit

    def incomplete(self):
        """Sizes by name. A file that a running pull renames meanwhile is left out."""
        sizes = {}
        for path in self.repo.glob("blobs/*.incomplete"):
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes

    def holds(self, hub, paths):
        """Whether exactly these files are there and whole, each a relative link to its blob."""
        found = sorted(str(path.relative_to(self.snapshot(hub)))
                       for path in self.snapshot(hub).rglob("*") if not path.is_dir())
        assert found == sorted(paths)
        for path in paths:
            link = self.snapshot(hub) / path
            target = os.readlink(link)
            assert target == "../" * (2 + path.count("/")) + "blobs/" + hub.files[path].etag
            assert link.read_bytes() == hub.files[path].content
        assert not self.incomplete()
        assert not list(self.repo.rglob("*.tmp"))


def statuses(report):
    return {file["path"]: file["status"] for file in report["files"]}
