#!/usr/bin/env python3
"""Prints the ten slowest compilations of the last builds, the ten slowest tests, and the failed tests of a build folder:
scripts/slowest.py DIR."""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

ROWS = 10


def objects(folder):
    """{object: seconds of its last compilation}. A line of ninja's log has start, end, mtime, output and command."""
    log = folder / ".ninja_log"
    times = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        fields = line.split("\t")
        if len(fields) >= 4 and fields[3].endswith((".o", ".gch")):
            name = fields[3].replace("CMakeFiles/", "").replace(".dir", "").removesuffix(".o")
            times[name] = (int(fields[1]) - int(fields[0])) / 1000
    return times


def cases(folder):
    reports = [folder / name for name in ("tests.xml", "e2e.xml")]
    return [case for report in reports if report.exists() for case in ElementTree.parse(report).iter("testcase")]


def tests(folder):
    return {case.get("name"): float(case.get("time") or 0) for case in cases(folder)}


def failed(folder):
    return [case.get("name") for case in cases(folder) if case.find("failure") is not None]


def table(title, times):
    if not times:
        return
    print(f"{title}: {len(times)}, {sum(times.values()) / 60:.1f} minutes in total; the slowest:")
    for name, seconds in sorted(times.items(), key=lambda item: -item[1])[:ROWS]:
        print(f"  {seconds:7.1f} s  {name}")


def main():
    folder = pathlib.Path(sys.argv[1])
    table("objects", objects(folder))
    table("tests", tests(folder))
    for name in failed(folder):
        print(f"failed: {name}")


if __name__ == "__main__":
    main()
