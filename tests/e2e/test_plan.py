"""`switchyard plan`, and a comparison of planned memory with the resident memory of a process."""
import json
import pathlib
import re
import subprocess

import pytest

import server

DATA = pathlib.Path(__file__).parent.parent / "data"
ROOT = DATA.parent.parent
MEMORY = re.compile(r"memory: planned ([\d.]+) MiB, resident ([\d.]+) MiB more than before loading")
# Model sizes (keys of config.json) so large that the memory of the program itself is negligible.
SHAPES = {
    "qwen3_moe": {"hidden_size": 512, "moe_intermediate_size": 256, "num_experts": 32, "num_hidden_layers": 6,
                  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    "olmoe": {"hidden_size": 512, "intermediate_size": 512, "num_experts": 32, "num_hidden_layers": 6,
              "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000},
    "llama": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16,
              "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    "deepseek_v3": {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256,
                    "n_routed_experts": 32, "num_hidden_layers": 6, "vocab_size": 32000},
    "glm4_moe": {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256, "n_routed_experts": 32,
                 "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    "gpt_oss": {"hidden_size": 512, "intermediate_size": 256, "num_local_experts": 32, "num_attention_heads": 8,
                "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000},
    "../families/deepseek_v4": {"hidden_size": 512, "head_dim": 64, "num_attention_heads": 8, "q_lora_rank": 128, "o_lora_rank": 64,
                                "index_n_heads": 4, "index_head_dim": 32, "moe_intermediate_size": 256, "n_routed_experts": 32,
                                "sliding_window": 32, "index_topk": 16, "vocab_size": 32000, "compress_rates": {
                                    "compressed_sparse_attention": 4, "heavily_compressed_attention": 32}},
}


def run(*arguments, code=0):
    done = subprocess.run([server.PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if code == 0 else done.stderr


def planned_and_resident(*arguments):
    # Prompts fill the chunk, and sequences fill the cache. So all planned memory becomes resident.
    out = run("bench", "one-batch", "--device", "cpu", "--repeat", 1, "--input-len", 192, "--output-len", 16,
              "--batch-size", 32, "--max-running-requests", 32, "--chunked-prefill-size", 2048, *arguments)
    planned, resident = MEMORY.search(out).groups()
    return float(planned), float(resident)


@pytest.mark.parametrize("name, flags", [*((name, []) for name in SHAPES),
                                         ("qwen3_moe", ["--tp-size", 2, "--ep-size", 2]),
                                         ("deepseek_v3", ["--tp-size", 2])])
def test_resident_memory_is_the_planned_one(name, flags):
    planned, resident = planned_and_resident("--model-path", DATA / "fixtures" / name, "--load-format", "dummy",
                                             "--json-model-override-args", json.dumps(SHAPES[name]), *flags)
    assert resident == pytest.approx(planned, rel=0.03)


SMALL = sorted(path.parent for path in (DATA / "fixtures").glob("*/config.json"))


@pytest.mark.parametrize("model", [*SMALL, DATA / "families/deepseek_v4", ROOT / "models/yardling"], ids=lambda path: path.name)
def test_resident_memory_of_a_small_model_is_the_planned_one_and_the_heap(model):
    planned, resident = planned_and_resident("--model-path", model)
    # In MiB. Threads, tables and heap of the program take 2 to 4 MiB; they take most in a build with CUDA.
    assert resident == pytest.approx(planned, abs=6)


def test_serve_logs_planned_and_resident_memory():
    with server.Server(ROOT / "models/yardling", "--device", "cpu", "--max-total-tokens", 2000) as running:
        line = re.search(r"memory of a rank in full use: ([\d.]+) MiB: weights .*; resident now ([\d.]+) MiB, "
                         r"([\d.]+) before loading", running.text())
    assert line and float(line[2]) > float(line[3])


def test_plan_of_gpus_prints_a_ranking_and_a_command():
    out = run("plan", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "8x", "h200", "--input-len", 2000,
              "--output-len", 100)
    assert re.search(r"^   1  tp8", out, re.M)
    assert "switchyard serve --model-path" in out and "decode is limited by" in out


def test_plan_is_json(tmp_path):
    picture = tmp_path / "pareto.svg"
    out = run("plan", "--model-path", DATA / "plan/qwen3_30b_a3b.json", "--gpus", "2xh100", "--json", "--svg", picture,
              "--price", 2.5, "--slo-itl", 50)
    figures = json.loads(out)
    first = figures["layouts"][0]
    assert first["best"]["itl"] <= 0.05 and first["cost_per_million_output_tokens"] > 0
    assert sum(first["memory_per_rank"]["weights"].values()) > 1e9
    assert picture.read_text().startswith("<svg")


def test_plan_of_the_cpu_command_is_accepted_by_serve():
    out = run("plan", "--model-path", ROOT / "models/yardling", "--cpu", "--cpus", 2, "--memory", 4, "--input-len", 100,
              "--output-len", 50)
    command = next(line for line in out.splitlines() if line.startswith("switchyard serve"))
    printed = run(*command.split()[1:], "--print-schedule")
    assert "attention" in printed


def commands(out):
    return [line for line in out.splitlines() if line.startswith("switchyard ")]


HOST = ["--cpu", "--cpus", 2, "--memory", 4, "--input-len", 100, "--output-len", 50]


@pytest.mark.parametrize("model, tokenizer", [
    (ROOT / "models/yardling", []),
    (DATA / "families/deepseek_v4", ["--tokenizer-path", DATA / "fixtures/qwen3_moe"]),
], ids=["yardling", "deepseek_v4"])
def test_planned_memory_of_stages_is_that_of_serve(model, tokenizer):
    """DeepSeek-V4 has recurrent states too: those of unfinished blocks of entries."""
    layouts = json.loads(run("plan", "--model-path", model, *HOST, "--pp-size", 2, "--json"))["layouts"]
    layout = next(entry for entry in layouts if entry["layout"] == "tp1-pp2-chunk512")
    flags = layout["command"].split()[4:]
    assert flags[:2] == ["--pp-size", "2"]
    with server.Server(model, *flags, *tokenizer, "--max-total-tokens", int(layout["cache_tokens"])) as running:
        logged = re.findall(r"memory of a rank in full use: [\d.]+ MiB: weights ([\d.]+) .*? cache ([\d.]+), "
                            r"(?:recurrent states ([\d.]+) .*?, )?activations ([\d.]+)", running.text())
    parts = [stage["memory_per_rank"] for stage in layout["stages"]]
    assert all((part["states"] > 0) == bool(tokenizer) for part in parts)
    expected = sorted(([sum(part["weights"].values()) / 2**20, part["kv"] / 2**20, part["states"] / 2**20,
                        part["activations"] / 2**20] for part in parts), key=lambda part: [round(mib, 1) for mib in part])
    found = sorted([float(mib or 0) for mib in rank] for rank in logged)
    assert len(found) == 2
    for rank, wanted in zip(found, expected):
        assert rank == pytest.approx(wanted, abs=0.06)


@pytest.mark.parametrize("name", ["deepseek_v4", "deepseek_v4_plain"])
def test_layers_with_compressed_entries_have_costs(name):
    model = ["--model-path", DATA / "families" / name]
    layout = json.loads(run("plan", *model, *HOST, "--json"))["layouts"][0]
    assert layout["best"]["decode"]["parts"]["attention"] > 0 and layout["memory_per_rank"]["states"] > 0
    for stages in "tp1", "tp1-pp2":
        out = run("simulate", *model, "--cpu", "--cpus", 2, "--memory", 4, "--layout", stages, "--input-len", 100,
                  "--output-len", 20, "--rate", 2, "--seconds", 3)
        assert "time between tokens" in out


def test_plans_of_stages_and_workers_are_accepted_by_serve():
    staged = run("plan", "--model-path", ROOT / "models/yardling", *HOST, "--pp-size", 2)
    assert "--pp-size 2" in commands(staged)[0]
    run(*commands(staged)[0].split()[1:], "--dry-run")
    out = run("plan", "--model-path", ROOT / "models/yardling", *HOST, "--nodes", 3, "--nics", "1x10", "--disaggregate")
    prefill, decode, route = commands(out)
    assert "--host 0.0.0.0 --port 30001 --disaggregation-mode prefill" in prefill
    assert "--host 0.0.0.0 --port 30002 --disaggregation-mode decode" in decode
    run(*prefill.split()[1:], "--dry-run")
    run(*decode.split()[1:], "--dry-run")
    assert "--prefill http://PREFILL1:30001 8998" in route and "--decode http://DECODE1:30002" in route
    figures = json.loads(run("plan", "--model-path", ROOT / "models/yardling", *HOST, "--nodes", 3, "--nics", "1x10",
                             "--disaggregate", "--decode-workers", 1, "--json"))
    assert {split["decode"]["workers"] for split in figures["splits"] if "decode" in split} == {1}


def test_plan_of_a_gpu_with_experts_on_cpus():
    flags = ["plan", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "1xh100", "--cpu-experts", "--cpus", 64]
    out = run(*flags, "--memory", 80, "--host-memory", 768, "--expert-loads", "zipf:0.9")
    placed, experts = map(int, re.search(r"(\d+) of (\d+) experts of each layer on the GPU; with zipf:0.9", out).groups())
    assert 0 < placed < experts == 256
    rows = re.findall(r"^(?:decode|prompt) of (\d+) +([\d.]+) .* ([\d.]+)x", out, re.M)
    assert [int(row[0]) for row in rows] == [1, 8, 32, 512, 4096]
    assert all(float(row[2]) >= 1 for row in rows[:3])
    assert f"serve: --device cuda,cpu --tp-size 2 --expert-ranks 1 --expert-slots {placed},{256 - placed} " in out
    assert re.search(r"^GPU: [\d.]+ of 68.0 GiB \(0.85 of 80\): .*cache of 16384 tokens", out, re.M), out
    assert re.search(r"^host: [\d.]+ of 652.8 GiB \(0.85 of 768\): ", out, re.M), out
    assert "--host-memory 64: the " in run(*flags, "--memory", 80, "--host-memory", 64, code=2)
    assert "--memory 8: weights without routed experts" in run(*flags, "--memory", 8, "--host-memory", 768, code=2)
    assert "--host-memory: --cpu-experts is missing" in run(
        "plan", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "1xh100", "--host-memory", 64, code=2)
    assert "--cpu-experts: plans one GPU" in run(
        "plan", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "8xh100", "--cpu-experts", code=2)


# The first row of the table: layout, engines, weights, cache, requests, prefill, decode, rate, TTFT, ITL.
FIRST = re.compile(r"^   1  (\S+) +(\d+) +([\d.]+) +(\d+) +(\d+) +(\d+) +([\d.]+) +(\d+) +(\d+) +([\d.]+)", re.M)
OF_NODE = re.compile(r"([\d.]+) ms, (\d+) tokens/s for each node")


def thousands(number, digits):
    """18432 as "18 400" with two digits rounded."""
    rounded = round(int(number), -digits)
    return f"{rounded // 1000} {rounded % 1000:03d}"


def test_worked_answers_are_what_the_program_prints():
    page = " ".join((ROOT / "docs/planning.md").read_text().split())

    def plan(model, *flags):
        return run("plan", "--model-path", DATA / f"plan/{model}.json", *flags)

    def first(*flags):
        return FIRST.search(plan(*flags)).groups()

    deepseek = ["deepseek_v3", "--gpus", "8xh200", "--input-len", 2000, "--output-len", 1000]
    layout, _, weights, _, running, _, _, rate, _, itl = first(*deepseek)
    assert f"With `{layout}`, each rank has {weights} GiB of weights" in page
    assert (f"the engine runs {running} requests concurrently: {rate} output tokens/s for each GPU at "
            f"{float(itl):.0f} ms between tokens") in page
    layout, _, _, _, running, _, _, rate, _, _ = first(*deepseek, "--slo-itl", 50)
    assert f"{running} requests give {rate} output tokens/s for each GPU (`{layout}`)" in page

    published = ["deepseek_v3", "--gpus", "8xh100", "--nics", "8x400", "--input-len", 2000, "--output-len", 100]
    layout, _, _, _, _, prefill, *_ = first(*published, "--nodes", 12)
    assert (f"`{layout}` are the best layout that the engine accepts. They prefill {thousands(prefill, 3)} prompt "
            "tokens/s") in page
    out = plan(*published, "--nodes", 9, "--imbalance", 1, "--batch", 18432, "--explain",
               "tp72-ep72-dp72-dense1-deepep-red32-tbo")
    assert f"decode, 256 requests a GPU, tokens/s for each node | {thousands(OF_NODE.findall(out)[1][1], 2)} |" in page
    out = plan(*published, "--nodes", 4, "--imbalance", 1, "--explain", "tp32-ep32-dp32-dense1-deepep-tbo-chunk524288")
    assert f"prefill, 16 384 tokens a GPU, tokens/s for each node | {thousands(OF_NODE.findall(out)[0][1], 2)} |" in page

    _, _, weights, cache, running, _, decode, rate, _, itl = first("qwen3_30b_a3b", "--gpus", "h200")
    assert (f"{weights} GiB of weights leave a cache of {thousands(cache, 3)} tokens. With {running} requests, a decode "
            f"step takes {float(decode):.0f} ms") in page
    assert f"The throughput is {rate} output tokens/s, with {float(itl):.0f} ms between tokens." in page
    _, _, weights, cache, _, _, decode, *_ = first("gpt_oss_20b", "--cpu", "--cpus", 8, "--memory", 32, "--input-len", 500,
                                                   "--output-len", 200, "--batch", 1)
    assert f"{weights} GiB of weights (MXFP4 experts)" in page and f"{thousands(cache, 3)} tokens" in page
    assert f"a decode step takes {float(decode):.0f} ms, more than half" in page


def test_explain_prints_the_decision_tree():
    out = run("plan", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "8xh200", "--explain",
              "tp8-ep8-dp8-dense1-deepep")
    assert "assumed: routing is random and even" in out and "assumed: combine returns an output for each expert" in out
    assert "1. How many devices are needed to hold the weights?" in out and "Which batch, and what limits it?" in out


@pytest.mark.parametrize("flags, wanted", [
    (["--gpus", "8xtpu"], "card tpu is unknown"),
    (["--gpus", "8xh100"], "would hold it"),
    (["--gpus", "8xh200", "--slo-itl", "0.001"], "the least ITL"),
    (["--gpus", "8xh200", "--nodes", "2"], "--nics is missing"),
    (["--gpus", "8xh200", "--nics", "8"], "--nics 8: want"),
    (["--gpus", "8xh200", "--input-len", "999999"], "the model's context length"),
    (["--gpus", "8xh200", "--rate", "1", "--batch", "1"], "exclude each other"),
    (["--gpus", "8xh200", "--token-correlation", "1"], "--token-correlation"),
    (["--gpus", "1xh200", "--cpu-experts", "--token-correlation", "0.5"], "not supported with --cpu-experts"),
    (["--gpus", "8xh200", "--explain", "tp8-qq2"], "part \"qq2\" is unknown"),
    (["--gpus", "8xh200", "--pp-size", "3"], "cannot be divided into engines of that many stages"),
    (["--gpus", "8xh200", "--pp-layer-partition", "30,31"], "--pp-size is missing"),
    (["--gpus", "8xh200", "--explain", "tp4-pp2", "--pp-size", "4"], "another number of stages"),
    (["--gpus", "8xh200", "--decode-workers", "1"], "--disaggregate is missing"),
    (["--gpus", "8xh200", "--explain", "tp4/tp4"], "--disaggregate is missing"),
    (["--gpus", "8xh200", "--disaggregate", "--batch", "8"], "exclude each other"),
    (["--cpu", "--cpus", "4", "--memory", "64", "--disaggregate"], "each worker has a host of its own"),
    (["--cpu", "--nodes", "2", "--nics", "1x100"], "--cpu plans a single host"),
    ([], "want either --gpus"),
])
def test_bad_input_says_what_would_be_needed(flags, wanted):
    assert wanted in run("plan", "--model-path", DATA / "plan/deepseek_v3.json", *flags, code=2)


def test_an_option_for_cpus_only_is_not_a_lack_of_memory():
    model = DATA / "families/mimo_v2_flash"
    refused = run("plan", "--model-path", model, "--gpus", "8xh200", "--input-len", 20, "--output-len", 10,
                  "--kv-cache-dtype", "int8", code=2)
    assert "no layout is accepted. First one, tp1" in refused and "supported on CPUs only" in refused
    assert "devices of this size" not in refused


def simulate(*flags, layout="tp8-ep8-dp8-dense1-deepep-sbo", code=0):
    return run("simulate", "--model-path", DATA / "plan/deepseek_v3.json", "--gpus", "8xh200", "--layout", layout, *flags,
               code=code)


POISSON = ["--input-len", 1000, "--output-len", 20, "--rate", 4, "--seconds", 2]


@pytest.mark.parametrize("fidelity", ["step", "operation"])
def test_simulate_prints_latencies_and_writes_a_trace(fidelity, tmp_path):
    file = tmp_path / "trace.json"
    flags = [*POISSON, "--fidelity", fidelity, "--chrome-trace", file]
    out = simulate(*flags)
    assert "time between tokens" in out
    text = file.read_text()
    events = json.loads(text)["traceEvents"]
    ranks = {event["tid"] for event in events if event["pid"] == 1}
    assert ranks == (set(range(8)) if fidelity == "operation" else set())
    if fidelity == "operation":
        names = [event["name"] for event in events if event["pid"] == 1 and event["tid"] == 3]
        assert names.index("combine") < names.index("down") < len(names)  # single-batch overlap
    assert simulate(*flags) == out and file.read_text() == text  # the same seed gives the same events


def test_simulate_counts_cached_prefixes_of_a_trace(tmp_path):
    trace = tmp_path / "arrivals.jsonl"
    lines = [{"timestamp": 10_000 * i, "input_length": 1100, "output_length": 4, "hash_ids": [7, 8, 20 + i]}
             for i in range(3)]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "2048 prompt tokens were cached" in simulate("--trace", trace, "--fidelity", "operation",
                                                        layout="tp8-ep8-deepep")


def test_simulate_draws_rebalances_and_failures(tmp_path):
    picture, file = tmp_path / "timeline.svg", tmp_path / "trace.json"
    out = simulate("--input-len", 500, "--output-len", 100, "--rate", 4, "--seconds", 60, "--expert-loads", "zipf:0.8",
                   "--ep-num-redundant-experts", 8, "--enable-eplb", "--eplb-rebalance-num-iterations", 60,
                   "--fail", "3@50", "--restart-seconds", 2, "--svg", picture, "--chrome-trace", file,
                   layout="tp8-ep8-dp8-dense1-deepep")
    assert re.search(r"the most loaded rank has [\d.]+ times the mean rows", out)
    before, after = map(float, re.search(r"balancedness ([\d.]+) -> ([\d.]+), \d+ experts received", out).groups())
    assert after > before
    assert "1 ranks ended" in out and " 0 requests lost" in out
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {"prefill", "decode", "pause", "rebalance", "balancedness"} <= names
    text = picture.read_text()
    assert text.startswith("<svg") and "balancedness of experts" in text


def test_simulate_has_pipeline_stages(tmp_path):
    file = tmp_path / "trace.json"
    flags = [*POISSON, "--rate", 20, "--fidelity", "operation", "--pp-size", 2, "--pp-async-batch-depth", 1, "--chrome-trace",
             file]
    out = simulate(*flags, layout="tp4-ep4-dp4-dense1-deepep")
    assert out.splitlines()[1].startswith("tp4-pp2-ep4-dp4-dense1-deepep, 1 engine: ")
    assert re.search(r"pipeline stages are busy \d+, \d+ % of the time; at most 3 passes are in flight", out)
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["pid"] == 0} == {0, 1}  # stages
    assert {event["tid"] for event in events if event["pid"] == 1} == set(range(8))
    layout = "tp4-pp2-ep4-dp4-dense1-deepep"
    for extra, wanted in [(["--fail", "1@1"], f"--fail: ranks are not restarted with the pipeline stages of layout {layout}"),
                          (["--expert-loads", "zipf:1"], "--expert-loads zipf:1: loads of experts are not simulated"),
                          (["--pp-size", 4], f"--layout {layout}: --pp-size 4 is another number of stages"),
                          (["--pp-layer-partition", "1,2"], "--pp-layer-partition")]:
        assert wanted in simulate(*POISSON, *extra, layout=layout, code=2)


@pytest.mark.parametrize("flags, wanted", [
    (["--enable-eplb"], "--enable-eplb has no effect without --expert-loads"),
    (["--expert-loads", "zipf:1", "--eplb-algorithm", "yard"], "has no effect without --enable-eplb"),
    (["--expert-loads", "zipf:1", "--imbalance", 2], "exclude each other"),
    (["--expert-loads", "zipf:1", "--token-correlation", 0.3], "exclude each other"),
    (["--expert-loads", "zipf:1", "--expert-drift", "1e-9"], "--expert-drift 1e-09: want 0, or at least"),
    (["--fail-rate", "nan"], "--fail-rate"),
    (["--fail-rate", "1e15"], "--fail-rate"),
    (["--expert-loads", "zipf"], "--expert-loads zipf: want uniform, zipf:EXPONENT, or a file"),
    (["--fail", "8@1"], "the cluster has ranks 0 to 7"),
    (["--fail", "1"], "want RANK@SECONDS"),
    (["--restart-seconds", 1], "has no effect without --fail"),
    (["--fail", "1@1", "--elastic-ep-backend", "mooncake"], "ranks on GPUs serve only together"),
    (["--pp-async-batch-depth", 2], "--pp-async-batch-depth 2 has no effect without --pp-size"),
])
def test_simulate_refuses_flags_that_do_not_fit(flags, wanted):
    assert wanted in simulate(*POISSON, *flags, code=2)


def test_simulate_names_the_wrong_line_of_a_trace(tmp_path):
    trace = tmp_path / "azure.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,100,5\n2023-11-16 18:15:47.1,5\n")
    refused = simulate("--trace", trace, code=2)
    assert f"--trace {trace}, line 3" in refused and len(refused.splitlines()) <= 2


def test_simulate_refuses_unknown_layouts_and_fidelities():
    assert "single-batch overlap" in simulate(*POISSON, layout="tp8-ep8-sbo", code=2)
    assert "--fidelity" in simulate(*POISSON, "--fidelity", "kernel", code=2)
