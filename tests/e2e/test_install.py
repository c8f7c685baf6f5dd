"""The installed library: users' programs, built outside the source tree by the commands of docs/add_runner.md and
docs/add_dispatcher.md, provide all features of Switchyard with an own runner or dispatcher.
"""
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

import check_reference
import documented
import server
from test_cuda import gpus

BUILD = pathlib.Path(server.PROGRAM).parent


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def cache_entry(name):
    line = next(line for line in (BUILD / "CMakeCache.txt").read_text().splitlines() if line.startswith(name + ":"))
    return line.partition("=")[2]


def has_cuda():
    return cache_entry("SWITCHYARD_CUDA") == "ON"


@pytest.fixture(scope="module")
def prefix():
    """The installed library."""
    prefix = BUILD / "tests/install/prefix"
    shutil.rmtree(prefix, ignore_errors=True)
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


def same_compiler():
    same = ["CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS", "CMAKE_CXX_FLAGS_RELEASE"]
    if has_cuda():
        same.append("CMAKE_CUDA_COMPILER")
    return [f"-D{name}={cache_entry(name)}" for name in same]


def build(source, prefix, folder):
    """Builds a project with the compiler of the library. The folder is kept, so that later runs are fast."""
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release",
        *same_compiler())
    run("cmake", "--build", folder)
    return folder


def follow(page, prefix, folder):
    """Runs the commands of a page in order. Returns the program that they build and the outputs by command."""
    shutil.rmtree(folder / "build", ignore_errors=True)
    for copied in folder.glob("my_*"):
        shutil.rmtree(copied)
    folder.mkdir(parents=True, exist_ok=True)
    outputs = {}
    for command in documented.commands(page):
        if re.match(r"scripts/setup|cmake --preset|ninja -C build/release|cmake --install", command.text):
            continue  # tests/e2e/test_commands.py; the library is installed already
        text = re.sub(r"(?<= )examples/", f"{server.ROOT}/examples/", command.text)
        text = text.replace("~/switchyard", str(prefix)).replace(" DIR ", f" {server.FIXTURES / 'qwen3_moe'} ")
        if text.startswith("cmake -S "):
            cached = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
            text += " " + shlex.join([*same_compiler(), *cached])
        done = subprocess.run(["bash", "-ec", text], cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        outputs[command.text] = done.stdout
    return folder / "build/mine/my_switchyard", outputs


@pytest.fixture(scope="module")
def runner(prefix):
    return follow("docs/add_runner.md", prefix, BUILD / "tests/install/runner")


@pytest.fixture(scope="module")
def dispatcher(prefix):
    return follow("docs/add_dispatcher.md", prefix, BUILD / "tests/install/dispatcher")


def test_the_offline_example_builds_with_the_project_of_the_install_page(prefix):
    source = BUILD / "tests/install/offline_source"
    source.mkdir(exist_ok=True)
    (project,) = [lines for language, _, lines in documented.blocks((server.ROOT / "docs/install.md").read_text())
                  if language == "cmake"]
    (source / "CMakeLists.txt").write_text("\n".join(project) + "\n")
    shutil.copy(server.ROOT / "examples/offline.cc", source)
    offline = build(source, prefix, BUILD / "tests/install/offline") / "offline"
    printed = run(offline, server.FIXTURES / "qwen3_moe", "What is dispatch?")  # after the log of the engine
    assert "\nWhat is dispatch?" in "\n" + printed


def test_the_program_needs_only_the_libraries_of_the_docs():
    """Open MPI and NCCL are loaded at run time only."""
    needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", run("readelf", "-d", server.PROGRAM)))
    section = (server.ROOT / "docs/install.md").read_text().partition("## Shared libraries")[2]
    assert needed - {"ld-linux-x86-64.so.2"} == set(re.findall(r"^\| `(lib[^`]+)`", section, re.M))


def loaded(pid):
    return {pathlib.Path(line.split()[-1]).name for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()}


def test_the_libraries_of_transports_are_loaded_only_if_needed():
    """Open MPI by ranks that mpirun has started; NCCL and the CUDA driver by ranks on GPUs."""
    transports = re.compile(r"lib(mpi|nccl|cuda)\.so")
    flags = ["--device", "cpu", "--tp", 2, "--ep", 2, "--max-total-tokens", 1024]
    with server.Server(server.FIXTURES / "qwen3_moe", *flags) as running:
        for pid in [running.process.pid, *running.ranks()]:
            assert not [name for name in loaded(pid) if transports.match(name)]
    with server.Server(server.FIXTURES / "qwen3_moe", *flags, prefix=[*server.MPIRUN, "-n", "2"]) as running:
        for pid in server.mpi_ranks(running):
            assert {"mpi"} == {m[1] for name in loaded(pid) if (m := transports.match(name))}


def test_the_page_of_runners_gives_a_tested_runner(runner):
    _, outputs = runner
    (tested,) = [text for command, text in outputs.items() if command.startswith("ctest")]
    assert "100% tests passed, 0 tests failed out of 1" in tested
    (listed,) = [text for command, text in outputs.items() if "my_switchyard backends" in command]
    assert "my_mlp" in listed and "computes the MLP formula row by row" in listed, listed


def test_the_page_of_dispatchers_gives_a_tested_dispatcher(dispatcher):
    _, outputs = dispatcher
    (tested,) = [text for command, text in outputs.items() if command.startswith("ctest")]
    assert "100% tests passed, 0 tests failed out of 1" in tested
    (listed,) = [text for command, text in outputs.items() if "my_switchyard backends" in command]
    assert "my_exchange" in listed and "every rank reads the tokens of all" in listed, listed


def test_own_backends_are_listed_beside_the_built_in_ones(runner, dispatcher):
    text = run(runner[0], "backends", "--model-path", server.FIXTURES / "deepseek_v3_fp8", "--moe-a2a-backend", "deepep",
               "--moe-runner-backend", "my_mlp")
    assert "deepep + my_mlp" in text and "deepep + grouped_mlp" in text
    assert "DeepseekV3ForCausalLM" in text
    assert "--moe-runner-backend my_mlp: reads fp8-block experts" in text
    text = run(dispatcher[0], "backends", "--model-path", server.FIXTURES / "deepseek_v3_fp8", "--moe-a2a-backend",
               "my_exchange")
    assert "my_exchange + grouped_mlp" in text
    assert "paired with --moe-a2a-backend my_exchange by standard → contiguous" in text


def serve_and_check(program, monkeypatch, *flags):
    monkeypatch.setattr(server, "PROGRAM", str(program))
    fixture = server.FIXTURES / "qwen3_moe"
    with server.Server(fixture, "--dtype", "float32", *flags, "--max-total-tokens", 4096) as running:
        check_reference.check(running, fixture)


def test_own_runner_serves(runner, monkeypatch):
    serve_and_check(runner[0], monkeypatch, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--moe-runner-backend",
                    "my_mlp")


def test_own_dispatcher_serves(dispatcher, monkeypatch):
    serve_and_check(dispatcher[0], monkeypatch, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "my_exchange")


def test_own_runner_serves_on_a_gpu(runner, monkeypatch):
    if not has_cuda() or not gpus():
        pytest.skip("a GPU and a build with CUDA are needed")
    serve_and_check(runner[0], monkeypatch, "--device", "cuda", "--moe-runner-backend", "my_mlp")


def test_own_backends_are_in_the_table_of_features(runner, dispatcher):
    text = run(runner[0], "backends", "--markdown")
    gpus_work = "yes | yes | yes" if has_cuda() else "no | no | no"
    rows = [line for line in text.splitlines() if "`my_mlp`" in line]
    assert len(rows) == 1 and rows[0].endswith(f"| yes | yes | {gpus_work} |"), text
    text = run(dispatcher[0], "backends", "--markdown")
    assert any("`my_exchange`" in line and line.endswith("| yes | yes | no | no | no |") for line in text.splitlines()), text


def test_own_names_are_refused_elsewhere():
    code, text = server.fails_to_start("--model-path", server.FIXTURES / "qwen3_moe", "--moe-a2a-backend", "mailbox")
    assert code == 2
    assert "--moe-a2a-backend mailbox: no such backend here, want one of: deepep" in text


def test_names_of_sglang_are_understood_or_refused():
    fixture = server.FIXTURES / "qwen3_moe"
    code, text = server.fails_to_start("--model-path", fixture, "--moe-runner-backend", "aiter")
    assert code == 2 and "--moe-runner-backend aiter needs AMD GPUs" in text
    with server.Server(fixture, "--moe-runner-backend", "triton", "--tp", 2, "--max-total-tokens", 1024) as running:
        assert running.text().count("--moe-runner-backend triton: mapped to grouped_mlp") == 1
        assert running.stop() == 0
