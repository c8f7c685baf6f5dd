"""While a lost rank loads, the others serve without it (--elastic-ep-backend mooncake). All outputs equal those of an
undisturbed server, byte for byte."""
import re
import signal
import threading

import pytest

from elastic import YARDLING, FLAGS, Client, Faults, bodies, finish, kill, metric, start_batch, state_of, wait_decoding, \
    wait_epoch, wait_until
from server import Server, fails_to_start
from test_eplb import INT4, answers, eplb, settle, skewed

LAYOUT = ["--tp", 4, "--ep", 4, "--dp-size", 4, "--enable-dp-attention", "--moe-dense-tp-size", 1,
          "--elastic-ep-backend", "mooncake"]
BACKENDS = {
    "deepep": ["--moe-a2a-backend", "deepep"],
    "mooncake, replicas": ["--moe-a2a-backend", "mooncake", "--ep-num-redundant-experts", 4],
}
DRAFTS = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2]


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


@pytest.mark.parametrize("more", [INT4, DRAFTS], ids=["converted weights", "drafts"])
def test_moved_experts_outlive_a_lost_rank(tmp_path, more):
    """With EPLB. The ranks keep the experts that they have at the end of an epoch, and load the others."""
    model = skewed(tmp_path / "model")
    flags = ["--device", "cpu", *LAYOUT, "--moe-a2a-backend", "deepep", "--ep-num-redundant-experts", 8,
             "--enable-eplb", "--eplb-rebalance-num-iterations", 20, "--max-total-tokens", 8192, *more]
    with Server(model, *flags) as server:
        want = [answers(server, seed) for seed in range(4)]
        assert server.stop() == 0
    with Faults(model, *flags) as faults:
        server = faults.server
        for _ in range(5):
            assert answers(server, 0) == want[0]
            if settle(server)["layers_moved"] > 0:
                break
        assert eplb(server)["layers_moved"] > 0
        for victim in (1, 0):  # rank 0 is the leader
            epoch = metric(server, "switchyard_epoch")
            faults.order(f"{victim}.load", "hold")
            got = []
            client = threading.Thread(target=lambda: got.append(answers(server, 1)))
            client.start()
            wait_until(lambda: metric(server, r'switchyard_running_requests\{group="2"\}') or not client.is_alive())
            kill(server, [victim], signal.SIGKILL)
            client.join()
            assert got == [want[1]], server.text()
            assert serving(server) == 3
            moved = eplb(server)
            assert len(moved["placement"]["slots_of_ranks"]) == 3
            assert answers(server, 2) == want[2], server.text()  # experts may move among three ranks
            faults.withdraw(f"{victim}.load")
            wait_epoch(server, epoch + 2)
            assert serving(server) == 4
            assert len(eplb(server)["placement"]["slots_of_ranks"]) == 4
            assert answers(server, 3) == want[3], server.text()
        assert server.stop() == 0


def test_a_rank_that_hangs_while_it_loads_is_started_again():
    with Faults(YARDLING, *FLAGS, *LAYOUT, "--moe-a2a-backend", "deepep", "--dist-timeout", 4) as faults:
        server = faults.server
        for deaths, how, said in [(2, "stop", "--rank-stall-timeout"), (4, "spin", r"loaded, .*\(--dist-timeout\)")]:
            faults.order("2.load", how)
            kill(server, [2], signal.SIGKILL)
            wait_until(lambda: serving(server) == 3)
            assert metric(server, r'switchyard_rank_absent_seconds\{rank="2"\}') > 0
            wait_until(lambda: metric(server, "switchyard_rank_deaths_total") == deaths)
            wait_until(lambda: serving(server) == 4)
            assert re.search(said, server.text()), server.text()
        assert server.stop() == 0


def outputs(clients):
    """The responses without the number of the request."""
    return [[{**output, "meta_info": {**output["meta_info"], "id": None}} for output in result.values()]
            for result in finish(clients)]


def test_the_others_serve_during_a_planned_restart():
    body = {"input_ids": [5, 6, 7], "stream": True,
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 80}}
    with Faults(YARDLING, *FLAGS, *LAYOUT, "--moe-a2a-backend", "deepep") as faults:
        server = faults.server
        want = outputs([Client(server, body)])
        assert server.request("/slow_down", {"forward_sleep_time": 0.005})[0] == 200
        old = server.ranks()
        faults.order("2.load", "hold")
        clients = [Client(server, body) for _ in range(4)]
        got = []
        change = threading.Thread(target=lambda: got.append(server.request("/scale_elastic_ep", {"restart": [2, 0]})))
        wait_decoding(clients)
        change.start()
        wait_until(lambda: serving(server) == 3)
        assert outputs(clients) == 4 * want, server.text()
        assert outputs([Client(server, body)]) == want
        assert serving(server) == 3
        faults.withdraw("2.load")
        change.join()
        status, answer = got[0]
        assert status == 200 and answer["loaded_ranks"] == [2, 0], answer
        assert len(answer["pause_seconds"]) == 4  # each rank leaves and returns
        assert serving(server) == 4
        assert len(set(server.ranks()) & set(old)) == 2
        assert metric(server, "switchyard_rank_deaths_total") == 0
        assert outputs([Client(server, body)]) == want
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
