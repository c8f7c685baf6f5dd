#!/usr/bin/env python3
"""Writes directories/: small tokenizers in the file formats of checkpoints, and expected.json with ids of many strings.

Needs sentencepiece, tiktoken, protobuf and transformers (5.24 wrote the files). The expected ids of tiktoken.model come
from the library tiktoken, with the pattern and the special tokens of Kimi-K2's tokenization_kimi.py. Those of
tokenizer.model, and of the files beside tokenizer.json, come from transformers. The strings are made of fragments by a
linear congruential generator, which tokenizer_directory_test.cc runs too. Each entry of expected.json is the first
eight digits of the FNV-1a hash of a string's ids as little-endian 32-bit integers.
"""

import base64
import io
import json
import pathlib
import shutil

import sentencepiece
import tiktoken
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent
OUT = HERE / "directories"
STRINGS = 1000
FRAGMENTS = [
    "the", " quick", " brown", " fox", "jumps", " over", "lazy", " dog", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n",
    "'s", "'LL", "n't", "I", "HTTP", "Server", "camelCase", "snake_case", "x=1;", "for(i=0;i<10;++i)", "{", "}", "()",
    "1", "12", "123", "4567", "3.14159", "1,000,000", "-", "--", "_", "▁", "…", "—", "!", "?!", "...", "@user", "#tag",
    "https://a.bc/d?e=f", "é", "ü", "ß", "naïve", "Grüße", "Ελλάδα", "Привет", "мир", "שלום", "مرحبا", "हिन्दी", "ไทย",
    "中", "文", "中文分词", "日本語", "テスト", "한국어", "😀", "👩‍👩‍👧", "🇨🇭", "\u00a0", "\u200b", "e\u0301", "ﬁ", "Ⅷ", "½",
    "<s>", "</s>", "<unk>", "[BOS]", "[EOS]", "<|im_end|>", "<|tool|>", "<sep>", "<0x41>", "\u0001", "\u007f", "Ａｂｃ",
]
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])


def strings():
    state, out = 12345, []

    def draw(below):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return (state >> 33) % below

    for _ in range(STRINGS):
        out.append("".join(FRAGMENTS[draw(len(FRAGMENTS))] for _ in range(1 + draw(12))))
    return out


def digits(ids):
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in ids):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"[:8]


def corpus():
    words = (HERE.parents[2] / "LICENSE").read_text().split()
    return [f for f in FRAGMENTS if "<" not in f and f.strip()] * 20 + [" ".join(words[i:i + 12]) for i in range(0, len(words), 5)]


def sentencepiece_model(path, kind, size, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, model_type=kind, vocab_size=size, minloglevel=2,
        character_coverage=0.98, num_threads=1, **options)
    path.write_bytes(model.getvalue())


def directory(name, config=None, **files):
    path = OUT / name
    path.mkdir(parents=True)
    if config is not None:
        files["tokenizer_config.json"] = config
    for file, content in files.items():
        (path / file).write_text(json.dumps(content, ensure_ascii=False))
    return path


def tiktoken_ranks():
    """A vocabulary of byte pairs, trained on the corpus."""
    ranks = {bytes([b]): b for b in range(256)}
    words = [[bytes([b]) for b in word.encode()] for text in corpus() for word in text.split(" ") for word in (" " + word,)]
    while len(ranks) < 900:
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks.setdefault(best[0] + best[1], len(ranks))
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i:i + 2] = [best[0] + best[1]]
                i += 1
    return ranks


def kimi(path):
    ranks = tiktoken_ranks()
    lines = [base64.b64encode(token).decode() + f" {rank}\n" for token, rank in ranks.items()]
    (path / "tiktoken.model").write_text("".join(lines))
    base = len(ranks)
    special = {f"<|reserved_token_{i}|>": i for i in range(base, base + 6)}
    for i, token in ((0, "[BOS]"), (1, "[EOS]"), (4, "<|im_end|>"), (5, "<|tool|>")):
        special = {(token if v == base + i else k): v for k, v in special.items()}
    return tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    texts, expected = strings(), {}

    def judge(path, encode=None):
        encode = encode or (lambda text, t=AutoTokenizer.from_pretrained(str(path)): t.encode(text))
        expected[path.name] = "".join(digits(encode(text)) for text in texts)

    path = directory("tiktoken", {
        "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
        "added_tokens_decoder": {str(900 + i): {"content": token, "special": special} for i, token, special in
                                 ((0, "[BOS]", True), (1, "[EOS]", True), (4, "<|im_end|>", True), (5, "<|tool|>", False))}})
    encoding = kimi(path)
    judge(path, lambda text: encoding.encode(text, allowed_special="all"))

    path = directory("spm_bpe", {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False,
                                 "tokenizer_class": "PreTrainedTokenizerFast"})
    sentencepiece_model(path / "tokenizer.model", "bpe", 800, byte_fallback=True, normalization_rule_name="identity",
                        remove_extra_whitespaces=False, split_digits=True)
    judge(path)
    path = directory("spm_bpe_symbols", {"tokenizer_class": "PreTrainedTokenizerFast"})
    sentencepiece_model(path / "tokenizer.model", "bpe", 700, normalization_rule_name="identity",
                        user_defined_symbols=["<sep>", "x="], control_symbols=["<|tool|>"])
    judge(path)
    path = directory("spm_unigram", {"add_eos_token": True, "tokenizer_class": "PreTrainedTokenizerFast"})
    sentencepiece_model(path / "tokenizer.model", "unigram", 500, normalization_rule_name="nmt_nfkc")
    judge(path)
    path = directory("spm_unigram_bytes", {"tokenizer_class": "PreTrainedTokenizerFast"})
    sentencepiece_model(path / "tokenizer.model", "unigram", 600, byte_fallback=True, normalization_rule_name="identity",
                        remove_extra_whitespaces=False, add_dummy_prefix=False, user_defined_symbols=["<sep>"])
    judge(path)

    path = directory("spm_bpe_renamed", {
        "legacy": False, "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "add_eos_token": True,
        "added_tokens_decoder": {"300": {"content": "<|im_end|>", "special": True, "normalized": True},
                                 "301": {"content": "[EOS]", "special": False, "normalized": True, "lstrip": True},
                                 "800": {"content": "[BOS]", "special": True, "normalized": False}}})
    shutil.copy(OUT / "spm_bpe" / "tokenizer.model", path)
    judge(path)

    (OUT / "expected.json").write_text(json.dumps({"fragments": FRAGMENTS, "ids": expected}, ensure_ascii=False, indent=0) + "\n")
    print({name: len(hashes) // 8 for name, hashes in expected.items()})


if __name__ == "__main__":
    main()
