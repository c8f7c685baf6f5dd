"""Configurations and weights with the names of published checkpoints (make_families.py)."""
import re

import safetensors.torch
import transformers


def as_mimo(text):
    """The configuration of MiMo-V2-Flash with the published names, without attention sinks."""
    names = {"rms_norm_eps": "layernorm_epsilon", "layer_types": "hybrid_layer_pattern", "mlp_layer_types": "moe_layer_freq"}
    published = {names.get(key, key): value for key, value in text.items() if key != "rope_parameters"}
    published["hybrid_layer_pattern"] = [int(kind == "sliding_attention") for kind in text["layer_types"]]
    published["moe_layer_freq"] = [int(kind == "sparse") for kind in text["mlp_layer_types"]]
    full, sliding = (text["rope_parameters"][kind + "_attention"] for kind in ("full", "sliding"))
    published.update(
        rope_theta=full["rope_theta"], swa_rope_theta=sliding["rope_theta"], partial_rotary_factor=full["partial_rotary_factor"],
        rope_scaling={key: full[key] for key in ("rope_type", "factor")}, sliding_window_size=text["sliding_window"] - 1,
        attention_chunk_size=text["sliding_window"], swa_num_attention_heads=text["num_attention_heads"],
        swa_num_key_value_heads=2 * text["num_key_value_heads"], swa_head_dim=text["head_dim"], swa_v_head_dim=text["v_head_dim"],
        add_swa_attention_sink_bias=False, add_full_attention_sink_bias=False, scoring_func="sigmoid", topk_method="noaux_tc",
        n_shared_experts=None)
    return published


def as_kimi_linear(text):
    """The configuration of Kimi-Linear with the published names."""
    published = {key: value for key, value in text.items() if not key.startswith("linear_") and not key.endswith("layer_types")}
    kinds = text["layer_types"]
    published["linear_attn_config"] = {
        "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"],
        "kda_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"],
        "head_dim": text["linear_head_dim"], "num_heads": text["linear_num_heads"],
        "short_conv_kernel_size": text["linear_conv_kernel_dim"]}
    published.update(first_k_dense_replace=text["mlp_layer_types"].count("dense"), moe_layer_freq=1, mla_use_nope=True,
                     moe_router_activation_func="sigmoid", use_grouped_topk=True, rope_theta=10000.0, rope_scaling=None)
    return published


def as_kimi_linear_weights(weights):
    """transformers 5.24 gives dense layers the prefix of MoE layers. Published checkpoints have mlp there."""
    dense = re.compile(r"block_sparse_moe\.(gate|up|down)_proj")
    return {dense.sub(r"mlp.\1_proj", key): value for key, value in weights.items()}


def save_kimi(model, stored):
    """Kimi-K2.5 as it is published. save_pretrained of transformers 5.24 renames the decoder's layers to blocks."""
    text = transformers.DeepseekV3ForCausalLM(model.config.text_config).float()
    text.model.load_state_dict(model.model.language_model.state_dict())
    text.lm_head.load_state_dict(model.lm_head.state_dict())
    text.save_pretrained(stored)
    weights = safetensors.torch.load_file(stored / "model.safetensors")
    weights = {"language_model." + key: value for key, value in weights.items()}
    weights.update({"vision_tower." + key: value for key, value in model.model.vision_tower.state_dict().items()})
    safetensors.torch.save_file(weights, stored / "model.safetensors")
    model.config.architectures = ["KimiK25ForConditionalGeneration"]
    model.config.save_pretrained(stored)


def as_published(weights, config):
    """The published LongCat-Flash has no weights of experts without computation. transformers 5.24 requires some."""
    return {key: value for key, value in weights.items()
            if ".mlp.experts." not in key or int(key.split(".")[5]) < config.n_routed_experts}


def as_deepseek_v4_weights(weights):
    """save_pretrained of transformers 5.24 writes them with a prefix, and with another name of attn.kv_norm."""
    names = {"model.": "", "embed_tokens.": "embed.", "hc_head.hc_": "hc_head_", "attn.norm.": "attn.kv_norm."}
    return {re.sub("|".join(map(re.escape, names)), lambda m: names[m[0]], key): value for key, value in weights.items()}
