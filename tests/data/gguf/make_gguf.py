#!/usr/bin/env python3
"""Writes the GGUF files beside this script, with the package `gguf` (pip install gguf==0.19.0).

  llama_bf16.gguf      fixture llama: bfloat16, reordered q and k, Llama 3's rotary factors, tied embedding
  olmoe_q8_0.gguf      fixture olmoe: Q8_0
  mixtral_q4_0.gguf    fixture mixtral: Q4_0, head in Q8_0; SentencePiece vocabulary
  gpt_oss_mxfp4.gguf   fixture gpt_oss, first 3 layers: MXFP4 experts as stored, Q8_0
  k_types.gguf         random qwen3moe model: Q4_K, Q5_K, Q6_K, IQ4_XS, Q8_0, F16, float32; no tokenizer
  blocks.safetensors   random blocks of every type (TYPE.bytes) and the package's values (TYPE.values)

The conversion of fixtures is tests/e2e/gguf_file.py. The package quantizes, writes and dequantizes.
"""
import pathlib
import sys

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
import gguf_file  # noqa: E402

FIXTURES = HERE.parent / "fixtures"
Type = gguf.GGMLQuantizationType


def values_of(tensor):
    kind, shape, raw = tensor
    return np.array(gguf_file.floats(kind, raw), dtype=np.float32).reshape(shape)


def add_metadata(writer, metadata):
    add = {"u32": writer.add_uint32, "i32": writer.add_int32, "f32": writer.add_float32, "bool": writer.add_bool,
           "u16": writer.add_uint16, "str": writer.add_string}
    for key, kind, value in metadata:
        if key == "general.architecture":
            continue  # added by the writer
        add.get(kind, writer.add_array)(key, value)


def write(name, metadata, tensors):
    """`tensors`: {name: (type, shape, bytes)}."""
    path = HERE / name
    writer = gguf.GGUFWriter(path, dict((key, value) for key, _, value in metadata)["general.architecture"])
    add_metadata(writer, metadata)
    for tensor, (kind, shape, raw) in tensors.items():
        number = Type[kind]
        block, size = gguf.GGML_QUANT_SIZES[number]
        data = np.frombuffer(raw, dtype=np.uint8).reshape([*shape[:-1], shape[-1] // block * size])
        if kind == "F32":
            writer.add_tensor(tensor, data.view(np.float32))
        elif kind == "F16":
            writer.add_tensor(tensor, data.view(np.float16))
        else:
            writer.add_tensor(tensor, data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{name}: {path.stat().st_size} bytes")


def quantized(tensors, choose):
    """`choose` returns the type of a matrix by its name."""
    out = {}
    for name, (kind, shape, raw) in tensors.items():
        matrix = len(shape) >= 2 and name.endswith(".weight") and "ffn_gate_inp" not in name
        if matrix and kind != "MXFP4":
            kind = choose(name)
            raw = gguf.quants.quantize(values_of((tensors[name][0], shape, raw)), Type[kind]).tobytes()
        out[name] = (kind, shape, raw)
    return out


def random_blocks(rng, kind, count):
    """Blocks whose values have a deviation near 0.05."""
    size = gguf_file.TYPES[kind][2]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)

    def put(at, scale):
        scales = (scale * rng.uniform(0.5, 1.5, count)).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)

    if kind in ("Q4_K", "Q5_K"):
        put(0, 2e-4 if kind == "Q4_K" else 1e-4)
        put(2, 1.5e-3)
    elif kind == "MXFP4":
        blocks[:, 0] = rng.integers(118, 124, count)
    else:
        put(208 if kind == "Q6_K" else 0, {"Q6_K": 4e-5, "IQ4_XS": 5e-5, "Q8_0": 7e-4, "Q4_0": 1e-2}[kind])
    return blocks


def k_types():
    rng = np.random.default_rng(1)
    hidden, heads, kv, size, experts, inner, vocab = 256, 4, 2, 32, 2, 256, 64
    arch = "qwen3moe"
    metadata = [("general.architecture", "str", arch)]
    metadata += [(f"{arch}.{key}", "u32", value) for key, value in [
        ("context_length", 128), ("embedding_length", hidden), ("block_count", 1), ("feed_forward_length", inner),
        ("attention.head_count", heads), ("attention.head_count_kv", kv), ("attention.key_length", size),
        ("attention.value_length", size), ("expert_count", experts), ("expert_used_count", 1),
        ("expert_feed_forward_length", inner)]]
    metadata += [(f"{arch}.attention.layer_norm_rms_epsilon", "f32", 1e-6), (f"{arch}.rope.freq_base", "f32", 10000.0)]
    tensors = {"token_embd.weight": ("F16", [vocab, hidden], (rng.normal(size=vocab * hidden)).astype("<f2").tobytes())}

    def matrix(name, kind, *shape):
        count = int(np.prod(shape)) // gguf_file.TYPES[kind][1]
        tensors[name] = (kind, list(shape), random_blocks(rng, kind, count).tobytes())

    def vector(name, *shape, deviation=0.0):
        data = 1 + rng.normal(size=shape) * 0.1 if deviation == 0 else rng.normal(size=shape) * deviation
        tensors[name] = ("F32", list(shape), data.astype("<f4").tobytes())

    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        vector(f"{name}.weight", hidden)
    for name in ("attn_q_norm", "attn_k_norm"):
        vector(f"blk.0.{name}.weight", size)
    vector("blk.0.ffn_gate_inp.weight", experts, hidden, deviation=0.1)
    matrix("blk.0.attn_q.weight", "IQ4_XS", heads * size, hidden)
    matrix("blk.0.attn_k.weight", "Q6_K", kv * size, hidden)
    matrix("blk.0.attn_v.weight", "Q4_K", kv * size, hidden)
    matrix("blk.0.attn_output.weight", "Q8_0", hidden, heads * size)
    matrix("blk.0.ffn_gate_exps.weight", "Q4_K", experts, inner, hidden)
    matrix("blk.0.ffn_up_exps.weight", "Q5_K", experts, inner, hidden)
    matrix("blk.0.ffn_down_exps.weight", "Q6_K", experts, hidden, inner)
    write("k_types.gguf", metadata, tensors)


def blocks():
    rng, tensors = np.random.default_rng(2), {}
    for kind in ("Q8_0", "Q4_0", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"):
        data = random_blocks(rng, kind, 4 if gguf_file.TYPES[kind][1] == 256 else 8)
        if kind == "MXFP4":
            data[:3, 0] = 0, 1, 252
        tensors[f"{kind}.bytes"] = ("U8", [data.size], data.tobytes())
        values = gguf.quants.dequantize(data, Type[kind]).astype(np.float32)
        tensors[f"{kind}.values"] = ("F32", [values.size], values.tobytes())
    gguf_file.write_safetensors(HERE / "blocks.safetensors", tensors)


def main():
    metadata, tensors = gguf_file.convert(FIXTURES / "llama")
    write("llama_bf16.gguf", metadata, tensors)
    metadata, tensors = gguf_file.convert(FIXTURES / "olmoe")
    write("olmoe_q8_0.gguf", metadata, quantized(tensors, lambda name: "Q8_0"))
    metadata, tensors = gguf_file.convert(FIXTURES / "mixtral")
    write("mixtral_q4_0.gguf", metadata, quantized(tensors, lambda name: "Q8_0" if name == "output.weight" else "Q4_0"))
    metadata, tensors = gguf_file.convert(FIXTURES / "gpt_oss", layers=3)
    write("gpt_oss_mxfp4.gguf", metadata, quantized(tensors, lambda name: "Q8_0"))
    k_types()
    blocks()


if __name__ == "__main__":
    main()
