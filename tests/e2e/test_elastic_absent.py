"""While a lost rank loads, the others serve without it (--elastic-ep-backend mooncake). All outputs equal those of an
undisturbed server, byte for byte."""
import signal

import pytest

from elastic import YARDLING, FLAGS, Faults, bodies, finish, kill, metric, start_batch, state_of, wait_decoding, \
    wait_epoch, wait_until
from server import Server, fails_to_start

LAYOUT = ["--tp", 4, "--ep", 4, "--dp-size", 4, "--enable-dp-attention", "--moe-dense-tp-size", 1,
          "--elastic-ep-backend", "mooncake"]
BACKENDS = {
    "deepep": ["--moe-a2a-backend", "deepep"],
    "mooncake, replicas": ["--moe-a2a-backend", "mooncake", "--ep-num-redundant-experts", 4],
}


def serving(server):
    return metric(server, "switchyard_serving_ranks")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_other_ranks_serve_while_a_rank_loads(backend):
    flags = [*FLAGS, *LAYOUT, *BACKENDS[backend]]
    victims = [2, 0] if backend == "deepep" else [1]  # rank 0 is the leader
    batches = {victim: [bodies(2 * i + j, 45) for j in range(2)] for i, victim in enumerate(victims)}
    with Server(YARDLING, *flags) as server:
        want = {victim: [finish(start_batch(server, made)) for made in both] for victim, both in batches.items()}
        assert server.stop() == 0
    with Faults(YARDLING, *flags) as faults:
        server = faults.server
        assert serving(server) == 4
        for victim, (first, second) in batches.items():
            epoch = metric(server, "switchyard_epoch")
            old = server.ranks()
            assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
            faults.order(f"{victim}.load", "hold")
            clients = start_batch(server, first)
            wait_decoding(clients)
            kill(server, [victim], signal.SIGKILL)
            # The batch that lost the rank ends, and so does a second one, before the rank has loaded.
            assert finish(clients) == want[victim][0], server.text()
            assert metric(server, "switchyard_epoch") == epoch + 1, server.text()
            assert serving(server) == 3 and metric(server, "switchyard_ranks") == 4
            clients = start_batch(server, second)
            wait_decoding(clients)
            assert server.request("/health")[0] == 200
            assert serving(server) == 3
            faults.withdraw(f"{victim}.load")  # the rank returns during the second batch
            assert finish(clients) == want[victim][1], server.text()
            wait_epoch(server, epoch + 2)
            assert serving(server) == 4
            assert len(server.ranks()) == 4 and len(set(server.ranks()) & set(old)) == 3
        assert metric(server, "switchyard_rank_deaths_total") == len(victims)
        ranks = server.ranks()
        assert server.stop() == 0
        assert not any(state_of(pid) for pid in ranks)


def test_more_ranks_end_while_one_loads():
    flags = [*FLAGS, *LAYOUT, "--moe-a2a-backend", "deepep"]
    made = bodies(9, 45)
    with Server(YARDLING, *flags) as server:
        want = finish(start_batch(server, made))
    with Faults(YARDLING, *flags) as faults:
        server = faults.server
        assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
        faults.order("3.load", "hold")
        clients = start_batch(server, made)
        wait_decoding(clients)
        kill(server, [3], signal.SIGKILL)
        wait_epoch(server, 2)
        faults.order("1.load", "hold")
        kill(server, [1], signal.SIGKILL)  # a rank that serves
        wait_epoch(server, 3)
        assert serving(server) == 2, server.text()
        kill(server, [3], signal.SIGKILL)  # the rank that loads
        wait_until(lambda: metric(server, "switchyard_epoch") >= 4 and serving(server) == 2)
        faults.withdraw("3.load")
        faults.withdraw("1.load")
        assert finish(clients) == want, server.text()
        wait_until(lambda: serving(server) == 4)
        assert server.stop() == 0


def test_sigterm_drains_without_the_rank_that_loads():
    with Faults(YARDLING, *FLAGS, *LAYOUT, "--moe-a2a-backend", "deepep") as faults:
        server = faults.server
        faults.order("2.load", "hold")
        made = [{"input_ids": [5, 6, 7], "stream": False,
                 "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 60}}]
        clients = start_batch(server, made)
        kill(server, [2], signal.SIGKILL)
        wait_epoch(server, 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.text()
        assert finish(clients)[0]["meta_info"]["completion_tokens"] == 60


def test_layouts_whose_ranks_serve_only_together_are_refused():
    for flags, expected in [(["--tp", 2], "--enable-dp-attention"),
                            ([*LAYOUT, "--moe-a2a-backend", "none"], "--moe-a2a-backend"),
                            ([*LAYOUT, "--moe-a2a-backend", "deepep", "--disable-elastic-ep"], "exclude each other"),
                            ([*LAYOUT, "--elastic-ep-backend", "nixl"], "none or mooncake")]:
        code, said = fails_to_start("--model-path", YARDLING, "--device", "cpu", *flags,
                                    *([] if "--elastic-ep-backend" in flags else ["--elastic-ep-backend", "mooncake"]))
        assert code == 2 and expected in said, said
