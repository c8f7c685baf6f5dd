"""KV caches of e4m3 codes on GPUs (`--kv-cache-dtype fp8_e4m3`). Cases are skipped as in test_cuda.py."""
import json
import struct

import pytest

from server import FIXTURES, fails_to_start
from test_checkpoints import copy, logprobs, write_tensor
from test_cuda import FAMILY_FOLDER, GRAPHS, check_alone_and_together, where

FP8_CACHE = ["--kv-cache-dtype", "fp8_e4m3"]


def check_near_cpu(model, *flags):
    """Both devices compute in float32 and round the same keys and values to e4m3. A key on the edge between two codes may
    differ, so a few log-probabilities may."""
    device, env = where(1)
    got = logprobs(model, *device, *FP8_CACHE, *flags, env=env)
    want = logprobs(model, "--device", "cpu", *FP8_CACHE)
    differences = [abs(a - b) for a, b in zip(got, want, strict=True)]
    assert max(differences) < 0.05, differences
    assert sum(difference < 5e-4 for difference in differences) > len(differences) / 2, differences
    return got


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("name", ["olmoe", "gpt_oss", "qwen3_moe", "deepseek_v3"])
def test_an_fp8_cache_gives_the_logprobs_of_the_cpu(name, graphs):
    device, env = where(1)
    got = check_near_cpu(FIXTURES / name, *GRAPHS[graphs])
    assert got != pytest.approx(logprobs(FIXTURES / name, *device, env=env), abs=1e-4)  # the cache is rounded


def test_scales_of_a_checkpoint_apply_to_an_fp8_cache(tmp_path):
    """With these scales most keys and values saturate, unless a device ignores the scales."""
    directory = copy(tmp_path / "scaled")
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    for layer in range(3):
        for kind, scales in ("k", [0.0003, 0.0007]), ("v", [0.0011]):
            name = f"model.layers.{layer}.self_attn.{kind}_scale"
            file = f"{kind}-{layer}.safetensors"
            write_tensor(directory / file, name, "F32", [len(scales)], struct.pack(f"<{len(scales)}f", *scales))
            index["weight_map"][name] = file
    index_file.write_text(json.dumps(index))
    scaled = check_near_cpu(directory)
    assert scaled != pytest.approx(check_near_cpu(FIXTURES / "qwen3_moe"), abs=1e-2)


def test_an_fp8_cache_is_refused_with_an_indexer(tmp_path):
    device, _ = where(1)
    code, said = fails_to_start("--model-path", FAMILY_FOLDER / "deepseek_v32", "--tokenizer-path", FIXTURES / "qwen3_moe",
                                "--port", 0, *device, *FP8_CACHE)
    assert code == 2 and "--kv-cache-dtype fp8_e4m3: not supported on GPUs for DeepseekV32ForCausalLM" in said, said


# Dummy weights, whose heads have tiles of tensor core attention.
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_an_fp8_cache_gives_the_same_alone_and_together(head_dim):
    check_alone_and_together(FIXTURES / "qwen3", "--load-format", "dummy", *FP8_CACHE, "--json-model-override-args",
                             json.dumps({"head_dim": head_dim}))
