"""Streams of greedy generations, for benchmarks that measure the times between tokens."""
import http.client
import json
import pathlib
import random
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]


def prepare():
    """Call before streams start: else their threads get events in bursts of 5 ms."""
    sys.setswitchinterval(1e-4)


def shape_flags(shape):
    """The folder of a model of bench/models, and the flags that give it random weights and a tokenizer."""
    folder = ROOT / "bench/models" / shape
    if not folder.is_dir():
        sys.exit(f"--shape {shape}: want one of {', '.join(sorted(p.name for p in folder.parent.iterdir() if p.is_dir()))}")
    return folder, ["--load-format", "dummy", "--tokenizer-path", ROOT / "tests/data/fixtures/olmoe"]


def random_ids(seed, count, vocabulary=2000):
    r = random.Random(seed)
    return [r.randrange(2, vocabulary) for _ in range(count)]


class Stream(threading.Thread):
    """Sends a request to /generate. `times`: when its events arrived (time.monotonic). `error`: why it failed, or None."""

    def __init__(self, server, ids, tokens):
        super().__init__(daemon=True)
        self.url, self.times, self.last, self.error = urllib.parse.urlparse(server.url), [], None, None
        self.body = {"input_ids": ids, "stream": True,
                     "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}}
        self.start()

    def run(self):
        try:
            self._receive()
        except Exception as e:  # the caller counts it
            self.error = self.error or repr(e)

    def _receive(self):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=100)
        connection.request("POST", "/generate", json.dumps(self.body), {"Content-Type": "application/json"})
        response, complete = connection.getresponse(), False
        for line in response:
            if line.startswith(b'data: {"text"'):
                self.times.append(time.monotonic())
                self.last = line
            elif line.startswith(b"data: {"):
                self.error = line.decode(errors="replace").strip()
            complete = complete or line.startswith(b"data: [DONE]")
        if not complete:
            self.error = f"status {response.status}, the stream ended after {len(self.times)} events"
        connection.close()

    def output(self):
        """The ids of all tokens. Events contain the accumulated output."""
        return json.loads(self.last[6:])["output_ids"] if self.last else []


def gaps(streams, begin=0.0, end=float("inf")):
    """The times between two events of a stream, in seconds, in ascending order."""
    return sorted(b - a for s in streams for a, b in zip(s.times, s.times[1:]) if begin <= b <= end)
