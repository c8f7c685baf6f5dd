"""Serves the checkpoints of tests/data/families on CPUs. Tokens must equal those of transformers, and log-probabilities
must agree to 2e-4 in float32. Each checkpoint is served in two layouts, so that the two variants of a family cover all
four layouts. SWITCHYARD_TEST_FAMILIES names another folder of such checkpoints. With SWITCHYARD_TEST_LAYOUTS=all, each
checkpoint is served in all layouts."""
import json
import os
import pathlib
import random
import shutil

import pytest

import check_reference
from gguf_file import as_bfloat16, read_safetensors, write_safetensors
from server import FIXTURES, ROOT, Server

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


# Prompts in chunks that end within pages, and few slots for states, so that checkpoints are dropped.
FEW_STATES = ["--chunked-prefill-size", 5, "--page-size", 4, "--max-running-requests", 2]


RECURRENT = ["qwen3_next", "kimi_linear", "nemotron_h", "bailing_hybrid", "bailing_moe_v2_5"]


@pytest.mark.parametrize("name, flags", [("qwen3_next", []), ("kimi_linear", []), ("nemotron_h", []), ("bailing_hybrid", []),
                                         ("bailing_moe_v2_5", []), ("bailing_hybrid_layers", ["--pp-size", 2]), ("deepseek_v4", []),
                                         ("deepseek_v4_plain", []),
                                         # The second stage has a layer that routes by token ids.
                                         ("deepseek_v4", ["--pp-size", 2, "--pp-layer-partition", "1,3"]),
                                         ("qwen3_next", ["--pp-size", 3])], ids=str)
def test_states_of_chunks_and_prefixes_equal_transformers(tmp_path, name, flags):
    check(name, tmp_path, *FEW_STATES, *flags)


def e4m3(code):
    exponent, fraction = code >> 3 & 15, code & 7
    value = fraction / 8 * 2.0 ** -6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


def as_published(stored, hidden):
    """Random weights of DeepSeek-V4 in the published form: FP8 blocks of one exponent, and MXFP4 experts of `hidden` x `hidden`.
    Returns their tensors, and bfloat16 tensors of the same values."""
    r, e2m1 = random.Random(4), [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    packed, plain = dict(stored), dict(stored)
    for name, (_, shape, _) in stored.items():
        expert, scale = "experts." in name, name.removesuffix("weight") + "scale"
        if expert and "shared" not in name:
            codes, exponents = r.randbytes(hidden * hidden // 2), bytes(r.randrange(120, 123) for _ in range(hidden))
            packed[name], packed[scale] = ("I8", [hidden, hidden // 2], codes), ("F8_E8M0", [hidden, 1], exponents)
            digits = [digit for byte in codes for digit in (byte & 15, byte >> 4)]
            values = [(e2m1[d & 7] if d < 8 else -e2m1[d & 7]) * 2.0 ** (exponents[i // hidden] - 127) for i, d in enumerate(digits)]
            plain[name] = ("BF16", [hidden, hidden], as_bfloat16(values))
        elif expert or (".attn.w" in name or "indexer.wq_b" in name):
            shape = [hidden, hidden] if expert else shape
            codes = bytes(r.randrange(72) | r.randrange(2) << 7 for _ in range(shape[0] * shape[1]))
            blocks = [-(-size // 128) for size in shape]
            packed[name], packed[scale] = ("F8_E4M3", shape, codes), ("F8_E8M0", blocks, bytes([124] * blocks[0] * blocks[1]))
            plain[name] = ("BF16", shape, as_bfloat16([e4m3(code) / 8 for code in codes]))
    return packed, plain


def test_published_deepseek_v4_equals_its_values_in_bfloat16(tmp_path):
    source, answers = FOLDER / "deepseek_v4", []
    config = {**json.loads((source / "config.json").read_text()), "moe_intermediate_size": 32, "expert_dtype": "fp4"}
    quantized = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    prompt = {"input_ids": [[3, 1, 4, 1, 5], [*range(40, 61)]], "return_logprob": True,
              "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}
    for name, tensors in zip(("published", "plain"), as_published(read_safetensors(source), 32)):
        model = tmp_path / name
        model.mkdir()
        (model / "config.json").write_text(json.dumps({**config, **({"quantization_config": quantized} if name == "published" else {})}))
        write_safetensors(model / "model.safetensors", tensors)
        with Server(model, *FLAGS, *LAYOUTS["low_latency"], "--quantize-activations", "never") as server:
            status, got = server.request("/generate", prompt)
            assert status == 200, got
            answers.append([answer["meta_info"]["output_token_logprobs"] for answer in got])
    for published, plain in zip(*answers):
        assert [t[1] for t in published] == [t[1] for t in plain]
        assert max(abs(a[0] - b[0]) for a, b in zip(published, plain)) < 1e-3


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


def add_sparse_mtp_layer(model, copied_layer, **settings):
    """The same under the names of DeepSeek-V3's MTP layer, for checkpoints whose layers have indexers."""
    config, stored = json.loads((model / "config.json").read_text()), read_safetensors(model)
    width, source, prefix = config["hidden_size"], f"model.layers.{copied_layer}.", f"model.layers.{config['num_hidden_layers']}."
    own = {prefix + name.removeprefix(source): tensor for name, tensor in stored.items() if name.startswith(source)}
    halves = [0.5 * (j % width == i) for i in range(width) for j in range(2 * width)]
    own[prefix + "eh_proj.weight"] = ("BF16", [width, 2 * width], as_bfloat16(halves))
    for name in ("enorm", "hnorm", "shared_head.norm"):
        own[f"{prefix}{name}.weight"] = ("BF16", [width], as_bfloat16([1.0] * width))
    write_safetensors(model / "model.safetensors", {**stored, **own})
    (model / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1, **settings}))


def add_mimo_mtp_layers(model, count):
    """Gives a copy of mimo_v2_flash MTP layers: the attention of layer 1, which has a window, and the feed-forward of the
    dense layer 0."""
    stored, config = read_safetensors(model), json.loads((model / "config.json").read_text())
    for layer in range(count):
        stored |= mimo_mtp_layer(stored, f"model.mtp.layers.{layer}.")
    write_safetensors(model / "model.safetensors", stored)
    (model / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": count}))


def mimo_mtp_layer(stored, prefix):
    width = stored["lm_head.weight"][1][1]
    of_layer = {"model.layers.1.self_attn.": "self_attn.", "model.layers.1.input_layernorm.": "input_layernorm.",
                "model.layers.1.post_attention_layernorm.": "pre_mlp_layernorm.", "model.layers.0.mlp.": "mlp."}
    own = {prefix + new + name.removeprefix(old): tensor for name, tensor in stored.items()
           for old, new in of_layer.items() if name.startswith(old)}
    halves = [0.5 * (j % width == i) for i in range(width) for j in range(2 * width)]
    own[prefix + "eh_proj.weight"] = ("BF16", [width, 2 * width], as_bfloat16(halves))
    for name in ("enorm", "hnorm", "final_layernorm"):
        own[prefix + name + ".weight"] = ("BF16", [width], as_bfloat16([1.0] * width))
    return own


NEXTN = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3]
DRAFTS = {
    "nemotron_h": (None, ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", 4, *FEW_STATES]),
    "deepseek_v4": (None, ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", 4, *FEW_STATES]),
    "bailing_hybrid_layers": (None, ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", 4, *FEW_STATES]),
    "bailing_moe_v2_5_groups": (None, ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", 4, *FEW_STATES]),
    "qwen3_next": ("model.layers.3.", [*NEXTN, *LAYOUTS["low_latency"]]),
    "qwen3_5_moe": ("model.language_model.layers.3.", [*NEXTN, *FEW_STATES]),
}


def check_drafts(model, *flags, env=None):
    """Serves a checkpoint with drafts, and compares it with its reference."""
    prompt = {"input_ids": [3, 1, 4, 1, 5], "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
    with Server(model, *FLAGS, *flags, env=env) as server:
        assert server.request("/generate", prompt)[0] == 200
        states = server.request("/get_server_info")[1]["internal_states"]
        assert sum(state["draft_tokens"] for state in states) > 0
        check_reference.check(server, model)


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_for_recurrent_states_equal_transformers(tmp_path, name):
    model, (layers, flags) = copied(name, tmp_path), DRAFTS[name]
    if layers:
        add_mtp_layer(model, layers)
    check_drafts(model, *flags)


# The layer that the MTP layer copies, and changed settings. The MTP layer of the last checkpoint has an indexer, its last
# layer has none.
SPARSE_DRAFTS = {"deepseek_v32": (2, {}), "glm_moe_dsa_shared": (2, {"index_share_for_mtp_iteration": True})}


def check_sparse_drafts(name, folder, *flags, env=None):
    """As check_drafts, for contexts with more tokens than index_topk."""
    model, (layer, settings) = copied(name, folder), SPARSE_DRAFTS[name]
    add_sparse_mtp_layer(model, layer, **settings)
    check_drafts(model, *NEXTN, *flags, env=env)


@pytest.mark.parametrize("name, layout", [("deepseek_v32", "low_latency"), ("glm_moe_dsa_shared", "one")])
def test_drafts_with_sparse_attention_equal_transformers(tmp_path, name, layout):
    check_sparse_drafts(name, tmp_path, *LAYOUTS[layout])


# With three layers, each makes one draft of a step.
@pytest.mark.parametrize("layers, flags", [(1, MORE["stages"]), (3, LAYOUTS["normal"]), (3, MORE["dp"])], ids=str)
def test_drafts_of_layers_with_a_window_equal_transformers(tmp_path, layers, flags):
    model = copied("mimo_v2_flash", tmp_path)
    add_mimo_mtp_layers(model, layers)
    check_drafts(model, *NEXTN, *flags)
