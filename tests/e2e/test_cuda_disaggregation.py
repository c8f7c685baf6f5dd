"""Prefill and decode workers on GPUs (`serve --disaggregation-mode`): outputs equal those of one server, and no request is
lost when a worker ends. Each case runs with the workers on one GPU ("shared", with SWITCHYARD_TEST_SHARED_GPU=1) and on GPUs
of their own ("apart"); it is skipped if the machine has too few."""
import contextlib
import os
import random
import signal
import time

import pytest

from elastic import YARDLING, Client, bodies, finish, metric, wait_until
from server import FIXTURES, Server, fails_to_start
from test_cuda import FIRST_GPU, gpus
from test_disaggregation import comparable, errors, greedy, run, seeded
from workers import SIZES, Router, Worker, pair

FLOAT32 = ["--dtype", "float32"]
PLACES = ["shared", "apart"]


def places(kind, prefill=1, decode=1):
    """Returns the flags of both workers and environment variables, for workers with so many ranks."""
    if kind == "shared":
        if not gpus() or os.environ.get("SWITCHYARD_TEST_SHARED_GPU") != "1":
            pytest.skip("SWITCHYARD_TEST_SHARED_GPU=1 and a GPU are needed")
        device = ["--device", "cuda", "--base-gpu-id", FIRST_GPU, "--gpu-id-step", 0]
        return (device, device), {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if gpus() < FIRST_GPU + prefill + decode:
        pytest.skip(f"{prefill + decode} GPUs are needed, {gpus()} were found")
    return tuple(["--device", "cuda", "--base-gpu-id", FIRST_GPU + first] for first in (0, prefill)), {}


def one_server(model, *flags):
    """A server that computes whole requests, on one GPU."""
    if not gpus():
        pytest.skip("no GPU")
    return Server(model, "--device", "cuda", "--base-gpu-id", FIRST_GPU, *SIZES, *FLOAT32, *flags)


@pytest.fixture(scope="module")
def expected():
    """Requests of all kinds, and the outputs of one server."""
    made = seeded(bodies(0, 40))
    with one_server(YARDLING, "--moe-a2a-backend", "deepep") as server:
        return made, run(server, made)


DEEPEP = ["--moe-a2a-backend", "deepep"]
GROUPS = ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1, *DEEPEP]
LAYOUTS = {  # backend, flags of both workers, numbers of ranks
    "shm, pages of 16 and 8": ("shm", DEEPEP, [*DEEPEP, "--page-size", 8], 1, 1),
    "tcp, chunks": ("tcp", [*DEEPEP, "--chunked-prefill-size", 32, "--page-size", 8], DEEPEP, 1, 1),
    "shm, chunks, no graphs, no overlap": (
        "shm", [*DEEPEP, "--chunked-prefill-size", 32, "--disable-cuda-graph", "--disable-overlap-schedule"],
        [*DEEPEP, "--disable-cuda-graph", "--disable-overlap-schedule", "--disable-radix-cache"], 1, 1),
    "shm, drafts from the text": ("shm", DEEPEP, [*DEEPEP, "--speculative-algorithm", "NGRAM"], 1, 1),
    "shm, drafts of an MTP layer": (
        "shm", [*DEEPEP, "--chunked-prefill-size", 32, "--speculative-algorithm", "NEXTN"],
        [*DEEPEP, "--page-size", 8, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2], 1, 1),
    "shm, two-batch overlap, two groups to one": ("shm", [*GROUPS, "--enable-two-batch-overlap"], DEEPEP, 2, 1),
    "shm, one group to two": ("shm", DEEPEP, GROUPS, 1, 2),
    "tcp, two groups to one": ("tcp", GROUPS, DEEPEP, 2, 1),
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_equal_those_of_one_server(expected, layout, kind):
    made, want = expected
    backend, prefill, decode, *ranks = LAYOUTS[layout]
    devices, env = places(kind, *ranks)
    with pair([*FLOAT32, *prefill], [*FLOAT32, *decode], backend=backend, devices=devices, env=env) as (p, d, router):
        for _ in range(2):  # then with cached prefixes
            for body, got, one in zip(made, run(router, made), want):
                assert got == one, (body, p.text(), d.text())
        p.wait_idle(), d.wait_idle()
        assert [metric(w, "switchyard_epoch") for w in (p, d)] == [1, 1], (p.text(), d.text())
        # Every prompt was computed once, by the prefill worker.
        assert d.state()["prefill_tokens"] < p.state()["prefill_tokens"] / 20, (p.state(), d.state())
        assert ("--speculative-algorithm" in decode) == (d.state().get("accepted_draft_tokens", 0) > 0), d.state()
        # Rows went from GPU to GPU.
        assert "through this host's memory" not in p.text() + d.text(), (p.text(), d.text())


# Latent and grouped attention, layers of different sizes, and recurrent states. With states, the second round has prefixes
# whose states are cached. GPUs compute prompts of gated DeltaNet in chunks of 64 rows.
MODELS = {
    "deepseek_v2": ("shm", []), "qwen3_moe": ("tcp", []), "../families/mimo_v2_flash": ("shm", []),
    "../families/qwen3_next": ("shm", ["--chunked-prefill-size", 64]), "../families/kimi_linear": ("tcp", []),
    "../families/nemotron_h": ("shm", ["--chunked-prefill-size", 16]),
    "../families/deepseek_v4": ("shm", ["--chunked-prefill-size", 6]),
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("model", MODELS)
def test_fixtures_equal_one_server(model, kind):
    devices, env = places(kind)
    r = random.Random(6)
    made = [greedy([r.randrange(3, 90) for _ in range(length)], return_logprob=True) for length in (1, 2, 15, 16, 33, 150)]
    backend, chunks = MODELS[model]
    small = ["--max-total-tokens", 2048, "--max-running-requests", 8, "--tokenizer-path", FIXTURES / "qwen3_moe"]
    with one_server(FIXTURES / model, *small) as server:
        want = [run(server, made) for _ in range(2)]
    with pair([*FLOAT32, *small, *chunks, "--page-size", 4], [*FLOAT32, *small], model=FIXTURES / model, backend=backend,
              devices=devices, env=env) as (p, d, router):
        for round_of_one in want:
            for got, one in zip(run(router, made), round_of_one):
                assert got == one, (p.text(), d.text())
        p.wait_idle(), d.wait_idle()
        assert d.state()["prefill_tokens"] < p.state()["prefill_tokens"] / 10, (p.state(), d.state())


@pytest.mark.parametrize("kind", PLACES)
def test_a_killed_worker_of_each_kind_loses_no_request(kind):
    devices, env = places(kind)
    made = [greedy([7 * i + j for j in range(200)], 300) for i in range(1, 9)]
    with one_server(YARDLING) as server:
        want = run(server, made)
    with contextlib.ExitStack() as stack:
        workers = {mode: [stack.enter_context(Worker(mode, *FLOAT32, backend="shm", device=device, env=env)) for _ in range(2)]
                   for mode, device in zip(("prefill", "decode"), devices)}
        router = stack.enter_context(Router(workers["prefill"], workers["decode"], "--max-retries", 8, "--policy", "round_robin"))
        for mode in workers:
            clients = [Client(router, body) for body in made]
            if mode == "decode":
                wait_until(lambda: sum(c.events for c in clients) > 40 or not any(c.is_alive() for c in clients))
            else:
                time.sleep(0.05)
            workers[mode][0].process.kill()
            for result, one in zip(finish(clients), want):
                assert not isinstance(result, str), (mode, result, router.text())
                assert comparable(result) == one, (mode, router.text())
        for mode in workers:
            workers[mode][1].wait_idle()


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize("kind", PLACES)
def test_ranks_that_end_are_replaced(kind, backend):
    """The memory of ranks that have ended is unmapped, and that of the next ones is mapped."""
    devices, env = places(kind)
    made = [greedy([7 * i + j for j in range(50)], 200) for i in range(1, 5)]
    with one_server(YARDLING) as server:
        want = run(server, made)
    with pair(FLOAT32, FLOAT32, backend=backend, devices=devices, env=env) as (p, d, router):
        for victim in (d, p):
            clients = [Client(router, body) for body in made]
            wait_until(lambda: all(c.events > 3 for c in clients), 60)
            os.kill(victim.ranks()[0], signal.SIGKILL)
            for result, one in zip(finish(clients), want):
                assert not isinstance(result, str), (result, victim.text())
                assert comparable(result) == one
            assert run(router, made) == want


def test_a_cpu_and_a_gpu_are_refused_on_both_sides():
    if not gpus():
        pytest.skip("no GPU")
    gpu = ["--device", "cuda", "--base-gpu-id", FIRST_GPU]
    with Worker("prefill", "--disaggregation-timeout", 2, device=gpu) as p, \
            Worker("decode", "--disaggregation-timeout", 2) as d:
        for status, error in errors(p, d, 1):
            assert status == 503 and "--device is cuda on the prefill worker, but cpu on the decode worker" in error, error


def test_stages_are_refused_by_name():
    if not gpus():
        pytest.skip("no GPU")
    code, text = fails_to_start("--model-path", YARDLING, "--device", "cuda", "--gpu-id-step", 0, "--pp-size", 2,
                                "--disaggregation-mode", "decode")
    assert code == 2 and "--disaggregation-mode decode: on GPUs not supported with --pp-size 2" in text, text
