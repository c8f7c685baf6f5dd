"""Ranks on GPUs that end: the others keep their processes, and all keep their weights and their cache. All outputs equal
those of an undisturbed server, byte for byte. Cases are skipped as in test_cuda.py."""
import re
import signal

import pytest

from elastic import (YARDLING, bodies, finish, kill, metric, ready_spares, spare_pids, start_batch, wait_decoding,
                     wait_epoch, wait_until)
from server import Server
from test_cuda import GRAPHS, where

LAYOUTS = {
    "one": ["--tp", 1],
    "none": ["--tp", 2, "--ep", 2],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "whole": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
              "--moe-a2a-backend", "deepep"],
}
FLAGS = ["--max-total-tokens", 32768, "--max-running-requests", 64, "--random-seed", 7]
# The ranks that end, and how.
ENDS = [([1], signal.SIGKILL), ([0], signal.SIGKILL), ([1], signal.SIGSTOP), ([0, 1], signal.SIGKILL)]
MAPPED = "of the rank's last process are mapped"


def ranks_of(layout):
    return LAYOUTS[layout][1]


def ends_of(layout):
    return ENDS if ranks_of(layout) == 2 else [([0], signal.SIGKILL), ([0], signal.SIGSTOP)]


def undisturbed(flags, env, batches):
    """The outputs of each batch of requests, without the end of a rank."""
    with Server(YARDLING, *flags, env=env) as server:
        outputs = [finish(start_batch(server, made)) for made in batches]
        assert server.stop() == 0
    return outputs


def decoding(server, made):
    """Starts a batch of requests with slow steps. Returns its clients when all of them decode."""
    assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
    clients = start_batch(server, made)
    wait_decoding(clients)
    return clients


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_survivors_keep_their_process_and_new_ranks_map_their_weights(layout, graphs):
    device, env = where(ranks_of(layout))
    flags = [*device, *FLAGS, *LAYOUTS[layout], *GRAPHS[graphs]]
    ends = ends_of(layout)
    batches = [bodies(i, 48) for i in range(len(ends))]
    want = undisturbed(flags, env, batches)
    with Server(YARDLING, *flags, env=env) as server:
        started = 0
        for i, (victims, how) in enumerate(ends):
            old = server.ranks()
            clients = decoding(server, batches[i])
            kill(server, victims, how)
            assert finish(clients) == want[i], (victims, how, server.text())
            wait_epoch(server, i + 2)
            now = server.ranks()
            assert [a == b for a, b in zip(old, now)] == [rank not in victims for rank in range(len(old))], server.text()
            started += len(victims)
            assert server.text().count(MAPPED) == started, server.text()
            kept = len(re.findall(r"reused [1-9]\d* of \d+ pages", server.text()))
            assert kept == i + 1, server.text()
        assert server.stop() == 0


# The requests of bodies() need logits on the host. Without such requests, all steps are launched ahead.
@pytest.mark.parametrize("layout", ["one", "none", "deepep"])
def test_pages_of_launched_steps_stay(layout):
    device, env = where(ranks_of(layout))
    flags = [*device, *FLAGS, *LAYOUTS[layout]]
    made = [{"input_ids": [100 + i] + [2 + (7 * i + j) % 1900 for j in range(199)], "stream": True,
             "sampling_params": {"temperature": i % 2, "max_new_tokens": 48, "ignore_eos": True}} for i in range(16)]
    [want] = undisturbed(flags, env, [made])
    with Server(YARDLING, *flags, env=env) as server:
        clients = decoding(server, made)
        kill(server, [ranks_of(layout) - 1], signal.SIGKILL)
        assert finish(clients) == want, server.text()
        [reused] = re.findall(r"reused (\d+) of \d+ pages", server.text())
        assert int(reused) >= 16 * (200 // 64), server.text()  # the pages of the prompts, of at most 64 tokens
        assert server.stop() == 0


def test_without_a_prefix_cache_only_the_weights_stay():
    device, env = where(2)
    flags = [*device, *FLAGS, *LAYOUTS["deepep"], "--disable-radix-cache"]
    made = bodies(0, 48)
    [want] = undisturbed(flags, env, [made])
    with Server(YARDLING, *flags, env=env) as server:
        clients = decoding(server, made)
        kill(server, [1], signal.SIGKILL)
        assert finish(clients) == want, server.text()
        assert server.text().count(MAPPED) == 1 and "pages of the last epoch" not in server.text()
        assert server.stop() == 0


def test_a_spare_maps_the_weights():
    device, env = where(2)
    flags = [*device, *FLAGS, *LAYOUTS["deepep"]]
    batches = [bodies(i, 48) for i in range(2)]
    want = undisturbed(flags, env, batches)
    with Server(YARDLING, *flags, "--spare-ranks", 1, env=env) as server:
        for victim in (1, 0):
            wait_until(lambda: ready_spares(server) == 1, 120)
            spare = spare_pids(server)
            clients = decoding(server, batches[1 - victim])
            kill(server, [victim], signal.SIGKILL)
            assert finish(clients) == want[1 - victim], server.text()
            assert server.ranks()[victim] == spare[0], server.text()
        assert server.text().count(MAPPED) == 2
        assert metric(server, "switchyard_spare_ranks_used_total") == 2
        assert server.stop() == 0


def test_weights_of_a_rank_that_fails_by_itself_are_loaded_again():
    device, env = where(2)
    flags = [*device, *FLAGS, *LAYOUTS["deepep"]]
    made = bodies(0, 48)
    [want] = undisturbed(flags, env, [made])
    with Server(YARDLING, *flags, env=env) as server:
        clients = decoding(server, made)
        kill(server, [1], signal.SIGSEGV)
        assert finish(clients) == want, server.text()
        assert MAPPED not in server.text() and "pages of the last epoch" not in server.text()
        # The weights that have been loaded again are kept in turn.
        epoch = metric(server, "switchyard_epoch")
        kill(server, [1], signal.SIGKILL)
        wait_epoch(server, epoch + 1)
        assert server.text().count(MAPPED) == 1
        assert server.stop() == 0


# Experts that move are loaded again: docs/elastic.md, "Memory of GPUs".
def test_ranks_with_moving_experts_restart_and_load_again():
    device, env = where(2)
    body = {"text": "The yard", "sampling_params": {"temperature": 0, "max_new_tokens": 24}}
    with Server(YARDLING, *device, *FLAGS, *LAYOUTS["deepep"], "--enable-eplb", env=env) as server:
        old = server.ranks()
        status, answer = server.request("/generate", body)
        assert status == 200, answer
        kill(server, [1], signal.SIGKILL)
        wait_epoch(server, 2)
        status, again = server.request("/generate", body)
        assert status == 200 and again["text"] == answer["text"]
        assert not set(server.ranks()) & set(old)
        assert MAPPED not in server.text()
        assert server.stop() == 0
