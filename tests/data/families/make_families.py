#!/usr/bin/env python3
"""Makes tiny random checkpoints of model families with `transformers`, and their outputs in float32.

  make_families.py [NAME ...] [--output FOLDER]
  make_families.py --keys

Each folder has config.json, model.safetensors (bfloat16, correction biases in float32) and reference.safetensors, as
tests/data/fixtures has it: prompt.i, logits.i, generated.i. There is no tokenizer, because requests give token ids. Every
family has two variants at least: as published, and with the other values of its options. Prints the smallest gap between
the two best logits of a greedy step. With a small gap, a correct implementation may select the other token. For sparse
attention it also prints the smallest gap between the scores of the last selected key and of the next one, and the number
of rows with a gap below 1e-6.

--keys writes config_keys.json: for each model_type the configuration that transformers writes with default settings.

Needs torch and transformers; the versions used are in the metadata of the file.
"""
import argparse
import contextlib
import json
import pathlib

import safetensors.torch
import torch
import transformers

from ling import as_ling, as_lightning, save_lightning
from published import as_deepseek_v4_weights, as_kimi_linear, as_kimi_linear_weights, as_mimo, as_published, save_kimi

GENERATED = 32
SMALL = dict(vocab_size=512, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=256,
             bos_token_id=None, eos_token_id=511, pad_token_id=None, torch_dtype="bfloat16")
GROUPED = dict(num_key_value_heads=2, head_dim=16)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1)
SOFTMAX = dict(num_local_experts=8, num_experts_per_tok=3, intermediate_size=24)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
LONG = dict(rope_type="longrope", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64, short_mscale=1.1,
            long_mscale=1.3, short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.6], long_factor=[1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.15, logits_scaling=0.7)
VISION = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, pos_emb_height=2,
              pos_emb_width=2, pos_emb_time=2)
LONGCAT = dict(vocab_size=512, hidden_size=32, num_layers=2, num_attention_heads=4, max_position_embeddings=256,
               bos_token_id=None, eos_token_id=511, pad_token_id=None, torch_dtype="bfloat16", kv_lora_rank=16,
               q_lora_rank=20, qk_rope_head_dim=8, head_dim=8, qk_nope_head_dim=12, v_head_dim=12,
               ffn_hidden_size=40)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=1.0,
              original_max_position_embeddings=24)
# The gated norm amplifies the rounding of small outputs of a head; a larger epsilon limits this.
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=10,
              linear_conv_kernel_dim=4, rms_norm_eps=1e-4)
LLAMA4_VISION = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vision_output_dim=8,
                     image_size=4, patch_size=2, projector_input_dim=8, projector_output_dim=8)
MIMO = dict(hidden_size=32, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, intermediate_size=64,
            num_hidden_layers=4, sliding_window=8)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=12)

FAMILIES = {
    "dots1": ("Dots1", dict(**GROUPED, **ROUTED, intermediate_size=64, first_k_dense_replace=1, norm_topk_prob=True,
                            routed_scaling_factor=2.5, sliding_window=None)),
    "dots1_windows": ("Dots1", dict(**{**GROUPED, **ROUTED, "n_shared_experts": 2, "n_routed_experts": 12,
                                       "moe_intermediate_size": 16}, intermediate_size=48,
                                    first_k_dense_replace=0, norm_topk_prob=False, attention_bias=True, n_group=4,
                                    topk_group=2, sliding_window=8, max_window_layers=1, tie_word_embeddings=True)),
    "minimax_m2": ("MiniMaxM2", dict(**GROUPED, num_local_experts=8, num_experts_per_tok=3, intermediate_size=24,
                                     rotary_dim=8)),
    "minimax_m2_whole": ("MiniMaxM2", dict(**{**GROUPED, "head_dim": 12}, num_local_experts=6, num_experts_per_tok=2,
                                           intermediate_size=20, tie_word_embeddings=True, rope_theta=10000.0)),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(**GROUPED, intermediate_size=64, moe_num_experts=8, moe_k=3, moe_intermediate_size=24,
                                          moe_num_shared_experts=2)),
    "ernie4_5_moe_sparse": ("Ernie4_5_Moe", dict(num_key_value_heads=4, intermediate_size=40, moe_num_experts=10, moe_k=2,
                                                 moe_intermediate_size=20, moe_num_shared_experts=0, num_hidden_layers=4,
                                                 moe_layer_start_index=0, moe_layer_end_index=2, moe_layer_interval=2,
                                                 tie_word_embeddings=False)),
    "glm4_moe_lite": ("Glm4MoeLite", dict(**LATENT, **ROUTED, intermediate_size=64)),
    "glm4_moe_lite_layers": ("Glm4MoeLite", dict(**{**LATENT, "q_lora_rank": None}, **{**ROUTED, "n_shared_experts": 2},
                                                 intermediate_size=64, mlp_layer_types=["sparse", "dense", "sparse"],
                                                 rope_interleave=False, attention_bias=True, norm_topk_prob=False)),
    "solar_open": ("SolarOpen", dict(**GROUPED, **ROUTED)),
    "solar_open_groups": ("SolarOpen", dict(**{**GROUPED, "num_key_value_heads": 4}, **{**ROUTED, "n_routed_experts": 12,
                                            "moe_intermediate_size": 16},
                                            n_group=3, topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.7,
                                            attention_bias=True, tie_word_embeddings=True)),
    "granitemoe": ("GraniteMoe", dict(**SOFTMAX, **GRANITE, num_key_value_heads=2, tie_word_embeddings=True)),
    "granitemoe_plain": ("GraniteMoe", dict(**{**SOFTMAX, "num_local_experts": 6, "num_experts_per_tok": 2},
                                            num_key_value_heads=4, attention_bias=True, attention_multiplier=0.3)),
    "granitemoeshared": ("GraniteMoeShared", dict(**SOFTMAX, **GRANITE, num_key_value_heads=2, shared_intermediate_size=40)),
    "granitemoeshared_none": ("GraniteMoeShared", dict(**{**SOFTMAX, "intermediate_size": 20}, num_key_value_heads=1,
                                                       shared_intermediate_size=0, residual_multiplier=2.5,
                                                       attention_multiplier=0.2, attention_bias=True)),
    "hunyuan_v1_moe": ("HunYuanMoEV1", dict(num_key_value_heads=2, head_dim=12, num_experts=8, moe_topk=3, intermediate_size=24,
                                            tie_word_embeddings=True, rope_parameters=dict(
                                                rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0))),
    "hunyuan_v1_moe_bias": ("HunYuanMoEV1", dict(**GROUPED, num_experts=6, moe_topk=[2, 2, 2], intermediate_size=20,
                                                 attention_bias=True)),
    "kimi_k25": ("Kimi_K25", dict(text=dict(**LATENT, **ROUTED, intermediate_size=64, first_k_dense_replace=1, n_group=1,
                                            topk_group=1), vision=VISION, tie_word_embeddings=False)),
    "kimi_k25_tied": ("Kimi_K25", dict(text=dict(**{**LATENT, "q_lora_rank": None}, **ROUTED, intermediate_size=64,
                                                 tie_word_embeddings=True, first_k_dense_replace=0, n_group=4, topk_group=2, norm_topk_prob=False),
                                       vision=VISION, tie_word_embeddings=True)),
    "exaone_moe": ("ExaoneMoe", dict(**GROUPED, num_hidden_layers=4, intermediate_size=64, moe_intermediate_size=24,
                                     num_experts=6, num_experts_per_tok=3, sliding_window=8, sliding_window_pattern=2)),
    "exaone_moe_groups": ("ExaoneMoe", dict(num_key_value_heads=4, head_dim=12, intermediate_size=48, moe_intermediate_size=16,
                                          num_experts=12, num_experts_per_tok=2, num_shared_experts=2, n_group=3,
                                          topk_group=2, norm_topk_prob=False, sliding_window=6, tie_word_embeddings=True,
                                          layer_types=["full_attention", "sliding_attention", "full_attention"],
                                          mlp_layer_types=["sparse", "dense", "sparse"])),
    "flex_olmo": ("FlexOlmo", dict(num_key_value_heads=4, num_experts=7, num_experts_per_tok=5, intermediate_size=24)),
    "flex_olmo_norm": ("FlexOlmo", dict(num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, intermediate_size=20,
                                        norm_topk_prob=True, attention_bias=True, tie_word_embeddings=True)),
    "phimoe": ("Phimoe", dict(num_key_value_heads=2, num_local_experts=8, intermediate_size=24, router_jitter_noise=0.2,
                              attention_bias=True, lm_head_bias=True, rope_parameters=LONG)),
    "phimoe_plain": ("Phimoe", dict(num_key_value_heads=4, num_local_experts=6, intermediate_size=20, sliding_window=8,
                                    tie_word_embeddings=True)),
    "mistral4": ("Mistral4", dict(**LATENT, **ROUTED, intermediate_size=64, rope_parameters=YARN)),
    "mistral4_groups": ("Mistral4", dict(**{**LATENT, "q_lora_rank": None}, **{**ROUTED, "n_shared_experts": 2},
                                         intermediate_size=64, first_k_dense_replace=1, n_group=4, topk_group=2,
                                         norm_topk_prob=False, routed_scaling_factor=1.6, attention_bias=True,
                                         rope_interleave=False, rope_parameters=dict(
                                             rope_type="linear", rope_theta=10000.0, factor=2.0, llama_4_scaling_beta=0.5,
                                             original_max_position_embeddings=5))),
    "afmoe": ("Afmoe", dict(**GROUPED, num_hidden_layers=4, intermediate_size=64, moe_intermediate_size=20, num_experts=6,
                            num_experts_per_tok=3, num_shared_experts=1, sliding_window=8, global_attn_every_n_layers=2,
                            mup_enabled=True, route_scale=2.5)),
    "afmoe_bias": ("Afmoe", dict(num_key_value_heads=4, head_dim=12, intermediate_size=48, moe_intermediate_size=16,
                                 num_experts=6, num_experts_per_tok=2, num_dense_layers=0, sliding_window=6,
                                 layer_types=["full_attention", "sliding_attention", "full_attention"], attention_bias=True,
                                 tie_word_embeddings=True)),
    "bailing_moe_v2": ("SarvamMoE", dict(**GROUPED, **ROUTED, intermediate_size=64, n_group=4, topk_group=2,
                                         partial_rotary_factor=0.5)),
    "bailing_moe_v2_bias": ("SarvamMoE", dict(**{**GROUPED, "num_key_value_heads": 4}, **{**ROUTED, "n_shared_experts": 2},
                                              intermediate_size=48, first_k_dense_replace=0, norm_topk_prob=False,
                                              use_qk_norm=False, attention_bias=True, tie_word_embeddings=True)),
    "llama4_text": ("Llama4", dict(**GROUPED, num_hidden_layers=4, intermediate_size=20, intermediate_size_mlp=36,
                                   num_local_experts=5, attention_chunk_size=11, no_rope_layer_interval=3, floor_scale=6,
                                   attn_scale=0.4, rope_parameters=LLAMA3)),
    "llama4_dense_layers": ("Llama4", dict(text=dict(num_key_value_heads=4, head_dim=12, num_hidden_layers=4,
                                                     intermediate_size=24, intermediate_size_mlp=36, num_local_experts=7,
                                                     interleave_moe_layer_step=2, attention_chunk_size=6, use_qk_norm=False,
                                                     no_rope_layers=[1, 0, 0, 1], attention_bias=True, attn_temperature_tuning=False,
                                                     layer_types=["full_attention", "chunked_attention", "full_attention",
                                                                  "chunked_attention"]),
                                           vision=LLAMA4_VISION, tie_word_embeddings=False)),
    "qwen3_next": ("Qwen3Next", dict(**GROUPED, num_hidden_layers=4, intermediate_size=64, **LINEAR, num_experts=6,
                                     num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=20)),
    "qwen3_next_dense": ("Qwen3Next", dict(num_key_value_heads=4, head_dim=12, intermediate_size=40,
                                           **{**LINEAR, "linear_num_value_heads": 2, "linear_key_head_dim": 12,
                                              "linear_value_head_dim": 18, "linear_conv_kernel_dim": 3},
                                           num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                                           shared_expert_intermediate_size=28, norm_topk_prob=False, mlp_only_layers=[1],
                                           layer_types=["full_attention", "linear_attention", "linear_attention"],
                                           attention_bias=True, tie_word_embeddings=True,
                                           rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                partial_rotary_factor=0.5))),
    "qwen3_5_moe_text": ("Qwen3_5Moe", dict(**{**GROUPED, "num_key_value_heads": 4}, num_hidden_layers=3, **LINEAR,
                                            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
                                            shared_expert_intermediate_size=24, tie_word_embeddings=True,
                                            layer_types=["linear_attention", "full_attention", "linear_attention"])),
    "qwen3_5_moe": ("Qwen3_5Moe", dict(text=dict(**GROUPED, num_hidden_layers=4, **{**LINEAR, "linear_value_head_dim": 20,
                                                                                    "linear_num_value_heads": 2},
                                                 num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
                                                 shared_expert_intermediate_size=20),
                                       vision=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                                                   out_hidden_size=48, num_position_embeddings=4),
                                       tie_word_embeddings=False)),
    "longcat_flash": ("LongcatFlash", dict(**LONGCAT, n_routed_experts=8, zero_expert_num=4, moe_topk=4,
                                           expert_ffn_hidden_size=16, rope_theta=10000.0)),
    "longcat_flash_yarn": ("LongcatFlash", dict(**{**LONGCAT, "num_layers": 1}, n_routed_experts=6, zero_expert_num=0,
                                                moe_topk=2, expert_ffn_hidden_size=20, attention_bias=True,
                                                routed_scaling_factor=2.5, tie_word_embeddings=True,
                                                rope_parameters={key: value for key, value in YARN.items()
                                                                 if key != "llama_4_scaling_beta"})),
    "mimo_v2_flash": ("MiMoV2Flash", dict(**MIMO, num_attention_heads=8, num_key_value_heads=2, head_dim=24, v_head_dim=16)),
    "mimo_v2_flash_published": ("MiMoV2Flash", dict(
        **{**MIMO, "num_hidden_layers": 3, "sliding_window": 5}, num_key_value_heads=1, head_dim=18, v_head_dim=20,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"], attention_value_scale=None, attention_bias=True, n_group=4,
        topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.7, tie_word_embeddings=True, rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=50000.0, factor=2.0, partial_rotary_factor=0.334),
            sliding_attention=dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=0.334)))),
}
YARN_INDEX = {key: value for key, value in YARN.items() if key != "llama_4_scaling_beta"}
FAMILIES.update({
    "deepseek_v32": ("DeepseekV32", dict(**LATENT, **ROUTED, intermediate_size=64, first_k_dense_replace=1, n_group=4,
                                         topk_group=2, index_topk=5, index_n_heads=8, index_head_dim=16)),
    "deepseek_v32_yarn": ("DeepseekV32", dict(**{**LATENT, "kv_lora_rank": 18, "q_lora_rank": 22},
                                              **{**ROUTED, "n_shared_experts": 2, "n_routed_experts": 6,
                                                 "moe_intermediate_size": 20}, intermediate_size=40, n_group=1, topk_group=1,
                                              mlp_layer_types=["sparse", "dense", "sparse"], norm_topk_prob=False,
                                              attention_bias=True, tie_word_embeddings=True, index_topk=9,
                                              index_n_heads=11, index_head_dim=13, rope_parameters=YARN_INDEX)),
    "glm_moe_dsa": ("GlmMoeDsa", dict(**LATENT, **ROUTED, intermediate_size=64, first_k_dense_replace=1, index_topk=6,
                                      index_n_heads=12, index_head_dim=10)),
    "glm_moe_dsa_shared": ("GlmMoeDsa", dict(**{**LATENT, "kv_lora_rank": 20}, **{**ROUTED, "n_routed_experts": 6,
                                             "moe_intermediate_size": 16}, num_hidden_layers=4, intermediate_size=32,
                                             first_k_dense_replace=1, norm_topk_prob=False, index_topk=4, index_n_heads=8,
                                             index_head_dim=8, indexer_types=["full", "shared", "full", "shared"])),
})
KIMI = dict(num_key_value_heads=4, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=12, intermediate_size=40,
            rms_norm_eps=1e-4)
FAMILIES.update({
    "kimi_linear": ("KimiLinear", dict(**KIMI, num_hidden_layers=5, linear_num_heads=4, linear_head_dim=12,
                                       linear_conv_kernel_dim=4, num_local_experts=6, num_experts_per_tok=3,
                                       moe_intermediate_size=12)),
    "kimi_linear_layers": ("KimiLinear", dict(
        **{**KIMI, "kv_lora_rank": 20, "intermediate_size": 56}, q_lora_rank=18, linear_num_heads=2, linear_head_dim=18,
        linear_conv_kernel_dim=3, layer_types=["full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"], num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
        n_shared_experts=2, n_group=4, topk_group=2, norm_topk_prob=False, routed_scaling_factor=1.6, attention_bias=True)),
})
MAMBA = dict(mamba_head_dim=10, ssm_state_size=12, chunk_size=8, layer_norm_epsilon=1e-4, time_step_min=0.2, head_dim=12,
             num_experts_per_tok=3, moe_intermediate_size=20, moe_shared_expert_intermediate_size=28)
FAMILIES.update({
    "nemotron_h": ("NemotronH", dict(
        **MAMBA, num_key_value_heads=2, mamba_num_heads=8, n_groups=4, n_routed_experts=8, routed_scaling_factor=2.5,
        layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe"])),
    "nemotron_h_latent": ("NemotronH", dict(
        **{**MAMBA, "mamba_head_dim": 14, "num_experts_per_tok": 2}, num_key_value_heads=4, mamba_num_heads=4, n_groups=2,
        conv_kernel=3, use_conv_bias=False, use_bias=True, n_routed_experts=8, n_group=4, topk_group=2, norm_topk_prob=False,
        moe_latent_size=20, intermediate_size=40,
        layers_block_type=["moe", "linear_attention", "mlp", "full_attention", "linear_attention", "moe"])),
})
LING3 = dict(**LATENT, num_local_experts=8, moe_intermediate_size=16, intermediate_size=40, rms_norm_eps=1e-4)
FAMILIES.update({
    "bailing_hybrid": ("BailingHybrid", dict(
        **LING3, num_hidden_layers=4, num_experts_per_tok=3, head_dim=12, layer_group_size=2, first_k_dense_replace=1, n_group=4,
        topk_group=2)),
    "bailing_hybrid_layers": ("BailingHybrid", dict(
        **{**LING3, "q_lora_rank": None, "kv_lora_rank": 20}, num_hidden_layers=3, num_experts_per_tok=2, head_dim=18,
        short_conv_kernel_size=3, kda_safe_gate=False, n_group=1, topk_group=1, n_shared_experts=2, norm_topk_prob=False,
        routed_scaling_factor=1.6, attention_bias=True, rope_parameters=YARN_INDEX,
        layer_types=["full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["sparse", "dense", "sparse"])),
})
# Ling 2.5 is not in transformers 5.24: its linear layers are computed by the class Lightning of ling.py.
FAMILIES.update({
    "bailing_moe_v2_5": ("BailingHybrid", dict(
        **LING3, num_hidden_layers=4, num_experts_per_tok=3, layer_group_size=2, first_k_dense_replace=1, n_group=4, topk_group=2,
        lightning=dict(heads=4, groups=2, part=0.5, silu=False, qk_norm=True))),
    # Groups of the norm have one and a half heads.
    "bailing_moe_v2_5_groups": ("BailingHybrid", dict(
        **{**LING3, "q_lora_rank": None}, num_hidden_layers=3, num_experts_per_tok=2, first_k_dense_replace=0, n_group=1,
        topk_group=1, n_shared_experts=2, norm_topk_prob=False, routed_scaling_factor=1.6, attention_bias=True,
        rope_parameters=YARN_INDEX, layer_types=["linear_attention", "full_attention", "linear_attention"],
        lightning=dict(heads=6, groups=4, part=1.0, silu=True, qk_norm=False))),
})
V4 = dict(hidden_size=32, head_dim=16, qk_rope_head_dim=8, q_lora_rank=20, n_routed_experts=8, moe_intermediate_size=24,
          o_lora_rank=12, index_n_heads=16, index_head_dim=12, hc_sinkhorn_iters=6, sliding_window=6, swiglu_limit=2.0)
FAMILIES.update({
    "deepseek_v4": ("DeepseekV4", dict(
        **{**V4, "moe_intermediate_size": 8}, num_hidden_layers=4, num_experts_per_tok=3, o_groups=2, index_topk=3, num_hash_layers=2,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                     "compressed_sparse_attention"],
        compress_rates=dict(compressed_sparse_attention=2, heavily_compressed_attention=8), rope_parameters=dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0))),
    "deepseek_v4_plain": ("DeepseekV4", dict(
        **{**V4, "head_dim": 12, "qk_rope_head_dim": 6, "index_n_heads": 12, "index_head_dim": 10, "swiglu_limit": 1.0},
        num_experts_per_tok=2, o_groups=4, index_topk=2, hc_mult=2, num_hash_layers=1, routed_scaling_factor=2.0,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=6), tie_word_embeddings=True)),
})
# Configurations of the decoders of multimodal models. Models whose class has another name than the configuration's.
TEXTS = {"Kimi_K25": "DeepseekV3Config", "Llama4": "Llama4TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}
CLASSES = {"Kimi_K25": "Kimi_K25ForConditionalGeneration", "SarvamMoE": "Glm4MoeForCausalLM"}


# Norms that multiply by 1 + weight.
CENTRED = ("Qwen3NextRMSNorm", "Qwen3_5MoeRMSNorm")
# Tensors that keep float32: the selection biases of routers.
EXACT = ("e_score_correction_bias", "expert_bias")
# Tensors of published checkpoints that are not bfloat16, by the ends of their names.
FLOATS = ("gate.bias", "_base", "_fn", "_scale", ".ape", "attn_sink")


def configuration(kind, settings):
    if kind in ("Llama4", "Qwen3_5Moe") and "text" not in settings:
        kind += "Text"
    cls = getattr(transformers, kind + "Config")
    if kind == "LongcatFlash":
        return cls(**settings)
    if "text" not in settings:
        return cls(**{**SMALL, **settings})
    text = getattr(transformers, TEXTS[kind])(**{**SMALL, **settings["text"]})
    rest = {key: value for key, value in settings.items() if key not in ("text", "vision")}
    return cls(text_config=text.to_dict(), vision_config=settings["vision"], **rest)


def fill(model, seed):
    """Random weights that use every part of the model; correction biases decide some selections."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor, deviation):
        return torch.empty(tensor.shape).normal_(0, deviation, generator=generator)

    modules = dict(model.named_modules())
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or "freqs_ci" in name:
                continue
            if name.endswith("tid2eid"):  # different experts for each token
                order = torch.rand(len(tensor), model.config.n_routed_experts, generator=generator)
                tensor.copy_(order.argsort(1)[:, :tensor.shape[1]])
                continue
            exact = any(bias in name for bias in EXACT)
            if exact:
                value = normal(tensor, 0.1)
            elif tensor.dim() == 1 and "norm" in name:
                value = (0 if type(modules[name.rpartition(".")[0]]).__name__ in CENTRED else 1) + normal(tensor, 0.2)
            elif tensor.dim() == 1:
                value = normal(tensor, 0.3)
            else:
                value = normal(tensor, 1.5 / tensor.shape[-1]**0.5)
            tensor.copy_(value if exact else value.bfloat16().float())


@contextlib.contextmanager
def index_gaps(topk):
    """The gaps of the selections of `topk` keys: score of the last selected key minus that of the next one."""
    gaps, original = [], torch.Tensor.topk

    def recorded(scores, k, *rest, **named):
        if k == topk and scores.dim() == 3 and scores.shape[-1] > k:
            best = original(scores, k + 1, -1).values
            gap, visible = best[..., k - 1] - best[..., k], best[..., k] > -1e30
            gaps.extend(gap[visible].tolist())
        return original(scores, k, *rest, **named)

    torch.Tensor.topk = recorded
    try:
        yield gaps
    finally:
        torch.Tensor.topk = original


@torch.no_grad()
def compute(model, prompts):
    tensors, gap = {}, float("inf")
    for i, prompt in enumerate(prompts):
        tensors[f"prompt.{i}"] = prompt
        tensors[f"logits.{i}"] = model(prompt[None], use_cache=False).logits[0]
        sequence = prompt[None]
        for _ in range(GENERATED):
            best = model(sequence, use_cache=False).logits[0, -1].topk(2)
            gap = min(gap, (best.values[0] - best.values[1]).item())
            sequence = torch.cat([sequence, best.indices[None, :1]], 1)
        tensors[f"generated.{i}"] = sequence[0, len(prompt):]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}, gap


def make(name, folder):
    kind, settings = FAMILIES[name]
    lightning = settings.get("lightning")
    settings = {key: value for key, value in settings.items() if key != "lightning"}
    multimodal = kind in ("Llama4", "Qwen3_5Moe") and "text" in settings
    cls = getattr(transformers, CLASSES.get(kind, kind + ("ForConditionalGeneration" if multimodal else "ForCausalLM")))
    config = configuration(kind, settings)
    config._attn_implementation = "eager"
    model = cls(config).float().eval()
    seed = sum(map(ord, name))
    if lightning:
        as_lightning(model, lightning)
    fill(model, seed)
    without_sinks = name == "mimo_v2_flash_published"
    if without_sinks:
        for layer in model.model.layers:
            if layer.self_attn.sinks is not None:
                layer.self_attn.sinks.data.fill_(-torch.inf)
    stored = folder / name
    if kind == "Kimi_K25":
        save_kimi(model, stored)
    elif lightning:
        save_lightning(model, lightning, stored)
    else:
        model.save_pretrained(stored)
    weights = safetensors.torch.load_file(stored / "model.safetensors")
    kept = EXACT + FLOATS if kind == "DeepseekV4" else EXACT
    weights = {key: value if key.endswith(kept) or not value.is_floating_point() else value.bfloat16()
               for key, value in weights.items()}
    if name == "kimi_linear":
        weights = as_kimi_linear_weights(weights)
    safetensors.torch.save_file(weights, stored / "model.safetensors", metadata={"format": "pt"})
    (stored / "generation_config.json").unlink(missing_ok=True)
    text = json.loads((stored / "config.json").read_text())
    text["dtype"] = "bfloat16"
    if "text_config" in text:
        text["text_config"]["dtype"] = "bfloat16"
    text.pop("_attn_implementation", None)
    if name == "kimi_linear":
        text = as_kimi_linear(text)
    (stored / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")

    again = model
    if kind != "Kimi_K25" and not lightning:
        again, info = cls.from_pretrained(
            stored, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
    if kind == "LongcatFlash":
        weights = as_published(weights, config)
    if without_sinks:
        weights = {key: value for key, value in weights.items() if "sink" not in key}
    if name == "deepseek_v4":
        weights = as_deepseek_v4_weights(weights)
    if kind == "LongcatFlash" or name == "deepseek_v4" or without_sinks:
        safetensors.torch.save_file(weights, stored / "model.safetensors", metadata={"format": "pt"})
    generator = torch.Generator().manual_seed(seed + 1)
    prompts = [torch.randint(0, 510, (length,), generator=generator) for length in (1, 7, 15)]
    # Llama4ForConditionalGeneration of transformers 5.24 requires images; its decoder computes the same logits.
    decoder = again.language_model if kind == "Llama4" and multimodal else again
    with index_gaps(getattr(config, "index_topk", None)) as gaps:
        tensors, gap = compute(decoder.eval(), prompts)
    if kind == "SarvamMoE":
        (stored / "config.json").write_text(json.dumps(as_ling(text), indent=1, sort_keys=True) + "\n")
    if without_sinks:
        (stored / "config.json").write_text(json.dumps(as_mimo(text), indent=1, sort_keys=True) + "\n")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, float32 on CPU"
    safetensors.torch.save_file(tensors, stored / "reference.safetensors", metadata={"made_with": versions})
    size = sum(file.stat().st_size for file in stored.iterdir())
    print(f"{name}: {size // 1024} KiB, {len(weights)} tensors, smallest top-1 gap {gap:.1e}" + (
        f", smallest gap of {len(gaps)} selected keys {min(gaps):.1e}, {sum(g < 1e-6 for g in gaps)} below 1e-6" if gaps else ""),
        flush=True)


# The classes of families that the program loads; decoders of multimodal checkpoints are read as their text_config.
KEYS = ["Afmoe", "BailingHybrid", "DeepseekV2", "DeepseekV3", "DeepseekV32", "DeepseekV4", "Dots1", "Ernie4_5_Moe", "ExaoneMoe", "FlexOlmo", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "GptOss",
        "GraniteMoe", "GraniteMoeShared", "HunYuanMoEV1", "KimiLinear", "Llama", "Llama4Text", "LongcatFlash", "MiMoV2Flash", "MiniMaxM2", "Mistral", "Mistral4", "Mixtral",
        "NemotronH", "Olmoe", "Phimoe", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3Next", "Qwen3_5MoeText", "SarvamMoE", "SolarOpen"]


# Settings whose defaults are absent or contradict one another.
GIVEN = {"DeepseekV2": dict(n_routed_experts=8, num_experts_per_tok=2), "Glm4Moe": dict(head_dim=128),
         "Dots1": dict(n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1),
         # The first layers with full attention.
         "BailingHybrid": dict(num_hidden_layers=6), "KimiLinear": dict(num_hidden_layers=5)}


def write_keys(folder):
    types = {}
    for kind in KEYS:
        config = getattr(transformers, kind + "Config")(**{"num_hidden_layers": 4, **GIVEN.get(kind, {})})
        text = json.loads(config.to_json_string(use_diff=False))
        types[text["model_type"]] = {key: value for key, value in sorted(text.items()) if key != "transformers_version"}
    lines = (f' "{name}": {json.dumps(keys)}' for name, keys in sorted(types.items()))
    (folder / "config_keys.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[*FAMILIES, []])
    parser.add_argument("--output", metavar="FOLDER", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    parser.add_argument("--keys", action="store_true", help="write config_keys.json instead")
    arguments = parser.parse_args()
    if arguments.keys:
        return write_keys(arguments.output)
    torch.set_num_threads(1)  # the order of float32 sums depends on the number of threads
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in arguments.names or FAMILIES:
        make(name, arguments.output)


if __name__ == "__main__":
    main()
