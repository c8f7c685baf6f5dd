"""`switchyard train-tokenizer`: its files load in Hugging Face's tokenizers library and give the same ids there."""
import json
import os
import pathlib
import subprocess

import pytest

SWITCHYARD = os.environ.get("SWITCHYARD", "build/release/switchyard")
ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["", " ", "hello world", "  two  spaces\n\n\nand lines\t\ttabs", "don't we'll I'M", "12345 3.14 1e-9",
         "naïve café 日本語 한국어 🙂👩‍👩‍👧 \u00a0\u200b", "<|im_start|>user\n<|im_end|>", "a" * 300, "\x00\x7f",
         "for (int i = 0; i < n; ++i) {\n    x[i] += 1;\n}\n", (ROOT / "README.md").read_text()]


def run(*args):
    return subprocess.run([SWITCHYARD, "train-tokenizer", *map(str, args)], capture_output=True, text=True)


def train(tmp_path, *flags):
    # Tests a folder and a file as input. The folder has the README alone: if other pages were added, 2000 tokens would
    # compress the README less with every new page.
    texts = tmp_path / "texts"
    texts.mkdir(parents=True)
    (texts / "README.md").write_text(TEXTS[-1])
    done = run(texts, ROOT / "docs/glossary.md", "--output", tmp_path / "tokenizer", "--vocab-size", 2000, *flags)
    assert done.returncode == 0, done.stderr
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("flags", [(), ("--bos", "<|endoftext|>")])
def test_same_ids_as_tokenizers(tmp_path, flags):
    tokenizers = pytest.importorskip("tokenizers")
    folder = train(tmp_path, *flags)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert theirs.get_vocab_size() == 2000
    # Unit tests of src/text compare Switchyard's encoder with this library. This test checks the file: every token must
    # have the same id in tokenizer.json and in the library.
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert all(theirs.token_to_id(token) == number for token, number in vocab.items())
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert theirs.decode(ids, skip_special_tokens=False) == text
    assert len(theirs.encode(TEXTS[-1]).ids) < len(TEXTS[-1]) / 3
    assert (theirs.encode("x").ids[0] == 0) == bool(flags)


def test_same_text_same_bytes(tmp_path):
    one, other = train(tmp_path / "a"), train(tmp_path / "b")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert "<|im_start|>" in json.loads((one / "tokenizer_config.json").read_text())["chat_template"]


def test_errors_name_the_place(tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{"text": \n')
    done = run(broken, "--output", tmp_path / "out")
    assert done.returncode == 2 and "broken.jsonl:2: not JSON" in done.stderr
    done = run(broken, "--output", tmp_path / "out", "--vocab-size", "many")
    assert done.returncode == 2 and "--vocab-size" in done.stderr
    assert not (tmp_path / "out").exists()
