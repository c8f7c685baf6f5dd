"""`switchyard quantize`: the files serve the same outputs as `--quantization`; interruptions, full disks, bad arguments."""
import fcntl
import importlib.util
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import time

import pytest

from server import FIXTURES, PROGRAM, ROOT, Server

MODEL = FIXTURES / "qwen3_moe"
PROMPT = [5, 17, 99, 3, 42, 8, 120, 77, 31, 64]


def quantize(*args, **kwargs):
    return subprocess.run([PROGRAM, "quantize", *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs)


def outputs(model, *flags):
    with Server(model, "--dtype", "float32", "--max-total-tokens", 2048, "--log-level", "warning", "--device", "cpu", *flags) as server:
        status, answer = server.request("/generate", {
            "input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 0,
            "sampling_params": {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}})
        assert status == 200, answer
        assert server.stop() == 0
    logprobs = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]][1:]
    return answer["output_ids"], logprobs


def contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


@pytest.mark.parametrize("format, flags, method", [
    ("int4", ["--zero-points"], "int4"),
    ("int8", [], "w8a8_int8"),
    ("mxfp4", [], "mxfp4"),
])
def test_serves_the_outputs_of_quantization_on_load(tmp_path, format, flags, method):
    done = quantize(MODEL, tmp_path / "out", "--format", format, *flags)
    assert done.returncode == 0, done.stderr
    assert "mlp.experts.up_proj" in done.stdout and "quantization_report.json" in done.stdout
    assert "1 of 1 files" in done.stderr
    report = json.loads((tmp_path / "out/quantization_report.json").read_text())
    assert 0 < report["relative_rms"] < 0.13
    assert outputs(tmp_path / "out") == outputs(MODEL, "--quantization", method)


def test_continues_after_a_kill(tmp_path):
    command = [MODEL, tmp_path / "out", "--format", "int4", "--max-shard-size", "0.00001"]
    assert quantize(MODEL, tmp_path / "whole", *command[2:]).returncode == 0
    # Standard error is a pipe that is almost full. The program writes a line for each finished file, so it blocks after
    # a few files.
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b" " * (size - 400))
    process = subprocess.Popen([PROGRAM, "quantize", *map(str, command)], stderr=writer, stdout=subprocess.DEVNULL)
    os.close(writer)
    end = time.time() + 60
    while len(list((tmp_path / "out").glob("*.safetensors"))) < 3:
        assert time.time() < end and process.poll() is None
        time.sleep(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    os.close(reader)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "quantize_state.json" in names and "config.json" not in names
    done = quantize(*command)
    assert done.returncode == 0, done.stderr
    assert "files are finished already" in done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_full_disk_is_one_error_and_can_be_continued(tmp_path):
    # A limit of the file size simulates a full disk: the file of the embedding exceeds it.
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    command = [MODEL, tmp_path / "out", "--format", "int8", "--max-shard-size", "0.00001"]
    done = quantize(*command, preexec_fn=limit, restore_signals=False)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("switchyard:")]
    assert len(errors) == 1 and "cannot be written" in errors[0] and ".safetensors" in errors[0]
    assert not list((tmp_path / "out").glob("*.part")) and not (tmp_path / "out/config.json").exists()
    assert quantize(*command).returncode == 0
    assert quantize(MODEL, tmp_path / "whole", *command[2:]).returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("args, expected", [
    ([], ["DIR"]),
    ([MODEL], ["OUT"]),
    ([MODEL, "OUT"], ["--format", "int4"]),
    ([MODEL, "OUT", "--format", "int5"], ["--format"]),
    ([MODEL, "OUT", "--format", "int8", "--group-size", "32"], ["--group-size", "int4"]),
    ([MODEL, "OUT", "--format", "int4", "--group-size", "64"], ["[64, 32]", "--group-size"]),
    ([MODEL, "OUT", "--format", "int4", "--ignore", "re:("], ["regular expression"]),
    ([MODEL, "OUT", "--format", "int4", "--config", "no.json"], ["no.json"]),
    ([FIXTURES / "gpt_oss", "OUT", "--format", "int4"], ["quantized already", "mxfp4"]),
    (["/no/such/model", "OUT", "--format", "int4"], ["/no/such/model"]),
    ([MODEL, "/proc/1/out", "--format", "int4"], ["/proc/1/out"]),
])
def test_bad_arguments(tmp_path, args, expected):
    done = quantize(*[tmp_path / "out" if arg == "OUT" else arg for arg in args])
    assert done.returncode == 2
    for words in expected:
        assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_yardling_in_four_bits(tmp_path):
    spec = importlib.util.spec_from_file_location("evaluate", ROOT / "models/yardling/evaluate.py")
    evaluate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(evaluate)
    done = quantize(ROOT / "models/yardling", tmp_path / "out", "--format", "int4")
    assert done.returncode == 0, done.stderr
    asked = random.Random(4).sample(evaluate.questions(ROOT / "models/yardling/corpus/train.jsonl"), 100)
    with Server(tmp_path / "out", "--log-level", "warning", "--max-total-tokens", 32768, "--device", "cpu") as server:
        host, port = server.url.removeprefix("http://").split(":")
        answers = evaluate.ask_all((host, port), asked)
        assert server.stop() == 0
    assert evaluate.right(asked, answers) >= evaluate.TRAINED * len(asked)
