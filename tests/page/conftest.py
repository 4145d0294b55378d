"""A server with the embedded model, and Debian's chromium with a page that must not complain.

    --screenshots DIR   writes the screenshots of docs/images there
"""

import pathlib
import sys

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "server"))
from server import Server  # noqa: E402  (it lies beside the server's own tests)

CHROMIUM = "/usr/bin/chromium"
# What the browser itself says of an answer that is an error, or of a server that is gone.
BROWSERS_OWN = "Failed to load resource"


def pytest_addoption(parser):
    parser.addoption("--screenshots", help="folder for the documents' screenshots")


@pytest.fixture(scope="session")
def server():
    with Server("--threads", "1") as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Pages:
    """Opens pages and keeps what they complain of."""

    def __init__(self, browser):
        self.browser, self.contexts, self.complaints = browser, [], []

    def open(self, server, width=1280, height=800, scheme="light", script=None):
        context = self.browser.new_context(viewport={"width": width, "height": height},
                                           color_scheme=scheme, accept_downloads=True)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60000)
        page.on("console", self._on_console)
        page.on("pageerror", lambda fault: self.complaints.append(str(fault)))
        page.add_init_script("addEventListener('securitypolicyviolation', "
                             "(e) => console.error('policy: ' + e.violatedDirective))")
        if script:
            page.add_init_script(script)
        page.goto(f"http://127.0.0.1:{server.port}/")
        return page

    def _on_console(self, message):
        if message.type in ("error", "warning") and not message.text.startswith(BROWSERS_OWN):
            self.complaints.append(message.text)


@pytest.fixture
def pages(browser):
    opened = Pages(browser)
    yield opened
    for context in opened.contexts:
        context.close()
    assert opened.complaints == []
