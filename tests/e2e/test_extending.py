"""The commands of examples/README.md, and those of the pages about models and kernels. tests/e2e/test_install.py follows the
pages about runners and dispatchers.
"""
import pathlib
import re
import subprocess

import pytest

import documented
import server

BUILD = pathlib.Path(server.PROGRAM).absolute().parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("examples")


def sh(text, folder):
    text = re.sub(r"(?<![\w/])build/release/", f"{BUILD}/", text)
    text = re.sub(r"(?<= )docs/", f"{server.ROOT}/docs/", text).replace(" DIR ", f" {server.FIXTURES / 'qwen3_moe'} ")
    done = subprocess.run(["bash", "-ec", text], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_of_the_examples_work(folder):
    texts = [command.text for command in documented.commands("examples/README.md")]
    printed = {text.split()[0].rpartition("/")[2]: sh(text, folder) for text in texts}
    assert "\nWhat is dispatch?" in "\n" + printed["offline"]
    trivial, planned = map(float, re.search(r"^yard +(\S+) +(\S+)", printed["eplb_simulation"], re.M).groups())
    assert planned > trivial + 0.1, printed
    first, last = map(float, re.findall(r"loss (\S+)", printed["train_small"]))
    assert last < first - 0.5 and printed["train_small"].endswith("run/final\n"), printed
    assert printed["switchyard"]


def test_every_example_is_listed():
    text = (server.ROOT / "examples/README.md").read_text()
    for path in [*(server.ROOT / "examples").glob("*.cc"), *(server.ROOT / "examples").glob("*/README.md"),
                 *(server.ROOT / "examples").glob("python/*.py")]:
        assert f"({path.relative_to(server.ROOT / 'examples')})" in text, path


def targets():
    listed = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], capture_output=True, text=True)
    return {line.partition(":")[0] for line in listed.stdout.splitlines()}


def page_commands():
    kernels = documented.commands("docs/add_kernel.md")
    models = [c for c in documented.commands("docs/models.md") if re.match("ninja|SWITCHYARD_TEST_LAYOUTS", c.text)]
    return [*kernels, *models]


@pytest.mark.parametrize("command", page_commands(), ids=str)
def test_the_commands_of_the_pages_about_models_and_kernels_work(command, folder):
    for part in command.text.split(" && "):
        words = part.split()
        if words[0] == "ninja":
            device = {"kernels_cuda_test"} if "SWITCHYARD_CUDA:BOOL=OFF" in (BUILD / "CMakeCache.txt").read_text() else set()
            assert set(words[3:]) - device <= targets(), part
        elif "pytest" in part:  # collects the tests only: they serve a checkpoint in every layout
            sh(part.replace("build/venv/bin/python", documented.sys.executable).replace(
                "tests/e2e/", f"{server.ROOT}/tests/e2e/") + " --collect-only", folder)
        elif words[0].endswith("_test"):
            # Sources have the tests that --gtest_filter names.
            name = re.search(r"--gtest_filter='(\w+)\.(\w+)\*'", part)
            module = words[0].rpartition("/")[2].partition("_")[0]
            if name:
                pattern = re.compile(rf"TEST(_F|_P)?\({name[1]}, {name[2]}")
                assert any(pattern.search(p.read_text()) for p in (server.ROOT / "src" / module).rglob("*_test.cc")), part
            if (BUILD / words[0].removeprefix("build/release/")).exists() and name and "cuda" not in words[0]:
                assert "PASSED" in sh(f"cd {server.ROOT} && {part}", folder)
        else:
            assert sh(part, folder)


def test_the_tests_that_the_page_of_kernels_names_exist():
    text = (server.ROOT / "docs/add_kernel.md").read_text()
    sources = "".join(path.read_text() for path in (server.ROOT / "src/kernels").rglob("*_test.cc"))
    for suite, name in re.findall(r"`(\w+Test)\.(\w+)`", text):
        assert re.search(rf"TEST(_F|_P)?\({suite}, {name}\)", sources), f"{suite}.{name}"
