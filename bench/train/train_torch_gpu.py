#!/usr/bin/env python3
"""Training steps of an OLMoE model with PyTorch on one GPU, for the same steps as bench/cuda/train_steps.

Weights and tokens come from the same hash as those of train_steps, so the losses of both can be compared. The
implementation is plain PyTorch: grouped_mm for experts, scaled_dot_product_attention, fused AdamW, float32 weights and
gradients with bfloat16 products. `--compile` compiles norms, rotary embedding, SwiGLU and the loss. Needs torch only.
"""
import argparse
import json
import pathlib
import time

import torch
import torch.nn.functional as F

MASK = 0xFFFFFFFF


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=0, help="layers to keep; 0: all")
    parser.add_argument("--sequences", type=int, default=4, help="sequences per step")
    parser.add_argument("--length", type=int, default=4096, help="tokens per sequence")
    parser.add_argument("--per-pass", type=int, default=1, help="sequences per micro-batch")
    parser.add_argument("--steps", type=int, default=8, help="measured steps, after one warm-up step")
    parser.add_argument("--compile", action="store_true", help="compile the element-wise functions")
    return parser.parse_args()


def hash32(x):
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def seed_of(name):
    seed = 2166136261
    for c in name.encode():
        seed = ((seed ^ c) * 16777619) & MASK
    return seed


def matrix(name, *shape):
    count = 1
    for n in shape:
        count *= n
    bits = hash32((torch.arange(count, device="cuda", dtype=torch.int64) + seed_of(name)) & MASK)
    return ((2 * (bits.double() / 4294967296.0) - 1) * 0.0346410162).float().view(shape)


def tokens_of(step, args, vocab):
    """[sequences, length + 1] tokens of a step."""
    out = []
    for s in range(args.sequences):
        first = (step * args.sequences + s) * (args.length + 1)
        bits = hash32(torch.arange(first, first + args.length + 1, dtype=torch.int64) + 12345).tolist()
        row = []
        for t, b in enumerate(bits):
            row.append(row[-1] if t > 0 and b % 3 == 0 else b // 3 % vocab)
        out.append(row)
    return torch.tensor(out, device="cuda")


def rms_norm(x, weight, eps):
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(torch.bfloat16)


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(torch.bfloat16)


def swiglu(x):
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(torch.bfloat16)


def combine(rows, weights):
    return (rows.float() * weights.unsqueeze(-1)).sum(1)


def loss_of(logits, targets):
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class Olmoe(torch.nn.Module):
    def __init__(self, c, layers):
        super().__init__()
        self.c = c
        hidden, experts, width = c["hidden_size"], c["num_experts"], c["intermediate_size"]
        new = torch.nn.Parameter
        self.embed = new(matrix("model.embed_tokens.weight", c["vocab_size"], hidden))
        self.head = new(matrix("lm_head.weight", c["vocab_size"], hidden))
        self.norm = new(torch.ones(hidden, device="cuda"))
        self.layers = torch.nn.ModuleList()
        for i in range(layers):
            at = f"model.layers.{i}."
            layer = torch.nn.Module()
            for name in ("q", "k", "v", "o"):
                setattr(layer, name, new(matrix(f"{at}self_attn.{name}_proj.weight", hidden, hidden)))
            for name in ("q_norm", "k_norm", "first_norm", "second_norm"):
                setattr(layer, name, new(torch.ones(hidden, device="cuda")))
            layer.router = new(matrix(f"{at}mlp.gate.weight", experts, hidden))
            gate_up = torch.empty(experts, 2 * width, hidden, device="cuda")
            down = torch.empty(experts, hidden, width, device="cuda")
            for e in range(experts):
                expert = f"{at}mlp.experts.{e}."
                gate_up[e, :width] = matrix(expert + "gate_proj.weight", width, hidden)
                gate_up[e, width:] = matrix(expert + "up_proj.weight", width, hidden)
                down[e] = matrix(expert + "down_proj.weight", hidden, width)
            layer.gate_up, layer.down = new(gate_up), new(down)
            self.layers.append(layer)

    def attention(self, layer, x, cos, sin):
        c, eps = self.c, self.c["rms_norm_eps"]
        sequences, length, hidden = x.shape
        heads = c["num_attention_heads"]
        q, k, v = (F.linear(x, w.to(torch.bfloat16)) for w in (layer.q, layer.k, layer.v))
        q, k = rms_norm(q, layer.q_norm, eps), rms_norm(k, layer.k_norm, eps)
        q, k, v = (y.view(sequences, length, heads, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True)
        return F.linear(y.transpose(1, 2).reshape(sequences, length, hidden), layer.o.to(torch.bfloat16))

    def experts(self, layer, x):
        c, k = self.c, self.c["num_experts_per_tok"]
        weights, ids = torch.softmax(F.linear(x.float(), layer.router), -1).topk(k, -1)
        order = ids.flatten().argsort(stable=True)
        ends = torch.bincount(ids.flatten(), minlength=c["num_experts"]).cumsum(0).to(torch.int32)
        multiply = getattr(F, "grouped_mm", None) or torch._grouped_mm
        rows = x[order // k]
        rows = multiply(rows, layer.gate_up.to(torch.bfloat16).transpose(-2, -1), offs=ends)
        rows = multiply(swiglu(rows), layer.down.to(torch.bfloat16).transpose(-2, -1), offs=ends)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=order.device)
        return combine(rows[place].view(*ids.shape, -1), weights)

    def forward(self, ids, targets):
        c, eps = self.c, self.c["rms_norm_eps"]
        half = c["hidden_size"] // c["num_attention_heads"] // 2
        frequencies = c["rope_theta"] ** (-torch.arange(half, device="cuda") / half)
        angles = torch.arange(ids.shape[1], device="cuda").unsqueeze(1) * frequencies
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(ids, self.embed)
        for layer in self.layers:
            x = x + self.attention(layer, rms_norm(x, layer.first_norm, eps), cos, sin).float()
            y = rms_norm(x, layer.second_norm, eps)
            x = x + self.experts(layer, y.flatten(0, 1)).view_as(x)
        logits = F.linear(rms_norm(x, self.norm, eps).flatten(0, 1), self.head.to(torch.bfloat16))
        return loss_of(logits, targets.flatten())


def main():
    args = arguments()
    if args.compile:
        for name in ("rms_norm", "rope", "swiglu", "combine", "loss_of"):
            globals()[name] = torch.compile(globals()[name], dynamic=False)
    config = json.loads(args.config.read_text())
    model = Olmoe(config, args.layers or config["num_hidden_layers"])
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
                                  lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    seconds = []
    for step in range(args.steps + 1):
        tokens = tokens_of(step, args, config["vocab_size"])
        torch.cuda.synchronize()
        begin = time.perf_counter()
        total = 0.0
        for first in range(0, args.sequences, args.per_pass):
            part = tokens[first:first + args.per_pass]
            loss = model(part[:, :-1], part[:, 1:]) / (args.sequences * args.length)
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        print(f"step {step + 1}: loss {total.item():.5f}, gradient norm {norm.item():.5f}, {took * 1e3:.1f} ms", flush=True)
        if step > 0:
            seconds.append(took)
    median = sorted(seconds)[len(seconds) // 2]
    count = sum(p.numel() for p in model.parameters())
    print(f"torch {torch.__version__}: {count * 1e-9:.2f} G parameters, {args.sequences} sequences of {args.length} tokens: "
          f"median {median * 1e3:.1f} ms, {args.sequences * args.length / median:.0f} tokens/s, "
          f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB reserved")


if __name__ == "__main__":
    main()
