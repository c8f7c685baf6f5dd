"""Many concurrent streaming clients, a third of which disconnect midway. Outputs must not change, and nothing may leak.

The test runs for --soak-seconds, by default 15 as in CI. Run it for 60 s with `pytest test_soak.py --soak-seconds 60`.
"""
import json
import random
import threading
import time
import urllib.request

from server import FIXTURES, Server

CLIENTS = 64
PROMPTS = 40


def body(i):
    r = random.Random(i)
    return {"input_ids": [r.randrange(500) for _ in range(r.choice([3, 20, 60, 150]))], "stream": True,
            "sampling_params": {"temperature": 1.0, "top_p": 0.95, "sampling_seed": i, "ignore_eos": True,
                                "max_new_tokens": r.choice([5, 20, 60, 120])}}


def stream(server, i, hang_up_after=None):
    """Returns the text, or None if the client disconnected."""
    request = urllib.request.Request(server.url + "/generate", json.dumps(body(i)).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        text, events = None, 0
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            text = event["text"]
            events += 1
            if hang_up_after is not None and events >= hang_up_after:
                return None
        return text


def test_soak(request):
    # The cache has capacity for about a fifth of the tokens of 64 clients, so that requests are retracted and resumed.
    with Server(FIXTURES / "qwen3_moe", "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--max-total-tokens", 3072,
                "--chunked-prefill-size", 128) as server:
        alone = [stream(server, i) for i in range(PROMPTS)]
        assert all(alone)
        end = time.time() + request.config.getoption("--soak-seconds")
        wrong, done, left = [], [0], [0]
        lock = threading.Lock()

        def client(number):
            r = random.Random(number)
            while time.time() < end:
                i = r.randrange(PROMPTS)
                leaves = r.random() < 1 / 3
                try:
                    text = stream(server, i, r.randrange(1, 5) if leaves else None)
                except Exception as e:  # any client failure fails the test
                    text = repr(e)
                with lock:
                    if text is None:
                        left[0] += 1
                    else:
                        done[0] += 1
                        if text != alone[i]:
                            wrong.append((i, text, alone[i]))

        threads = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong, f"{wrong[:3]}\n{server.text()[-4000:]}"
        assert done[0] > CLIENTS and left[0] > 10
        state = server.wait_idle()
        assert state["free_pages"] + state["cached_pages"] == state["total_pages"]
        assert server.request("/flush_cache", method="POST")[0] == 200
        assert server.state()["free_pages"] == state["total_pages"]
        print(f"{done[0]} streams done, {left[0]} disconnected halfway, {state['retractions']} retractions")
        assert server.stop() == 0
