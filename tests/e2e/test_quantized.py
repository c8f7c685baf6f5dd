"""Weights quantized at load time (`--quantization`), and refused combinations of flags."""
import array
import json
import math
import struct
import subprocess

import pytest

from server import FIXTURES, PROGRAM, ROOT, Server

QUANTIZED = ROOT / "tests/data/quantized"
MODEL = FIXTURES / "qwen3_moe"
# Maximum mean absolute difference of log-probabilities from the unquantized model, whose values spread by more than 1.
METHODS = {"fp8": 0.1, "w8a8_int8": 0.04, "int4": 0.28}


def reference():
    """Prompt 0 and the log-probabilities of its tokens except the first, from transformers."""
    raw = (MODEL / "reference.safetensors").read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + length])

    def tensor(name, code):
        begin, end = head[name]["data_offsets"]
        return array.array(code, raw[8 + length + begin:8 + length + end])

    prompt, logits = list(tensor("prompt.0", "q")), tensor("logits.0", "f")
    vocabulary = len(logits) // len(prompt)
    wanted = []
    for t, token in enumerate(prompt[1:]):
        row = logits[t * vocabulary:(t + 1) * vocabulary]
        most = max(row)
        wanted.append(row[token] - most - math.log(sum(math.exp(x - most) for x in row)))
    return prompt, wanted


def log_probabilities(prompt, *flags):
    with Server(MODEL, "--dtype", "float32", "--max-total-tokens", 2048, "--log-level", "warning", *flags) as server:
        status, answer = server.request("/generate", {
            "input_ids": prompt, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}})
        assert status == 200, answer
        assert len(answer["output_ids"]) == 4
        assert server.stop() == 0
    return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]][1:]


@pytest.mark.parametrize("method", METHODS)
def test_packed_while_loading_stays_close(method):
    prompt, wanted = reference()
    one = log_probabilities(prompt, "--quantization", method)
    assert one != pytest.approx(wanted, abs=1e-6)
    assert sum(abs(a - b) for a, b in zip(one, wanted)) / len(wanted) < METHODS[method]
    two = log_probabilities(prompt, "--quantization", method, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep",
                            "--quantize-activations", "never")
    if method != "w8a8_int8":  # w8a8_int8 also quantizes activations by default
        assert two == pytest.approx(one, abs=2e-4)


def test_both_layouts_of_four_bit_weights_give_the_same_bits():
    def answers(*flags):
        with Server(FIXTURES / "gpt_oss", "--max-total-tokens", 2048, "--log-level", "warning", "--moe-a2a-backend",
                    "deepep", *flags) as server:
            status, answer = server.request("/generate", {
                "input_ids": list(range(3, 40)), "return_logprob": True, "logprob_start_len": 0,
                "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}})
            assert status == 200, answer
            assert server.stop() == 0
        return answer["meta_info"]["input_token_logprobs"], answer["meta_info"]["output_token_logprobs"]

    ranks = ["--tp", 2, "--ep", 2, "--enable-dp-attention", "--dp-size", 2, "--moe-dense-tp-size", 1]
    assert answers("--cpu-weight-layout", "panels", *ranks) == answers("--cpu-weight-layout", "stored")


@pytest.mark.parametrize("model, flags, expected", [
    (QUANTIZED / "awq", ["--quantization", "fp8"], ["--quantization fp8", "awq"]),
    (MODEL, ["--quantization", "gptq"], ["--quantization gptq", "w8a8_int8"]),
    (MODEL, ["--quantize-activations", "sometimes"], ["sometimes"]),
    (MODEL, ["--cpu-weight-layout", "panels"], ["--cpu-weight-layout panels", "no weights in 4 bits"]),
])
def test_start_refuses(model, flags, expected):
    run = subprocess.run([PROGRAM, "serve", "--model-path", model, "--port", "0", *flags], capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 2
    for words in expected:
        assert words in run.stderr
