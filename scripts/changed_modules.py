#!/usr/bin/env python3
"""Prints the modules (folders of src/, or bench) whose code changed since a commit: scripts/changed_modules.py BASE.

Changes of comments, white space and formatting do not count.
"""

import pathlib
import re
import subprocess
import sys

# Matches string and character literals, which are kept, and comments, which are removed.
TOKENS = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)


def code(text):
    kept = TOKENS.sub(lambda m: " " if m.group(0).startswith("/") else m.group(0), text)
    return re.sub(r"\s+", "", kept)


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main():
    base = sys.argv[1]
    modules = set()
    for path in git("diff", "--name-only", "--no-renames", base, "--", "src", "bench").split():
        module = path.split("/")[1] if path.startswith("src/") else "bench"
        if module in modules:
            continue
        now = pathlib.Path(path)
        if now.exists() and now.suffix in {".cc", ".h"}:
            before = subprocess.run(["git", "show", f"{base}:{path}"], capture_output=True, text=True, check=False)
            if before.returncode == 0 and code(before.stdout) == code(now.read_text()):
                continue
        elif now.suffix in {".cu", ".cuh", ".md"}:
            continue
        modules.add(module)
    print("\n".join(sorted(modules)))


if __name__ == "__main__":
    main()
