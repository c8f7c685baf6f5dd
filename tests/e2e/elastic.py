"""Test clients of a server whose ranks end, and helpers that compare the responses with those of an undisturbed
server."""
import http.client
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

from server import Server

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
FLAGS = ["--device", "cpu", "--max-total-tokens", 32768, "--max-running-requests", 64, "--random-seed", 7]
GENERATIONS = 32
SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string"}, "on": {"type": "boolean"}},
                     "required": ["name", "on"]})


def bodies(batch, tokens):
    """The requests of a batch: 32 generations of all kinds. Their prompts share no prefix with those of the previous 59
    batches, so the cache has no prefix of them."""
    r = random.Random(batch)
    kinds = [
        {"sampling_params": {"temperature": 0}},
        {"sampling_params": {"temperature": 1.0, "sampling_seed": 11}},
        {"sampling_params": {"temperature": 0.9, "top_p": 0.9}},  # the seed follows from the request id
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
        body["input_ids"] = [100 + (batch * GENERATIONS + number) % 1888] + [r.randrange(2, 2000) for _ in range(length)]
        body["stream"] = number % 3 != 0
        made.append(body)
    return made


class Client(threading.Thread):
    """Sends a request and keeps the response in `result`. `gap`: the longest time between two events, in seconds."""

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

    def close(self):
        """Disconnects."""
        self.connection.sock.shutdown(socket.SHUT_RDWR)

    def receive(self):
        url = urllib.parse.urlparse(self.server.url)
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=120)
        self.connection = connection
        connection.request("POST", "/generate", json.dumps(self.body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if not self.body["stream"]:
            self.result = without_times(json.loads(response.read()))
            connection.close()
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
    """Removes values that depend on timing: durations, and counts of drafts, because the server adapts their number."""
    for choice in value if isinstance(value, list) else [value]:
        meta = choice.get("meta_info", {})
        for key in [key for key in meta if key == "e2e_latency" or key.startswith(("spec_", "jump_forward_"))]:
            meta.pop(key)
        if len(value) > 1 and isinstance(value, list):  # cache hits between generations depend on timing
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
    """Sends the requests one after another, so that they have the same ids on every server."""
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


def stopped(server):
    return [pid for pid in server.ranks() if state_of(pid) == "T"]


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


def spare_pids(server):
    """Pids of the processes of --spare-ranks."""
    command = ["ps", "--ppid", str(server.process.pid), "-o", "pid=,args="]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in out.splitlines() if "::spare" in line]


def ready_spares(server):
    return metric(server, r'switchyard_spare_ranks\{state="ready"\}')


def descriptors(server):
    """Returns the numbers of open descriptors of the server process: all, and those of shared memory."""
    links = []
    for entry in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return len(links), sum("memfd" in link for link in links)


def settled_descriptors(server):
    """Waits until the number of descriptors is stable, because connections of clients take a while to close."""
    last = None
    for _ in range(100):
        now = descriptors(server)
        if now == last:
            return now
        last = now
        time.sleep(0.1)
    return last


class Faults:
    """A server whose ranks fail at exact points of a step, by the commands in a folder (SWITCHYARD_TEST_FAULTS)."""

    def __init__(self, model, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="switchyard-faults-")
        self.server = Server(model, *flags, env={"SWITCHYARD_TEST_FAULTS": self.folder.name})

    def order(self, point, how):
        """`point`: RANK.POINT. `how`: the kind of failure. The file is renamed, so a rank never reads an incomplete
        command."""
        path = pathlib.Path(self.folder.name, point)
        path.with_name("new").write_text(how)
        path.with_name("new").rename(path)

    def waits(self, point):
        return pathlib.Path(self.folder.name, point).exists()

    def withdraw(self, point):
        pathlib.Path(self.folder.name, point).unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.__exit__()
        self.folder.cleanup()
