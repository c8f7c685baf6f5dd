#!/usr/bin/env python3
"""What a training step costs PyTorch on CPUs: the shapes of train_bench.

  train_torch.py CONFIG.json [THREADS [SEQUENCES [LENGTH]]]

Forward and backward of the model that `transformers` builds from CONFIG.json, in float32, by each
of its implementations of attention and experts; the fastest of 7 steps each. Needs torch and
transformers.
"""
import json
import pathlib
import sys
import time

import torch
import transformers


def best_step(config, attention, experts, sequences, length):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(**config)
    config._experts_implementation = experts
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention)
    model.train()
    ids = torch.randint(config.vocab_size, (sequences, length))
    best, cpu = float("inf"), float("inf")
    for _ in range(7):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        best = min(best, time.perf_counter() - begin)
        cpu = min(cpu, time.process_time() - cpu_begin)
    return best, cpu, sum(p.numel() for p in model.parameters())


def main():
    config = json.loads(pathlib.Path(sys.argv[1]).read_text())
    threads, sequences, length = [int(a) for a in sys.argv[2:]] + [2, 8, 256][len(sys.argv) - 2:]
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    for attention in ("sdpa", "eager"):
        for experts in ("grouped_mm", "eager"):
            seconds, cpu, parameters = best_step(config, attention, experts, sequences, length)
            print(f"{attention}, experts {experts}: {parameters / 1e6:.2f} M parameters, "
                  f"{seconds * 1e3:.1f} ms, {sequences * length / seconds:.0f} tokens/s, "
                  f"{cpu * 1e3:.0f} ms of CPU", flush=True)


if __name__ == "__main__":
    main()
