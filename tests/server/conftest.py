import pytest

from server import Server


@pytest.fixture(scope="session")
def server():
    with Server() as running:
        yield running
