"""The examples of examples/python and of the pages run with the installed package."""
import re
import subprocess
import sys

import pytest

from conftest import ROOT, YARDLING


def test_rollout():
    command = [sys.executable, ROOT / "examples/python/rollout.py", "--model-path", YARDLING, "--steps", "2", "--pairs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[1].startswith("step 1: reward ") and lines[1].endswith("weights 6")


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_code_of_the_pages(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    blocks = [block for block in blocks if "import switchyard" in block]
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout, done.stderr
