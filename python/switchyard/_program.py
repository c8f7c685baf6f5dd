"""The console script `switchyard`: replaces this process by the C++ program of the package."""

import os
import pathlib
import sys


def program() -> pathlib.Path:
    """The C++ program. Its ranks run it again, so it is a program of its own and not this interpreter."""
    return pathlib.Path(__file__).parent / "bin" / "switchyard"


def main() -> None:
    path = program()
    if not os.access(path, os.X_OK):  # some installers drop the mode
        path.chmod(0o755)
    os.execv(path, ["switchyard", *sys.argv[1:]])
