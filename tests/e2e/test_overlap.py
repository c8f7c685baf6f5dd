"""Two-batch overlap: served tokens and log-probabilities equal those of transformers, and those of a server without
it when many requests are in flight."""
import concurrent.futures
import subprocess
import sys

import pytest

from server import FIXTURES, PROGRAM, ROOT, Server

LAYOUTS = {
    "none": ["--tp", 2, "--ep", 2],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "two_groups": ["--tp", 4, "--ep", 4, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                   "--moe-a2a-backend", "deepep"],
}
FLAGS = ["--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_equals_transformers(name, layout):
    with Server(FIXTURES / name, *FLAGS, *LAYOUTS[layout], "--enable-two-batch-overlap") as server:
        check = subprocess.run([sys.executable, ROOT / "tests/e2e/check_reference.py", "--url", server.url, FIXTURES / name,
                                "--tolerance", "2e-4"], capture_output=True, text=True)
        assert check.returncode == 0, check.stdout + check.stderr + server.text()
        assert server.stop() == 0


def answers(*flags, env=None):
    """Outputs of 40 concurrent requests of different lengths, with chunked prefill."""
    with Server(FIXTURES / "deepseek_v3", *FLAGS, "--chunked-prefill-size", 24, *flags, env=env) as server:
        def ask(i):
            body = {"input_ids": [(7 * i + 3 * j) % 500 for j in range(1 + 5 * i % 60)], "return_logprob": True,
                    "sampling_params": {"max_new_tokens": 5 + i % 13, "temperature": 0.8, "sampling_seed": i, "ignore_eos": True}}
            status, answer = server.request("/generate", body)
            assert status == 200, answer
            return answer["output_ids"], [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]

        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            return list(pool.map(ask, range(40)))


def test_outputs_of_requests_in_flight_are_bitwise_equal():
    layout = LAYOUTS["deepep"]
    assert answers(*layout) == answers(*layout, "--enable-two-batch-overlap", "--tbo-token-distribution-threshold", 0.3)


def test_the_schedule_that_runs_is_printed():
    printed = subprocess.run([PROGRAM, "serve", "--model-path", FIXTURES / "qwen3_moe", "--print-schedule",
                              "--enable-two-batch-overlap"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("prefill, 2 micro-batches through 3 layers")
