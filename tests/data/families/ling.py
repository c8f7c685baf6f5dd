"""Ling 2 and 2.5, which are not in transformers 5.24, as variants of models that are (make_families.py)."""
import json
import re

import safetensors.torch
import torch

# Ling 2 is not in transformers 5.24. Sarvam has its layers and tensor names, and other names of the settings.
LING = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "attention_bias": "use_qkv_bias"}


def as_ling(text):
    """The configuration of Sarvam with Ling's names."""
    ling = {LING.get(key, key): value for key, value in text.items()}
    return {**ling, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2"}


class Norm(torch.nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(size)), eps

    def forward(self, x, groups=1):
        x = x.unflatten(-1, (groups, -1))
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2) * self.weight


class Lightning(torch.nn.Module):
    """Lightning Attention of Ling 2.5: outputs are sums over all earlier rows, each with its own decay."""

    def __init__(self, config, layer, heads, groups, part, silu, qk_norm):
        super().__init__()
        size, bias = config.hidden_size, config.attention_bias
        self.heads, self.groups, self.silu, self.rope = heads, groups, silu, config.rope_parameters
        self.rotated = int(size // heads * part)
        self.query_key_value = torch.nn.Linear(size, 3 * size, bias=bias)
        self.g_proj = torch.nn.Linear(size, size, bias=bias)
        self.dense = torch.nn.Linear(size, size, bias=bias)
        self.g_norm = Norm(size, config.rms_norm_eps)
        self.query_layernorm = Norm(size // heads, config.rms_norm_eps) if qk_norm else None
        self.key_layernorm = Norm(size // heads, config.rms_norm_eps) if qk_norm else None
        below = 2 ** (heads.bit_length() - 1)
        powers = [(i + 1) / below for i in range(below)] + [(2 * i + 1) / (2 * below) for i in range(heads - below)]
        factor = 1 - (layer - 1) / (config.num_hidden_layers - 1) + 1e-5
        self.rates = -factor * torch.tensor([2.0 ** (-8 * power) for power in powers])

    def forward(self, hidden_states, position_embeddings, **_):
        x = hidden_states[0]
        query, key, value = self.query_key_value(x).view(len(x), 3, self.heads, -1).unbind(1)  # [T, heads, D]
        if self.query_layernorm:
            query, key = self.query_layernorm(query), self.key_layernorm(key)
        if self.rope["rope_type"] == "default":
            angles = torch.arange(len(x))[:, None] * self.rope["rope_theta"] ** (-torch.arange(0, self.rotated, 2) / self.rotated)
            cos, sin = (f(torch.cat([angles, angles], 1)) for f in (torch.cos, torch.sin))
        else:
            cos, sin = (table[0] for table in position_embeddings)

        def rotate(rows):
            turned, rest = rows[..., :self.rotated], rows[..., self.rotated:]
            a, b = turned.chunk(2, -1)
            return torch.cat([turned * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None], rest], -1)

        distances = torch.arange(len(x))[:, None] - torch.arange(len(x))
        decays = (self.rates[:, None, None] * distances).exp().tril()
        scores = torch.einsum("thd,shd->hts", rotate(query), rotate(key)) * query.shape[-1] ** -0.5 * decays
        out = self.g_norm(torch.einsum("hts,shd->thd", scores, value).flatten(1), self.groups)
        gate = self.g_proj(x)
        return self.dense(out * (torch.nn.functional.silu(gate) if self.silu else gate.sigmoid()))[None]


class NoGate(torch.nn.Module):
    """The projection of gates of Ling 3's latent attention, which Ling 2.5 does not have: the gates are 1."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, x):
        return torch.full((*x.shape[:-1], self.heads), 1e4)


def as_lightning(model, settings):
    """Replaces the attention of Ling 3 by that of Ling 2.5."""
    for i, layer in enumerate(model.model.layers):
        if layer.block_type == "linear_attention":
            layer.self_attn = Lightning(model.config, i, **settings)
        else:
            layer.self_attn.g_proj = NoGate(model.config.num_attention_heads)
    return model


def save_lightning(model, settings, stored):
    """With the names and settings of published checkpoints."""
    names = {"embed_tokens.": "word_embeddings.", "self_attn.o_proj.": "attention.dense.", "self_attn.": "attention.",
             "e_score_correction_bias": "expert_bias"}
    weights = {re.sub("|".join(map(re.escape, names)), lambda m: names[m[0]], key): value.contiguous()
               for key, value in model.state_dict().items()}
    stored.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(weights, stored / "model.safetensors")
    config = model.config
    default = config.rope_parameters["rope_type"] == "default"
    keys = ("vocab_size hidden_size intermediate_size moe_intermediate_size num_hidden_layers num_attention_heads num_experts "
            "num_shared_experts routed_scaling_factor kv_lora_rank q_lora_rank qk_rope_head_dim v_head_dim qk_nope_head_dim "
            "topk_group first_k_dense_replace rms_norm_eps eos_token_id layer_types attention_bias").split()
    text = {**{key: getattr(config, key) for key in keys},
            "architectures": ["BailingMoeV2_5ForCausalLM"], "model_type": "bailing_hybrid", "hidden_act": "silu",
            "n_group": config.num_expert_group, "norm_topk_prob": config.moe_renormalize,
            "num_experts_per_tok": config.num_experts_per_token, "max_position_embeddings": config.model_max_length,
            "moe_shared_expert_intermediate_size": config.moe_intermediate_size, "score_function": "sigmoid",
            "num_kv_heads_for_linear_attn": settings["heads"], "group_norm_size": settings["groups"],
            "linear_silu": settings["silu"], "use_qk_norm": settings["qk_norm"], "partial_rotary_factor": settings["part"],
            **({"rope_theta": config.rope_parameters["rope_theta"], "rope_scaling": None} if default else
               {"rope_parameters": config.rope_parameters})}
    (stored / "config.json").write_text(json.dumps(text))
