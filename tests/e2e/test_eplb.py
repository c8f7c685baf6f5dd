"""Expert rebalancing in a running server: balances the load without changed outputs, interrupted requests or leaks."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from server import FIXTURES, PROGRAM, OtherNode, Server, fails_to_start, free_port, shared_memory, start_rebalance

MODEL = FIXTURES / "deepseek_v3"
MOE_LAYERS, EXPERTS, REDUNDANT = 2, 16, 8
RANKS = ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep", "--ep-num-redundant-experts", REDUNDANT,
         "--ep-dispatch-algorithm", "balanced", "--max-total-tokens", 8192]
EPLB = ["--enable-eplb", "--eplb-rebalance-num-iterations", 100]
DP = ["--dp-size", 2, "--enable-dp-attention"]
INT4 = ["--quantization", "int4"]  # converted weights, which ranks send to each other
HOT = [8, 9, 10, 11]  # experts that are all on rank 1 in the trivial placement


def skewed(directory):
    """A copy of MODEL in which the selection biases make the routers prefer the experts in HOT."""
    shutil.copytree(MODEL, directory)
    directory.chmod(0o755)
    file = directory / "model.safetensors"
    file.chmod(0o644)
    raw = bytearray(file.read_bytes())
    size = struct.unpack("<Q", raw[:8])[0]
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name.endswith("e_score_correction_bias"):
            begin = 8 + size + entry["data_offsets"][0]
            biases = [0.2 + 0.02 * HOT.index(e) if e in HOT else 0.01 * (e % 5) for e in range(EXPERTS)]
            raw[begin:begin + 4 * EXPERTS] = struct.pack(f"<{EXPERTS}f", *biases)
    file.write_bytes(raw)
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return skewed(tmp_path_factory.mktemp("skewed") / "model")


def prompts(seed, count=48):
    r = random.Random(seed)
    return [[r.randrange(500) for _ in range(r.randrange(4, 24))] for _ in range(count)]


def answers(server, seed, new_tokens=40):
    """Tokens and log-probabilities of a batch of requests."""
    status, got = server.request("/generate", {
        "input_ids": prompts(seed), "return_logprob": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}})
    assert status == 200, got
    return [(a["output_ids"], a["meta_info"]["output_token_logprobs"]) for a in got]


def eplb(server):
    status, answer = server.request("/eplb")
    assert status == 200, answer
    return answer


def settle(server, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        now = eplb(server)
        if now["state"] in ("idle", "done"):
            return now
        time.sleep(0.01)
    raise AssertionError(f"still busy: {now}")


def rank_counts(server):
    """Rows per rank since the server started, as [MoE layers][ranks]."""
    status, answer = server.request("/expert_distribution")
    assert status == 200, answer
    return [layer["rank_count"] for layer in answer["layers"]]


def balancedness(before, after):
    """Mean / max rank load between two counts, averaged over the MoE layers."""
    loads = [[b - a for a, b in zip(*layer)] for layer in zip(before, after)]
    figures = [sum(ranks) / len(ranks) / max(ranks) for ranks in loads if max(ranks) > 0]
    assert len(figures) == MOE_LAYERS, loads
    return sum(figures) / len(figures)


def metrics(server):
    status, page = server.request("/metrics")
    assert status == 200
    return {name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", page, re.M)}


@pytest.mark.parametrize("layout", [[], DP, INT4], ids=["one group", "two groups", "converted weights"])
def test_a_skewed_load_evens_out_and_no_output_changes(checkpoint, layout):
    with Server(checkpoint, *RANKS, *layout) as still:
        want = [answers(still, seed) for seed in range(8)]
        assert still.stop() == 0
    with Server(checkpoint, *RANKS, *EPLB, *layout, "--enable-expert-distribution-metrics") as server:
        skew, evened = None, []
        for seed in range(8):
            begun = eplb(server)
            moved = 1 <= begun["plans"] <= 2  # during the first two rebalances
            if moved:
                settle(server)
            before = rank_counts(server)
            assert answers(server, seed) == want[seed], seed  # bit-identical while experts move
            if moved:
                evened.append(balancedness(before, rank_counts(server)))
            now = eplb(server)
            if now["plans"] == 0:
                skew = now["balancedness"]
        now = settle(server)
        end = time.time() + 30
        while now["balancedness"] is None and time.time() < end:  # no load has been counted since the last move
            answers(server, 0)
            now = settle(server)
        print(evened, now)
        assert skew is not None and skew < 0.6
        assert evened and evened[-1] > 0.95, evened
        assert 1 <= now["rebalances"] and now["failures"] == 0
        assert now["layers_moved"] >= MOE_LAYERS
        assert now["experts_received" if layout == INT4 else "experts_loaded"] > 0
        assert now["experts_loaded" if layout == INT4 else "experts_received"] == 0
        # After two rebalances the load is balanced; later plans only maintain the balance.
        planned = [float(b) for b in re.findall(r"\[EPLB\] plan \d+ .* at balancedness (\d[\d.]*)", server.text())]
        assert planned[0] < 0.6
        assert all(b > 0.9 for b in planned[2:])
        assert now["balancedness"] is not None and now["balancedness"] > 0.95, now
        assert server.request("/expert_distribution")[1]["balancedness"]["last_100_average"] > 0.9
        assert sum(now["rebalance"]["places"].values()) == MOE_LAYERS * (EXPERTS + REDUNDANT)
        page = metrics(server)
        assert page["switchyard_eplb_rebalances_total"] == now["rebalances"]
        assert page["switchyard_eplb_layers_moved_total"] == now["layers_moved"]
        assert page["switchyard_eplb_failures_total"] == 0
        assert page['switchyard_eplb_state{state="done"}'] == 1
        assert server.stop() == 0


def test_all_stages_of_a_pipeline_move_their_experts(checkpoint):
    """Three stages with one layer each; that of the first one is dense."""
    # One rank of each stage begins with all copies of the hot experts: an uneven load that is worth a move.
    begin = [None, [*range(REDUNDANT), *range(EXPERTS)], [*reversed(range(EXPERTS)), *reversed(range(REDUNDANT))]]
    ranks = ["--tp", 2, "--ep", 2, *RANKS[4:], "--init-expert-location", json.dumps({"physical_to_logical_map": begin})]
    with Server(checkpoint, *ranks) as still:
        want = [answers(still, seed) for seed in range(3)]
    with Server(checkpoint, *ranks, *EPLB, "--pp-size", 3, "--enable-expert-distribution-metrics") as server:
        first = eplb(server)["placement"]["layers"]
        assert first == begin
        assert answers(server, 0) == want[0]
        settle(server)
        # The stages move experts at the same time, with and without requests.
        start_rebalance(server)
        assert answers(server, 1) == want[1]
        before = settle(server)
        end = time.time() + 60  # a plan waits for enough counted rows
        while True:
            start_rebalance(server)
            now = settle(server)
            assert answers(server, 2) == want[2]
            if all(layer != old for layer, old in zip(now["placement"]["layers"][1:], first[1:])) or time.time() > end:
                break
        assert now["failures"] == 0 and now["plans"] >= before["plans"] + 2 and now["layers_moved"] >= MOE_LAYERS, now
        assert "stage 1: " in now["last_result"] and "stage 2: " in now["last_result"] and "stage 0" not in now["last_result"]
        moved = now["placement"]["layers"]
        assert moved[0] is None and all(set(layer) == set(range(EXPERTS)) for layer in moved[1:])
        assert all(now != old for now, old in zip(moved[1:], first[1:]))
        load = server.request("/expert_distribution")[1]
        assert [sum(layer["logical_count"]) > 0 for layer in load["layers"]] == [False, True, True]
        assert 0 < load["balancedness"]["last_10_average"] <= 1 + 1e-9
        now, page = settle(server), metrics(server)
        assert page["switchyard_eplb_plans_total"] == now["plans"]
        assert page["switchyard_eplb_layers_moved_total"] == now["layers_moved"]
        assert server.stop() == 0


def moved_placement(server, want):
    """The placement of experts after all layers have moved."""
    end = time.time() + 60
    while True:
        assert answers(server, 0) == want
        if settle(server)["layers_moved"] >= MOE_LAYERS or time.time() > end:
            break
    moved = eplb(server)["placement"]
    assert all(row != [*range(EXPERTS), *range(REDUNDANT)] for row in moved["layers"] if row), moved
    return moved


def wait_epoch(server, epoch):
    end = time.time() + 30
    while metrics(server)["switchyard_epoch"] < epoch and time.time() < end:
        time.sleep(0.005)


@pytest.mark.parametrize("weights", [[], INT4], ids=["stored weights", "converted weights"])
def test_the_placement_outlives_the_end_of_a_rank(checkpoint, weights):
    """Ranks that continue load no expert again, and the load stays balanced."""
    with Server(checkpoint, *RANKS, *EPLB, *weights) as server:
        want = answers(server, 0)
        moved = moved_placement(server, want)
        for epoch, victim in ((2, 1), (3, 0)):  # rank 0 is the leader
            os.kill(server.ranks()[victim], signal.SIGKILL)
            wait_epoch(server, epoch)
            assert eplb(server)["placement"] == moved, server.text()
        assert answers(server, 0) == want
        assert "experts are loaded for the next epoch" not in server.text()
        assert server.stop() == 0


def test_the_placement_outlives_the_ranks_of_two_nodes(checkpoint):
    """Node 0 gives it to the ranks of both nodes, which all start again."""
    address = f"127.0.0.1:{free_port()}"
    flags = [*RANKS, *EPLB, "--enable-elastic-ep"]
    with OtherNode(checkpoint, address, *flags) as node1:
        with Server(checkpoint, *flags, "--nnodes", 2, "--dist-init-addr", address) as node0:
            want = answers(node0, 0)
            moved = moved_placement(node0, want)
            os.kill(node1.ranks()[0], signal.SIGKILL)
            wait_epoch(node0, 2)
            assert eplb(node0)["placement"] == moved, node0.text() + node1.text()
            assert answers(node0, 0) == want
            assert node0.stop() == 0
        assert node1.wait() == 0, node1.text()


@pytest.mark.parametrize("weights", [[], INT4], ids=["stored weights", "converted weights"])
def test_experts_move_between_hosts(checkpoint, weights):
    with Server(checkpoint, *RANKS, *weights) as still:
        want = [answers(still, seed) for seed in range(4)]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    flags = [str(f) for f in (*RANKS, *EPLB, *weights, "--nnodes", 2, "--dist-init-addr", address)]
    other = subprocess.Popen([PROGRAM, "serve", "--model-path", str(checkpoint), *flags, "--node-rank", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with Server(checkpoint, *flags, "--node-rank", 0) as server:
            assert [answers(server, seed) for seed in range(4)] == want
            now = settle(server)
            assert now["rebalances"] >= 1 and now["failures"] == 0
            moved = re.search(r"\[EPLB\] plan 1 .* experts arrive \((\d+) held by other nodes only\)", server.text())
            assert int(moved.group(1)) > 0
            assert server.stop() == 0
        assert other.wait(30) == 0
    finally:
        other.kill()


def test_rebalancing_on_request(checkpoint):
    with Server(checkpoint, *RANKS, "--enable-eplb", "--eplb-min-rebalancing-utilization-threshold", 0,
                "--eplb-algorithm", "deepseek") as server:
        status, answer = server.request("/eplb/rebalance", method="POST")
        assert status == 409 and "no load has been counted" in answer["error"]["message"]
        before = answers(server, 1)
        assert eplb(server)["plans"] == 0
        assert server.request("/eplb/rebalance", method="POST")[0] == 200
        now = settle(server)  # progresses without requests
        assert now["rebalances"] == 1 and now["rebalance"]["trigger"] == "request"
        assert now["options"]["algorithm"] == "deepseek"
        assert answers(server, 1) == before
        assert server.stop() == 0


def test_many_rebalances_leak_nothing(checkpoint):
    """Before each rebalance, different requests are sent, so that different experts have the highest load."""
    def memory():  # private memory of the ranks in bytes
        total = 0
        for pid in server.ranks():
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"Private_Dirty:\s+(\d+) kB", text).group(1)) << 10
        return total

    # The deepseek algorithm uses only the last counts and ignores the current placement, so every plan moves experts.
    with Server(checkpoint, *RANKS, "--enable-eplb", "--eplb-algorithm", "deepseek",
                "--eplb-rebalance-num-iterations", 50, "--load-format", "dummy") as server:
        def rebalance(i):
            answers(server, i % 7, new_tokens=4)
            assert server.request("/eplb/rebalance", method="POST")[0] in (200, 409)
            settle(server)

        for i in range(10):
            rebalance(i)
        before = memory()
        for i in range(1000):
            rebalance(i)
        now = eplb(server)
        print(f"{now['rebalances']} rebalances, {memory() - before} bytes more")
        assert now["rebalances"] > 900 and now["failures"] == 0
        assert memory() - before < 8 << 20
        assert server.stop() == 0


def test_a_rank_killed_in_the_middle_ends_as_always(tmp_path):
    before = shared_memory()
    # 40 layers with dummy weights move one layer per step, and each step waits. So the migration takes long enough to be
    # interrupted. Only the request below starts it: it ends before the 1000 passes after which one starts by itself.
    with Server(MODEL, *RANKS, "--enable-eplb", "--load-format", "dummy", "--json-model-override-args", '{"num_hidden_layers": 40}',
                "--eplb-min-rebalancing-utilization-threshold", 0, "--disable-elastic-ep",
                env={"TMPDIR": str(tmp_path)}) as server:
        answers(server, 1, new_tokens=10)
        assert server.request("/slow_down", {"forward_sleep_time": 0.05})[0] == 200
        results = []
        thread = threading.Thread(target=lambda: results.append(server.request("/generate", {
            "text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}})))
        thread.start()
        assert server.request("/eplb/rebalance", method="POST")[0] == 200
        now, end = eplb(server), time.time() + 30
        while now["state"] in ("planning", "agreed") or now["rebalance"]["layers_done"] == 0:
            assert now["state"] not in ("idle", "done"), f"the migration ended before it could be interrupted: {now}"
            assert time.time() < end, now
            now = eplb(server)
        assert now["state"] == "moving" and now["rebalance"]["layers_done"] < now["rebalance"]["layers_to_move"], now
        os.kill(server.ranks()[2], signal.SIGKILL)
        thread.join(30)
        assert results and results[0][0] == 500
        message = results[0][1]["error"]["message"]
        assert "rank 2" in message and "SIGKILL" in message
        assert server.stop(timeout=20) not in (0, None)
    assert not shared_memory() - before and not list(tmp_path.iterdir())


def test_without_the_flag_nothing_moves(checkpoint):
    with Server(checkpoint, "--tp", 2, "--ep", 2) as server:
        for path, method in (("/eplb", "GET"), ("/eplb/rebalance", "POST")):
            status, answer = server.request(path, method=method)
            assert status == 400 and "--enable-eplb" in answer["error"]["message"]
        assert "switchyard_eplb" not in server.request("/metrics")[1]
        assert server.stop() == 0


@pytest.mark.parametrize("flags, expected", [
    (["--enable-eplb"], "--ep-size 2"),
    (["--enable-eplb", "--tp", 2, "--ep", 2, "--eplb-algorithm", "best"], "best"),
    (["--enable-eplb", "--tp", 2, "--ep", 2, "--eplb-rebalance-layers-per-chunk", 0], "layers-per-chunk 0"),
    (["--enable-eplb", "--tp", 2, "--ep", 2, "--eplb-rebalance-num-iterations", 0], "num-iterations"),
    (["--enable-eplb", "--tp", 2, "--ep", 2, "--ep-dispatch-algorithm", "best"], "best"),
    (["--enable-eplb", "--tp", 2, "--ep", 2, "--eplb-algorithm", "deepseek", "--ep-num-redundant-experts", 1],
     "17 slots are not divisible by 2 ranks"),
])
def test_what_cannot_be_is_refused(flags, expected):
    code, said = fails_to_start("--model-path", MODEL, "--port", 0, *flags)
    assert code == 2 and expected in said, said
