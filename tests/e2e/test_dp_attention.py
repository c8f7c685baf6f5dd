"""Attention groups with separate requests and caches, and routed experts in responses."""
import array
import base64
import json
import struct
import threading
import time
import urllib.request

import pytest

import check_reference
from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
LAYERS, EXPERTS, TOP_K, HIDDEN = 3, 16, 4, 64  # configuration of MODEL
COMMON = ["--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning", "--check-batches"]
LAYOUTS = {
    "one-rank": [],
    "tp4-dp4-ep4": ["--tp", 4, "--dp-size", 4, "--ep", 4, "--enable-dp-attention", "--moe-a2a-backend", "deepep"],
    "tp4-dp2-ep4": ["--tp", 4, "--dp-size", 2, "--ep", 4, "--enable-dp-attention", "--moe-a2a-backend", "deepep",
                    "--moe-dense-tp-size", 1, "--load-balance-method", "total_tokens"],
}


@pytest.fixture(scope="module", params=[name for name in LAYOUTS if name != "one-rank"])
def server(request):
    with Server(MODEL, *LAYOUTS[request.param], *COMMON) as s:
        s.groups = 4 if "dp4" in request.param else 2
        yield s


def generate(server, **body):
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


def tensor(path, name):
    """Returns (shape, values) of a tensor in a safetensors file."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    data = raw[8 + size + begin:8 + size + end]
    if entry["dtype"] == "BF16":
        halves = array.array("H", data)
        return entry["shape"], [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
    return entry["shape"], list(array.array({"F32": "f", "I64": "q"}[entry["dtype"]], data))


def routed(answer):
    """Routed experts as [positions][layers][top_k], in the router's order."""
    ids = array.array("i", base64.b64decode(answer["meta_info"]["routed_experts"]))
    rows = [list(ids[i:i + TOP_K]) for i in range(0, len(ids), TOP_K)]
    assert len(rows) % LAYERS == 0
    return [rows[i:i + LAYERS] for i in range(0, len(rows), LAYERS)]


def test_equals_transformers(server):
    equal, report = check_reference.compare(server.url, MODEL, 2e-4)
    assert equal, report + server.text()


def test_many_requests_at_once_get_what_each_gets_alone(server):
    prompts = [list(range(3 + i, 20 + 3 * i)) for i in range(12)]
    alone = [generate(server, input_ids=p, sampling_params=GREEDY)["output_ids"] for p in prompts]
    server.request("/flush_cache", method="POST")
    together = generate(server, input_ids=prompts, sampling_params=GREEDY)
    assert [answer["output_ids"] for answer in together] == alone
    states = server.states()
    assert len(states) == server.groups
    assert all(state["decode_tokens"] > 0 for state in states)
    server.wait_idle()


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_request_may_name_its_group(server, path):
    body = ({"text": "Hello", "sampling_params": GREEDY} if path == "/generate" else
            {"prompt": "Hello", "max_tokens": 12, "ignore_eos": True, "temperature": 0})
    for group in range(server.groups):
        before = [state["decode_tokens"] for state in server.states()]
        status, answer = server.request(path, {**body, "data_parallel_rank": group})
        assert status == 200, answer
        after = [state["decode_tokens"] for state in server.states()]
        assert [b - a for a, b in zip(before, after)] == [12 if g == group else 0 for g in range(server.groups)]
    status, answer = server.request(path, {**body, "data_parallel_rank": server.groups})
    assert status == 400 and "data_parallel_rank" in answer["error"]["message"]


def test_prefixes_are_those_of_a_group(server):
    server.request("/flush_cache", method="POST")
    prompt = list(range(10, 90))
    first, again, elsewhere = (generate(server, input_ids=prompt, sampling_params=GREEDY, data_parallel_rank=group)
                               for group in (0, 0, 1))
    assert [a["meta_info"]["cached_tokens"] for a in (first, again, elsewhere)] == [0, 64, 0]
    assert first["output_ids"] == again["output_ids"] == elsewhere["output_ids"]


def test_repeated_prompts_reuse_the_cache_of_their_group():
    layout = LAYOUTS["tp4-dp2-ep4"][:-2]  # without --load-balance-method
    prompts = [list(range(10 + 40 * i, 90 + 40 * i)) for i in range(4)]

    def cached(server, prompt, **body):
        return generate(server, input_ids=prompt, sampling_params=GREEDY, **body)["meta_info"]["cached_tokens"]

    with Server(MODEL, *layout, *COMMON) as server:
        assert [cached(server, prompt) for prompt in prompts] == [0] * 4
        assert all(state["prefill_tokens"] >= 160 for state in server.states())  # two prompts for each group
        assert [cached(server, prompt) for prompt in reversed(prompts)] == [64] * 4
        assert cached(server, prompts[0] + list(range(400, 440))) == 80  # the conversation continues
        assert cached(server, prompts[0], cache_salt="another tenant") == 0
        status, answer = server.request("/v1/completions", {"prompt": prompts[1], "max_tokens": 2, "ignore_eos": True})
        assert status == 200 and answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64, answer
        # A burst of one prompt uses both groups.
        before = [state["decode_tokens"] for state in server.states()]
        generate(server, input_ids=[prompts[2]] * 16, sampling_params=GREEDY)
        assert all(b > a for a, b in zip(before, [state["decode_tokens"] for state in server.states()]))
        assert server.request("/flush_cache", method="POST")[0] == 200
        assert cached(server, prompts[0]) == 0
        assert server.stop() == 0
    with Server(MODEL, *layout, "--load-balance-method", "round_robin", *COMMON) as server:
        assert [cached(server, prompts[0]) for _ in range(4)] == [0, 0, 64, 64]
    code, said = fails_to_start("--model-path", MODEL, *layout, "--load-balance-method", "cache_aware", "--disable-radix-cache")
    assert code == 2 and "--load-balance-method cache_aware needs the prefix cache" in said


def test_aborts_reach_every_group(server):
    answers = []
    threads = [threading.Thread(target=lambda g=group: answers.append(generate(
        server, text="Hello", rid=f"slow{g}", data_parallel_rank=g, sampling_params={**GREEDY, "max_new_tokens": 480, "n": 32})))
        for group in range(server.groups)]
    for thread in threads:
        thread.start()
    server.wait_busy(32)
    assert server.request("/flush_cache", method="POST")[0] == 400
    assert server.request("/abort_request", {"abort_all": True})[0] == 200
    for thread in threads:
        thread.join(20)
    assert len(answers) == server.groups
    assert {choice["meta_info"]["finish_reason"]["type"] for choices in answers for choice in choices} == {"abort"}
    server.wait_idle()


def test_routed_experts_are_the_routers_choice(server):
    reference = MODEL / "reference.safetensors"
    _, prompt = tensor(reference, "prompt.0")
    answer = generate(server, input_ids=prompt, sampling_params=GREEDY, return_routed_experts=True)
    rows = routed(answer)
    assert len(rows) == len(prompt) + 12 - 1  # the last output token is not processed by the model
    weight_map = json.loads((MODEL / "model.safetensors.index.json").read_text())["weight_map"]
    for layer in range(LAYERS):
        name = f"model.layers.{layer}.mlp.gate.weight"
        _, router = tensor(MODEL / weight_map[name], name)
        _, hidden = tensor(reference, f"moe_in.0.{layer}")
        for t in range(len(prompt)):
            x = hidden[t * HIDDEN:(t + 1) * HIDDEN]
            scores = [sum(a * b for a, b in zip(x, router[e * HIDDEN:(e + 1) * HIDDEN])) for e in range(EXPERTS)]
            best = sorted(range(EXPERTS), key=lambda e: -scores[e])[:TOP_K]
            assert rows[t][layer] == best, (layer, t)


def test_routed_experts_do_not_depend_on_layout_chunks_or_reuse(server):
    body = dict(input_ids=list(range(20, 90)), sampling_params=GREEDY, return_routed_experts=True)
    with Server(MODEL, "--chunked-prefill-size", 16, *COMMON) as one:
        want = generate(one, **body)
    for group in range(server.groups):  # leaves a cached prefix in each group
        generate(server, **{**body, "return_routed_experts": False, "data_parallel_rank": group})
    for group in range(server.groups):
        body["data_parallel_rank"] = group
        got = generate(server, **body)
        assert routed(got) == routed(want)
        assert got["output_ids"] == want["output_ids"] and got["meta_info"]["cached_tokens"] == 0
        late = generate(server, **body, routed_experts_start_len=65)
        assert routed(late) == routed(want)[65:]


def test_a_replay_of_a_rollout_has_its_experts_and_bits(server):
    """A trainer computes the tokens of a rollout again, in one pass and in a layout of its own."""
    prompt = list(range(30, 50))
    body = dict(return_logprob=True, return_routed_experts=True)
    rollout = generate(server, input_ids=prompt, sampling_params={**GREEDY, "temperature": 1, "sampling_seed": 3}, **body)
    tokens = prompt + rollout["output_ids"]
    with Server(MODEL, *COMMON) as one:
        for replaying in [server, *([one] if server.groups == 4 else [])]:  # attention of several ranks rounds differently
            assert replaying.request("/flush_cache", method="POST")[0] == 200
            replay = generate(replaying, input_ids=tokens, sampling_params={**GREEDY, "max_new_tokens": 1},
                              logprob_start_len=len(prompt) - 1, **body)
            assert routed(replay)[:-1] == routed(rollout)  # the rollout did not compute its last token
            scores = replay["meta_info"]["input_token_logprobs"][1:]
            assert [score[:2] for score in scores] == [score[:2] for score in rollout["meta_info"]["output_token_logprobs"]]


def test_streams_carry_routed_experts_at_the_end(server):
    body = {"text": "Hello", "sampling_params": GREEDY, "stream": True, "return_routed_experts": True}
    request = urllib.request.Request(server.url + "/generate", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        lines = [line[6:].strip() for line in response if line.startswith(b"data: ")]
    events = [json.loads(line) for line in lines[:-1]]
    assert ["routed_experts" in event["meta_info"] for event in events] == [False] * (len(events) - 1) + [True]
    meta = events[-1]["meta_info"]
    assert len(routed(events[-1])) == meta["prompt_tokens"] + meta["completion_tokens"] - 1


def test_information(server):
    info = server.request("/get_server_info")[1]
    assert info["dp_size"] == server.groups and info["enable_dp_attention"]
    assert len(info["internal_states"]) == server.groups


def test_a_dense_model_has_no_experts_to_name():
    with Server(FIXTURES / "llama", "--tp", 2, "--dp-size", 2, "--enable-dp-attention", *COMMON) as server:
        status, answer = server.request("/generate", {"text": "Hello", "return_routed_experts": True})
        assert status == 400 and "no experts" in answer["error"]["message"]
        assert len(generate(server, text="Hello", sampling_params=GREEDY)["output_ids"]) == 12
        assert server.stop() == 0


def test_replicas_of_the_engine_are_refused():
    code, said = fails_to_start("--model-path", MODEL, "--tp", 2, "--dp-size", 2)
    assert code == 2 and "--enable-dp-attention" in said
