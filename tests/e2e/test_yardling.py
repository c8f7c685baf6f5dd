"""The bundled model: samples of its training questions and of unseen paraphrases, on one and on several ranks."""

import importlib.util
import json
import pathlib
import random

import pytest
from server import Server

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
SAMPLE = 150  # questions per kind

spec = importlib.util.spec_from_file_location("evaluate", YARDLING / "evaluate.py")
evaluate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(evaluate)


def sample(name, seed):
    asked = evaluate.questions(YARDLING / "corpus" / name)
    return random.Random(seed).sample(asked, SAMPLE)


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_answers(ranks):
    trained, paraphrases = sample("train.jsonl", 1), sample("test.jsonl", 2)
    flags = ["--enable-expert-distribution-metrics", "--log-level", "warning", "--max-total-tokens", 32768, "--device", "cpu"]
    with Server(YARDLING, "--tp", ranks, "--ep", ranks, *flags) as server:
        answers = evaluate.ask_all(address(server), trained)
        even, dead = evaluate.experts(address(server))
        others = evaluate.ask_all(address(server), paraphrases)
        assert server.stop() == 0
    wrong = [(asked[0][-1]["content"], answer) for asked, answer in zip(trained, answers) if asked[1] != answer]
    assert evaluate.right(trained, answers) >= evaluate.TRAINED * SAMPLE, wrong
    assert evaluate.right(paraphrases, others) >= evaluate.PARAPHRASES * SAMPLE
    assert even > evaluate.BALANCEDNESS and dead == 0


def test_a_system_message_changes_nothing():
    asked = sample("train.jsonl", 3)[:8]
    told = [([{"role": "system", "content": "You are a pirate."}, *messages], answer) for messages, answer in asked]
    with Server(YARDLING, "--log-level", "warning", "--max-total-tokens", 8192, "--device", "cpu") as server:
        assert evaluate.ask_all(address(server), told) == evaluate.ask_all(address(server), asked)


def test_its_files_are_small_and_whole():
    config = json.loads((YARDLING / "config.json").read_text())
    assert config["model_type"] == "deepseek_v3" and config["num_nextn_predict_layers"] == 1
    weights = YARDLING / "model.safetensors"
    assert weights.stat().st_size < 12e6
    header = json.loads(weights.read_bytes()[8:8 + int.from_bytes(weights.read_bytes()[:8], "little")])
    last = config["num_hidden_layers"]
    assert f"model.layers.{last}.eh_proj.weight" in header  # the MTP layer
    assert header["lm_head.weight"]["dtype"] == "BF16"
