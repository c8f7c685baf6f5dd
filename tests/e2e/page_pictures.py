"""Makes the pictures of docs/page.md: SWITCHYARD=build/release/switchyard tests/e2e/page_pictures.py [FOLDER]"""
import pathlib
import random
import sys
import threading
import time

from browser import Browser
from server import ROOT, Server

FLAGS = ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep", "--enable-expert-distribution-metrics", "--log-level", "warning",
         "--max-total-tokens", 32768, "--device", "cpu", "--served-model-name", "yardling", "--ep-num-redundant-experts", 8,
         "--enable-eplb", "--eplb-algorithm", "deepseek", "--eplb-rebalance-num-iterations", 4000, "--ep-dispatch-algorithm", "balanced"]
QUESTIONS = ["What is dispatch?", "What is expert parallelism?", "7 times 8", "What is a router?", "Tell me a joke."]
WEBP = {"format": "webp", "quality": 90}  # half as large as PNG
SECONDS = 40  # of load before the first picture


def load(server, skew, ended):
    """Chats; after `skew` is set, also prompts that repeat a token, whose experts are few."""
    chance = random.Random(threading.get_ident())
    while not ended.wait(chance.uniform(0.1, 0.6)):
        server.request("/v1/chat/completions", {"max_tokens": 60, "messages": [
            {"role": "user", "content": chance.choice(QUESTIONS)}]})
        if skew.is_set():
            server.request("/generate", {"input_ids": [7] * chance.randrange(200, 600), "sampling_params": {"max_new_tokens": 8}})


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/pictures")
    skew, ended = threading.Event(), threading.Event()
    with Server(ROOT / "models/yardling", *FLAGS) as server:
        for _ in range(6):
            threading.Thread(target=load, args=(server, skew, ended), daemon=True).start()
        with Browser(1280, 1040) as wide, Browser(1280, 800, dark=True) as dark, Browser(390, 844, scale=1.25) as phone:
            for page in [wide, dark, phone]:
                page.open(server.url + "/")
                page.wait("document.getElementById('state').dataset.state === 'ready'")
                page.run("document.querySelector('#settings [name=temperature]').value = '0.7'")
            for page, questions in [(wide, ["What is a mixture of experts?", "And what is dispatch?"]), (dark, QUESTIONS[:1])]:
                for i, question in enumerate(questions):
                    page.type("#prompt", question)
                    page.enter()
                    page.wait(f"document.querySelectorAll('.message.assistant .foot span').length === {i + 1}")
            time.sleep(SECONDS / 2)
            skew.set()
            time.sleep(SECONDS / 2)
            dark.run("[...document.querySelectorAll('.message .link')].find(each => each.innerText === 'Tokens').click()")
            dark.run("document.querySelector('.tokens').focus()")
            for _ in range(6):
                dark.key("ArrowRight", 39)
            phone.click("#tab-live")
            time.sleep(2)
            wide.screenshot(folder / "page.webp", **WEBP)
            dark.screenshot(folder / "page_tokens.webp", **WEBP)
            phone.screenshot(folder / "page_phone.webp", **WEBP)
            print(wide.problems + dark.problems + phone.problems, wide.text("#migration-log"))
        ended.set()
        server.stop()


if __name__ == "__main__":
    main()
