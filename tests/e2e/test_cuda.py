"""Serves the reference checkpoints on GPUs. Tokens must equal those of transformers, and log-probabilities must agree to
2e-4 in float32. Cases that need more GPUs than the machine has are skipped. With SWITCHYARD_TEST_SHARED_GPU=1 and at
least one GPU, such cases run all ranks on the first GPU. NCCL between ranks on one GPU requires NCCL 2.30 (libnccl.so.2
on the loader's path). SWITCHYARD_TEST_FIRST_GPU is the number of the first GPU to use (default 0).
"""
import collections
import functools
import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest

import check_reference
import test_dp_attention
import test_recorder
from elastic import metric
from schema_generator import schemas
from server import FIXTURES, PROGRAM, OtherNode, Server, free_port
from test_checkpoints import logprobs
from test_eplb import DP, EPLB, INT4, MOE_LAYERS, REDUNDANT, answers, eplb, metrics, settle, skewed
from test_families import FEW_STATES
from test_families import FOLDER as FAMILY_FOLDER
from test_families import LAYOUTS as FAMILY_LAYOUTS
from test_families import MORE as SHORTCUT_LAYOUTS
from test_families import NAMES as FAMILIES
from test_families import RECURRENT, SPARSE_DRAFTS
from test_families import check as check_family
from test_families import check_sparse_drafts
from test_faults import ROUTER_RANKS, check_router_overflow
from test_grammar import LAYOUTS as GRAMMAR_LAYOUTS
from test_grammar import in_parallel, is_valid, with_schema
from test_overlap import LAYOUTS as OVERLAP_LAYOUTS
from test_overlap import SINGLE as SINGLE_BATCH_OVERLAP
from test_overlap import answers as overlap_answers
from test_profile import PASS, generate, names, spans, start, stop
from test_reference import BACKENDS, DP_BACKENDS, NAMES
from test_speculative import LAYOUTS as DRAFT_LAYOUTS
from test_speculative import answers as draft_answers
from test_speculative import SHARDED, TREES, YARDLING, check_head, head_flags

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]
EIGHT = [(8, 4), (8, 8)]  # with two attention groups, since the checkpoints have four heads
GRAPHS = {"graphs": [], "no_graphs": ["--disable-cuda-graph"]}


@functools.cache
def gpus():
    if not shutil.which("nvidia-smi"):
        return 0
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")


FIRST_GPU = int(os.environ.get("SWITCHYARD_TEST_FIRST_GPU", 0))  # so that concurrent runs use different GPUs


def where(ranks):
    """Returns flags and environment variables that place `ranks` ranks on GPUs."""
    if gpus() >= FIRST_GPU + ranks:
        return ["--device", "cuda", *(["--base-gpu-id", FIRST_GPU] if FIRST_GPU else [])], {}
    if gpus() and os.environ.get("SWITCHYARD_TEST_SHARED_GPU") == "1":
        return ["--device", "cuda", "--gpu-id-step", 0], {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    pytest.skip(f"{ranks} GPUs are needed, {gpus()} were found")


CASES = [(name, layout, backend, graphs) for name in NAMES for layout in LAYOUTS for backend in BACKENDS for graphs in GRAPHS]
CASES += [(name, (4, 2), backend, "graphs") for name in NAMES for backend in DP_BACKENDS]
CASES += [(name, layout, backend, "graphs") for name in NAMES for layout in EIGHT for backend in DP_BACKENDS]
TWO_GROUPS = {
    "none-two-groups": ["--enable-dp-attention", "--dp-size", 2],
    "deepep-two-groups": ["--enable-dp-attention", "--dp-size", 2, "--moe-dense-tp-size", 1, "--moe-a2a-backend", "deepep"],
}
CASES += [(name, (2, 2), backend, "graphs") for name in NAMES for backend in TWO_GROUPS]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-tp{c[1][0]}ep{c[1][1]}-{c[2]}-{c[3]}")
def test_equals_transformers(case):
    name, (tp, ep), backend, graphs = case
    device, env = where(tp)
    flags = [*device, "--dtype", "float32", "--tp", tp, "--ep", ep, "--max-total-tokens", 4096, "--log-level", "warning",
             *{**BACKENDS, **DP_BACKENDS, **TWO_GROUPS}[backend], *GRAPHS[graphs]]
    with Server(FIXTURES / name, *flags, env=env) as server:
        check_reference.check(server, FIXTURES / name)


# Rows of 20 elements for the experts: exchanges of GPUs send multiples of 8.
NARROW = ["nemotron_h_latent"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_families_equal_transformers(tmp_path, name, ranks):
    device, env = where(ranks)
    deepep = [] if name in NARROW else ["--moe-a2a-backend", "deepep"]
    layout = [] if ranks == 1 else ["--tp", 2, "--ep", 2, *deepep]
    check_family(name, tmp_path, *device, *layout, env=env)


@pytest.mark.parametrize("layout", SHORTCUT_LAYOUTS)
def test_shortcut_layers_equal_transformers(tmp_path, layout):
    device, env = where(2)
    check_family("longcat_flash", tmp_path, *device, *SHORTCUT_LAYOUTS[layout], env=env)


@pytest.mark.parametrize("flags", [[], ["--disable-overlap-schedule"], ["--disable-cuda-graph"], ["--pp-size", 2],
                                   ["--pp-size", 2, "--disable-cuda-graph"]], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_states_of_chunks_and_prefixes_equal_transformers(tmp_path, name, flags):
    device, env = where(2 if "--pp-size" in flags else 1)
    # GPUs compute the delta rule in chunks of 64 rows, so passes are at least as long.
    chunk = ["--chunked-prefill-size", 64] if name == "qwen3_next" else []
    check_family(name, tmp_path, *device, *FEW_STATES, *chunk, *flags, env=env)


# Chunks of four tokens, and contexts with more tokens than index_topk.
@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["one", "dp"])
@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa_shared"])
def test_sparse_attention_equals_transformers(tmp_path, name, layout, graphs):
    device, env = where(1 if layout == "one" else 2)
    flags = [] if layout == "one" else SHORTCUT_LAYOUTS[layout]
    check_family(name, tmp_path, *device, "--chunked-prefill-size", 4, *GRAPHS[graphs], *flags, env=env)


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["one", "low_latency"])
@pytest.mark.parametrize("name", SPARSE_DRAFTS)
def test_drafts_with_sparse_attention_equal_transformers(tmp_path, name, layout, graphs):
    device, env = where(1 if layout == "one" else 2)
    check_sparse_drafts(name, tmp_path, *device, *FAMILY_LAYOUTS[layout], *GRAPHS[graphs], env=env)


# Chunks that end within blocks of entries, few slots for states, and contexts with more entries than index_topk.
ENTRY_LAYOUTS = {"one": FEW_STATES, "tp2": ["--tp", 2, *FEW_STATES], "dp": [*SHORTCUT_LAYOUTS["dp"], "--chunked-prefill-size", 4]}


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ENTRY_LAYOUTS)
@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v4_plain"])
def test_compressed_entries_equal_transformers(tmp_path, name, layout, graphs):
    device, env = where(1 if layout == "one" else 2)
    check_family(name, tmp_path, *device, *ENTRY_LAYOUTS[layout], *GRAPHS[graphs], env=env)


# Stages send several residual streams. The second one has a layer that routes by token ids.
@pytest.mark.parametrize("graphs", GRAPHS)
def test_stages_with_residual_streams_equal_transformers(tmp_path, graphs):
    device, env = where(2)
    check_family("deepseek_v4", tmp_path, *device, "--pp-size", 2, "--pp-layer-partition", "1,3", *FEW_STATES, *GRAPHS[graphs],
                 env=env)


# Layers differ in KV heads, so attention groups have different caches.
def test_layers_with_different_caches_equal_transformers(tmp_path):
    device, env = where(2)
    check_family("mimo_v2_flash", tmp_path, *device, *SHORTCUT_LAYOUTS["dp"], env=env)


HOSTS = [(name, 2, mode, graphs) for name in ("olmoe", "deepseek_v3") for mode in ("none", "normal", "low_latency")
         for graphs in GRAPHS]
HOSTS += [("qwen3_moe", 4, mode, "graphs") for mode in ("none", "normal", "low_latency")]


@pytest.mark.parametrize("case", HOSTS, ids=lambda c: f"{c[0]}-tp{c[1]}ep{c[1]}-{c[2]}-{c[3]}")
def test_two_hosts_equal_transformers(case):
    """Runs half of the ranks as node 1. NCCL_HOSTID differs there, so NCCL treats node 1 as another host and uses
    sockets."""
    name, ranks, mode, graphs = case
    device, env = where(ranks)
    second = ["--base-gpu-id", FIRST_GPU + ranks // 2] if gpus() >= FIRST_GPU + ranks else []
    backend = [] if mode == "none" else ["--moe-a2a-backend", "deepep", "--deepep-mode", mode]
    flags = [*device, "--dtype", "float32", "--tp", ranks, "--ep", ranks, "--max-total-tokens", 4096, "--log-level",
             "warning", "--dist-timeout", 60, *backend, *GRAPHS[graphs]]
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(FIXTURES / name, address, *flags, *second, env={**env, "NCCL_HOSTID": "second"}) as node1:
        with Server(FIXTURES / name, *flags, "--nnodes", 2, "--node-rank", 0, "--dist-init-addr", address,
                    env={**env, "NCCL_HOSTID": "first"}) as node0:
            check_reference.check(node0, FIXTURES / name, node1)
            assert node1.wait() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", OVERLAP_LAYOUTS)
def test_two_batch_overlap_and_steps_one_by_one_change_no_bit(layout, graphs):
    device, env = where(OVERLAP_LAYOUTS[layout][1])
    flags = [*device, *OVERLAP_LAYOUTS[layout], *GRAPHS[graphs]]
    without = overlap_answers(*flags, env=env)
    for overlap in (["--enable-two-batch-overlap", "--tbo-min-tokens", 2], ["--disable-overlap-schedule"]):
        assert overlap_answers(*flags, *overlap, env=env) == without


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", OVERLAP_LAYOUTS)
def test_single_batch_overlap_changes_no_bit(layout, graphs):
    device, env = where(OVERLAP_LAYOUTS[layout][1])
    flags = [*device, *OVERLAP_LAYOUTS[layout], *GRAPHS[graphs]]
    without = overlap_answers(*flags, env=env)
    for overlap in SINGLE_BATCH_OVERLAP.values():
        assert overlap_answers(*flags, *overlap, env=env) == without


@pytest.mark.parametrize("ranks", ROUTER_RANKS)
def test_a_router_that_overflows_ends_the_request_alone(tmp_path, ranks):
    device, env = where(2 if ROUTER_RANKS[ranks] else 1)
    check_router_overflow(tmp_path, *device, *ROUTER_RANKS[ranks], env=env)


@pytest.mark.parametrize("tp", [1, 2])
def test_clip_qkv_gives_the_logprobs_of_the_cpu(tp):
    """A limit of 0.7 clamps about half of the checkpoint's queries, keys and values."""
    device, env = where(tp)
    clip = ["--json-model-override-args", '{"clip_qkv": 0.7}']
    clipped = logprobs(FIXTURES / "olmoe", *device, "--tp", tp, *clip, env=env)
    assert clipped == pytest.approx(logprobs(FIXTURES / "olmoe", "--device", "cpu", *clip), abs=2e-4)
    assert clipped != pytest.approx(logprobs(FIXTURES / "olmoe", *device, "--tp", tp, env=env), abs=1e-2)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_next", "qwen3_5_moe", "kimi_linear", "nemotron_h", "nemotron_h_latent",
                                  "bailing_hybrid", "bailing_moe_v2_5", "deepseek_v4"])
def test_bfloat16_gives_the_same_alone_and_together(name):
    """Single prompts and a large batch in chunks must give equal results: with MXFP4 experts, which stay packed on a Hopper
    GPU, with recurrent states, and with compressed entries."""
    model = [FIXTURES / name] if name in NAMES else [FAMILY_FOLDER / name, "--tokenizer-path", FIXTURES / "qwen3_moe"]
    check_alone_and_together(*model)


def check_alone_and_together(*model):
    if gpus() < 1:
        pytest.skip("a GPU is needed")
    prompts = [[(7 * i + j * j) % 500 for j in range(3 + 11 * i)] for i in range(20)]
    with Server(*model, "--device", "cuda", "--dtype", "bfloat16", "--max-total-tokens", 8192, "--chunked-prefill-size", 300,
                "--log-level", "warning") as server:
        def answers(some):
            status, answer = server.request("/generate", {
                "input_ids": some, "return_logprob": True, "logprob_start_len": 0,
                "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}})
            assert status == 200, answer
            return [(a["output_ids"], a["meta_info"]["input_token_logprobs"], a["meta_info"]["output_token_logprobs"])
                    for a in answer]

        together = answers(prompts)
        for i in 0, 7, 19:
            assert answers([prompts[i]]) == [together[i]]
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", test_recorder.LAYOUTS)
def test_the_recorder_has_every_token(tmp_path, layout, graphs):
    """The checks of test_recorder.py, on GPUs. Decode steps are captured and padded, and padding is not recorded."""
    flags = test_recorder.LAYOUTS[layout]
    device, env = where(flags[1])
    with Server(test_recorder.MODEL, *device, *flags, *test_recorder.COMMON, *GRAPHS[graphs],
                *test_recorder.recorder("per_token", tmp_path, "--enable-expert-distribution-metrics"), env=env) as server:
        server.folder = tmp_path
        for _ in range(2):  # in the second round, decode steps are replayed as CUDA graphs
            test_recorder.test_a_dump_has_every_token_of_every_layer(server)
        test_recorder.test_the_recorded_choice_is_the_one_that_answers_name(server)
        test_recorder.test_balancedness_is_logged_for_every_pass(server)
        test_recorder.test_load_is_shown(server)
        assert server.stop() == 0


@pytest.mark.parametrize("mode", ["stat", "stat_approx", "per_pass"])
@pytest.mark.parametrize("backend", ["none", "deepep"])
def test_the_recorder_counts_in_every_mode(tmp_path, backend, mode):
    device, env = where(2)
    with Server(test_recorder.MODEL, *device, "--tp", 2, "--ep", 2, "--moe-a2a-backend", backend, *test_recorder.COMMON,
                *test_recorder.recorder(mode, tmp_path, "--ep-num-redundant-experts", 2), env=env) as server:
        def recorded():
            test_recorder.act(server, "start")
            answer = test_recorder.generate(server, text="Hello", sampling_params=test_recorder.GREEDY)
            found, _ = test_recorder.tensors(test_recorder.act(server, "dump")["file"])
            test_recorder.act(server, "stop")
            rows = test_recorder.rows_of([answer]) * test_recorder.TOP_K * test_recorder.LAYERS
            assert sum(found["logical_count"][1]) == rows
            if mode == "per_pass":
                assert sum(found["rank_logical_count"][1]) == rows

        for _ in range(4):
            recorded()
            test_recorder.generate(server, text="not recorded", sampling_params=test_recorder.GREEDY)
        assert server.stop() == 0


ROUTED_LAYOUTS = {
    "tp1": [],
    "tp2-dp2-ep2": ["--tp", 2, "--dp-size", 2, "--ep", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep"],
}


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ROUTED_LAYOUTS)
def test_responses_have_the_routed_experts(layout, graphs):
    """The checks of test_dp_attention.py, on GPUs: against the router's weights, a rank on a CPU, and a replay."""
    flags = ROUTED_LAYOUTS[layout]
    groups = 2 if flags else 1
    device, env = where(groups)
    with Server(test_dp_attention.MODEL, *device, *flags, *GRAPHS[graphs], *test_dp_attention.COMMON, env=env) as server:
        server.groups = groups
        for check in (test_dp_attention.test_routed_experts_are_the_routers_choice,
                      test_dp_attention.test_routed_experts_do_not_depend_on_layout_chunks_or_reuse,
                      test_dp_attention.test_a_replay_of_a_rollout_has_its_experts_and_bits,
                      test_dp_attention.test_streams_carry_routed_experts_at_the_end):
            check(server)
        assert server.stop() == 0


STAGE_LAYOUTS = {
    "tp1": [],
    "tp2-ep2-deepep": ["--tp-size", 2, "--ep-size", 2, "--moe-a2a-backend", "deepep"],
    "two-batches": ["--tp-size", 2, "--ep-size", 2, "--moe-a2a-backend", "deepep", "--enable-dp-attention", "--dp-size", 2,
                    "--moe-dense-tp-size", 1, "--enable-two-batch-overlap"],
}


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", STAGE_LAYOUTS)
def test_clocked_passes_have_the_times_of_stages(layout, graphs):
    ranks = 1 if layout == "tp1" else 2
    device, env = where(ranks)
    with Server(FIXTURES / "olmoe", *device, "--enable-expert-distribution-metrics", *STAGE_LAYOUTS[layout],
                *GRAPHS[graphs], env=env) as server:
        params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
        load, start, outputs = {"timed_passes": 0}, time.time(), set()
        while load["timed_passes"] < 4:
            assert time.time() - start < 60, load
            status, answer = server.request("/generate", {"text": ["How are you?"] * 3, "sampling_params": params})
            assert status == 200, answer
            outputs.update(one["text"] for one in answer)
            load = server.request("/expert_distribution")[1]
        elapsed = time.time() - start
        assert len(outputs) == 1  # the clock changes no output
        assert load["timed_passes"] <= load["forward_passes"] / 16
        assert len(load["stage_seconds"]) == ranks
        for seconds in load["stage_seconds"]:
            assert seconds["experts"] > 0 and seconds["combine"] > 0, load["stage_seconds"]
            assert (seconds["dispatch"] > 0) == (ranks > 1), load["stage_seconds"]
            assert sum(seconds.values()) < elapsed
        name = "switchyard_moe_seconds_total"
        assert metric(server, "switchyard_moe_timed_passes_total") == load["timed_passes"]
        assert name in server.request("/metrics")[1]
        assert server.stop() == 0


MOVES = [(dispatch, [], []) for dispatch in ("static", "dynamic", "balanced", "lp")]
MOVES += [("dynamic", DP, []), ("static", [], INT4), ("dynamic", [], ["--quantization", "fp8"])]


@pytest.mark.parametrize("dispatch, layout, weights", MOVES, ids=lambda value: "-".join(map(str, value)) if value and
                         not isinstance(value, str) else value or "plain")
def test_experts_move_and_no_output_changes(tmp_path, dispatch, layout, weights):
    device, env = where(2)
    model = skewed(tmp_path / "model")
    flags = [*device, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--ep-num-redundant-experts", REDUNDANT,
             "--max-total-tokens", 8192, *layout, *weights]
    with Server(model, *flags, env=env) as still:
        want = [answers(still, seed) for seed in range(6)]
        assert still.stop() == 0
    with Server(model, *flags, *EPLB, "--ep-dispatch-algorithm", dispatch, "--enable-expert-distribution-metrics",
                env=env) as server:
        for seed in range(6):
            assert answers(server, seed) == want[seed], seed  # bit-identical while experts move
        settle(server)
        assert server.request("/eplb/rebalance", method="POST")[0] == 200
        settle(server)  # moves without requests
        assert [answers(server, seed) for seed in range(2)] == want[:2]
        now = settle(server)
        assert now["failures"] == 0, now
        if dispatch in ("balanced", "lp"):  # replica selection balances the ranks; possibly no plan is worth its cost
            assert now["balancedness"] > 0.9, now
        else:
            assert now["rebalances"] >= 1, now
            assert now["layers_moved"] >= MOE_LAYERS
            assert now["experts_loaded"] + now["experts_received"] > 0
        page = metrics(server)
        assert page["switchyard_eplb_rebalances_total"] == now["rebalances"]
        assert page["switchyard_eplb_failures_total"] == 0
        assert sum(page[f'switchyard_eplb_gpu_physical_count_total{{rank="{rank}"}}'] for rank in range(2)) > 0
        assert eplb(server)["balancedness"] is None or eplb(server)["balancedness"] > 0.5
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
def test_a_profile_has_the_times_of_the_gpu(graphs, tmp_path):
    """A profile has each operation with its times on the host and on the GPU. A decode step in a graph is one
    operation."""
    device, env = where(2)
    with Server(FIXTURES / "qwen3_moe", *device, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--max-total-tokens", 4096,
                "--target-step-ms", 0, *GRAPHS[graphs], env=env) as server:
        generate(server, max_new_tokens=8)  # captures the graph of one row
        assert start(server, output_dir=str(tmp_path))["activities"] == ["CPU", "GPU"]
        generate(server)
        for file in stop(server)["files"]:
            decode = ["graph"] if graphs == "graphs" else PASS
            for category in ("operation", "gpu_operation"):
                assert names(spans(file, category)) == PASS + decode * 3, category
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", GRAMMAR_LAYOUTS)
def test_grammars_constrain_outputs(layout, graphs):
    """Concurrent requests, each with its own grammar, give valid and equal outputs with and without overlapped
    scheduling."""
    flags = GRAMMAR_LAYOUTS[layout]
    device, env = where(2 if "--tp" in flags else 1)
    flags = flags if "--max-total-tokens" in flags else [*flags, "--max-total-tokens", 8192]
    cases, outputs = schemas(seed=29, count=64), []
    for schedule in [], ["--disable-overlap-schedule"]:
        with Server(FIXTURES / "qwen3_moe", *device, "--dtype", "float32", "--log-level", "warning", *flags, *GRAPHS[graphs],
                    *schedule, env=env) as server:
            outputs.append(in_parallel([lambda i=i, s=s: with_schema(server, i, s) for i, s in enumerate(cases)]))
    assert outputs[0] == outputs[1]
    assert sum(is_valid(schema, *output) for schema, output in zip(cases, outputs[0])) > 0


FLOAT32 = ["--dtype", "float32"]
DRAFT_FLAGS = ["--max-total-tokens", 8192, "--chunked-prefill-size", 48, "--max-running-requests", 8, "--log-level", "warning"]


@functools.cache
def without_drafts(*flags):
    with Server(YARDLING, "--device", "cuda", *flags) as server:
        return draft_answers(server)


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", [*DRAFT_LAYOUTS, *TREES])
def test_drafts_change_no_output(layout, graphs, tmp_path):
    """The requests include some whose tokens the host samples, and some with grammars. EAGLE heads are built from the
    outputs without drafts."""
    drafts = {**DRAFT_LAYOUTS, **TREES}[layout]
    device, env = where(2 if "--tp" in drafts or "--pp-size" in drafts else 1)
    without = without_drafts(*DRAFT_FLAGS, *FLOAT32)
    head = head_flags(layout, without, tmp_path)
    with Server(YARDLING, *device, *DRAFT_FLAGS, *FLOAT32, *drafts, *head, *GRAPHS[graphs], env=env) as server:
        assert draft_answers(server) == without
        if layout != "eagle3_auto":  # `auto` may end drafting before a draft is accepted
            states = server.request("/get_server_info")[1]["internal_states"]
            assert sum(state["accepted_draft_tokens"] for state in states) > 0
        assert server.stop() == 0


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_heads_are_sharded_with_attention(layout, graphs, tmp_path):
    device, env = where(2)
    check_head(layout, tmp_path, *device, *DRAFT_FLAGS, *FLOAT32, *SHARDED, *GRAPHS[graphs], env=env)


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_heads_in_bfloat16(layout, graphs, tmp_path):
    """Here norms write the rounded input of the next product. Layers whose input is kept add the residual before."""
    device, env = where(1)
    check_head(layout, tmp_path, *device, *DRAFT_FLAGS, "--dtype", "bfloat16", *GRAPHS[graphs], env=env, bfloat16=True)


def check_draft_backends(folder, *flags, env=None):
    """The target's layers and the draft's layer name their own backends in a profile."""
    flags = [*flags, *DRAFT_FLAGS, *SHARDED, "--moe-runner-backend", "grouped_mlp", "--speculative-algorithm", "NEXTN",
             "--speculative-num-steps", 2, "--speculative-moe-a2a-backend", "flashinfer", "--speculative-moe-runner-backend",
             "masked_mlp"]
    with Server(YARDLING, *flags, env=env) as server:
        start(server, output_dir=str(folder))
        generate(server)
        files = stop(server)["files"]
        assert server.stop() == 0
    target, draft = {"deepep", "grouped_mlp"}, {"flashinfer", "masked_mlp"}
    for file in files:
        found = collections.defaultdict(set)
        for event in json.loads(pathlib.Path(file).read_text())["traceEvents"]:
            if event.get("cat") == "operation" and "backend" in event["args"]:
                found[event["args"]["layer"]].add(event["args"]["backend"])
        assert found == {1: target, 2: target, 3: target, 4: draft}


def test_the_drafts_layers_have_their_own_backends(tmp_path):
    device, env = where(2)
    check_draft_backends(tmp_path, *device, "--disable-cuda-graph", env=env)


def test_calibrate_measures_a_table_for_plan(tmp_path):
    device, env = where(1)
    file = tmp_path / "table.json"
    subprocess.run([PROGRAM, "bench", "calibrate", *map(str, device), "--json", file], check=True, env={**os.environ, **env})
    table = json.loads(file.read_text())
    assert table["cuda"] and table["measured"] and table["source"].startswith("switchyard bench calibrate: ")
    assert {"bfloat16", "fp8-block", "mxfp4", "nvfp4", "int4-group"} <= set(table["weights"]) & set(table["experts"])
    # The time to start a tile is hidden by reads of many keys.
    times = [seconds for _, seconds in table["tile_seconds"]]
    assert len(times) == 5 and times[-1] <= min(times)
    plan = subprocess.run([PROGRAM, "plan", "--model-path", FIXTURES.parent / "plan/qwen3_30b_a3b.json", "--gpus", "h200",
                           "--cost-table", file], check=True, capture_output=True, text=True).stdout
    assert "switchyard bench calibrate" in plan and "tp1" in plan
