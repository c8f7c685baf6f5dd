"""Output dictionaries in SGLang's format."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

Text = Callable[[int], str]  # the text of a token

# Names of SGLang: lists of (log-probability, id, text), and the same values as arrays (suffixes _val and _idx).
_KINDS = (("token_logprobs", "val", "idx"), ("top_logprobs", "top_val", "top_idx"),
          ("token_ids_logprobs", "requested_val", "requested_idx"))


def make_output(raw: tuple[Any, ...], *, lists: bool, text: Text | None, with_index: bool) -> dict[str, Any]:
    """One result of a GenerateCall. `lists`: also as lists of tuples. `text`: for the texts in these; None: no texts."""
    index, output_text, output_ids, meta_json, _, input_logprobs, output_logprobs, experts = raw
    meta = json.loads(meta_json)
    if output_logprobs is not None:
        _add(meta, "input", input_logprobs, lists, text)
        _add(meta, "output", output_logprobs, lists, text)
    if experts is not None:
        meta["routed_experts"] = experts
    output = {"text": output_text, "output_ids": output_ids, "meta_info": meta}
    if with_index:
        output["index"] = index
    return output


def _add(meta: dict[str, Any], kind: str, arrays: dict[str, numpy.ndarray] | None, lists: bool, text: Text | None) -> None:
    if arrays is None:  # the prompt's log-probabilities are in the first result of a stream
        if lists:
            meta[f"{kind}_token_logprobs"] = []
        return
    for name, val, idx in _KINDS:
        values, tokens = arrays[val], arrays[idx]
        if values.ndim == 2 and values.shape[1] == 0:
            continue  # not requested
        meta[f"{kind}_{name}_val"], meta[f"{kind}_{name}_idx"] = values, tokens
        if not lists:
            continue
        if values.ndim == 1:
            meta[f"{kind}_{name}"] = _triples(values.tolist(), tokens.tolist(), text)
        else:
            rows = zip(values.tolist(), tokens.tolist())
            meta[f"{kind}_{name}"] = [_triples(v, t, text) or None for v, t in rows]


def _triples(values: list[float], tokens: list[int], text: Text | None) -> list[tuple[float | None, int, str | None]]:
    return [(None if value != value else value, token, text(token) if text else None)
            for value, token in zip(values, tokens) if token >= 0]
