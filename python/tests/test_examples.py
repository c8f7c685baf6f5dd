"""The examples of examples/python run with the installed package."""
import subprocess
import sys

from conftest import ROOT, YARDLING


def test_rollout():
    command = [sys.executable, ROOT / "examples/python/rollout.py", "--model-path", YARDLING, "--steps", "2", "--pairs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[1].startswith("step 1: reward ") and lines[1].endswith("weights 6")
