"""The feature table of the docs equals the output of the program, and commands reject the flags that it excludes."""
import subprocess
import sys

import pytest

import server


def test_the_docs_have_the_table_that_the_program_prints():
    done = subprocess.run([sys.executable, server.ROOT / "scripts/docs-tables", "--check"], capture_output=True, text=True,
                          env={"SWITCHYARD": server.PROGRAM})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_does_not_depend_on_flags():
    def table(*flags):
        return subprocess.run([server.PROGRAM, "backends", "--markdown", *flags], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
    assert "| `train` | yes | yes | no | no | no |" in table()
    assert table("--device", "cpu", "--tp", "2", "--moe-a2a-backend", "deepep") == table()


def test_the_table_of_models_has_a_row_for_each_family():
    table = subprocess.run([server.PROGRAM, "backends", "--models"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    types = {row[1].strip("`") for row in rows}
    assert {"mixtral", "deepseek_v3", "kimi_k25", "flex_olmo"} <= types and len(rows) > 25
    gpus = {row[1].strip("`"): row[3] for row in rows}
    assert gpus["phimoe"] == "yes" and gpus["mixtral"] == "yes"


@pytest.mark.parametrize("command, flag", [
    (["generate", "--model-path", server.FIXTURES / "qwen3_moe", "--prompt", "a"], ["--nnodes", "2"]),
    (["bench", "one-batch", "--model-path", server.FIXTURES / "qwen3_moe"], ["--nnodes", "2"])])
def test_commands_refuse_hosts_that_they_do_not_use(command, flag, tmp_path):
    done = subprocess.run([server.PROGRAM, *command, *flag], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and flag[0] in done.stderr, done.stderr
