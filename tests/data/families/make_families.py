#!/usr/bin/env python3
"""Makes tiny random checkpoints of model families with `transformers`, and their outputs in float32.

  make_families.py [NAME ...] [--output FOLDER]

Each folder has config.json, model.safetensors (bfloat16, correction biases in float32) and reference.safetensors, as
tests/data/fixtures has it: prompt.i, logits.i, generated.i. There is no tokenizer, because requests give token ids. Every
family has two variants at least: as published, and with the other values of its options. Prints the smallest gap between
the two best logits of a greedy step. With a small gap, a correct implementation may select the other token.

Needs torch and transformers; the versions used are in the metadata of the file.
"""
import argparse
import json
import pathlib

import safetensors.torch
import torch
import transformers

GENERATED = 32
SMALL = dict(vocab_size=512, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=256,
             bos_token_id=None, eos_token_id=511, pad_token_id=None, torch_dtype="bfloat16")
GROUPED = dict(num_key_value_heads=2, head_dim=16)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, n_shared_experts=1)
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
}


def fill(model, seed):
    """Random weights that use every part of the model; correction biases decide some selections."""
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor, deviation):
        return torch.empty(tensor.shape).normal_(0, deviation, generator=generator)

    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            if "e_score_correction_bias" in name:
                value = normal(tensor, 0.1)
            elif tensor.dim() == 1 and "norm" in name:
                value = 1 + normal(tensor, 0.2)
            elif tensor.dim() == 1:
                value = normal(tensor, 0.3)
            else:
                value = normal(tensor, 1.5 / tensor.shape[-1]**0.5)
            exact = "e_score_correction_bias" in name
            tensor.copy_(value if exact else value.bfloat16().float())


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
    config = getattr(transformers, kind + "Config")(**{**SMALL, **settings})
    config._attn_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    seed = sum(map(ord, name))
    fill(model, seed)
    stored = folder / name
    model.save_pretrained(stored)
    weights = safetensors.torch.load_file(stored / "model.safetensors")
    exact = ("e_score_correction_bias",)
    weights = {key: value if key.endswith(exact) else value.bfloat16() for key, value in weights.items()}
    safetensors.torch.save_file(weights, stored / "model.safetensors", metadata={"format": "pt"})
    (stored / "generation_config.json").unlink(missing_ok=True)
    text = json.loads((stored / "config.json").read_text())
    text["dtype"] = "bfloat16"
    text.pop("_attn_implementation", None)
    (stored / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")

    again, info = getattr(transformers, kind + "ForCausalLM").from_pretrained(
        stored, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    generator = torch.Generator().manual_seed(seed + 1)
    prompts = [torch.randint(0, 510, (length,), generator=generator) for length in (1, 7, 15)]
    tensors, gap = compute(again.eval(), prompts)
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, float32 on CPU"
    safetensors.torch.save_file(tensors, stored / "reference.safetensors", metadata={"made_with": versions})
    size = sum(file.stat().st_size for file in stored.iterdir())
    print(f"{name}: {size // 1024} KiB, {len(weights)} tensors, smallest top-1 gap {gap:.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[*FAMILIES, []])
    parser.add_argument("--output", metavar="FOLDER", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the order of float32 sums depends on the number of threads
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in arguments.names or FAMILIES:
        make(name, arguments.output)


if __name__ == "__main__":
    main()
