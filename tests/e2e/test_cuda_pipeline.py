"""Pipeline stages on GPUs (`serve --pp-size`): the responses are those of one stage, bit by bit. Cases are skipped, or
share one GPU, as in test_cuda.py."""
import functools
import os
import signal

import pytest

import check_reference
import test_eplb
import test_recorder
from schema_generator import schemas
from server import FIXTURES, Server, fails_to_start
from test_cuda import GRAPHS, where
from test_faults import check_router_overflow
from test_grammar import in_parallel, is_valid, with_schema
from test_pipeline import COMMON, GREEDY, MODEL, abort_some, all_kinds, generate, repeats, traced

LAYOUTS = {  # ranks, flags
    "pp2": (2, ["--pp-size", 2]),
    "pp2-tp2": (4, ["--pp-size", 2, "--tp", 2]),
    "pp2-tp2-ep2": (4, ["--pp-size", 2, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"]),
    "pp2-dp2": (4, ["--pp-size", 2, "--tp", 2, "--ep", 2, "--enable-dp-attention", "--dp-size", 2, "--moe-a2a-backend", "deepep",
                    "--chunked-prefill-size", 16]),
}
CASES = [(name, layout, graphs) for name in ("olmoe", "deepseek_v3", "gpt_oss", "llama") for layout in ("pp2", "pp2-tp2")
         for graphs in GRAPHS]
CASES += [(name, layout, "graphs") for name in ("olmoe", "deepseek_v3") for layout in ("pp2-tp2-ep2", "pp2-dp2")]
CASES += [(name, "pp2", "graphs") for name in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3_fp8",
                                               "glm4_moe", "qwen3")]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_equals_transformers(case):
    name, layout, graphs = case
    ranks, flags = LAYOUTS[layout]
    device, env = where(ranks)
    with Server(FIXTURES / name, *device, *flags, "--dtype", "float32", "--max-total-tokens", 4096, "--log-level", "warning",
                *GRAPHS[graphs], env=env) as server:
        check_reference.check(server, FIXTURES / name)


def sampled(server):
    """Tokens that the GPU of the last stage samples, for passes that are launched ahead: of decode batches of several
    sizes, of prompts of several chunks, and of cached prompts."""
    prompts = [list(range(3 + i, 20 + 7 * i)) for i in range(9)]
    out = []
    for temperature in (0, 0.8):
        for some in (prompts[:1], prompts, prompts[3:6]):
            answers = generate(server, input_ids=some, sampling_params={
                "temperature": temperature, "sampling_seed": 5, "max_new_tokens": 24, "ignore_eos": True})
            out.append([answer["output_ids"] for answer in answers])
    return out


SCHEDULES = {
    "default": [],
    "depth1": ["--pp-async-batch-depth", 1],
    "not-ahead": ["--disable-overlap-schedule"],
    "dynamic-chunks": ["--enable-dynamic-chunking", "--pp-max-micro-batch-size", 2, "--pp-layer-partition", "1,2"],
}
# Layouts of several stages: ranks, ranks of one stage, stages, and flags of each stage.
BOTH = {
    "pp2": (2, 1, ["--pp-size", 2], ()),
    "pp3": (3, 1, ["--pp-size", 3], ()),
    "pp2-tp2": (4, 2, ["--pp-size", 2], ("--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep")),
}


def answers(server):
    return all_kinds(server), sampled(server), repeats(server)


@functools.cache
def of_one_stage(ranks, flags, graphs):
    """The answers of a server with one stage."""
    device, env = where(ranks)
    with Server(MODEL, *device, *flags, *COMMON, *GRAPHS[graphs], env=env) as server:
        got = answers(server)
        assert server.stop() == 0
    return got


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", BOTH)
def test_stages_change_no_bit(layout, graphs):
    ranks, one, stages, flags = BOTH[layout]
    device, env = where(ranks)
    want = of_one_stage(one, flags, graphs)
    for name, schedule in SCHEDULES.items():
        if layout == "pp3" and name == "dynamic-chunks":
            continue  # the partition is one of two stages
        with Server(MODEL, *device, *flags, *stages, *COMMON, *GRAPHS[graphs], *schedule, env=env) as server:
            assert answers(server) == want, name
            server.wait_idle()
            assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
def test_drafts_from_the_text_do_not_change_answers(graphs):
    device, env = where(2)
    want = of_one_stage(1, (), graphs)
    with Server(MODEL, *device, "--pp-size", 2, *COMMON, *GRAPHS[graphs], "--speculative-algorithm", "NGRAM",
                env=env) as server:
        assert answers(server) == want
        assert sum(state["accepted_draft_tokens"] for state in server.states()) > 0
        server.wait_idle()
        assert server.stop() == 0


@pytest.mark.parametrize("layout", ["pp2", "pp2-tp2"])
@pytest.mark.parametrize("graphs", GRAPHS)
def test_drafts_of_an_mtp_layer_do_not_change_answers(layout, graphs):
    """The layer is on the last stage. It reads the target's rows of a pass right after the pass."""
    ranks, one, stages, flags = BOTH[layout]
    device, env = where(ranks)
    want = of_one_stage(one, flags, graphs)
    with Server(MODEL, *device, *flags, *stages, *COMMON, *GRAPHS[graphs], "--speculative-algorithm", "NEXTN",
                "--speculative-num-steps", 3, env=env) as server:
        assert answers(server) == want
        assert sum(state["draft_tokens"] for state in server.states()) > 0
        server.wait_idle()
        assert server.stop() == 0


def test_experts_of_two_stages_move(tmp_path):
    """The fixture's first layer is dense, the other two have experts."""
    flags = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--ep-num-redundant-experts", 4]
    device, env = where(2)
    with Server(MODEL, *device, *flags, *COMMON, env=env) as server:
        want = sampled(server)
        assert server.stop() == 0
    device, env = where(4)
    with Server(MODEL, *device, *flags, "--pp-size", 2, *COMMON, "--enable-eplb", "--eplb-rebalance-num-iterations", 50,
                "--expert-distribution-recorder-mode", "per_token", "--expert-distribution-recorder-dir", tmp_path,
                "--enable-expert-distribution-metrics", env=env) as server:
        assert sampled(server) == want
        test_eplb.settle(server)
        assert server.request("/eplb/rebalance", {}, method="POST")[0] == 200
        test_recorder.act(server, "start")
        assert sampled(server) == want
        now = test_eplb.settle(server)
        assert now["plans"] >= 2 and now["failures"] == 0, now
        found, _ = test_recorder.tensors(test_recorder.act(server, "dump")["file"])
        experts = found["topk_ids"]
        width = experts[0][1] * experts[0][2]
        for token in range(experts[0][0]):  # the dense layer has no expert, and the others have all
            row = experts[1][token * width:(token + 1) * width]
            assert max(row[:experts[0][2]]) == -1 and min(row[experts[0][2]:]) >= 0
        assert 0 < server.request("/expert_distribution")[1]["balancedness"]["last_10_average"] <= 1
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
def test_grammars_constrain_outputs(graphs):
    cases, outputs = schemas(seed=31, count=24), []
    for ranks, stages in (1, []), (2, ["--pp-size", 2]):
        device, env = where(ranks)
        with Server(FIXTURES / "qwen3_moe", *device, "--dtype", "float32", "--log-level", "warning", "--max-total-tokens", 8192,
                    *stages, *GRAPHS[graphs], env=env) as server:
            outputs.append(in_parallel([lambda i=i, s=s: with_schema(server, i, s) for i, s in enumerate(cases)]))
            assert server.stop() == 0
    assert outputs[0] == outputs[1]
    assert sum(is_valid(schema, *output) for schema, output in zip(cases, outputs[0])) > 0


def test_aborted_requests_free_their_pages():
    device, env = where(2)
    with Server(MODEL, *device, "--pp-size", 2, *COMMON, env=env) as server:
        abort_some(server)
        status, answer = server.request("/flush_cache", method="POST")
        assert status == 200, answer
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
def test_a_profile_has_the_links_between_graphs(graphs, tmp_path):
    device, env = where(2)
    with Server(MODEL, *device, "--pp-size", 2, *COMMON, *GRAPHS[graphs], env=env) as server:
        for _ in range(3):  # captures the graph of one row
            generate(server, input_ids=[5, 6, 7], sampling_params=GREEDY)
        names = traced(server, tmp_path)
        assert "send" in names[0] and "receive" not in names[0] and "head" not in names[0]
        assert "receive" in names[1] and "send" not in names[1] and "embed" not in names[1]
        assert all(("graph" in some) == (graphs == "graphs") for some in names)
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
def test_stages_record_what_one_stage_records(graphs, tmp_path):
    found = []
    for name, stages in (("one", []), ("two", ["--pp-size", 2])):
        folder = tmp_path / name
        folder.mkdir()
        device, env = where(2 if stages else 1)
        with Server(test_recorder.MODEL, *device, *stages, *test_recorder.COMMON, *GRAPHS[graphs],
                    *test_recorder.recorder("per_pass", folder), env=env) as server:
            test_recorder.generate(server, text="not recorded", sampling_params=test_recorder.GREEDY)
            test_recorder.act(server, "start")
            test_recorder.generate(server, text="Hello", sampling_params=test_recorder.GREEDY)
            tensors, _ = test_recorder.tensors(test_recorder.act(server, "dump")["file"])
            found.append(tensors["logical_count"])
            assert server.stop() == 0
    assert found[0] == found[1] and sum(found[0][1]) > 0


def test_a_router_that_overflows_ends_the_request_alone(tmp_path):
    device, env = where(2)
    check_router_overflow(tmp_path, *device, "--pp-size", 2, env=env)


def test_the_end_of_a_rank_ends_the_server():
    device, env = where(2)
    with Server(MODEL, *device, "--pp-size", 2, *COMMON, env=env) as server:
        os.kill(server.ranks()[1], signal.SIGKILL)
        assert server.process.wait(timeout=60) == 1
        assert "rank 1" in server.text()


def test_a_stage_that_stops_is_named():
    """The watchdog is late, so the deadline of waits for another stage ends the server."""
    device, env = where(2)
    with Server(MODEL, *device, "--pp-size", 2, "--dist-timeout", 10, "--watchdog-timeout", 1000, *COMMON, env=env) as server:
        stopped = server.ranks()[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            status, answer = server.request("/generate", {"input_ids": [5, 6, 7], "sampling_params": GREEDY})
            assert status >= 500, answer
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert server.process.wait(timeout=60) == 1
        assert "rank 0 (stage 0) waited 10 s for rank 1 (stage 1) in pipeline: results of the last stage" in server.text()


def test_stages_on_gpus_of_several_hosts_are_refused():
    device, env = where(2)
    code, text = fails_to_start("--model-path", MODEL, *device, "--pp-size", 2, "--nnodes", 2, "--dist-init-addr",
                                "127.0.0.1:1", *COMMON)
    assert code == 2 and "--pp-size 2: supported on GPUs of one host and on CPUs only" in text, text
