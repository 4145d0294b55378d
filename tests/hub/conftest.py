import pytest

from home import Home, small_files
from hub import Hub


@pytest.fixture
def hub():
    with Hub(small_files()) as running:
        yield running


@pytest.fixture
def home(hub, tmp_path):
    return Home(tmp_path, hub.endpoint)
