"""Completion scripts of shells, and the commands' machine-readable help that they use."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

import server
from server import ROOT

PROGRAM = os.path.abspath(server.PROGRAM)
SHELLS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


def run(*words, **environment):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def path(tmp_path):
    """A PATH with this program as `switchyard`."""
    (tmp_path / "switchyard").symlink_to(PROGRAM)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid(shell, tmp_path):
    script = run(PROGRAM, "completion", shell)
    assert script == (ROOT / f"deploy/completion/switchyard.{shell}").read_text()
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(script)
    run(*SHELLS[shell], file)


def commands():
    return [line.split("\t")[0] for line in run(PROGRAM, "--help=commands").splitlines()]


def test_every_command_lists_its_flags():
    assert {"serve", "chat", "bench serve", "bench exchange", "eplb plan", "completion"} < set(commands())
    for command in commands():
        if command in ("version",):
            continue
        lines = [line.split("\t") for line in run(PROGRAM, *command.split(), "--help=flags").splitlines()]
        assert all(len(line) == 3 and re.fullmatch(r"--[a-z0-9][a-z0-9_-]*", line[0]) for line in lines), command
        assert "--help" in [name for name, *_ in lines], command
    lines = [line.split("\t") for line in run(PROGRAM, "serve", "--help=flags").splitlines()]
    flags = {name: (summary, values) for name, summary, values in lines}
    assert flags["--device"] == ("Device of the ranks", "auto,cpu,cuda")
    assert flags["--port"][1] == "*" and flags["--enable-eplb"][1] == ""
    assert {"--tp-size", "--tp"} < set(flags)


def completions(shell, line, path):
    """Completions of the last word of a line."""
    if shell == "bash":
        words = shlex.split(line) + ([""] if line.endswith(" ") else [])
        code = (f"source {ROOT}/deploy/completion/switchyard.bash; COMP_WORDS=({' '.join(map(shlex.quote, words))}); "
                f"COMP_CWORD={len(words) - 1}; _switchyard; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return run("bash", "-c", code, PATH=path).split("\n")[:-1]
    code = f"source {ROOT}/deploy/completion/switchyard.fish; complete -C {shlex.quote(line)}"
    found = [line.split("\t")[0] for line in run("fish", "-c", code, PATH=path).splitlines()]
    return [word for word in found if word.startswith(line.rsplit(" ", 1)[1])]  # fish also proposes similar words


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_flags_and_values_are_completed(shell, path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    for line, expected in [("switchyard tr", ["train", "train-picture", "train-score", "train-tokenizer"]),
                           ("switchyard bench one", ["one-batch"]), ("switchyard eplb ", ["plan", "simulate"]),
                           ("switchyard serve --dry", ["--dry-run"]), ("switchyard bench serve --dataset-n", ["--dataset-name"]),
                           ("switchyard serve --device cu", ["cuda"]), ("switchyard completion z", ["zsh"]),
                           ("switchyard chat --temp", ["--temperature"]), ("switchyard chat --dry", []),
                           ("switchyard chat --model-path DIR --tbo-m", ["--tbo-min-tokens"])]:
        assert sorted(filter(None, completions(shell, line, path))) == expected, line


def test_version():
    assert run(PROGRAM, "version") == run(PROGRAM, "--version")
    assert re.fullmatch(r"switchyard \d+\.\d+\.\d+\n", run(PROGRAM, "version"))


WITHOUT_TOOLS = pathlib.Path(PROGRAM).parent / "apps/switchyard_without_tools"


def test_a_first_build_names_the_commands_that_it_leaves_out():
    config = ["--model-path", ROOT / "bench/models/olmoe-1b-7b"]
    for command in (["plan", *config, "--cpu"], ["simulate", *config, "--cpu", "--rate", "1"], ["bench", "kernels"],
                    ["bench", "serve"], ["bench", "one-batch", *config], ["route"], ["train-rank"],
                    ["train-picture", "log.jsonl", "--output", "a.svg"]):
        done = subprocess.run([WITHOUT_TOOLS, *map(str, command)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, (command, done)
        assert "-DSWITCHYARD_TOOLS=ON" in done.stderr, (command, done.stderr)
    assert run(WITHOUT_TOOLS, "--help") == run(PROGRAM, "--help")
    assert "qwen3_moe" in run(WITHOUT_TOOLS, "backends", "--models")
