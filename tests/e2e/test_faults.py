"""Fault handling: signals, killed ranks, disconnected clients, failed starts."""
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import threading
import time

import pytest

from server import FIXTURES, Server, fails_to_start, shared_memory

MODEL = FIXTURES / "qwen3_moe"
LONG = {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 450, "ignore_eos": True}}
# A request whose choices run one after another. It runs long enough for a test to act before it ends, even on a fast
# machine.
CHOICES = 6
LONGER = {**LONG, "sampling_params": {**LONG["sampling_params"], "n": CHOICES}}
ONE_AT_A_TIME = ("--max-running-requests", 1, "--max-queued-requests", 64)


def in_background(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ranks_have_process_titles():
    with Server(MODEL, "--tp", 4, "--ep", 2) as server:
        titles = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").decode() for pid in server.ranks()]
        assert titles == ["switchyard::rank TP0 EP0", "switchyard::rank TP1 EP0", "switchyard::rank TP2 EP1",
                          "switchyard::rank TP3 EP1"]
        assert server.stop() == 0


def test_sigterm_drains(tmp_path):
    before = shared_memory()
    with Server(MODEL, "--tp", 2, "--ep", 2, *ONE_AT_A_TIME, env={"TMPDIR": str(tmp_path)}) as server:
        ranks = server.ranks()
        thread, results = in_background(lambda: server.request("/generate", LONGER))
        server.wait_busy(CHOICES)
        server.process.send_signal(signal.SIGTERM)
        deadline = time.time() + 10
        while server.request("/health")[0] != 503:
            assert time.time() < deadline and not results
        status, answer = server.request("/generate", {"text": "late", "sampling_params": {"max_new_tokens": 1}})
        assert status == 503 and "shutting down" in answer["error"]["message"]
        assert server.process.wait(300) == 0
        thread.join()
        assert results[0][0] == 200 and [len(c["output_ids"]) for c in results[0][1]] == [450] * CHOICES
        assert not any(alive(pid) for pid in ranks)
    assert not shared_memory() - before and not list(tmp_path.iterdir())


def test_a_second_signal_does_not_wait_for_requests():
    with Server(MODEL, "--tp", 2, *ONE_AT_A_TIME) as server:
        thread, results = in_background(lambda: server.request("/generate", LONGER))
        server.wait_busy(CHOICES)
        server.process.send_signal(signal.SIGTERM)
        end = time.time() + 20
        while "draining: " not in server.text():  # two signals that arrive together count as one
            assert time.time() < end
            time.sleep(0.01)
        assert server.stop(signal.SIGTERM, timeout=20) == 0
        thread.join()
        assert {c["meta_info"]["finish_reason"]["type"] for c in results[0][1]} <= {"abort", "length"}


def test_a_dead_rank_is_reported_and_ends_the_server(tmp_path):
    before = shared_memory()
    with Server(MODEL, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--disable-elastic-ep", *ONE_AT_A_TIME,
                env={"TMPDIR": str(tmp_path)}) as server:
        ranks = server.ranks()
        thread, results = in_background(lambda: server.request("/generate", LONGER))
        server.wait_busy(CHOICES)
        os.kill(ranks[1], signal.SIGKILL)
        thread.join(30)
        assert results and results[0][0] == 500
        message = results[0][1]["error"]["message"]
        assert "rank 1" in message and "SIGKILL" in message
        assert server.stop(timeout=20) not in (0, None)
        assert "rank 1" in server.text()
        assert not any(alive(pid) for pid in ranks)
    assert not shared_memory() - before and not list(tmp_path.iterdir())


def test_ranks_die_with_their_parent():
    with Server(MODEL, "--tp", 2) as server:
        ranks = server.ranks()
        server.stop(signal.SIGKILL)
        deadline = time.time() + 10
        while any(alive(pid) for pid in ranks) and time.time() < deadline:
            time.sleep(0.02)
        assert not any(alive(pid) for pid in ranks)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_request(stream):
    with Server(MODEL, "--tp", 2, *ONE_AT_A_TIME) as server:
        host, port = server.url[7:].split(":")
        body = json.dumps({**LONGER, "stream": stream}).encode()
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" %
                      len(body) + body)
            server.wait_busy(CHOICES)
            before = server.state()["decode_tokens"]
        state = server.wait_idle(5)
        assert state["decode_tokens"] < before + 450 * CHOICES // 2
        assert state["free_pages"] + state["cached_pages"] == state["total_pages"]


def test_port_in_use():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        code, said = fails_to_start("--model-path", MODEL, "--port", s.getsockname()[1])
    assert code == 2 and "in use" in said


def broken(tmp_path, change):
    """A copy of the checkpoint, damaged by `change`."""
    directory = tmp_path / "model"
    shutil.copytree(FIXTURES / "olmoe", directory)
    change(directory)
    return directory


def edit_config(**changes):
    def change(directory):
        config = json.loads((directory / "config.json").read_text())
        config.update(changes)
        (directory / "config.json").write_text(json.dumps(config))
    return change


def edit_header(function):
    def change(directory):
        file = directory / "model.safetensors"
        raw = file.read_bytes()
        n = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + n])
        function(header)
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + n:])
    return change


def write(name, text):
    return lambda directory: (directory / name).write_text(text)


def fill_router(layer, expert, value):
    """Returns a change that fills the row of an expert in the router of a layer with `value`."""
    def change(directory):
        file = directory / "model.safetensors"
        raw = bytearray(file.read_bytes())
        n = struct.unpack("<Q", raw[:8])[0]
        entry = json.loads(raw[8:8 + n])[f"model.layers.{layer}.mlp.gate.weight"]
        number = struct.pack("<f", value)[4 - {"F32": 4, "BF16": 2}[entry["dtype"]]:]
        begin = 8 + n + entry["data_offsets"][0] + expert * entry["shape"][1] * len(number)
        raw[begin:begin + entry["shape"][1] * len(number)] = number * entry["shape"][1]
        file.write_bytes(raw)
    return change


NORM = "model.norm.weight"
BROKEN = {
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "model.safetensors"),
    "no config": (lambda d: (d / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
    "truncated weights": (lambda d: os.truncate(d / "model.safetensors", 200_000), "model.safetensors"),
    "header length outside the file": (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64), "model.safetensors"),
    "missing tensor": (edit_header(lambda h: h.pop(NORM)), NORM),
    "wrong shape": (edit_header(lambda h: h[NORM].update(shape=[32, 2])), NORM),
    "overlapping": (edit_header(lambda h: h[NORM].update(data_offsets=[0, 128])), "overlap"),
    "negative": (edit_header(lambda h: h[NORM].update(data_offsets=[-128, 0])), NORM),
    "unknown dtype": (edit_header(lambda h: h[NORM].update(dtype="Q7")), "Q7"),
    "unknown architecture": (edit_config(architectures=["PerceptronForCausalLM"]), "PerceptronForCausalLM"),
    "absurd size": (edit_config(hidden_size=10**12), "hidden_size"),
    "zero layers": (edit_config(num_hidden_layers=0), "num_hidden_layers"),
    "wrong type": (edit_config(num_experts="many"), "num_experts"),
    "smaller vocabulary": (edit_config(vocab_size=511), "vocab_size"),
    "NaN in a router": (fill_router(1, 3, float("nan")), "layer 1: the router's weight of expert 3 is not finite"),
    "malformed config": (write("config.json", "{"), "config.json"),
    "malformed tokenizer": (write("tokenizer.json", "{}"), "tokenizer.json"),
    "unreadable template": (write("chat_template.jinja", "{% if %}"), "chat_template.jinja"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_bad_checkpoints_are_refused(tmp_path, what):
    change, expected = BROKEN[what]
    code, said = fails_to_start("--model-path", broken(tmp_path, change), "--port", 0)
    assert code == 2 and expected in said, said
    assert "Traceback" not in said and said.count("\n") < 12


ROUTER_RANKS = {
    "one rank": [],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "two groups": ["--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention"],
}


def check_router_overflow(tmp_path, *flags, env=None):
    """The error of a request names the layer and the expert whose router score overflows. The server continues."""
    with Server(broken(tmp_path, fill_router(1, 3, 3e38)), *flags, "--chunked-prefill-size", 4, "--skip-server-warmup",
                env=env) as s:
        for prompt in ([5], list(range(4, 16))):
            status, answer = s.request("/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4}})
            assert status == 500, answer
            assert "the router of layer 1 gave expert 3 a score that is not finite" in json.dumps(answer)
        assert s.request("/health")[0] == 200


@pytest.mark.parametrize("ranks", ROUTER_RANKS)
def test_a_router_that_overflows_ends_the_request_alone(tmp_path, ranks):
    check_router_overflow(tmp_path, *ROUTER_RANKS[ranks])


@pytest.mark.parametrize("flags, expected", [
    (["--tp", 4, "--ep", 3], "ep"),
    (["--tp", 3], "tp"),
    (["--tp", 0], "tp"),
    (["--moe-a2a-backend", "mori"], "mori"),
    (["--moe-a2a-backend", "teleport"], "teleport"),
    (["--mem-fraction-static", 0.01, "--max-total-tokens", 100_000_000], "GiB"),
    (["--deepep-mode", "fast"], "low_latency"),
    (["--config", "/no/such.yaml"], "/no/such.yaml"),
])
def test_bad_flags_are_refused(flags, expected):
    code, said = fails_to_start("--model-path", MODEL, "--port", 0, *flags)
    assert code == 2 and expected in said, said


def test_no_such_directory():
    code, said = fails_to_start("--model-path", "/no/such/model")
    assert code == 2 and "/no/such/model" in said


def test_queue_limit():
    with Server(MODEL, "--max-running-requests", 1, "--max-queued-requests", 1) as server:
        threads = [in_background(lambda: server.request("/generate", LONG)) for _ in range(2)]
        deadline = time.time() + 10
        while server.state()["open_requests"] < 2 and time.time() < deadline:
            time.sleep(0.005)
        status, answer = server.request("/generate", LONG)
        assert status == 429 and "open" in answer["error"]["message"]
        assert server.request("/health_generate")[0] == 200  # waits for its turn
        for thread, results in threads:
            thread.join()
            assert results[0][0] == 200


def test_body_limit():
    with Server(MODEL, "--max-body-mb", 0.01) as server:
        status, answer = server.request("/generate", {"text": "x" * 20000})
        assert status == 413 and answer["error"]["message"]
