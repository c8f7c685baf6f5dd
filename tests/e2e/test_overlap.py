"""Two-batch and single-batch overlap. Served tokens and log-probabilities equal those of transformers. With many requests
in flight, they equal those of a server without overlap."""
import concurrent.futures
import subprocess

import pytest

import check_reference
from server import FIXTURES, PROGRAM, Server

LAYOUTS = {
    "none": ["--tp", 2, "--ep", 2],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "two_groups": ["--tp", 4, "--ep", 4, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                   "--moe-a2a-backend", "deepep"],
}
FLAGS = ["--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning"]


SINGLE = {
    "single": ["--enable-single-batch-overlap"],
    "both": ["--enable-single-batch-overlap", "--enable-two-batch-overlap"],
}


def serve_and_check(name, *flags):
    with Server(FIXTURES / name, *FLAGS, *flags) as server:
        check_reference.check(server, FIXTURES / name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_equals_transformers(name, layout):
    serve_and_check(name, *LAYOUTS[layout], "--enable-two-batch-overlap")


@pytest.mark.parametrize("flags", SINGLE)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_single_batch_overlap_equals_transformers(name, layout, flags):
    serve_and_check(name, *LAYOUTS[layout], *SINGLE[flags])


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


@pytest.mark.parametrize("backend", [["--moe-a2a-backend", "deepep"], ["--moe-a2a-backend", "deepep", "--moe-combine-rows", "rank"],
                                     ["--moe-a2a-backend", "flashinfer"]], ids=lambda b: "-".join(b[1::2]))
def test_single_batch_overlap_changes_no_bit(backend):
    layout = ["--tp", 4, "--ep", 4, "--dp-size", 2, "--enable-dp-attention", *backend]
    without = answers(*layout)
    for flags in SINGLE.values():
        assert answers(*layout, *flags) == without


def test_the_schedule_that_runs_is_printed():
    printed = subprocess.run([PROGRAM, "serve", "--model-path", FIXTURES / "qwen3_moe", "--print-schedule",
                              "--enable-two-batch-overlap"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("prefill, 2 micro-batches through 3 layers")


@pytest.mark.parametrize("backend", ["deepep", "none", "fused"])
def test_single_batch_overlap_is_printed_or_said_to_have_no_effect(backend):
    flags = ["--moe-a2a-backend", backend, "--enable-single-batch-overlap"]
    printed = subprocess.run([PROGRAM, "serve", "--model-path", FIXTURES / "qwen3_moe", "--print-schedule", *flags],
                             capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert ("layer 2 down" in printed.stdout) == (backend == "deepep")
    said = (printed.stdout + printed.stderr).count("--enable-single-batch-overlap has no effect here")
    assert said == (backend != "deepep")
