#!/usr/bin/env python3
"""Compares training steps of Switchyard and PyTorch on this machine.

Runs train_bench and train_torch.py alternately on the same shapes, and prints the tokens/s of the fastest
variant of each. Needs torch and transformers, and an otherwise idle machine.
"""
import argparse
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# (config, sequences, tokens per sequence). models/yardling/train.yaml uses fewer and longer sequences for Yardling.
SHAPES = [("models/yardling/config.json", 8, 512), ("bench/train/config.json", 8, 256)]
RATE = re.compile(r"([\d.]+) ms, (\d+) tokens/s \(least")


def rates(command):
    """Returns (tokens/s of the median step, printed line) for each variant that the program measures."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: {done.stderr}")
    return [(int(found[2]), line) for line in done.stdout.splitlines() if (found := RATE.search(line))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the best round of each program is compared")
    parser.add_argument("--train-bench", default=ROOT / "build/release/bench/train_bench")
    args = parser.parse_args()
    for config, sequences, length in SHAPES:
        best = {}
        for _ in range(args.rounds):
            for dtype in ("float32", "bfloat16"):
                tail = [ROOT / config, "--threads", args.threads, "--sequences", sequences, "--length", length,
                        "--compute-dtype", dtype, "--steps", args.steps]
                for name, program in (("switchyard", [args.train_bench]),
                                      ("torch", [sys.executable, HERE / "train_torch.py"])):
                    extra = ["--experts", "grouped_mm", "eager"] if name == "torch" else []
                    for rate, line in rates(program + tail + extra):
                        print(f"{name}: {line}", flush=True)
                        best[name, dtype] = max(best.get((name, dtype), 0), rate)
        print(f"\n{config}, {sequences} sequences of {length} tokens, {args.threads} threads:")
        for dtype in ("float32", "bfloat16"):
            ours, theirs = best["switchyard", dtype], best["torch", dtype]
            print(f"  {dtype}: {ours} and {theirs} tokens/s, {ours / theirs:.2f} times")
        ours = max(best["switchyard", d] for d in ("float32", "bfloat16"))
        theirs = max(best["torch", d] for d in ("float32", "bfloat16"))
        print(f"  each with its faster dtype: {ours / theirs:.2f} times\n", flush=True)


if __name__ == "__main__":
    main()
