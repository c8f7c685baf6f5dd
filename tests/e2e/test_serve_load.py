"""bench/serve/disturb and bench/serve/soak: a short run of each. The measured times are not checked."""
import json
import subprocess

import server

COMMANDS = server.ROOT / "bench/serve"


def run(command, *arguments):
    return subprocess.run([COMMANDS / command, "--program", server.PROGRAM, *map(str, arguments)], capture_output=True,
                          text=True, timeout=300)


def test_disturb_prints_a_line_for_each_disturbance(tmp_path):
    file = tmp_path / "figures.json"
    done = run("disturb", "--only", "quiet", "--seconds", 2, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("quiet")]
    (case,) = json.loads(file.read_text())["cases"]
    assert line.split()[1:3] == [f"{case['gaps'][key]:.1f}" for key in ("p99", "longest")]
    assert case["failures"] == {}
    assert case["gaps"]["count"] and case["health"]["count"] and case["client_delay"]["count"]
    assert case["front_bytes"]["peak"] > 0


def test_disturb_refuses_a_name_that_it_does_not_know():
    done = run("disturb", "--only", "noises")
    assert done.returncode == 2
    assert "want one of quiet, tokenize-1x5MB" in done.stderr


def test_soak_loses_nothing(tmp_path):
    file = tmp_path / "soak.json"
    done = run("soak", "--seconds", 5, "--clients", 8, "--references", 6, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 requests lost, 0 leaks\n")
    result = json.loads(file.read_text())
    assert result["lost"] == result["leaked"] == []
    assert len(result["rests"]) == 3
    assert sum(ends.get("answered", 0) for ends in result["cases"].values()) > 0
