"""Texts and the JSON objects that hold what they say. Keys are in any selection, because a schema may select them."""

import json

from agents import values
from agents.invented import KEYS

# A text with slots; each slot's keys and kind.
FORMS = [
    (["{person} is {age} years old and lives in {city}.", "{person}, {age}, from {city}", "{person} ({age}) lives in {city}.",
      "My name is {person}, I am {age} and I live in {city}.", "{person} from {city} is {age}."],
     {"person": (["name", "person"], "person"), "age": (["age", "years"], "age"), "city": (["city", "place", "town", "location"], "city")}),
    (["{person} is a {job} in {city}.", "{person} works as a {job} in {city}.", "In {city}, {person} is a {job}."],
     {"person": (["name", "person", "employee"], "person"), "job": (["job", "profession", "work", "occupation"], "job"),
      "city": (["city", "place", "location"], "city")}),
    (["{person} is a {job} and {age} years old.", "The {job} {person} is {age}.", "{person}, {age}, {job}"],
     {"person": (["name", "person"], "person"), "age": (["age"], "age"), "job": (["job", "profession"], "job")}),
    (["The {event} is on {day} at {time} in {city}.", "{event} in {city}, {day}, {time}", "On {day} at {time} there is a {event} in {city}."],
     {"event": (["title", "event", "name"], "event"), "day": (["day", "date"], "day"), "time": (["time", "start"], "time"),
      "city": (["city", "place", "location"], "city")}),
    (["{person} meets {other} on {day} at {time}.", "On {day} at {time}, {person} meets {other}."],
     {"person": (["person", "name", "host"], "person"), "other": (["other", "guest", "partner"], "person"),
      "day": (["day", "date"], "day"), "time": (["time"], "time")}),
    (["The {color} {item} costs {price} {currency}.", "{item}, {color}, {price} {currency}", "I bought a {color} {item} for {price} {currency}."],
     {"item": (["product", "item", "name"], "thing"), "color": (["color", "colour"], "color"), "price": (["price", "cost", "amount"], "number"),
      "currency": (["currency"], "currency")}),
    (["{person} ordered {count} {item} for {price} {currency}.", "Order of {person}: {count} {item}, {price} {currency}"],
     {"person": (["customer", "name", "buyer"], "person"), "count": (["quantity", "count", "number"], "small"),
      "item": (["product", "item", "article"], "thing"), "price": (["price", "total"], "number"), "currency": (["currency"], "currency")}),
    (["Order {code} has {count} parts and weighs {weight} kg.", "{code}: {count} parts, {weight} kg"],
     {"code": (["order", "id", "code"], "code"), "count": (["parts", "count", "number"], "small"), "weight": (["weight", "kg"], "number")}),
    (["The train from {source} to {target} leaves at {time} from track {track}.", "{source} to {target}, {time}, track {track}"],
     {"source": (["from", "origin", "start"], "city"), "target": (["to", "destination", "end"], "city"),
      "time": (["time", "departure"], "time"), "track": (["track", "platform"], "small")}),
    (["It is {degrees} degrees and {sky} in {city}.", "{city}: {degrees} degrees, {sky}"],
     {"degrees": (["temperature", "degrees"], "degrees"), "sky": (["weather", "sky", "condition"], ["sunny", "cloudy", "rainy", "windy"]),
      "city": (["city", "place"], "city")}),
]
JUDGED = [("I love this {item}.", "positive"), ("This {item} is great.", "positive"), ("What a wonderful {item}!", "positive"),
          ("The {item} works very well.", "positive"), ("I am happy with the {item}.", "positive"),
          ("I hate this {item}.", "negative"), ("This {item} is terrible.", "negative"), ("The {item} broke on the first day.", "negative"),
          ("What a bad {item}!", "negative"), ("I am not happy with the {item}.", "negative"),
          ("I have a {item}.", "neutral"), ("The {item} is {color}.", "neutral"), ("This is a {item}.", "neutral")]


def statement(rng):
    """-> a text and what it says, by key."""
    form = rng.random()
    if form < 0.45:
        texts, slots = rng.choice(FORMS)
        drawn = {slot: rng.choice(kind) if isinstance(kind, list) else values.draw(rng, kind) for slot, (_, kind) in slots.items()}
        text = rng.choice(texts).format(**{slot: values.said(value) for slot, value in drawn.items()})
        return text[0].upper() + text[1:], {rng.choice(keys): drawn[slot] for slot, (keys, _) in slots.items()}
    if form < 0.55:
        items = list(dict.fromkeys(values.draw(rng, rng.choice(["food", "thing"])) for _ in range(rng.choice([2, 3, 3, 4]))))
        text = ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]
        return rng.choice(["Buy {}.", "We need {}.", "Bring {}, please.", "The list: {}", "I packed {}."]).format(text), {
            rng.choice(["items", "list", "things", "products", "names"]): items}
    if form < 0.65:
        text, verdict = rng.choice(JUDGED)
        item, color = values.draw(rng, "thing"), values.draw(rng, "color")
        return text.format(item=item, color=color), {rng.choice(["sentiment", "opinion", "mood"]): verdict,
                                                     rng.choice(["product", "item", "subject"]): item}
    facts = {}
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        kind = rng.choice([kind for kind in KEYS if kind != "enum"])
        key = values.made_up(rng) if rng.random() < 0.25 else rng.choice(KEYS[kind])
        facts[key] = rng.random() < 0.5 if kind == "boolean" else values.draw(rng, kind)
    noun = values.word(rng)

    def clause(key, value):
        words = values.spoken(key)
        if isinstance(value, bool):
            return f"it is {words}" if value else f"it is not {words}"
        return rng.choice([f"the {words} is {values.said(value)}", f"{words} {values.said(value)}", f"{words}: {values.said(value)}"])
    body = rng.choice([", ", " and "]).join(clause(key, value) for key, value in facts.items())
    return rng.choice([f"The {noun}: {body}.", f"{body[0].upper()}{body[1:]}.", f"About the {noun}: {body}", body]), facts


def listed(keys):
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]


def chat(rng):
    text, facts = statement(rng)
    keys = [key for key in facts if rng.random() < 0.8] or list(facts)[:1]
    if rng.random() < 0.3:
        rng.shuffle(keys)
    held = {key: facts[key] for key in keys}
    names = listed([values.spoken(key) if rng.random() < 0.2 else key for key in keys])
    request = rng.choice([
        f"{text} Give {names} as JSON.", f"Extract {names} as JSON: {text}", f"{text} Extract {names}.", f"Extract {names}: {text}",
        f"Extract the data: {text}", f"{text} Answer in JSON.", f"As JSON: {text}", f"{text}", f"JSON with {names}: {text}",
        f"Extract the information: {text}", f"Turn this into JSON: {text}", f"Fill in {names}. {text}"])
    thinks = rng.random() < 0.15
    answer = {"role": "assistant", "content": json.dumps(held)}
    record = {"messages": [{"role": "user", "content": request}, answer]}
    if thinks:
        answer["reasoning_content"] = ", ".join(f"{values.spoken(key)} is {values.said(value)}" for key, value in held.items()) + "."
        record["chat_template_kwargs"] = {"enable_thinking": True}
    return record
