"""SGLang's native endpoints."""
import json
import math
import threading
import time
import urllib.request

import pytest

from server import FIXTURES, Server


@pytest.fixture(scope="module")
def server():
    with Server(FIXTURES / "qwen3_moe", "--tp", 2, "--ep", 1, "--dtype", "float32", "--max-total-tokens", 8192,
                "--stream-interval", 4) as s:
        yield s


def generate(server, **body):
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


def test_text_and_ids_agree(server):
    ids = server.request("/tokenize", {"prompt": "Hello world"})[1]["tokens"]
    by_text = generate(server, text="Hello world", sampling_params=GREEDY)
    by_ids = generate(server, input_ids=ids, sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"] and len(by_ids["output_ids"]) == 12
    assert by_text["text"] == server.request("/detokenize", {"tokens": by_text["output_ids"]})[1]["text"]
    meta = by_text["meta_info"]
    assert meta["prompt_tokens"] == len(ids) and meta["completion_tokens"] == 12
    assert meta["finish_reason"] == {"type": "length", "length": 12}


def test_batch_keeps_its_order(server):
    prompts = ["Hello", "The router", "专家", "a"]
    alone = [generate(server, text=p, sampling_params=GREEDY)["output_ids"] for p in prompts]
    batch = generate(server, text=prompts, sampling_params=GREEDY, rid=["a", "b", "c", "d"])
    assert [b["output_ids"] for b in batch] == alone
    assert [b["meta_info"]["id"] for b in batch] == ["a", "b", "c", "d"]


def test_stream_is_cumulative(server):
    whole = generate(server, text="Hello", sampling_params=GREEDY)
    request = urllib.request.Request(server.url + "/generate", json.dumps(
        {"text": "Hello", "sampling_params": GREEDY, "stream": True}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        lines = [line[6:].strip() for line in response if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[-1]["text"] == whole["text"] and events[-1]["output_ids"] == whole["output_ids"]
    for before, after in zip(events, events[1:]):
        assert after["text"].startswith(before["text"])


def events_of(server, **body):
    """The events of a stream, without the final [DONE]."""
    request = urllib.request.Request(server.url + "/generate", json.dumps({**body, "stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        lines = [line[6:].strip() for line in response if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_stream_output_gives_segments():
    with Server(FIXTURES / "qwen3_moe", "--stream-output", "--stream-interval", 4, "--weight-version", "step-7",
                "--max-total-tokens", 2048) as s:
        body = {"text": "Hello", "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0}
        whole = generate(s, **body)
        events = events_of(s, **body)
        assert len(events) == 3
        assert "".join(e["text"] for e in events) == whole["text"]
        assert sum((e["output_ids"] for e in events), []) == whole["output_ids"]
        meta = [e["meta_info"] for e in events]
        for kind in ("output_token_logprobs", "input_token_logprobs"):
            assert sum((m[kind] for m in meta), []) == whole["meta_info"][kind]
        assert [m["completion_tokens"] for m in meta] == [4, 8, 12]
        assert {m["weight_version"] for m in meta} == {"step-7"}
        assert s.request("/get_weight_version")[1] == {"weight_version": "step-7"}
        assert s.request("/model_info")[1]["weight_version"] == "step-7"


def test_logprobs_of_prompt_and_output(server):
    body = dict(text="The router scores", return_logprob=True, top_logprobs_num=3, token_ids_logprob=[5, 7],
                sampling_params=GREEDY, return_text_in_logprobs=True)
    a = generate(server, **body, logprob_start_len=0)
    meta = a["meta_info"]
    n = meta["prompt_tokens"]
    assert len(meta["input_token_logprobs"]) == n and meta["input_token_logprobs"][0][0] is None
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 12
    for token, top, asked in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], meta["output_token_ids_logprobs"]):
        assert len(top) == 3 and token == top[0]
        assert [t[1] for t in asked] == [5, 7]
        assert sum(math.exp(t[0]) for t in top) <= 1 + 1e-6
    # If prompt and output together are the new prompt, input_token_logprobs must be the same log-probabilities.
    ids = server.request("/tokenize", {"prompt": body["text"]})[1]["tokens"] + a["output_ids"]
    b = generate(server, input_ids=ids, return_logprob=True, logprob_start_len=0, sampling_params=GREEDY)
    again = [t[0] for t in b["meta_info"]["input_token_logprobs"]][n:]
    assert again == pytest.approx([t[0] for t in meta["output_token_logprobs"]], abs=1e-5)
    only_output = generate(server, **body)["meta_info"]
    assert only_output["input_token_logprobs"] == []


def test_prefix_reuse_changes_nothing(server):
    prompt = list(range(10, 110))
    assert server.request("/flush_cache", method="POST")[0] == 200
    first = generate(server, input_ids=prompt, sampling_params=GREEDY)
    second = generate(server, input_ids=prompt, sampling_params=GREEDY)
    assert first["meta_info"]["cached_tokens"] == 0 and second["meta_info"]["cached_tokens"] >= 96 - 16
    assert first["output_ids"] == second["output_ids"]
    third = generate(server, input_ids=prompt + first["output_ids"] + [3], sampling_params=GREEDY)
    assert third["meta_info"]["cached_tokens"] >= 96


def test_stop_token_id_ends_the_text_before_it(server):
    whole = generate(server, text="Hello", sampling_params=GREEDY)["output_ids"]
    stop = whole[4]
    cut = generate(server, text="Hello", sampling_params={**GREEDY, "stop_token_ids": [stop]})
    assert cut["output_ids"] == whole[:whole.index(stop) + 1]
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == server.request("/detokenize", {"tokens": whole[:whole.index(stop)]})[1]["text"]


def test_abort_by_name(server):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(
        generate(server, text="Hello", rid="slow", sampling_params={**GREEDY, "max_new_tokens": 480, "n": 32})))
    thread.start()
    server.wait_busy(32)
    assert server.request("/abort_request", {"rid": "slow"})[0] == 200
    thread.join(20)
    assert answers and {choice["meta_info"]["finish_reason"]["type"] for choice in answers[0]} == {"abort"}
    server.wait_idle()


def test_information(server):
    assert server.request("/health")[0] == 200
    assert server.request("/health_generate")[0] == 200
    info = server.request("/get_model_info")[1]
    assert info["is_generation"] and info["model_path"].endswith("qwen3_moe")
    assert info["weight_version"] == "default"
    assert server.request("/get_server_info")[1]["tp_size"] == 2


def test_wrong_bodies(server):
    for body, expected in [({}, "text"), ({"text": "a", "input_ids": [1]}, "text"), ({"text": 5}, "text"),
                       ({"text": "a", "sampling_params": {"top_k": "x"}}, "sampling_params.top_k"),
                       ({"text": "a", "sampling_params": {"regex": "(?=a)b"}}, "regex"),
                       ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
                       ({"input_ids": [-1]}, "input_ids"), ({"input_ids": [1.5]}, "input_ids"),
                       ({"input_ids": {"a": [1]}}, "input_ids"),
                       ({"text": "a", "return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs"),
                       ({"text": "a", "logprob_start_len": "x", "return_logprob": True}, "logprob_start_len")]:
        status, answer = server.request("/generate", body)
        assert status == 400 and expected in answer["error"]["message"], (body, answer)
