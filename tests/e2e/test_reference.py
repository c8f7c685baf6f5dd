"""Every reference checkpoint, served over HTTP on every layout and backend, gives the tokens and log-probabilities of
transformers: to 2e-4 in float32.
"""
import subprocess
import sys

import pytest

from server import FIXTURES, ROOT, Server

NAMES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss",
         "glm4_moe", "llama", "qwen3"]
LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]
BACKENDS = [("none",), ("deepep", "normal"), ("deepep", "low_latency")]


def flags(layout, backend):
    tp, ep = layout
    out = ["--dtype", "float32", "--tp", tp, "--ep", ep, "--moe-a2a-backend", backend[0], "--max-total-tokens", 4096,
           "--log-level", "warning"]
    return out + (["--deepep-mode", backend[1]] if len(backend) > 1 else [])


CASES = [(name, layout, backend) for name in NAMES for layout in LAYOUTS for backend in BACKENDS]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-tp{c[1][0]}ep{c[1][1]}-{'-'.join(c[2])}")
def test_equals_transformers(case):
    name, layout, backend = case
    with Server(FIXTURES / name, *flags(layout, backend)) as server:
        check = subprocess.run([sys.executable, ROOT / "tests/e2e/check_reference.py", "--url", server.url, FIXTURES / name,
                                "--tolerance", "2e-4"],
                               capture_output=True, text=True)
        assert check.returncode == 0, check.stdout + check.stderr + server.text()
        assert server.stop() == 0
