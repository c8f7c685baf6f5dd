#!/usr/bin/env python3
"""Recompute goldens.json with the `tokenizers` library (made with 0.23.3).

Each golden is a tokenizer that no fixture has, written as a JSON merge patch (RFC 7396) of a fixture's tokenizer.json,
with texts to encode and ids to decode. To add one, write its patch, texts and ids by hand and run this script, which
adds the library's results. Two things are not tested: characters newer than the library's Unicode tables, and decoding
that skips special tokens with `normalized` (the library compares texts and keeps some of these tokens).
"""
import json
import pathlib

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def main():
    goldens = json.loads((HERE / "goldens.json").read_text())
    for golden in goldens:
        fixture = HERE.parent / "fixtures" / golden["fixture"] / "tokenizer.json"
        spec = merge_patch(json.loads(fixture.read_text()), golden["patch"])
        tokenizer = Tokenizer.from_str(json.dumps(spec))
        for case in golden["encode"]:
            case["ids"] = tokenizer.encode(case["text"], add_special_tokens=case["special"]).ids
        for case in golden["decode"]:
            case["text"] = tokenizer.decode(case["ids"], skip_special_tokens=case["skip"])
    lines = (json.dumps(golden, ensure_ascii=False, separators=(",", ":")) for golden in goldens)
    (HERE / "goldens.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
