"""Faults at exact points of a step (SWITCHYARD_TEST_FAULTS, see docs/notes/elastic.md), and requests during a pause."""
import os
import signal

import pytest

from elastic import FLAGS, YARDLING, Client, Faults, finish, metric, start_batch, stopped, wait_until
from server import ROOT

POISON = 1999  # the first token of a prompt


@pytest.fixture(scope="module")
def faults():
    with Faults(YARDLING, *FLAGS, "--tp", 2, "--ep", 2, "--max-rank-deaths", "1000/60") as started:
        yield started


def body(first, tokens, stream=True):
    return {"input_ids": [first, 6, 7, 8], "stream": stream,
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}}


def texts(results):
    return [result[0]["text"] for result in results]


BODIES = [body(100, 40), body(200, 60), body(300, 30)]


@pytest.fixture(scope="module")
def expected(faults):
    return texts(finish(start_batch(faults.server, BODIES)))


@pytest.mark.parametrize("point, how", [("0.plan", "exit"), ("1.sampled", "throw"), ("1.post", "bus"), ("0.post", "segv"),
                                        ("0.sampled", "kill"), ("1.plan", "stop"), ("1.enter.300", "abort"),
                                        ("0.layer", "kill"), ("1.layer", "spin")])
def test_a_fault_at_a_point_of_a_step_changes_no_output(faults, expected, point, how):
    deaths = metric(faults.server, "switchyard_rank_deaths_total")
    if "enter" in point:
        faults.order(point, how)
    clients = start_batch(faults.server, BODIES)
    if "enter" not in point:
        faults.order(point, how)
    assert texts(finish(clients)) == expected, faults.server.text()
    assert not faults.waits(point)
    assert metric(faults.server, "switchyard_rank_deaths_total") == deaths + 1


def test_a_request_that_ends_its_ranks_each_time_ends_alone(faults, expected):
    faults.order(f"1.enter.{POISON}", "always segv")
    clients = start_batch(faults.server, BODIES)
    status, answer = faults.server.request("/generate", body(POISON, 9, stream=False))
    assert status >= 500 and "SIGSEGV" in str(answer) and "alone" in str(answer), answer
    assert texts(finish(clients)) == expected
    faults.withdraw(f"1.enter.{POISON}")
    assert faults.server.request("/generate", body(POISON, 9, stream=False))[0] == 200


def test_ranks_that_fail_one_after_another_blame_no_request(faults, expected):
    """Rank 0 or 1 fails first, which ends the other rank before its own fault. That rank fails later, while a suspect
    runs alone."""
    deaths = metric(faults.server, "switchyard_rank_deaths_total")
    clients = start_batch(faults.server, BODIES)
    for rank in (0, 1):
        faults.order(f"{rank}.sampled", "abort")
    assert texts(finish(clients)) == expected, faults.server.text()
    wait_until(lambda: not faults.waits("0.sampled") and not faults.waits("1.sampled"))
    assert metric(faults.server, "switchyard_rank_deaths_total") > deaths


def test_a_request_whose_ranks_are_killed_each_time_ends_too(faults):
    """Each time, SIGKILL ends the rank, as the kernel does if memory is short."""
    faults.order(f"1.enter.{POISON}", "always kill")
    status, answer = faults.server.request("/generate", body(POISON, 9, stream=False))
    assert status >= 500 and "SIGKILL" in str(answer), answer
    faults.withdraw(f"1.enter.{POISON}")


def test_a_question_that_ends_its_ranks_is_asked_twice(faults, expected):
    deaths = metric(faults.server, "switchyard_rank_deaths_total")
    clients = start_batch(faults.server, BODIES)
    faults.order("0.question", "always abort")
    status, answer = faults.server.request("/start_profile", {"output_dir": faults.folder.name})
    assert status != 200 and "SIGABRT" in str(answer), answer
    faults.withdraw("0.question")
    assert metric(faults.server, "switchyard_rank_deaths_total") == deaths + 2
    assert texts(finish(clients)) == expected


def test_requests_end_and_questions_are_answered_during_a_pause():
    flags = [*FLAGS, "--tp", 2, "--rank-stall-timeout", 0, "--request-timeout", 3]
    with Faults(YARDLING, *flags) as faults:
        server = faults.server
        leaves = Client(server, body(100, 30000))
        overdue = Client(server, body(200, 30000))
        waits = Client(server, body(300, 30000, stream=False))
        wait_until(lambda: leaves.events > 2 and overdue.events > 2 and server.state()["open_requests"] == 3)
        faults.order("1.load", "stop")
        os.kill(server.ranks()[1], signal.SIGKILL)
        wait_until(lambda: stopped(server))
        leaves.close()
        overdue.join(30)  # --request-timeout
        waits.join(30)
        assert "--request-timeout" in str(overdue.result) and "--request-timeout" in str(waits.result)
        wait_until(lambda: server.state()["open_requests"] == 0)
        late = Client(server, body(400, 5))
        wait_until(lambda: server.state()["waiting_requests"] == 1)
        assert metric(server, "switchyard_epoch") == 1
        server.request("/abort_request", {"rid": "unknown"})
        for pid in stopped(server):
            os.kill(pid, signal.SIGCONT)
        assert finish([late])[0][0]["meta_info"]["completion_tokens"] == 5
        assert metric(server, "switchyard_epoch") == 2
        assert server.stop() == 0


def test_embeddings_continue_after_a_restart():
    with Faults(ROOT / "tests/data/pooling/qwen3_embedding", "--dtype", "float32", "--max-total-tokens", 4096,
                "--tp", 2) as faults:
        ask = {"input": [[5, 6, 7], [8, 9]]}
        want = faults.server.request("/v1/embeddings", ask)[1]["data"]
        faults.order("1.enter.8", "segv")
        assert faults.server.request("/v1/embeddings", ask)[1]["data"] == want
        assert metric(faults.server, "switchyard_epoch") == 2
