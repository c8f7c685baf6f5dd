#!/usr/bin/env python3
"""Predicted beside measured memory and step times of whole models, after a calibration of kernels and links.

    bench/predictions.py --device cpu  --out DIR     # OLMoE's shape, one and two ranks, about 15 minutes
    bench/predictions.py --device cuda --out DIR     # Qwen3-30B-A3B (bfloat16, FP8), gpt-oss-20b, 5 layers of DeepSeek-V3
    bench/predictions.py --device cuda --out DIR --gpus 2 --only qwen3

Runs `bench calibrate`, then `bench one-batch` with random weights. With several layouts, the layouts run in turn, for
--rounds rounds, and medians are compared: the speed of a shared machine changes within minutes. Prints the errors of all
times, the errors of memory, and each pair of layouts whose times differ by over 5 % and whose order is predicted wrong.
DIR keeps all outputs; a run that finds DIR/table.json does not calibrate again. Run it on a quiet machine. SWITCHYARD
names the program (build/release/switchyard).
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = os.environ.get("SWITCHYARD", ROOT / "build/release/switchyard")
PLAN = ROOT / "tests/data/plan"
LAYOUTS = {"tp1": [], "tp2": ["--tp", 2], "tp2-ep2": ["--tp", 2, "--ep", 2],
           "tp2-ep2-deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"]}
# Name, model, flags, batch sizes.
GPU_MODELS = [("qwen3 bfloat16", PLAN / "qwen3_30b_a3b.json", [], [1, 8, 32, 128, 256]),
              ("qwen3 FP8", PLAN / "qwen3_30b_a3b.json", ["--quantization", "fp8"], [1, 8, 32, 128, 256]),
              ("gpt-oss-20b", PLAN / "gpt_oss_20b.json", [], [1, 8, 32, 128, 256]),
              ("deepseek-v3, 5 layers", PLAN / "deepseek_v3.json",
               ["--json-model-override-args", '{"num_hidden_layers": 5}'], [1, 32, 128])]
OLMOE = PLAN / "olmoe_1b_7b.json"
CPU_MODELS = [("olmoe int8", OLMOE, ["--quantization", "w8a8_int8"], [1, 8, 32]), ("olmoe bfloat16", OLMOE, [], [1, 8])]


def run(log, *arguments):
    print("+", *arguments, flush=True)
    done = subprocess.run([str(a) for a in (PROGRAM, *arguments)], capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        sys.exit(f"{log}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def measure(args, name, layout, model, flags, batches):
    """The rows of one model and layout: (layout, step, predicted, measured); and its lines of memory."""
    stem = re.sub(r"\W+", "_", f"{name} {layout}")
    folder = args.out / stem
    folder.mkdir(exist_ok=True)
    shutil.copy(model, folder / "config.json")
    figures = folder / "figures.json"
    out = run(folder / "log.txt", "bench", "one-batch", "--model-path", folder, "--load-format", "dummy", "--device",
              args.device, "--cost-table", args.out / "table.json", "--json", figures, "--batch-size", *batches,
              "--input-len", args.input, "--output-len", args.output, "--repeat", args.repeat, "--max-running-requests",
              max(batches), *flags, *LAYOUTS[layout])
    rows = []
    for row in json.loads(figures.read_text()):
        for step, key in (("prefill", "prefill_seconds"), ("decode", "decode_step_seconds")):
            rows.append((layout, f"{step} of {row['batch_size']}", row[f"predicted_{key}"], row[key]))
    memory = [line for line in out.splitlines() if re.match(r"memory: planned|^ +\d+ .* / .*%", line)]
    return rows, memory


def medians(runs):
    """Runs of one model: the median of the measured times of each layout and step."""
    steps = {}
    for layout, step, predicted, measured in runs:
        steps.setdefault((layout, step), []).append((predicted, measured))
    return [(*key, statistics.median(p for p, _ in times), statistics.median(m for _, m in times))
            for key, times in steps.items()]


def wrong_pairs(rows):
    """Pairs of layouts that differ by over 5 %, and those of them that are predicted in another order."""
    all_pairs, wrong = 0, []
    for (a, step, predicted_a, measured_a), (b, other, predicted_b, measured_b) in itertools.permutations(rows, 2):
        if step != other or measured_b <= 1.05 * measured_a:
            continue
        all_pairs += 1
        if predicted_a >= predicted_b:
            wrong.append(f"{step}: {a} {1e3 * measured_a:.2f} (predicted {1e3 * predicted_a:.2f}), "
                         f"{b} {1e3 * measured_b:.2f} ({1e3 * predicted_b:.2f}) ms")
    return all_pairs, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory of the outputs")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs; with 2, all layouts")
    parser.add_argument("--only", default="", help="models whose name contains this text")
    parser.add_argument("--input", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=16, help="tokens of an output")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; medians are compared")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all layouts, if there are several")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / "table.json").exists():
        run(args.out / "calibrate.txt", "bench", "calibrate", "--device", args.device, "--json", args.out / "table.json")
    several = args.device == "cpu" or args.gpus > 1
    models = [m for m in (CPU_MODELS if args.device == "cpu" else GPU_MODELS) if args.only in m[0]]
    errors = []
    for name, model, flags, batches in models:
        runs = []
        for round in range(args.rounds if several else 1):
            for layout in LAYOUTS if several else ["tp1"]:
                found, memory = measure(args, name, layout, model, flags, batches)
                runs += found
                for line in memory if round == 0 else []:
                    print(f"{name} {layout}: {line.strip()}")
        rows = medians(runs)
        for layout, step, predicted, measured in rows:
            errors.append(abs(predicted / measured - 1))
            print(f"{name:22} {layout:15} {step:14} measured {1e3 * measured:9.3f} ms, predicted {1e3 * predicted:9.3f}, "
                  f"{100 * (predicted / measured - 1):+6.1f} %")
        own = sorted(errors[-len(rows):])
        print(f"{name}: median error {100 * statistics.median(own):.1f} %, worst {100 * own[-1]:.1f} %")
        if several:
            pairs, wrong = wrong_pairs(rows)
            print(f"{name}: {pairs - len(wrong)} of {pairs} pairs that differ by over 5 % are in the right order")
            print("\n".join(wrong))
    print(f"all: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
