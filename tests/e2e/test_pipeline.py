"""`serve --pp-size`: pipeline stages on CPU ranks give the responses of one stage, and refuse what they do not support."""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import threading
import time

import pytest

import check_reference
from server import FIXTURES, MPIRUN, OtherNode, Server, fails_to_start, free_port, mpi_ranks

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


def abort_some(server):
    """Aborts requests while they run, and waits for the end of the last one."""
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


def test_aborted_requests_free_their_pages(server):
    abort_some(server)


def test_routed_experts_have_the_rows_of_all_layers(server):
    answer = generate(server, input_ids=list(range(3, 40)), sampling_params=GREEDY, return_routed_experts=True)
    rows = base64.b64decode(answer["meta_info"]["routed_experts"])
    config = json.loads((MODEL / "config.json").read_text())
    width = config["num_hidden_layers"] * config["num_experts_per_tok"]
    assert len(rows) == 4 * width * (37 + 12 - 1)


def traced(server, folder):
    """The names of the operations of each rank, while it computes one request."""
    status, answer = server.request("/start_profile", {"output_dir": str(folder), "profile_prefix": "run"})
    assert status == 200, answer
    generate(server, input_ids=list(range(30)), sampling_params=GREEDY)
    status, answer = server.request("/stop_profile", method="POST")
    assert status == 200, answer
    events = [json.loads(pathlib.Path(file).read_text())["traceEvents"] for file in answer["files"]]
    return [{e["name"] for e in some if e["ph"] == "X"} for some in events]


def test_traces_have_the_operations_of_each_stage(server, tmp_path):
    names = traced(server, tmp_path)
    assert len(names) == {"pp2": 2, "pp3-tp2": 6}[server.layout]
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


# Layouts of several nodes, and those of one stage with the same tp.
RANKS = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dist-timeout", 60]
STAGES = ["--pp-size", 2, "--pp-layer-partition", "2,1", "--enable-dynamic-chunking"]


def all_kinds(server):
    prompts = [[3], list(range(5, 60)), [7, 8, 9] * 30]
    out = []
    for temperature in (0, 0.8):
        answers = generate(server, input_ids=prompts, return_logprob=True, logprob_start_len=0, return_routed_experts=True,
                           sampling_params={"temperature": temperature, "sampling_seed": 11, "max_new_tokens": 20,
                                            "ignore_eos": True})
        out += [(a["output_ids"], a["meta_info"]["output_token_logprobs"], a["meta_info"]["input_token_logprobs"],
                 a["meta_info"]["routed_experts"]) for a in answers]
    return out


@pytest.fixture(scope="module")
def of_one_stage():
    with Server(MODEL, *RANKS, *COMMON) as server:
        return all_kinds(server)


@contextlib.contextmanager
def two_nodes(*flags):
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(MODEL, address, *flags) as node1:
        with Server(MODEL, *flags, "--nnodes", 2, "--dist-init-addr", address) as node0:
            yield node0, node1


def test_nodes_with_whole_stages_answer_as_one_stage(of_one_stage):
    with two_nodes(*RANKS, *STAGES, *COMMON) as (node0, node1):
        assert len(node0.ranks()) == len(node1.ranks()) == 2
        assert all_kinds(node0) == of_one_stage
        assert all_kinds(node0) == of_one_stage  # prompts are in the cache
        node0.wait_idle()
        os.kill(node1.ranks()[1], signal.SIGKILL)
        assert node0.process.wait(60) == 1
        assert "rank 3" in node0.text() and "node 1" in node0.text(), node0.text()
        assert node1.wait() == 1


def test_a_stage_that_stops_ends_the_waits_of_the_other_node():
    # The watchdog is late, so the deadline of waits for another stage ends the engine.
    flags = ["--pp-size", 2, "--dist-timeout", 2, "--watchdog-timeout", 1000]
    with two_nodes(*flags, *COMMON) as (node0, node1):
        stopped = node1.ranks()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            status, answer = node0.request("/generate", {"input_ids": [5, 6, 7], "sampling_params": GREEDY})
            assert status >= 500, answer
            assert node0.process.wait(60) == 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
        assert "rank 0 (stage 0) waited 2 s for rank 1 (stage 1) in pipeline: results of the last stage" in node0.text()


def test_ranks_of_mpirun_answer_as_one_stage(of_one_stage):
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun (openmpi-bin)")
    with Server(MODEL, *RANKS, *STAGES, *COMMON, prefix=[*MPIRUN, "-n", "4"]) as server:
        assert all_kinds(server) == of_one_stage
        os.kill(mpi_ranks(server)[0], signal.SIGTERM)  # not to mpirun, which kills its processes on SIGTERM
        assert server.process.wait(60) == 0, server.text()


def repeats(server):
    """An output that repeats itself, so drafts from the text are accepted."""
    return generate(server, input_ids=[7, 8, 9],
                    sampling_params={**GREEDY, "max_new_tokens": 60, "logit_bias": {"7": 100}})["output_ids"]


def test_drafts_from_the_text_do_not_change_answers(of_one_stage):
    with Server(MODEL, *RANKS, *COMMON) as server:
        want = repeats(server)
    with Server(MODEL, *RANKS, *STAGES, *COMMON, "--speculative-algorithm", "NGRAM") as server:
        assert all_kinds(server) == of_one_stage
        assert all_kinds(server) == of_one_stage  # prompts are in the cache
        assert repeats(server) == want
        assert sum(state["accepted_draft_tokens"] for state in server.states()) > 0
        server.wait_idle()


@pytest.mark.parametrize("flags, error", [
    (["--pp-size", 4], "--pp-size 4: the model has 3 layers"),
    (["--pp-size", 2, "--pp-layer-partition", "1,1"], "the sum is 2, but the model has 3 layers"),
    (["--pp-size", 2, "--enable-two-batch-overlap"], "--enable-two-batch-overlap: not supported with --pp-size 2"),
    (["--pp-size", 2, "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", MODEL],
     "--speculative-algorithm EAGLE3: not supported with --pp-size 2"),
    (["--pp-size", 2, "--speculative-algorithm", "NEXTN", "--speculative-eagle-topk", 2, "--speculative-num-steps", 2,
      "--speculative-num-draft-tokens", 4], "--speculative-eagle-topk 2: not supported with --pp-size 2"),
    (["--pp-size", 2, "--enable-elastic-ep"], "--enable-elastic-ep: with --pp-size 2, ranks cannot be restarted"),
    (["--pp-size", 2, "--nnodes", 3, "--dist-init-addr", "127.0.0.1:1"], "--nnodes 3 does not divide the 2 ranks of --pp-size 2"),
    (["--enable-dynamic-chunking"], "--enable-dynamic-chunking has no effect without --pp-size"),
    (["--pp-async-batch-depth", 1], "--pp-async-batch-depth 1 has no effect without --pp-size"),
])
def test_bad_flags_are_named(flags, error):
    code, text = fails_to_start("--model-path", MODEL, *flags, *COMMON)
    assert code == 2 and error in text, text
