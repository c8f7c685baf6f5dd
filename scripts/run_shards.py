#!/usr/bin/env python3
"""Runs test programs of a build folder, several shards at a time: scripts/run_shards.py DIR [MODULE...]

A process for each test, as ctest starts, costs more than most tests, above all under sanitizers. So each program runs
in shards of many tests (GoogleTest's GTEST_TOTAL_SHARDS), one shard more than processors at the same time. Prints the
output of shards that fail from the first failed test on, the names of failed tests, and the number of tests. Writes
DIR/tests.xml for scripts/slowest.py. Without modules, runs all programs of the folder whose module still exists. Fails if
a test fails, a shard ends without a report or exceeds its time limit, or a program has no test. SIGINT and SIGTERM end
the programs and their child processes.
"""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree

TESTS_PER_SHARD = 40
TIME_LIMIT = 900  # seconds for a shard
LIST_LIMIT = 60  # seconds for a program to list its tests
ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES = 400  # of the output of a failed shard
running = set()
stopped = False  # no further program starts
lock = threading.Lock()


def all_programs(build):
    found = sorted(path for path in [*build.glob("src/*/*_test"), *build.glob("bench/*_test")]
                   if (ROOT / path.parent.relative_to(build)).is_dir())
    return found or sys.exit(f"run_shards: no test program is built in {build}")


def program_of(build, module):
    name = f"{module}_test"
    found = [path for path in (build / "src" / module / name, build / module / name) if path.exists()]
    return found[0] if found else sys.exit(f"run_shards: {name} is not built in {build}")


def tests_of(program):
    try:
        listed = subprocess.run([program, "--gtest_list_tests"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                check=True, timeout=LIST_LIMIT).stdout
    except subprocess.TimeoutExpired:
        sys.exit(f"run_shards: {program.name} has not listed its tests within {LIST_LIMIT} s")
    return sum(line.startswith("  ") for line in listed.splitlines())


def kill_group(process):
    """Ends a program and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_all(shards):
    """KeyboardInterrupt (SIGINT, SIGTERM) ends the programs. The pool joins its threads, which wait for them."""
    global stopped
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        try:
            list(pool.map(Shard.run, shards))
        except KeyboardInterrupt:
            with lock:
                stopped = True
                for process in running:
                    kill_group(process)
            raise


class Shard:
    def __init__(self, program, index, count, folder):
        self.program, self.index, self.count = program, index, count
        self.name = f"{program.name}, shard {index + 1} of {count}"
        self.report = folder / f"{program.name}.{index}.xml"
        self.log = folder / f"{program.name}.{index}.log"
        self.failure = None

    def run(self):
        environment = {**os.environ, "GTEST_TOTAL_SHARDS": str(self.count), "GTEST_SHARD_INDEX": str(self.index)}
        command = [self.program, f"--gtest_output=xml:{self.report}"]
        start = time.monotonic()
        with self.log.open("w") as log:
            with lock:
                if stopped:
                    return self
                process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                           stderr=subprocess.STDOUT, start_new_session=True)
                running.add(process)
            try:
                code = process.wait(TIME_LIMIT)
                if code != 0 or not self.report.exists():
                    self.failure = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
            except subprocess.TimeoutExpired:
                kill_group(process)
                process.wait()
                self.failure = f"no end within {TIME_LIMIT} s"
            with lock:
                running.discard(process)
        print(f"shard: {self.name}: {self.failure or 'passed'}, {time.monotonic() - start:.1f} s", flush=True)
        return self

    def failed_tests(self):
        """Failed tests; if the program ended early, the test that was running."""
        text = self.log.read_text(errors="replace")
        failed = re.findall(r"^\[  FAILED  \] ([^ ,\n]+)[^\n]*ms\)$", text, re.MULTILINE)
        started = re.findall(r"^\[ RUN      \] (\S+)", text, re.MULTILINE)
        ended = set(re.findall(r"^\[ +(?:OK|FAILED|SKIPPED) +\] ([^ ,\n]+)", text, re.MULTILINE))
        return failed + [test for test in started[-1:] if test not in ended]

    def failed_names(self):
        return self.failed_tests() or [f"(after the last test of {self.name})"]

    def output(self):
        """The log from the start of the first failed test on."""
        lines = self.log.read_text(errors="replace").splitlines()
        failed = self.failed_tests()
        first = next((i for i, line in enumerate(lines) if failed and line == f"[ RUN      ] {failed[0]}"), 0)
        return "\n".join(lines[first:][:LINES] if failed else lines[-LINES:])


def write_report(shards, path):
    """Returns the number of skipped tests. Failed tests have an entry even if their program ended without a report."""
    suites, skipped = ElementTree.Element("testsuites"), 0
    for shard in shards:
        failed = shard.failed_names() if shard.failure else []
        for case in ElementTree.parse(shard.report).iter("testcase") if shard.report.exists() else []:
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.get("status") == "run" and name not in failed:
                ElementTree.SubElement(suites, "testcase", name=name, time=case.get("time"))
                skipped += case.get("result") == "skipped"
        for name in failed:
            ElementTree.SubElement(ElementTree.SubElement(suites, "testcase", name=name, time="0"), "failure")
    ElementTree.ElementTree(suites).write(path)
    return skipped


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    build = pathlib.Path(sys.argv[1]).resolve()
    programs = [program_of(build, module) for module in sys.argv[2:]] or all_programs(build)
    folder = build / "shards"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    os.chdir(ROOT)
    shards, total = [], 0
    for program in programs:
        tests = tests_of(program)
        if tests == 0:
            sys.exit(f"run_shards: {program.name} has no test")
        total += tests
        count = -(-tests // TESTS_PER_SHARD)
        shards += [Shard(program, i, count, folder) for i in range(count)]
    run_all(shards)
    skipped = write_report(shards, build / "tests.xml")
    bad = [shard for shard in shards if shard.failure]
    for shard in bad:
        print(f"\n{shard.name}: {shard.failure}\n{shard.output()}")
    for shard in bad:
        for test in shard.failed_names():
            print(f"failed: {test}")
    print(f"{total} tests of {len(programs)} programs ({skipped} skipped), {len(bad)} of {len(shards)} shards failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
