"""Chats in which tools are offered: calls, results and answers; and what is answered where no tool fits."""

from agents import values
from agents.kinds import KINDS
from agents.offers import ask_once, ask_twice, draw_kind, draw_offers, offer, returned

NONE_FITS = "None of my tools can do that."
GREETINGS = ["", "", "", "", "", "Please: ", "Hi, ", "Hello! ", "Now: ", "Thanks. "]


def call(offered, filled):
    return {"type": "function", "function": {"name": offered.name, "arguments": offered.arguments(filled)}}


def listed(offered, filled):
    return ", ".join(f"{key} is {values.said(value)}" for key, value in offered.arguments(filled).items())


def assistant(content, thought, thinks, calls=None):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    if thinks:
        message["reasoning_content"] = thought
    return message


def answered(rng, request, pairs, thinks):
    """The request, its calls, their results and the answer."""
    thoughts = [f"{offered.name}: {listed(offered, filled)}." for offered, filled in pairs]
    thought = " ".join(thoughts) if len(pairs) == 1 else " ".join(["Two calls.", *thoughts])
    messages = [{"role": "user", "content": request},
                assistant("", thought, thinks, [call(offered, filled) for offered, filled in pairs])]
    results = [returned(rng, offered, filled) for offered, filled in pairs]
    messages += [{"role": "tool", "content": result} for result, _ in results]
    answer = " ".join(said for _, said in results)
    return messages + [assistant(answer, "I have the result." if len(pairs) == 1 else "I have both results.", thinks)]


def joined(rng, one, other):
    """Two requests in one."""
    start = other[0].lower() + other[1:] if other[:1].isupper() and not other[1:2].isupper() else other
    return rng.choice([f"{one} {other}", f"{one.rstrip('.?')} and {start}", f"{one.rstrip('.?')}, and {start}",
                       f"{one} Also, {start}"])


def use_one(rng, offers, thinks):
    offered = rng.choice(offers)
    asked = ask_once(rng, offered)
    return asked and answered(rng, rng.choice(GREETINGS) + asked[0], [(offered, asked[1][0])], thinks)


def use_twice(rng, offers, thinks):
    offered = rng.choice(offers)
    asked = ask_twice(rng, offered)
    return asked and answered(rng, asked[0], [(offered, filled) for filled in asked[1]], thinks)


def use_two(rng, offers, thinks):
    if len(offers) < 2:
        return None
    pair = rng.sample(offers, 2)
    asked = [ask_once(rng, offered) for offered in pair]
    if None in asked:
        return None
    request = joined(rng, asked[0][0], asked[1][0])
    return answered(rng, request, [(offered, filled[0]) for offered, (_, filled) in zip(pair, asked)], thinks)


def lack_value(rng, offers, thinks):
    """A required value is missing."""
    offered = rng.choice(offers)
    if not offered.kind.bare or not offered.required:
        return None
    first = next(iter(offered.keys))
    offered.required = [first]
    key = offered.keys[first]
    return [{"role": "user", "content": rng.choice(offered.kind.bare)},
            assistant(f"Please tell me the {values.spoken(key)}.", f"{offered.name} needs {key}, which is missing.", thinks)]


def lack_tool(rng, offers, thinks):
    """Something that another tool could do."""
    kinds = [offered.kind for offered in offers]
    names = {name.lower() for kind in kinds for name in kind.names}
    kind = draw_kind(rng)
    if any(kind is other for other in kinds) or names & {name.lower() for name in kind.names}:
        return None
    asked = ask_once(rng, offer(rng, kind))
    return asked and [{"role": "user", "content": asked[0]}, assistant(NONE_FITS, "None of the tools fits.", thinks)]


def answer_fact(rng, offers, thinks, facts):
    question, answer, thought = rng.choice(facts)
    if "tool" in question.lower() or (thought.startswith("I ") and any(o.kind in KINDS for o in offers)):
        return None  # sums are asked beside invented tools only: a calculator would be called
    return [{"role": "user", "content": question}, assistant(answer, thought, thinks)]


TURNS = [(use_one, 0.42), (use_two, 0.14), (use_twice, 0.12), (lack_tool, 0.1), (lack_value, 0.05), (answer_fact, 0.17)]


def sizes(rng, length):
    """-> how many tools and turns."""
    if length == "long":  # about 1200 tokens
        return rng.randrange(8, 17), rng.randrange(6, 12)
    if length == "longest":  # up to 4000 tokens
        return rng.randrange(20, 50), rng.randrange(10, 20)
    return rng.choices([1, 2, 3, 4, 5, 6], [25, 25, 20, 15, 8, 7])[0], rng.choices([1, 2, 3, 4], [40, 30, 20, 10])[0]


def chat(rng, facts, length="usual"):
    """One chat of a few turns. `facts`: (question, answer, thought)."""
    count, turns = sizes(rng, length)
    offers = draw_offers(rng, count)
    thinks = rng.random() < 0.3
    messages = []
    while turns:
        make = rng.choices([turn for turn, _ in TURNS], [weight for _, weight in TURNS])[0]
        turn = make(rng, offers, thinks, facts) if make is answer_fact else make(rng, offers, thinks)
        if turn:
            messages += turn
            turns -= 1
    record = {"messages": messages, "tools": [offered.tool() for offered in offers]}
    if thinks:
        record["chat_template_kwargs"] = {"enable_thinking": True}
    return record
