"""POST /start_profile and /stop_profile, and `bench --profile`: Chrome traces of the operations of every rank."""
import json
import pathlib
import subprocess
import time

import pytest

from server import FIXTURES, PROGRAM, Server

MODEL = FIXTURES / "qwen3_moe"
LAYERS = 3  # of MODEL
# With --target-step-ms 0, measured times do not change the sizes of prompt chunks.
TP2_EP2 = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dtype", "float32", "--max-total-tokens", 4096,
           "--target-step-ms", 0]
LAYER = ["attention", "route", "dispatch", "experts", "combine", "finish"]  # MODEL has no shared expert
PASS = ["embed", *LAYER * LAYERS, "logits", "head"]
PARTS = ["plan", "exchange counts", "forward", "sample", "send results"]
GREEDY = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, *TP2_EP2) as s:
        yield s


def generate(server, length=16, **params):
    body = {"input_ids": [(7 * i) % 500 for i in range(length)], "sampling_params": {**GREEDY, **params}}
    server.request("/flush_cache", method="POST")
    status, answer = server.request("/generate", body)
    assert status == 200, answer
    return answer


def start(server, status=200, **body):
    got, answer = server.request("/start_profile", body)
    assert got == status, answer
    return answer


def stop(server, status=200):
    got, answer = server.request("/stop_profile", method="POST")
    assert got == status, answer
    return answer


def spans(file, category=None):
    """The events of a trace that have a duration. Checks their order and nesting."""
    trace = json.loads(pathlib.Path(file).read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    open_spans = {}
    for e in events:
        outer = open_spans.setdefault(e["tid"], [])
        while outer and outer[-1] <= e["ts"] + 0.0005:
            outer.pop()
        end = e["ts"] + e["dur"]
        assert e["dur"] >= 0 and all(end <= o + 0.0015 for o in outer), e
        outer.append(end)
    return [e for e in events if category in (None, e["cat"])]


def names(events):
    return [e["name"] for e in events]


def test_every_rank_writes_the_operations_of_its_steps(server, tmp_path):
    answer = start(server, output_dir=str(tmp_path / "new" / "folder"), profile_prefix="run", activities=["CPU", "GPU"])
    assert answer["profile_id"] == "run" and answer["activities"] == ["CPU"]
    generation = generate(server)["meta_info"]["id"]
    answer = stop(server)
    assert answer["dropped_events"] == 0
    assert answer["files"] == [str(tmp_path / "new" / "folder" / f"run-TP-{rank}.trace.json") for rank in range(2)]
    for rank, file in enumerate(answer["files"]):
        steps = spans(file, "step")
        assert names(steps) == ["prefill step", *PARTS, *["decode step", *PARTS] * 3]
        assert [e["args"]["generations"] for e in steps if "generations" in e["args"]] == [[int(generation)]] * 4
        operations = spans(file, "operation")
        assert names(operations) == PASS * 4
        assert [e["args"]["layer"] for e in operations if e["name"] == "attention"] == [*range(LAYERS)] * 4
        assert {e["args"]["micro_batch"] for e in operations} == {0}
        assert [e["args"]["rows"] for e in operations if e["name"] == "embed"] == [16, 1, 1, 1]
        assert {e["pid"] for e in steps + operations} == {rank}
        labels = [e["args"]["name"] for e in json.loads(pathlib.Path(file).read_text())["traceEvents"] if e["ph"] == "M"
                  and "name" in e["args"]]
        assert labels == [f"rank {rank} (TP{rank} EP{rank})", "steps", "pass 0"]


def test_two_batch_overlap_shows_two_micro_batches(tmp_path):
    with Server(MODEL, *TP2_EP2, "--enable-two-batch-overlap") as server:
        start(server, output_dir=str(tmp_path), profile_prefix="tbo", num_steps=1, record_shapes=True)
        generate(server)
        for file in stop(server)["files"]:
            operations = spans(file, "operation")
            for micro_batch in range(2):
                own = [e for e in operations if e["args"]["micro_batch"] == micro_batch and e["name"] != "head"]
                assert names(own) == [name for name in PASS if name != "head"]
                assert len({e["tid"] for e in own}) == 1
            rows = [e["args"]["rows"] for e in operations if e["name"] == "embed"]
            assert len(rows) == 2 and sum(rows) == 16
            # The second micro-batch runs while the first one's rows are in transit.
            order = [(e["name"], e["args"]["micro_batch"]) for e in operations if e["args"].get("layer") == 0]
            assert order.index(("dispatch", 0)) < order.index(("attention", 1)) < order.index(("experts", 0))
            for e in operations:
                if e["name"] in LAYER:
                    assert e["args"]["Input Dims"] == [[e["args"]["rows"], 64]]
        assert server.stop() == 0


def test_a_profile_ends_after_its_steps(server, tmp_path):
    done = server.state()["steps"]
    start(server, output_dir=str(tmp_path), profile_id="steps", start_step=done + 3, num_steps=2)
    generate(server, max_new_tokens=8)
    files = [tmp_path / f"steps-TP-{rank}.trace.json" for rank in range(2)]
    end = time.time() + 20
    while not all(file.exists() for file in files):
        assert time.time() < end
        time.sleep(0.02)
    for file in files:
        assert {e["args"]["step"] for e in spans(file)} == {done + 3, done + 4}
    assert stop(server)["files"] == [str(file) for file in files]  # its result, once
    assert "no profile is active" in stop(server, status=409)["error"]["message"]


def test_stages_have_files_of_their_own(server, tmp_path):
    start(server, output_dir=str(tmp_path), profile_prefix="stage", profile_by_stage=True, num_steps=2)
    generate(server)
    files = stop(server)["files"]
    assert files == [str(tmp_path / f"stage-TP-{rank}-{stage}.trace.json") for rank in range(2)
                     for stage in ("EXTEND", "DECODE")]
    assert [len([n for n in names(spans(file)) if n.endswith(" step")]) for file in files] == [1, 2, 1, 2]
    assert names(spans(files[1], "operation")) == PASS * 2


def test_without_a_body_files_are_in_the_default_folder(tmp_path):
    with Server(MODEL, "--tp", 2, "--max-total-tokens", 4096, env={"SGLANG_TORCH_PROFILER_DIR": str(tmp_path)}) as server:
        status, answer = server.request("/start_profile", method="POST")
        assert status == 200 and answer["output_dir"] == str(tmp_path)
        generate(server)
        files = stop(server)["files"]
        assert files == sorted(map(str, tmp_path.glob("*-TP-?.trace.json"))) and len(files) == 2
        assert "attention" in names(spans(files[0]))


def test_what_cannot_be_profiled_is_refused_and_serving_goes_on(server, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for body, field in [({"output_dir": str(file / "sub")}, "output_dir"), ({"with_stack": True}, "with_stack"),
                        ({"activities": ["GPU"]}, "activities"), ({"activities": ["MEM"]}, "activities"),
                        ({"steps": 3}, "steps"), ({"num_steps": 0}, "num_steps"), ({"profile_prefix": "a/b"}, "profile_prefix")]:
        error = start(server, status=400, **body)["error"]
        assert error["param"] == field and field in error["message"], error
        assert str(tmp_path) not in error["message"]
    stop(server, status=409)
    assert server.request("/start_profile", method="GET")[0] == 405

    start(server, output_dir=str(tmp_path / "a"))
    assert "active already" in start(server, status=409, output_dir=str(tmp_path))["error"]["message"]
    generate(server)
    for written in (tmp_path / "a").iterdir():
        written.unlink()
    (tmp_path / "a").rmdir()
    message = stop(server, status=500)["error"]["message"]
    assert "cannot be written" in message and str(tmp_path) not in message
    generate(server)
    assert server.request("/health")[0] == 200


def test_one_batch_profiles_its_measured_runs(tmp_path):
    done = subprocess.run([PROGRAM, "bench", "one-batch", "--device", "cpu", "--model", MODEL, "--tp", "2", "--ep", "2",
                           "--input-len", "24", "--output-len", "4", "--repeat", "2", "--profile", tmp_path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [line.removeprefix("trace: ") for line in done.stdout.splitlines() if line.startswith("trace: ")]
    assert [pathlib.Path(file).parent for file in files] == [tmp_path] * 2
    for rank, file in enumerate(files):
        assert file.endswith(f"-TP-{rank}.trace.json")
        assert names(spans(file, "step")) == ["prefill step", "forward", *["decode step", "forward"] * 3] * 2
        assert names(spans(file, "operation")) == PASS * 8


def test_bench_serve_profiles_the_server(server, tmp_path):
    done = subprocess.run([PROGRAM, "bench", "serve", "--port", server.url.rsplit(":", 1)[1], "--num-prompts", "3",
                           "--random-input-len", "24", "--random-output-len", "4", "--profile", tmp_path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [line.removeprefix("trace: ") for line in done.stdout.splitlines() if line.startswith("trace: ")]
    assert len(files) == 2
    for file in files:
        assert pathlib.Path(file).parent == tmp_path
        assert set(names(spans(file, "operation"))) == set(PASS)
    stop(server, status=409)


@pytest.mark.parametrize("which", ["one-batch", "serve"])
def test_help_has_the_flag(which):
    done = subprocess.run([PROGRAM, "bench", which, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--profile" in done.stdout
