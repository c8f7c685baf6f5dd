"""Properties of published checkpoints: hub ids, overlays, long contexts, token ids beyond the vocabulary."""
import json
import shutil
import struct

import pytest

from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"  # three shards, 512 positions
SMALL = ["--max-total-tokens", 4096]


def copy(directory):
    shutil.copytree(MODEL, directory)
    for path in [directory, *directory.iterdir()]:
        path.chmod(0o755)
    return directory


def ids(server, prompt=(1, 2, 3)):
    status, answer = server.request("/generate", {"input_ids": list(prompt), "sampling_params": {
        "temperature": 0, "max_new_tokens": 8, "ignore_eos": True}})
    assert status == 200, answer
    return answer["output_ids"]


def test_a_hub_id_is_served_from_the_cache(tmp_path):
    model = tmp_path / "hub" / "models--org--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots").mkdir()
    (model / "snapshots" / "abc").symlink_to(MODEL)
    with Server("org/tiny", *SMALL, env={"HF_HOME": str(tmp_path), "HF_HUB_CACHE": ""}) as server:
        assert server.request("/v1/models")[1]["data"][0]["id"] == "org/tiny"
        assert len(ids(server)) == 8
    code, said = fails_to_start("--model-path", "org/huge", "--port", 0, "--download-dir", tmp_path / "hub")
    assert code == 2 and "no model of this id; download it with: hf download org/huge" in said, said
    code, said = fails_to_start("--model-path", "org/tiny", "--port", 0, "--download-dir", tmp_path / "hub",
                                "--revision", "v2")
    assert code == 2 and "no snapshot of revision v2" in said, said


def tensors(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_tensor(path, name, dtype, shape, data):
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def test_the_index_says_which_file_has_a_tensor(tmp_path):
    with Server(MODEL, *SMALL) as server:
        want = ids(server)
    directory = copy(tmp_path / "overlay")
    index_file = directory / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    name = "model.layers.0.self_attn.o_proj.weight"
    home = directory / index["weight_map"][name]
    header, data = tensors(home)
    entry = header[name]
    begin, end = entry["data_offsets"]
    good = data[begin:end]
    # Zeros replace the tensor in its old file. The index names a new file that has the correct tensor. A third file,
    # which the index does not name, has another tensor of the same name.
    raw = bytearray(home.read_bytes())
    offset = len(raw) - len(data)
    raw[offset + begin:offset + end] = bytes(end - begin)
    home.write_bytes(raw)
    write_tensor(directory / "model-overlay.safetensors", name, entry["dtype"], entry["shape"], good)
    write_tensor(directory / "model.safetensors", name, "F32", [1], bytes(4))
    index["weight_map"][name] = "model-overlay.safetensors"
    index_file.write_text(json.dumps(index))
    with Server(directory, *SMALL) as server:
        assert ids(server) == want
    (directory / "model-overlay.safetensors").unlink()
    code, said = fails_to_start("--model-path", directory, "--port", 0)
    assert code == 2 and "model-overlay.safetensors" in said, said


def logprobs(model, *flags, env=None):
    """Log-probabilities of a prompt and of the generated tokens."""
    prompt = [(7 * i * i + 3) % 500 for i in range(40)]
    with Server(model, *SMALL, "--dtype", "float32", *flags, env=env) as server:
        status, answer = server.request("/generate", {
            "input_ids": prompt, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}})
    assert status == 200, answer
    meta = answer["meta_info"]
    return [entry[0] for entry in meta["input_token_logprobs"][1:] + meta["output_token_logprobs"]]


def test_clip_qkv_limits_what_attention_adds(tmp_path):
    """If values are clipped to almost 0, the attention adds nothing, as with output projections of zero."""
    directory = tmp_path / "model"
    shutil.copytree(FIXTURES / "olmoe", directory)
    file = directory / "model.safetensors"
    file.chmod(0o644)
    header, data = tensors(file)
    raw = bytearray(file.read_bytes())
    for name, entry in header.items():
        if "o_proj" in name:
            begin, end = (len(raw) - len(data) + offset for offset in entry["data_offsets"])
            raw[begin:end] = bytes(end - begin)
    file.write_bytes(raw)
    clipped = logprobs(FIXTURES / "olmoe", "--json-model-override-args", '{"clip_qkv": 1e-6}')
    assert clipped == pytest.approx(logprobs(directory), abs=1e-4)
    assert clipped != pytest.approx(logprobs(FIXTURES / "olmoe"), abs=1e-2)


def test_yarn_stretches_the_context_beyond_max_position_embeddings():
    yarn = json.dumps({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}})
    flags = ["--json-model-override-args", yarn, "--context-length"]
    with Server(MODEL, *SMALL, *flags, 2048) as server:
        assert server.request("/v1/models")[1]["data"][0]["max_model_len"] == 2048
        assert len(ids(server, [7] * 1500)) == 8
    code, said = fails_to_start("--model-path", MODEL, "--port", 0, *flags, 2049)
    assert code == 2 and "--context-length 2049: want 2 to 2048" in said, said


def test_a_tokenizer_past_the_vocabulary_is_a_warning(tmp_path):
    directory = copy(tmp_path / "model")
    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    tokenizer_file = directory / "tokenizer.json"
    tokenizer = json.loads(tokenizer_file.read_text())
    tokenizer["added_tokens"].append({"id": vocabulary, "content": "<|extra|>", "single_word": False, "lstrip": False,
                                      "rstrip": False, "normalized": False, "special": True})
    tokenizer_file.write_text(json.dumps(tokenizer))
    with Server(directory, *SMALL) as server:
        assert f"ids up to {vocabulary}, but config.json says vocab_size {vocabulary}" in server.text()
        assert len(ids(server)) == 8
        status, answer = server.request("/generate", {"input_ids": [vocabulary]})
        assert status == 400 and str(vocabulary) in json.dumps(answer), answer
        assert server.request("/generate", {"text": "<|extra|>"})[0] == 400
