"""Speculative decoding: servers with and without drafts give the same answers, and counts of drafts are reported."""
import base64
import collections
import concurrent.futures
import json
import re
import shutil
import subprocess

import pytest

from eagle_head import write_head
from server import FIXTURES, PROGRAM, ROOT, Server

YARDLING = ROOT / "models" / "yardling"
FLAGS = ["--device", "cpu", "--max-total-tokens", 8192, "--chunked-prefill-size", 48, "--max-running-requests", 8,
         "--log-level", "warning"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
PROMPTS = ["Speculative decoding is", "The KV cache", "DP attention is a way to", "A long prompt would keep",
           "one two three one two three one two three one"]


def native(server, i):
    sampling = {"max_new_tokens": 8 + 5 * (i % 7), "temperature": [0, 0.8][i % 2], "sampling_seed": i}
    if i % 3 == 0:
        sampling["stop"] = ["the", "e."]
    if i % 4 == 0:
        sampling["frequency_penalty"] = 0.5
    if i % 5 == 0:
        sampling.update(min_new_tokens=6, logit_bias={"5": 1.5})
    body = {"text": PROMPTS[i % len(PROMPTS)], "return_logprob": i % 3 == 1, "sampling_params": sampling,
            "return_routed_experts": i % 6 == 0}
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    meta = answer["meta_info"]
    return (answer["text"], answer["output_ids"], meta["finish_reason"], meta.get("output_token_logprobs"),
            meta.get("routed_experts"))


def chat(server, i):
    body = {"messages": [{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}], "max_tokens": 60, "seed": i,
            "temperature": [0, 1][i % 2]}
    if i % 2 == 0:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    status, answer = server.request("/v1/chat/completions", body)
    assert status == 200, answer
    choice = answer["choices"][0]
    if i % 2 == 0 and choice["finish_reason"] == "stop":
        assert set(json.loads(choice["message"]["content"])) == {"name", "age"}
    return choice["message"], choice["finish_reason"], answer["usage"]["completion_tokens"]


def answers(server):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda i: native(server, i), range(30))) + list(pool.map(lambda i: chat(server, i), range(12)))


@pytest.fixture(scope="module")
def plain():
    with Server(YARDLING, *FLAGS) as server:
        return answers(server)


LAYOUTS = {
    "nextn": ["--speculative-algorithm", "NEXTN"],
    "nextn_fixed": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3, "--speculative-eagle-topk", 1,
                    "--speculative-num-draft-tokens", 4],
    "ngram": ["--speculative-algorithm", "NGRAM", "--speculative-num-steps", 5],
    "standalone": ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", YARDLING,
                   "--speculative-num-steps", 2],
    "ranks": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2, "--tp", 2, "--ep", 2, "--dp-size", 2,
              "--enable-dp-attention", "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep",
              "--speculative-moe-a2a-backend", "flashinfer", "--speculative-moe-runner-backend", "masked_mlp"],
    "eagle": ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", 3],
    "nextn_stages": ["--speculative-algorithm", "NEXTN", "--pp-size", 2],
    "eagle_stages": ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", 2, "--pp-size", 2],
    "nextn_map": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2],
    "eagle_map_ranks": ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", 2, "--tp", 2, "--ep", 2, "--dp-size", 2,
                        "--enable-dp-attention", "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep"],
    "eagle3": ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", 2],
    "eagle3_auto": ["--speculative-algorithm", "EAGLE3"],
    "eagle3_ranks": ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", 2, "--tp", 2, "--ep", 2, "--dp-size", 2,
                     "--enable-dp-attention", "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep"],
}
TREES = {
    "nextn_trees": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3, "--speculative-eagle-topk", 2,
                    "--speculative-num-draft-tokens", 7],
    "standalone_trees": ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", YARDLING,
                         "--speculative-num-steps", 2, "--speculative-eagle-topk", 3, "--speculative-num-draft-tokens", 8,
                         "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                         "--moe-a2a-backend", "deepep"],
}
# Arguments of write_head. The last head has another hidden size than the target.
HEADS = {"eagle": {"inner_rows": False}, "eagle_stages": {"inner_rows": False}, "eagle_map_ranks": {"inner_rows": False}, "eagle3": {"inner_rows": True}, "eagle3_auto": {"inner_rows": True},
         "eagle3_ranks": {"inner_rows": True, "hidden": 128}}


def head_flags(layout, without, folder, **options):
    """Flags of the layout's head and token map, which are built from `without`, the answers of the target without drafts. The
    map has half of their different tokens."""
    outputs, flags = [answer[1] for answer in without[:30]], []
    if layout in HEADS:
        write_head(folder / "head", YARDLING, outputs, **HEADS[layout], **options)
        flags += ["--speculative-draft-model-path", folder / "head"]
    if "_map" in layout:
        counts = collections.Counter(token for output in outputs for token in output)
        tokens = [token for token, _ in counts.most_common(len(counts) // 2)]
        (folder / "tokens.json").write_text(json.dumps(tokens))
        flags += ["--speculative-token-map", folder / "tokens.json"]
    return flags


@pytest.mark.parametrize("layout", [*LAYOUTS, *TREES])
def test_answers_equal_those_without_drafts(plain, layout, tmp_path):
    flags = LAYOUTS.get(layout) or TREES[layout]
    with Server(YARDLING, *FLAGS, *flags, *head_flags(layout, plain, tmp_path)) as server:
        assert answers(server) == plain
        status, info = server.request("/get_server_info")
        assert status == 200, info
        states = info["internal_states"]
        assert sum(state["draft_tokens"] for state in states) > 0
        if layout != "eagle3_auto":  # `auto` may end drafting before a draft is accepted
            assert sum(state["accepted_draft_tokens"] for state in states) > 0
        assert ("speculative_token_map" in info) == ("_map" in layout)
        for state in states:
            print(layout, "accepted", state["accepted_by_position"], "of", state["verified_by_position"])
            assert state["wasted_draft_tokens"] == state["draft_tokens"] - state["accepted_draft_tokens"]
            assert sum(state["accepted_by_position"]) == state["accepted_draft_tokens"]
            assert 1 <= state["avg_spec_accept_length"] <= 9
        status, page = server.request("/metrics")
        width = flags[flags.index("--speculative-eagle-topk") + 1] if "--speculative-eagle-topk" in flags else 1
        assert info["speculative_eagle_topk"] == width
        drafts = sum(float(value) for value in re.findall(r"^switchyard_draft_tokens_total\S* (\S+)$", page, re.M))
        assert drafts >= sum(state["draft_tokens"] for state in states)
        assert server.stop() == 0


SHARDED = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"]  # two ranks share attention


def check_head(layout, folder, *flags, env=None, **options):
    """Compares servers of equal flags with and without the layout's head."""
    with Server(YARDLING, *flags, env=env) as server:
        without = answers(server)
        assert server.stop() == 0
    with Server(YARDLING, *flags, *LAYOUTS[layout], *head_flags(layout, without, folder, **options), env=env) as server:
        assert answers(server) == without
        assert sum(state["accepted_draft_tokens"] for state in server.request("/get_server_info")[1]["internal_states"]) > 0
        assert server.stop() == 0


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_heads_are_sharded_with_attention(layout, tmp_path):
    check_head(layout, tmp_path, *FLAGS, *SHARDED)


def test_a_head_in_bfloat16(tmp_path):
    check_head("eagle3", tmp_path, *FLAGS, "--dtype", "bfloat16", bfloat16=True)


def test_a_response_counts_its_drafts():
    with Server(YARDLING, *FLAGS, "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3) as server:
        body = {"text": PROMPTS[0], "sampling_params": {"max_new_tokens": 50, "temperature": 0, "ignore_eos": True}}
        meta = server.request("/generate", body)[1]["meta_info"]
        assert meta["spec_verify_ct"] > 0
        assert 0 < meta["spec_accept_token_num"] <= meta["spec_draft_token_num"] <= 3 * meta["spec_verify_ct"]
        assert meta["spec_accept_length"] == pytest.approx(1 + meta["spec_accept_token_num"] / meta["spec_verify_ct"])
        body = {"prompt": PROMPTS[0], "max_tokens": 50, "temperature": 0, "ignore_eos": True}
        details = server.request("/v1/completions", body)[1]["usage"]["completion_tokens_details"]
        assert 0 < details["accepted_prediction_tokens"] < 50
        assert 0 <= details["rejected_prediction_tokens"] < 3 * 50


@pytest.mark.parametrize("flags, words", [
    (["--speculative-algorithm", "EAGLE"], "--speculative-algorithm EAGLE"),
    (["--speculative-algorithm", "EAGLE3"], "--speculative-algorithm EAGLE3"),
    (["--speculative-algorithm", "NEXTN", "--speculative-eagle-topk", "4"],
     "--speculative-eagle-topk 4: trees need numbers for --speculative-num-steps"),
    (["--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", "4", "--speculative-num-steps", "3",
      "--speculative-num-draft-tokens", "8"], "--speculative-eagle-topk 4: drafts of --speculative-algorithm NGRAM"),
    (["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "99"], "--speculative-num-steps 99"),
    (["--speculative-num-steps", "2"], "--speculative-num-steps"),
    (["--speculative-algorithm", "STANDALONE"], "--speculative-draft-model-path"),
    (["--speculative-algorithm", "NGRAM", "--speculative-moe-runner-backend", "masked_mlp"],
     "--speculative-moe-runner-backend masked_mlp"),
    (["--speculative-algorithm", "NEXTN", "--speculative-moe-runner-backend", "warp"], "warp"),
    (["--speculative-algorithm", "NEXTN", "--speculative-token-map", "/nonexistent/a.json"],
     "--speculative-token-map: /nonexistent/a.json"),
    (["--speculative-algorithm", "NEXTN", "--speculative-token-map", str(YARDLING / "model.safetensors")],
     "model.safetensors: has "),
    (["--speculative-algorithm", "NGRAM", "--speculative-token-map", "a.json"], "--speculative-token-map a.json"),
    (["--speculative-algorithm", "NEXTN", "--device", "cuda"], "cuda"),
])
def test_unfit_flags_are_refused_by_name(flags, words):
    done = subprocess.run([PROGRAM, "serve", "--model-path", str(YARDLING), "--port", "0", *flags], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode != 0
    assert words in done.stderr, done.stderr


def test_a_model_without_an_mtp_layer_is_refused():
    done = subprocess.run([PROGRAM, "serve", "--model-path", str(FIXTURES / "qwen3_moe"), "--port", "0",
                           "--speculative-algorithm", "NEXTN"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "no multi-token prediction (MTP) layer" in done.stderr


def token_map(*args, model=YARDLING):
    return subprocess.run([PROGRAM, "token-map", *map(str, args), "--model-path", str(model)], capture_output=True, text=True,
                          timeout=60)


def test_token_map_writes_the_most_frequent_tokens(tmp_path):
    """The counts are those of a text with few tokens, of the answers of a chat, and of a response."""
    vocabulary = json.loads((YARDLING / "tokenizer.json").read_text())["model"]["vocab"]
    end = json.loads((YARDLING / "generation_config.json").read_text())["eos_token_id"]
    ends = end if isinstance(end, list) else [end]
    text = tmp_path / "text.jsonl"
    # Words of one token each, of which one is only in a question.
    often, seldom, asked = [vocabulary[word] for word in ("a", "b", "z")]
    text.write_text(json.dumps({"messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "a"}]}) + "\n" +
                    json.dumps({"input_ids": [asked], "output_ids": [seldom, often, often]}) + "\n")
    done = token_map(text, "--output", tmp_path / "map.json")
    assert done.returncode == 0, done.stderr
    tokens = json.loads((tmp_path / "map.json").read_text())
    assert set(tokens[:len(ends)]) == set(ends)
    assert asked not in tokens
    assert tokens.index(often) == len(ends) and tokens.index(seldom) > tokens.index(often)
    assert "100.00 % of the" in done.stdout and "2 documents" in done.stdout
    large, small = tmp_path / "large.txt", tmp_path / "small.txt"
    for size, file in [(600, large), (100, small)]:
        done = token_map(ROOT / "docs" / "moe.md", "--size", size, "--output", file)
        assert done.returncode == 0 and f"{size} of 2048 tokens" in done.stdout, done
    assert large.read_text().split()[:100] == small.read_text().split() and len(set(large.read_text().split())) == 600
    serve = subprocess.run([PROGRAM, "serve", "--model-path", str(YARDLING), "--speculative-algorithm", "NEXTN",
                            "--speculative-token-map", str(large), "--dry-run"], capture_output=True, text=True, timeout=60)
    assert serve.returncode == 0, serve.stderr


def test_token_map_counts_chats_of_any_template(tmp_path):
    """The template drops the answers of earlier turns. One chat has no answer, and the experts of a response do not fit."""
    vocabulary = json.loads((YARDLING / "tokenizer.json").read_text())["model"]["vocab"]
    model = tmp_path / "model"
    model.mkdir()
    for name in ["config.json", "generation_config.json", "tokenizer.json"]:
        shutil.copy(YARDLING / name, model)
    settings = json.loads((YARDLING / "tokenizer_config.json").read_text())
    settings["chat_template"] = ("{% for m in messages %}{% if loop.last or m.role == 'user' %}"
                                 "{{ m.content }}{% endif %}{% endfor %}")
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    turns = [{"role": role, "content": text}
             for role, text in [("user", "z"), ("assistant", "a"), ("user", "z"), ("assistant", "b")]]
    experts = base64.b64encode(bytes(4 * 5)).decode()
    lines = [{"messages": turns}, {"messages": turns[:1]},
             {"input_ids": [vocabulary["z"]], "output_ids": [vocabulary["a"]], "meta_info": {"routed_experts": experts}}]
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = token_map(tmp_path / "text.jsonl", "--output", tmp_path / "map.json", model=model)
    assert done.returncode == 0, done.stderr
    assert "of the 3 tokens in 2 documents" in done.stdout and "skipped 1 chats without an answer" in done.stdout, done.stdout
    tokens = json.loads((tmp_path / "map.json").read_text())
    assert tokens[-2:] == [vocabulary["a"], vocabulary["b"]] and vocabulary["z"] not in tokens


def test_token_map_names_what_is_wrong(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some text")
    done = token_map(text, "--output", tmp_path / "map.pt")
    assert done.returncode == 2 and "map.pt" in done.stderr, done.stderr
    done = token_map(text, "--output", tmp_path / "map.json", "--size", 0)
    assert done.returncode == 2 and "--size" in done.stderr, done.stderr
    done = token_map(tmp_path / "none", "--output", tmp_path / "map.json")
    assert done.returncode == 2 and "none" in done.stderr, done.stderr
