"""The corpus of models/yardling: generated files match their hand-written sources, and the build refuses invalid input."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling" / "corpus"


def build(corpus, *flags):
    return subprocess.run([sys.executable, corpus / "build.py", *flags], capture_output=True, text=True, timeout=60)


def records(name):
    return [json.loads(line) for line in (CORPUS / name).read_text().splitlines()]


def plain(question):
    return "".join(c for c in question.lower() if c.isalnum() or c in "+-*/")


@pytest.fixture
def corpus(tmp_path):
    return pathlib.Path(shutil.copytree(CORPUS, tmp_path / "corpus"))


def test_generated_files_are_current():
    done = build(CORPUS, "--check")
    assert done.returncode == 0, done.stderr


def test_no_test_question_is_trained_and_every_expected_answer_is():
    trained, answers = set(), set()
    for record in records("train.jsonl"):
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        trained |= {plain(m["content"]) for m in record["messages"] if m["role"] == "user"}
        answers |= {m["content"] for m in record["messages"] if m["role"] == "assistant"}
    tests = records("test.jsonl")
    assert len(tests) > 500
    for record in tests:
        question, answer = (message["content"] for message in record["messages"])
        assert plain(question) not in trained, record["id"]
        assert answer in answers, record["id"]


def test_the_same_question_has_one_answer():
    answers = {}
    for record in records("train.jsonl") + records("test.jsonl"):
        for said, answer in zip(record["messages"][::2], record["messages"][1::2]):
            assert answers.setdefault(said["content"], answer["content"]) == answer["content"], said


def test_arithmetic_is_right():
    checked = 0
    for record in records("train.jsonl") + records("test.jsonl"):
        words = record["messages"][-1]["content"].removesuffix(".").split()
        if len(words) == 5 and words[3] == "=" and words[0].isdigit():
            a, sign, b, result = int(words[0]), words[1], int(words[2]), int(words[4])
            assert result == {"+": a + b, "-": a - b, "*": a * b}[sign], words
            checked += 1
    assert checked > 1500


@pytest.mark.parametrize("name, text, complaint", [
    ("test_questions.txt", "\nno-such-fact | a? | b?\n", "no such fact"),
    ("chats.txt", "\nHello\n@no-such-fact\n", "no-such-fact"),
    ("chats.txt", "\nWhat is EPLB?\n@hello\n", "two answers"),
    ("facts/99_more.txt", "= one\n> An answer.\n" + "".join(f"question {i}\n" for i in range(9)), "0 test questions"),
    ("facts/99_more.txt", "= ep-what\n> An answer.\n" + "".join(f"question {i}\n" for i in range(9)), "id twice"),
    ("facts/10_expert_parallelism.txt", "What is EPLB?\n", "is asked of"),
])
def test_what_would_spoil_the_corpus_is_refused(corpus, name, text, complaint):
    path = corpus / name
    path.write_text((path.read_text() if path.exists() else "") + text)
    before = (corpus / "train.jsonl").read_bytes()
    done = build(corpus)
    assert done.returncode != 0 and complaint in done.stderr
    assert (corpus / "train.jsonl").read_bytes() == before


def test_a_test_question_that_is_trained_is_refused(corpus):
    question = records("test.jsonl")[0]["messages"][0]["content"]
    name = records("test.jsonl")[0]["id"]
    (corpus / "chats.txt").write_text(f"{question.upper()}!\n@{name}\n")
    done = build(corpus)
    assert done.returncode != 0 and "is trained too" in done.stderr


def test_a_stale_file_is_noticed(corpus):
    with open(corpus / "test.jsonl", "a") as file:
        file.write("{}\n")
    done = build(corpus, "--check")
    assert done.returncode != 0 and "test.jsonl" in done.stderr
