#!/usr/bin/env python3
"""Time of a training step with PyTorch on CPUs, for the same steps as train_bench.

A step is the forward and backward pass of the model that `transformers` builds from CONFIG.json, then clipping and
AdamW. It is measured with each implementation of attention and experts in `transformers`, in float32 or with bfloat16
products (autocast, weights in float32). Needs torch and transformers.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import time

import torch
import transformers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--compute-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=15, help="measured steps, after one warm-up step")
    parser.add_argument("--attention", nargs="+", default=["sdpa", "eager"])
    parser.add_argument("--experts", nargs="+", default=["grouped_mm", "batched_mm", "eager"])
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def steps(args, attention, experts):
    """Wall and CPU seconds of each step, and the number of parameters."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(**json.loads(args.config.read_text()))
    config._experts_implementation = experts
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.compile else model
    ids = torch.randint(config.vocab_size, (args.sequences, args.length))
    wall, cpu = [], []
    for step in range(args.steps + 1):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        with (torch.autocast("cpu", torch.bfloat16) if args.compute_dtype == "bfloat16"
              else contextlib.nullcontext()):
            loss = run(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step > 0:
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
    return wall, cpu, sum(p.numel() for p in model.parameters())


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    tokens = args.sequences * args.length
    for attention in args.attention:
        for experts in args.experts:
            name = f"{attention}, experts {experts}, {args.compute_dtype}"
            try:
                wall, cpu, parameters = steps(args, attention, experts)
            except Exception as error:  # a variant that does not run on CPUs is skipped
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
                continue
            median, least = statistics.median(wall), min(wall)
            print(f"{name}: {parameters / 1e6:.2f} M parameters, {args.threads} threads: median "
                  f"{median * 1e3:.1f} ms, {tokens / median:.0f} tokens/s (least {least * 1e3:.1f} ms, "
                  f"{tokens / least:.0f}); CPU median {statistics.median(cpu) * 1e3:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
