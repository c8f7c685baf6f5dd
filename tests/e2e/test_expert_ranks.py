"""A rank with attention and a rank with experts only: outputs of one rank, also while experts move by heat and after the
end of a rank."""
import os
import signal
import time

import pytest

from server import FIXTURES, Server, fails_to_start
from test_eplb import EXPERTS, HOT, MOE_LAYERS, answers, eplb, metrics, settle, skewed

COMMON = ["--dtype", "float32", "--max-total-tokens", 8192, "--moe-a2a-backend", "deepep", "--check-batches"]
LAYOUT = ["--tp", 2, "--expert-ranks", 1, "--expert-slots", "4,12", "--eplb-rank-costs", "1:10,8:200"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return skewed(tmp_path_factory.mktemp("skewed") / "model")


def hot_on_first(server):
    """Whether the first rank, which has four slots, holds the experts that the routers prefer. The first plan is made from
    few tokens. If it has three of the four experts in place, later plans may find a move of the fourth not worth its cost."""
    rows = [row for row in eplb(server)["placement"]["layers"] if row]
    return len(rows) == MOE_LAYERS and all(len(set(row[:4]) & set(HOT)) >= 3 for row in rows)


@pytest.mark.parametrize("weights", [[], ["--quantization", "int4"]], ids=["stored weights", "converted weights"])
def test_hot_experts_move_to_the_fast_rank_and_no_output_changes(checkpoint, weights):
    with Server(checkpoint, *COMMON, *weights) as one:
        want = [answers(one, seed) for seed in range(3)]
        assert one.stop() == 0
    with Server(checkpoint, *COMMON, *LAYOUT, *weights, "--enable-eplb", "--eplb-rebalance-num-iterations", 60) as server:
        info = server.request("/server_info")[1]
        assert info["tp_size"] == 2 and info["dp_size"] == 1
        assert len(server.states()) == 1
        end = time.time() + 60
        while not hot_on_first(server) and time.time() < end:
            for seed in range(3):
                assert answers(server, seed) == want[seed], seed  # bit-identical while experts move
        now = settle(server)
        assert now["rebalances"] >= 1 and now["failures"] == 0, now
        placement = eplb(server)["placement"]
        assert placement["slots_of_ranks"] == [4, EXPERTS - 4]
        assert hot_on_first(server), placement
        for epoch, victim in ((2, 1), (3, 0)):  # the rank with experts only, then the other one
            os.kill(server.ranks()[victim], signal.SIGKILL)
            end = time.time() + 30
            while metrics(server)["switchyard_epoch"] < epoch and time.time() < end:
                time.sleep(0.01)
            assert answers(server, victim) == want[victim]
        assert eplb(server)["placement"]["layers"] == placement["layers"], server.text()
        assert server.stop() == 0


@pytest.mark.parametrize("flags, expected", [
    (["--tp", 2, "--expert-ranks", 2], "--expert-ranks 2: want less than --tp-size 2"),
    (["--tp", 3, "--expert-ranks", 1], "want --dp-size 2"),
    (["--tp", 2, "--expert-ranks", 1, "--expert-slots", "4,4"], "8 slots; want 16"),
    (["--tp", 2, "--expert-ranks", 1, "--spare-ranks", 1], "not supported with --spare-ranks 1"),
    (["--tp", 2, "--expert-ranks", 1, "--pp-size", 2], "--expert-ranks 1: not supported with --pp-size 2"),
    (["--tp", 2, "--ep", 2, "--eplb-rank-costs", "1:2:3:4"], "--eplb-rank-costs 1:2:3:4: want"),
])
def test_what_cannot_be_is_refused_by_name(flags, expected):
    code, said = fails_to_start("--model-path", FIXTURES / "deepseek_v3", "--port", 0, "--device", "cpu", *flags)
    assert code == 2 and expected in said, said
