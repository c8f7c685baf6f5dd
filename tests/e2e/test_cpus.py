"""CPU binding of ranks, and the CPU time of an idle server."""
import os
import pathlib
import time

import pytest

from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"
CPUS = sorted(os.sched_getaffinity(0))
PROMPT = {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}


def cpus_of_threads(pid):
    """CPU affinity of each thread of a process."""
    return [os.sched_getaffinity(int(task.name)) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]


def computing_cpus(pid):
    """CPU affinity of a rank's main thread, which computes and starts the other threads."""
    return os.sched_getaffinity(pid)


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(len(CPUS) < 2, reason="requires two CPUs")
def test_ranks_compute_where_the_flag_says():
    bind = f"{CPUS[1]}|{CPUS[0]}"
    with Server(MODEL, "--device", "cpu", "--tp", 2, "--ep", 2, "--cpu-bind", bind) as server:
        assert [computing_cpus(pid) for pid in server.ranks()] == [{CPUS[1]}, {CPUS[0]}]
        assert server.request("/generate", PROMPT)[0] == 200
        assert all(mask == set(CPUS) for mask in cpus_of_threads(server.process.pid)), "the front must not be pinned"
        assert server.stop() == 0


def test_servers_beside_one_another_pin_to_different_cpus():
    flags = ["--device", "cpu", "--cpu-threads-per-rank", 1]
    with Server(MODEL, *flags) as first, Server(MODEL, *flags) as second:
        masks = [computing_cpus(server.ranks()[0]) for server in (first, second)]
        pinned = [mask for mask in masks if mask != set(CPUS)]  # a rank is not pinned if other processes hold all CPUs
        assert len(CPUS) == 1 or all(len(mask) == 1 for mask in pinned)
        assert len(pinned) < 2 or not pinned[0] & pinned[1]
        answers = [server.request("/generate", PROMPT) for server in (first, second)]
        assert [status for status, _ in answers] == [200, 200]
        assert answers[0][1]["output_ids"] == answers[1][1]["output_ids"]


def test_the_servers_own_mask_counts():
    with Server(MODEL, "--device", "cpu", "--log-level", "debug",
                prefix=("taskset", "-c", str(CPUS[-1]))) as server:
        (rank,) = server.ranks()
        assert all(mask == {CPUS[-1]} for mask in cpus_of_threads(rank))
        assert "1 threads" in server.text()
        assert server.stop() == 0


def test_bad_lists_are_refused():
    for bind, said in (("0-", "not a list of CPUs"), ("0", "lists CPUs of 1 ranks, but this host has 2 ranks"), ("0-1|1", "CPU 1 is listed for two ranks")):
        code, text = fails_to_start("--model-path", MODEL, "--tp", 2, "--cpu-bind", bind)
        assert code == 2 and "--cpu-bind" in text and said in text, text
    code, text = fails_to_start("--model-path", MODEL, "--tp", 1, "--device", "cpu", "--cpu-bind", "8191")
    assert code != 0 and "CPU 8191 is outside this process's CPU affinity mask" in text, text


def test_an_idle_server_sleeps():
    with Server(MODEL, "--device", "cpu", "--tp", 2, "--ep", 2) as server:
        assert server.request("/generate", PROMPT)[0] == 200
        pids = [server.process.pid, *server.ranks()]
        time.sleep(0.5)  # wait for the end of work on the last request
        seconds, before = 4, cpu_seconds(pids)
        time.sleep(seconds)
        used = cpu_seconds(pids) - before
        # `used` is CPU time, which does not depend on other programs. It is typically below 1 % of `seconds`.
        assert used < 0.05 * seconds, f"{used} s of {seconds}"
