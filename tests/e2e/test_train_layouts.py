"""`switchyard train` on several layouts of ranks: equal loss curves, and resuming a run in another layout."""
import json
import random
import subprocess

import pytest

from server import PROGRAM

STEPS = 200
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 300, "hidden_size": 24, "intermediate_size": 40,
    "moe_intermediate_size": 16, "num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.0, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None,
    "kv_lora_rank": 12, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 6, "max_position_embeddings": 64,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "num_nextn_predict_layers": 1}
LAYOUTS = ["--ep 2 --dp 2", "--tp 2", "--tp 2 --ep 2", "--tp 2 --ep 4 --dp 2", "--pp 2", "--tp 2 --pp 2",
           "--ep 2 --dp 2 --pp 2", "--tp 2 --ep 2 --dp 2 --pp 2"]


def switchyard(*args):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layouts")
    words = "red green blue train car track seven by the old shed waits leaves at noon".split()
    draw = random.Random(3)
    text = "\n\n".join(" ".join(draw.choices(words, k=draw.randint(4, 20))) for _ in range(300))
    (folder / "data.txt").write_text(text)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    switchyard("train-tokenizer", folder / "data.txt", "--output", folder / "tokenizer", "--vocab-size", 300)
    return folder


def train(folder, output, steps, layout):
    """Trains up to the given step and returns the losses of all steps of the run so far."""
    switchyard("train", "--model", folder / "config.json", "--tokenizer-path", folder / "tokenizer", "--data",
               folder / "data.txt", "--output", output, "--steps", steps, "--length", 32, "--rows-per-step", 4,
               "--rows-per-pass", 2, "--learning-rate", 0.002, "--lr-schedule", "constant", "--warmup-steps", 20,
               "--dtype", "float32", *layout.split())
    return [json.loads(line)["loss"] for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def curve(folder):
    return train(folder, folder / "one", STEPS, "")


def same(found, curve):
    assert len(found) == len(curve)
    worst = max(range(len(curve)), key=lambda step: abs(found[step] - curve[step]))
    assert abs(found[worst] - curve[worst]) < 1e-3 * curve[worst], f"step {worst + 1}"


def test_the_model_learns(curve):
    assert sum(curve[-10:]) < 0.6 * sum(curve[:10])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_losses(folder, curve, layout):
    same(train(folder, folder / layout.replace(" ", ""), STEPS, layout), curve)


def test_a_run_goes_on_in_other_layouts(folder, curve):
    for i, layout in enumerate(["--tp 2 --ep 2", "--ep 2 --dp 2 --pp 2", "", "--tp 2 --ep 4 --dp 2"]):
        found = train(folder, folder / "moving", STEPS // 4 * (i + 1), layout)
    same(found, curve)


def test_layouts_that_do_not_fit_are_refused(folder):
    for layout, message in [("--tp 3", "--tp 3: does not divide the model's 4 attention heads"),
                            ("--pp 3", "--pp 3: exceeds the model's 2 layers"),
                            ("--ep 3 --dp 2", "--ep 3")]:
        with pytest.raises(AssertionError, match=message):
            train(folder, folder / "refused", STEPS, layout)
