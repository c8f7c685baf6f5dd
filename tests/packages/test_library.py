"""The Debian package of the library, switchyard-dev: a project with the C++ example is built with it in a minimal system and
generates text."""
import os
import re
import shutil
import subprocess
import sys

import pytest

import debian_root
from debian_root import ROOT

sys.path.insert(0, str(ROOT / "tests/e2e"))
import documented  # noqa: E402

COMPILER = ["build-essential", "cmake", "ninja-build"]
TOOLKIT = "/usr/local/cuda"


@pytest.fixture(scope="module")
def packages():
    """The packages of the program and of the library."""
    return [ROOT / debian_root.script("package", *options) for options in ([], ["--dev"])]


@pytest.fixture(scope="module")
def root(packages):
    if os.geteuid() != 0:
        pytest.skip("root is needed for debootstrap and chroot")
    cache = (ROOT / "build/release/CMakeCache.txt").read_text()
    # With device code, projects need CUDA's toolkit, which Debian does not have.
    toolkit = [TOOLKIT] if re.search("^SWITCHYARD_CUDA:BOOL=ON$", cache, re.M) else []
    if toolkit and not os.path.exists(TOOLKIT):
        pytest.skip(f"the library has device code, and {TOOLKIT} is missing")
    with debian_root.DebianRoot(ROOT / "build/packages/library-root", toolkit) as root:
        root.path("/build/packages").mkdir(parents=True)
        for package in packages:
            shutil.copy(package, root.path("/build/packages"))
        root.run("apt-get", "update")
        root.run("apt-get", "install", "-y", "--no-install-recommends", *COMPILER)
        yield root


def listed(package):
    return subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout


def test_it_has_the_library_and_nothing_of_the_program(packages):
    program, library = map(listed, packages)
    files = {line.split()[-1] for line in library.splitlines() if not line.startswith("d")}
    assert {"./usr/include/switchyard/moe/runners/runner.h", "./usr/lib/libswitchyard_engine.a",
            "./usr/lib/cmake/switchyard/switchyardConfig.cmake"} <= files
    assert not files & {line.split()[-1] for line in program.splitlines()}, "dpkg refuses a file of two packages"
    assert {line.split()[1] for line in library.splitlines()} == {"root/root"}


def test_the_install_page_installs_it(root):
    (command,) = [c.text for c in documented.commands("docs/install.md") if "switchyard-dev_" in c.text]
    root.run("bash", "-ec", f"cd / && {command.removeprefix('sudo ')}")


def test_the_example_builds_and_generates(root):
    (project,) = [lines for language, _, lines in documented.blocks((ROOT / "docs/install.md").read_text())
                  if language == "cmake"]
    folder = root.path("/build/offline")
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text("\n".join(project) + "\n")
    shutil.copy(root.path("/usr/share/doc/switchyard-dev/offline.cc"), folder)
    root.run("cmake", "-S", "/build/offline", "-B", "/build/out", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
    root.run("ninja", "-C", "/build/out")
    printed = root.run("/build/out/offline", "/usr/share/switchyard/models/yardling", "What is dispatch?")
    assert "\nWhat is dispatch?" in "\n" + printed, printed


def test_removal_leaves_nothing(root):
    root.run("apt-get", "purge", "-y", "switchyard-dev", "switchyard")
    shutil.rmtree(root.path("/build"))
    assert root.run("find", "/usr", "/etc", "-xdev", "-iname", "*switchyard*", "-o", "-name", "libxgrammar*") == ""
