#!/usr/bin/env python3
"""Compares the ways to keep experts evenly loaded, on a task whose topics have very different frequencies.

    bench/train/balance.py --output DIR [--pictures docs/pictures]

Trains one tiny model four times from the same weights on the same text. The four runs are: without balancing, with
selection biases adjusted by load (auxiliary-loss-free), with the auxiliary loss over the batch, and with the auxiliary
loss over each sequence. Prints for each run, on held-out text: balancedness (mean / largest load of an expert, averaged
over the layers), the balancedness of the worst layer, and the loss. On one machine the figures are the same in every
run. docs/training.md has the results.

The task: topics are Markov chains over the same words. Each topic has its own successors of a word, so the next word
depends on the topic. A document is a sequence of segments with random topics; each segment starts with its topic's
name. Topic i has a probability proportional to 1 / (i + 1)^SKEW. Without balancing, the experts of frequent topics are
overloaded.
"""

import argparse
import json
import os
import random
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SWITCHYARD", str(ROOT / "build/release/switchyard"))
TOPICS, WORDS, SKEW = 16, 48, 1.6
SEGMENTS, SEGMENT_WORDS = 8, 11  # segments of a document; words of a segment without the topic's name
DOCUMENTS, HELD_OUT = 6000, 400
ODDS = [0.7, 0.2, 0.1]  # probabilities of a word's successors
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 384, "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 16,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": None,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
    "eos_token_id": 0}
WAYS = {"none": {}, "biases": {"bias-step": 0.004}, "batch loss": {"balance-loss": 0.05}, "sequence loss": {"sequence-balance-loss": 0.05}}


def words():
    return [first + second for first in "bdfgklmn" for second in ("ax", "ed", "il", "op", "un", "yr")][:WORDS]


def documents(count, seed):
    """Generates the texts. The chains are the same for every seed."""
    rng = random.Random(1)
    vocabulary = words()
    chains = [{word: rng.sample(vocabulary, len(ODDS)) for word in vocabulary} for _ in range(TOPICS)]
    frequencies = [1 / (i + 1) ** SKEW for i in range(TOPICS)]
    rng = random.Random(seed)
    for _ in range(count):
        text = []
        for topic in rng.choices(range(TOPICS), frequencies, k=SEGMENTS):
            word = rng.choice(vocabulary)
            text += [f"topic{chr(ord('A') + topic)}", word]
            for _ in range(SEGMENT_WORDS - 1):
                word = rng.choices(chains[topic][word], ODDS)[0]
                text.append(word)
        yield " ".join(text)


def run(*command):
    return subprocess.run([PROGRAM, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout


def prepare(work):
    """Writes text, tokenizer and config into `work`."""
    work.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", DOCUMENTS, 2), ("held_out", HELD_OUT, 3)):
        (work / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(count, seed)))
    run("train-tokenizer", work / "train.jsonl", "--output", work / "tokenizer", "--vocab-size", CONFIG["vocab_size"],
        "--special-tokens", "<|end|>", "--eos", "<|end|>", "--pad", "<|end|>")
    (work / "config.json").write_text(json.dumps(CONFIG, indent=1))


def folder(work, way):
    return work / way.replace(" ", "-")


def train(work, way, flags, args):
    """Trains a model and returns the result of `switchyard train-score` on the held-out text."""
    output = folder(work, way)
    run("train", "--model", work / "config.json", "--tokenizer-path", work / "tokenizer", "--data", work / "train.jsonl",
        "--output", output, "--resume", "never", "--steps", args.steps, "--length", 256, "--whole-documents", "--rows-per-step", 16,
        "--rows-per-pass", 16, "--learning-rate", 4e-3, "--final-lr-part", 0.02, "--warmup-steps", args.steps // 20, "--init-deviation", 0.05,
        "--dtype", "float32", "--threads", args.threads, "--keep", 1, "--seed", args.seed,
        *(word for name, value in flags.items() for word in (f"--{name}", value)))
    return json.loads(run("train-score", "--model", output / "final", "--data", work / "held_out.jsonl"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for text, runs and logs")
    parser.add_argument("--pictures", type=Path, help="folder for two SVGs: balancedness and loss over the steps")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the initial weights and of the order of the text")
    args = parser.parse_args()
    prepare(args.output)
    print(f"{'':<14}{'balancedness':>13}{'worst layer':>13}{'loss':>9}")
    for way, flags in WAYS.items():
        score = train(args.output, way, flags, args)
        print(f"{way:<14}{score['balancedness']:>13.3f}{score['balancedness_worst']:>13.3f}{score['loss']:>9.4f}", flush=True)
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
        draw = ["train-picture", *(folder(args.output, way) for way in WAYS), "--labels", *WAYS]
        run(*draw, "--key", "balancedness", "--low", 0, "--high", 1, "--output", args.pictures / "balance_ways.svg")
        run(*draw, "--key", "main", "--title", "loss", "--output", args.pictures / "balance_ways_loss.svg")


if __name__ == "__main__":
    main()
