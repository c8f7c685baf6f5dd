"""Prefill and decode on different servers: outputs equal those of one server, whatever ends, and every fault has an error."""
import concurrent.futures
import contextlib
import json
import os
import random
import signal
import threading
import time

import pytest

from elastic import YARDLING, Client, bodies, finish, metric, wait_until
from server import FIXTURES, Server, fails_to_start, free_port
from workers import CPU, SIZES, Router, Worker, pair

FLAGS = [*CPU, *SIZES]


def seeded(made):
    for i, body in enumerate(made):
        body["sampling_params"].setdefault("sampling_seed", 100 + i)
    return made


def comparable(result):
    """Without what depends on the server: numbers of requests, and cached prefixes."""
    for choice in result.values() if isinstance(result, dict) and "meta_info" not in result else \
            result if isinstance(result, list) else [result]:
        for key in ("id", "cached_tokens", "cached_tokens_details"):
            choice["meta_info"].pop(key, None)
        for key in [key for key in choice["meta_info"] if key.startswith("spec_")]:  # counts of drafts
            del choice["meta_info"][key]
    return result


def run(server, made):
    results = finish([Client(server, body) for body in made])
    for result in results:
        assert not isinstance(result, str), (result, server.text())
    return [comparable(result) for result in results]


@pytest.fixture(scope="module")
def expected():
    """Requests of all kinds, and the outputs of one server."""
    made = seeded(bodies(0, 40))
    with Server(YARDLING, *FLAGS, "--moe-a2a-backend", "deepep") as server:
        return made, run(server, made)


LAYOUTS = {
    "tcp, pages of 16 and 5": ("tcp", ["--moe-a2a-backend", "deepep"], ["--moe-a2a-backend", "deepep", "--page-size", 5]),
    "shm, chunks, two-batch overlap": (
        "shm", ["--moe-a2a-backend", "deepep", "--chunked-prefill-size", 32, "--page-size", 8, "--enable-two-batch-overlap"],
        ["--moe-a2a-backend", "deepep", "--speculative-algorithm", "NGRAM"]),
    "normal to low_latency, one group to two": (
        "shm", ["--moe-a2a-backend", "deepep", "--deepep-mode", "normal"],
        ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
         "--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"]),
    "drafts of an MTP layer": (
        "tcp", ["--moe-a2a-backend", "deepep", "--chunked-prefill-size", 32, "--speculative-algorithm", "NEXTN"],
        ["--moe-a2a-backend", "deepep", "--page-size", 8, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2]),
    "stages, with drafts": (
        "shm", ["--moe-a2a-backend", "deepep", "--pp-size", 2, "--chunked-prefill-size", 32, "--speculative-algorithm", "NEXTN"],
        ["--moe-a2a-backend", "deepep", "--pp-size", 3, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2]),
    "two groups to one": (
        "tcp", ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                "--moe-a2a-backend", "deepep"], ["--moe-a2a-backend", "deepep", "--disable-radix-cache"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_equal_those_of_one_server(expected, layout):
    made, want = expected
    backend, prefill, decode = LAYOUTS[layout]
    with pair(prefill, decode, backend=backend) as (p, d, router):
        for body, got, one in zip(made, run(router, made), want):
            assert got == one, (body, p.text(), d.text())
        p.wait_idle(), d.wait_idle()
        assert [metric(w, "switchyard_epoch") for w in (p, d)] == [1, 1], (p.text(), d.text())
        # Every prompt was computed once, by the prefill worker.
        assert d.state()["prefill_tokens"] < p.state()["prefill_tokens"] / 20, (p.state(), d.state())
        # Only the decode worker verifies drafts.
        assert ("--speculative-algorithm" in decode) == (d.state().get("accepted_draft_tokens", 0) > 0), d.state()
        assert p.state().get("draft_tokens", 0) == 0


def greedy(ids, tokens=12, **fields):
    return {"input_ids": ids, "stream": True, "sampling_params": {"temperature": 0, "max_new_tokens": tokens,
                                                                  "ignore_eos": True}, **fields}


# The layers of MiMo-V2-Flash have rows of different sizes.
@pytest.mark.parametrize("model", ["deepseek_v2", "qwen3_moe", "../families/mimo_v2_flash"])
def test_fixtures_with_latent_and_grouped_attention(model):
    r = random.Random(3)
    made = [greedy([r.randrange(3, 90) for _ in range(length)], return_logprob=True) for length in (1, 15, 16, 33, 40)]
    small = ["--max-total-tokens", 1024, "--tokenizer-path", FIXTURES / "qwen3_moe"]
    with Server(FIXTURES / model, *FLAGS, *small) as server:
        want = run(server, made)
    with pair([*small, "--page-size", 4], small, model=FIXTURES / model) as (_, _, router):
        assert run(router, made) == want


# Layouts of a prefill and a decode worker. `same`: sums have the order of one rank.
STATES = {
    "../families/qwen3_next": ("tcp", ["--tp", 2], [], False),
    "../families/qwen3_5_moe": ("shm", [], ["--tp", 2], False),
    "../families/kimi_linear": ("tcp", ["--page-size", 4, "--chunked-prefill-size", 8], [
        "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1], True),
    "../families/nemotron_h": ("shm", ["--pp-size", 2, "--chunked-prefill-size", 16], ["--page-size", 4], True),
    "../families/deepseek_v4": ("tcp", ["--page-size", 4, "--chunked-prefill-size", 6], [
        "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention"], True),
}


@pytest.mark.parametrize("model", STATES)
def test_fixtures_with_recurrent_states(model):
    """The second round has prefixes whose states are cached on both workers."""
    r = random.Random(6)
    made = [greedy([r.randrange(3, 500) for _ in range(length)], return_logprob=True) for length in (1, 2, 15, 16, 32, 41)]
    small = ["--max-total-tokens", 1024, "--max-running-requests", 4, "--tokenizer-path", FIXTURES / "qwen3_moe",
             "--dtype", "float32"]  # CPUs with bfloat16 products round rows, so layouts would differ by more
    backend, prefill, decode, same = STATES[model]
    backends = ["--moe-a2a-backend", "deepep"] if same else ["--dtype", "float32"]
    with Server(FIXTURES / model, *FLAGS, *small, *backends) as server:
        want = [run(server, made) for _ in range(2)]
    with pair([*small, *backends, *prefill], [*small, *backends, *decode], model=FIXTURES / model, backend=backend) as (
            p, d, router):
        for expected in want:
            for got, one in zip(run(router, made), expected):
                if same:
                    assert got == one, (p.text(), d.text())
                    continue
                got, one = (answer[0]["meta_info"]["output_token_logprobs"] for answer in (got, one))
                assert [t[1] for t in got] == [t[1] for t in one]
                assert max(abs(a[0] - b[0]) for a, b in zip(got, one)) < 1e-3
        p.wait_idle(), d.wait_idle()
        assert [metric(w, "switchyard_epoch") for w in (p, d)] == [1, 1], (p.text(), d.text())
        assert d.state()["prefill_tokens"] < p.state()["prefill_tokens"] / 20, (p.state(), d.state())


def test_one_rank_to_two_ranks():
    """The heads of a layer are on two ranks. Sums have another order, so logits agree within rounding."""
    r = random.Random(4)
    made = [greedy([r.randrange(2, 2000) for _ in range(60 + i)], return_logprob=True) for i in range(4)]
    with Server(YARDLING, *FLAGS) as server:
        want = run(server, made)
    with pair([], ["--tp", 2]) as (_, _, router):
        for got, one in zip(run(router, made), want):
            got, one = got[0]["meta_info"]["output_token_logprobs"], one[0]["meta_info"]["output_token_logprobs"]
            assert [t[1] for t in got] == [t[1] for t in one]
            assert max(abs(a[0] - b[0]) for a, b in zip(got, one)) < 0.05


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0.8, "seed": 5, **fields}


def stream(server, path, body):
    status, text = server.request(path, {**body, "stream": True})
    assert status == 200, text
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", text
    chunks = [json.loads(e) for e in events[:-1]]
    assert not [c for c in chunks if "error" in c], text
    choices = [c["choices"][0] for c in chunks if c["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices), choices[-1]["finish_reason"]


def test_openai_endpoints_and_cached_prefixes():
    completion = {"prompt": "The dispatcher sends " * 8, "max_tokens": 16, "temperature": 0, "n": 2, "logprobs": 1}
    with Server(YARDLING, *FLAGS) as server:
        want_chat = server.request("/v1/chat/completions", chat("What is a yard?"))[1]["choices"]
        want_text = server.request("/v1/completions", completion)[1]["choices"]
        want_stream = stream(server, "/v1/chat/completions", chat("What is a switch?", logprobs=True, top_logprobs=2))
    with pair() as (p, d, router):
        assert router.request("/v1/chat/completions", chat("What is a yard?"))[1]["choices"] == want_chat
        assert router.request("/v1/completions", completion)[1]["choices"] == want_text
        assert stream(router, "/v1/chat/completions", chat("What is a switch?", logprobs=True, top_logprobs=2)) == want_stream
        # Both workers have the prefix now.
        before = p.state()["prefill_tokens"]
        status, answer = router.request("/v1/completions", {**completion, "n": 1})
        assert status == 200 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
        assert p.state()["prefill_tokens"] - before <= 16
        # A worker alone refuses requests that have no other worker, and names the field.
        for worker in (p, d):
            status, error = worker.request("/v1/completions", completion)
            assert status == 400 and "bootstrap_room" in json.dumps(error), error
            assert worker.request("/health_generate")[0] == 200
        assert router.request("/v1/completions", {**completion, "temperature": -1})[0] == 400
        assert router.request("/v1/models")[0] == 200


def typed_stream(server, path, body):
    """The names of the events, and the joined texts."""
    status, text = server.request(path, {**body, "stream": True})
    assert status == 200, text
    names = [line[7:] for line in text.splitlines() if line.startswith("event: ")]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [e["type"] for e in events] == names
    deltas = [e["delta"] if isinstance(e["delta"], str) else e["delta"].get("text", "") for e in events if "delta" in e]
    return [n for n in names if not n.endswith("delta")], "".join(deltas)


def test_responses_and_messages():
    response = {"input": "What is a yard?", "max_output_tokens": 20, "temperature": 0.8, "seed": 5}
    message = {"model": "default", "messages": [{"role": "user", "content": "What is a yard?"}], "max_tokens": 20, "seed": 6}
    cases = [("/v1/responses", response, "output"), ("/v1/messages", message, "content")]

    def texts(answer, field):
        blocks = [b for item in answer[field] for b in item.get("content", [item])]
        return [b["text"] for b in blocks], answer.get("stop_reason"), answer["usage"]["output_tokens"]

    with Server(YARDLING, *FLAGS) as server:
        want = [texts(server.request(path, body)[1], field) for path, body, field in cases]
        streams = [typed_stream(server, path, body) for path, body, _ in cases]
    with pair() as (p, _, router):
        for (path, body, field), one, stream in zip(cases, want, streams):
            status, answer = router.request(path, body)
            assert status == 200 and texts(answer, field) == one, answer
            assert typed_stream(router, path, body) == stream
            status, error = p.request(path, body)
            assert status == 400 and "bootstrap_room" in json.dumps(error), error
        assert router.request("/v1/responses", response)[1]["store"] is False
        for field, value in (("store", True), ("previous_response_id", "resp_1")):
            status, error = router.request("/v1/responses", {**response, field: value})
            assert status == 400 and f"{field} is not supported with --disaggregation-mode" in json.dumps(error), error


def both(p, d, body, room, timeout=60):
    """Sends the request to both workers, as SGLang's router does. Returns both responses."""
    body = {**body, "bootstrap_host": "127.0.0.1", "bootstrap_port": p.bootstrap, "bootstrap_room": room}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(w.request, "/generate", {**body, "stream": False}, timeout=timeout) for w in (p, d)]
        return [job.result() for job in jobs]


def test_sglangs_protocol_without_our_router():
    body = greedy([5, 6, 7, 8], stream=False)
    with Server(YARDLING, *FLAGS) as server:
        want = server.request("/generate", body)[1]["output_ids"]
    with Worker("prefill") as p, Worker("decode") as d:
        (status, first), (_, answer) = both(p, d, body, 17)
        assert status == 200 and first["output_ids"] == want[:1] and answer["output_ids"] == want
        # Lists: a room for each prompt.
        batch = {**body, "input_ids": [[5, 6, 7, 8], [9, 9]]}
        fields = {"bootstrap_host": ["127.0.0.1"] * 2, "bootstrap_port": [p.bootstrap] * 2, "bootstrap_room": [1, 2]}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(w.request, "/generate", {**batch, **fields}) for w in (p, d)]
            assert jobs[1].result()[1][0]["output_ids"] == want
        for field, value in (("bootstrap_room", -1), ("bootstrap_room", "x"), ("bootstrap_port", 0)):
            status, error = d.request("/generate", {**body, "bootstrap_host": "x", "bootstrap_room": 1, field: value})
            assert status == 400 and field in json.dumps(error)


def test_disconnected_clients_leave_nothing():
    with pair(["--chunked-prefill-size", 16]) as (p, d, router):
        r = random.Random(5)
        for round in range(12):
            client = Client(router, greedy([r.randrange(2, 2000) for _ in range(300)], 400))
            time.sleep(r.random() * 0.15)
            with contextlib.suppress(OSError, AttributeError):
                client.close()
        for worker in (p, d):
            state = worker.wait_idle()
            assert state["free_pages"] + state["cached_pages"] == state["total_pages"], state
        assert isinstance(run(router, [greedy([3, 4, 5])])[0], dict)


def errors(p, d, room=1, body=None, timeout=60):
    (s1, e1), (s2, e2) = both(p, d, body or greedy([5, 6, 7, 8]), room, timeout)
    return (s1, json.dumps(e1)), (s2, json.dumps(e2))


def test_mismatches_have_one_error_on_both_sides(tmp_path):
    secrets = [tmp_path / name for name in "ab"]
    for path in secrets:
        path.write_text(path.name * 32)
        path.chmod(0o600)
    cases = [
        ([], ["--kv-cache-dtype", "float16"], "the KV cache is "),
        (["--kv-cache-dtype", "float32"], ["--dtype", "float32", "--kv-cache-dtype", "float32"], "--dtype is "),
        (["--dist-secret-file", secrets[0]], ["--dist-secret-file", secrets[1]], "different secrets"),
        (["--dist-secret-file", secrets[0]], [], "has a secret"),
    ]
    with Worker("decode", "--disaggregation-timeout", 2) as plain:
        for prefill, decode, message in cases:
            with Worker("prefill", "--disaggregation-timeout", 2, *prefill) as p, \
                    (Worker("decode", "--disaggregation-timeout", 2, *decode) if decode else contextlib.nullcontext(plain)) as d:
                (s1, e1), (s2, e2) = errors(p, d)
                assert s1 == s2 == 503 and message in e1 and message in e2, (e1, e2)
                assert message in p.text() and message in d.text()
        with Worker("prefill", "--disaggregation-timeout", 2, model=FIXTURES / "qwen3_moe") as p:
            (s1, e1), (s2, e2) = errors(p, plain)
            assert "the hash of config.json" in e2, e2
        with Worker("prefill", backend="shm", *["--disaggregation-timeout", 2]) as p:
            (s1, e1), (s2, e2) = errors(p, plain)
            assert "--disaggregation-transfer-backend is shm on the prefill worker, but tcp" in e2 and s2 == 503


def test_every_wait_has_a_deadline():
    with Worker("prefill", "--disaggregation-timeout", 1) as p, \
            Worker("decode", "--disaggregation-timeout", 1, "--max-total-tokens", 512) as d:
        body = {**greedy([5, 6, 7], stream=False), "bootstrap_host": "127.0.0.1", "bootstrap_port": p.bootstrap}
        status, error = p.request("/generate", {**body, "bootstrap_room": 1})
        assert status == 503 and "no decode worker has requested room 1 within 1 s" in json.dumps(error)
        status, error = d.request("/generate", {**body, "bootstrap_room": 2})
        assert status == 503 and "room 2" in json.dumps(error) and "within 1 s" in json.dumps(error)
        status, error = d.request("/generate", {**body, "bootstrap_room": 3, "bootstrap_port": free_port()})
        assert status == 503 and "does not accept connections" in json.dumps(error)
        # A prompt that fits the cache of the prefill worker only.
        (s1, e1), (s2, e2) = errors(p, d, 4, greedy(list(range(2, 700))))
        assert s2 == 400 and "512 tokens" in e2 and "512 tokens" in e1, (e1, e2)
        # A full cache: the first request keeps almost all pages for longer than the timeout.
        blocking = threading.Thread(target=both, args=(p, d, greedy(list(range(2, 302)), 200), 5))
        blocking.start()
        wait_until(lambda: d.state()["running_requests"] == 1)
        (s1, e1), (s2, e2) = errors(p, d, 6, greedy(list(range(400, 650)), 4))
        blocking.join()
        if s2 != 200:  # unless the first request was fast
            assert s1 == s2 == 503 and "the cache is full" in e1 and "the cache is full" in e2, (e1, e2)
        assert both(p, d, greedy([9, 9]), 7)[1][0] == 200
        for worker in (p, d):
            worker.wait_idle()


def test_two_full_caches_do_not_wait_for_each_other():
    """The prefill worker has computed the prompt of one request, and the decode worker has pages for another one."""
    bodies_of_rooms = {room: greedy(list(range(begin, begin + 300)), 8, stream=False) for room, begin in ((1, 2), (2, 400))}
    with Server(YARDLING, *FLAGS) as server:
        want = [server.request("/generate", body)[1]["output_ids"] for body in bodies_of_rooms.values()]
    small = ["--max-total-tokens", 512]
    with Worker("prefill", *small) as p, Worker("decode", *small) as d, concurrent.futures.ThreadPoolExecutor(4) as pool:
        def send(worker, room):
            fields = {"bootstrap_host": "127.0.0.1", "bootstrap_port": p.bootstrap, "bootstrap_room": room}
            return pool.submit(worker.request, "/generate", {**bodies_of_rooms[room], **fields}, timeout=60)
        prompts = [send(p, 2)]
        wait_until(lambda: p.state()["prefill_tokens"] >= 300)
        prompts.append(send(p, 1))
        outputs = [send(d, 1)]
        wait_until(lambda: d.state()["prefill_tokens"] > 0 or d.state()["free_pages"] < 20)
        outputs.append(send(d, 2))
        assert [job.result()[1]["output_ids"] for job in outputs] == want
        assert [len(job.result()[1]["output_ids"]) for job in prompts] == [1, 1]
        for worker in (p, d):
            worker.wait_idle()


def kills(count, seed, made, model=YARDLING, flags=()):
    """Kills workers of either kind while requests run, and starts them again. Returns the number of replayed streams."""
    r = random.Random(seed)
    with Server(model, *FLAGS, *flags) as server:
        want = run(server, made)

    def start(mode):
        return Worker(mode, *flags, model=model)
    workers = {mode: [start(mode), start(mode)] for mode in ("prefill", "decode")}
    try:
        with Router(workers["prefill"], workers["decode"], "--max-retries", 8, "--policy", "round_robin") as router:
            for number in range(count):
                clients = [Client(router, body) for body in made]
                mode = r.choice(["prefill", "decode"])
                if mode == "prefill":
                    time.sleep(r.random() * 0.2)
                else:  # counted in events, so that streams are open on a machine of any speed
                    moment = r.randrange(300)
                    wait_until(lambda: sum(c.events for c in clients) >= moment or not any(c.is_alive() for c in clients))
                victim = workers[mode].pop(r.randrange(2))
                victim.process.kill()
                for body, result, one in zip(made, finish(clients), want):
                    assert not isinstance(result, str), (number, mode, result, router.text())
                    assert comparable(result) == one, (number, mode, body)
                assert router.request("/remove_worker?url=" + victim.url, method="POST", raw=b"")[0] == 200
                victim.__exit__()
                workers[mode].append(start(mode))
                assert router.request("/workers", workers[mode][-1].description())[0] == 200
                router.wait_healthy(4)
            metrics = router.request("/metrics")[1]
            for worker in (w for both in workers.values() for w in both):
                worker.wait_idle()
            return float(next(line.split()[1] for line in metrics.splitlines()
                              if line.startswith("switchyard_route_replayed_streams_total")))
    finally:
        for worker in (w for both in workers.values() for w in both):
            worker.__exit__()


def test_killed_workers_lose_no_request(request):
    made = [b for b in seeded(bodies(1, 120)) if "n" not in b["sampling_params"]][:10]
    for body in made:
        body["stream"] = True
    assert kills(request.config.getoption("--kills"), 1, made) > 0


def test_killed_workers_with_recurrent_states():
    r = random.Random(9)
    made = [greedy([r.randrange(3, 500) for _ in range(20 + i)], 120) for i in range(8)]
    kills(4, 2, made, FIXTURES / "../families/qwen3_next",
          ["--max-total-tokens", 2048, "--tokenizer-path", FIXTURES / "qwen3_moe"])


def test_ranks_that_end_are_replaced():
    """The decode worker computes the prompts of its open requests again; requests of the prefill worker go elsewhere."""
    made = [greedy([7 * i + j for j in range(50)], 150) for i in range(1, 5)]
    with Server(YARDLING, *FLAGS) as server:
        want = run(server, made)
    with pair() as (p, d, router):
        for victim in (d, p):
            clients = [Client(router, body) for body in made]
            wait_until(lambda: all(c.events > 3 for c in clients))
            os.kill(victim.ranks()[0], signal.SIGKILL)
            for result, one in zip(finish(clients), want):
                assert not isinstance(result, str), (result, victim.text())
                assert comparable(result) == one
            assert run(router, made) == want
            status, error = victim.request("/scale_elastic_ep", {"new_tp_size": 2})
            assert status >= 400 and "--disaggregation-mode" in json.dumps(error)


@pytest.mark.parametrize("flags, message", [
    (["--disaggregation-mode", "prefill", "--speculative-algorithm", "NGRAM"], "--speculative-algorithm"),
    (["--disaggregation-timeout", 3], "--disaggregation-mode"),
    (["--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "nixl"], "--disaggregation-transfer-backend"),
    (["--disaggregation-mode", "prefill", "--nnodes", 2, "--tp", 2, "--dist-init-addr", "127.0.0.1:1"], "--disaggregation-mode"),
])
def test_flags_that_do_not_work_are_refused(flags, message):
    code, text = fails_to_start("--model-path", YARDLING, "--device", "cpu", *flags)
    assert code == 2 and message in text, text
