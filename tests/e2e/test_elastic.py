"""Ranks that end while requests run: all outputs equal those of an undisturbed server, byte for byte."""
import os
import re
import signal
import subprocess

import pytest

from elastic import (FLAGS, YARDLING, Client, Faults, bodies, finish, kill, metric, settled_descriptors, start_batch,
                     state_of, stopped, wait_decoding, wait_epoch, wait_until)
from server import Server, fails_to_start, free_port

LAYOUTS = {
    "2 ranks": ["--tp", 2, "--ep", 2],
    "4 ranks": ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep"],
    "2 groups": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dp-size", 2, "--enable-dp-attention"],
    "drafts": ["--tp", 2, "--ep", 2, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2],
}
TOKENS = {"2 ranks": 70, "4 ranks": 45, "2 groups": 45, "drafts": 70}  # four ranks take long on two cores


def kill_twice(server, clients):
    """Kills all ranks, then kills a new rank while it loads."""
    wait_decoding(clients)
    before = server.ranks()
    kill(server, range(len(before)), signal.SIGKILL)
    wait_until(lambda: set(server.ranks()) - set(before))
    for pid in list(set(server.ranks()) - set(before))[:1]:
        os.kill(pid, signal.SIGKILL)


def when_decoding(ranks, sig):
    def disturb(server, clients):
        wait_decoding(clients)
        kill(server, ranks, sig)
    return disturb


def at_once(ranks, sig):
    return lambda server, clients: kill(server, ranks, sig)


FAULTS = {
    "2 ranks": {
        "SIGKILL of rank 1, decode": when_decoding([1], signal.SIGKILL),
        "SIGKILL of rank 0, prefill": at_once([0], signal.SIGKILL),
        "SIGSEGV of rank 0, decode": when_decoding([0], signal.SIGSEGV),
        "SIGSTOP of rank 1, decode": when_decoding([1], signal.SIGSTOP),
        "SIGKILL of all, then of one that loads": kill_twice,
    },
    "4 ranks": {
        "SIGKILL of rank 3, decode": when_decoding([3], signal.SIGKILL),
        "SIGABRT of rank 1, decode": when_decoding([1], signal.SIGABRT),
    },
    "2 groups": {
        "SIGKILL of rank 1, decode": when_decoding([1], signal.SIGKILL),
    },
    "drafts": {
        "SIGKILL of rank 1, decode": when_decoding([1], signal.SIGKILL),
        "SIGSEGV of rank 0, decode": when_decoding([0], signal.SIGSEGV),
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_equal_those_of_an_undisturbed_server(layout):
    flags = [*FLAGS, *LAYOUTS[layout]]
    batches = {name: bodies(i, TOKENS[layout]) for i, name in enumerate(FAULTS[layout])}
    with Server(YARDLING, *flags) as server:
        want = {name: finish(start_batch(server, made)) for name, made in batches.items()}
        assert server.stop() == 0
    with Server(YARDLING, *flags) as server:
        assert metric(server, "switchyard_epoch") == 1
        before, count = settled_descriptors(server), len(server.ranks())
        for name, disturb in FAULTS[layout].items():
            epoch = metric(server, "switchyard_epoch")
            # Delayed steps: otherwise a fast machine could end the batch before the fault.
            assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
            clients = start_batch(server, batches[name])
            old = server.ranks()
            disturb(server, clients)
            results = finish(clients)
            for body, got, expected in zip(batches[name], results, want[name]):
                assert got == expected, (name, body, server.text())
            assert metric(server, "switchyard_epoch") > epoch, (name, server.text())
            gap = max(c.gap for c in clients)
            tokens = re.findall(r"the first token came (\d+) ms", server.text())
            print(f"{layout:9} | {name:40} | first token {tokens[-1]:>5} ms | longest gap {gap * 1000:6.0f} ms")
            assert len(server.ranks()) == count and server.ranks() != old  # the others keep their weights
            assert not any(state_of(pid) for pid in set(old) - set(server.ranks()))
        assert any(state.get("draft_tokens") for state in server.states()) == (layout == "drafts")
        after = settled_descriptors(server)
        assert after[1] == before[1] and after[0] <= before[0], (before, after)
        ranks = server.ranks()
        assert server.stop() == 0
        assert not any(state_of(pid) for pid in ranks)


def test_an_idle_server_survives_and_answers_at_once():
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:
        for round in range(2):
            kill(server, [round], signal.SIGKILL)
            status, answer = server.request("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
            assert status == 200, answer
        assert metric(server, "switchyard_epoch") == 3
        assert metric(server, "switchyard_rank_deaths_total") == 2
        assert metric(server, "switchyard_pause_seconds_total") > 0
        assert server.request("/health")[0] == 200


def test_a_paused_stream_gets_comments_and_health_is_503():
    """The new rank is stopped for longer than a second while it loads."""
    with Faults(YARDLING, *FLAGS, "--tp", 2, "--rank-stall-timeout", 0) as faults:
        server = faults.server
        body = {"input_ids": [5, 6, 7], "stream": True,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 3000}}
        client = Client(server, body)
        wait_until(lambda: client.events > 3)
        faults.order("1.load", "stop")
        kill(server, [1], signal.SIGKILL)
        wait_until(lambda: stopped(server))
        try:
            wait_until(lambda: server.request("/health")[0] == 503, 20)
            wait_until(lambda: client.comments > 0, 20)
        finally:
            for pid in stopped(server):
                os.kill(pid, signal.SIGCONT)
        client.join(60)
        assert isinstance(client.result, dict), client.result
        assert client.result[0]["meta_info"]["completion_tokens"] == 3000
        assert server.request("/health")[0] == 200


def test_too_many_deaths_end_the_server_with_all_reasons():
    with Server(YARDLING, *FLAGS, "--tp", 2, "--max-rank-deaths", "2/60") as server:
        for epoch in (2, 3):
            kill(server, [1], signal.SIGKILL)
            wait_epoch(server, epoch)
        kill(server, [0], signal.SIGKILL)
        assert server.process.wait(20) == 1
        last = server.text().splitlines()[-1]
        assert "--max-rank-deaths 2/60" in last and last.count("rank 1 (pid") == 2 and "rank 0 (pid" in last, last


def test_new_ranks_continue_from_the_cache_of_the_last_ones():
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:
        body = {"input_ids": list(range(5, 405)), "stream": True,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 400}}

        def prefilled(victims, how, epoch):
            """Ends the ranks `victims` during an output. Returns how many prompt tokens the new ranks compute."""
            client = Client(server, body)
            wait_until(lambda: client.events > 5)
            kill(server, victims, how)
            client.join(60)
            assert client.result[0]["meta_info"]["completion_tokens"] == 400, client.result
            wait_epoch(server, epoch)
            return server.state()["prefill_tokens"]

        assert prefilled([1], signal.SIGKILL, 2) <= 16, server.text()  # at most the tokens of the last page
        assert prefilled([0, 1], signal.SIGKILL, 3) <= 16, server.text()
        status, answer = server.request("/generate", {**body, "stream": False})
        assert answer["meta_info"]["cached_tokens"] == 384  # the whole prompt but its last page
        assert prefilled([1], signal.SIGSEGV, 4) >= 400  # the cache is discarded after a fault signal
        server.wait_idle()
        assert server.request("/flush_cache", method="POST")[0] == 200
        kill(server, [1], signal.SIGKILL)
        wait_epoch(server, 5)
        assert server.state()["cached_pages"] == 0
        assert server.stop() == 0


def test_sigterm_during_a_restart_drains():
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:
        body = {"input_ids": [5, 6, 7], "stream": False,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 120}}
        clients = start_batch(server, [body])
        kill(server, [0], signal.SIGKILL)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.text()
        assert finish(clients)[0]["meta_info"]["completion_tokens"] == 120
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:  # without requests, SIGTERM ends the restart early
        kill(server, [0], signal.SIGKILL)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0, server.text()


def test_weights_that_change_are_not_loaded(tmp_path):
    copy = tmp_path / "model"
    subprocess.run(["cp", "-r", str(YARDLING), str(copy)], check=True)
    with Server(copy, *FLAGS, "--tp", 2) as server:
        weights = next(copy.glob("*.safetensors"))
        replaced = tmp_path / "replaced"
        replaced.write_bytes(weights.read_bytes())
        replaced.rename(weights)
        kill(server, [0], signal.SIGKILL)
        assert server.process.wait(20) == 1
        assert weights.name in server.text().splitlines()[-1]


def test_flags_that_do_not_fit_are_refused():
    for flags, expected in [(["--max-rank-deaths", "0/60"], "--max-rank-deaths"),
                            (["--enable-elastic-ep", "--disable-elastic-ep"], "exclude each other"),
                            (["--rank-stall-timeout", -1], "--rank-stall-timeout"),
                            (["--rank-stall-timeout", 1, "--disable-elastic-ep"], "--rank-stall-timeout"),
                            (["--max-rank-deaths", "3/60", "--tp", 2, "--nnodes", 2, "--dist-init-addr",
                              f"127.0.0.1:{free_port()}"], "--max-rank-deaths"),
                            (["--rank-stall-timeout", 1, "--tp", 2, "--nnodes", 2, "--dist-init-addr",
                              f"127.0.0.1:{free_port()}"], "--rank-stall-timeout")]:
        code, said = fails_to_start("--model-path", YARDLING, *flags)
        assert code == 2 and expected in said, said
