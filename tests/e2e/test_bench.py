"""`switchyard bench`: runs a small case of each CPU benchmark. Checks that the printed lines and the JSON have the
format described in docs/performance.md. Measured values are not checked."""
import json
import re
import subprocess

import pytest

import server

BENCHES = ["kernels", "moe-layer", "exchange", "roofline"]
LINE = re.compile(r"(?P<name>\S+) +(?P<shape>\S.*?) +(?P<us>[\d.]+) us +(?:-|[\d.]+) GFLOP/s +(?:-|[\d.]+) GB/s +"
                  r"(?:- of roofline|[\d]+ % of (?:memory|compute|link) roofline)(?: \| (?P<more>.*))?")

# For each benchmark: flags that select a few cases, and the names of these cases.
CASES = {
    "kernels": (["--filter", "bfloat16 1 x 2048 x 2048", "--cpu-threads", "1"], {"linear"}),
    "experts": (["--filter", "experts int4-group 8 tokens", "--cpu-threads", "2"], {"experts"}),
    "attention": (["--filter", "attention int8 8 x 1 rows on 2048 keys, qwen3", "--cpu-threads", "2"], {"attention"}),
    "moe-layer": (["--model", "olmoe-1b-7b", "--experts-per-rank", "4", "--tokens", "3", "--cpu-threads-per-rank", "1"],
                  {"moe-layer"}),
    "collectives": (["--ranks", "2", "--filter", "ranks 2 8192 float32"], {"all-reduce"}),
    "exchange": (["--ranks", "2", "--tokens", "8", "--filter", "deepep normal, ranks 2 threads bf16"],
                 {"place", "dispatch", "combine", "pass"}),
    "processes": (["--ranks", "2", "--tokens", "8", "--filter", "combine deepep normal by rank, ranks 2 processes"],
                  {"combine"}),
    "roofline": (["--cpu-threads", "1", "--filter", "float32 avx2"], {"multiply"}),
}
WHICH = {"experts": "kernels", "attention": "kernels", "collectives": "exchange", "processes": "exchange"}


# A cost table (`switchyard bench calibrate`) with round numbers.
TABLE = {"name": "mine", "source": "measured elsewhere", "measured": True, "cuda": False, "bandwidth": 1e10,
         "products": {"bfloat16": [[1, 1e10], [64, 1e11]]}, "op_seconds": 1e-6, "decode_bytes": [[1, 1e10]],
         "prompt_flops": [[256, 1e11]], "decode_flops": 1e11, "host": {"seconds": 1e-6, "rate": 1e9}}


def bench(*arguments):
    return subprocess.run([server.PROGRAM, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("case", CASES)
def test_lines_and_json(case, tmp_path):
    flags, names = CASES[case]
    which = WHICH.get(case, case)
    file = tmp_path / "figures.json"
    done = bench(which, "--device", "cpu", *flags, "--json", file)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress output appears only on terminals
    lines = [line for line in done.stdout.splitlines() if not line.startswith("# ")]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), lines
    assert {m["name"] for m in matches} == names
    wanted = flags[flags.index("--filter") + 1] if "--filter" in flags else ""
    figures = json.loads(file.read_text())
    assert figures["bench"] == which and figures["device"] == "cpu"
    assert [(m["name"], m["shape"]) for m in matches] == [(c["name"], c["shape"]) for c in figures["cases"]]
    for found, case_figures in zip(matches, figures["cases"], strict=True):
        assert wanted in f"{found['name']} {found['shape']}"
        assert float(found["us"]) == pytest.approx(case_figures["seconds"] * 1e6, abs=0.06)
    if which == "roofline":
        assert {m["what"] for m in figures["machine"]} >= {"cpu", "instructions"}
    elif which != "exchange":  # exchange compares each case with a memory copy instead
        assert {m["what"] for m in figures["machine"]} >= {"reads from memory", "float32"}
        assert all(c["roofline_fraction"] > 0 for c in figures["cases"])


def test_moe_layer_has_the_time_of_every_stage():
    flags, _ = CASES["moe-layer"]
    done = bench("moe-layer", "--device", "cpu", *flags)
    more = LINE.fullmatch(done.stdout.splitlines()[-1])["more"]
    for stage in ("route us", "dispatch us", "experts us", "combine us", "sum us"):
        assert re.search(rf"\b{stage} \d", more), more


# Expert flags as in `serve`: each rank has a replica of every expert, and "balanced" divides batches over the replicas.
@pytest.mark.parametrize("dispatch, even", [("static", False), ("balanced", True)])
def test_one_batch_does_what_the_flags_say_of_experts(dispatch, even):
    done = bench("one-batch", "--device", "cpu", "--model", server.FIXTURES / "qwen3_moe", "--tp", 2, "--ep", 2, "--input-len", 24,
                 "--output-len", 4, "--repeat", 1, "--ep-num-redundant-experts", 16, "--ep-dispatch-algorithm", dispatch,
                 "--enable-expert-distribution-metrics")
    assert done.returncode == 0, done.stderr
    passes = re.findall(r"current_pass_balancedness=([\d.]+)", done.stdout + done.stderr)
    # Two runs (warm-up and measurement) of one prompt and three decode steps, and a pass that counts the prompt's experts.
    assert len(passes) == 9
    assert (set(passes) == {"1.000"}) == even


# Prompts in one pass and in two, of one sequence and of several.
def test_one_batch_runs_recurrent_states():
    done = bench("one-batch", "--device", "cpu", "--model", server.FIXTURES.parent / "families/qwen3_next", "--batch-size", 1, 3,
                 "--input-len", 8, 40, "--output-len", 4, "--repeat", 1, "--chunked-prefill-size", 32)
    assert done.returncode == 0, done.stderr
    assert "no predicted times: there are no costs of layers with recurrent states" in done.stdout
    cases = re.findall(r"^ +(\d+ +\d+) +[\d.]+ +- ", done.stdout, re.MULTILINE)
    assert [case.split() for case in cases] == [["1", "8"], ["1", "40"], ["3", "8"], ["3", "40"]]


def bench_drafts(*arguments):
    return bench("one-batch", "--device", "cpu", "--model", server.FIXTURES / "deepseek_v3", "--batch-size", 1, 3,
                 "--input-len", 8, "--output-len", 6, "--repeat", 1, *arguments)


# With simulated acceptance 1, all drafts are accepted. With dummy weights, all rows may have the same experts.
@pytest.mark.parametrize("same", [False, True])
def test_one_batch_times_steps_with_drafts(same, tmp_path):
    file = tmp_path / "figures.json"
    done = bench_drafts("--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2, "--speculative-simulate-acceptance", 1,
                        "--json", file, *(["--load-format", "dummy", "--same-experts"] if same else []))
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^ *(\d+) +8 +(\d+) +[\d.]+ .*%", done.stdout, re.MULTILINE)
    figures = json.loads(file.read_text())
    cases = [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert [(int(batch), int(drafts)) for batch, drafts in lines] == cases
    assert [(case["batch_size"], case["drafts"]) for case in figures] == cases
    for plain, drafts in ((figures[0], figures[1]), (figures[2], figures[3])):
        assert (plain["tokens_per_step"], drafts["tokens_per_step"]) == (1, 3)
        assert plain["speed_up"] == 1 and plain["draft_seconds"] == plain["verify_seconds"] == 0
        assert drafts["speed_up"] == pytest.approx(3 * plain["step_seconds"] / drafts["step_seconds"])
        assert 0 < drafts["draft_seconds"] + drafts["verify_seconds"] < drafts["step_seconds"] * 1.5
        ratio = drafts["step_seconds"] / plain["step_seconds"]
        if ratio < 3:  # 1 + p + p² = ratio
            p = drafts["break_even_acceptance"]
            assert 1 + p + p * p == pytest.approx(max(1, ratio), abs=1e-6)
        else:
            assert drafts["break_even_acceptance"] is None
        assert drafts["bytes_per_step"] > plain["bytes_per_step"] > 0
        assert drafts["fraction_of_bound"] == pytest.approx(drafts["bytes_per_step"] / drafts["bandwidth"] / drafts["step_seconds"])
        assert drafts["bound_of_speed_up"] == pytest.approx(3 * plain["bytes_per_step"] / drafts["bytes_per_step"])
        if same:
            assert plain["experts_per_layer"] == drafts["experts_per_layer"] == 4 and drafts["draft_experts"] == 8
        else:
            assert 4 <= plain["experts_per_layer"] <= drafts["experts_per_layer"] <= 16 and 8 <= drafts["draft_experts"] <= 32
    assert figures[0]["experts_per_layer"] == 4  # one row


@pytest.mark.parametrize("flags, words", [
    (["--speculative-algorithm", "NGRAM"], "prompts are random"),
    (["--speculative-algorithm", "NEXTN", "--same-experts"], "--same-experts: needs --load-format dummy"),
    (["--load-format", "dummy", "--same-experts"], "--same-experts: needs --speculative-algorithm"),
    (["--speculative-algorithm", "NEXTN", "--profile"], "--profile and --speculative-algorithm exclude each other"),
    (["--speculative-algorithm", "NEXTN", "--output-len", 100], "context length of 256"),
])
def test_one_batch_refuses_with_drafts(flags, words):
    done = bench_drafts(*flags)
    assert done.returncode != 0 and words in done.stderr, done.stderr


def one_batch(*arguments):
    return bench("one-batch", "--device", "cpu", "--model", server.FIXTURES / "qwen3_moe", "--output-len", 4,
                 "--repeat", 1, *arguments)


def test_one_batch_compares_its_steps_with_the_predicted_ones(tmp_path):
    file = tmp_path / "figures.json"
    done = one_batch("--batch-size", 1, 3, "--input-len", 8, 40, "--chunked-prefill-size", 32, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "times predicted by `switchyard plan` from costs of cpu: roofline" in done.stdout
    number = r" +([\d.]+)"
    lines = re.findall(rf"^ *(\d+) +(\d+){number}{number} +([+-][\d.]+)%{number}{number} +([+-][\d.]+)%$", done.stdout,
                       re.MULTILINE)
    figures = json.loads(file.read_text())
    assert [(int(line[0]), int(line[1])) for line in lines] == [(1, 8), (1, 40), (3, 8), (3, 40)]
    errors = []
    for line, case in zip(lines, figures, strict=True):
        for kind, column in (("prefill", 2), ("decode_step", 5)):
            measured, predicted = case[f"{kind}_seconds"], case[f"predicted_{kind}_seconds"]
            assert predicted > 0
            assert float(line[column]) == pytest.approx(1e3 * measured, abs=0.006)
            assert float(line[column + 1]) == pytest.approx(1e3 * predicted, abs=0.006)
            errors.append(100 * abs(predicted / measured - 1))
            assert abs(float(line[column + 2])) == pytest.approx(errors[-1], abs=0.06)
    # More prompts, and longer ones, are predicted to take longer.
    one_short, one_long, three_short, three_long = (case["predicted_prefill_seconds"] for case in figures)
    assert one_short < min(one_long, three_short) and max(one_long, three_short) < three_long
    errors.sort()
    summary = re.search(r"errors of 8 predictions: median ([\d.]+) %, worst ([\d.]+) % \((?:prefill|decode) of batch "
                        r"\d and \d+ prompt tokens\)", done.stdout)
    assert float(summary[1]) == pytest.approx((errors[3] + errors[4]) / 2, abs=0.06)
    assert float(summary[2]) == pytest.approx(errors[-1], abs=0.06)


def test_one_batch_takes_a_cost_table(tmp_path):
    table = tmp_path / "table.json"
    table.write_text(json.dumps(TABLE))
    done = one_batch("--input-len", 8, "--cost-table", table)
    assert done.returncode == 0, done.stderr
    assert "from costs of mine: measured elsewhere" in done.stdout
    table.write_text(json.dumps(TABLE | {"cuda": True}))
    done = one_batch("--input-len", 8, "--cost-table", table)
    assert done.returncode == 2
    assert f"--cost-table {table}: measured for a GPU, but this run is on CPUs" in done.stderr
    done = one_batch("--input-len", 8, "--cost-table", tmp_path / "none.json")
    assert done.returncode == 2 and "none.json" in done.stderr


SPLIT = re.compile(r"^ *(\d+) +(\d+) +([\d.]+)%" + r" +([\d.]+)" * 4 + r" +(\d+)% +([\d.]+) +(\d+)% +([\d.]+)$", re.MULTILINE)


# With exponent 4, nearly all rows go to the first experts, which the rank with attention holds.
@pytest.mark.parametrize("skew, words", [
    ([], "those that the routers choose"),
    (["--load-format", "dummy", "--expert-skew", 0], "uniform"),
    (["--load-format", "dummy", "--expert-skew", 4], "Zipf-like, with exponent 4"),
])
def test_one_batch_compares_ranks_of_experts_with_their_bound(skew, words, tmp_path):
    file = tmp_path / "figures.json"
    done = one_batch("--tp", 2, "--expert-ranks", 1, "--expert-slots", "8,8", "--batch-size", 1, 8, "--input-len", 8, 24,
                     "--output-len", 6, "--json", file, *skew)
    assert done.returncode == 0, done.stderr
    assert f"Experts are counted in 5 steps; they are {words}" in done.stdout
    assert "no predicted times: there are no costs of ranks with experts only" in done.stdout
    figures = json.loads(file.read_text())
    lines = [list(map(float, line)) for line in SPLIT.findall(done.stdout)]
    assert [line[:2] for line in lines] == [[1, 8], [1, 24], [8, 8], [8, 24]]
    for line, case in zip(lines, figures, strict=True):
        _, _, rows, here, there, step, bound, of_bound, in_order, _, by_layers = line
        assert rows == pytest.approx(100 * case["attending_rows"], abs=0.06)
        assert here == pytest.approx(case["attending_bytes"] / 1e9, abs=0.0006)
        assert there == pytest.approx(case["other_bytes"] / 1e9, abs=0.0006)
        slower = max(case["attending_bytes"] / case["attending_bandwidth"], case["other_bytes"] / case["other_bandwidth"])
        assert case["decode_bound_seconds"] == pytest.approx(slower)
        assert case["decode_roofline_fraction"] == pytest.approx(slower / (case["batch_size"] / case["decode_tokens_per_second"]))
        assert of_bound == pytest.approx(100 * case["decode_roofline_fraction"], abs=0.51)
        assert case["in_order_bound_seconds"] >= slower * (1 - 1e-9) and case["by_layers_bound_seconds"] > 0
        assert 1e3 * slower == pytest.approx(bound, abs=0.0006) and step > 0 and in_order > 0 and by_layers > 0
        assert case["cpu_experts_seconds"] > 0 and case["cpu_rows_seconds"] >= 0 and case["cpu_outputs_seconds"] >= 0
    assert "CPUs of rank 1, ms of a decode step in all layers" in done.stdout
    if skew and skew[-1] == 0:
        assert all(0.25 < case["attending_rows"] < 0.75 for case in figures)
    elif skew:
        assert all(case["attending_rows"] > 0.75 for case in figures)


@pytest.mark.parametrize("flags, words", [
    (["--expert-skew", 1], "--expert-skew: needs --load-format dummy"),
    (["--expert-skew", 5], "--expert-skew"),
    (["--tp", 3, "--expert-ranks", 1, "--dp-size", 2, "--enable-dp-attention"], "--dp-size 2: bench one-batch runs a single"),
    (["--tp", 2, "--expert-ranks", 1, "--cost-table", "t.json"], "there are no costs of ranks with experts only"),
])
def test_one_batch_refuses_with_ranks_of_experts(flags, words):
    done = one_batch("--input-len", 8, *flags)
    assert done.returncode == 2 and words in done.stderr, done.stderr


@pytest.mark.parametrize("which", ["one-batch", *BENCHES])
def test_help_of_each(which):
    done = bench(which, "--help")
    assert done.returncode == 0
    for flag in ("--device", "--json"):
        assert flag in done.stdout
    assert f"switchyard bench {which}" in done.stdout


def test_help_names_all_of_them():
    for arguments in ([], ["--help"]):
        done = bench(*arguments)
        assert done.returncode == 0
        for which in ("one-batch", "serve", *BENCHES):
            assert f"switchyard bench {which}" in done.stdout


@pytest.mark.parametrize("arguments, message", [
    (["speed"], "there is no bench speed; the nearest is bench serve; want one-batch, serve, kernels"),
    (["kernels", "--device", "cpu", "--filter", "no such case"], "--filter no such case: no case of bench kernels has this text"),
    (["kernels", "--tokens", "1"], "see switchyard bench kernels --help"),
    (["exchange", "--device", "cpu", "--ranks", "1"], "--ranks 1: want at least 2 ranks"),
    (["moe-layer", "--model", "gpt-5"], "see switchyard bench moe-layer --help"),
    (["exchange", "--tokens", "0"], "see switchyard bench exchange --help"),
], ids=["name", "filter", "flag", "ranks", "model", "tokens"])
def test_mistakes_are_named(arguments, message):
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_json_that_cannot_be_written_is_known_before_anything_runs():
    done = bench("exchange", "--device", "cpu", "--ranks", "2", "--filter", "barrier", "--json", "/nowhere/figures.json")
    assert done.returncode == 2
    assert "--json /nowhere/figures.json: cannot be written" in done.stderr
    assert done.stdout == ""


@pytest.fixture(scope="module")
def a_server():
    with server.Server(server.FIXTURES / "qwen3_moe", "--tp", "2", "--ep", "2") as running:
        yield running


def bench_serve(running, *flags):
    port = running.url.rsplit(":", 1)[1]
    return bench("serve", "--port", port, "--random-output-len", 8, *flags)


@pytest.mark.parametrize("backend", ["sglang", "openai"])
def test_a_load_on_a_server(a_server, backend, tmp_path):
    file = tmp_path / "figures.json"
    done = bench_serve(a_server, "--backend", backend, "--num-prompts", 12, "--random-input-len", 24, "--random-range-ratio", 1,
                       "--request-rate", 200, "--max-concurrency", 3, "--json", file)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    figures = json.loads(file.read_text())
    assert figures["completed"] == 12 and figures["failed"] == 0
    assert figures["total_input_tokens"] == 12 * 24 and figures["total_output_tokens"] == 12 * 8
    assert 0 < figures["concurrency"] <= 3
    assert 0 < figures["median_ttft_ms"] <= figures["max_e2e_latency_ms"]
    assert re.search(r"^Successful requests: +12$", done.stdout, re.M)


def test_a_load_of_chats(a_server, tmp_path):
    lines = tmp_path / "chats.jsonl"
    lines.write_text('{"prompt": "hello there", "output_len": 4}\n{"prompt": "and you?"}\n')
    file = tmp_path / "figures.json"
    done = bench_serve(a_server, "--backend", "openai-chat", "--dataset-name", "jsonl", "--dataset-path", lines,
                       "--num-prompts", 4, "--json", file)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["total_output_tokens"] == 2 * (4 + 8)


def test_requests_that_fail_are_counted_and_reported(a_server):
    done = bench_serve(a_server, "--num-prompts", 3, "--warmup-requests", 0, "--random-input-len", 100000,
                       "--random-range-ratio", 1)
    assert done.returncode == 1
    assert re.search(r"^Failed requests: +3$", done.stdout, re.M)
    assert "3 requests failed, the first with: 400" in done.stderr


@pytest.mark.parametrize("arguments, message", [
    (["--port", "1"], "http://127.0.0.1:1/get_model_info: Connection refused (is a server running there?"),
    (["--backend", "openai-chat"], "cannot send random ids"),
    (["--dataset-name", "jsonl"], "needs --dataset-path FILE"),
    (["--request-rate", "0"], "see switchyard bench serve --help"),
], ids=["no server", "chat", "dataset", "rate"])
def test_mistakes_of_serve_are_named(arguments, message):
    done = bench("serve", *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
