"""One GPU with attention and some experts, and CPUs with the other experts (--device cuda,cpu). In float32, tokens must
equal those of transformers, and log-probabilities must agree to 2e-4, for any placement. Skipped without a GPU."""
import functools
import json
import os
import re
import signal
import subprocess
import time

import pytest

import check_reference
from server import FIXTURES, PROGRAM, Server, fails_to_start
from test_cuda import FIRST_GPU, GRAPHS, gpus
from test_eplb import EXPERTS, HOT, MOE_LAYERS, answers, eplb, settle, skewed
from test_reference import NAMES

COMMON = ["--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning"]
MIXED = ["--device", "cuda,cpu", "--base-gpu-id", FIRST_GPU, "--tp", 2, "--expert-ranks", 1]
MODELS = [name for name in NAMES if name not in ("llama", "qwen3")]
PLACEMENTS = {
    "few on the GPU": ["--expert-slots", "2,14"],
    "many on the GPU": ["--expert-slots", "14,2"],
    "two ranks on CPUs": ["--tp", 3, "--expert-ranks", 2, "--expert-slots", "4,5,7"],
    "copies": ["--expert-slots", "5,16", "--ep-num-redundant-experts", 5],
    "rounds": ["--deepep-normal-long-seq-per-round-tokens", 16],
    "no overlap": ["--disable-overlap-schedule"],
    "drafts": ["--speculative-algorithm", "NGRAM"],
    "streams": ["--expert-slots", "4,12", "--stream-experts", 4],
    "streams in rounds": ["--expert-slots", "4,5,7", "--tp", 3, "--expert-ranks", 2, "--stream-experts", 4,
                          "--deepep-normal-long-seq-per-round-tokens", 16],
    "streams of copies": ["--expert-slots", "5,16", "--ep-num-redundant-experts", 5, "--stream-experts", 4],
}

pytestmark = pytest.mark.skipif(not gpus(), reason="no GPU was found")


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name, graphs):
    with Server(FIXTURES / name, *COMMON, *MIXED, *GRAPHS[graphs]) as server:
        check_reference.check(server, FIXTURES / name)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placements_equal_transformers(placement):
    with Server(FIXTURES / "deepseek_v3", *COMMON, *MIXED, *PLACEMENTS[placement]) as server:
        check_reference.check(server, FIXTURES / "deepseek_v3")


def tokens(got):
    return [ids for ids, _ in got]


def hot_on_gpu(server):
    """Whether the GPU, which has four slots, holds the experts that the routers prefer (as in test_expert_ranks.py)."""
    rows = [row for row in eplb(server)["placement"]["layers"] if row]
    return len(rows) == MOE_LAYERS and all(len(set(row[:4]) & set(HOT)) >= 3 for row in rows)


@pytest.mark.parametrize("name", MODELS)
def test_streams_equal_transformers(name):
    with Server(FIXTURES / name, *COMMON, *MIXED, "--stream-experts", 4) as server:
        check_reference.check(server, FIXTURES / name)


# The last case: sums of streamed experts are not in slot order, so they depend on the placement.
@pytest.mark.parametrize("weights", [[], ["--quantization", "int4"], ["--stream-experts", 16]],
                         ids=["stored weights", "converted weights", "streams"])
def test_hot_experts_move_to_the_gpu(tmp_path, weights):
    model = skewed(tmp_path / "model")
    flags = ["--expert-slots", "4,12", "--eplb-rank-costs", "1:10,8:200", "--enable-eplb",
             "--eplb-rebalance-num-iterations", 60]
    with Server(model, *COMMON, *MIXED, *flags, *weights) as server:
        want = [tokens(answers(server, seed)) for seed in range(3)]
        end = time.time() + 60
        while not hot_on_gpu(server) and time.time() < end:
            for seed in range(3):
                got = tokens(answers(server, seed))
                same = sum(a == b for a, b in zip(got, want[seed]))
                # Weights of a format are multiplied in another order on the other device.
                assert same == len(got) if not weights else same >= 0.5 * len(got), (seed, same)
        now = settle(server)
        assert now["rebalances"] >= 1 and now["failures"] == 0, now
        placement = eplb(server)["placement"]
        assert placement["slots_of_ranks"] == [4, EXPERTS - 4]
        assert hot_on_gpu(server), placement
        assert server.stop() == 0


@pytest.mark.parametrize("victim", [0, 1])
def test_both_ranks_start_again_after_the_end_of_one(victim):
    with Server(FIXTURES / "deepseek_v3", *COMMON, *MIXED) as server:
        want = answers(server, 1)
        os.kill(server.ranks()[victim], signal.SIGKILL)
        end = time.time() + 60
        got = None
        while got is None and time.time() < end:
            try:
                got = answers(server, 1)
            except (AssertionError, OSError):
                time.sleep(0.2)
        assert tokens(got) == tokens(want)
        assert server.stop() == 0


LAYERS, HIDDEN = 6, 1024
FRACTION = 0.03  # --mem-fraction-static, so that a model of a few GiB does not fit


@functools.cache
def too_large():
    """Flags of a model with dummy weights whose experts alone take slightly more than the GPU may give."""
    line = subprocess.run(["nvidia-smi", f"--id={FIRST_GPU}", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, check=True).stdout
    expert = LAYERS * 3 * HIDDEN * HIDDEN * 2  # bytes in all layers
    experts = int(1.05 * FRACTION * int(line.split()[0]) * 2**20 / expert) + 1
    shape = {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "moe_intermediate_size": HIDDEN, "num_experts": experts}
    return experts, ["--model-path", FIXTURES / "qwen3_moe", "--load-format", "dummy", "--dtype", "float32",
                     "--base-gpu-id", FIRST_GPU,
                     "--json-model-override-args", json.dumps(shape), "--mem-fraction-static", FRACTION,
                     "--max-total-tokens", 4096, "--max-running-requests", 16, "--chunked-prefill-size", 512]


def serve_too_large(*flags):
    model = too_large()[1]
    return Server(model[1], *model[2:], *flags)


def test_experts_go_to_cpus_if_the_model_does_not_fit():
    experts, model = too_large()
    with serve_too_large() as server:
        said = server.text()
        assert "experts on CPUs: the model does not fit the GPU: it needs" in said, said
        placed = re.search(r"same as with (--device cuda,cpu --tp-size 2 --expert-ranks 1 --expert-slots (\d+),(\d+) .*?);", said)
        on_gpu, on_cpus = int(placed[2]), int(placed[3])
        assert on_gpu > 4 and on_cpus > 0 and on_gpu + on_cpus == experts, said
        info = server.request("/server_info")[1]
        assert info["tp_size"] == 2 and info["dp_size"] == 1
        assert eplb(server)["placement"]["slots_of_ranks"] == [on_gpu, on_cpus]
        want = answers(server, 1)
        assert server.stop() == 0
    with serve_too_large(*placed[1].split()) as server:  # the flags that the log names
        assert "the model does not fit the GPU" not in server.text()
        assert tokens(answers(server, 1)) == tokens(want)
        assert server.stop() == 0
    dry = subprocess.run([PROGRAM, "serve", *map(str, model), "--dry-run"], capture_output=True, text=True)
    assert dry.returncode == 0 and f"chosen   same as with {placed[1]}" in dry.stdout, dry.stdout + dry.stderr


@pytest.mark.parametrize("skew", [[], ["--expert-skew", 0], ["--expert-skew", 2]])
def test_one_batch_measures_decode_against_the_bound_of_both_sides(skew, tmp_path):
    file = tmp_path / "figures.json"
    done = subprocess.run([PROGRAM, "bench", "one-batch", "--model-path", FIXTURES / "deepseek_v3", "--load-format", "dummy",
                           *map(str, MIXED), "--expert-slots", "6,10", "--batch-size", "1", "8", "--input-len", "24",
                           "--output-len", "8", "--repeat", "1", "--json", file, *map(str, skew)],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bound of decode: the larger of bytes of the GPU" in done.stdout and "by layers" in done.stdout
    for case in json.loads(file.read_text()):
        sides = [(case[f"{side}_bytes"], case[f"{side}_bandwidth"]) for side in ("attending", "other")]
        assert all(bytes_ > 0 and rate > 0 for bytes_, rate in sides), case
        assert case["decode_bound_seconds"] == pytest.approx(max(bytes_ / rate for bytes_, rate in sides))
        assert 0 < case["decode_roofline_fraction"] <= 1 and 0 < case["attending_rows"] < 1
    assert "memory of each GPU in MiB" in done.stdout


@pytest.mark.parametrize("flags, expected", [
    (["--cpu-experts", "off"], "not enough memory: needed"),
    (["--cpu-experts", "off"], "put experts on CPUs (--device cuda,cpu)"),
    (["--device", "cuda"], "put experts on CPUs (--device cuda,cpu)"),
    (["--enable-two-batch-overlap"], "put experts on CPUs (--device cuda,cpu without --enable-two-batch-overlap)"),
])
def test_a_model_that_does_not_fit_is_refused_with_a_reason(flags, expected):
    code, said = fails_to_start(*too_large()[1], *flags)
    assert code == 2 and expected in said, said


@pytest.mark.parametrize("flags, expected", [
    (["--tp", 2], "--device cuda,cpu: ranks with experts only compute on CPUs: want --expert-ranks"),
    (["--tp", 3, "--expert-ranks", 1, "--dp-size", 2, "--enable-dp-attention", "--gpu-id-step", 0], "leave 2 ranks with attention; want one"),
    (["--tp", 2, "--expert-ranks", 1, "--moe-a2a-backend", "flashinfer"], "not supported with --moe-a2a-backend flashinfer"),
    (["--tp", 2, "--expert-ranks", 1, "--enable-two-batch-overlap"], "not supported with --enable-two-batch-overlap"),
    (["--tp", 2, "--expert-ranks", 1, "--stream-experts", "on"], "--stream-experts on: want auto, off or a number of tokens"),
])
def test_what_cannot_be_is_refused_by_name(flags, expected):
    code, said = fails_to_start("--model-path", FIXTURES / "deepseek_v3", "--port", 0, "--device", "cuda,cpu", *flags)
    assert code == 2 and expected in said, said
