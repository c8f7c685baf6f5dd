#!/usr/bin/env python3
"""Make the checkpoints qwen3_embedding and qwen3_moe_classifier beside this script, and their references.

  make_fixtures.py [--output FOLDER]

The weights are random, with a fixed seed, in bfloat16. The outputs are those of `transformers` in float32 on the CPU,
computed from the stored weights. The tokenizer is that of qwen3, with <|endoftext|> after each text.

pooling.safetensors has for each text i:

  ids.i       int64 [T]       token ids
  hidden.i    float32 [T, H]  rows after the final norm (qwen3_embedding)
  scores.i    float32 [L]     scores of the classes, before the softmax (qwen3_moe_classifier)

pooling.json has the texts. Needs torch, transformers and safetensors; the versions used are in the file's metadata.
"""
import argparse
import json
import pathlib

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = [
    "the yard",
    "What is the capital of China?",
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other. It gives weight to physical objects and is "
    "responsible for the movement of planets around the sun.",
    "Trains leave the yard at 5:40, 6:10 and 7:25.",
]
COMMON = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-6, bos_token_id=None,
              eos_token_id=509, pad_token_id=None, tie_word_embeddings=True, dtype="bfloat16")
LABELS = {0: "cargo", 1: "passenger", 2: "empty"}


def write_tokenizer(folder):
    tokenizer = json.loads((HERE.parent / "fixtures/qwen3/tokenizer.json").read_text())
    end = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [first, end], "pair": [first, second, end],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [509], "tokens": ["<|endoftext|>"]}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_max_length": 512}, indent=2))


def write_modules(folder):
    """The files of sentence-transformers."""
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
               for i, (path, kind) in enumerate(names)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
    (folder / "1_Pooling/config.json").write_text(json.dumps({
        "word_embedding_dimension": COMMON["hidden_size"],
        **{f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}, "include_prompt": True}, indent=2))


def make(folder, model, architecture):
    """Saves the weights in bfloat16, and returns the model with the saved weights in float32."""
    generator = torch.Generator().manual_seed(31)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in name
        parameter.data = ((1 + 0.1 * noise) if norm else noise / parameter.shape[-1] ** 0.5).to(torch.bfloat16)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [architecture]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(folder)
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def write_reference(folder, compute):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tensors = {}
    for i, text in enumerate(TEXTS):
        ids = torch.tensor(tokenizer(text)["input_ids"])
        tensors[f"ids.{i}"] = ids
        name, output = compute(ids[None])
        tensors[f"{name}.{i}"] = output.contiguous()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, float32 on CPU"
    safetensors.torch.save_file(tensors, folder / "pooling.safetensors", metadata={"made_with": versions})
    (folder / "pooling.json").write_text(json.dumps({"texts": TEXTS}, indent=2))
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FOLDER", type=pathlib.Path, default=HERE)
    output = parser.parse_args().output
    torch.set_num_threads(1)  # the order of float32 sums depends on the number of threads

    # As Qwen3-Embedding: saved without the head, so names lack the prefix "model.". The architecture is a causal model's.
    folder = output / "qwen3_embedding"
    folder.mkdir(parents=True, exist_ok=True)
    model = make(folder, transformers.Qwen3Model(transformers.Qwen3Config(**COMMON)), "Qwen3ForCausalLM")
    write_modules(folder)
    write_reference(folder, lambda ids: ("hidden", model(ids).last_hidden_state[0]))

    folder = output / "qwen3_moe_classifier"
    folder.mkdir(parents=True, exist_ok=True)
    config = transformers.Qwen3MoeConfig(**COMMON, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
                                         norm_topk_prob=True, id2label=LABELS,
                                         label2id={label: i for i, label in LABELS.items()})
    classifier = make(folder, transformers.Qwen3MoeForSequenceClassification(config),
                      "Qwen3MoeForSequenceClassification")
    write_reference(folder, lambda ids: ("scores", classifier(ids).logits[0]))


if __name__ == "__main__":
    main()
