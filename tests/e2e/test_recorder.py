"""The expert recorder of a running server: endpoints, files, log lines, /metrics."""
import array
import base64
import json
import re
import struct
import time

import pytest

from server import FIXTURES, Server, fails_to_start

MODEL = FIXTURES / "qwen3_moe"
LAYERS, EXPERTS, TOP_K = 3, 16, 4  # configuration of MODEL
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
COMMON = ["--dtype", "float32", "--max-total-tokens", 4096, "--check-batches"]
TP2_EP2 = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"]
LAYOUTS = {
    "tp2-ep2": TP2_EP2,
    "tp4-dp2-ep4": ["--tp", 4, "--dp-size", 2, "--ep", 4, "--enable-dp-attention", "--moe-a2a-backend", "deepep"],
}
LINE = re.compile(r"\[Expert Balancedness\] forward_pass_id=(\d+) current_pass_balancedness=([\d.]+) "
                  r"last_10_average_balancedness=([\d.]+) last_100_average_balancedness=([\d.]+) "
                  r"last_1000_average_balancedness=([\d.]+) gpu_physical_count_sum=(\d+)")


def recorder(mode, folder, *more):
    return ["--expert-distribution-recorder-mode", mode, "--expert-distribution-recorder-dir", folder, *more]


def generate(server, **body):
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


def act(server, action, status=200):
    got, answer = server.request(f"/{action}_expert_distribution_record", method="POST")
    assert got == status, answer
    return answer


def tensors(path):
    """Returns {name: (shape, values)} of a safetensors file, and its metadata."""
    raw = open(path, "rb").read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__")
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        code, width = {"I32": ("i", 4), "I64": ("q", 8)}[entry["dtype"]]
        found[name] = entry["shape"], list(struct.unpack(f"<{(end - begin) // width}{code}", raw[begin:end]))
    return found, metadata


@pytest.fixture(scope="module", params=LAYOUTS)
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    with Server(MODEL, *LAYOUTS[request.param], *COMMON,
                *recorder("per_token", folder, "--enable-expert-distribution-metrics")) as s:
        s.folder = folder
        yield s


def rows_of(answers):
    """Number of tokens processed by the model: excludes the last output token and cached prompt tokens."""
    return sum(a["meta_info"]["prompt_tokens"] + 11 - a["meta_info"]["cached_tokens"] for a in answers)


def test_a_dump_has_every_token_of_every_layer(server):
    generate(server, text="not recorded", sampling_params=GREEDY)
    assert "Start" in act(server, "start")
    prompts = [list(range(3 + i, 20 + 3 * i)) for i in range(6)]
    answers = generate(server, input_ids=prompts, sampling_params=GREEDY)
    assert "Stop" in act(server, "stop")
    generate(server, text="nor this", sampling_params=GREEDY)

    answer = act(server, "dump")
    tokens = rows_of(answers)
    found, metadata = tensors(answer["file"])
    assert metadata["mode"] == "per_token" and answer["file"].startswith(str(server.folder))
    shape, counts = found["logical_count"]
    assert shape == answer["shape"] and shape[1:] == [LAYERS, EXPERTS]
    assert sum(counts) == tokens * TOP_K * LAYERS
    assert sum(map(sum, answer["logical_count"])) == sum(counts)
    assert all(sum(layer) == tokens * TOP_K for layer in answer["logical_count"])
    assert found["topk_ids"][0] == [tokens, LAYERS, TOP_K]
    by_request = {}
    for request, position in zip(found["request_ids"][1], found["positions"][1]):
        by_request.setdefault(str(request), []).append(position)
    assert sorted(by_request) == sorted(a["meta_info"]["id"] for a in answers)
    for a in answers:
        meta = a["meta_info"]
        assert sorted(by_request[meta["id"]]) == list(range(meta["cached_tokens"], meta["prompt_tokens"] + 11))
    # The counts of each step must equal the counts of its tokens.
    again = [0] * len(counts)
    for token, step in enumerate(found["token_step"][1]):
        for slot in range(LAYERS * TOP_K):
            expert = found["topk_ids"][1][token * LAYERS * TOP_K + slot]
            again[(step * LAYERS + slot // TOP_K) * EXPERTS + expert] += 1
    assert again == counts

    assert act(server, "dump")["shape"][0] == 0  # the previous dump emptied the recorder


def test_the_recorded_choice_is_the_one_that_answers_name(server):
    act(server, "start")
    prompt = list(range(40, 70))
    server.request("/flush_cache", method="POST")
    answer = generate(server, input_ids=prompt, sampling_params=GREEDY, return_routed_experts=True)
    ids = list(array.array("i", base64.b64decode(answer["meta_info"]["routed_experts"])))
    found, _ = tensors(act(server, "dump")["file"])
    assert found["positions"][1] == list(range(len(prompt) + 11))
    assert found["topk_ids"][1] == ids
    act(server, "stop")


def test_balancedness_is_logged_for_every_pass(server):
    before = len(LINE.findall(server.text()))
    answers = [generate(server, text="Hello", sampling_params=GREEDY)]
    lines = LINE.findall(server.text())[before:]
    assert len(lines) == 12  # one prompt and eleven decode steps
    passes = [int(line[0]) for line in lines]
    assert passes == list(range(passes[0], passes[0] + 12))
    for line in lines:
        assert all(0 < float(mean) <= 1 for mean in line[1:5])
    assert sum(int(line[5]) for line in lines) == rows_of(answers) * TOP_K * LAYERS


def test_load_is_shown(server):
    status, before = server.request("/expert_distribution")
    assert status == 200
    tokens = rows_of([generate(server, text="How are you?", sampling_params=GREEDY)])
    status, load = server.request("/expert_distribution")
    assert status == 200
    ranks = len(load["rank_count"])
    assert ranks == (4 if "--dp-size" in server.command else 2)
    assert sum(load["rank_count"]) - sum(before["rank_count"]) == tokens * TOP_K * LAYERS
    assert load["forward_passes"] > before["forward_passes"]
    assert 0 < load["balancedness"]["last_10_average"] <= 1
    assert len(load["layers"]) == LAYERS
    for layer in load["layers"]:
        each = EXPERTS // ranks
        assert layer["rank_count"] == [sum(layer["logical_count"][r * each:(r + 1) * each]) for r in range(ranks)]
        assert sum(layer["heat"]) == pytest.approx(EXPERTS)
        assert layer["balancedness"] == pytest.approx(sum(layer["rank_count"]) / ranks / max(layer["rank_count"]))

    stages = load["stage_seconds"]
    on_gpus = "cuda" in server.command  # they clock some passes only
    assert len(stages) == ranks or (on_gpus and stages == [])
    assert on_gpus or load["timed_passes"] == load["forward_passes"]
    assert all(seconds > 0 for rank in stages for seconds in rank.values())
    for rank, old in zip(stages, before["stage_seconds"]):
        assert all(on_gpus or rank[stage] > old[stage] for stage in ("dispatch", "experts", "combine"))
    status, page = server.request("/metrics")
    assert status == 200
    values = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", page, re.M))
    assert [float(values[f'switchyard_eplb_gpu_physical_count_total{{rank="{r}"}}']) for r in range(ranks)] == \
        load["rank_count"]
    for rank, seconds in enumerate(stages):
        for stage, value in seconds.items():
            assert float(values[f'switchyard_moe_seconds_total{{rank="{rank}",stage="{stage}"}}']) == pytest.approx(value)
    if stages:
        assert float(values["switchyard_moe_timed_passes_total"]) == load["timed_passes"]
    assert float(values['switchyard_eplb_balancedness{passes="10"}']) == \
        pytest.approx(load["balancedness"]["last_10_average"])
    assert sum(float(v) for k, v in values.items() if k.startswith("switchyard_decode_tokens_total{")) == \
        server.state()["decode_tokens"]


@pytest.mark.parametrize("mode", ["stat", "stat_approx", "per_pass"])
def test_other_modes_count_the_same(mode, tmp_path):
    with Server(MODEL, *TP2_EP2, *COMMON, *recorder(mode, tmp_path, "--ep-num-redundant-experts", 2)) as server:
        act(server, "start")
        answers = [generate(server, text="Hello", sampling_params=GREEDY)]
        answer = act(server, "dump")
        found, metadata = tensors(answer["file"])
        assert metadata["mode"] == mode
        assert sum(found["logical_count"][1]) == rows_of(answers) * TOP_K * LAYERS
        assert found["logical_count"][0] == [12, LAYERS, EXPERTS]
        assert found["physical_to_logical"][0] == [LAYERS, EXPERTS + 2]
        if mode == "per_pass":
            assert sum(found["rank_logical_count"][1]) == sum(found["logical_count"][1])
        assert LINE.search(server.text()) is None
        assert server.stop() == 0


@pytest.mark.parametrize("mode", ["per_pass", "per_token"])
def test_stages_record_what_one_stage_records(tmp_path, mode):
    found, loads, lines = [], [], []
    layout = [*TP2_EP2, *(["--dp-size", 2, "--enable-dp-attention"] if mode == "per_token" else [])]
    names = ["logical_count", "forward_pass_id", "physical_to_logical"]
    if mode == "per_token":
        names += ["token_step", "positions", "request_ids", "topk_ids"]
    for name, stages in (("one", []), ("three", ["--pp-size", 3])):
        folder = tmp_path / name
        folder.mkdir()
        with Server(MODEL, *layout, *stages, *COMMON,
                    *recorder(mode, folder, "--enable-expert-distribution-metrics")) as server:
            act(server, "start")
            generate(server, text="Hello", sampling_params=GREEDY)
            answer = act(server, "dump")
            tensors_of_dump, metadata = tensors(answer["file"])
            found.append({name: tensors_of_dump[name] for name in names})
            if mode == "per_pass":
                assert sum(tensors_of_dump["rank_logical_count"][1]) == sum(tensors_of_dump["logical_count"][1])
            assert metadata["num_layers"] == str(LAYERS)
            _, load = server.request("/expert_distribution")
            loads.append(load)
            lines.append(LINE.findall(server.text()))
            assert act(server, "dump")["shape"][0] == 0
    assert len(lines[0]) >= 12 and lines[0] == lines[1]  # and passes before the record
    assert loads[0]["balancedness"] == loads[1]["balancedness"]
    assert found[0]["logical_count"][0] == [12, LAYERS, EXPERTS]
    assert found[0] == found[1]
    one, three = ([layer["logical_count"] for layer in load["layers"]] for load in loads)
    assert one == three and sum(map(sum, one)) >= sum(found[0]["logical_count"][1])


def test_a_dump_is_what_a_placement_is_planned_from(tmp_path):
    with Server(MODEL, *TP2_EP2, *COMMON, *recorder("stat", tmp_path)) as server:
        act(server, "start")
        before = generate(server, text="Hello", sampling_params=GREEDY)
        recorded = act(server, "dump")["file"]
    with Server(MODEL, *TP2_EP2, *COMMON, *recorder("stat", tmp_path), "--ep-num-redundant-experts", 2,
                "--init-expert-location", recorded) as server:
        act(server, "start")
        after = generate(server, text="Hello", sampling_params=GREEDY)
        assert after["output_ids"] == before["output_ids"]
        found, _ = tensors(act(server, "dump")["file"])
    shape, places = found["physical_to_logical"]
    for layer in range(LAYERS):
        assert set(places[layer * shape[1]:(layer + 1) * shape[1]]) == set(range(EXPERTS))
    assert found["logical_count"] == tensors(recorded)[0]["logical_count"]  # logical counts do not depend on the placement


def test_without_the_flags_nothing_is_counted():
    with Server(MODEL, "--tp", 2, *COMMON) as server:
        for action in ("start", "stop", "dump"):
            answer = act(server, action, status=400)
            assert "--expert-distribution-recorder-mode" in answer["error"]["message"]
        status, answer = server.request("/expert_distribution")
        assert status == 400 and "--enable-expert-distribution-metrics" in answer["error"]["message"]
        generate(server, text="Hello", sampling_params=GREEDY)
        assert LINE.search(server.text()) is None
        page = server.request("/metrics")[1]
        assert "switchyard_steps_total" in page and "switchyard_eplb" not in page


def test_a_folder_that_is_not_there_loses_nothing(tmp_path):
    folder = tmp_path / "later"
    with Server(MODEL, *TP2_EP2, *COMMON, *recorder("stat", folder)) as server:
        act(server, "start")
        answers = [generate(server, text="Hello", sampling_params=GREEDY)]
        message = act(server, "dump", status=500)["error"]["message"]
        assert "cannot be written" in message and str(folder) not in message
        end = time.time() + 20  # the log is written asynchronously
        while str(folder) not in server.text():
            assert time.time() < end
            time.sleep(0.02)
        folder.mkdir()
        found, _ = tensors(act(server, "dump")["file"])
        assert sum(found["logical_count"][1]) == rows_of(answers) * TOP_K * LAYERS


def test_what_cannot_be_recorded_is_refused():
    for flags, expected in [(["--expert-distribution-recorder-mode", "all"], "all"),
                        (["--expert-distribution-recorder-buffer-size", 0], "buffer-size 0")]:
        code, said = fails_to_start("--model-path", MODEL, *flags)
        assert code == 2 and expected in said
    code, said = fails_to_start("--model-path", FIXTURES / "llama", "--enable-expert-distribution-metrics")
    assert code == 2 and "no experts" in said
