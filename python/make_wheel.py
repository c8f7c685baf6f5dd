#!/usr/bin/env python3
"""Packs the wheel: python/make_wheel.py --package build/release/python/switchyard --out dist. Called by scripts/wheel.

The folder has the libraries and the program that CMake has built. This script adds the Python sources and type stubs,
writes the wheel, and repairs it: auditwheel copies shared libraries that the manylinux policy does not list into the
wheel, and sets its tag.
"""

import argparse
import base64
import hashlib
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "python/switchyard"

# Libraries of every manylinux system.
NOT_COPIED = ("libc.", "libm.", "libgcc_s.", "libstdc++.", "libpthread.", "libdl.", "librt.", "libresolv.", "libz.")

METADATA = """\
Metadata-Version: 2.1
Name: switchyard
Version: {version}
Summary: Serves and trains Mixture-of-Experts language models with expert parallelism
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}
"""

DESCRIPTION = """\
Switchyard serves and trains Mixture-of-Experts language models with expert parallelism.

    import switchyard

    with switchyard.Engine(model_path="DIR", tp_size=2, ep_size=2) as engine:
        print(engine.generate("The router", {"max_new_tokens": 16})["text"])

The command `switchyard` is the C++ program: `switchyard serve --model-path DIR`.
"""


def add_sources(package):
    """Copies the Python sources beside the libraries, and writes the stub of the extension module."""
    for stale in [*package.glob("*.py"), *package.glob("*.pyi")]:
        stale.unlink()
    for source in sorted(SOURCES.glob("*")):
        if source.suffix in (".py", ".typed"):
            shutil.copy(source, package)
    sys.path.insert(0, str(package.parent))
    sys.dont_write_bytecode = True
    subprocess.run([sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "switchyard._core", "-o", package / "_core.pyi"],
                   env={**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}, check=True)
    with (package / "_core.pyi").open("a") as stub:
        stub.write("\n__version__: str\n")  # stubgen omits names with underscores
    return importlib.import_module("switchyard._core")


def tag_of(package):
    """The tag before auditwheel sets the platform."""
    [extension] = package.glob("_core.*.so")
    if ".abi3." in extension.name:
        return "cp312-abi3-linux_x86_64"
    number = re.search(r"cpython-(\d+)", extension.name).group(1)
    return f"cp{number}-cp{number}-linux_x86_64"


def licenses(package):
    """License texts by file name: the project's, XGrammar's, and those of the Debian packages whose libraries are copied."""
    texts = {"LICENSE": (ROOT / "LICENSE").read_text()}
    for name in ("LICENSE", "NOTICE"):
        texts[f"xgrammar-{name}"] = (ROOT / "build/third_party/xgrammar" / name).read_text()
    lines = subprocess.run(["ldd", package / "libswitchyard.so"], capture_output=True, text=True, check=True).stdout
    files = [pathlib.Path(path).resolve().name for soname, path in re.findall(r"(\S+) => (/\S+)", lines)
             if not soname.startswith(NOT_COPIED)]
    if shutil.which("dpkg-query") and files:
        found = subprocess.run(["dpkg-query", "-S", *(f"*/{name}" for name in files)], capture_output=True, text=True).stdout
        for debian in sorted(set(re.findall(r"^([^:\s]+)", found, re.M))):
            path = pathlib.Path("/usr/share/doc") / debian / "copyright"
            if path.is_file():
                texts[f"{debian}.txt"] = path.read_text()
    return texts


def write_wheel(package, version, out):
    info = f"switchyard-{version}.dist-info"
    tag = tag_of(package)
    files = {f"switchyard/{path.relative_to(package)}": path.read_bytes()
             for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts}
    files[f"{info}/METADATA"] = METADATA.format(version=version, description=DESCRIPTION).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: switchyard\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nswitchyard = switchyard._program:main\n"
    files[f"{info}/top_level.txt"] = b"switchyard\n"
    for name, text in licenses(package).items():
        files[f"{info}/licenses/{name}"] = text.encode()
    record = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}")
    record.append(f"{info}/RECORD,,")
    files[f"{info}/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = out / f"switchyard-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same bytes for the same content
            executable = name.endswith(".so") or "/bin/" in name
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return wheel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    core = add_sources(args.package.resolve())
    args.out.mkdir(exist_ok=True)
    for stale in args.out.glob("switchyard-*.whl"):
        stale.unlink()
    with tempfile.TemporaryDirectory() as folder:
        wheel = write_wheel(args.package.resolve(), core.__version__, pathlib.Path(folder))
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", args.out, wheel]
        done = subprocess.run(repair, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}{done.stderr}wheel: auditwheel refuses the wheel")
    [wheel] = args.out.glob("switchyard-*.whl")
    print(f"wheel: {wheel}, {wheel.stat().st_size / 2**20:.1f} MiB, {'with' if core.has_device_code else 'without'} device code")


if __name__ == "__main__":
    main()
