#!/usr/bin/env python3
"""Compares the losses of FP8 and bfloat16 products on a GPU.

Trains a small mixture of experts on the sources and documents of this repository: with bfloat16 products, with FP8
products, and with bfloat16 products that are summed in another order. All runs have the same weights, rows and steps. Prints
the mean loss of each tenth of the steps. Fails if the mean of the last tenth with FP8 differs by more than --bound. The third
run shows by how much rounding errors alone change the losses, because they can change a choice of experts.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# All widths are multiples of 128.
CONFIG = {"architectures": ["MixtralForCausalLM"], "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 6,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 512, "num_local_experts": 16,
          "num_experts_per_tok": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
RUNS = {"bfloat16": ["--compute-dtype", "bfloat16"], "fp8": ["--compute-dtype", "fp8"],
        "bfloat16, other micro-batches": ["--compute-dtype", "bfloat16", "--rows-per-pass", 8]}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} {command[1]}: {done.stderr}")


def collect(folder):
    """Copies the sources and documents as text files. Other kinds of files in a directory are not data."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, kinds in (("src", ("cc", "h", "cu", "cuh")), ("docs", ("md",))):
        for path in sorted((ROOT / part).rglob("*")):
            if path.suffix[1:] in kinds:
                name = str(path.relative_to(ROOT)).replace("/", "_")
                (folder / f"{name}.txt").write_text(path.read_text())


def tenths(output, steps):
    """The mean losses of ten parts of the run."""
    losses = [json.loads(line)["main"] for line in (output / "log.jsonl").read_text().splitlines() if '"main"' in line]
    if len(losses) != steps:
        sys.exit(f"{output}: {len(losses)} steps in log.jsonl, want {steps}")
    size = steps // 10
    return [sum(losses[i:i + size]) / size for i in range(0, size * 10, size)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path, help="directory of the runs, which must not exist")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--bound", type=float, default=0.005, help="largest relative difference of the last losses")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs; the runs are divided among them")
    parser.add_argument("--switchyard", default=ROOT / "build/release/switchyard")
    args = parser.parse_args()
    data, tokenizer, config = args.output / "data", args.output / "tokenizer", args.output / "config.json"
    args.output.mkdir(parents=True)
    collect(data)
    config.write_text(json.dumps(CONFIG))
    run(args.switchyard, "train-tokenizer", data, "--output", tokenizer, "--vocab-size", CONFIG["vocab_size"])

    def train(index, name, flags):
        output = args.output / name.replace(", ", "-").replace(" ", "-")
        run(args.switchyard, "train", "--model", config, "--tokenizer-path", tokenizer, "--data", data, "--output", output,
            "--steps", args.steps, "--length", 256, "--rows-per-step", 32, "--rows-per-pass", 16, "--learning-rate", 0.001,
            "--warmup-steps", 100, "--balance-loss", 0.01, "--save-every", 0, "--device", "cuda",
            "--base-gpu-id", index % args.gpus, *flags)
        losses = tenths(output, args.steps)
        print(f"{name}: " + " ".join(f"{loss:.4f}" for loss in losses), flush=True)
        return losses

    with concurrent.futures.ThreadPoolExecutor(args.gpus) as pool:
        running = {name: pool.submit(train, i, name, flags) for i, (name, flags) in enumerate(RUNS.items())}
        means = {name: losses.result() for name, losses in running.items()}
    wanted = means["bfloat16"][-1]
    for name in list(RUNS)[1:]:
        print(f"{name}: {100 * (means[name][-1] / wanted - 1):+.2f} % of the loss with bfloat16")
    return 0 if abs(means["fp8"][-1] / wanted - 1) <= args.bound else 1


if __name__ == "__main__":
    sys.exit(main())
