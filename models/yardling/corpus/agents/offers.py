"""A tool as a request offers it, and what a user says to have it called."""

import json
import re
from dataclasses import dataclass

from agents import values
from agents.invented import camel, invent
from agents.kinds import KINDS

PLACEHOLDER = re.compile(r"\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}")


@dataclass
class Offer:
    """A kind with the names that this request gives it. `keys`: slot -> parameter."""
    kind: object
    name: str
    about: str
    keys: dict
    types: dict  # slot -> type of the parameter in JSON
    required: list  # slots

    def tool(self):
        properties = {}
        for slot, key in self.keys.items():
            options = self.kind.slots[slot].kind
            listed = {"enum": options} if isinstance(options, list) else {}
            properties[key] = {"type": self.types[slot], **listed}
        function = {"name": self.name, "description": self.about,
                    "parameters": {"type": "object", "properties": properties,
                                   "required": [self.keys[slot] for slot in self.required]}}
        if not self.about:
            del function["description"]
        return {"type": "function", "function": function}

    def arguments(self, filled):
        """`filled`: slot -> value. In the order of the parameters."""
        return {key: str(filled[slot]) if self.types[slot] == "string" else filled[slot]
                for slot, key in self.keys.items() if slot in filled}


def offer(rng, kind):
    slots = list(kind.slots)
    kept = slots[:1] + [slot for slot in slots[1:] if rng.random() < 0.8]
    keys, types = {}, {}
    for slot in kept:
        options = kind.slots[slot]
        key = rng.choice(options.keys[:1] * 2 + options.keys)
        while key in keys.values():
            key += "_" + values.made_up(rng, 1)
        keys[slot] = key
        types[slot] = "string" if isinstance(options.kind, list) else values.json_type(options.kind)
        if types[slot] in ("integer", "number") and rng.random() < 0.1:
            types[slot] = "string"
    name = rng.choice(kind.names)
    if "_" in name and rng.random() < 0.15:
        name = camel(name.split("_"))
    required = [slot for slot in kept if slot == slots[0] or rng.random() < 0.25]
    if rng.random() < 0.15:
        required = []
    return Offer(kind, name, rng.choice(kind.about), keys, types, required)


def mentioned(ask):
    return [match[1] for match in PLACEHOLDER.finditer(ask)]


def can_ask(offered, ask):
    return all(slot in offered.keys or slot == "other" for slot in mentioned(ask))


def write(rng, text, filled):
    """A request with its values in place, some of them quoted."""
    def put(match):
        value = filled[match[1]]
        if match[2] is not None:
            return match[2] if value else match[3]
        shown = values.said(value)
        if isinstance(value, str) and rng.random() < (0.25 if " " in value else 0.06):
            return rng.choice(['"{}"', "'{}'"]).format(shown)
        return shown
    return PLACEHOLDER.sub(put, text)


def draw_slot(rng, offered, slot):
    kind = offered.kind.slots[slot].kind
    if isinstance(kind, list):
        return rng.choice(kind)
    return rng.random() < 0.5 if kind == "boolean" else values.draw(rng, kind)


def ask_once(rng, offered):
    """-> request, [filled]. A tool without optional slots may have no request that it can serve: None."""
    asks = [ask for ask in offered.kind.asks if can_ask(offered, ask)]
    if not asks:
        return None
    ask = rng.choice(asks)
    filled = {slot: draw_slot(rng, offered, slot) for slot in mentioned(ask)}
    if any(slot not in filled for slot in offered.required):
        offered.required = [slot for slot in offered.required if slot in filled]
    return write(rng, ask, filled), [filled]


def ask_twice(rng, offered):
    """-> request, [filled, filled] for two calls of one tool; None for a kind without such requests."""
    if not offered.kind.both:
        return None
    ask = rng.choice(offered.kind.both)
    first = next(iter(offered.keys))
    one, other = (draw_slot(rng, offered, first) for _ in range(2))
    if one == other:
        return None
    offered.required = [slot for slot in offered.required if slot == first]
    return write(rng, ask, {first: one, "other": other}), [{first: one}, {first: other}]


def returned(rng, offered, filled):
    """-> what the tool returns, and the answer that says it."""
    if rng.random() < 0.05:
        error = rng.choice(["not found", "no connection", "timeout", "not allowed", f"unknown {values.word(rng)}"])
        return json.dumps({"error": error}), f"The tool failed: {error}."
    result = {key: rng.choice(kind) if isinstance(kind, list) else values.draw(rng, kind)
              for key, kind in offered.kind.gives.items()}
    answer = PLACEHOLDER.sub(lambda match: values.said({**filled, **result}[match[1]]), rng.choice(offered.kind.tells))
    answer = answer[0].upper() + answer[1:]
    shown = dict(result)
    if rng.random() < 0.3:
        shown = {**{key: value for key, value in offered.arguments(filled).items() if key not in result}, **shown}
    form = rng.random()
    if form < 0.15:
        return ", ".join(f"{key}: {values.said(value)}" for key, value in shown.items()), answer
    return json.dumps(shown, separators=(",", ":") if form < 0.3 else None), answer


def draw_kind(rng):
    return rng.choice(KINDS) if rng.random() < 0.5 else invent(rng)


def draw_offers(rng, count):
    """Tools with different names and purposes."""
    offers, names = [], set()
    while len(offers) < count:
        offered = offer(rng, draw_kind(rng))
        if offered.name.lower() not in names and not any(offered.kind is other.kind for other in offers):
            names.add(offered.name.lower())
            offers.append(offered)
    return offers
