"""Watchdog: detects processes stopped by SIGSTOP, on an idle and on a busy server."""
import os
import re
import shutil
import signal
import threading
import time

import pytest

from server import FIXTURES, MPIRUN, OtherNode, Server, free_port, have_ended, mpi_ranks

MODEL = FIXTURES / "qwen3_moe"
WATCHDOG = 3
# Restarts are disabled, so the end of a rank ends the server. test_elastic.py tests restarts.
ONE_HOST = ["--tp", 2, "--ep", 2, "--disable-elastic-ep"]
# --watchdog-timeout of engines with several nodes. /health names a rank without heartbeat after half of this time.
NODES_WATCHDOG = 8
NODES = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--mem-fraction-static", 0.2, "--watchdog-timeout", NODES_WATCHDOG]
# A request of 64 choices, so that it runs long enough even on a fast machine.
LONG = {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 450, "ignore_eos": True, "n": 64}}


def start_work(server):
    results = []
    thread = threading.Thread(target=lambda: results.append(server.request("/generate", LONG)), daemon=True)
    thread.start()
    server.wait_busy(64)
    return thread, results


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_ends_the_server_with_its_name(rank, busy):
    with Server(MODEL, *ONE_HOST, "--watchdog-timeout", WATCHDOG) as server:
        thread, results = start_work(server) if busy else (None, None)
        pid = server.ranks()[rank]
        os.kill(pid, signal.SIGSTOP)
        start = time.time()
        health = 200
        while health == 200 and time.time() < start + WATCHDOG:
            health, answer = server.request("/health", timeout=5)
            time.sleep(0.05)
        assert health == 503 and f"rank {rank} (pid {pid}) has sent no heartbeat" in answer["error"]["message"]
        assert server.process.wait(2 * WATCHDOG) == 1
        assert time.time() - start < 2 * WATCHDOG
        expected = rf"rank {rank} \(pid {pid}\) sent no heartbeat for \d s and was killed \(--watchdog-timeout\)"
        assert re.search(expected, server.text()), server.text()
        if busy:
            thread.join(5)
            assert results[0][0] == 500 and "sent no heartbeat" in results[0][1]["error"]["message"]


@pytest.mark.parametrize("busy", [False, True])
def test_ranks_leave_a_stopped_server_process(busy):
    with Server(MODEL, *ONE_HOST, "--watchdog-timeout", WATCHDOG) as server:
        if busy:
            start_work(server)
        server.process.send_signal(signal.SIGSTOP)
        deadline = time.time() + 2 * WATCHDOG
        while time.time() < deadline and f"the server process (pid {server.process.pid}) sent no heartbeat" not in server.text():
            time.sleep(0.05)
        expected = rf"the server process \(pid {server.process.pid}\) sent no heartbeat for \d s \(--watchdog-timeout\)"
        assert re.search(expected, server.text()), server.text()
        server.process.send_signal(signal.SIGCONT)
        assert server.process.wait(20) == 1
        assert "the server process" in server.text().splitlines()[-1]


def read_failed_health(server):
    health, deadline = 200, time.time() + 5 * NODES_WATCHDOG
    while health == 200 and time.time() < deadline:
        health, answer = server.request("/health")
        time.sleep(0.05)
    assert health == 503
    return answer["error"]["message"]


@pytest.fixture(params=["mpi", "tcp"])
def launched(request):
    """A server of two ranks started by mpirun, and the pids of the ranks."""
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun (openmpi-bin)")
    flags = ["--dist-init-addr", f"127.0.0.1:{free_port()}"] if request.param == "tcp" else []
    with Server(MODEL, *NODES, *flags, prefix=[*MPIRUN, "-n", "2"]) as server:
        pids = mpi_ranks(server)
        assert len(pids) == 2
        yield server, pids


@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_rank_of_mpirun_ends_the_server_with_its_name(launched, busy):
    server, pids = launched
    thread, results = start_work(server) if busy else (None, None)
    os.kill(pids[1], signal.SIGSTOP)
    assert "rank 1 has sent no heartbeat for" in read_failed_health(server)
    assert server.process.wait(60) != 0
    assert "rank 1 sent no heartbeat for" in server.text() and "--watchdog-timeout" in server.text()
    assert have_ended(pids)
    if busy:
        thread.join(60)
        assert results[0][0] == 500 and "sent no heartbeat" in results[0][1]["error"]["message"]


def test_ranks_of_mpirun_leave_a_stopped_rank_0(launched):
    server, pids = launched
    os.kill(pids[0], signal.SIGSTOP)
    assert server.process.wait(60) != 0
    assert "rank 0 sent no heartbeat for" in server.text() and "--watchdog-timeout" in server.text()
    assert have_ended(pids)


def test_a_stopped_node_ends_the_server_with_the_name_of_its_rank():
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(MODEL, address, *NODES) as node1:
        with Server(MODEL, *NODES, "--nnodes", 2, "--node-rank", 0, "--dist-init-addr", address) as node0:
            for pid in [node1.process.pid, *node1.ranks()]:
                os.kill(pid, signal.SIGSTOP)
            assert "rank 1 has sent no heartbeat for" in read_failed_health(node0)
            assert node0.process.wait(60) == 1
            assert "rank 1 sent no heartbeat for" in node0.text() and "--watchdog-timeout" in node0.text()


def test_sigterm_ends_a_server_whose_leader_is_stopped():
    with Server(MODEL, *ONE_HOST) as server:
        os.kill(server.ranks()[0], signal.SIGSTOP)
        start = time.time()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(25)
        assert time.time() - start < 20
        assert "killed" in server.text()


def test_a_short_watchdog_is_refused():
    from server import fails_to_start
    code, said = fails_to_start("--model-path", MODEL, "--watchdog-timeout", 1)
    assert code == 2 and "--watchdog-timeout" in said
