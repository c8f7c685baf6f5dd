#!/usr/bin/env python3
"""Makes train.jsonl and test.jsonl from facts/*.txt, test_questions.txt, chats.txt and arithmetic.py.

    models/yardling/corpus/build.py            write the two files, print their sizes
    models/yardling/corpus/build.py --check    write nothing; fail if the files differ from what this would write

Uses only Python's standard library, and writes the same bytes on every machine. A line of train.jsonl is
{"messages": [...]}. A line of test.jsonl also has the "id" of the fact, and its assistant's message is the expected
answer. ../README.md describes the formats of the hand-written files.
"""

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

import arithmetic
from wordings import normal, same_form, vary

HERE = Path(__file__).resolve().parent
MOST_BYTES = 1_500_000  # of the two files together
MOST_ANSWER_WORDS = 40
LEAST_TRAINED, TESTS = 8, 2  # hand-written questions of a fact: at least 8 trained ones, exactly 2 for tests
SMALL_TALK = ("90_yardling", "95_refusals")


class Wrong(Exception):
    """A hand-written file is malformed or violates a rule of the corpus."""


def read_facts(path):
    """Returns [(id, answer, questions)], in the file's order."""
    facts = []
    for number, line in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        line = line.strip()
        where = f"{path.name}:{number}"
        if not line or line.startswith("#"):
            continue
        if line.startswith("= "):
            facts.append((line[2:], [], []))
        elif not facts:
            raise Wrong(f"{where}: a line before the first '= id'")
        elif line.startswith("> "):
            facts[-1][1].append(line[2:])
        elif line[0] in "=>":
            raise Wrong(f"{where}: no blank after {line[0]}")
        else:
            facts[-1][2].append(line)
    return [(name, " ".join(answer), questions) for name, answer, questions in facts]


def read_tests(path):
    """Returns {id: questions}."""
    tests = {}
    for line in path.read_text(encoding="ascii").splitlines():
        if line.strip() and not line.startswith("#"):
            name, *questions = [part.strip() for part in line.split("|")]
            if name in tests:
                raise Wrong(f"{path.name}: {name} twice")
            tests[name] = questions
    return tests


def read_chats(path, answers):
    """Returns a list of chats: [[(user message, id of the answer)]]. Blank lines separate the chats of the file. In a
    chat, user messages alternate with lines '@id'."""
    chats = []
    for block in re.split(r"\n\s*\n", path.read_text(encoding="ascii")):
        lines = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith("#")]
        if len(lines) % 2:
            raise Wrong(f"{path.name}: a chat ends with the user: {lines[-1]}")
        turns = list(zip(lines[::2], lines[1::2]))
        for said, answer in turns:
            if said.startswith("@") or not answer.startswith("@") or answer[1:] not in answers:
                raise Wrong(f"{path.name}: want a user's line and an '@id' that exists: {said} / {answer}")
        if turns:
            chats.append([(said, answer[1:]) for said, answer in turns])
    return chats


def check_fact(name, answer, trained, tests):
    if not answer:
        raise Wrong(f"{name}: no answer")
    if len(answer.split()) > MOST_ANSWER_WORDS:
        raise Wrong(f"{name}: {len(answer.split())} words, want at most {MOST_ANSWER_WORDS}")
    if len(trained) < LEAST_TRAINED:
        raise Wrong(f"{name}: {len(trained)} trained questions, want {LEAST_TRAINED}")
    if len(tests) != TESTS:
        raise Wrong(f"{name}: {len(tests)} test questions, want {TESTS}")


def check_facts(facts):
    """Checks all facts. Returns {form of a question: (id, is trained)}."""
    for column, what in ((0, "id"), (1, "answer")):
        for value, count in Counter(fact[column] for fact in facts).items():
            if count > 1:
                raise Wrong(f"{what} twice: {value}")
    for fact in facts:
        check_fact(*fact)
    taken = {}
    for name, _, trained, tests in facts:
        for question, count in Counter(trained + tests).items():
            if count > 1:
                raise Wrong(f"{name}: twice: {question}")
            key = same_form(question)
            if taken.setdefault(key, (name, question in trained))[0] != name:
                raise Wrong(f"'{question}' is asked of {name} and of {taken[key][0]}")
    return taken


def check_split(train, test):
    """Checks that no question has two answers, and that no test question is trained."""
    answers = {}
    for turns in train:
        for said, answer in turns:
            if answers.setdefault(same_form(said), answer) != answer:
                raise Wrong(f"two answers to '{said}'")
    trained = {normal(said) for turns in train for said, _ in turns}
    for name, question, _ in test:
        if normal(question) in trained:
            raise Wrong(f"{name}: the test question '{question}' is trained too")


def line(turns, name=None):
    messages = [{"role": role, "content": text} for said, answer in turns
                for role, text in (("user", said), ("assistant", answer))]
    record = {"id": name, "messages": messages} if name else {"messages": messages}
    return json.dumps(record, separators=(",", ":")) + "\n"


def build():
    """Returns {file name: text}, and the lines to print."""
    tests_of = read_tests(HERE / "test_questions.txt")
    facts, small_talk = [], set()
    for path in sorted((HERE / "facts").glob("*.txt")):
        for name, answer, questions in read_facts(path):
            facts.append((name, answer, questions, tests_of.get(name, [])))
            if path.stem in SMALL_TALK:
                small_talk.add(name)
    taken = check_facts(facts)
    answers = {name: answer for name, answer, _, _ in facts}
    if unknown := tests_of.keys() - answers.keys():
        raise Wrong(f"test_questions.txt: no such fact: {', '.join(sorted(unknown))}")

    train, test = [], []  # train: chats of (question, answer); test: (id, question, answer)
    for name, answer, questions, tests in facts:
        questions = questions + vary(name, questions, taken, name in small_talk)
        train += [[(question, answer)] for question in questions]
        test += [(name, question, answer) for question in tests]
    solved, solved_tests = arithmetic.solved()
    train += [[pair] for pair in solved]
    train += [[(question, answers[name])] for question, name in arithmetic.refused()]
    test += solved_tests
    chats = read_chats(HERE / "chats.txt", answers)
    train += [[(said, answers[name]) for said, name in chat] for chat in chats]
    check_split(train, test)

    files = {"train.jsonl": "".join(map(line, train)),
             "test.jsonl": "".join(line([(q, a)], name) for name, q, a in test)}
    size = sum(map(len, files.values()))
    if size > MOST_BYTES:
        raise Wrong(f"{size} bytes, want at most {MOST_BYTES}")
    return files, [
        f"{len(facts)} facts, {sum(len(fact[2]) for fact in facts)} trained questions by hand",
        f"train.jsonl: {len(train)} chats, of them {len(solved)} of arithmetic and {len(chats)} of several turns; "
        f"{len(files['train.jsonl'])} bytes",
        f"test.jsonl: {len(test)} questions, {len(files['test.jsonl'])} bytes",
        f"prose: {sum(path.stat().st_size for path in (HERE / 'prose').glob('*.txt'))} bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files differ")
    args = parser.parse_args()
    try:
        files, said = build()
    except (Wrong, OSError, UnicodeDecodeError) as e:
        sys.exit(f"build.py: {e}")
    for name, text in files.items():
        path = HERE / name
        if not args.check:
            aside = path.with_suffix(".new")
            aside.write_text(text, encoding="ascii")
            aside.replace(path)
        elif not path.exists() or path.read_text(encoding="ascii") != text:
            sys.exit(f"build.py: {name} is not what the hand-written files give; run build.py")
    print("\n".join(said))


if __name__ == "__main__":
    main()
