"""Speculative decoding: servers with and without drafts give the same answers, and counts of drafts are reported."""
import concurrent.futures
import json
import re
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
HEADS = {"eagle": {"inner_rows": False}, "eagle_stages": {"inner_rows": False}, "eagle3": {"inner_rows": True}, "eagle3_auto": {"inner_rows": True},
         "eagle3_ranks": {"inner_rows": True, "hidden": 128}}


def head_flags(layout, without, folder, **options):
    """Flags of the layout's head, which is built from `without`, the answers of the target without drafts."""
    if layout not in HEADS:
        return []
    write_head(folder / "head", YARDLING, [answer[1] for answer in without[:30]], **HEADS[layout], **options)
    return ["--speculative-draft-model-path", folder / "head"]


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
        for state in states:
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
