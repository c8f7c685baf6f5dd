#!/usr/bin/env python3
"""Fits the MTP layer's input projection to chains of drafts, in closed form.

    models/yardling/fit_mtp.py MODEL_DIR [--chats FILE] [--test FILE] [--every 7]

Training feeds the MTP layer hidden rows of the model. In a chain of drafts, later rows take the layer's own output
instead (docs/speculative.md). The projection `eh_proj` is replaced by the one that gives both kinds of rows the
projected values of the model's rows, by least squares: E' minimizes |E' x - E m|^2 over all rows, where m is the
layer's input with the model's hidden row, and x the input that the row has in a draft. Drafts never change outputs.

Starts `switchyard serve` to tokenize. Prints how often drafts equal the model's tokens, before and after, and writes
the projection into model.safetensors. Needs numpy.
"""

import argparse
import http.client
import json
from pathlib import Path

import evaluate
import numpy as np

HERE = Path(__file__).resolve().parent
DEPTH = 3  # drafts of a chain
FIRST = 3.0  # weight of the rows of first drafts, on which all others depend
ROUNDS = 3  # of the fit: the layer's own rows change with the projection
MOST_TOKENS = 400  # of a chat: attention takes time and memory by their square
RIDGE = 1e-4  # relative to the mean square of the inputs


class Model:
    """A DeepSeek-V3 checkpoint with one MTP layer, in float32. Rows are positions of one sequence."""

    def __init__(self, folder):
        self.file = Path(folder) / "model.safetensors"
        data = self.file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self.header, self.base = json.loads(data[8:8 + length]), 8 + length
        self.w = {name: self.read(data, name) for name in self.header if name != "__metadata__"}
        c = self.config = json.loads((Path(folder) / "config.json").read_text())
        self.layers, self.heads, self.rank = c["num_hidden_layers"], c["num_attention_heads"], c["kv_lora_rank"]
        self.nope, self.rot = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        self.mtp = f"model.layers.{self.layers}."
        self.projection = self.mtp + "eh_proj.weight"

    def read(self, data, name):
        of, (begin, end) = self.header[name], self.header[name]["data_offsets"]
        part = data[self.base + begin:self.base + end]
        if of["dtype"] == "BF16":
            values = (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(part, np.float32)
        return values.reshape(of["shape"]).copy()

    def write_projection(self):
        """Rounds the projection to bfloat16, and writes it to the file."""
        bits = self.w[self.projection].astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        with open(self.file, "r+b") as file:
            file.seek(self.base + self.header[self.projection]["data_offsets"][0])
            file.write(rounded.tobytes())

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.w[name + ".weight"]

    def times(self, x, name):
        return x @ self.w[name + ".weight"].T

    def rope(self, x, positions):
        angles = positions[:, None] / self.config["rope_theta"] ** (np.arange(0, self.rot, 2) / self.rot)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def attention_inputs(self, p, x, positions):
        """-> queries, keys, values [rows, heads, .]"""
        q = self.times(self.norm(self.times(x, p + "q_a_proj"), p + "q_a_layernorm"), p + "q_b_proj")
        q = q.reshape(len(x), self.heads, -1)
        latent = self.times(x, p + "kv_a_proj_with_mqa")
        kv = self.times(self.norm(latent[:, :self.rank], p + "kv_a_layernorm"), p + "kv_b_proj").reshape(len(x), self.heads, -1)
        shared = np.repeat(self.rope(latent[:, None, self.rank:], positions), self.heads, 1)
        return (np.concatenate([q[..., :self.nope], self.rope(q[..., self.nope:], positions)], -1),
                np.concatenate([kv[..., :self.nope], shared], -1), kv[..., self.nope:])

    def attend(self, p, q, keys, values, drafted):
        """Row i attends to the first i + 1 of `keys`, and to row i of each (keys, values) of `drafted`."""
        scale = (self.nope + self.rot) ** -0.5
        scores = np.einsum("ihd,jhd->hij", q, keys)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        own = [np.einsum("ihd,ihd->hi", q, k)[..., None] for k, _ in drafted]
        scores = scale * np.concatenate([scores, *own], -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hij,jhd->ihd", weights[..., :len(keys)], values)
        for i, (_, v) in enumerate(drafted):
            out = out + np.einsum("hi,ihd->ihd", weights[..., len(keys) + i], v)
        return self.times(out.reshape(len(q), -1), p + "o_proj")

    def feed_forward(self, p, x):
        gate = self.times(x, p + "gate_proj")
        return self.times(gate / (1 + np.exp(-gate)) * self.times(x, p + "up_proj"), p + "down_proj")

    def experts(self, p, x):
        scores = 1 / (1 + np.exp(-self.times(x, p + "gate")))
        order = np.argsort(-(scores + self.w[p + "gate.e_score_correction_bias"]), axis=1, kind="stable")
        top = order[:, :self.config["num_experts_per_tok"]]
        total = np.take_along_axis(scores, top, 1).sum(1)
        out = self.feed_forward(p + "shared_experts.", x)
        for e in range(scores.shape[1]):
            rows = np.nonzero((top == e).any(1))[0]
            out[rows] += (scores[rows, e] / total[rows])[:, None] * self.feed_forward(f"{p}experts.{e}.", x[rows])
        return out

    def layer(self, i, x, positions, cache=None, drafted=()):
        """-> output, keys and values. Without a cache, the rows attend to each other."""
        p = f"model.layers.{i}."
        q, k, v = self.attention_inputs(p + "self_attn.", self.norm(x, p + "input_layernorm"), positions)
        own = (k, v)
        x = x + self.attend(p + "self_attn.", q, *(cache or own), [*drafted, own] if cache else [])
        y = self.norm(x, p + "post_attention_layernorm")
        dense = i < self.config["first_k_dense_replace"]
        return x + (self.feed_forward if dense else self.experts)(p + "mlp.", y), own

    def hidden(self, ids):
        x, positions = self.w["model.embed_tokens.weight"][ids], np.arange(len(ids))
        for i in range(self.layers):
            x, _ = self.layer(i, x, positions)
        return self.norm(x, "model.norm")

    def join(self, ids, hidden):
        """The inputs of the projection."""
        embedded = self.w[self.mtp + "embed_tokens.weight"][ids]
        return np.concatenate([self.norm(embedded, self.mtp + "enorm"), self.norm(hidden, self.mtp + "hnorm")], 1)

    def chain(self, ids, hidden):
        """-> for each draft of a chain from each position: inputs of the projection, its inputs with the model's rows,
        drafted tokens. A chain's tokens are those of the text."""
        rows = len(ids) - DEPTH - 1
        out, own, cache, drafted = [], hidden, None, []
        for depth in range(DEPTH):
            joined = self.join(ids[1 + depth:1 + depth + rows], own[:rows])
            model = self.join(ids[1 + depth:1 + depth + rows], hidden[depth:depth + rows])
            x, keys = self.layer(self.layers, joined @ self.w[self.projection].T, np.arange(rows) + depth, cache, drafted)
            if depth == 0:
                cache = keys
            else:
                drafted.append(keys)
            own = self.norm(x, self.mtp + "shared_head.norm")
            out.append((joined, model, self.times(own, self.mtp + "shared_head.head").argmax(1)))
        return out


def tokenized(folder, path, every):
    """The tokens of every n-th chat without tools."""
    chats = [json.loads(line) for line in Path(path).read_text().splitlines()[::every]]
    texts = [chat["messages"] for chat in chats if all(isinstance(m.get("content"), str) for m in chat["messages"])]
    with evaluate.serving(folder, 1, 1) as address:
        connection = http.client.HTTPConnection(*address, timeout=60)
        for messages in texts:
            body = {"messages": messages, "add_generation_prompt": False}
            connection.request("POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            yield np.array(answer["tokens"])


def with_hidden(model, texts):
    return [(ids, model.hidden(ids)) for ids in texts if DEPTH + 4 < len(ids) < MOST_TOKENS]


def acceptance(model, texts):
    """-> for each draft: how often it equals the model's token, where that is the text's and all before it were right."""
    right, count = np.zeros(DEPTH), np.zeros(DEPTH)
    for ids, hidden in texts:
        best = model.times(hidden, "lm_head").argmax(1)
        open_rows = np.ones(len(ids) - DEPTH - 1, bool)
        for depth, (_, _, drafts) in enumerate(model.chain(ids, hidden)):
            wanted = best[1 + depth:1 + depth + len(drafts)]
            open_rows &= wanted == ids[2 + depth:2 + depth + len(drafts)]
            count[depth] += open_rows.sum()
            open_rows &= drafts == wanted
            right[depth] += open_rows.sum()
    return ", ".join(f"{r / c:.3f}" for r, c in zip(right, count))


def fit(model, texts):
    before = model.w[model.projection].copy()
    for _ in range(ROUNDS):
        squares, products = 0, 0
        for ids, hidden in texts:
            for depth, (joined, of_model, _) in enumerate(model.chain(ids, hidden)):
                weighted = joined.T * (FIRST if depth == 0 else 1.0)
                squares = squares + weighted @ joined
                products = products + weighted @ (of_model @ before.T)
        ridge = RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
        # The ridge pulls towards the trained projection.
        model.w[model.projection] = np.linalg.solve(squares + ridge, products + ridge @ before.T).T.astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="directory of the checkpoint, which is changed")
    parser.add_argument("--chats", default=HERE / "corpus/train.jsonl", help="chats for the fit")
    parser.add_argument("--test", default=HERE / "corpus/test.jsonl", help="chats for the printed figures")
    parser.add_argument("--every", type=int, default=7, help="every n-th chat is used")
    args = parser.parse_args()
    model = Model(args.model)
    texts, tests = (with_hidden(model, tokenized(args.model, path, args.every)) for path in (args.chats, args.test))
    print(f"acceptance of drafts 1 to {DEPTH} on {len(tests)} chats: {acceptance(model, tests)}", flush=True)
    fit(model, texts)
    print(f"after the fit to {len(texts)} chats: {acceptance(model, tests)}")
    model.write_projection()


if __name__ == "__main__":
    main()
