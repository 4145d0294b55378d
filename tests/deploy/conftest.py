"""Shared by the tests of deploy/. MOXIE_BINARY names the program, as in tests/server."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "server"))

from server import Server  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true",
                     help="build the program inside the image too, from nothing: takes long")


@pytest.fixture(scope="session")
def server():
    with Server("--threads", "1") as running:
        yield running
