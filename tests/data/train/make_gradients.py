#!/usr/bin/env python3
"""Write the gradients that PyTorch's autograd finds for fixtures, for the tests of src/train.

  make_gradients.py [NAME ...]        (deepseek_v3, qwen3_moe and mixtral by default)

Loads ../fixtures/NAME with `transformers` on the CPU, computes the loss of a small batch of packed
sequences and its gradient in float64, and writes NAME/model.safetensors. Differences from these
values are therefore errors of the compared code.

  batch.tokens, batch.targets  int32 [T]    targets of -1 are ignored
  batch.begins                 int32 [S + 1]
  losses                       float32 [3]  main, MTP and balance loss, weighted
  NAME OF A PARAMETER          float32 [1 + n]  the norm of its gradient, then every stride-th entry
                                            of the gradient, stride = ceil(size / 250)

Parameters are named as in the checkpoint. The losses are those of src/train with the weights in
LOSSES below; this script has a second implementation of their formulas. deepseek_v3 has an MTP
layer, which `transformers` does not load. This script builds the decoder layer of the MTP layer from
the model's own class, with the model's embedding and head.

Needs torch 2.11, transformers 5.17 and safetensors.
"""
import argparse
import contextlib
import importlib.util
import json
import pathlib

import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
SAMPLES = 250
LENGTHS = [24, 1, 9, 40]
LOSSES = {"batch": 0.02, "sequence": 0.03, "z": 0.001, "mtp": 0.3}


def make_batch(vocabulary):
    """Token ids of a small congruential generator, which do not depend on the version of a library."""
    state, sequences = 12345, []

    def draw(limit):
        nonlocal state
        state = (state * 1103515245 + 12345) % 2**31
        return (state >> 8) % limit

    for length in LENGTHS:
        text = [draw(vocabulary) for _ in range(length + 1)]
        targets = [-1 if draw(5) == 0 else token for token in text[1:]]
        sequences.append((torch.tensor(text[:-1]), torch.tensor(targets)))
    return sequences


@contextlib.contextmanager
def no_float32():
    """Norms, softmaxes and routers of `transformers` convert to float32 explicitly. Replaces this by float64."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


class Routers:
    """Collects the logits of every router, sequence by sequence."""

    def __init__(self):
        self.logits = {}  # by module: one [T, E] for each sequence

    def watch(self, module):
        self.logits[module] = []

        def hook(gate, arguments):
            x = arguments[0]
            self.logits[gate].append(F.linear(x.reshape(-1, x.shape[-1]), gate.weight))

        module.register_forward_pre_hook(hook)


def choose(logits, gate, config):
    """Ids [T, k] of the experts that are chosen."""
    if config.model_type != "deepseek_v3":
        return logits.softmax(-1).topk(config.num_experts_per_tok, -1).indices
    scores = logits.sigmoid() + gate.e_score_correction_bias
    groups = scores.view(len(scores), config.n_group, -1)
    best = groups.topk(2, -1).values.sum(-1).topk(config.topk_group, -1).indices
    allowed = torch.zeros(len(scores), config.n_group, dtype=torch.bool).scatter_(1, best, True)
    mask = allowed[:, :, None].expand_as(groups).reshape(scores.shape)
    return scores.masked_fill(~mask, -torch.inf).topk(config.num_experts_per_tok, -1).indices


def balance_loss(routers, config, tokens):
    total = torch.zeros((), dtype=torch.float64)
    for gate, parts in routers.logits.items():
        probabilities, frequencies = [], []
        for logits in parts:
            if config.model_type == "deepseek_v3":
                scores = logits.sigmoid()
                probabilities.append(scores / scores.sum(-1, keepdim=True))
            else:
                probabilities.append(logits.softmax(-1))
            experts = logits.shape[-1]
            ids = choose(logits.detach(), gate, config)
            counts = torch.bincount(ids.reshape(-1), minlength=experts).double()
            frequencies.append(counts * experts / config.num_experts_per_tok)
            total = total + LOSSES["z"] * (logits.logsumexp(-1) ** 2).sum() / tokens
        for p, f in zip(probabilities, frequencies):
            total = total + LOSSES["sequence"] * (f / len(p) * p).sum() / tokens
        length = sum(len(p) for p in probabilities)
        f = sum(frequencies) / length
        total = total + LOSSES["batch"] * (f * torch.cat(probabilities)).sum() / tokens
    return total


class Mtp(torch.nn.Module):
    """The MTP layer of a DeepSeek-V3 checkpoint."""

    def __init__(self, directory, config):
        super().__init__()
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
        index = config.num_hidden_layers
        self.prefix = f"model.layers.{index}."
        stored = {}
        for file in sorted(directory.glob("model*.safetensors")):
            stored.update(safetensors.torch.load_file(file))
        stored = {name[len(self.prefix):]: tensor.float() for name, tensor in stored.items()
                  if name.startswith(self.prefix)}
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = deepseek.DeepseekV3RMSNorm(hidden, eps)
        self.hnorm = deepseek.DeepseekV3RMSNorm(hidden, eps)
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.norm = deepseek.DeepseekV3RMSNorm(hidden, eps)
        self.layer = deepseek.DeepseekV3DecoderLayer(config, index)
        for module, name in ((self.enorm, "enorm"), (self.hnorm, "hnorm"),
                             (self.eh_proj, "eh_proj"), (self.norm, "shared_head.norm")):
            module.weight.data = stored[name + ".weight"]
        state = {}
        for name in self.layer.state_dict():
            if name in stored:
                state[name] = stored[name]
        experts = range(config.n_routed_experts)
        expert = lambda e, part: stored[f"mlp.experts.{e}.{part}_proj.weight"]
        state["mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat([expert(e, "gate"), expert(e, "up")]) for e in experts])
        state["mlp.experts.down_proj"] = torch.stack([expert(e, "down") for e in experts])
        self.layer.load_state_dict(state)

    def forward(self, model, ids, hidden):
        joined = torch.cat([self.enorm(model.model.embed_tokens(ids)), self.hnorm(hidden)], -1)
        x = self.eh_proj(joined)[None]
        length = len(ids)
        mask = torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        positions = torch.arange(length)[None]
        out = self.layer(x, attention_mask=mask, position_ids=positions,
                         position_embeddings=model.model.rotary_emb(x, positions))
        out = out[0] if isinstance(out, tuple) else out
        return model.lm_head(self.norm(out[0]))

    def gradients(self):
        names = {"enorm.weight": "enorm.weight", "hnorm.weight": "hnorm.weight",
                 "eh_proj.weight": "eh_proj.weight", "norm.weight": "shared_head.norm.weight"}
        for name, parameter in self.named_parameters():
            name = names.get(name, name.removeprefix("layer."))
            yield self.prefix + name, parameter.grad


def split_experts(name, gradient, config):
    """Splits stacked experts into one tensor per expert, with the names of the checkpoint."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        if config.model_type == "mixtral":
            name = name.replace(".mlp.gate.", ".block_sparse_moe.gate.")
        yield name, gradient
        return
    prefix, part = name.rsplit(".", 1)
    gate, up, down = "gate_proj", "up_proj", "down_proj"
    if config.model_type == "mixtral":
        prefix = prefix.replace(".mlp.", ".block_sparse_moe.")
        gate, up, down = "w1", "w3", "w2"
    for e, one in enumerate(gradient):
        if part == "down_proj":
            yield f"{prefix}.{e}.{down}.weight", one
        else:
            half = len(one) // 2
            yield f"{prefix}.{e}.{gate}.weight", one[:half]
            yield f"{prefix}.{e}.{up}.weight", one[half:]


def check_float64(*modules):
    for module in modules:
        for name, parameter in module.named_parameters() if module is not None else ():
            if parameter.grad.dtype != torch.float64:
                raise SystemExit(f"{name}: the gradient is {parameter.grad.dtype}")


def compute(name, reference):
    directory = FIXTURES / name
    model = reference.load(directory)
    model.set_attn_implementation("eager")
    config = model.config
    config._experts_implementation = "eager"  # grouped products do not support float64
    model.double()
    mtp = Mtp(directory, config) if config.model_type == "deepseek_v3" else None
    if mtp is not None:
        mtp.double()
    routers = Routers()
    for module in [model] + ([mtp] if mtp is not None else []):
        for child in module.modules():
            if hasattr(child, "experts"):
                routers.watch(child.gate)

    sequences = make_batch(config.vocab_size)
    targets = sum(int((t >= 0).sum()) for _, t in sequences)
    tokens = sum(len(t) for _, t in sequences)
    cross_entropy = lambda logits, t: F.cross_entropy(
        logits, t, ignore_index=-1, reduction="sum") / targets
    main, extra = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    with no_float32():
        for ids, wanted in sequences:
            hidden = model.model(ids[None], use_cache=False).last_hidden_state[0]
            main = main + cross_entropy(model.lm_head(hidden), wanted)
            if mtp is not None and len(ids) > 1:
                logits = mtp(model, ids[1:], hidden[:-1])
                extra = extra + LOSSES["mtp"] * cross_entropy(logits, wanted[1:])
        balance = balance_loss(routers, config, tokens)
    (main + extra + balance).backward()
    check_float64(model, mtp)

    begins = torch.tensor([0] + [len(t) for _, t in sequences]).cumsum(0)
    file = {
        "batch.tokens": torch.cat([ids for ids, _ in sequences]).int(),
        "batch.targets": torch.cat([t for _, t in sequences]).int(),
        "batch.begins": begins.int(),
        "losses": torch.stack([main, extra, balance]).detach().float(),
    }
    gradients = [(name, p.grad) for name, p in model.named_parameters()]
    if mtp is not None:
        gradients += list(mtp.gradients())
    for stacked, gradient in gradients:
        if gradient is None:
            raise SystemExit(f"{name}: {stacked} has no gradient")
        for parameter, one in split_experts(stacked, gradient, config):
            flat = one.detach().reshape(-1)
            stride = -(-len(flat) // SAMPLES)
            file[parameter] = torch.cat([flat.norm()[None], flat[::stride]]).float()
    return {key: tensor.contiguous() for key, tensor in file.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*",
                        default=["deepseek_v3", "qwen3_moe", "mixtral"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    spec = importlib.util.spec_from_file_location("make_reference", FIXTURES / "make_reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, float64 on CPU"
    for name in arguments.names:
        tensors = compute(name, reference)
        target = HERE / name
        target.mkdir(exist_ok=True)
        file = target / "model.safetensors"
        made = f"{versions}; loss weights {json.dumps(LOSSES, sort_keys=True)}"
        safetensors.torch.save_file(tensors, file, metadata={"made_with": made})
        file.chmod(0o644)
        print(f"{name}: {len(tensors) - 4} parameters, losses {tensors['losses'].tolist()}")


if __name__ == "__main__":
    main()
