#!/usr/bin/env python3
"""Runs clang-tidy: scripts/tidy.py BUILD_DIR UNIT...

A unit that passed before is not checked again if nothing has changed: the unit, the headers of the repository that it
includes, its compile command, .clang-tidy, and the version of clang-tidy. For each unit that passed, an empty file is
kept in ~/.cache/switchyard/clang-tidy (or under XDG_CACHE_HOME). Its name is the hash of all these.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)
ROOT = pathlib.Path(__file__).resolve().parent.parent
OPTIONS = ["--quiet", "--extra-arg=-Wno-unknown-warning-option",  # clang lacks some of GCC's options
           "--extra-arg=-Wno-unused-command-line-argument", "--warnings-as-errors=*"]
DAYS_KEPT = 30


@functools.cache
def content(path):
    return path.read_bytes()


def closure(path, folders):
    """The unit and all headers of the repository that it includes, directly or indirectly."""
    found, open_ = {path}, [path]
    while open_:
        current = open_.pop()
        for name in INCLUDE.findall(content(current)):
            for folder in [current.parent, *folders]:
                header = folder / name.decode()
                if header.is_file() and header.resolve() not in found:
                    found.add(header.resolve())
                    open_.append(header.resolve())
                    break
    return sorted(found)


def key(unit, command, common):
    folders = [pathlib.Path(match) for match in re.findall(r"-(?:I|isystem) ?(\S+)", command)]
    digest = hashlib.sha256(common)
    digest.update(command.replace(str(ROOT), "").encode())
    for path in closure(unit, folders):
        digest.update(str(path).replace(str(ROOT), "").encode() + b"\0" + content(path) + b"\0")
    return digest.hexdigest()


def main():
    build, units = pathlib.Path(sys.argv[1]), [(ROOT / unit).resolve() for unit in sys.argv[2:]]
    commands = {pathlib.Path(entry["directory"], entry["file"]).resolve(): entry["command"]
                for entry in json.loads((build / "compile_commands.json").read_text())}
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes() + " ".join(OPTIONS).encode()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "switchyard", "clang-tidy")
    cache.mkdir(parents=True, exist_ok=True)

    def check(unit):
        passed = cache / key(unit, commands.get(unit, ""), common)
        if passed.exists():
            passed.touch()
            return "unchanged"
        run = subprocess.run(["clang-tidy", "-p", str(build), *OPTIONS, str(unit)], text=True, capture_output=True,
                             check=False)
        if run.returncode == 0:
            passed.touch()
            return "passed"
        sys.stdout.write(run.stdout or run.stderr)
        return "failed"

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, units))
    print(f"lint: {results.count('unchanged')} of {len(units)} units passed before and are unchanged")
    newest = max((f.stat().st_mtime for f in cache.iterdir()), default=0)
    for old in cache.iterdir():
        if newest - old.stat().st_mtime > DAYS_KEPT * 86400:
            old.unlink(missing_ok=True)
    return 1 if "failed" in results else 0


sys.exit(main())
