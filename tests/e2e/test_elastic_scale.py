"""Planned changes of the ranks while requests run: nothing is lost, and outputs equal those of an undisturbed server."""
import os
import signal
import threading

import pytest

from elastic import (FLAGS, YARDLING, Client, Faults, bodies, finish, metric, start_batch, state_of, stopped, wait_decoding,
                     wait_until)
from server import Server

# If each rank has the complete attention and dense layers, outputs are bitwise equal for any number of ranks.
EXACT = [*FLAGS, "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep",
         "--moe-dense-tp-size", 1]
TOKENS = 36


def scale(server, **body):
    return server.request("/scale_elastic_ep", body)


def layout(server):
    info = server.request("/get_server_info")[1]
    return info["tp_size"], info["ep_size"], info["dp_size"]


def changes(server):
    return metric(server, "switchyard_rank_changes_total")


def run_changed(server, batch, *requests):
    """Requests the changes while a batch decodes. Returns the results of the batch, the responses of the changes, and
    the longest gap in a stream in ms."""
    clients = start_batch(server, batch)
    wait_decoding(clients)
    answers = []
    for request in requests:
        status, answer = scale(server, **request)
        assert status == 200, (answer, server.text())
        answers.append(answer)
    return finish(clients), answers, 1000 * max(c.gap for c in clients)


CHANGES = [
    ({"new_ep_size": 4}, (4, 4, 4)),  # SGLang's field
    ({"new_data_parallel_size": 1, "drain_timeout": 5}, (1, 1, 1)),  # vLLM's fields
    ({"come": 2}, (3, 3, 3)),
    ({"leave": [0], "load_beside": False}, (2, 2, 2)),
]


def test_outputs_are_equal_while_the_number_of_ranks_changes():
    batches = [bodies(i, TOKENS) for i in range(len(CHANGES))]
    with Server(YARDLING, *EXACT) as server:
        want = [finish(start_batch(server, made)) for made in batches]
    with Server(YARDLING, *EXACT) as server:
        for made, expected, (request, sizes) in zip(batches, want, CHANGES):
            before, old = layout(server), server.ranks()
            results, (answer,), gap = run_changed(server, made, request)
            for body, got, wanted in zip(made, results, expected):
                assert got == wanted, (request, body, server.text())
            assert answer["changed"] and answer["outputs_stay_equal"], answer
            assert (answer["old_tp_size"], answer["old_ep_size"], answer["old_dp_size"]) == before
            assert (answer["new_tp_size"], answer["new_ep_size"], answer["new_dp_size"]) == sizes == layout(server)
            assert answer["loaded_ranks"] == list(range(sizes[0])) and len(answer["pause_seconds"]) == 1
            assert answer["loaded_beside_the_old_ranks"] == ("load_beside" not in request), answer
            assert len(server.states()) == sizes[2] and len(server.ranks()) == sizes[0]
            assert metric(server, "switchyard_ranks") == sizes[0]
            assert not any(state_of(pid) for pid in old)
            print(f"{before} -> {sizes}: pause {answer['pause_seconds'][0] * 1000:.0f} ms of {answer['seconds']:.2f} s, "
                  f"longest gap {gap:.0f} ms")
        assert changes(server) == len(CHANGES) and metric(server, "switchyard_rank_deaths_total") == 0
        assert server.stop() == 0


def test_a_rolling_restart_changes_no_output():
    flags = [*FLAGS, "--tp", 2, "--ep", 2]
    batches = [bodies(i, TOKENS) for i in range(2)]
    with Server(YARDLING, *flags) as server:
        want = [finish(start_batch(server, made)) for made in batches]
    with Server(YARDLING, *flags) as server:
        old = server.ranks()
        results, (answer,), _ = run_changed(server, batches[0], {"restart": True})
        assert results == want[0], server.text()
        assert answer["loaded_ranks"] == [0, 1] and len(answer["pause_seconds"]) == 2 and answer["epoch"] == 3
        assert not set(old) & set(server.ranks())
        old = server.ranks()
        results, answers, _ = run_changed(server, batches[1], {"restart": [1]}, {"leave": [0], "come": 1})
        assert results == want[1], server.text()
        assert [a["loaded_ranks"] for a in answers] == [[1], [0]]
        assert not set(old) & set(server.ranks())
        assert changes(server) == 4 and metric(server, "switchyard_rank_deaths_total") == 0
        assert "planned restart of rank" in server.text()
        # Rank 1 keeps its weights and the KV cache, so its process is not restarted.
        old = server.ranks()
        assert scale(server, restart=[0])[0] == 200
        assert set(old) & set(server.ranks()) == {old[1]}
        status, answer = scale(server, new_ep_size=3)  # the four attention heads do not divide
        assert status == 400 and "num_attention_heads" in answer["error"]["message"], answer
        assert "if only new_tp_size is set, it may be 1, 2, 4" in answer["error"]["message"], answer
        assert server.stop() == 0


@pytest.fixture(scope="module")
def faults():
    with Faults(YARDLING, *EXACT, "--admin-api-key", "boss", "--rank-stall-timeout", 0) as started:
        yield started


def proceed(server):
    wait_until(lambda: stopped(server))
    for pid in stopped(server):
        os.kill(pid, signal.SIGCONT)


def as_admin(server, body, key="boss"):
    return server.request("/scale_elastic_ep", body, {"Authorization": f"Bearer {key}"})


def test_requests_that_are_not_valid_change_nothing(faults):
    server = faults.server
    epoch = metric(server, "switchyard_epoch")
    assert as_admin(server, {"new_ep_size": 4}, "user")[0] == 403
    for body, expected in [
        ({"new_ep_size": 300}, "if only new_tp_size is set, it may be 1 to 256"),
        ({"new_tp_size": 3, "new_ep_size": 2, "new_dp_size": 1}, "--ep 2 does not divide --tp 3"),
        ({"new_ep_size": 0}, "new_ep_size"), ({"size": 4}, "size is unknown"), ({}, "want one of"),
        ({"leave": [7]}, "leave has 7"), ({"restart": [0], "come": 1}, "want one of"),
        ({"restart": True, "load_beside": True}, "load_beside"), ({"restart": 1}, "restart is 1, want true"),
    ]:
        status, answer = as_admin(server, body)
        assert status == 400 and expected in answer["error"]["message"], (body, answer)
    status, answer = as_admin(server, {"new_ep_size": 2})
    assert status == 200 and not answer["changed"] and answer["pause_seconds"] == [], answer
    for method in ("GET", "POST"):
        assert server.request("/is_scaling_elastic_ep", method=method)[1] == {
            "is_scaling_elastic_ep": False, "tp_size": 2, "ep_size": 2, "dp_size": 2, "pending_ep_size": None,
            "last_error": None}
    assert metric(server, "switchyard_epoch") == epoch


@pytest.mark.parametrize("beside", [True, False])
def test_ranks_that_do_not_load_leave_the_layout_as_it_was(faults, beside):
    server = faults.server
    body = {"input_ids": [5, 6, 7], "stream": True, "sampling_params": {"temperature": 0, "ignore_eos": True,
                                                                        "max_new_tokens": 200}}
    want = finish(start_batch(server, [body]))
    clients = start_batch(server, [body])
    wait_decoding(clients)
    faults.order("3.load", "kill")
    before = changes(server)
    status, answer = as_admin(server, {"new_ep_size": 4, "load_beside": beside})
    assert status == 500 and "SIGKILL" in str(answer), answer
    assert finish(clients)[0][0]["text"] == want[0][0]["text"], server.text()
    assert layout(server) == (2, 2, 2) and len(server.ranks()) == 2
    assert changes(server) == before + (0 if beside else 1)
    assert "SIGKILL" in server.request("/is_scaling_elastic_ep")[1]["last_error"]


def test_a_change_in_progress_is_visible_and_excludes_another(faults):
    server = faults.server
    faults.order("1.load", "stop")
    answer = {}
    thread = threading.Thread(target=lambda: answer.update(status=as_admin(server, {"new_ep_size": 4})))
    thread.start()
    wait_until(lambda: server.request("/is_scaling_elastic_ep")[1]["is_scaling_elastic_ep"])
    assert server.request("/is_scaling_elastic_ep")[1]["pending_ep_size"] == 4
    assert as_admin(server, {"restart": True})[0] == 409
    assert server.request("/health")[1] == {"status": "ok", "is_scaling_elastic_ep": True}
    assert metric(server, "switchyard_rank_change_running") == 1
    status, generated = server.request("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
    assert status == 200, generated  # the present ranks serve meanwhile
    proceed(server)
    thread.join(60)
    assert answer["status"][0] == 200, answer
    assert server.request("/health")[1] == {"status": "ok"}
    assert layout(server) == (4, 4, 4)


def test_a_long_pause_is_visible(faults):
    server = faults.server
    client = Client(server, {"input_ids": [5, 6, 7], "stream": True,
                             "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 1000}})
    wait_until(lambda: client.events > 3)
    faults.order("0.load", "stop")
    thread = threading.Thread(target=lambda: as_admin(server, {"new_ep_size": 2, "load_beside": False}))
    thread.start()
    try:
        wait_until(lambda: server.request("/health")[0] == 503)
        wait_until(lambda: client.comments > 0)
    finally:
        proceed(server)
    thread.join(60)
    client.join(60)
    assert client.result[0]["meta_info"]["completion_tokens"] == 1000, client.result
    assert layout(server) == (2, 2, 2)


def test_sigterm_ends_a_change_in_progress():
    with Faults(YARDLING, *EXACT, "--rank-stall-timeout", 0) as faults:
        server, answer = faults.server, {}
        faults.order("1.load", "stop")
        thread = threading.Thread(target=lambda: answer.update(got=scale(server, new_ep_size=4)))
        thread.start()
        wait_until(lambda: stopped(server))
        assert server.stop() == 0  # a rank that is stopped would otherwise delay the end
        thread.join(60)
        status, error = answer["got"]
        assert status == 503 and "shutting down" in error["error"]["message"], answer


def test_a_server_without_elastic_ranks_refuses():
    with Server(YARDLING, *FLAGS, "--disable-elastic-ep") as server:
        status, answer = scale(server, restart=True)
        assert status == 400 and "--disable-elastic-ep" in answer["error"]["message"], answer
