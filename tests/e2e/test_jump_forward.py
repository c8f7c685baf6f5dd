"""Jump-forward decoding: servers with and without it give the same answers; with it they take fewer steps."""
import concurrent.futures
import json
import re

import pytest

from schema_generator import schemas
from server import ROOT, Server

YARDLING = ROOT / "models" / "yardling"
FLAGS = ["--device", "cpu", "--max-total-tokens", 16384, "--chunked-prefill-size", 64, "--max-running-requests", 12,
         "--log-level", "warning"]
PERSON = {"type": "object", "properties": {"first_name": {"enum": ["Ada", "Grace"]}, "age": {"type": "integer"},
                                           "occupation": {"const": "programmer"}},
          "required": ["first_name", "age", "occupation"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "strict": True, "parameters": PERSON}}
         for name in ("add_person", "find_person")]
SPACE = ["--constrained-json-disable-any-whitespace"]


def native(server, i, schema):
    """Request i to /generate: greedy or sampled, with log-probabilities, penalties, stop strings or a regular
    expression."""
    sampling = {"max_new_tokens": 40 + 10 * (i % 5), "temperature": [0, 1][i % 2], "sampling_seed": i,
                "json_schema": json.dumps(schema)}
    if i % 5 == 0:
        sampling["stop"] = ["1", "e\""]
    if i % 7 == 0:
        sampling["frequency_penalty"] = 0.5
    if i % 11 == 0:
        del sampling["json_schema"]
        sampling["regex"] = "(The answer is (yes|no)\\. ){2,4}It is certain\\."
    body = {"text": "Data: ", "return_logprob": i % 3 == 1, "top_logprobs_num": 2, "sampling_params": sampling}
    status, answer = server.request("/generate", body, timeout=300)
    assert status == 200, answer
    meta = answer["meta_info"]
    return (answer["text"], answer["output_ids"], meta["finish_reason"], meta.get("output_token_logprobs"),
            meta.get("output_top_logprobs"))


def chat(server, i):
    """Request i to the chat API: free text, text with strict tools, or a forced call."""
    body = {"messages": [{"role": "user", "content": f"Who is person {i}?"}], "max_tokens": 80, "seed": i,
            "temperature": [0, 1][i % 2]}
    if i % 3 > 0:
        body.update(tools=TOOLS, tool_choice=["auto", "required"][i % 3 - 1])
    status, answer = server.request("/v1/chat/completions", body, timeout=300)
    assert status == 200, answer
    choice = answer["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or []]
    return choice["message"].get("content"), calls, choice["finish_reason"], answer["usage"]["completion_tokens"]


def answers(server):
    cases = schemas(seed=31, count=44)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        natives = pool.map(lambda i: native(server, i, cases[i]), range(len(cases)))
        return list(natives) + list(pool.map(lambda i: chat(server, i), range(18)))


@pytest.fixture(scope="module")
def plain():
    with Server(YARDLING, *FLAGS, *SPACE, "--disable-jump-forward") as server:
        got = answers(server)
        info = server.request("/get_server_info")[1]
        assert info["jump_forward"] is False
        assert all("jump_forward_steps" not in state for state in info["internal_states"])
        return got


LAYOUTS = {
    "default": [],
    "ngram": ["--speculative-algorithm", "NGRAM"],
    "nextn": ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2],
    "ranks": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1, "--moe-a2a-backend",
              "deepep"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_answers_equal_those_without_jump_forward(plain, layout):
    with Server(YARDLING, *FLAGS, *SPACE, *LAYOUTS[layout]) as server:
        assert answers(server) == plain
        info = server.request("/get_server_info")[1]
        assert info["jump_forward"] is True
        states = info["internal_states"]
        accepted = sum(state["accepted_jump_forward_draft_tokens"] for state in states)
        drafts = sum(state["jump_forward_draft_tokens"] for state in states)
        assert 0 < accepted <= drafts
        assert ("verify_steps" in states[0]) == (layout in ("ngram", "nextn"))
        page = server.request("/metrics")[1]
        for name, least in (("switchyard_jump_forward_draft_tokens_total", drafts),
                            ("switchyard_accepted_jump_forward_draft_tokens_total", accepted)):
            assert sum(float(value) for value in re.findall(rf"^{name}\S* (\S+)$", page, re.M)) >= least
        assert server.stop() == 0


def steps(server):
    return sum(state["steps"] for state in server.request("/get_server_info")[1]["internal_states"])


def test_forced_text_takes_fewer_steps():
    body = {"text": "Data: ", "sampling_params": {"max_new_tokens": 100, "temperature": 0, "json_schema": json.dumps(PERSON)}}
    taken, outputs = [], []
    for flags in (["--disable-jump-forward"], []):
        with Server(YARDLING, *FLAGS, *SPACE, *flags) as server:
            before = steps(server)
            answer = server.request("/generate", body)[1]
            taken.append(steps(server) - before)
            outputs.append((answer["text"], answer["output_ids"]))
            meta = answer["meta_info"]
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0][0])["occupation"] == "programmer"
    assert meta["jump_forward_accept_token_num"] == taken[0] - taken[1] > 0
    assert 0 < meta["jump_forward_ct"] <= meta["jump_forward_draft_token_num"]
    assert taken[1] < 0.7 * taken[0], taken


def test_without_grammars_there_is_no_jump_forward():
    with Server(YARDLING, *FLAGS, "--grammar-backend", "none") as server:
        assert server.request("/get_server_info")[1]["jump_forward"] is False
