"""The page in a browser: a conversation, calls, stopping, editing, storage, keys, a server that is lost,
layout, injection, the keyboard and accessibility. Every test also fails on an error that the page
writes to the console and on a violation of its policy (conftest.py)."""

import json
import os
import re
import signal

import pytest
from axe_playwright_python.sync_playwright import Axe

from server import Server, free_port

QUESTION = "What is 17 + 25?"
ENDLESS = "Count from 1 to 300."  # the embedded model goes on to the end of its context
TOOL = [{"type": "function", "function": {
    "name": "get_weather", "description": "the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
PAINT_MS = 2000  # a loose bound: the machine may be busy


def ask(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finished(page, count=1):
    """The text of the last of `count` answers, which are complete."""
    page.wait_for_function("(n) => document.querySelectorAll('.turn.answer[aria-busy=false]').length >= n && "
                           "document.querySelectorAll('.turn.answer[aria-busy=true]').length === 0", arg=count)
    return page.locator(".turn.answer .markdown").last.inner_text()


def streaming(page):
    page.wait_for_function(
        "() => document.querySelector('.turn.answer[aria-busy=true] .markdown')?.textContent.length > 20")


def scripted(page, *pieces):
    """Answers the next questions with these texts instead of the server's."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]}
    events = [{**chunk, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
              for piece in pieces]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        status=200, content_type="text/event-stream", body=body))


def server_at(port, *flags):
    return Server("--port", str(port), "--threads", "1", *flags).wait_ready()


def test_conversation_and_what_it_cost(server, pages):
    page = pages.open(server)
    ask(page, QUESTION)
    assert "42" in finished(page)
    page.wait_for_function("() => document.querySelector('#step-table').textContent.includes('experts')")
    assert re.search(r"prompt tokens\s*\d", page.inner_text("#answer-table"))
    assert re.search(r"Prefix cache: \d+ of \d+ prompt tokens", page.inner_text("#cache-note"))
    assert "weights" in page.text_content("#memory-table")
    page.click("#kernels summary")
    page.wait_for_function("() => /experts_\\w+\\s*[\\d,]+/.test(document.querySelector('#kernel-table').textContent)")
    assert page.inner_text("#state") == "ready" and page.inner_text("#model") == "moxie-embedded"
    ask(page, "What is 3 + 4?")
    assert "7" in finished(page, 2)


def test_reasoning_is_folded_unless_it_is_wanted_open(server, pages):
    page = pages.open(server)
    page.select_option("#effort", "high")
    ask(page, QUESTION)
    finished(page)
    assert page.locator(".reasoning").is_visible() and not page.locator(".reasoning-text").is_visible()
    page.click(".reasoning summary")
    assert page.locator(".reasoning-text").inner_text().strip()
    page.click("#open-settings")
    page.check("#open-reasoning")
    page.click("#save-settings")
    ask(page, QUESTION)
    finished(page, 2)
    assert page.locator(".reasoning-text").last.is_visible()


def test_call_of_a_tool_and_its_result(server, pages):
    page = pages.open(server)
    page.click("#open-settings")
    page.fill("#tools", "[{")
    assert page.is_disabled("#save-settings") and page.is_visible("#tools-fault")
    page.fill("#tools", json.dumps(TOOL))
    page.click("#save-settings")
    ask(page, "What is the weather in Paris?")
    page.wait_for_selector(".call textarea")
    assert "get_weather" in page.inner_text(".call") and '"Paris"' in page.inner_text(".call")
    ask(page, "And now?")
    assert "results of the calls" in page.inner_text("#notice") and page.input_value("#prompt") == "And now?"
    page.fill(".call textarea", '{"temperature": 21}')
    page.press(".call textarea", "Enter")
    finished(page, 2)
    assert "21" in page.inner_text(".turn.tool")


def test_stop_keeps_what_came(server, pages):
    page = pages.open(server)
    ask(page, ENDLESS)
    streaming(page)
    page.keyboard.press("Escape")
    text = finished(page)
    assert len(text) > 20 and "Stopped." in page.inner_text(".turn.answer .actions")
    ask(page, ENDLESS)
    streaming(page)
    page.click("#stop")
    finished(page, 2)
    assert server.idle(60)
    page.reload()
    assert page.locator(".turn.answer .markdown").first.inner_text() == text


def test_edit_and_retry(server, pages):
    page = pages.open(server)
    ask(page, QUESTION)
    finished(page)
    ask(page, "What is 1 + 1?")
    finished(page, 2)
    page.locator(".turn.user button").first.click()
    page.fill(".turn.user textarea", "What is 20 + 30?")
    page.press(".turn.user textarea", "Enter")
    page.wait_for_function("() => document.querySelectorAll('.turn.user').length === 1")
    assert "50" in finished(page)
    page.click("text=Retry")
    assert "50" in finished(page)
    assert page.locator(".turn").count() == 2


def test_conversations_survive_and_can_be_renamed_deleted_and_exported(server, pages, tmp_path):
    page = pages.open(server)
    ask(page, QUESTION)
    finished(page)
    page.click("#new-chat")
    ask(page, "What is 3 + 4?")
    finished(page)
    page.click("#rename")
    page.fill("#name", "Seven")
    page.press("#name", "Enter")
    page.wait_for_function("() => document.querySelector('#chat-title').textContent === 'Seven'")
    page.reload()
    assert page.locator("#chat-list li").count() == 2 and page.inner_text("#chat-title") == "Seven"
    for name, ending in (("json", ".json"), ("markdown", ".md")):
        with page.expect_download() as download:
            page.click("#export-" + name)
        assert download.value.suggested_filename == "Seven" + ending
        download.value.save_as(tmp_path / name)
    exported = json.loads((tmp_path / "json").read_text())
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant"]
    assert exported["messages"][1]["content"] in (tmp_path / "markdown").read_text()
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("[aria-label='Delete Seven']")
    assert page.inner_text("#chat-title") == QUESTION
    page.reload()
    assert page.locator("#chat-list li").count() == 1


@pytest.mark.parametrize("how", ["full", "forbidden"])
def test_chats_work_without_storage(server, pages, how):
    fault = {"full": "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }",
             "forbidden": "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException(''); }})"}
    page = pages.open(server, script=fault[how])
    ask(page, QUESTION)
    assert "42" in finished(page)
    assert page.is_visible("#storage-note") and page.locator("#chat-list li").count() == 1


def test_key_is_asked_for_and_kept_for_the_tab(pages):
    with Server("--threads", "1", "--api-key", "secret") as server:
        page = pages.open(server)
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("#key-fault:not([hidden])")
        page.fill("#key", "secret")
        page.press("#key", "Enter")
        page.wait_for_function("() => document.querySelector('#state').textContent === 'ready'")
        ask(page, QUESTION)
        assert "42" in finished(page)
        page.reload()
        ask(page, QUESTION)
        finished(page, 2)
        assert page.evaluate("Object.values(localStorage).join().includes('secret')") is False
        assert not page.is_visible("#key-dialog")


def test_lost_server_is_waited_for(pages):
    port = free_port()
    server = server_at(port)
    try:
        page = pages.open(server)
        ask(page, ENDLESS)
        streaming(page)
        server.process.kill()
        server.process.wait()
        page.wait_for_selector("#notice:not([hidden])")
        assert "cannot be reached" in page.inner_text("#notice")
        page.fill("#prompt", "What is 3 + 4?")
        server = server_at(port)
        page.wait_for_selector("#notice", state="hidden")
        streaming(page)  # it goes on by itself
        assert page.input_value("#prompt") == "What is 3 + 4?"
        page.click("#stop")
        finished(page)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        page.press("#prompt", "Enter")
        page.wait_for_selector("#notice:not([hidden])")
        server = server_at(port)
        assert "7" in finished(page, 2)
    finally:
        server.process.kill()
        server.process.wait()


def test_text_is_never_markup(server, pages):
    page = pages.open(server)
    scripted(page, "Before " + HOSTILE, "\n\n```html\n" + HOSTILE + "\n```\n\n| a | b |\n|---|---|\n| " +
             HOSTILE.replace("|", "") + " | [x](javascript:alert(1)) |\n\n- item " + HOSTILE)
    ask(page, HOSTILE)
    text = finished(page)
    assert text.count("onerror") == 4 and HOSTILE in page.inner_text(".question")
    assert page.locator("#turns img, #turns script, #turns a").count() == 0
    page.reload()
    finished(page)
    assert page.locator("#turns img, #turns script").count() == 0 and "taken" not in page.title().split(" - ")[-1]
    assert page.evaluate("document.title").startswith("<img")


def test_markdown(server, pages):
    page = pages.open(server)
    scripted(page, "# Head\n\nOne **bold** and `code`, *soft*.\nnext line\n\n1. one\n   - inner\n2. two\n\n> said\n\n",
             "```py\nprint('<b>')\n``", "`\n\n| a | b |\n|---|--:|\n| 1 | **2** |\n\n[site](https:example)\n")
    ask(page, QUESTION)
    finished(page)
    turn = page.locator(".turn.answer .markdown")
    for selector, text in (("h3", "Head"), ("p strong", "bold"), ("p code", "code"), ("em", "soft"),
                           ("ol > li > ul > li", "inner"), ("blockquote p", "said"), ("pre code", "print('<b>')"),
                           ("td strong", "2"), ("th >> nth=0", "a")):
        assert turn.locator(selector).inner_text() == text, selector
    assert turn.locator("ol > li").count() == 2
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    turn.locator(".code-head button").click()
    page.wait_for_function("() => document.querySelector('.code-head button').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "print('<b>')"


def test_keyboard_alone(server, pages):
    page = pages.open(server)
    page.wait_for_function("() => document.activeElement.id === 'prompt'")
    page.keyboard.type("What is 17 + 25?")
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#prompt").endswith("\n")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    assert "42" in finished(page)
    page.evaluate("document.activeElement.blur(); window.getSelection().removeAllRanges()")
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        in_box = page.evaluate("document.activeElement.closest('.compose-box, body') !== null")
        assert outline != "none" or in_box
    assert {"open-settings", "theme", "new-chat", "rename", "Edit", "Retry", "prompt", "effort"} <= set(seen)
    page.focus("#open-settings")
    page.keyboard.press("Enter")
    page.wait_for_selector("#settings[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#settings[open]", state="detached")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_layout_and_accessibility(server, pages, width, scheme):
    page = pages.open(server, width=width, height=760, scheme=scheme)
    ask(page, QUESTION)
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("#prompt", "#send", "#chat-title", ".question"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["height"] > 0, selector
    if width == 360:
        assert page.is_hidden("#cost") and page.is_hidden("#chats")
        page.click("#toggle-chats")
        assert page.is_visible("#chats")
        page.keyboard.press("Escape")
        page.click("#toggle-cost")
        assert page.is_visible("#rate")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def test_theme_can_be_chosen_and_is_kept(server, pages):
    page = pages.open(server, scheme="dark")
    colour = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    dark = colour()
    page.click("#theme")
    light = colour()
    assert light != dark and page.get_attribute("#theme", "aria-label") == "Theme: light"
    page.reload()
    assert colour() == light
    page.click("#theme")
    assert colour() == dark


def test_first_paint(server, pages):
    page = pages.open(server)
    page.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    size = page.evaluate("performance.getEntriesByType('navigation')[0].transferSize")
    others = page.evaluate("performance.getEntriesByType('resource').filter((e) => e.initiatorType !== 'fetch').length")
    print(f"first contentful paint after {paint:.0f} ms, {size} bytes sent")
    assert paint < PAINT_MS and others == 0


def test_screenshots(server, pages, request):
    folder = request.config.getoption("--screenshots")
    if not folder:
        pytest.skip("only with --screenshots DIR")
    for name, width, height, scheme in (("light", 1280, 800, "light"), ("dark", 1280, 800, "dark"),
                                        ("narrow", 360, 720, "light")):
        page = pages.open(server, width, height, scheme)
        ask(page, "Spell the word cathedral backwards.")
        finished(page)
        page.select_option("#effort", "high")
        ask(page, QUESTION)
        finished(page, 2)
        page.wait_for_function("() => document.querySelector('#step-table').textContent.includes('experts')")
        page.screenshot(path=os.path.join(folder, f"page-{name}.png"))
