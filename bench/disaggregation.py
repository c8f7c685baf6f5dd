#!/usr/bin/env python3
"""Inter-token times of running streams while long prompts arrive: prefill and decode workers against one worker.

    bench/disaggregation.py                                         # Yardling, one rank for each worker
    bench/disaggregation.py --streams 16 --prompts 64 --prompt 900 --backend tcp
    bench/disaggregation.py --model DIR -- --tp 2 --ep 2            # flags of every worker
    bench/disaggregation.py --device cuda --shape qwen3-30b-a3b --prompt 4096 --at-once 4 64    # a GPU for each worker
    bench/disaggregation.py --device cuda --gpus-per-worker 2 -- --tp 2 --ep 2
    bench/disaggregation.py --device cuda --gpus-per-worker 0       # both workers on one GPU: correct, but not faster

First the streams run alone ("quiet"). Then the same streams run while the prompts arrive, one after another as soon as one
of `--at-once` open prompts has ended ("loaded"). Prints the median, p99 and maximum of the time between two events of a
stream, and the time in which all prompts got their first token. The one worker has the same flags, so the pair has twice its
threads if --cpu-threads-per-rank is given, and else the same cores. On GPUs, the pair has twice its GPUs. On GPUs, a few
prompts run before the streams, because graphs are captured at the third pass with a number of rows.

SWITCHYARD names the program (build/release/switchyard).
"""
import argparse
import contextlib
import pathlib
import statistics
import sys
import threading
import time

from streams import ROOT, Stream, gaps, prepare, random_ids, shape_flags

sys.path.insert(0, str(ROOT / "tests/e2e"))
from elastic import YARDLING  # noqa: E402
from server import Server  # noqa: E402
from workers import pair  # noqa: E402

STARTED = time.monotonic()


def percentile(values, fraction):
    return values[min(len(values) - 1, int(len(values) * fraction))] * 1000


def line(name, values, more=""):
    print(f"{name:36} {len(values):6} gaps | median {statistics.median(values) * 1000:7.2f} ms | p99 "
          f"{percentile(values, .99):7.2f} ms | max {values[-1] * 1000:7.2f} ms{more}", flush=True)


class Load:
    """Starts streams and prompts whose ids occur only once."""

    def __init__(self, server, args):
        self.server, self.args, self.seed = server, args, 0

    def ids(self, length):
        self.seed += 1
        return random_ids(self.seed, length, self.args.vocabulary)

    def streams(self, tokens):
        started = [Stream(self.server, self.ids(20), tokens) for _ in range(self.args.streams)]
        while any(len(s.times) < 8 for s in started):
            check(started)
            time.sleep(0.005)
        return started

    def prompts(self, prompts, at_once):
        """Sends the prompts. Returns when all of them have two tokens."""
        room, threads, sent = threading.Semaphore(at_once), [], []

        def send(ids):
            stream = Stream(self.server, ids, 2)
            sent.append(stream)
            stream.join()
            room.release()

        for ids in prompts:
            room.acquire()
            threads.append(threading.Thread(target=send, args=(ids,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        check(sent)


def check(streams):
    failed = [s.error for s in streams if s.error]
    assert not failed, failed[0]


def join(streams):
    for stream in streams:
        stream.join()
    check(streams)


def measure(name, server, args):
    """Returns the p99 of quiet streams, and that of loaded ones for each of --at-once."""
    load = Load(server, args)
    if args.device == "cuda":
        for at_once in args.at_once:
            prompts = [load.ids(args.prompt) for _ in range(2 * max(8, min(at_once, args.prompts // 2)))]
            streams = load.streams(args.tokens)
            load.prompts(prompts, at_once)
            join(streams)
    quiet = load.streams(args.tokens)
    join(quiet)
    line(f"{name}, quiet", gaps(quiet))
    loaded = []
    for at_once in args.at_once:
        prompts = [load.ids(args.prompt) for _ in range(args.prompts)]
        streams, begin = load.streams(args.tokens * 4), time.monotonic()
        load.prompts(prompts, at_once)
        end = time.monotonic()
        found = gaps(streams, begin, end)
        line(f"{name}, loaded, {at_once} at once", found, f" | prompts {end - begin:6.2f} s")
        if not all(s.is_alive() for s in streams):
            print("the streams ended before the prompts: a larger --tokens gives more gaps", flush=True)
        join(streams)
        loaded.append(percentile(found, .99))
    print(f"# {time.monotonic() - STARTED:.0f} s since the start", flush=True)
    return percentile(gaps(quiet), .99), loaded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=YARDLING)
    parser.add_argument("--shape", help="a model of bench/models, with random weights")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="of a quiet stream; loaded ones have four times as many")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=900)
    parser.add_argument("--at-once", type=int, nargs="+", default=[4], help="one or several cases (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--backend", default="shm", choices=["shm", "tcp"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--gpus-per-worker", type=int, default=1, help="with --device cuda; 0: both workers use GPU 0")
    parser.add_argument("--only", choices=["one", "pair"], help="measure only one worker, or only the pair")
    parser.add_argument("--log", help="write the logs of the pair to this file")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    prepare()
    open_tokens = args.streams * (4 * args.tokens + 64) + max(args.at_once) * (args.prompt + 64)
    flags = ["--max-total-tokens", max(32768, 2 * open_tokens), "--max-running-requests",
             max(32, args.streams + max(args.at_once)), *args.flags]
    if args.shape:
        args.model, dummy = shape_flags(args.shape)
        flags = [*dummy, *flags]
    devices = [["--device", args.device]] * 2
    if args.device == "cuda":
        devices[1] = [*devices[1], "--base-gpu-id", args.gpus_per_worker]
    one = two = None
    if args.only != "pair":
        with Server(args.model, *devices[0], *flags) as server:
            one = measure("one worker", server, args)
            assert server.stop() == 0, server.text()  # the next worker needs the GPU's memory
    if args.only != "one":
        with contextlib.ExitStack() as stack:
            p, d, router = stack.enter_context(pair(flags, flags, model=args.model, backend=args.backend, devices=devices))
            try:
                two = measure("prefill and decode", router, args)
            except BaseException:
                for worker in (p, d, router):
                    print(worker.text()[-3000:], file=sys.stderr, flush=True)
                raise
            finally:
                if args.log:
                    pathlib.Path(args.log).write_text(p.text() + d.text() + router.text())
            if "through this host's memory" in p.text() + d.text():
                print("rows went through the memory of the host: the GPUs have no peer access")
    for name, found, other in (("one worker", one, None), ("prefill and decode", two, one)):
        for i, at_once in enumerate(args.at_once if found else []):
            more = f", {found[1][i] / other[1][i]:.2f} of one worker's" if other else ""
            print(f"p99 of loaded streams, {name}, {at_once} at once: {found[1][i] / found[0]:.2f} of quiet ones{more}")


if __name__ == "__main__":
    main()
