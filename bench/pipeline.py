#!/usr/bin/env python3
"""Efficiency of pipeline stages on CPU ranks of this machine, from the operation traces of all ranks.

    bench/pipeline.py                                    # Yardling, 2 stages
    bench/pipeline.py --dummy --chunk 128                # OLMoE's shape with 8 layers, random weights
    bench/pipeline.py --stages 4 -- --pp-async-batch-depth 1

Prefill: one prompt of --chunks chunks. Efficiency is the time in which stages compute, divided by stages times elapsed
time. m chunks through p equal stages give at most m / (m + p - 1); the table has this bound, and the efficiency divided
by it. Decode: --streams requests. A stage is busy while it runs operations other than receiving rows, or samples tokens.

Run it on a quiet machine with at least one core for each stage. Arguments after `--` are passed to the server. SWITCHYARD
names the program (build/release/switchyard).
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import Server  # noqa: E402

WAITS = {"receive"}  # operations that wait for another stage


def busy_intervals(file):
    """The intervals in microseconds in which a rank computes, in order."""
    events = [e for e in json.loads(pathlib.Path(file).read_text())["traceEvents"] if e["ph"] == "X"]
    own = [e for e in events if (e["cat"] == "operation" and e["name"] not in WAITS) or e["name"] == "sample"]
    intervals = []
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in own):
        if intervals and begin <= intervals[-1][1]:
            intervals[-1][1] = max(end, intervals[-1][1])
        else:
            intervals.append([begin, end])
    return intervals


def busy_time(intervals, begin, end):
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in intervals)


def traced(server, run):
    """Runs `run` while all ranks are profiled. Returns the intervals of the first rank of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        status, answer = server.request("/start_profile", {"output_dir": folder, "profile_prefix": "run"})
        assert status == 200, answer
        run()
        status, answer = server.request("/stop_profile", method="POST")
        assert status == 200 and answer["dropped_events"] == 0, answer
        files = answer["files"]
        return [busy_intervals(file) for file in files[::len(files) // server.stages]]


def body(number, length, tokens):
    r = random.Random(number)
    return {"input_ids": [r.randrange(2, 2000) for _ in range(length)],
            "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": tokens}}


def generate(server, number, length, tokens):
    status, answer = server.request("/generate", body(number, length, tokens), timeout=600)
    assert status == 200, answer


def prefill(server, args, round):
    stages = traced(server, lambda: generate(server, round, args.chunks * args.chunk, 1))
    begin, end = min(s[0][0] for s in stages), max(s[-1][1] for s in stages)
    return sum(busy_time(s, begin, end) for s in stages) / (len(stages) * (end - begin))


def decode(server, args, round):
    def run():
        with concurrent.futures.ThreadPoolExecutor(args.streams) as pool:
            list(pool.map(lambda i: generate(server, 1000 * round + i, 8, args.tokens), range(args.streams)))

    stages = traced(server, run)
    begin, end = max(s[0][0] for s in stages), min(s[-1][1] for s in stages)
    margin = 0.2 * (end - begin)  # prompts at the start, fewer requests at the end
    begin, end = begin + margin, end - margin
    return [busy_time(s, begin, end) / (end - begin) for s in stages]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--chunk", type=int, default=128, help="prompt tokens of a chunk")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="output tokens of a stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--partition", default="", help="--pp-layer-partition")
    parser.add_argument("server_flags", nargs="*")
    args = parser.parse_args()
    flags = ["--pp-size", args.stages, "--chunked-prefill-size", args.chunk, "--target-step-ms", 0, "--max-total-tokens",
             2 * args.chunks * args.chunk + args.streams * (args.tokens + 16), "--log-level", "warning",
             *(["--pp-layer-partition", args.partition] if args.partition else []), *args.server_flags]
    model = ROOT / "models/yardling"
    if args.dummy:
        model = ROOT / "bench/models/olmoe-1b-7b"
        flags += ["--load-format", "dummy", "--tokenizer-path", ROOT / "tests/data/fixtures/olmoe",
                  "--json-model-override-args", '{"num_hidden_layers": 8}']
    with Server(model, *flags) as server:
        server.stages = args.stages
        generate(server, 1, args.chunk, 4)  # warms up
        found = [prefill(server, args, 10 + round) for round in range(args.rounds)]
        bound = args.chunks / (args.chunks + args.stages - 1)
        median = statistics.median(found)
        print(f"prefill, {args.chunks} chunks of {args.chunk}, {args.stages} stages: efficiency {median:.3f} "
              f"({min(found):.3f} to {max(found):.3f}), bound {bound:.3f}, ratio {median / bound:.3f}", flush=True)
        busy = [decode(server, args, 100 + round) for round in range(args.rounds)]
        for stage, values in enumerate(zip(*busy)):
            print(f"decode, {args.streams} streams: stage {stage} busy {statistics.median(values):.3f} "
                  f"({min(values):.3f} to {max(values):.3f})", flush=True)


if __name__ == "__main__":
    main()
