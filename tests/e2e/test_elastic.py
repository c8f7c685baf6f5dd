"""Ranks that end while requests run: all outputs equal those of an undisturbed server, byte for byte."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
import urllib.parse

import pytest

from server import Server, fails_to_start, free_port

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
FLAGS = ["--device", "cpu", "--max-total-tokens", 32768, "--max-running-requests", 64, "--random-seed", 7]
LAYOUTS = {
    "2 ranks": ["--tp", 2, "--ep", 2],
    "4 ranks": ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep"],
    "2 groups": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dp-size", 2, "--enable-dp-attention"],
}
GENERATIONS = 32
TOKENS = {"2 ranks": 70, "4 ranks": 45, "2 groups": 45}  # four ranks take long on two cores
SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string"}, "on": {"type": "boolean"}},
                     "required": ["name", "on"]})


def bodies(batch, tokens):
    """The requests of a batch: 32 generations of all kinds. Their prompts share no prefix."""
    r = random.Random(batch)
    kinds = [
        {"sampling_params": {"temperature": 0}},
        {"sampling_params": {"temperature": 1.0, "sampling_seed": 11}},
        {"sampling_params": {"temperature": 0.9, "top_p": 0.9}},  # the seed depends on the request's number
        {"sampling_params": {"temperature": 0.8, "frequency_penalty": 0.5, "presence_penalty": 0.3,
                             "repetition_penalty": 1.2, "min_new_tokens": 12}},
        {"sampling_params": {"temperature": 1.0}, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
        {"sampling_params": {"temperature": 1.0, "stop": ["zq", "expert 17"]}},
        {"sampling_params": {"temperature": 1.0, "n": 2}},
        {"sampling_params": {"temperature": 0}, "return_routed_experts": True},
        {"sampling_params": {"temperature": 1.0, "json_schema": SCHEMA, "ignore_eos": False}},
    ]
    made = []
    while sum(b["sampling_params"].get("n", 1) for b in made) < GENERATIONS:
        number = len(made)
        body = json.loads(json.dumps(kinds[number % len(kinds)]))
        limit = tokens if number % 4 else tokens // 3
        body["sampling_params"] = {"ignore_eos": True, "max_new_tokens": limit, **body["sampling_params"]}
        length = r.choice([3, 17, 60, 200])
        body["input_ids"] = [100 + batch * GENERATIONS + number] + [r.randrange(2, 2000) for _ in range(length)]
        body["stream"] = number % 3 != 0
        made.append(body)
    return made


class Client(threading.Thread):
    """Sends a request, and keeps what it receives."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.events, self.result, self.comments, self.gap = 0, None, 0, 0.0
        self.start()

    def run(self):
        try:
            self.receive()
        except Exception as e:  # any failure of a client fails the test
            self.result = repr(e)

    def receive(self):
        url = urllib.parse.urlparse(self.server.url)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
        connection.request("POST", "/generate", json.dumps(self.body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if not self.body["stream"]:
            self.result = without_times(json.loads(response.read()))
            return
        last, choices, before = None, {}, None
        for line in response:
            if line.startswith(b": "):
                self.comments += 1
            if not line.startswith(b"data: "):
                continue
            now = time.monotonic()
            if before is not None:
                self.gap = max(self.gap, now - before)
            before = now
            last = line
            if line.startswith(b"data: [DONE]"):
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise AssertionError(event)
            self.events += 1
            choices[event.get("index", 0)] = without_times(event)
        assert last and last.startswith(b"data: [DONE]"), last
        self.result = choices
        connection.close()


def without_times(value):
    for choice in value if isinstance(value, list) else [value]:
        choice.get("meta_info", {}).pop("e2e_latency", None)
        if len(value) > 1 and isinstance(value, list):  # whether copies share a cached prompt depends on timing
            choice["meta_info"].pop("cached_tokens", None)
            choice["meta_info"].pop("cached_tokens_details", None)
        if "index" in choice:
            choice["meta_info"].pop("cached_tokens", None)
            choice["meta_info"].pop("cached_tokens_details", None)
    return value


def metric(server, name):
    status, text = server.request("/metrics")
    return float(re.search(rf"^{name} (\S+)", text, re.M).group(1)) if status == 200 else None


def start_batch(server, made):
    """Sends the requests one after another, so that their numbers are the same on every server."""
    submitted = metric(server, "switchyard_requests_total")
    clients = []
    for body in made:
        clients.append(Client(server, body))
        submitted += body["sampling_params"].get("n", 1)
        end = time.time() + 60
        while metric(server, "switchyard_requests_total") != submitted:
            assert time.time() < end, server.text()
            assert not isinstance(clients[-1].result, str), clients[-1].result  # a refusal
            time.sleep(0.001)
    return clients


def finish(clients):
    for client in clients:
        client.join(120)
        assert not client.is_alive()
    return [client.result for client in clients]


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return None


def wait_until(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.002)


def wait_epoch(server, epoch):
    wait_until(lambda: metric(server, "switchyard_epoch") == epoch)


def wait_decoding(clients):
    """Waits until the streams are in the middle of their outputs."""
    streams = [c for c in clients if c.body["stream"]]
    wait_until(lambda: sum(c.events for c in streams) > 8 * len(streams))


def kill(server, ranks, sig):
    pids = server.ranks()
    for rank in ranks:
        os.kill(pids[rank], sig)


def kill_twice(server, clients):
    """Kills all ranks, and a new one while it loads."""
    wait_decoding(clients)
    before = server.ranks()
    kill(server, range(len(before)), signal.SIGKILL)
    wait_until(lambda: set(server.ranks()) - set(before))
    for pid in list(set(server.ranks()) - set(before))[:1]:
        os.kill(pid, signal.SIGKILL)


def when_decoding(ranks, sig):
    def disturb(server, clients):
        wait_decoding(clients)
        kill(server, ranks, sig)
    return disturb


def at_once(ranks, sig):
    return lambda server, clients: kill(server, ranks, sig)


FAULTS = {
    "2 ranks": {
        "SIGKILL of rank 1, decode": when_decoding([1], signal.SIGKILL),
        "SIGKILL of rank 0, prefill": at_once([0], signal.SIGKILL),
        "SIGSEGV of rank 0, decode": when_decoding([0], signal.SIGSEGV),
        "SIGSTOP of rank 1, decode": when_decoding([1], signal.SIGSTOP),
        "SIGKILL of all, then of one that loads": kill_twice,
    },
    "4 ranks": {
        "SIGKILL of rank 3, decode": when_decoding([3], signal.SIGKILL),
        "SIGABRT of rank 1, decode": when_decoding([1], signal.SIGABRT),
    },
    "2 groups": {
        "SIGKILL of rank 1, decode": when_decoding([1], signal.SIGKILL),
    },
}


def descriptors(server):
    """Open descriptors of the server process: all, and those of shared memory."""
    links = []
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return len(links), sum("memfd" in link for link in links)


def settled_descriptors(server):
    """Clients' connections take a while to close."""
    last = None
    for _ in range(100):
        now = descriptors(server)
        if now == last:
            return now
        last = now
        time.sleep(0.1)
    return last


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_equal_those_of_an_undisturbed_server(layout):
    flags = [*FLAGS, *LAYOUTS[layout]]
    batches = {name: bodies(i, TOKENS[layout]) for i, name in enumerate(FAULTS[layout])}
    with Server(YARDLING, *flags) as server:
        want = {name: finish(start_batch(server, made)) for name, made in batches.items()}
        assert server.stop() == 0
    with Server(YARDLING, *flags) as server:
        assert metric(server, "switchyard_epoch") == 1
        before, count = settled_descriptors(server), len(server.ranks())
        for name, disturb in FAULTS[layout].items():
            epoch = metric(server, "switchyard_epoch")
            clients = start_batch(server, batches[name])
            old = server.ranks()
            disturb(server, clients)
            results = finish(clients)
            for body, got, expected in zip(batches[name], results, want[name]):
                assert got == expected, (name, body, server.text())
            assert metric(server, "switchyard_epoch") > epoch, (name, server.text())
            gap = max(c.gap for c in clients)
            tokens = re.findall(r"the first token came (\d+) ms", server.text())
            print(f"{layout:9} | {name:40} | first token {tokens[-1]:>5} ms | longest gap {gap * 1000:6.0f} ms")
            assert len(server.ranks()) == count and not set(server.ranks()) & set(old)
            assert not any(state_of(pid) for pid in old)
        after = settled_descriptors(server)
        assert after[1] == before[1] and after[0] <= before[0], (before, after)
        ranks = server.ranks()
        assert server.stop() == 0
        assert not any(state_of(pid) for pid in ranks)


def test_an_idle_server_survives_and_answers_at_once():
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:
        for round in range(2):
            kill(server, [round], signal.SIGKILL)
            status, answer = server.request("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
            assert status == 200, answer
        assert metric(server, "switchyard_epoch") == 3
        assert metric(server, "switchyard_rank_deaths_total") == 2
        assert metric(server, "switchyard_pause_seconds_total") > 0
        assert server.request("/health")[0] == 200


def test_a_paused_stream_gets_comments_and_health_is_503():
    """New ranks are killed as soon as they appear, for longer than a second."""
    with Server(YARDLING, *FLAGS, "--tp", 2, "--max-rank-deaths", "1000/60") as server:
        body = {"input_ids": [5, 6, 7], "stream": True,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 400}}
        client = Client(server, body)
        wait_until(lambda: client.events > 3)
        stop = threading.Event()

        def keep_down():
            while not stop.is_set():
                for pid in server.ranks():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)

        killer = threading.Thread(target=keep_down, daemon=True)
        killer.start()
        try:
            wait_until(lambda: server.request("/health")[0] == 503, 20)
            wait_until(lambda: client.comments > 0, 20)
        finally:
            stop.set()
            killer.join()
        client.join(60)
        assert isinstance(client.result, dict), client.result
        assert client.result[0]["meta_info"]["completion_tokens"] == 400
        assert server.request("/health")[0] == 200


def test_too_many_deaths_end_the_server_with_all_reasons():
    with Server(YARDLING, *FLAGS, "--tp", 2, "--max-rank-deaths", "2/60") as server:
        for epoch in (2, 3):
            kill(server, [1], signal.SIGKILL)
            wait_epoch(server, epoch)
        kill(server, [0], signal.SIGKILL)
        assert server.process.wait(20) == 1
        last = server.text().splitlines()[-1]
        assert "--max-rank-deaths 2/60" in last and last.count("rank 1 (pid") == 2 and "rank 0 (pid" in last, last


def test_sigterm_during_a_restart_drains():
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:
        body = {"input_ids": [5, 6, 7], "stream": False,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": 120}}
        clients = start_batch(server, [body])
        kill(server, [0], signal.SIGKILL)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.text()
        assert finish(clients)[0]["meta_info"]["completion_tokens"] == 120
    with Server(YARDLING, *FLAGS, "--tp", 2) as server:  # without requests, SIGTERM ends the restart early
        kill(server, [0], signal.SIGKILL)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0, server.text()


def test_weights_that_change_are_not_loaded(tmp_path):
    copy = tmp_path / "model"
    subprocess.run(["cp", "-r", str(YARDLING), str(copy)], check=True)
    with Server(copy, *FLAGS, "--tp", 2) as server:
        weights = next(copy.glob("*.safetensors"))
        replaced = tmp_path / "replaced"
        replaced.write_bytes(weights.read_bytes())
        replaced.rename(weights)
        kill(server, [0], signal.SIGKILL)
        assert server.process.wait(20) == 1
        assert weights.name in server.text().splitlines()[-1]


def test_flags_that_do_not_fit_are_refused():
    for flags, expected in [(["--max-rank-deaths", "0/60"], "--max-rank-deaths"),
                            (["--enable-elastic-ep", "--disable-elastic-ep"], "exclude each other"),
                            (["--rank-stall-timeout", -1], "--rank-stall-timeout"),
                            (["--enable-elastic-ep", "--tp", 2, "--nnodes", 2, "--dist-init-addr",
                              f"127.0.0.1:{free_port()}"], "--enable-elastic-ep")]:
        code, said = fails_to_start("--model-path", YARDLING, *flags)
        assert code == 2 and expected in said, said
