#!/usr/bin/env python3
"""Pause of streams after the end of a rank, and the cost of a cache that outlives its process, on ranks of this machine.

    bench/elastic_pause.py                               # Yardling, two CPU ranks, 64 streams of 900 prompt tokens
    bench/elastic_pause.py --streams 32 --prompt 100 -- --tp 4 --ep 4 --moe-a2a-backend deepep
    bench/elastic_pause.py --cost -- --tp 1              # decoding with and without elastic ranks, in alternation
    bench/elastic_pause.py --dummy --streams 2 --prompt 64 --tokens 20 --rounds 2   # OLMoE's shape, 14 GB of weights
    bench/elastic_pause.py --dummy ... -- --tp 2 --ep 2 --quantization int8         # the same case with half the memory
    bench/elastic_pause.py --dummy ... -- --tp 4 ... --elastic-ep-backend mooncake   # the others serve while it loads
    bench/elastic_pause.py -- --tp 2 --ep 2 --spare-ranks 1             # each round waits until the spare has loaded
    bench/elastic_pause.py --device cuda --shape qwen3-30b-a3b --streams 32 --tokens 160 --when decode prefill \\
        --seconds 140 -- --tp 2 --ep 2 --moe-a2a-backend deepep         # ranks on GPUs

First the streams run undisturbed. In each round they start again, with an empty prefix cache, and a rank ends (SIGKILL or
SIGSTOP): in turn rank 0, rank 1, and so on. With --when decode it ends when all streams have tokens, with prefill when the
first one has. Prints a line for each end, and a summary. If --seconds is over, no further round starts.

Times in ms. From the detection of the end: until all ranks have left the last epoch ("epoch ended"), "loading", until all
ranks serve ("serving"), and until the first token. "longest gap": the longest time between two events of a stream, or from
the signal to the first event. "all ranks": from the signal until all ranks serve; with --elastic-ep-backend the others
serve before that. "full rate": from the signal until 90 % of the undisturbed tokens per second are reached again; only
with --when decode. After SIGSTOP, these three contain --rank-stall-timeout.
"new": ranks with a new process. "lost": requests with an error or too few tokens. "changed": requests with other tokens than
undisturbed.

Rounds with --disable-radix-cache compute all prompts again, so they show what the kept cache saves. With dummy weights, a
new rank generates its weights again; with a checkpoint, it maps the file. With --device cuda, the lines of the log about
the parts of a pause follow each end, on standard error.

Arguments after `--` are passed to the server. SWITCHYARD names the program (default build/release/switchyard).
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import sys
import time

from streams import ROOT, Stream, gaps, prepare, random_ids, shape_flags

sys.path.insert(0, str(ROOT / "tests/e2e"))
from elastic import YARDLING, Client, finish, metric, ready_spares  # noqa: E402
from server import Server  # noqa: E402

STARTED = time.monotonic()
WAIT_SECONDS = 100
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
COLUMNS = ("epoch ended", "loading", "serving", "first token", "longest gap", "all ranks", "full rate", "new", "lost", "changed")
PATTERNS = (r"all ranks have ended their epoch after (\d+) ms", r"new ranks have loaded after (\d+) ms",
            r"serving again after a pause of (\d+) ms", r"the first token came (\d+) ms")
PARTS = r".*(?:ready after|are mapped after|has left GPUs after|waited for its epoch|have ended their epoch after|pages of the last epoch).*"


def wait_for(what, condition):
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {WAIT_SECONDS} s"
        time.sleep(0.002)


def start(server, args):
    return [Stream(server, random_ids(i, args.prompt), args.tokens) for i in range(args.streams)]


def join(streams):
    for stream in streams:
        stream.join(WAIT_SECONDS)
        assert not stream.is_alive(), f"a stream has not ended within {WAIT_SECONDS} s"


def rates(streams, begin, window=0.1):
    """Tokens per second of all streams, in windows from `begin` on until the first stream ends."""
    times = sorted(t for s in streams for t in s.times)
    ends = min((s.times[-1] for s in streams if s.times), default=begin)
    found, at = [], begin
    while at + window <= ends:
        found.append((at, sum(at <= t < at + window for t in times) / window))
        at += window / 4
    return found


def full_rate(streams, begin, rate):
    """When 90 % of `rate` is reached after `begin`; None: never."""
    return next((at for at, now in rates(streams, begin) if now >= 0.9 * rate), None)


def longest_gap(stream, since):
    """The longest time without an event that ends after `since`: seconds."""
    before = [t for t in stream.times if t <= since]
    after = [t for t in stream.times if t > since]
    return max((b - a for a, b in zip([before[-1] if before else since, *after], after)), default=0)


def undisturbed(server, args):
    """The outputs of all streams, and the tokens per second of decoding. The second time, graphs are captured."""
    for _ in range(2):
        assert server.request("/flush_cache", method="POST")[0] == 200, server.text()
        streams = start(server, args)
        join(streams)
        failed = [s.error for s in streams if s.error]
        assert not failed, failed[0]
    decoding = rates(streams, max(s.times[0] for s in streams))
    rate = statistics.median(rate for _, rate in decoding) if decoding else float("nan")
    quiet = gaps(streams, max(s.times[0] for s in streams))
    print(f"undisturbed: {rate:.0f} tokens/s of decoding, gaps of {statistics.median(quiet) * 1000:.1f} ms (median), "
          f"{quiet[-1] * 1000:.1f} ms (longest); after {time.monotonic() - STARTED:.0f} s", flush=True)
    server.wait_idle()
    return [s.output() for s in streams], rate


def end_a_rank(server, args, victim, when, how, want, rate):
    """Ends a rank while streams run. Returns the values of COLUMNS."""
    spares = server.request("/get_server_info")[1].get("spare_ranks", {"wanted": 0})["wanted"]
    wait_for("spare ranks", lambda: spares == 0 or ready_spares(server) == spares)
    assert server.request("/flush_cache", method="POST")[0] == 200, server.text()
    epoch, pids = metric(server, "switchyard_epoch"), server.ranks()
    streams = start(server, args)
    if when == "decode":
        wait_for("the streams", lambda: all(len(s.times) > 4 or s.error for s in streams))
    else:
        wait_for("the first stream", lambda: any(s.times or s.error for s in streams))
    before, killed = len(server.text()), time.monotonic()
    os.kill(pids[victim], how)
    wait_for("the next epoch", lambda: metric(server, "switchyard_epoch") > epoch)
    wait_for("all ranks", lambda: metric(server, "switchyard_serving_ranks") == len(pids))
    whole = (time.monotonic() - killed) * 1000
    join(streams)
    server.wait_idle()
    text = server.text()[before:]
    found = [re.search(pattern, text) for pattern in PATTERNS]
    again = full_rate(streams, killed + whole / 1000, rate) if when == "decode" else None
    if args.device == "cuda":
        for line in re.findall(PARTS, text):
            print(f"#   {line}", file=sys.stderr, flush=True)
    for stream in [s for s in streams if s.error][:2]:
        print(f"# lost: {stream.error[:300]}", file=sys.stderr, flush=True)
    outputs = [s.output() for s in streams]
    return [*(float(m.group(1)) if m else None for m in found), max(longest_gap(s, killed) for s in streams) * 1000, whole,
            None if again is None else (again - killed) * 1000,
            sum(a != b for a, b in zip(pids, server.ranks())),
            sum(bool(s.error) or len(o) != args.tokens for s, o in zip(streams, outputs)),
            sum(o != w for o, w in zip(outputs, want))]


def cell(values):
    values = [v for v in values if v is not None]
    if not values:
        return ""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def head(*first):
    print(f"| {' | '.join([*first, *COLUMNS])} |\n{'|---' * (len(first) + len(COLUMNS))}|", flush=True)


def pauses(model, flags, args):
    caches = [("kept", []), ("none", ["--disable-radix-cache"])][:1 if args.shape or args.device == "cuda" else 2]
    for name, more in caches:
        rows = {(when, how): [] for when in args.when for how in args.how}
        with Server(model, *flags, *more, "--max-rank-deaths", "1000/60") as server:
            try:
                want, rate = undisturbed(server, args)
                head("cache", "when", "end", "rank")
                ranks = len(server.ranks())
                for round in range(args.rounds):
                    for when, how in rows:
                        if time.monotonic() - STARTED > args.seconds:
                            continue
                        victim = round % ranks
                        row = end_a_rank(server, args, victim, when, SIGNALS[how], want, rate)
                        rows[when, how].append(row)
                        print(f"| {name} | {when} | {how} | {victim} | {' | '.join(cell([v]) for v in row)} |", flush=True)
            except BaseException:
                print(server.text()[-6000:], file=sys.stderr, flush=True)
                raise
            finally:
                if args.log:
                    pathlib.Path(args.log).write_text(server.text())
            assert server.stop() == 0, server.text()
        print(f"\n{sum(len(r) for r in rows.values())} ends in {time.monotonic() - STARTED:.0f} s, smallest to largest values:\n")
        head("cache", "when", "end", "ends")
        for (when, how), found in rows.items():
            if found:
                print(f"| {name} | {when} | {how} | {len(found)} | {' | '.join(map(cell, zip(*found)))} |", flush=True)
        print(flush=True)


def cpu_seconds(server):
    """CPU seconds of all ranks. Other programs on the machine affect CPU time less than elapsed time."""
    ticks = 0
    for pid in server.ranks():
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def decode_seconds(server, args):
    """CPU seconds per output token. The first call also computes the prompts; later calls find them in the cache."""
    def body(number):
        return {"input_ids": random_ids(number, args.prompt), "stream": False,
                "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": args.tokens}}

    tokens, before = server.state()["decode_tokens"], cpu_seconds(server)
    finish([Client(server, body(i)) for i in range(args.streams)])
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
    parser.add_argument("--rounds", type=int, default=5, help="each with an end for each of --when and --how (%(default)s)")
    parser.add_argument("--when", nargs="+", choices=["decode", "prefill"], default=["decode"])
    parser.add_argument("--how", nargs="+", choices=list(SIGNALS), default=list(SIGNALS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no round later than this")
    parser.add_argument("--log", help="write the log of the (last) server to this file")
    parser.add_argument("--cost", action="store_true")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:own])
    ranks = words[own + 1:] or ["--tp", 2, "--ep", 2]
    tokens = 2 * args.streams * (args.prompt + args.tokens + 64)
    flags = ["--device", args.device, "--max-total-tokens", tokens, "--max-running-requests", args.streams,
             "--log-level", "info", *ranks]
    if args.shape:
        args.model, dummy = shape_flags(args.shape)
        flags += dummy
    prepare()
    if args.cost:
        print("decoding, paired:", flush=True)
    (cost if args.cost else pauses)(args.model, flags, args)


if __name__ == "__main__":
    main()
