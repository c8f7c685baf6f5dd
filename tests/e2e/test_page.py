"""The web page in headless Chromium: chat, stop, edit, API key, the live view under skewed load, phone width, embeddings."""
import json
import re
import time

import pytest

from browser import PROGRAM, Browser
from server import ROOT, Server

pytestmark = pytest.mark.skipif(not PROGRAM, reason="needs Debian's chromium-headless-shell (scripts/packages-test.txt)")

YARDLING = ROOT / "models/yardling"
FLAGS = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--enable-expert-distribution-metrics", "--log-level", "warning",
         "--max-total-tokens", 8192, "--device", "cpu", "--ep-num-redundant-experts", 2]
EPLB = ["--enable-eplb", "--eplb-algorithm", "deepseek", "--eplb-rebalance-num-iterations", 2000]
READY = "document.getElementById('state').dataset.state === 'ready'"
LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
DONE = f"{LAST}?.querySelector('.foot').innerText.includes('token')"
# Changes the bodies of the page's requests: the model then generates until the context is full.
ENDLESS = """{ const before = window.fetch; window.fetch = (path, options) => before(path, options?.body
  ? {...options, body: JSON.stringify({...JSON.parse(options.body), ignore_eos: true})} : options); }"""


@pytest.fixture(scope="module")
def server():
    with Server(YARDLING, *FLAGS, *EPLB) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def page(server):
    with Browser() as page:
        page.open(server.url + "/")
        page.wait(READY)
        yield page
        assert page.problems == []


def click_link(page, text):
    page.run(f"[...document.querySelectorAll('.message .link')].find(each => each.innerText === '{text}').click()")


def ask(page, text):
    page.type("#prompt", text)
    page.enter()


def test_chats(page):
    set_field(page, "temperature", "0")
    ask(page, "What is dispatch?")
    page.wait(DONE)
    assert page.run(f"{LAST}.querySelector('.text').innerText") == \
        "Dispatch sends each token row to the ranks that own the experts its router chose."
    assert re.search(r"\d+ tokens · first after \d+ ms · \d+ tokens/s", page.run(f"{LAST}.innerText"))
    click_link(page, "Tokens")
    assert page.run(f"{LAST}.querySelector('.tokens').innerText").startswith("Dispatch sends each")
    page.run(f"{LAST}.querySelector('.tokens').focus()")
    page.key("ArrowRight", 39)
    assert re.search(r"\d+\.\d %", page.text("#tip"))
    click_link(page, "Edit")
    page.run("document.querySelector('.message .edit').value = '7 times 8'")
    page.run("document.querySelector('.message .primary').click()")
    page.wait(DONE + f" && {LAST}.innerText.includes('56')")
    assert page.run("document.querySelectorAll('.message').length") == 2
    ask(page, "What is dispatch?")
    page.wait("document.querySelectorAll('.message').length === 4 && " + DONE)
    page.click("#new-chat")
    assert page.run("document.querySelectorAll('.message').length") == 0


def set_field(page, name, value):
    page.run(f"document.querySelector('#settings [name={name}]').value = {json.dumps(value)}")


def test_shows_tool_calls_and_takes_results(page):
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": city}
    set_field(page, "temperature", "0")
    set_field(page, "tools", json.dumps([{"type": "function", "function": tool}]))
    ask(page, "What is the weather in Rome?")
    page.wait(DONE)
    assert page.text(".call code") == "get_weather" and json.loads(page.text(".call pre")) == {"city": "Rome"}
    page.run("document.querySelector('.call textarea').value = '{\"temperature\": 21, \"sky\": \"sunny\"}'")
    page.click(".call button")
    page.wait("document.querySelectorAll('.message.assistant').length === 2 && " + DONE)
    assert page.run(f"{LAST}.querySelector('.text').innerText") == "It is sunny in Rome, at 21 degrees."
    assert page.run("document.querySelector('.call button')") is None


def test_folds_reasoning(page):
    set_field(page, "temperature", "0")
    set_field(page, "thinking", "true")
    ask(page, "What is 7 times 8?")
    page.wait(DONE)
    assert page.run(f"{LAST}.querySelector('.text').innerText") == "7 * 8 = 56."
    assert not page.run("document.querySelector('.fold').open")
    page.click(".fold summary")
    assert page.run("document.querySelector('.fold').open && document.querySelector('.fold .inner').innerText") == "I multiply 7 by 8."


def test_stops(server, page):
    page.run(ENDLESS)
    ask(page, "What is dispatch?")
    page.wait(f"{LAST}?.querySelector('.text').innerText.length > 40")
    page.click("#stop")
    page.wait(f"{LAST}.innerText.includes('stopped')")
    assert page.run("!document.getElementById('send').hidden && document.getElementById('stop').hidden")
    server.wait_idle()


def test_shows_errors(page):
    set_field(page, "tools", '[{"type": "none"}]')
    ask(page, "What is dispatch?")
    page.wait("document.querySelector('.message [role=alert]')?.innerText.includes('tools')")
    page.problems.clear()  # the browser reports the status 400


def test_text_of_a_model_is_never_html(page):
    text = "<img src=x onerror=alert(1)> **<b>bold</b>** [a](javascript:alert(1)) [b](https://a.example/?q=1)\n\n" \
           "- one\n- two\n  1. inner\n\n```js\n<script>let a;</script>\n```\n\n| a | b |\n|---|---|\n| `1` | <i>2</i> |"
    html = page.run("import('/page/markdown.js').then(({render}) => { const div = document.createElement('div');"
                    f" div.append(...render({json.dumps(text)})); return div.innerHTML; }})")
    assert "<img" not in html and "<script" not in html and "<i>" not in html and 'href="javascript' not in html
    assert "&lt;img src=x onerror=alert(1)&gt; <strong>&lt;b&gt;bold&lt;/b&gt;</strong> [a](javascript:alert(1))" in html
    assert '<a href="https://a.example/?q=1" target="_blank" rel="noopener noreferrer">b</a>' in html
    assert '<ul><li>one</li><li><p>two</p><ol start="1"><li>inner</li></ol></li></ul>' in html
    assert "<code>&lt;script&gt;let a;&lt;/script&gt;</code>" in html
    assert "<td><code>1</code></td><td>&lt;i&gt;2&lt;/i&gt;</td>" in html


def test_the_policy_refuses_scripts_of_documents(page):
    page.run("{ const script = document.createElement('script'); script.textContent = 'window.ran = 1';"
             " document.body.append(script); }")
    assert page.run("window.ran ?? 0") == 0
    assert any("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()


def heat(page):
    """The picture of the heat map, and the heat of the hottest expert."""
    text = page.wait("document.getElementById('heat-experts-cell').innerText.trim()")
    return page.run("document.getElementById('heat-experts').toDataURL()"), float(re.search(r"([\d.]+)× the mean", text)[1])


def heat_after(page, send, reached):
    """Sends requests until the heat of the hottest expert has reached a value."""
    end = time.time() + 60
    while not reached((now := heat(page))[1]):
        send()
        assert time.time() < end, now[1]
    return now


def test_shows_skewed_load(server, page):
    page.resize(1440, 1000)
    question = {"messages": [{"role": "user", "content": "What is a mixture of experts?"}], "max_tokens": 60}
    # The same token again and again has the same experts.
    repeated = {"input_ids": [[7] * 300] * 4, "sampling_params": {"max_new_tokens": 1}}
    server.request("/v1/chat/completions", question)
    page.wait("document.getElementById('heat-experts').getAttribute('aria-label')?.includes('16 experts')")
    even = heat_after(page, lambda: server.request("/v1/chat/completions", question), lambda hottest: hottest < 2.5)
    skewed = heat_after(page, lambda: [server.request("/generate", repeated), server.request("/flush_cache", method="POST")],
                        lambda hottest: hottest > 3)
    assert even[0] != skewed[0]
    page.wait("Number(document.getElementById('balance-now').innerText) > 0")
    assert "%" in page.text("#tile-kv") and "ms" in page.text("#tile-ttft")
    end = time.time() + 60
    # Counts of load arrive every 40 passes.
    more = {"input_ids": [7] * 8, "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}
    while server.request("/eplb/rebalance", method="POST")[0] != 200:
        server.request("/generate", more)
        assert time.time() < end, server.request("/eplb")
    page.wait("[/plan \\d/, /moved/].every(each => each.test(document.getElementById('migration-log').innerText))")
    rows = page.run("[...document.querySelectorAll('#stages tbody tr')].map(row => row.innerText.trim())")
    assert len(rows) == 2 and all(re.fullmatch(rf"{rank}(\s+[\d.]+ (µs|ms|s)){{3}}", row) for rank, row in enumerate(rows)), rows
    assert page.run("[...document.querySelectorAll('#stages .stacked')].every(bar => bar.children.length === 3)")
    assert page.text("#placement-facts") == "18 slots, 16 experts, 2 ranks"
    page.run("document.getElementById('heat-slots').focus()")
    for _ in range(10):
        page.key("ArrowRight", 39)
    placed = server.request("/eplb")[1]["placement"]
    assert placed["slots_of_ranks"] == [9, 9]
    readout = page.text("#heat-slots-cell")
    layer, slot, rank, expert = map(int, re.match(r"layer (\d+), slot (\d+) on rank (\d) has expert (\d+)", readout).groups())
    assert rank == slot // 9
    page.wait(f"document.getElementById('heat-slots-cell').innerText.includes('expert {placed['layers'][layer][slot]}')")
    page.run("document.getElementById('heat-experts').focus()")
    page.key("ArrowRight", 39)
    page.key("ArrowDown", 40)
    assert page.text("#heat-experts-cell").startswith("layer 2, expert 1:")


def test_fits_a_phone_and_names_its_controls(page):
    page.resize(390, 844, 2)
    assert page.run("getComputedStyle(document.getElementById('live')).display") == "none"
    page.run("document.getElementById('tab-chat').focus()")
    page.key("ArrowRight", 39)
    assert page.run("getComputedStyle(document.getElementById('chat')).display") == "none"
    assert page.run("document.activeElement.id") == "tab-live"
    assert page.run("document.scrollingElement.scrollWidth") <= 390
    page.key("ArrowLeft", 37)
    page.click("#settings-button")
    assert page.run("document.scrollingElement.scrollWidth") <= 390
    nodes = page.page("Accessibility.getFullAXTree")["nodes"]
    controls = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n["ignored"]
                and n.get("role", {}).get("value") in ("button", "textbox", "tab", "spinbutton", "checkbox", "radio", "img")]
    assert len(controls) > 12 and all(name for _, name in controls), controls


def test_asks_for_the_key():
    with Server(YARDLING, *FLAGS, "--api-key", "secret") as server, Browser() as page:
        page.open(server.url + "/")
        page.wait("document.getElementById('key-dialog').open")
        for key in ["wrong", "secret"]:
            page.run(f"document.getElementById('key-input').value = '{key}'")
            page.run("document.getElementById('key-form').requestSubmit()")
            if key == "wrong":
                page.wait("document.getElementById('key-dialog').open && "
                          "document.getElementById('key-error').innerText.includes('not accept')")
        page.wait(READY)
        page.open(server.url + "/")  # the tab keeps the key
        page.wait(READY)
        ask(page, "7 times 8")
        page.wait(DONE)
        assert not page.run("document.getElementById('key-dialog').open")
        assert server.stop() == 0  # also ends the feed of the open page


def test_embeds_texts():
    model = ROOT / "tests/data/pooling/qwen3_embedding"
    with Server(model, "--log-level", "warning", "--max-total-tokens", 4096) as server, Browser() as page:
        page.open(server.url + "/")
        page.wait(READY + " && !document.getElementById('pooling').hidden")
        assert page.run("document.getElementById('chat').hidden")
        page.run("document.getElementById('pooling-form').requestSubmit()")
        page.wait("document.querySelectorAll('.matrix td').length > 9")
        assert page.text(".matrix tbody tr td") == "1.00"
        assert page.problems == []


def test_can_be_disabled():
    with Server(YARDLING, *FLAGS, "--disable-page") as server:
        for path in ["/", "/page/page.js", "/dashboard/events"]:
            assert server.request(path)[0] == 404
