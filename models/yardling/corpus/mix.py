#!/usr/bin/env python3
"""Writes what Yardling is trained on: the corpus several times, and chats with tools and with JSON.

    models/yardling/corpus/mix.py DIR            write DIR/chats.jsonl, DIR/agents_test.jsonl and DIR/tokenizer.txt
    models/yardling/corpus/mix.py DIR --repeats 2 --chats 500 --extractions 100       fewer of them

All draws are seeded: the files are the same on every machine. Only Python's standard library.
"""

import argparse
import json
import random
import re
from pathlib import Path

from agents import chats, extraction
from build import HERE, read_facts

REPEATS = 28  # of the corpus
CHATS, EXTRACTIONS = 44_000, 20_000
LENGTHS = {0: "longest", 60: "long", 120: "long", 180: "long", 240: "long", 300: "long", 360: "long"}  # of 400 chats
TESTS = 400  # chats of each kind
SUM = re.compile(r"(\d+) ([-+*]) (\d+) = \d+\.")
SUM_WORDS = {"+": "I add {0} and {1}.", "-": "I take {1} away from {0}.", "*": "I multiply {0} by {1}."}


def topics():
    """-> {answer: the words of the fact's id}"""
    named = {}
    for path in sorted((HERE / "facts").glob("*.txt")):
        for name, answer, _ in read_facts(path):
            named[answer] = name
    return named


def thought_of(answer, named):
    if match := SUM.fullmatch(answer):
        return SUM_WORDS[match[2]].format(match[1], match[3])
    return f"The subject is {re.sub('^(m|r|y)-', '', named[answer]).replace('-', ' ')}."


def corpus():
    """-> the chats of train.jsonl, and their facts as (question, answer, thought)."""
    named = topics()
    records = [json.loads(line)["messages"] for line in (HERE / "train.jsonl").read_text(encoding="ascii").splitlines()]
    facts = []
    for messages in records:
        for asked, answered in zip(messages[::2], messages[1::2]):
            thought = thought_of(answered["content"], named)
            answered["thought"] = thought
            # Beside tools that could do it, what the model cannot know is not refused.
            if not named.get(answered["content"], "").startswith("r-"):
                facts.append((asked["content"], answered["content"], thought))
    return records, facts


def dressed(rng, messages):
    """A chat of the corpus, now and then with thoughts."""
    thinks = rng.random() < 0.12
    out = []
    for message in messages:
        out.append({"role": message["role"], "content": message["content"]})
        if thinks and message["role"] == "assistant":
            out[-1]["reasoning_content"] = message["thought"]
    return {"messages": out, "chat_template_kwargs": {"enable_thinking": True}} if thinks else {"messages": out}


def sample_of(record):
    """Text like that of a rendered chat, for the tokenizer."""
    lines = []
    for tool in record.get("tools", []):
        function = tool["function"]
        shown = ", ".join(f'"{key}": {" | ".join(map(json.dumps, p["enum"])) if "enum" in p else p["type"]}'
                          for key, p in function["parameters"]["properties"].items())
        lines.append(f'{function["name"]}({shown}) {function.get("description", "")}')
    for message in record["messages"]:
        lines += [message.get("reasoning_content", ""), message["content"]]
        lines += [json.dumps(call["function"]) for call in message.get("tool_calls", [])]
    return "\n".join(line for line in lines if line) + "\n"


def tests(count=TESTS, seed=2):
    """-> chats that are not trained: `count` with tools, then `count` with JSON."""
    rng = random.Random(seed)
    facts = corpus()[1]
    return [chats.chat(rng, facts) for _ in range(count)] + [extraction.chat(rng) for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--chats", type=int, default=CHATS)
    parser.add_argument("--extractions", type=int, default=EXTRACTIONS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    records, facts = corpus()

    def write(name, parts):
        text = "".join(parts)
        aside = args.output / f"{name}.new"
        aside.write_text(text, encoding="ascii")
        aside.replace(args.output / name)
        print(f"{args.output / name}: {len(text)} bytes")

    def line(record):
        return json.dumps(record, separators=(",", ":")) + "\n"

    write("agents_test.jsonl", map(line, tests()))
    rng = random.Random(1)
    made = [chats.chat(rng, facts, LENGTHS.get(i % 400, "usual")) for i in range(args.chats)]
    made += [extraction.chat(rng) for _ in range(args.extractions)]
    repeated = [dressed(rng, messages) for _ in range(args.repeats) for messages in records]
    prose = [{"text": path.read_text(encoding="ascii")} for path in sorted((HERE / "prose").glob("*.txt"))]
    write("chats.jsonl", map(line, made + repeated + prose * (args.repeats // 3 + 1)))
    write("tokenizer.txt", map(sample_of, made[:1500] + made[-600:]))


if __name__ == "__main__":
    main()
