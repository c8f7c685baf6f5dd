"""`serve --pp-size`: pipeline stages on CPU ranks give the responses of one stage, and refuse what they do not support."""
import json
import os
import pathlib
import signal
import threading
import time

import pytest

import check_reference
from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "deepseek_v3"
COMMON = ["--dtype", "float32", "--max-total-tokens", 2048, "--chunked-prefill-size", 16, "--page-size", 4, "--log-level",
          "warning", "--check-batches"]
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
LAYOUTS = {
    "pp2": ["--pp-size", 2],
    "pp3-tp2": ["--pp-size", 3, "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep",
                "--pp-async-batch-depth", 1],
}


@pytest.fixture(scope="module", params=LAYOUTS)
def server(request):
    with Server(MODEL, *LAYOUTS[request.param], *COMMON) as s:
        s.layout = request.param
        yield s


def generate(server, **body):
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


def test_equals_transformers(server):
    equal, report = check_reference.compare(server.url, MODEL, 2e-4)
    assert equal, report + server.text()


def test_many_requests_at_once_get_what_each_gets_alone(server):
    prompts = [list(range(3 + i, 20 + 3 * i)) for i in range(12)]
    alone = [generate(server, input_ids=p, sampling_params=GREEDY)["output_ids"] for p in prompts]
    server.request("/flush_cache", method="POST")
    together = generate(server, input_ids=prompts, sampling_params=GREEDY)
    assert [answer["output_ids"] for answer in together] == alone
    again = generate(server, input_ids=prompts, sampling_params=GREEDY)
    assert [answer["output_ids"] for answer in again] == alone
    server.wait_idle()


def test_a_json_schema_constrains_the_output(server):
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                         "additionalProperties": False})
    answer = generate(server, input_ids=[5, 6, 7], sampling_params={"temperature": 0, "max_new_tokens": 40,
                                                                    "json_schema": schema})
    assert answer["text"].startswith("{")


def test_clients_that_disconnect_free_their_pages(server):
    threads = []
    for i in range(6):
        body = {"input_ids": list(range(5 + i, 40 + i)), "sampling_params": {**GREEDY, "max_new_tokens": 400}, "rid": f"r{i}"}
        threads.append(threading.Thread(target=server.request, args=("/generate", body)))
        threads[-1].start()
    time.sleep(0.2)
    for i in range(6):
        server.request("/abort_request", {"rid": f"r{i}"})
    for thread in threads:
        thread.join()
    server.wait_idle()


def test_routed_experts_are_refused(server):
    status, answer = server.request("/generate", {"input_ids": [1, 2], "sampling_params": GREEDY,
                                                  "return_routed_experts": True})
    assert status == 400 and "--pp-size" in json.dumps(answer)


def test_traces_have_the_operations_of_each_stage(server, tmp_path):
    status, answer = server.request("/start_profile", {"output_dir": str(tmp_path), "profile_prefix": "run"})
    assert status == 200, answer
    generate(server, input_ids=list(range(30)), sampling_params=GREEDY)
    status, answer = server.request("/stop_profile", method="POST")
    assert status == 200, answer
    files = answer["files"]
    assert len(files) == {"pp2": 2, "pp3-tp2": 6}[server.layout]
    names = [{e["name"] for e in json.loads(pathlib.Path(file).read_text())["traceEvents"] if e["ph"] == "X"} for file in files]
    assert "embed" in names[0] and "send" in names[0] and "head" not in names[0]
    assert "receive" in names[-1] and "head" in names[-1] and "embed" not in names[-1]


def test_server_info_and_metrics_count_all_ranks(server):
    status, info = server.request("/get_server_info")
    stages, ranks = {"pp2": (2, 2), "pp3-tp2": (3, 6)}[server.layout]
    assert status == 200 and info["pp_size"] == stages
    _, text = server.request("/metrics")
    assert f"\nswitchyard_ranks {ranks}" in text


def test_the_end_of_a_rank_ends_the_server():
    with Server(MODEL, *LAYOUTS["pp2"], *COMMON) as server:
        os.kill(server.ranks()[1], signal.SIGKILL)
        assert server.process.wait(timeout=30) == 1
        assert "rank 1" in server.text()


@pytest.mark.parametrize("flags, error", [
    (["--pp-size", 4], "--pp-size 4: the model has 3 layers"),
    (["--pp-size", 2, "--pp-layer-partition", "1,1"], "the sum is 2, but the model has 3 layers"),
    (["--pp-size", 2, "--enable-two-batch-overlap"], "--enable-two-batch-overlap: not supported with --pp-size 2"),
    (["--pp-size", 2, "--speculative-algorithm", "NGRAM"], "--speculative-algorithm NGRAM"),
    (["--pp-size", 2, "--enable-elastic-ep"], "--enable-elastic-ep: with --pp-size 2, ranks cannot be restarted"),
    (["--pp-size", 2, "--nnodes", 2, "--dist-init-addr", "127.0.0.1:1"], "--pp-size 2: supported on one host only"),
    (["--pp-async-batch-depth", 1], "--pp-async-batch-depth 1 has no effect without --pp-size"),
])
def test_bad_flags_are_named(flags, error):
    code, text = fails_to_start("--model-path", MODEL, *flags, *COMMON)
    assert code == 2 and error in text, text
