#!/usr/bin/env python3
"""Combines sources for a faster build (unity build): scripts/unite.py --base DIR --out DIR --name NAME SOURCE...

Writes files that include several sources each, so that the headers of a group of sources are parsed once. Prints the
paths of these files, one per line. Called by cmake/module.cmake. Include paths of sources in `base` are relative to
`base`, others are relative to `out`. No path is absolute, so that checkouts share the compiler cache.

Names in anonymous namespaces may repeat between sources. A source is not added to a group if one of its names, or a
name of the group, would become ambiguous. The groups depend on file names, and hardly change when a source is edited or
added.
"""

import argparse
import functools
import hashlib
import os
import pathlib
import re

AVERAGE, MOST = 16, 20  # average and maximum number of neighbouring sources in a group

DECLARATION = re.compile(
    r"(?:template *<.*> *)?(?:class|struct|enum class|enum|union) (\w+)|using (\w+) *=|"
    r"(?:static |inline |constexpr |const |thread_local )*[\w:<>,&*\[\] ]+?[ *&>](\w+) *(?:\(|=|\{|\[|;|$)")
MORE = re.compile(r", (\w+) *(?:=|\{|\[)")  # constexpr int kA = 1, kB = 2;
WORD = re.compile(r"[A-Za-z_]\w*")
INCLUDE = re.compile(r'#include "([^"]+)"')
NOT_NAMES = {"return", "if", "for", "while", "else", "switch", "operator", "public", "private", "protected", "namespace"}


def code_of(text):
    """The text without comments and string literals."""
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


def local_names(text):
    """Names declared at the top level of anonymous namespaces. clang-format does not indent such lines."""
    names, inside = set(), False
    for line in text.splitlines():
        if line.startswith("namespace {"):
            inside = True
        elif line.rstrip() == "}  // namespace":
            inside = False
        line = code_of(line)
        if not inside or not line or line[0] in " }#\t" or line.startswith(("namespace", "TEST", "INSTANTIATE", "TYPED_")):
            continue
        found = DECLARATION.match(line)
        if not found:
            continue
        names.update(n for n in found.groups() if n and n not in NOT_NAMES)
        if "(" not in line.split("=")[0]:
            names.update(MORE.findall(line))
    return names


@functools.cache
def words_of_header(path):
    return frozenset(WORD.findall(code_of(path.read_text())))


def headers_of(text, base):
    """The project's headers that a source includes, directly or indirectly. Local names may clash with their names."""
    found, todo = set(), INCLUDE.findall(text)
    while todo:
        name = todo.pop()
        header = next((folder / name for folder in (base, base.parent) if (folder / name).exists()), None)
        if header and header not in found:
            found.add(header)
            todo += INCLUDE.findall(header.read_text())
    return found


class Source:
    def __init__(self, path, base):
        self.path = path
        text = path.read_text()
        self.names = local_names(text)
        self.words = set(WORD.findall(code_of(text)))
        for header in headers_of(text, base):
            self.words |= words_of_header(header)

    def clashes(self, other):
        return bool(self.names & other.words or other.names & self.words)


def segments(paths):
    """Yields runs of neighbouring paths, at most MOST each. A run ends where the hash of a file name has a certain
    value, so that a new file changes only its own run."""
    row = []
    for path in sorted(paths):
        row.append(path)
        ends = int(hashlib.md5(path.name.encode()).hexdigest()[:8], 16) % AVERAGE == 0
        if ends or len(row) == MOST:
            yield row
            row = []
    if row:
        yield row


def united(sources):
    """Groups of at most MOST sources whose names do not clash. Each source is added to the first group that fits."""
    found = []
    for source in sources:
        for group in found:
            if len(group) < MOST and not any(source.clashes(other) for other in group):
                group.append(source)
                break
        else:
            found.append([source])
    return found


def groups(paths, base):
    """Yields groups of neighbouring sources, then groups of the sources that clash with all their neighbours."""
    alone = []
    for row in segments(paths):
        for group in united(Source(path, base) for path in row):
            if len(group) > 1:
                yield group
            else:
                alone += group
    yield from united(alone)


def main():
    parser = argparse.ArgumentParser()
    for flag in ("--base", "--out", "--name"):
        parser.add_argument(flag, required=True)
    parser.add_argument("sources", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    base, out = pathlib.Path(args.base), pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for group in groups(args.sources, base):
        if len(group) == 1:
            print(group[0].path)
            continue
        paths = [source.path.relative_to(base).as_posix() if source.path.is_relative_to(base)
                 else os.path.relpath(source.path, out) for source in group]
        name = hashlib.md5(paths[0].encode()).hexdigest()[:6]
        united = out / f"{args.name}_{pathlib.Path(paths[0]).stem}_{name}.cc"
        text = "// Generated by scripts/unite.py.\n" + "".join(f'#include "{path}"\n' for path in paths)
        if not united.exists() or united.read_text() != text:
            united.write_text(text)
        print(united)


if __name__ == "__main__":
    main()
