"""Spare processes that take the places of ranks that end (--spare-ranks). All outputs equal those of an undisturbed
server, byte for byte."""
import os
import re
import signal

import pytest

from elastic import (FLAGS, YARDLING, bodies, finish, kill, metric, ready_spares, settled_descriptors, spare_pids,
                     start_batch, state_of, wait_decoding, wait_epoch, wait_until)
from server import Server, fails_to_start, free_port

LAYOUTS = {
    "whole": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
              "--moe-a2a-backend", "deepep", "--elastic-ep-backend", "mooncake"],
    "sharded, converted": ["--tp", 2, "--ep", 2, "--quantization", "w8a8_int8"],
}
# The ranks that end, and how.
ENDS = [([1], signal.SIGKILL), ([0], signal.SIGSEGV)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_spare_takes_the_place_of_a_rank(layout):
    flags = [*FLAGS, *LAYOUTS[layout]]
    batches = [bodies(i, 36) for i in range(len(ENDS))]
    with Server(YARDLING, *flags) as server:
        want = [finish(start_batch(server, made)) for made in batches]
        assert server.stop() == 0
    with Server(YARDLING, *flags, "--spare-ranks", 1) as server:
        wait_until(lambda: ready_spares(server) == 1)
        before = settled_descriptors(server)
        for i, (victims, how) in enumerate(ENDS):
            wait_until(lambda: ready_spares(server) == 1)
            spare, old = spare_pids(server), server.ranks()
            assert len(spare) == 1 and len(old) == 2
            assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
            clients = start_batch(server, batches[i])
            wait_decoding(clients)
            kill(server, victims, how)
            assert finish(clients) == want[i], (victims, how, server.text())
            # No epoch without the lost rank, although its layout allows it: the spare has its place at once.
            wait_epoch(server, i + 2)
            now = server.ranks()
            assert len(now) == 2 and set(now) & set(spare), server.text()  # the title is that of a rank
            assert len(set(now) & set(old)) == 2 - len(victims)
            assert not any(state_of(old[victim]) for victim in victims)
            assert metric(server, "switchyard_spare_ranks_used_total") == i + 1
        wait_until(lambda: ready_spares(server) == 1)
        assert metric(server, "switchyard_spare_rank_failures_total") == 0
        assert metric(server, "switchyard_rank_deaths_total") == len(ENDS)
        assert server.text().count("takes the place of rank") == len(ENDS)
        after = settled_descriptors(server)
        assert after[1] == before[1] and after[0] <= before[0], (before, after)
        processes = server.ranks() + spare_pids(server)
        assert server.stop() == 0
        assert not any(state_of(pid) for pid in processes)


def test_spares_are_shown_and_started_again():
    with Server(YARDLING, *FLAGS, "--tp", 2, "--spare-ranks", 2) as server:
        wait_until(lambda: ready_spares(server) == 2)
        shown = {"wanted": 2, "ready": 2, "loading": 0, "used": 0, "failed": 0}
        assert server.request("/health")[1] == {"status": "ok", "spare_ranks": shown}
        assert server.request("/get_server_info")[1]["spare_ranks"] == shown
        first = spare_pids(server)
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: metric(server, "switchyard_spare_rank_failures_total") == 1)
        assert metric(server, "switchyard_epoch") == 1 and metric(server, "switchyard_rank_deaths_total") == 0
        wait_until(lambda: ready_spares(server) == 2)
        assert set(spare_pids(server)) - set(first)
        assert re.search(rf"the spare process \(pid {first[0]}\) was killed by signal 9; another one starts", server.text())
        # A planned restart uses a spare too. Ranks of another layout have their own spares.
        assert server.request("/scale_elastic_ep", {"restart": [1]})[0] == 200
        assert server.request("/health")[1]["spare_ranks"]["used"] == 1
        assert server.request("/scale_elastic_ep", {"new_tp_size": 1})[0] == 200
        wait_until(lambda: ready_spares(server) == 2 and len(spare_pids(server)) == 2)
        kill(server, [0], signal.SIGKILL)
        wait_until(lambda: metric(server, "switchyard_spare_ranks_used_total") == 2)
        status, answer = server.request("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
        assert status == 200, answer
        assert server.stop() == 0


def test_layouts_without_spares_are_refused():
    nodes = ["--tp", 2, "--nnodes", 2, "--dist-init-addr", f"127.0.0.1:{free_port()}"]
    for flags, expected in [(["--disable-elastic-ep"], "--spare-ranks and --disable-elastic-ep exclude each other"),
                            ([*nodes, "--enable-elastic-ep"], "--spare-ranks 1: with several nodes"),
                            (nodes, "--spare-ranks: with several nodes"),
                            (["--pp-size", 2], "--spare-ranks: with --pp-size 2"),
                            (["--spare-ranks", 17], "--spare-ranks 17: want 0 to 16")]:
        more = [] if "--spare-ranks" in flags else ["--spare-ranks", 1]
        code, said = fails_to_start("--model-path", YARDLING, "--device", "cpu", *more, *flags)
        assert code == 2 and expected in said, said
