#!/usr/bin/env python3
"""Inter-token times of running streams while long prompts arrive: prefill and decode workers against one worker.

    bench/disaggregation.py                                         # Yardling, one rank for each worker
    bench/disaggregation.py --streams 16 --prompts 64 --prompt 900 --backend tcp
    bench/disaggregation.py --model DIR -- --tp 2 --ep 2            # flags of every worker
    bench/disaggregation.py --device cuda                           # a GPU for each worker
    bench/disaggregation.py --device cuda --gpus-per-worker 2 -- --tp 2 --ep 2
    bench/disaggregation.py --device cuda --gpus-per-worker 0       # both workers on one GPU: correct, but not faster

First the streams run alone ("quiet"). Then the same streams run while the prompts arrive, one after another as soon as one
of `--at-once` open prompts has ended ("loaded"). Prints the median, p99 and maximum of the time between two events of a
stream, and the time in which all prompts got their first token. The one worker has the same flags, so the pair has twice its
threads if --cpu-threads-per-rank is given, and else the same cores. On GPUs, the pair has twice its GPUs.

SWITCHYARD names the program (build/release/switchyard).
"""
import argparse
import contextlib
import http.client
import json
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import Server  # noqa: E402
from test_disaggregation import YARDLING, pair  # noqa: E402


class Stream(threading.Thread):
    """Reads a stream, and keeps the times of its events."""

    def __init__(self, server, ids, tokens):
        super().__init__(daemon=True)
        self.url, self.times = urllib.parse.urlparse(server.url), []
        self.body = {"input_ids": ids, "stream": True,
                     "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}}
        self.start()

    def run(self):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=600)
        connection.request("POST", "/generate", json.dumps(self.body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                assert b'"error"' not in line, line
                self.times.append(time.monotonic())


def gaps(streams, begin=0.0, end=float("inf")):
    return sorted(b - a for s in streams for a, b in zip(s.times, s.times[1:]) if begin <= b <= end)


def percentile(values, fraction):
    return values[min(len(values) - 1, int(len(values) * fraction))] * 1000


def line(name, values, more=""):
    print(f"{name:22} {len(values):6} gaps | median {statistics.median(values) * 1000:7.2f} ms | p99 {percentile(values, .99):7.2f} ms"
          f" | max {values[-1] * 1000:7.2f} ms{more}", flush=True)


def measure(name, server, args):
    r = random.Random(1)

    def ids(count):
        return [r.randrange(2, args.vocabulary) for _ in range(count)]

    quiet = [Stream(server, ids(20), args.tokens) for _ in range(args.streams)]
    for stream in quiet:
        stream.join()
    line(name + ", quiet", gaps(quiet))
    streams = [Stream(server, ids(20), args.tokens * 4) for _ in range(args.streams)]
    while any(len(s.times) < 8 for s in streams):
        time.sleep(0.005)
    begin, room, prompts = time.monotonic(), threading.Semaphore(args.at_once), []

    def send(prompt):
        Stream(server, prompt, 2).join()
        room.release()

    for _ in range(args.prompts):
        room.acquire()
        prompts.append(threading.Thread(target=send, args=(ids(args.prompt),)))
        prompts[-1].start()
    for prompt in prompts:
        prompt.join()
    end = time.monotonic()
    assert all(s.is_alive() for s in streams), "the streams ended before the prompts: want more --tokens"
    line(name + ", loaded", gaps(streams, begin, end), f" | prompts {end - begin:6.2f} s")
    for stream in streams:
        stream.join()
    return percentile(gaps(quiet), .99), percentile(gaps(streams, begin, end), .99)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=YARDLING)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="of a quiet stream; loaded ones have four times as many")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=900)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--backend", default="shm", choices=["shm", "tcp"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--gpus-per-worker", type=int, default=1, help="with --device cuda; 0: both workers use GPU 0")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    sys.setswitchinterval(1e-4)  # else threads get their events in bursts of 5 ms
    flags = ["--max-total-tokens", 32768, *args.flags]
    devices = [["--device", args.device]] * 2
    if args.device == "cuda":
        devices[1] = [*devices[1], "--base-gpu-id", args.gpus_per_worker]
    with Server(args.model, *devices[0], *flags) as server:
        one = measure("one worker", server, args)
    with contextlib.ExitStack() as stack:
        p, d, router = stack.enter_context(pair(flags, flags, model=args.model, backend=args.backend, devices=devices))
        two = measure("prefill and decode", router, args)
        if "through this host's memory" in p.text() + d.text():
            print("rows went through the memory of the host: the GPUs have no peer access")
    print(f"p99 of loaded streams: {two[1] / two[0]:.2f} of quiet ones, {two[1] / one[1]:.2f} of one worker's")


if __name__ == "__main__":
    main()
