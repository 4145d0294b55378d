import pytest

from server import Server

ROUTERS = "routers"


def pytest_configure(config):
    config.addinivalue_line("markers", f"{ROUTERS}: needs routers of PyPI, and -m {ROUTERS} to run")


def pytest_collection_modifyitems(config, items):
    if ROUTERS in config.getoption("-m"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(ROUTERS)])
    items[:] = [item for item in items if not item.get_closest_marker(ROUTERS)]


@pytest.fixture(scope="session")
def server():
    with Server() as running:
        yield running
