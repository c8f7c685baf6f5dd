#!/usr/bin/env python3
"""Pause of streams after the end of a rank, and the cost of a cache that outlives its process, on ranks of this machine.

    bench/elastic_pause.py                               # Yardling, two CPU ranks, 64 streams of 900 prompt tokens
    bench/elastic_pause.py --streams 32 --prompt 100 -- --tp 4 --ep 4 --moe-a2a-backend deepep
    bench/elastic_pause.py --cost -- --tp 1              # decoding with and without elastic ranks, in alternation
    bench/elastic_pause.py --dummy --streams 2 --prompt 64 --tokens 20 --rounds 2   # OLMoE's shape, 14 GB of weights
    bench/elastic_pause.py --dummy ... -- --tp 2 --ep 2 --quantization int8         # the same case with half the memory
    bench/elastic_pause.py --dummy ... -- --tp 4 ... --elastic-ep-backend mooncake   # the others serve while it loads
    bench/elastic_pause.py -- --tp 2 --ep 2 --spare-ranks 1             # each round waits until the spare has loaded
    bench/elastic_pause.py --device cuda --shape qwen3-30b-a3b --streams 32 --prompt 512 --tokens 400 --rounds 2 \\
        -- --tp 2 --ep 2 --moe-a2a-backend deepep                       # ranks on GPUs

Each round starts all streams, waits until they decode, and ends a rank. Prints the times from the detection of the end:
until all ranks have left the last epoch, until all ranks serve, and until the first token. Also prints the longest gap
of a stream. "loading" is the part of the pause in which ranks start and load. "all ranks" is the time from the end of
the rank until all ranks serve again; with --elastic-ep-backend the others serve before that. Rounds with --disable-radix-cache
compute all prompts again, so they show what the kept cache saves. With dummy weights, a new rank generates its weights
again; with a checkpoint, it maps the file. With --device cuda, the lines "ready after" and "are mapped after" of the log
follow the table: the parts of the start of each rank.

Arguments after `--` are passed to the server. SWITCHYARD names the program (default build/release/switchyard).
"""
import argparse
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from elastic import YARDLING, Client, finish, metric, ready_spares, wait_until  # noqa: E402
from server import Server  # noqa: E402


def body(number, prompt, tokens):
    r = random.Random(number)
    return {"input_ids": [r.randrange(2, 2000) for _ in range(prompt)], "stream": True,
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}}


def wait_for_spares(server):
    spares = server.request("/get_server_info")[1].get("spare_ranks", {"wanted": 0})
    wait_until(lambda: spares["wanted"] == 0 or ready_spares(server) == spares["wanted"], 300)


def start(server, args, round):
    wait_for_spares(server)
    clients = [Client(server, body(round * args.streams + i, args.prompt, args.tokens)) for i in range(args.streams)]
    wait_until(lambda: all(c.events > 4 or c.result is not None for c in clients), 300)
    return clients


def end_a_rank(server, args, round, how):
    epoch = metric(server, "switchyard_epoch")
    clients = start(server, args, round)
    for client in clients:
        client.gap = 0.0
    pids = server.ranks()
    before, killed = len(server.text()), time.monotonic()
    os.kill(pids[round % len(pids)], how)
    wait_until(lambda: metric(server, "switchyard_epoch") > epoch, 300)
    wait_until(lambda: metric(server, "switchyard_serving_ranks") == len(pids), 300)
    whole = (time.monotonic() - killed) * 1000
    results = finish(clients)
    assert all(isinstance(result, dict) for result in results), [r for r in results if not isinstance(r, dict)][0]
    text = server.text()[before:]
    lines = (r"all ranks have ended their epoch after (\d+) ms", r"new ranks have loaded after (\d+) ms",
             r"serving again after a pause of (\d+) ms", r"the first token came (\d+) ms")
    return *(int(re.findall(line, text)[0]) for line in lines), max(c.gap for c in clients) * 1000, whole


def show_parts(server):
    """Prints how long the parts of the starts of ranks took."""
    for line in re.findall(r".*(?:ready after|are mapped after|have ended their epoch after).*", server.text()):
        print(line, file=sys.stderr, flush=True)


def pauses(model, flags, args):
    for name, more in (("kept cache", []), ("no cache", ["--disable-radix-cache"]))[:1 if args.shape or args.device == "cuda" else 2]:
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with Server(model, *flags, *more, "--max-rank-deaths", "1000/60") as server:
                rows = [end_a_rank(server, args, round, how) for round in range(args.rounds)]
                if args.device == "cuda":
                    show_parts(server)
            spans = [f"{min(column):.0f} to {max(column):.0f}" for column in zip(*rows)]
            print(f"| {name} | {how.name} | {' | '.join(spans)} |", flush=True)


def cpu_seconds(server):
    """CPU seconds of all ranks. Other programs on the machine affect CPU time less than elapsed time."""
    ticks = 0
    for pid in server.ranks():
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def decode_seconds(server, args):
    """CPU seconds per output token. The first call also computes the prompts; later calls find them in the cache."""
    tokens, before = server.state()["decode_tokens"], cpu_seconds(server)
    finish([Client(server, {**body(i, args.prompt, args.tokens), "stream": False}) for i in range(args.streams)])
    return (cpu_seconds(server) - before) / (server.state()["decode_tokens"] - tokens)


def cost(model, flags, args):
    """Compares two servers, with and without elastic ranks. They decode in turn, so that other load affects both."""
    with Server(model, *flags) as on, Server(model, *flags, "--disable-elastic-ep") as off:
        ratios = []
        for round in range(args.rounds + 1):
            times = {server: decode_seconds(server, args) for server in ((on, off) if round % 2 else (off, on))}
            if round == 0:
                continue
            ratios.append(times[on] / times[off])
            print(f"{1e6 * times[on]:.1f} µs of CPU time a token with, {1e6 * times[off]:.1f} µs without", flush=True)
        print(f"median ratio {statistics.median(ratios):.4f}, from {min(ratios):.4f} to {max(ratios):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=YARDLING)
    parser.add_argument("--shape", help="a model of bench/models, with random weights")
    parser.add_argument("--dummy", dest="shape", action="store_const", const="olmoe-1b-7b", help="--shape olmoe-1b-7b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=900)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cost", action="store_true")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:own])
    ranks = words[own + 1:] or ["--tp", 2, "--ep", 2]
    tokens = 2 * args.streams * (args.prompt + args.tokens + 64)
    flags = ["--device", args.device, "--max-total-tokens", tokens, "--max-running-requests", args.streams, *ranks]
    if args.shape:
        args.model = ROOT / "bench/models" / args.shape
        flags += ["--load-format", "dummy", "--tokenizer-path", ROOT / "tests/data/fixtures/olmoe"]
    print("| cache | end | epoch ended, ms | loading, ms | serving, ms | first token, ms | longest gap, ms | "
          "all ranks, ms |\n|---|---|---|---|---|---|---|---|"
          if not args.cost else "decoding, paired:", flush=True)
    (cost if args.cost else pauses)(args.model, flags, args)


if __name__ == "__main__":
    main()
