"""GGUF files. The outputs of each family equal those of transformers, and those of each type equal its dequantized
weights. Also tests split models and invalid files.

The files of families are converted from the reference checkpoints by gguf_file.py. The files in tests/data/gguf were
written by the Python package `gguf`.
"""
import json
import shutil
import struct
import subprocess
import sys

import pytest

import gguf_file
from server import FIXTURES, PROGRAM, ROOT, Server, fails_to_start

FILES = ROOT / "tests/data/gguf"
FAMILIES = ROOT / "tests/data/families"
SMALL = ["--max-total-tokens", 4096, "--log-level", "warning"]
FLOAT32 = ["--dtype", "float32", *SMALL]
NAMES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss", "glm4_moe", "llama", "qwen3"]


def check_reference(model, reference, *flags):
    with Server(model, *FLOAT32, *flags) as server:
        done = subprocess.run([sys.executable, ROOT / "tests/e2e/check_reference.py", "--url", server.url, reference,
                               "--tolerance", "2e-4"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr + server.text()
        assert server.stop() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_family_equals_transformers(tmp_path, name):
    """Compares weights, tokenizer and chat template. Half of the models are split, and --model-path is their
    directory."""
    splits = 3 if NAMES.index(name) % 2 else 1
    gguf_file.write(tmp_path / "model.gguf", *gguf_file.convert(FIXTURES / name), splits=splits)
    check_reference(tmp_path if splits > 1 else tmp_path / "model.gguf", FIXTURES / name)


@pytest.mark.parametrize("name", ["dots1", "ernie4_5_moe"])
def test_a_family_without_tokenizer_equals_transformers(tmp_path, name):
    file = gguf_file.write(tmp_path / "model.gguf", *gguf_file.convert(FAMILIES / name))
    shutil.copy(FAMILIES / name / "reference.safetensors", tmp_path)
    (tmp_path / "reference.json").write_text(json.dumps({"encode": [], "encode_special": [], "chat": []}))
    check_reference(file, tmp_path, "--tokenizer-path", FIXTURES / "qwen3_moe")


# --- types ---

MODULES = {"olmoe": "mlp", "qwen3_moe": "mlp", "mixtral": "block_sparse_moe", "gpt_oss": "mlp"}
# Types whose linears stay packed with --dtype float32. The embedding and the head are always expanded.
PACKED = ("Q4_0",)


def twin(file, config, folder):
    """Writes a safetensors checkpoint with the dequantized weights of a GGUF file. They are bfloat16, the format to
    which blocks are expanded. Linears in Q4_0 stay packed, so here they are float32."""
    kind = config["model_type"]
    modules = {gguf: name for name, gguf in gguf_file.MODULES.items()}
    modules.update({"ffn_gate_inp": f"{MODULES[kind]}.{'router' if kind == 'gpt_oss' else 'gate'}", "ffn_norm":
                    "post_attention_layernorm", "post_attention_norm": "post_attention_layernorm"})
    out = {}

    def put(name, stored, shape, raw, layer=True):
        if stored not in gguf_file.BLOCKS:
            out[name] = (stored, shape, raw)
            return
        values, packed = gguf_file.dequantize(stored, raw), layer and stored in PACKED
        raw = struct.pack(f"<{len(values)}f", *values) if packed else gguf_file.as_bfloat16(values)
        out[name] = ("F32" if packed else "BF16", shape, raw)

    for name, (stored, shape, raw) in gguf_file.read(file)[1].items():
        whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                 "output.weight": "lm_head.weight"}.get(name)
        if whole:
            put(whole, stored, shape, raw, layer=False)
            continue
        _, layer, module, suffix = name.split(".")
        prefix = f"model.layers.{layer}."
        if module.endswith("_exps"):
            if kind == "gpt_oss":
                continue  # as in the fixture
            part = gguf_file.EXPERTS[module.split("_")[1]][kind == "mixtral"]
            for i, one in enumerate(gguf_file.rows_of(raw, shape[0])):
                put(f"{prefix}{MODULES[kind]}.experts.{i}.{part}.weight", stored, shape[1:], one)
            continue
        if kind == "mixtral" and module in ("attn_q", "attn_k"):
            rows, heads = gguf_file.rows_of(raw, shape[0]), config["num_attention_heads" if module == "attn_q" else
                                                                   "num_key_value_heads"]
            size = shape[0] // heads
            raw = b"".join(rows[h * size + 2 * i + half] for h in range(heads) for half in (0, 1) for i in range(size // 2))
        put(prefix + modules[module] + ("" if module == "attn_sinks" else "." + suffix), stored, shape, raw)
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "gpt_oss":
        stored = gguf_file.read_safetensors(FIXTURES / "gpt_oss")
        out.update({name: tensor for name, tensor in stored.items() if ".experts." in name and
                    int(name.split(".")[2]) < config["num_hidden_layers"]})
    gguf_file.write_safetensors(folder / "model.safetensors", out)
    return folder


K_TYPES = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 256,
           "intermediate_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 32, "num_experts": 2, "num_experts_per_tok": 1, "norm_topk_prob": True,
           "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
           "torch_dtype": "bfloat16"}


def config_of(name, **changes):
    return {**json.loads((FIXTURES / name / "config.json").read_text()), **changes}


def logprobs(model, *flags, vocabulary=500):
    """Log-probabilities of a prompt and of the generated tokens."""
    prompt = [(7 * i * i + 3) % vocabulary for i in range(40)]
    with Server(model, *FLOAT32, "--tokenizer-path", FIXTURES / "qwen3_moe", *flags) as server:
        status, answer = server.request("/generate", {
            "input_ids": prompt, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}})
        assert status == 200, answer
        assert server.stop() == 0
    meta = answer["meta_info"]
    return [entry[0] for entry in meta["input_token_logprobs"][1:] + meta["output_token_logprobs"]]


@pytest.mark.parametrize("name", ["olmoe_q8_0", "gpt_oss_mxfp4", "k_types"])
def test_expanded_blocks_and_mxfp4_equal_their_values(tmp_path, name):
    config = {"olmoe_q8_0": config_of("olmoe"), "gpt_oss_mxfp4": config_of("gpt_oss", num_hidden_layers=3,
              layer_types=None), "k_types": K_TYPES}[name]
    vocabulary = min(config["vocab_size"], 500)
    file = FILES / f"{name}.gguf"
    want = logprobs(twin(file, config, tmp_path), vocabulary=vocabulary)
    assert logprobs(file, vocabulary=vocabulary) == want


def test_packed_q4_0_equals_its_values(tmp_path):
    """The kernels for packed weights and for float32 sum in different orders, so results are equal within a tolerance.
    With packed weights, the number of ranks does not change the bits."""
    file = FILES / "mixtral_q4_0.gguf"
    found = logprobs(file)
    assert found == pytest.approx(logprobs(twin(file, config_of("mixtral"), tmp_path)), abs=1e-4)
    distributed = ["--tp", 2, "--ep", 2, "--enable-dp-attention", "--dp-size", 2, "--moe-a2a-backend", "deepep"]
    assert logprobs(file, *distributed) == found


# --- defects ---

@pytest.fixture
def olmoe():
    return bytearray((FILES / "olmoe_q8_0.gguf").read_bytes())


def refused(path, *flags):
    code, said = fails_to_start("--model-path", path, "--port", 0, "--log-level", "warning", *flags)
    lines = said.splitlines()
    assert code == 2 and len(lines) == 1, said
    return lines[0]


def test_a_bad_file_gets_one_clear_line(tmp_path, olmoe):
    file = tmp_path / "model.gguf"
    assert "model.gguf: No such file or directory" in refused(file)

    def said_of(data):
        file.write_bytes(data)
        return refused(file)

    assert "empty; it is truncated" in said_of(b"")
    assert "this is not a GGUF file" in said_of(b"PK\3\4" + bytes(100))
    assert "is GGUF version 9; want version 2 or 3" in said_of(olmoe[:4] + b"\x09" + olmoe[5:])
    assert "it is truncated" in said_of(olmoe[:len(olmoe) // 2])
    assert "it is truncated" in said_of(olmoe[:1000])
    at = olmoe.index(b"blk.0.attn_v.weight") + 19 + 4 + 16  # the type, after two sizes
    assert "tensor \"blk.0.attn_v.weight\" has the unknown type 77" in said_of(olmoe[:at] + b"\x4d" + olmoe[at + 1:])
    metadata, tensors = gguf_file.convert(FIXTURES / "olmoe")
    kind, shape, _ = tensors["blk.0.attn_v.weight"]
    gguf_file.write(file, metadata, {**tensors, "blk.0.attn_v.weight": (kind, [shape[0], 32], bytes(shape[0] * 64))})
    assert 'tensor "blk.0.attn_v.weight" is [64, 32]; the metadata requires [64, 64]' in refused(file)
    gguf_file.write(file, [("general.architecture", "str", "mamba")] + metadata[1:], tensors)
    assert 'general.architecture is "mamba"; want deepseek2, dots1,' in refused(file)
    other = [entry if entry[0] != "tokenizer.ggml.pre" else (*entry[:2], "klingon") for entry in metadata]
    gguf_file.write(file, other, tensors)
    assert "tokenizer.ggml.pre is klingon" in refused(file)
    missing = {name: tensor for name, tensor in tensors.items() if "ffn_up_exps" not in name}
    gguf_file.write(file, metadata, missing)
    assert "2 tensors that the metadata implies are missing: blk.0.ffn_up_exps.weight" in refused(file)


def test_splits_must_be_complete(tmp_path):
    first = gguf_file.write(tmp_path / "m.gguf", *gguf_file.convert(FIXTURES / "llama"), splits=2)
    second = tmp_path / "m-00002-of-00002.gguf"
    second.unlink()
    assert "m-00002-of-00002.gguf: No such file or directory" in refused(first)
    shutil.copy(first, second)
    assert "is split 1 of 2 by its metadata; want split 2 of 2" in refused(first)


def test_flags_and_tools_that_do_not_apply_are_named():
    file = FILES / "olmoe_q8_0.gguf"
    assert "--quantization fp8: " in refused(file, "--quantization", "fp8")
    done = subprocess.run([PROGRAM, "train-score", "--model", file, "--data", FIXTURES / "README.md"], capture_output=True,
                          text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_tools_take_a_file():
    file = FILES / "olmoe_q8_0.gguf"
    done = subprocess.run([PROGRAM, "generate", "--model-path", file, "--prompt", "a", "--max-new-tokens", "3"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([PROGRAM, "plan", "--model-path", file, "--cpu", "--input-len", "64", "--output-len", "32"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
