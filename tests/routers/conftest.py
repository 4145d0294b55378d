"""Two servers, and what one of them answers without a router."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "server"))

from calls import CALLS, call  # noqa: E402
from server import Server  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "routers: a router of PyPI in front of servers")


@pytest.fixture(scope="session")
def workers():
    with Server("--threads", "1") as first, Server("--threads", "1") as second:
        yield [first, second]


@pytest.fixture(scope="session")
def alone(workers):
    """What one server says to each call."""
    return {name: call(workers[0], name) for name in CALLS}
