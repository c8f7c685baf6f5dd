"""Checkpoints with files of the wrong type, of excessive size or nesting, or with unexpected content."""
import hashlib
import http.client
import json
import os
import shutil
import struct

import pytest

from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(MODEL, tmp_path / "model")


def refused(model, *flags):
    code, text = fails_to_start("--model-path", model, "--port", 0, *flags)
    assert code == 2, text
    return text


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "model.safetensors.index.json", "model-00002-of-00003.safetensors",
                                  "chat_template.jinja"])
def test_fifos_are_named(model, name):
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    assert f"{name}: is a FIFO, want a regular file" in refused(model)


def test_directories_and_devices_are_named(model):
    shard = model / "model-00001-of-00003.safetensors"
    shard.unlink()
    shard.mkdir()
    assert f"{shard.name}: is a directory" in refused(model)
    shard.rmdir()
    shard.symlink_to("/dev/zero")
    assert f"{shard.name}: is a device" in refused(model)


def test_deep_nesting_is_refused(model):
    (model / "tokenizer_config.json").write_text("[" * 1_000_000)
    assert "tokenizer_config.json: nests deeper than 64 levels" in refused(model)
    header = b'{"__metadata__":' + b"[" * 1_000_000
    shard = model / "model-00001-of-00003.safetensors"
    shard.write_bytes(struct.pack("<Q", len(header)) + header)
    assert f"{shard.name}: the header: nests deeper than 64 levels" in refused(model)


def test_a_template_over_a_limit_fails_only_its_request(model):
    (model / "chat_template.jinja").write_text(
        "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% elif messages[0].content == 'grow' %}{% set n = namespace(s='x' * 1000000, l=[]) %}"
        "{% for i in range(9999) %}{% set n.l = n.l + [n.s ~ i] %}{% endfor %}"
        "{% else %}{{ messages[0].content }}{% endif %}")
    with Server(model, "--tp", 1) as server:
        def chat(content):
            return server.request("/v1/chat/completions",
                                  {"messages": [{"role": "user", "content": content}], "max_tokens": 1})

        # Depending on the machine, the template exceeds the limit of steps or that of CPU time first.
        status, answer = chat("loop")
        assert status == 400 and "the template takes more than" in answer["error"]["message"]
        status, answer = chat("grow")
        assert status == 400 and "the template uses more than 67108864 bytes" in answer["error"]["message"]
        assert chat("Hello")[0] == 200


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_that_are_truncated_while_served_are_named(model, ranks):
    with Server(model, "--tp", ranks) as server:
        for shard in model.glob("model-*.safetensors"):
            os.truncate(shard, 4096)
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
        try:
            status, answer = server.request("/generate", body)
            assert status >= 500, answer
        except (OSError, http.client.HTTPException):
            pass  # the server has already exited
        assert server.process.wait(60) == 1
        text = server.text()
        assert "SIGBUS" in text
        assert "model-00001-of-00003.safetensors has been truncated from" in text


def sums(model, names):
    return "".join(f"{hashlib.sha256((model / name).read_bytes()).hexdigest()}  {name}\n" for name in names)


def test_weights_are_verified(model, tmp_path):
    shards = sorted(path.name for path in model.glob("model-*.safetensors"))
    listed = tmp_path / "sums"
    listed.write_text(sums(model, [*shards, "config.json"]))
    with Server(model, "--verify-weights", listed) as server:
        assert "all 3 weight files match" in server.text()
        assert server.stop() == 0

    listed.write_text(sums(model, shards[1:]))
    assert f"{shards[0]} is not listed" in refused(model, "--verify-weights", listed)

    listed.write_text(sums(model, shards))
    with open(model / shards[1], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert f"{shards[1]}: its SHA-256 sum is" in refused(model, "--verify-weights", listed)

    config = json.loads((model / "config.json").read_text())
    listed.write_text(sums(model, ["config.json", *shards]))
    (model / "config.json").write_text(json.dumps(config | {"more": 1}))
    assert "config.json: its SHA-256 sum is" in refused(model, "--verify-weights", listed)


def test_unusable_lists_of_sums_are_refused(model, tmp_path):
    assert "No such file" in refused(model, "--verify-weights", tmp_path / "none")
    (tmp_path / "sums").write_text("SHA256 (model.safetensors) = 0\n")
    assert "line 1: want 64 hexadecimal digits" in refused(model, "--verify-weights", tmp_path / "sums")
    assert "no weights to verify" in refused(model, "--load-format", "dummy", "--verify-weights", tmp_path / "sums")
