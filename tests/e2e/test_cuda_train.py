"""`switchyard train --device cuda`: a run on one GPU against the same run on CPUs, and runs on two GPUs against one. Needs
GPUs, except for the refusals. With SWITCHYARD_TEST_SHARED_GPU=1, two ranks may share one GPU."""
import json
import os
import shutil
import subprocess

import pytest

from server import PROGRAM, ROOT, Server
from test_cuda import where
from test_train import fails, steps_of

COMMON = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
          "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 10000.0, "num_experts_per_tok": 2,
          "intermediate_size": 256}
# Head dimensions of the tensor-core kernels (64, 128, and 192 with 128), and one of the other kernel.
CONFIGS = {
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "head_dim": 64, "sliding_window": 48},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 128, "num_experts": 16, "head_dim": 128,
                  "mlp_only_layers": [0], "norm_topk_prob": True, "tie_word_embeddings": True},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "num_experts": 16, "head_dim": 32},
    "deepseek_v3": {"architectures": ["DeepseekV3ForCausalLM"], "moe_intermediate_size": 128, "n_routed_experts": 16,
                    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
                    "routed_scaling_factor": 2.5, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 128,
                    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_key_value_heads": 4,
                    "num_nextn_predict_layers": 1},
}
STEPS = 200
FLAGS = ["--length", 128, "--rows-per-step", 8, "--rows-per-pass", 4, "--learning-rate", 0.003, "--warmup-steps", 10,
         "--balance-loss", 0.01, "--sequence-balance-loss", 0.001, "--z-loss", 0.0001, "--compute-dtype", "bfloat16",
         "--init-deviation", 0.05, "--save-every", 100, "--keep", 0, "--dtype", "float32"]


def switchyard(*args, env=None):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=600, env=os.environ | (env or {}))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda_train")
    texts = [ROOT / "docs" / name for name in ("moe.md", "training.md", "gpus.md")]
    (folder / "data").mkdir()
    for text in texts:
        shutil.copy(text, folder / "data")
    shutil.copy(ROOT / "docs" / "eplb.md", folder / "held-out.md")
    switchyard("train-tokenizer", folder / "data", "--output", folder / "tokenizer", "--vocab-size", 512)
    return folder


def train(folder, name, output, *flags, env=None):
    config = folder / f"{name}.json"
    config.write_text(json.dumps(COMMON | CONFIGS[name]))
    command = ["train", "--model", config, "--tokenizer-path", folder / "tokenizer", "--data", folder / "data", "--output",
               output, "--steps", STEPS, *FLAGS, *flags]
    return switchyard(*command, env=env).stderr


def train_once(folder, name, output, *flags):
    """A run on one GPU that several tests compare with."""
    device, _ = where(1)
    if not (folder / output / "final").exists():
        train(folder, name, folder / output, *device, *flags)
    return folder / output


def means(output, key):
    """Means of 20 steps each, so that the order of the rounding errors does not matter."""
    values = [line[key] for line in steps_of(output)]
    assert len(values) == STEPS
    return [sum(values[i:i + 20]) / 20 for i in range(0, STEPS, 20)]


def score(folder, output):
    done = switchyard("train-score", "--model", output / "final", "--data", folder / "held-out.md", "--length", 128)
    return json.loads(done.stdout)["loss"]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_run_on_a_gpu_is_that_on_cpus(folder, name):
    device, _ = where(1)
    on_gpu, on_cpu, other = folder / f"{name}-gpu", folder / f"{name}-cpu", folder / f"{name}-other"
    bias = ["--bias-step", 0.001] if name == "deepseek_v3" else []
    said = train(folder, name, on_gpu, *device, *bias)
    assert "of parameters, gradients and moments" in said
    train(folder, name, on_cpu, "--threads", 4, *bias)
    # A rounding error can change the choice of an expert, and runs then differ. A run on CPUs that adds the gradients in
    # another order shows by how much.
    train(folder, name, other, "--threads", 4, *bias, "--rows-per-pass", 8)
    for key, bound in (("main", 0.01), ("balance", 0.05)):
        wanted = means(on_cpu, key)
        bound = max([bound, *(2 * abs(a - b) / abs(b) for a, b in zip(means(other, key), wanted, strict=True))])
        for a, b in zip(means(on_gpu, key), wanted, strict=True):
            assert abs(a - b) < bound * abs(b), (key, bound)
    first, last = (line["main"] for line in (steps_of(on_gpu)[0], steps_of(on_gpu)[-1]))
    assert last < 0.6 * first
    assert abs(score(folder, on_gpu) - score(folder, on_cpu)) < 0.02 * score(folder, on_cpu)
    with Server(on_gpu / "final", "--dtype", "float32") as server:
        status, answer = server.request("/generate", {"text": "the experts", "sampling_params": {"max_new_tokens": 8}})
        assert status == 200 and answer["text"]


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_a_resumed_run_has_the_bits_of_the_whole_one(folder, name):
    device, _ = where(1)
    whole, rest = folder / f"{name}-whole", folder / f"{name}-rest"
    train(folder, name, whole, *device)
    train(folder, name, rest, *device, "--resume", whole / "checkpoint-000100")
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (rest / "checkpoint-000200" / file).read_bytes() == (whole / "checkpoint-000200" / file).read_bytes()


FP8_KINDS = ["mixtral", "qwen3_moe", "deepseek_v3"]  # their widths are multiples of 128


@pytest.mark.parametrize("name", FP8_KINDS)
def test_fp8_products_learn_as_bfloat16(folder, name):
    one = train_once(folder, name, f"{name}-one-bfloat16")
    other = train_once(folder, name, f"{name}-one-bfloat16-other", "--rows-per-pass", 8)
    fp8 = train_once(folder, name, f"{name}-one-fp8", "--compute-dtype", "fp8")
    wanted = means(one, "main")
    bound = max([0.02, *(2 * abs(a - b) / abs(b) for a, b in zip(means(other, "main"), wanted, strict=True))])
    for a, b in zip(means(fp8, "main"), wanted, strict=True):
        assert abs(a - b) < bound * b, bound
    assert abs(score(folder, fp8) - score(folder, one)) < 0.02 * score(folder, one)


def test_a_resumed_fp8_run_has_the_bits_of_the_whole_one(folder):
    device, _ = where(1)
    whole = train_once(folder, "mixtral", "mixtral-one-fp8", "--compute-dtype", "fp8")
    rest = folder / "fp8-rest"
    train(folder, "mixtral", rest, *device, "--compute-dtype", "fp8", "--resume", whole / "checkpoint-000100")
    assert same_checkpoints(rest, whole, 200)


# Rows go to the other GPU's experts in FP8.
@pytest.mark.parametrize("name", FP8_KINDS)
def test_an_fp8_run_on_two_gpus_is_that_on_one(folder, name):
    device, env = where(2)
    one = train_once(folder, name, f"{name}-one-fp8", "--compute-dtype", "fp8")
    two = folder / f"{name}-two-fp8"
    train(folder, name, two, *device, *TWO_RANKS["ep2"], "--compute-dtype", "fp8", env=env)
    for a, b in zip(means(two, "main"), means(one, "main"), strict=True):
        assert abs(a - b) < 0.03 * b


def test_a_run_changes_its_device(folder):
    device, _ = where(1)
    output = folder / "changes"
    train(folder, "qwen3_moe", output, *device)
    on_cpu = folder / "changes-cpu"
    train(folder, "qwen3_moe", on_cpu, "--threads", 4, "--resume", output / "checkpoint-000100")
    a, b = steps_of(output)[-1]["main"], steps_of(on_cpu)[-1]["main"]
    assert abs(a - b) < 0.03 * b


# Two ranks with 2 rows of a pass each have the micro-batches of one rank with 4.
TWO_RANKS = {"dp2": ["--dp", 2, "--rows-per-pass", 2], "ep2": ["--ep", 2, "--rows-per-pass", 2]}


def checkpoint(run, step):
    """The bytes of each file with weights or moments. Ranks that divide the experts write files of their own."""
    return {file.name: file.read_bytes() for file in (run / f"checkpoint-{step:06}").glob("*.safetensors")}


def same_checkpoints(a, b, step):
    files = checkpoint(a, step)
    return any(name.startswith("optimizer") for name in files) and files == checkpoint(b, step)


@pytest.mark.parametrize("layout", TWO_RANKS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_run_on_two_gpus_is_that_on_one(folder, name, layout):
    device, env = where(2)
    bias = ["--bias-step", 0.001] if name == "deepseek_v3" else []
    one = train_once(folder, name, f"{name}-one", *bias)
    other = train_once(folder, name, f"{name}-one-other", *bias, "--rows-per-pass", 8)
    two = folder / f"{name}-{layout}"
    train(folder, name, two, *device, *bias, *TWO_RANKS[layout], env=env)
    for key, bound in (("main", 0.01), ("balance", 0.05)):
        wanted = means(one, key)
        bound = max([bound, *(2 * abs(a - b) / abs(b) for a, b in zip(means(other, key), wanted, strict=True))])
        for a, b in zip(means(two, key), wanted, strict=True):
            assert abs(a - b) < bound * abs(b), (key, bound)
    assert abs(score(folder, two) - score(folder, one)) < 0.02 * score(folder, one)


@pytest.mark.parametrize("layout", TWO_RANKS)
def test_two_gpus_resume_and_share_moments_to_the_bit(folder, layout):
    device, env = where(2)
    whole, rest, shards = (folder / f"bits-{layout}-{kind}" for kind in ("whole", "rest", "shards"))
    flags = [*device, *TWO_RANKS[layout]]
    train(folder, "mixtral", whole, *flags, env=env)
    train(folder, "mixtral", rest, *flags, "--resume", whole / "checkpoint-000100", env=env)
    assert same_checkpoints(rest, whole, 200)
    train(folder, "mixtral", shards, *flags, "--zero-stage", 1, env=env)
    assert same_checkpoints(shards, whole, 200)


def test_a_run_changes_the_number_of_gpus(folder):
    device, env = where(2)
    two = folder / "layouts-two"
    train(folder, "qwen3_moe", two, *device, *TWO_RANKS["ep2"], env=env)
    for name, flags in (("one", where(1)[0]), ("cpu", ["--threads", 4])):
        rest = folder / f"layouts-{name}"
        train(folder, "qwen3_moe", rest, *flags, "--resume", two / "checkpoint-000100")
        a, b = steps_of(two)[-1]["main"], steps_of(rest)[-1]["main"]
        assert abs(a - b) < 0.03 * b


def test_what_gpus_do_not_train_is_refused(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(COMMON | CONFIGS["olmoe"]))
    said = fails("train", "--model", config, "--data", config, "--output", tmp_path / "out", "--steps", 2, "--device", "cuda",
                 "--base-gpu-id", 1000)
    assert "--device cuda: GPU 1000 is not there" in said
