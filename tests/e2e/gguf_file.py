"""Converts reference checkpoints to GGUF, and reads and writes GGUF files. Uses only the standard library.

The names, keys and layouts are those of llama.cpp's converter. So this file is an independent description of the format
that `switchyard` reads. Experts are stacked. Vectors and routers are float32. In models of architecture llama, the rows
of q and k are reordered. kv_b_proj is split into a transposed part for keys and a part for values.
"""
import array
import json
import math
import struct

# Name, id, elements of a block, bytes of a block.
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
         "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17)}
NAMES = {number: name for name, (number, _, _) in TYPES.items()}
# Kinds of metadata values: id and struct format.
KINDS = {"u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u16": (2, "H"), "str": (8, None)}
ARCHITECTURES = {"olmoe": "olmoe", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3": "qwen3", "llama": "llama",
                 "mixtral": "llama", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe": "glm4moe",
                 "gpt_oss": "gpt-oss", "dots1": "dots1", "ernie4_5_moe": "ernie4_5-moe"}
PRE_TOKENIZERS = {"olmoe": "gpt-2", "qwen2_moe": "qwen2", "qwen3_moe": "qwen2", "qwen3": "qwen2", "llama": "smaug-bpe",
                  "deepseek_v2": "deepseek-v3", "deepseek_v3": "deepseek-v3", "glm4_moe": "qwen2", "gpt_oss": "gpt-4o"}
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


# --- safetensors ---

def read_safetensors(directory):
    """{name: (dtype, shape, bytes)} of all files of a checkpoint."""
    out = {}
    for path in sorted(directory.glob("model*.safetensors")):
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        for name, entry in json.loads(raw[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                out[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin:8 + size + end])
    return out


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def floats(dtype, raw):
    """The values of `raw`, whose type is F32, F16 or BF16, as a list."""
    if dtype == "F32":
        return list(array.array("f", raw))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(raw) // 2}e", raw))
    widened = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
    return list(array.array("f", widened))


def as_float32(tensor):
    dtype, shape, raw = tensor
    return ("F32", shape, array.array("f", floats(dtype, raw)).tobytes())


def as_bfloat16(values):
    """The bytes of float32 numbers rounded to bfloat16, ties to even."""
    out = bytearray()
    for bits in array.array("I", array.array("f", values).tobytes()):
        out += struct.pack("<H", bits + 0x7FFF + (bits >> 16 & 1) >> 16)
    return bytes(out)


def rows_of(raw, count):
    size = len(raw) // count
    return [raw[i * size:(i + 1) * size] for i in range(count)]


# --- conversion ---

def pairs(tensor, heads):
    """Reorders the rows of q or k as for the architecture llama: rows i and i + D / 2 of each head become rows 2i, 2i +
    1."""
    dtype, shape, raw = tensor
    rows, size = rows_of(raw, shape[0]), shape[0] // heads
    order = [h * size + half * (size // 2) + i for h in range(heads) for i in range(size // 2) for half in (0, 1)]
    return dtype, shape, b"".join(rows[i] for i in order)


def split_latent(tensor, heads, nope):
    dtype, (rows, rank), raw = tensor
    size, per_head, all_rows = len(raw) // (rows * rank), rows // heads, rows_of(raw, rows)
    keys, values = [], []
    for h in range(heads):
        of_head = all_rows[h * per_head:(h + 1) * per_head]
        keys += [b"".join(row[j * size:(j + 1) * size] for row in of_head[:nope]) for j in range(rank)]
        values += of_head[nope:]
    return ((dtype, [heads, rank, nope], b"".join(keys)),
            (dtype, [heads, per_head - nope, rank], b"".join(values)))


def mxfp4(blocks, scales):
    """Converts 32-element blocks to ggml's layout: the exponent, then 16 bytes; byte j has the elements j and j +
    16."""
    out = bytearray()
    for i, scale in enumerate(scales):
        codes = [code for byte in blocks[i * 16:i * 16 + 16] for code in (byte & 15, byte >> 4)]
        out.append(scale)
        out += bytes(codes[j] | codes[j + 16] << 4 for j in range(16))
    return bytes(out)


def gpt_oss_experts(tensors, prefix, block):
    """Stacked tensors of gate, up and down. In gpt-oss's files, the rows of gate and up alternate."""
    out = {}
    for name, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
        experts, n, groups, _ = tensors[f"{prefix}{name}_blocks"][1]
        blocks = rows_of(tensors[f"{prefix}{name}_blocks"][2], experts * n)
        scales = rows_of(tensors[f"{prefix}{name}_scales"][2], experts * n)
        dtype, _, raw = as_float32(tensors[f"{prefix}{name}_bias"])
        bias = rows_of(raw, experts * n)
        for i, part in enumerate(parts):
            mine = range(i, experts * n, len(parts))
            shape = [experts, n // len(parts)]
            out[f"{block}ffn_{part}_exps.weight"] = ("MXFP4", [*shape, groups * 32],
                                                    b"".join(mxfp4(blocks[r], scales[r]) for r in mine))
            out[f"{block}ffn_{part}_exps.bias"] = (dtype, shape, b"".join(bias[r] for r in mine))
    return out


MODULES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
           "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
           "self_attn.k_norm": "attn_k_norm", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
           "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
           "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.sinks": "attn_sinks", "mlp.gate": "ffn_gate_inp",
           "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
           "mlp.gate.e_score_correction_bias": "exp_probs_b", "mlp.moe_statics.e_score_correction_bias": "exp_probs_b",
           "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
for _part in ("gate", "up", "down"):
    MODULES[f"mlp.{_part}_proj"] = f"ffn_{_part}"
    MODULES[f"mlp.shared_expert.{_part}_proj"] = MODULES[f"mlp.shared_experts.{_part}_proj"] = f"ffn_{_part}_shexp"
EXPERTS = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}


def convert_layer(config, tensors, prefix, block):
    """The GGUF tensors of a layer. `prefix`: of its safetensors names. `block`: of its GGUF names."""
    out, kind = {}, config["model_type"]
    mine = {name[len(prefix):]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    after = "post_attention_norm" if kind in ("glm4_moe", "gpt_oss") else "ffn_norm"
    for name, tensor in mine.items():
        module, _, suffix = name.rpartition(".")
        if name in ("self_attn.sinks",) or suffix.endswith("e_score_correction_bias"):
            module, suffix = name, "weight" if suffix == "sinks" else "bias"
        if module == "self_attn.kv_b_proj":
            keys, values = split_latent(tensor, config["num_attention_heads"], config["qk_nope_head_dim"])
            out[f"{block}attn_k_b.weight"], out[f"{block}attn_v_b.weight"] = keys, values
        gguf = after if module == "post_attention_layernorm" else MODULES.get(module)
        if gguf is None:
            continue
        if kind in ("llama", "mixtral") and gguf in ("attn_q", "attn_k"):
            heads = "num_attention_heads" if gguf == "attn_q" else "num_key_value_heads"
            tensor = pairs(tensor, config[heads])
        if len([size for size in tensor[1] if size != 1]) < 2 or gguf == "ffn_gate_inp":
            dtype, shape, raw = as_float32(tensor)
            tensor = (dtype, shape if gguf == "ffn_gate_inp" else [shape[-1]], raw)
        out[f"{block}{gguf}.{suffix}"] = tensor
    if kind == "gpt_oss":
        out.update(gpt_oss_experts(tensors, prefix + "mlp.experts.", block))
    for part, names in EXPERTS.items():
        stack = []
        while True:
            found = [mine[f"{moe}.experts.{len(stack)}.{name}.weight"] for moe in ("mlp", "block_sparse_moe")
                     for name in names if f"{moe}.experts.{len(stack)}.{name}.weight" in mine]
            if not found:
                break
            stack.append(found[0])
        if stack:
            out[f"{block}ffn_{part}_exps.weight"] = (stack[0][0], [len(stack), *stack[0][1]],
                                                    b"".join(raw for _, _, raw in stack))
    return out


def rope_factors(config, scaling):
    """The tensor rope_freqs: the numbers by which Llama 3 divides the rotary frequencies, one per pair of
    dimensions."""
    size, out = config["head_dim"], []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / size)
        old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = (old / wavelength - low) / (high - low)
        out.append(1.0 if wavelength < old / high else scaling["factor"] if wavelength > old / low else
                   1 / ((1 - smooth) / scaling["factor"] + smooth))
    return ("F32", [len(out)], array.array("f", out).tobytes())


def model_metadata(config):
    kind, arch = config["model_type"], ARCHITECTURES[config["model_type"]]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    out = [("general.architecture", "str", arch)]

    def put(key, kind_of_value, value):
        if value is not None:
            out.append((f"{arch}.{key}", kind_of_value, value))

    put("context_length", "u32", config["max_position_embeddings"])
    put("embedding_length", "u32", config["hidden_size"])
    put("block_count", "u32", config["num_hidden_layers"])
    put("feed_forward_length", "u32", config["intermediate_size"])
    put("attention.head_count", "u32", heads)
    put("attention.layer_norm_rms_epsilon", "f32", config["rms_norm_eps"])
    put("rope.freq_base", "f32", rope.get("rope_theta") or config["rope_theta"])
    put("expert_used_count", "u32", config.get("num_experts_per_tok") or config.get("moe_k"))
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    put("expert_count", "u32", next((config[key] for key in experts if key in config), None))
    if arch == "deepseek2":
        put("attention.head_count_kv", "u32", 1)
        put("attention.q_lora_rank", "u32", config.get("q_lora_rank"))
        put("attention.kv_lora_rank", "u32", config["kv_lora_rank"])
        put("attention.key_length", "u32", config["kv_lora_rank"] + config["qk_rope_head_dim"])
        put("attention.value_length", "u32", config["kv_lora_rank"])
        put("attention.key_length_mla", "u32", config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        put("attention.value_length_mla", "u32", config["v_head_dim"])
        put("rope.dimension_count", "u32", config["qk_rope_head_dim"])
    else:
        put("attention.head_count_kv", "u32", config["num_key_value_heads"])
        put("attention.key_length", "u32", size)
        put("attention.value_length", "u32", size)
        put("rope.dimension_count", "u32", int(size * config.get("partial_rotary_factor", 1)))
    if kind == "gpt_oss":
        put("attention.sliding_window", "u32", config["sliding_window"])
        put("expert_feed_forward_length", "u32", config["intermediate_size"])
    put("expert_feed_forward_length", "u32", config.get("moe_intermediate_size"))
    put("expert_shared_feed_forward_length", "u32", config.get("shared_expert_intermediate_size"))
    put("leading_dense_block_count", "u32", config.get("first_k_dense_replace", config.get("moe_layer_start_index")))
    put("interleave_moe_layer_step", "u32", config.get("moe_layer_interval"))
    put("expert_shared_count", "u32", config.get("n_shared_experts"))
    put("expert_group_count", "u32", config.get("n_group"))
    put("expert_group_used_count", "u32", config.get("topk_group"))
    put("expert_weights_scale", "f32", config.get("routed_scaling_factor"))
    if "routed_scaling_factor" in config:
        put("expert_weights_norm", "bool", config["norm_topk_prob"])
        put("expert_gating_func", "u32", 1 if kind == "deepseek_v2" else 2)
    if rope.get("rope_type") == "yarn":
        put("rope.scaling.type", "str", "yarn")
        put("rope.scaling.factor", "f32", rope["factor"])
        put("rope.scaling.original_context_length", "u32", rope["original_max_position_embeddings"])
        if "mscale_all_dim" in rope:
            put("rope.scaling.yarn_log_multiplier", "f32", 0.1 * rope["mscale_all_dim"])
    return out


def tokenizer_metadata(directory, kind):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    vocab, added = tokenizer["model"]["vocab"], {t["content"]: t for t in tokenizer["added_tokens"]}
    ids = {**vocab, **{content: token["id"] for content, token in added.items()}}
    texts = [text for text, _ in sorted(ids.items(), key=lambda item: item[1])]
    assert sorted(ids.values()) == list(range(len(texts)))
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in tokenizer["model"]["merges"]]
    pieces = kind == "mixtral"
    types = [UNKNOWN if text == "<unk>" else CONTROL if text in added else
             BYTE if pieces and len(text) == 6 and text.startswith("<0x") else NORMAL for text in texts]
    out = [("tokenizer.ggml.model", "str", "llama" if pieces else "gpt2"), ("tokenizer.ggml.tokens", "[str]", texts),
           ("tokenizer.ggml.token_type", "[i32]", types)]
    if pieces:
        ranks = {left + right: rank for rank, (left, right) in reversed(list(enumerate(merges)))}
        out.append(("tokenizer.ggml.scores", "[f32]", [float(-ranks.get(text, 1000 + i)) for i, text in enumerate(texts)]))
    else:
        out += [("tokenizer.ggml.pre", "str", PRE_TOKENIZERS[kind]),
                ("tokenizer.ggml.merges", "[str]", [" ".join(merge) for merge in merges])]
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown")):
        token = settings.get(f"{name}_token")
        if token is not None:
            out.append((f"tokenizer.ggml.{key}_token_id", "u32", ids[token]))
    single = (tokenizer["post_processor"] or {}).get("single", [])
    out.append(("tokenizer.ggml.add_bos_token", "bool", any("SpecialToken" in step for step in single)))
    template = directory / "chat_template.jinja"
    source = template.read_text() if template.exists() else settings.get("chat_template")
    return out + ([("tokenizer.chat_template", "str", source)] if source else [])


def convert(directory, layers=None):
    """(metadata, tensors) of a checkpoint: [(key, kind, value)] and {name: (type, shape, bytes)}. `layers`: how
    many."""
    config = json.loads((directory / "config.json").read_text())
    if layers:
        config["num_hidden_layers"] = layers
    stored = read_safetensors(directory)
    tensors = {"token_embd.weight": stored["model.embed_tokens.weight"],
               "output_norm.weight": as_float32(stored["model.norm.weight"])}
    if not config.get("tie_word_embeddings", config["model_type"] == "ernie4_5_moe"):
        tensors["output.weight"] = stored["lm_head.weight"]
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = rope_factors(config, scaling)
    for i in range(config["num_hidden_layers"]):
        tensors.update(convert_layer(config, stored, f"model.layers.{i}.", f"blk.{i}."))
    metadata = model_metadata(config)
    if (directory / "tokenizer.json").exists():
        metadata += tokenizer_metadata(directory, config["model_type"])
    return metadata, tensors


# --- GGUF ---

def text_bytes(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key_bytes(key, kind, value):
    if kind.startswith("["):
        number, form = KINDS[kind[1:-1]]
        items = b"".join(map(text_bytes, value)) if form is None else struct.pack(f"<{len(value)}{form}", *value)
        return text_bytes(key) + struct.pack("<IIQ", 9, number, len(value)) + items
    number, form = KINDS[kind]
    return text_bytes(key) + struct.pack("<I", number) + (text_bytes(value) if form is None else struct.pack("<" + form, value))


def padded(raw, alignment=32):
    return raw + bytes(-len(raw) % alignment)


def file_bytes(metadata, tensors, version=3):
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(key_bytes(*entry) for entry in metadata)
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        head += text_bytes(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", TYPES[kind][0], len(data))
        data += padded(raw)
    return padded(head) + data


def write(path, metadata, tensors, splits=1):
    """Writes one file, or with `splits` the files PATH-00001-of-0000N.gguf. Returns the path of the first file."""
    if splits == 1:
        path.write_bytes(file_bytes(metadata, tensors))
        return path
    names, files = list(tensors), []
    for i in range(splits):
        mine = names[i * len(names) // splits:(i + 1) * len(names) // splits]
        keys = [("split.no", "u16", i), ("split.count", "u16", splits), ("split.tensors.count", "i32", len(names))]
        files.append(path.with_name(f"{path.stem}-{i + 1:05}-of-{splits:05}.gguf"))
        files[-1].write_bytes(file_bytes((metadata if i == 0 else []) + keys, {name: tensors[name] for name in mine}))
    return files[0]


def read(path):
    """Reads a file. Returns (metadata, tensors) in the form of write(). Supports only metadata kinds of KINDS."""
    raw, at = path.read_bytes(), 4
    kinds = {number: (name, form) for name, (number, form) in KINDS.items()}

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return values[0]

    def value(number):
        nonlocal at
        form = kinds[number][1]
        if form is not None:
            return take(form)
        size = take("Q")
        at += size
        return raw[at - size:at].decode()

    _, count, keys = take("I"), take("Q"), take("Q")
    metadata = []
    for _ in range(keys):
        key, number = value(8), take("I")
        if number == 9:
            number = take("I")
            metadata.append((key, f"[{kinds[number][0]}]", [value(number) for _ in range(take("Q"))]))
        else:
            metadata.append((key, kinds[number][0], value(number)))
    infos = []
    for _ in range(count):
        name, dimensions = value(8), take("I")
        shape = [take("Q") for _ in range(dimensions)][::-1]
        infos.append((name, NAMES[take("I")], shape, take("Q")))
    data, tensors = at + -at % 32, {}
    for name, kind, shape, offset in infos:
        size = math.prod(shape) // TYPES[kind][1] * TYPES[kind][2]
        tensors[name] = (kind, shape, raw[data + offset:data + offset + size])
    return metadata, tensors


# --- blocks ---

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
NON_LINEAR = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def half(raw, at):
    return struct.unpack_from("<e", raw, at)[0]


def halves(codes):
    """The low nibbles of all bytes, then the high nibbles of all bytes."""
    return [byte & 15 for byte in codes] + [byte >> 4 for byte in codes]


def scale_and_min(packed, j):
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4


def k_block(b, high, low):
    out, d, dmin = [], half(b, 0), half(b, 2)
    for j in range(8):
        scale, minimum = scale_and_min(b[4:16], j)
        for i in range(32):
            code = low[j // 2 * 32 + i] >> 4 * (j % 2) & 15
            code |= (high[i] >> j & 1) << 4 if high else 0
            out.append(d * scale * code - dmin * minimum)
    return out


def q6_block(b):
    out, d = [], half(b, 208)
    for i in range(256):
        h, group, column = i // 128, i % 128 // 32, i % 32
        code = b[h * 64 + group % 2 * 32 + column] >> 4 * (group // 2) & 15
        code |= (b[128 + h * 32 + column] >> 2 * group & 3) << 4
        out.append(d * struct.unpack_from("b", b, 192 + i // 16)[0] * (code - 32))
    return out


def iq4_block(b):
    out, d, high = [], half(b, 0), struct.unpack_from("<H", b, 2)[0]
    for j in range(8):
        scale = b[4 + j // 2] >> 4 * (j % 2) & 15 | (high >> 2 * j & 3) << 4
        out += [d * (scale - 32) * NON_LINEAR[code] for code in halves(b[8 + 16 * j:24 + 16 * j])]
    return out


BLOCKS = {"Q8_0": lambda b: [half(b, 0) * q for q in struct.unpack_from("32b", b, 2)],
          "Q4_0": lambda b: [half(b, 0) * (code - 8) for code in halves(b[2:])],
          "MXFP4": lambda b: [2.0 ** (b[0] - 127) * E2M1[code] for code in halves(b[1:])],
          "Q4_K": lambda b: k_block(b, None, b[16:]), "Q5_K": lambda b: k_block(b, b[16:48], b[48:]),
          "Q6_K": q6_block, "IQ4_XS": iq4_block}


def dequantize(kind, raw):
    """The exact values as a list of doubles. Rounded to float32, they are the values that ggml computes."""
    if kind not in BLOCKS:
        return floats(kind, raw)
    size = TYPES[kind][2]
    return [x for at in range(0, len(raw), size) for x in BLOCKS[kind](raw[at:at + size])]
