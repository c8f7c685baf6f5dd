#!/usr/bin/env python3
"""Finds the test program of each test by reading the sources, without a build.

scripts/test_targets.py --match REGEX       build targets of the tests whose ctest names match, one per line
scripts/test_targets.py --names MODULE...   a regular expression for the ctest names of these modules' tests
scripts/test_targets.py --count-others MODULE...   tests of the other modules; a parameterized test counts once
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST = re.compile(r"\bTEST(_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")
TYPED = re.compile(r"\bTYPED_TEST(_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)")


def sources():
    """Yields (target, path) of every test source."""
    for path in sorted((ROOT / "src").rglob("*_test.cc")):
        module = path.relative_to(ROOT / "src").parts[0]
        yield f"{module}_cuda_test" if "cuda" in path.parts else f"{module}_test", path
    for path in sorted((ROOT / "bench").rglob("*_test.cc")):
        yield "bench_test", path


def suites(path):
    text = path.read_text()
    for pattern in (TEST, TYPED):
        for found in pattern.finditer(text):
            yield found.group(2), found.group(3)


def main():
    kind, arguments = sys.argv[1], sys.argv[2:]
    if kind == "--names":
        names = sorted({suite for target, path in sources() if target.removesuffix("_test") in arguments for suite, _ in suites(path)})
        print("(^|/)(" + "|".join(names) + ")(/|\\.)")
        return
    if kind == "--count-others":
        others = [target for target, path in sources() for _ in suites(path)
                  if target.removesuffix("_test") not in arguments and "_cuda" not in target]
        print(f"{len(others)} of " + (" ".join(sorted({o.removesuffix("_test") for o in others})) or "none"))
        return
    pattern = re.compile(arguments[0])
    # ctest names of parameterized tests are Instance/Suite.Name/Parameter. The sources have only suite and name. So an
    # expression with '/' also matches tests whose suite or name contains one of the expression's words.
    loose = re.compile("|".join(re.escape(part) for part in re.split(r"[^A-Za-z0-9_]+", arguments[0]) if len(part) > 2) or "$^")
    targets = {target for target, path in sources() for suite, name in suites(path)
               if pattern.search(f"{suite}.{name}") or ("/" in arguments[0] and loose.search(f"{suite}.{name}"))}
    if any(pattern.search(f"e2e.{path.stem}") for path in (ROOT / "tests/e2e").glob("test_*.py")):
        targets |= {"switchyard", "switchyard_without_tools", "offline", "eplb_simulation", "train_small"}
    print("\n".join(sorted(targets)))


if __name__ == "__main__":
    main()
