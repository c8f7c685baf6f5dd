"""Writes EAGLE and EAGLE3 heads whose drafts are accepted in part. Uses only the standard library.

A head is built from outputs of its target. It knows the most frequent tokens of these outputs, and drafts the token that
follows most often. Its layer adds nothing to the residual stream, so the linear fc alone gives the head's row:

  EAGLE:  fc has the embedding of token p + 1, and gives a row whose largest logit is a frequent token p + 2
  EAGLE3: fc has the input of layer 0, the embedding of token p. The head's own rows of the vocabulary are unit vectors,
          so row j stands for the j-th frequent token (table d2t)
"""
import array
import collections
import json
import random

from gguf_file import as_bfloat16, floats, read_safetensors, write_safetensors

HEADS, KV_HEADS, HEAD_DIM, MIDDLE = 4, 2, 16, 96


def solved(matrix, right):
    """X with matrix · X = right, by elimination with pivots. Rows are lists."""
    n = len(matrix)
    rows = [matrix[i] + right[i] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        scale = 1 / rows[i][i]
        rows[i] = [scale * x for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i] != 0:
                factor = rows[r][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i])]
    return [row[n:] for row in rows]


def map_of(inputs, outputs):
    """The matrix A of least norm with A · inputs[i] = outputs[i]. It has len(inputs[0]) columns."""
    gram = [[sum(a * b for a, b in zip(x, y)) for y in inputs] for x in inputs]
    for i in range(len(gram)):
        gram[i][i] *= 1 + 1e-4  # embeddings may depend on each other
    dual = solved(gram, inputs)
    return [[sum(y[n] * d[k] for y, d in zip(outputs, dual) if y[n] != 0) for k in range(len(inputs[0]))]
            for n in range(len(outputs[0]))]


def followers(outputs, distance, count):
    """Up to `count` pairs of a frequent token and the token that is most often `distance` positions later."""
    found = collections.defaultdict(collections.Counter)
    for tokens in outputs:
        for i, token in enumerate(tokens[:-distance]):
            found[token][tokens[i + distance]] += 1
    frequent = sorted(found, key=lambda token: (-found[token].total(), token))[:count]
    return [(token, found[token].most_common(1)[0][0]) for token in frequent]


def write_head(folder, target, outputs, inner_rows, hidden=None, count=96, bfloat16=False):
    """Writes a head of EAGLE3 (`inner_rows`) or EAGLE for the checkpoint `target`. `outputs`: lists of token ids. `hidden`:
    the hidden size of an EAGLE3 head with an embedding of its own; None: that of the target, whose embedding it uses.
    `count`: the number of tokens that the head knows. `bfloat16`: the type of the weights; else float32."""
    stored, noise = read_safetensors(target), random.Random(5)
    config = json.loads((target / "config.json").read_text())
    width, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    size = hidden or width
    tensors = {}

    def add(name, shape, values):
        tensors[name] = ("BF16", shape, as_bfloat16(values)) if bfloat16 else (
            "F32", shape, array.array("f", values).tobytes())

    def matrix(name, n, k, deviation):
        add(f"{name}.weight", [n, k], [noise.gauss(0, deviation) if deviation else 0 for _ in range(n * k)])

    def row(name, index):
        dtype, _, raw = stored[name]
        step = len(raw) // vocab
        return floats(dtype, raw[index * step:(index + 1) * step])

    pairs = followers(outputs, 2 if inner_rows else 1, count)
    inputs = [row("model.embed_tokens.weight", token) for token, _ in pairs]
    own = {"architectures": ["LlamaForCausalLMEagle3" if inner_rows else "LlamaForCausalLMEagle"], "bias": False}
    prefix = "midlayer." if inner_rows else "layers.0."
    if inner_rows:
        drafted = sorted({after for _, after in pairs})
        assert len(drafted) <= size
        rows = [[float(j == drafted.index(after)) for j in range(size)] for _, after in pairs]
        projection = map_of(inputs, rows)
        add("fc.weight", [size, 3 * width], [x for line in projection for x in line + [0.0] * (2 * width)])
        for name in ("midlayer.input_layernorm", "midlayer.hidden_norm", "norm"):
            add(f"{name}.weight", [size], [1] * size)
        add("lm_head.weight", [len(drafted), size], [float(i == j) for i in range(len(drafted)) for j in range(size)])
        table = array.array("q", [token - j for j, token in enumerate(drafted)])
        tensors["d2t"] = ("I64", [len(drafted)], table.tobytes())
        own["draft_vocab_size"] = len(drafted)
        own["eagle_config"] = {"use_aux_hidden_state": True,
                               "eagle_aux_hidden_state_layer_ids": [-1, 0, layers - 1]}  # outputs of these layers
        if hidden:
            own["target_hidden_size"] = width
            matrix("embed_tokens", vocab, size, 1)
    else:
        rows = []
        for _, after in pairs:
            head = row("lm_head.weight", after)
            length = sum(x * x for x in head) ** 0.5
            rows.append([x / length for x in head])
        projection = map_of(inputs, rows)
        add("fc.weight", [size, 2 * width], [x for line in projection for x in line + [0.0] * width])
    inner = 2 * size if inner_rows else size
    matrix(f"{prefix}self_attn.q_proj", HEADS * HEAD_DIM, inner, 0.1)
    matrix(f"{prefix}self_attn.k_proj", KV_HEADS * HEAD_DIM, inner, 0.1)
    matrix(f"{prefix}self_attn.v_proj", KV_HEADS * HEAD_DIM, inner, 0.1)
    matrix(f"{prefix}self_attn.o_proj", size, HEADS * HEAD_DIM, 0)
    matrix(f"{prefix}mlp.gate_proj", MIDDLE, size, 0.1)
    matrix(f"{prefix}mlp.up_proj", MIDDLE, size, 0.1)
    matrix(f"{prefix}mlp.down_proj", size, MIDDLE, 0)
    add(f"{prefix}post_attention_layernorm.weight", [size], [1] * size)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": size, "intermediate_size": MIDDLE, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": vocab,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16" if bfloat16 else "float32", **own}))
