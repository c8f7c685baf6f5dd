#!/usr/bin/env python3
"""Measures the prose of documents and code comments: scripts/prose.py [--check] [--worst N] [FILE...].

Without files, measures all tracked documents and sources. Prints the number of words, the 90th percentile of words per
sentence, and the longest sentence, for each document and for the comments of each top folder. With --check it fails if
a 90th percentile is over 25, a sentence is over 45 words, or a phrase is in the list of idioms.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys

MOST_P90 = 25
MOST_WORDS = 45
CODE = {".cc", ".h", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".cmake", ".txt"}
# Idioms that personify machines or need a second reading; use the standard term.
IDIOMS = re.compile(
    r"\b(whoever|nobody|answer(s|ed)? for|lets? go of|letting go of|ask(s|ed|ing)? (the |a )?(memory|machine|card|cache)s? for"
    r"|(is|are|was|were) told|mend(s|ed|ing)?|as (they|it) lies?|stands? beside|of (its|their|one's) own accord)\b", re.I)


def tracked(files):
    if files:
        return [pathlib.Path(f) for f in files]
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [pathlib.Path(f) for f in listed if f]
    return [p for p in paths if p.is_file() and not str(p).startswith(("tests/data/", "models/")) or str(p).endswith("README.md")]


def markdown_blocks(text):
    """Paragraphs, list items, headings and table cells, without code."""
    fenced, block, start = False, [], 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            continue
        code = fenced or (line.startswith("    ") and not block)
        starts = re.match(r"([-*+]|\d+\.)\s|#|\|", stripped)
        if (not stripped or code or starts) and block:
            yield start, " ".join(block)
            block = []
        if code or not stripped:
            continue
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                yield number, cell
            continue
        if not block:
            start = number
        block.append(re.sub(r"^([-*+]|\d+\.|#+)\s+", "", stripped))


def comment_blocks(text, mark):
    """Runs of comment lines; lines that are indented within a comment are tables or drawings, no prose."""
    block, start = [], 0
    for number, line in enumerate(text.split("\n") + [""], 1):
        whole = re.match(r"\s*" + re.escape(mark) + r"+(.*)", line)
        trailing = None if whole else re.search(r"\s" + re.escape(mark) + r" (.*)", line)
        body = whole.group(1) if whole else ""
        drawing = body.startswith("   ") or not re.search(r"[A-Za-z]", body) or "NOLINT" in body or body.startswith("!")
        if (not whole or drawing) and block:
            yield start, " ".join(block)
            block = []
        if block and body.strip().startswith("- "):  # each list item is a separate block
            yield start, " ".join(block)
            block = []
        if whole and not drawing:
            if not block:
                start = number
            block.append(body.strip())
        elif trailing and "http" not in line and '"' not in trailing.group(1):
            yield number, trailing.group(1)


def docstrings(text):
    for found in re.finditer(r'"""(.*?)"""', text, re.S):
        prose = re.sub(r"\n {2,}\S[^\n]*  [^\n]*", "", found.group(1))  # without tables
        for paragraph in re.split(r"\n\s*\n", prose):
            yield text.count("\n", 0, found.start()) + 1, " ".join(paragraph.split())


def blocks(path):
    text = path.read_text(errors="replace")
    if path.suffix == ".md":
        yield from markdown_blocks(text)
    elif path.suffix in CODE:
        yield from comment_blocks(text, "//")
    elif path.suffix in SCRIPTS or text.startswith("#!"):
        yield from comment_blocks(text, "#")
        if path.suffix == ".py":
            yield from docstrings(text)


def sentences(block):
    """A sentence ends at . ! or ? before a blank; inline code counts as one word, a link as its text."""
    block = re.sub(r"`[^`]*`", "code", block)
    block = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block)
    block = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", block)
    for sentence in re.split(r"(?<=[.!?])[\")*]*\s+", block):
        words = [w for w in sentence.split() if re.search(r"[A-Za-z0-9]", w)]
        if words:
            yield len(words), sentence


def p90(lengths):
    return sorted(lengths)[int(0.9 * (len(lengths) - 1))] if lengths else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--worst", type=int, default=0, help="print the longest sentences")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    groups = collections.defaultdict(list)
    worst, faults = [], []
    for path in tracked(options.files):
        group = str(path) if path.suffix == ".md" else "comments of " + "/".join(path.parts[:2] if path.parts[0] == "src" else path.parts[:1])
        for line, block in blocks(path):
            for words, sentence in sentences(block):
                groups[group].append(words)
                worst.append((words, f"{path}:{line}: {sentence[:240]}"))
                if words > MOST_WORDS:
                    faults.append(f"{path}:{line}: a sentence of {words} words (at most {MOST_WORDS}): {sentence[:100]}...")
            idiom = IDIOMS.search(block) if path.name != "prose.py" else None
            if idiom:
                faults.append(f"{path}:{line}: \"{idiom.group(0)}\": use the field's term")
    print(f"{'prose':50s} {'words':>7s} {'p90':>5s} {'longest':>8s}")
    for group in sorted(groups):
        lengths = groups[group]
        print(f"{group:50s} {sum(lengths):7d} {p90(lengths):5d} {max(lengths):8d}")
        if p90(lengths) > MOST_P90:
            faults.append(f"{group}: the 90th percentile of words a sentence is {p90(lengths)} (at most {MOST_P90})")
    every = [n for lengths in groups.values() for n in lengths]
    print(f"{'all':50s} {sum(every):7d} {p90(every):5d} {max(every, default=0):8d}")
    for words, text in sorted(worst, reverse=True)[: options.worst]:
        print(f"{words:4d}  {text}")
    if options.check and faults:
        print("\n".join(faults), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
