#!/usr/bin/env python3
"""Compares 4-bit weights on CPUs with ik_llama.cpp: decode of 1, 8 and 32 sequences, and a prompt of 512 tokens.

    bench/cpu/four_bits.py --peer PEER/SOURCE --work DIR              # OLMoE-1B-7B's shape, three rounds
    bench/cpu/four_bits.py --peer PEER/SOURCE --work DIR --model gpt-oss-20b

The peer is ik_llama.cpp, whose source is in PEER/SOURCE. The script builds it in PEER/SOURCE/build, writes GGUF files
with random weights to DIR, and runs all cases in turn, round after round. It prints medians and their ratios to the
peer. Runs of Switchyard also measure plain reads of memory. Both programs read the same GGUF files. All tokens are
random, because equal tokens select equal experts. The peer's batched bench repeats one token, so the script patches it.

SWITCHYARD names the program (default build/release/switchyard). The figures need an idle machine.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import random_gguf  # noqa: E402

PROMPT, SHORT, OUTPUT = 512, 16, 32
METRICS = ("prefill 512", "decode b1", "decode b8", "decode b32")


def build_peer(source, jobs):
    build = source / "build"
    bench = source / "examples/batched-bench/batched-bench.cpp"
    text = bench.read_text()
    text = re.sub(r"common_batch_add\(batch, 0,", "common_batch_add(batch, rand() % 50000 + 1,", text)
    if text != bench.read_text():
        bench.write_text(text)
    if not (build / "build.ninja").exists():
        options = ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF",
                   "LLAMA_BUILD_SERVER=OFF"]
        options = [f"-D{option}" for option in options]
        subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", *options], check=True)
    subprocess.run(["nice", "ninja", "-C", build, f"-j{jobs}", "llama-batched-bench"], check=True)
    return build / "bin/llama-batched-bench"


class Peer:
    def __init__(self, name, program, file, args):
        self.name, self.command = name, [program, "-m", file, "-t", str(args.threads), *args.peer_flags.split()]

    def lines(self, prompt, batches):
        tokens = max(batches) * (prompt + OUTPUT)
        command = [*self.command, "-c", str(tokens + 64), "-b", "2048", "-ub", "512", "-npp", str(prompt), "-ntg",
                   str(OUTPUT), "-npl", ",".join(map(str, batches))]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        out = done.stdout + done.stderr
        rows = [[float(x) for x in line.strip("| ").split("|")] for line in out.splitlines()
                if re.fullmatch(r"\|( *[0-9.]+ \|){10} *", line)]
        if done.returncode != 0 or len(rows) != len(batches):
            sys.exit(f"{' '.join(map(str, command))} failed:\n{out[-3000:]}")
        return rows

    def run(self):
        one = self.lines(PROMPT, [1])[0]
        many = self.lines(SHORT, [8, 32])
        return {"prefill 512": one[5], "decode b1": one[7], "decode b8": many[0][7], "decode b32": many[1][7]}


class Ours:
    def __init__(self, name, model, flags, args):
        self.name, self.json, self.peak = name, args.work / "ours.json", ""
        self.command = [args.program, "bench", "one-batch", "--device", "cpu", "--model-path", model, "--output-len",
                        str(OUTPUT), "--json", self.json, "--cpu-threads-per-rank", str(args.threads), *flags]

    def rows(self, prompt, batches):
        command = [*self.command, "--input-len", str(prompt), "--batch-size", *map(str, batches)]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        self.peak = next((line for line in done.stdout.splitlines() if line.startswith("memory: ")), self.peak)
        return json.loads(self.json.read_text())

    def run(self):
        one = self.rows(PROMPT, [1])[0]
        many = self.rows(SHORT, [8, 32])
        out = {"prefill 512": one["prefill_tokens_per_second"], "plain reads GB/s": one["bandwidth"] / 1e9}
        for name, row in zip(METRICS[1:], [one, *many]):
            out[name] = row["decode_tokens_per_second"]
            steps = row["decode_tokens_per_second"] / row["batch_size"]
            out[f"{name} of reads"] = steps * row["decode_bytes_per_step"] / row["bandwidth"]
        return out


def rules(*entries):
    return json.dumps({"rules": [{"targets": [target], "method": method, **more} for target, method, more in entries]})


def contestants(args, peer):
    shape = ROOT / "bench/models" / args.model
    if args.model == "gpt-oss-20b":
        file = written(args.work / "gpt-oss-20b-mxfp4.gguf", random_gguf.gpt_oss, "MXFP4")
        return [(Peer("peer mxfp4", peer, file, args), None), (Ours("gguf mxfp4", file, [], args), "peer mxfp4")]
    k = written(args.work / "olmoe-q4_k_s.gguf", random_gguf.olmoe, "Q4_K")
    mx = written(args.work / "olmoe-mxfp4.gguf", random_gguf.olmoe, "MXFP4")
    dummy = ["--load-format", "dummy"]
    head = ("lm_head", "int8", {})
    attention = ("self_attn", "int4", {"group_size": 32, "zero_points": True})

    def packed(name, method, peer_name, *chosen):
        flags = [*dummy, "--quantization", method, "--quantization-config", rules(*chosen)]
        return Ours(name, shape, flags, args), peer_name

    return [
        (Peer("peer q4_k_s", peer, k, args), None),
        (Ours("gguf q4_k_s", k, [], args), "peer q4_k_s"),
        packed("int4", "int4", "peer q4_k_s", head),
        (Peer("peer mxfp4", peer, mx, args), None),
        (Ours("gguf mxfp4", mx, [], args), "peer mxfp4"),
        packed("mxfp4", "mxfp4", "peer mxfp4", attention, head),
        packed("int8", "w8a8_int8", None, head),
    ]


def written(path, write, kind):
    if not path.exists():
        print(f"writing {path.name}", flush=True)
        write(path, kind)
    return path


def show(results, against):
    def median(name, metric):
        return statistics.median(round[metric] for round in results[name])

    rounds = len(next(iter(results.values())))
    print(f"\nmedians of {rounds} rounds, tokens/s; in parentheses: ratio to the peer; %: of the rate of plain reads")
    print("| | " + " | ".join(METRICS) + " | plain reads GB/s |\n|" + "---|" * (len(METRICS) + 2))
    for name, rounds in results.items():
        cells = []
        for metric in METRICS:
            text = f"{median(name, metric):.1f}"
            if against[name]:
                text += f" ({median(name, metric) / median(against[name], metric):.2f})"
            if f"{metric} of reads" in rounds[0]:
                text += f", {100 * median(name, f'{metric} of reads'):.0f} %"
            cells.append(text)
        reads = f"{median(name, 'plain reads GB/s'):.1f}" if "plain reads GB/s" in rounds[0] else ""
        print(f"| {name} | " + " | ".join(cells) + f" | {reads} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=pathlib.Path,
                        help="source directory of ik_llama.cpp; without it, only Switchyard runs")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="directory for files and results")
    parser.add_argument("--model", choices=("olmoe-1b-7b", "gpt-oss-20b"), default="olmoe-1b-7b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*", help="run only these cases (names in the first column of the table)")
    parser.add_argument("--peer-flags", default="-rtr",
                        help="flags of the peer (%(default)s: repack weights while loading)")
    args = parser.parse_args()
    args.program = os.environ.get("SWITCHYARD", ROOT / "build/release/switchyard")
    args.work.mkdir(parents=True, exist_ok=True)
    chosen = contestants(args, build_peer(args.peer, args.threads) if args.peer else None)
    chosen = [(c, peer) for c, peer in chosen if not args.only or c.name in args.only]
    if not args.peer:
        chosen = [(c, peer) for c, peer in chosen if isinstance(c, Ours)]
    against = {c.name: peer if any(peer == other.name for other, _ in chosen) else None for c, peer in chosen}
    results = {c.name: [] for c, _ in chosen}
    for number in range(args.rounds):
        for contestant, _ in chosen:
            results[contestant.name].append(contestant.run())
            latest = results[contestant.name][-1]
            figures = ", ".join(f"{metric} {value:.3g}" for metric, value in latest.items())
            print(f"round {number + 1}, {contestant.name}: {figures}", flush=True)
    for contestant, _ in chosen:
        if getattr(contestant, "peak", ""):
            print(f"{contestant.name}: {contestant.peak}")
    (args.work / f"{args.model}.json").write_text(json.dumps(results, indent=1))
    show(results, against)


if __name__ == "__main__":
    main()
