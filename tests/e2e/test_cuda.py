"""The reference checkpoints served by GPUs: tokens and log-probabilities of transformers, to 2e-4 in float32, on as many
GPUs as this machine has. Skipped where it has none.
"""
import functools
import shutil
import subprocess
import sys

import pytest

from server import FIXTURES, ROOT, Server
from test_reference import BACKENDS, DP_BACKENDS, NAMES

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8)]
GRAPHS = {"graphs": [], "no_graphs": ["--disable-cuda-graph"]}


@functools.cache
def gpus():
    if not shutil.which("nvidia-smi"):
        return 0
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")


CASES = [(name, layout, backend, graphs) for name in NAMES for layout in LAYOUTS for backend in BACKENDS for graphs in GRAPHS]
CASES += [(name, (4, 2), backend, "graphs") for name in NAMES for backend in DP_BACKENDS]
TWO_GROUPS = {
    "none-two-groups": ["--enable-dp-attention", "--dp-size", 2],
    "deepep-two-groups": ["--enable-dp-attention", "--dp-size", 2, "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep"],
}
CASES += [(name, (2, 2), backend, "graphs") for name in NAMES for backend in TWO_GROUPS]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-tp{c[1][0]}ep{c[1][1]}-{c[2]}-{c[3]}")
def test_equals_transformers(case):
    name, (tp, ep), backend, graphs = case
    if gpus() < tp:
        pytest.skip(f"{tp} GPUs are needed, {gpus()} were found")
    flags = ["--device", "cuda", "--dtype", "float32", "--tp", tp, "--ep", ep, "--max-total-tokens", 4096, "--log-level",
             "warning", *{**BACKENDS, **DP_BACKENDS, **TWO_GROUPS}[backend], *GRAPHS[graphs]]
    with Server(FIXTURES / name, *flags) as server:
        check = subprocess.run([sys.executable, ROOT / "tests/e2e/check_reference.py", "--url", server.url, FIXTURES / name,
                                "--tolerance", "2e-4"], capture_output=True, text=True)
        assert check.returncode == 0, check.stdout + check.stderr + server.text()
        assert server.stop() == 0


def test_packed_experts_give_the_same_alone_and_together():
    """MXFP4 experts stay packed on a Hopper GPU: prompts one at a time, and many at once in experts of many rows."""
    if gpus() < 1:
        pytest.skip("a GPU is needed")
    prompts = [[(7 * i + j * j) % 500 for j in range(3 + 11 * i)] for i in range(20)]
    with Server(FIXTURES / "gpt_oss", "--device", "cuda", "--dtype", "bfloat16", "--max-total-tokens", 8192, "--log-level",
                "warning") as server:
        def answers(some):
            status, answer = server.request("/generate", {
                "input_ids": some, "return_logprob": True, "logprob_start_len": 0,
                "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}})
            assert status == 200, answer
            return [(a["output_ids"], a["meta_info"]["input_token_logprobs"], a["meta_info"]["output_token_logprobs"])
                    for a in answer]

        together = answers(prompts)
        for i in 0, 7, 19:
            assert answers([prompts[i]]) == [together[i]]
        assert server.stop() == 0
