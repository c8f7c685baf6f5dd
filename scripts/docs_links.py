#!/usr/bin/env python3
"""Checks the relative links of all tracked Markdown files: scripts/docs_links.py.

A link must lead to a tracked file, and its anchor to a heading of that page. A link to a directory must name its README.
docs/README.md must list every other page of docs/. scripts/docs-site uses the functions to collect the pages of the site.
"""

import pathlib
import re
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
INDEX = pathlib.PurePosixPath("docs/README.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")


def prose_lines(text):
    """Lines outside of code blocks. Code spans within them are blank."""
    fenced, before_is_blank, in_list = False, True, False
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith("```"):
            fenced = not fenced
            continue
        in_list = (in_list and (not stripped or line.startswith(" "))) or bool(re.match(r"([-*+]|\d+\.)\s", line))
        indent = len(line) - len(line.lstrip())
        code = fenced or (before_is_blank and indent >= (7 if in_list else 4))
        before_is_blank = not stripped or (code and not fenced)
        if not code:
            yield re.sub(r"`[^`]*`", lambda match: " " * len(match[0]), line)


def links(text):
    """Targets of the links and images of a page, without those to other sites."""
    found = LINK.findall("\n".join(prose_lines(text)))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """Anchors of the headings, by the rules of code hosts: lower case, punctuation removed, spaces become hyphens."""
    found, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.strip().startswith("```")
        heading = None if fenced else HEADING.match(line)
        if not heading:
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.append(f"{slug}-{repeats}" if (repeats := sum(re.fullmatch(re.escape(slug) + r"(-\d+)?", f) is not None
                                                            for f in found)) else slug)
    return found


def target_of(page, link):
    """The linked path below the root, and the anchor or ""."""
    path, _, anchor = urllib.parse.unquote(link).partition("#")
    joined = page if not path else page.parent / path
    parts = []
    for part in joined.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
    return pathlib.PurePosixPath(*parts), anchor


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return [pathlib.PurePosixPath(path) for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


def problems():
    files = set(tracked())
    pages = [path for path in files if path.suffix == ".md"]
    texts = {page: (ROOT / page).read_text() for page in pages}
    for page in sorted(pages):
        for link in links(texts[page]):
            path, anchor = target_of(page, link)
            if path not in files:
                yield f"{page}: {link}: " + ("is a directory; link to a file in it" if (ROOT / path).is_dir() else "no such file")
            elif anchor and anchor not in anchors(texts.get(path, "")):
                yield f"{page}: {link}: {path} has no heading with this anchor"
    listed = {target_of(INDEX, link)[0] for link in links(texts[INDEX])}
    for page in sorted(pages):
        if page.parts[0] == "docs" and page != INDEX and page not in listed:
            yield f"{page}: is not listed in {INDEX}"


def main():
    found = list(problems())
    print("\n".join(found) if found else "docs_links: all links lead to files and headings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
