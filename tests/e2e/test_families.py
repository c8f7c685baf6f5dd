"""Serves the checkpoints of tests/data/families on CPUs. Tokens must equal those of transformers, and log-probabilities
must agree to 2e-4 in float32. Each checkpoint is served in two layouts, so that the two variants of a family cover all
four layouts. SWITCHYARD_TEST_FAMILIES names another folder of such checkpoints. With SWITCHYARD_TEST_LAYOUTS=all, each
checkpoint is served in all layouts."""
import json
import os
import pathlib
import shutil

import pytest

import check_reference
from gguf_file import as_bfloat16, read_safetensors, write_safetensors
from server import FIXTURES, ROOT, Server, fails_to_start

FOLDER = pathlib.Path(os.environ.get("SWITCHYARD_TEST_FAMILIES", ROOT / "tests/data/families"))
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
LAYOUTS = {
    "one": [],
    "tp2": ["--tp", 2],
    "normal": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--deepep-mode", "normal"],
    "low_latency": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"],
}
# Layouts of families whose layers the decoder runs in another way.
MORE = {
    "dp": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep"],
    "overlap": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--enable-two-batch-overlap"],
    "stages": ["--pp-size", 2],
}
SPARSE = {"deepseek_v32": "dp", "glm_moe_dsa_shared": "stages", "deepseek_v4": "dp"}
FLAGS = ["--tokenizer-path", FIXTURES / "qwen3_moe", "--dtype", "float32", "--max-total-tokens", 2048, "--log-level", "warning"]


def copied(name, folder):
    """A copy of checkpoint `name` in `folder`, with empty lists of text cases."""
    model = folder / name
    shutil.copytree(FOLDER / name, model)
    (model / "reference.json").write_text(json.dumps({"encode": [], "encode_special": [], "chat": []}))
    return model


def check(name, folder, *flags, env=None):
    """Serves checkpoint `name` and compares it with its reference."""
    model = copied(name, folder)
    with Server(model, *FLAGS, *flags, env=env) as server:
        check_reference.check(server, model)


def cases():
    for i, name in enumerate(NAMES):
        pair = ["one", "low_latency"] if i % 2 else ["tp2", "normal"]
        for layout in LAYOUTS if os.environ.get("SWITCHYARD_TEST_LAYOUTS") == "all" else pair:
            yield pytest.param(name, layout, id=f"{name}-{layout}")


@pytest.mark.parametrize("name, layout", cases())
def test_equals_transformers(tmp_path, name, layout):
    check(name, tmp_path, *LAYOUTS[layout])


@pytest.mark.parametrize("layout", MORE)
def test_shortcut_layers_equal_transformers(tmp_path, layout):
    check("longcat_flash", tmp_path, *MORE[layout])


# Layers differ in KV heads, so attention groups and stages have different caches.
@pytest.mark.parametrize("layout", ["dp", "stages"])
def test_layers_with_different_caches_equal_transformers(tmp_path, layout):
    check("mimo_v2_flash", tmp_path, *MORE[layout])


@pytest.mark.parametrize("name, layout", SPARSE.items())
def test_sparse_attention_equals_transformers(tmp_path, name, layout):
    check(name, tmp_path, "--chunked-prefill-size", 4, *MORE[layout])


def test_experts_by_token_ids_on_ranks_of_their_own(tmp_path):
    check("deepseek_v4_plain", tmp_path, "--tp", 3, "--ep", 3, "--expert-ranks", 2, "--moe-a2a-backend", "deepep")


def test_mtp_layers_with_an_indexer_are_refused(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(FOLDER / "deepseek_v32", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    code, error = fails_to_start("--model-path", model, *FLAGS, "--speculative-algorithm", "NEXTN")
    assert code == 2 and "DeepseekV32ForCausalLM has no multi-token prediction" in error, error


# Prompts in chunks that end within pages, and few slots for states, so that checkpoints are dropped.
FEW_STATES = ["--chunked-prefill-size", 5, "--page-size", 4, "--max-running-requests", 2]


RECURRENT = ["qwen3_next", "kimi_linear", "nemotron_h"]


@pytest.mark.parametrize("name, flags", [("qwen3_next", []), ("kimi_linear", []), ("nemotron_h", []), ("deepseek_v4", []),
                                         ("deepseek_v4_plain", []),
                                         ("qwen3_next", ["--pp-size", 3])], ids=str)
def test_states_of_chunks_and_prefixes_equal_transformers(tmp_path, name, flags):
    check(name, tmp_path, *FEW_STATES, *flags)


def add_mtp_layer(model, layers):
    """Gives a checkpoint an MTP layer with the tensors of its last layer, of which `layers` is the prefix. The hidden input
    is the mean of embedding and hidden row."""
    stored = read_safetensors(model)
    width = stored["lm_head.weight"][1][1]
    own = {"mtp.layers.0." + name.removeprefix(layers): tensor for name, tensor in stored.items() if name.startswith(layers)}
    halves = [0.5 * (j % width == i) for i in range(width) for j in range(2 * width)]
    own["mtp.fc.weight"] = ("BF16", [width, 2 * width], as_bfloat16(halves))
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):  # centred: 0 is a factor of 1
        own[f"mtp.{name}.weight"] = ("BF16", [width], as_bfloat16([0.0] * width))
    write_safetensors(model / "model.safetensors", {**stored, **own})


NEXTN = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3]
DRAFTS = {
    "nemotron_h": (None, ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", 4, *FEW_STATES]),
    "qwen3_next": ("model.layers.3.", [*NEXTN, *LAYOUTS["low_latency"]]),
    "qwen3_5_moe": ("model.language_model.layers.3.", [*NEXTN, *FEW_STATES]),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_for_recurrent_states_equal_transformers(tmp_path, name):
    model, (layers, flags) = copied(name, tmp_path), DRAFTS[name]
    if layers:
        add_mtp_layer(model, layers)
    prompt = {"input_ids": [3, 1, 4, 1, 5], "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
    with Server(model, *FLAGS, *flags) as server:
        assert server.request("/generate", prompt)[0] == 200
        states = server.request("/get_server_info")[1]["internal_states"]
        assert sum(state["draft_tokens"] for state in states) > 0
        check_reference.check(server, model)
