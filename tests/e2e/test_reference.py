"""Serves each reference checkpoint over HTTP on each layout and backend. Tokens must equal those of transformers, and
log-probabilities must agree to 2e-4 in float32.
"""
import pytest

import check_reference
from server import FIXTURES, Server

NAMES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss",
         "glm4_moe", "llama", "qwen3"]
LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]
BACKENDS = {
    "none": [],
    "deepep-normal": ["--moe-a2a-backend", "deepep", "--deepep-mode", "normal"],
    "deepep-low_latency": ["--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"],
}
# MORE_BACKENDS are tested only with two layouts (tp, ep): experts on two ranks each, and each expert on one rank.
MORE_LAYOUTS = [(4, 2), (4, 4)]
MORE_BACKENDS = {
    "deepep-auto-masked": ["--moe-a2a-backend", "deepep", "--moe-runner-backend", "masked_mlp"],
    "flashinfer": ["--moe-a2a-backend", "flashinfer"],
    "mooncake": ["--moe-a2a-backend", "mooncake"],
    "fused": ["--moe-a2a-backend", "fused"],
}
# Layouts of DP attention. In "none-dp2", dense layers run on gathered tokens; in "deepep-dp4", on each rank's own tokens.
DP_LAYOUTS = [(4, 2)]
DP_BACKENDS = {
    "none-dp2": ["--enable-dp-attention", "--dp-size", 2],
    "deepep-dp4": ["--enable-dp-attention", "--dp-size", 4, "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep"],
}


def flags(layout, backend):
    tp, ep = layout
    return ["--dtype", "float32", "--tp", tp, "--ep", ep, "--max-total-tokens", 4096, "--log-level", "warning",
            *{**BACKENDS, **MORE_BACKENDS, **DP_BACKENDS}[backend]]


CASES = [(name, layout, backend) for name in NAMES
         for layouts, backends in [(LAYOUTS, BACKENDS), (MORE_LAYOUTS, MORE_BACKENDS), (DP_LAYOUTS, DP_BACKENDS)]
         for layout in layouts for backend in backends]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-tp{c[1][0]}ep{c[1][1]}-{c[2]}")
def test_equals_transformers(case):
    name, layout, backend = case
    with Server(FIXTURES / name, *flags(layout, backend)) as server:
        check_reference.check(server, FIXTURES / name)
