"""GGUF files with random weights in the shape of a published model, for benchmarks of CPU kernels.

Blocks repeat within a tensor. Speed depends on the values of weights only through the choice of experts, so all rows of
the router and of the embedding are different.
"""
import array
import os
import pathlib
import random
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from gguf_file import TYPES, key_bytes, padded, text_bytes  # noqa: E402

TILE_BLOCKS = 8192


def tile(kind, seed):
    """TILE_BLOCKS random blocks of the type `kind`. The standard deviation of their values is about 0.02."""
    r, (_, _, size) = random.Random(seed), TYPES[kind]
    blocks = bytearray(r.randbytes(TILE_BLOCKS * size))
    scales = {"Q4_K": (0, 8e-5), "Q5_K": (0, 4e-5), "Q6_K": (208, 1.5e-5), "Q8_0": (0, 3e-4), "Q4_0": (0, 4e-3)}
    for at in range(0, len(blocks), size):
        if kind == "MXFP4":
            blocks[at] = 119 + r.randrange(3)
            continue
        offset, scale = scales[kind]
        blocks[at + offset:at + offset + 2] = struct.pack("<e", scale * r.uniform(0.5, 1.5))
        if kind in ("Q4_K", "Q5_K"):
            blocks[at + 2:at + 4] = struct.pack("<e", 6e-4 * r.uniform(0.5, 1.5))
    return bytes(blocks)


def floats(count, deviation, seed):
    r = random.Random(seed)
    return array.array("f", (r.gauss(0, deviation) for _ in range(count))).tobytes()


class Tensors:
    """A list of (name, type, shape, content). `content` returns the bytes, or a tile of bytes that the file repeats."""

    def __init__(self):
        self.all = []

    def matrix(self, name, kind, *shape):
        self.all.append((name, kind, shape, lambda: tile(kind, name)))

    def ones(self, name, size):
        self.all.append((name, "F32", (size,), lambda: array.array("f", [1.0] * size).tobytes()))

    def normal(self, name, deviation, *shape):
        count = 1
        for size in shape:
            count *= size
        self.all.append((name, "F32", shape, lambda: floats(count, deviation, name)))


def size_of(kind, shape):
    _, block, size = TYPES[kind]
    count = 1
    for dimension in shape:
        count *= dimension
    return count // block * size


def write(path, metadata, tensors):
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors.all), len(metadata))
    head += b"".join(key_bytes(*entry) for entry in metadata)
    at = 0
    for name, kind, shape, _ in tensors.all:
        head += text_bytes(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", TYPES[kind][0], at)
        at += (size_of(kind, shape) + 31) // 32 * 32
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(padded(head))
        for _, kind, shape, content in tensors.all:
            left = size_of(kind, shape)
            padding, data = -left % 32, content()
            while left > 0:
                file.write(data[:left])
                left -= len(data)
            file.write(bytes(padding))
    os.replace(partial, path)


def common_metadata(arch, name, vocab, numbers, floats_):
    """Metadata that all models have. The vocabulary has no merges, because benchmarks send token ids."""
    letters = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 324))]
    tokens = letters + [f"t{i}" for i in range(vocab - len(letters))]
    return ([("general.architecture", "str", arch), ("general.name", "str", name)] +
            [(f"{arch}.{key}", "u32", value) for key, value in numbers.items()] +
            [(f"{arch}.{key}", "f32", value) for key, value in floats_.items()] +
            [("tokenizer.ggml.model", "str", "gpt2"), ("tokenizer.ggml.pre", "str", "gpt-2"),
             ("tokenizer.ggml.tokens", "[str]", tokens), ("tokenizer.ggml.token_type", "[i32]", [1] * vocab),
             ("tokenizer.ggml.merges", "[str]", ["t 0"]), ("tokenizer.ggml.eos_token_id", "u32", vocab - 1),
             ("tokenizer.ggml.bos_token_id", "u32", vocab - 2)])


def olmoe(path, four_bits):
    """OLMoE-1B-7B. `four_bits`: Q4_K, with the other types that llama.cpp mixes into Q4_K_S, or MXFP4. The architecture is
    that of Qwen3-MoE, because ik_llama.cpp has no OLMoE. All matrices have the same sizes; norms are per head."""
    hidden, inner, layers, experts, vocab, size = 2048, 1024, 16, 64, 50304, 128
    numbers = {"context_length": 4096, "embedding_length": hidden, "block_count": layers, "feed_forward_length": inner,
               "attention.head_count": 16, "attention.head_count_kv": 16, "attention.key_length": size,
               "attention.value_length": size, "expert_count": experts, "expert_used_count": 8,
               "expert_feed_forward_length": inner}
    metadata = common_metadata("qwen3moe", path.stem, vocab, numbers,
                               {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0})
    mixed = four_bits == "Q4_K"
    t = Tensors()
    t.matrix("token_embd.weight", "Q8_0", vocab, hidden)
    for i in range(layers):
        b = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            t.ones(f"{b}{norm}.weight", hidden)
        for norm in ("attn_q_norm", "attn_k_norm"):
            t.ones(f"{b}{norm}.weight", size)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            finer = mixed and part == "attn_v" and i < 4
            t.matrix(f"{b}{part}.weight", "Q5_K" if finer else four_bits, hidden, hidden)
        t.normal(f"{b}ffn_gate_inp.weight", 0.02, experts, hidden)
        t.matrix(f"{b}ffn_gate_exps.weight", four_bits, experts, inner, hidden)
        t.matrix(f"{b}ffn_up_exps.weight", four_bits, experts, inner, hidden)
        t.matrix(f"{b}ffn_down_exps.weight", "Q5_K" if mixed and i < layers // 8 else four_bits, experts, hidden, inner)
    t.ones("output_norm.weight", hidden)
    t.matrix("output.weight", "Q6_K", vocab, hidden)
    write(path, metadata, t)


def gpt_oss(path, _):
    """gpt-oss-20b: MXFP4 experts, Q8_0."""
    hidden, inner, layers, experts, vocab, heads, kv, size = 2880, 2880, 24, 32, 201088, 64, 8, 64
    numbers = {"context_length": 131072, "embedding_length": hidden, "block_count": layers,
               "feed_forward_length": inner, "attention.head_count": heads, "attention.head_count_kv": kv,
               "attention.key_length": size, "attention.value_length": size, "attention.sliding_window": 128, "expert_count": experts,
               "expert_used_count": 4, "expert_feed_forward_length": inner,
               "rope.scaling.original_context_length": 4096}
    metadata = common_metadata("gpt-oss", path.stem, vocab, numbers,
                               {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 150000.0,
                                "rope.scaling.factor": 32.0})
    metadata.append(("gpt-oss.rope.scaling.type", "str", "yarn"))
    t = Tensors()
    t.matrix("token_embd.weight", "Q8_0", vocab, hidden)
    for i in range(layers):
        b = f"blk.{i}."
        for norm in ("attn_norm", "post_attention_norm"):
            t.ones(f"{b}{norm}.weight", hidden)
        for part, rows in (("attn_q", heads * size), ("attn_k", kv * size), ("attn_v", kv * size)):
            t.matrix(f"{b}{part}.weight", "Q8_0", rows, hidden)
            t.normal(f"{b}{part}.bias", 0.02, rows)
        t.matrix(f"{b}attn_output.weight", "Q8_0", hidden, heads * size)
        t.normal(f"{b}attn_output.bias", 0.02, hidden)
        t.normal(f"{b}attn_sinks.weight", 0.5, heads)
        t.normal(f"{b}ffn_gate_inp.weight", 0.02, experts, hidden)
        t.normal(f"{b}ffn_gate_inp.bias", 0.02, experts)
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            t.matrix(f"{b}ffn_{part}_exps.weight", "MXFP4", experts, rows, columns)
            t.normal(f"{b}ffn_{part}_exps.bias", 0.02, experts, rows)
    t.ones("output_norm.weight", hidden)
    t.matrix("output.weight", "Q8_0", vocab, hidden)
    write(path, metadata, t)
