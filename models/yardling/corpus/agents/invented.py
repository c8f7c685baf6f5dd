"""Tools with invented names: a verb, a noun and arbitrary parameters. Only the description says what a tool does."""

from agents import values
from agents.kinds import Kind, Slot

VERBS = """get set add delete find list show open close start stop create update remove check count print send load save
lock unlock move copy sort merge reset pause cancel order rent measure scan clean repair paint wash pack ship label test
approve archive publish""".split()
NOUNS = """account address article badge balance bill booking camera car card case channel comment contact contract course
customer delivery device door draft driver engine entry expert file folder form gate group image invoice item job key
label letter license list lock log machine member menu message model network node offer order package page parcel parking
partner password payment phone photo plan player policy price printer product profile project queue rank record refund
rental report request road robot room route rule sample score screen sensor server session shipment shop signal site
sound stage station store student subscription table task team template theme ticket token track train user vehicle
version video visit voucher wallet warehouse window worker""".split()
KEYS = {
    "city": ["city", "place", "location"], "person": ["owner", "user", "name", "author", "customer", "contact", "guest"],
    "word": ["name", "label", "tag", "title", "category", "kind", "type", "topic", "group", "reason", "note"],
    "phrase": ["title", "text", "description", "comment", "subject"],
    "code": ["id", "code", "reference", "serial", "key"], "color": ["color", "colour"],
    "day": ["day", "date", "start_date", "due"], "time": ["time", "start", "end", "start_time", "deadline"],
    "integer": ["number", "amount", "limit", "size", "count", "id", "port", "weight", "year", "width"],
    "small": ["count", "level", "priority", "page", "floor", "days", "hours", "rank", "copies", "size"],
    "decimal": ["price", "amount", "rate", "weight", "score", "speed", "length"],
    "boolean": ["urgent", "details", "force", "verbose", "public", "insured", "express", "archived", "silent", "backup"],
    "enum": ["mode", "status", "format", "level", "size", "priority", "order", "kind", "side"],
    "file": ["path", "file", "source"], "room": ["room", "where"], "language": ["language"],
}
ENUMS = [["low", "medium", "high"], ["small", "large"], ["fast", "slow"], ["pdf", "html", "text"], ["left", "right"],
         ["open", "closed"], ["asc", "desc"], ["draft", "final"], ["day", "week", "month"], ["daily", "weekly", "monthly"],
         ["red", "green", "blue"], ["north", "south", "east", "west"], ["cash", "card"], ["auto", "manual"], ["json", "yaml", "xml"],
         ["private", "public"], ["cold", "warm", "hot"], ["morning", "noon", "evening"]]
RESULTS = {"id": "integer", "status": ["ok", "done", "ready", "failed", "open", "waiting"], "count": "small", "name": "word",
           "code": "code", "total": "decimal", "place": "city", "owner": "person", "note": "phrase", "size": "integer"}


def camel(words):
    return words[0] + "".join(word.capitalize() for word in words[1:])


def name_of(rng, verb, noun):
    return rng.choice(["_".join([verb, noun])] * 5 + [camel([verb, noun])] * 2 +
                      ["_".join([noun, verb]), "-".join([verb, noun]), verb + noun])


def slot_of(rng, taken):
    kind = rng.choice(list(KEYS))
    key = values.made_up(rng) if rng.random() < 0.2 else rng.choice(KEYS[kind])
    if rng.random() < 0.1:
        key = camel([rng.choice(["target", "new", "first", "last", "main"]), key])
    while key in taken:
        key = values.made_up(rng)
    if kind != "enum":
        return key, Slot([key], kind)
    options = rng.choice(ENUMS) if rng.random() < 0.7 else [values.word(rng) for _ in range(rng.choice([2, 3]))]
    return key, Slot([key], list(dict.fromkeys(options)))


def part(rng, key, slot):
    """The part of a request that gives a slot's value."""
    words = values.spoken(key)
    if slot.kind == "boolean":
        return rng.choice([f"{{{key}|with {words}|without {words}}}", f"{{{key}|{words}|not {words}}}",
                           f"{words} {{{key}|on|off}}", f"{{{key}|{words}: yes|{words}: no}}"])
    return rng.choice([f"{words} {{{key}}}", f"with {words} {{{key}}}", f"{words}: {{{key}}}", f"the {words} is {{{key}}}"])


def plural(noun):
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2] not in "aeiou" else noun + "s"


def invent(rng):
    """-> a Kind with one name, and one slot or a few."""
    verb = values.made_up(rng, 1) if rng.random() < 0.15 else rng.choice(VERBS)
    noun = values.made_up(rng) if rng.random() < 0.4 else rng.choice(NOUNS)
    slots = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        key, slot = slot_of(rng, slots)
        slots[key] = slot
    keys = list(slots)
    opening = rng.choice([f"{verb} the {noun}", f"{verb} a {noun}", f"please {verb} the {noun}", f"{verb} {noun}",
                          f"I want to {verb} a {noun}", f"can you {verb} the {noun}"])
    opening = opening[0].upper() + opening[1:] if rng.random() < 0.8 else opening
    asks = []
    for mentioned in {1, len(keys), rng.randrange(1, len(keys) + 1)}:
        parts = [part(rng, key, slots[key]) for key in keys[:mentioned]]
        comma = "," if parts[0].startswith(("the ", "{")) else rng.choice(["", ","])
        body = parts[0] + "".join(rng.choice([", ", " and "]) + text for text in parts[1:])
        asks.append(f"{opening}{comma} {body}" + ("?" if opening.lower().startswith("can") else rng.choice([".", ".", ""])))
    first = slots[keys[0]]
    both = []
    if first.kind != "boolean" and not isinstance(first.kind, list):
        words = values.spoken(keys[0])
        both = [f"{verb.capitalize()} the {plural(noun)} with {words} {{{keys[0]}}} and {{other}}.",
                f"{verb.capitalize()} {plural(noun)}: {words} {{{keys[0]}}} and {words} {{other}}"]
    gives = {key: RESULTS[key] for key in rng.sample(list(RESULTS), rng.choice([1, 1, 2]))}
    about = rng.choice([f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun}.", f"Use this to {verb} a {noun}.",
                        f"{verb.capitalize()} {plural(noun)}", ""])
    # A result's key would hide a slot of the same name.
    gives = {key: kind for key, kind in gives.items() if key not in slots} or {"result": "word"}
    told = " and ".join(f"the {values.spoken(key)} is {{{key}}}" for key in gives)
    return Kind([name_of(rng, verb, noun)], [about], slots, asks, gives, [told[0].upper() + told[1:] + "."], both,
                [f"{opening}."])
