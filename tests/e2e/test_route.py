"""switchyard route: one address for several servers."""
import concurrent.futures
import json
import random
import re
import subprocess
import time

import pytest

from server import PROGRAM, ROOT, Server

YARDLING = ROOT / "models/yardling"
FLAGS = ["--device", "cpu", "--tp", 1, "--max-total-tokens", 8192, "--log-level", "warning"]


class Router(Server):
    def __init__(self, workers, *flags):
        self._start([PROGRAM, "route", "--port", "0", "--health-check-interval", "0.1", "--worker-urls",
                     *(w.url for w in workers), *map(str, flags)])

    def wait_healthy(self, count, seconds=60):
        end = time.time() + seconds
        while sum(w["is_healthy"] for w in self.workers()) != count:
            assert time.time() < end, self.workers()
            time.sleep(0.02)

    def workers(self):
        return self.request("/workers")[1]["workers"]

    def metric(self, name):
        return sum(float(value) for value in re.findall(rf"^switchyard_route_{name}(?:{{.*}})? (\S+)$",
                                                        self.request("/metrics")[1], re.M))


@pytest.fixture
def workers():
    with Server(YARDLING, *FLAGS) as a, Server(YARDLING, *FLAGS) as b:
        yield [a, b]


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0, **fields}


def stream(server, body):
    """Returns the text of a streamed chat, and whether the stream was complete."""
    _, text = server.request("/v1/chat/completions", {**body, "stream": True})
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(e) for e in events if e != "[DONE]"]
    assert not [c for c in chunks if "error" in c], text
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]), events[-1] == "[DONE]"


@pytest.mark.parametrize("policy", ["cache_aware", "power_of_two", "round_robin", "random"])
def test_answers_are_those_of_a_worker(workers, policy):
    texts = [f"What is {i} plus {i + 1}?" for i in range(6)]
    want = [workers[0].request("/v1/chat/completions", chat(t))[1]["choices"] for t in texts]
    with Router(workers, "--policy", policy) as router:
        router.wait_healthy(2)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            got = list(pool.map(lambda t: router.request("/v1/chat/completions", chat(t))[1]["choices"], texts))
            streams = list(pool.map(lambda t: stream(router, chat(t)), texts))
        assert got == want
        assert streams == [(choices[0]["message"]["content"], True) for choices in want]
        assert router.request("/v1/models")[1]["data"] == workers[0].request("/v1/models")[1]["data"]
        status, error = router.request("/v1/chat/completions", chat("x", temperature=-1))
        assert status == 400 and "temperature" in json.dumps(error)
        assert router.stop() == 0


def test_a_conversation_stays_where_its_prefix_is_cached(workers):
    system = {"role": "system", "content": "Answer in one word. " * 20}
    with Router(workers) as router:
        router.wait_healthy(2)
        conversations = [[system, {"role": "user", "content": f"{name} asks: {'really ' * 30}?"}]
                         for name in ("Anna", "Bert")]
        conversations[1] = conversations[1][1:]
        cached = []
        for turn in range(3):
            for messages in conversations:
                status, answer = router.request("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
                assert status == 200
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        assert all(c > 30 for c in cached[2:]), cached
        assert [w["requests"] for w in router.workers()] == [3, 3]


def test_killed_workers_lose_no_request_that_has_not_begun(workers):
    """Of two workers, one at a time is killed and started again. All requests without streaming succeed."""
    texts = [f"Tell me about {i}" for i in range(40)]
    want = {t: workers[0].request("/v1/chat/completions", chat(t))[1]["choices"] for t in texts[:8]}
    with Router(workers, "--policy", "round_robin", "--max-retries", 5) as router, \
            concurrent.futures.ThreadPoolExecutor(8) as pool:
        router.wait_healthy(2)
        rng = random.Random(1)
        current = list(workers)
        for _ in range(3):
            jobs = [(t, pool.submit(router.request, "/v1/chat/completions", chat(t)))
                    for t in rng.sample(texts[:8], 8) * 3]
            time.sleep(rng.random() * 0.05)
            victim = current.pop(rng.randrange(2))
            victim.process.kill()
            for text, job in jobs:
                status, answer = job.result()
                assert status == 200, answer
                assert answer["choices"] == want[text]
            router.wait_healthy(1)
            current.append(Server(YARDLING, *FLAGS))
            assert router.request("/workers", {"url": current[-1].url})[0] == 200
            router.wait_healthy(2)
        assert router.metric("worker_open_requests") == 0
        for server in current:
            server.stop()


def test_all_workers_get_a_control_and_one_has_a_session(workers):
    def together(answer):
        status, body = answer
        assert status == 200 and [w["url"] for w in body["workers"]] == [w.url for w in workers], answer
        return [w["response"] for w in body["workers"]]

    greedy = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    with Router(workers, "--policy", "round_robin") as router, concurrent.futures.ThreadPoolExecutor(2) as pool:
        router.wait_healthy(2)
        together(router.request("/pause_generation", {"mode": "in_place"}))
        assert all(worker.request("/get_server_info")[1]["generation_paused"] for worker in workers)
        waiting = [pool.submit(router.request, "/generate", {"input_ids": [5, 6], "sampling_params": greedy}) for _ in range(2)]
        together(router.request("/continue_generation", {}))
        first, second = (job.result() for job in waiting)
        assert first[0] == 200 and first[1]["output_ids"] == second[1]["output_ids"]
        assert len(together(router.request("/get_load"))) == 2
        # Weights of all workers change with one request.
        updated = together(router.request("/update_weights_from_disk", {"model_path": str(YARDLING), "weight_version": "2"}))
        assert all(answer["success"] for answer in updated), updated
        assert [worker.request("/get_weight_version")[1]["weight_version"] for worker in workers] == ["2", "2"]
        status, answer = router.request("/update_weights_from_disk", {"model_path": "/none"})
        assert status == 502 and [w["status"] for w in answer["workers"]] == [400, 400]

        session = router.request("/open_session", {"capacity_of_str_len": 100})[1]
        for i in range(4):  # another worker does not know the session
            status, answer = router.request("/generate", {
                "input_ids": [7 + i], "rid": str(i), "sampling_params": greedy,
                "session_params": {"id": session, **({"rid": str(i - 1)} if i else {})}})
            assert status == 200 and answer["meta_info"]["prompt_tokens"] == 7 * i + 1, answer
        assert router.request("/close_session", {"session_id": session})[0] == 200
        assert router.request("/generate", {"input_ids": [7], "session_params": {"id": session}})[0] == 400
        assert router.stop() == 0


@pytest.mark.parametrize("flags, message", [
    (["--policy", "best"], "--policy"),
    (["--worker-urls", "https://x:1"], "https is not supported"),
    (["--worker-urls", "http://x:1", "x:1"], "is a worker already"),
    (["--request-timeout", 5], "--worker-timeout"),
    (["--workers", "http://x:1"], "--workers"),
])
def test_bad_flags_are_named(flags, message):
    done = subprocess.run([PROGRAM, "route", "--port", "0", *map(str, flags)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 2
