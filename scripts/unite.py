#!/usr/bin/env python3
"""Combines sources for a faster build (unity build): scripts/unite.py --base DIR --out DIR --name NAME SOURCE...

Writes files that include several sources each, so that the headers of a group of sources are parsed once. Prints the
paths of these files, one per line. Called by cmake/module.cmake. Include paths of sources in `base` are relative to
`base`, others are relative to `out`. No path is absolute, so that checkouts share the compiler cache.

Names in anonymous namespaces may repeat between sources. If such a local name would become ambiguous, a macro renames it
in its own source. The source's headers are included before the macro is defined, so they are not changed. A name is not
renamed if the source also uses the word for something else: for a member of a class, in a macro of a header, or in the
name of a test. Then the source is not added to the group. Neither is a source whose using declarations would make names
of another source ambiguous. The groups depend on file names, and hardly change when a source is edited or added.
"""

import argparse
import functools
import hashlib
import os
import pathlib
import re

AVERAGE, MOST = 64, 20  # average number of neighbouring sources, and maximum number of sources in a group

DECLARATION = re.compile(
    r"(?:template *<.*> *)?(?:class|struct|enum class|enum|union) (\w+)|using (\w+) *=|"
    r"(?:static |inline |constexpr |const |thread_local )*"
    r"(?:[\w:<>,&*\[\] ]|\([^()]*\)(?=[^;{]*>))+?"  # parentheses in types: std::function<void(int)>
    r"[ *&>](\w+) *(?:\(|=|\{|\[|;|$)")
MORE = re.compile(r", (\w+) *(?:=|\{|\[)")  # constexpr int kA = 1, kB = 2;
# Macros, names from other namespaces, and declarations whose result type is on the line before.
OTHERS = re.compile(r"^#define (\w+)|^using (?:\w+::)+(\w+);|^(\w+)\(", re.MULTILINE)
USING = re.compile(r"^using (?:::)?(?:switchyard::)?((?:\w+::)*(k?[A-Z]\w*));", re.MULTILINE)
UNSCOPED_ENUM = re.compile(r"^enum (?!class)[^{;]*\{([^}]*)\}", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]\w*")
TEST = re.compile(r"^(?:TYPED_)?(?:TEST|INSTANTIATE)\w*\(.*", re.MULTILINE)
CONSTANT_OR_TYPE = re.compile(r"k?[A-Z]")  # also functions; not words such as `name`, which other libraries use
INCLUDE = re.compile(r'#include "([^"]+)"')
MACRO = re.compile(r"^ *# *define (?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
MEMBER = re.compile(r"(?:::|\.|->) *(?:template )?(\w+)")
USING_ENUM = re.compile(r"^using enum (?:\w+::)*(\w+);", re.MULTILINE)
ENUM = re.compile(r"\benum (?:class )?(\w+)[^{;]*\{([^}]*)\}")
# Classes on lines of definitions, which clang-format does not indent: Result Class::Member(…
SCOPE = re.compile(r"^(?:[a-zA-Z].*?)?\b(\w+)(?:<[^<>;]*>)?::~?\w+(?=\(| =|;)", re.MULTILINE)
BASE = re.compile(r"(?:public|protected|private) (?:\w+::)*(\w+)")
SKIPPED = ("namespace", "TEST", "INSTANTIATE", "TYPED_", "using enum")
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
        if not inside or not line or line[0] in " }#\t" or line.startswith(SKIPPED):
            continue
        found = DECLARATION.match(line)
        if not found:
            continue
        names.update(n for n in found.groups() if n and n not in NOT_NAMES)
        if "(" not in line.split("=")[0]:
            names.update(MORE.findall(line))
    return names


@functools.cache
def names_of_header(path):
    """Names that a header declares outside of classes. Local names of sources cannot clash with those of members."""
    text = code_of(path.read_text())
    names = {name for found in OTHERS.finditer(text) for name in found.groups() if name}
    for enumerators in UNSCOPED_ENUM.findall(text):
        names.update(WORD.findall(enumerators))
    for line in text.splitlines():
        found = DECLARATION.match(line) if line[:1].isalpha() and not line.startswith("namespace") else None
        if found:
            names.update(n for n in found.groups() if n and n not in NOT_NAMES)
            names.update(MORE.findall(line))
    return names


@functools.cache
def usings_of(path):
    """{name: qualified name} of the using declarations outside of functions. They stay visible in the sources that follow.
    Only constants, types and functions of the project's style: names such as `json` mean the same everywhere."""
    return {name: qualified for qualified, name in USING.findall(code_of(path.read_text()))}


@functools.cache
def words_of_header(path):
    return frozenset(WORD.findall(code_of(path.read_text())))


@functools.cache
def included_by(path, base):
    """The project's headers that a file includes directly."""
    found = [[folder / name for folder in (base, base.parent) if (folder / name).exists()]
             for name in INCLUDE.findall(path.read_text())]
    return [header for header, *_ in filter(None, found)]


def headers_of(path, base):
    """The project's headers that a file includes, directly or indirectly."""
    found, todo = set(), list(included_by(path, base))
    while todo:
        header = todo.pop()
        if header not in found:
            found.add(header)
            todo += included_by(header, base)
    return found


@functools.cache
def macro_words_of_header(path):
    return frozenset(word for macro in MACRO.findall(code_of(path.read_text())) for word in WORD.findall(macro))


@functools.cache
def bases_in_header(path):
    return frozenset(BASE.findall(code_of(path.read_text())))


@functools.cache
def enumerations_of(path):
    return ENUM.findall(code_of(path.read_text()))


def headers_of_members(text, headers):
    """The headers of classes whose members a source may use without a qualification: those of which it defines members,
    those from which its classes derive, and the base classes of both."""
    classes, found = set(SCOPE.findall(text)) | set(BASE.findall(text)), set()
    while new := {header for header in headers - found if not classes.isdisjoint(names_of_header(header))}:
        found |= new
        classes.update(*map(bases_in_header, new))
    return found


def includes(text):
    """The include directives of a source that are not conditional."""
    depth, found = 0, []
    for line in text.splitlines():
        if re.match(r"# *if", line):
            depth += 1
        elif re.match(r"# *endif", line):
            depth -= 1
        elif depth == 0 and line.startswith("#include "):
            found.append(line)
    return found


class Source:
    def __init__(self, path, base):
        self.path = path
        text = code_of(path.read_text())
        headers = headers_of(path, base)
        own = set(WORD.findall(text))
        self.names = local_names(path.read_text())
        self.words = own.union(*map(names_of_header, headers))
        self.includes = includes(path.read_text())
        fixed = {name for line in TEST.findall(text) for name in WORD.findall(line)}
        fixed.update(MEMBER.findall(text))
        of_members = headers_of_members(text, headers)
        self.renamed = {name for name in self.names - fixed if CONSTANT_OR_TYPE.match(name)
                        and not any(name in words_of_header(header) for header in of_members)
                        and not any(name in macro_words_of_header(header) for header in headers)}
        self.fixed_names = self.names - self.renamed
        # Enumerators that a using enum declaration makes visible in the sources that follow: {name: enumeration}.
        self.enumerators = {}
        for used in USING_ENUM.findall(text):
            for header in headers:
                self.enumerators.update((name, used) for found, body in enumerations_of(header) if found == used
                                        for name in WORD.findall(body))
        self.declares = self.names.union(*map(names_of_header, headers))
        self.usings = usings_of(path)
        self.headers = headers
        self.own = names_of_header(path) - self.usings.keys() - self.renamed
        self.declared = {}  # name -> headers that declare it
        for header in headers:
            for name in names_of_header(header) - usings_of(header).keys():
                self.declared.setdefault(name, set()).add(header)

    def hides_by_enumerators(self, other):
        return any(name in other.declares or other.enumerators.get(name, used) != used
                   for name, used in self.enumerators.items())

    def hides(self, other):
        """Whether a using declaration of this source makes a name of the other one ambiguous. A header that both include
        may declare the name, since it is then the same entity."""
        return any(other.usings.get(name, qualified) != qualified or name in other.own
                   or not other.declared.get(name, set()) <= self.headers for name, qualified in self.usings.items())

    def clashes(self, other):
        return bool(self.fixed_names & other.words or other.fixed_names & self.words or self.hides(other)
                    or other.hides(self) or self.hides_by_enumerators(other) or other.hides_by_enumerators(self))

    def macros(self, group):
        """The names that need a macro beside the other sources of the group."""
        return sorted(self.renamed & set().union(*(other.words for other in group if other is not self)))


def segments(paths):
    """Yields runs of neighbouring paths. A run ends where the hash of a file name has a certain value, so that a new file
    changes only its own run."""
    row = []
    for path in sorted(paths):
        row.append(path)
        ends = int(hashlib.md5(path.name.encode()).hexdigest()[:8], 16) % AVERAGE == 0
        if ends or len(row) == 3 * AVERAGE:
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
        text = "// Generated by scripts/unite.py.\n"
        for source, path in zip(group, paths):
            macros = source.macros(group)
            suffix = re.sub(r"\W", "_", pathlib.Path(path).with_suffix("").as_posix().removeprefix("../"))
            if macros:
                text += "".join(f"{line}\n" for line in source.includes)
            text += "".join(f"#define {word} {word}_{suffix}\n" for word in macros)
            text += f'#include "{path}"\n'
            text += "".join(f"#undef {word}\n" for word in macros)
        if not united.exists() or united.read_text() != text:
            united.write_text(text)
        print(united)


if __name__ == "__main__":
    main()
