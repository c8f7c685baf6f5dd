"""The examples of examples/python and of the pages run with the installed package."""
import base64
import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT, YARDLING


def test_rollout(tmp_path):
    command = [sys.executable, ROOT / "examples/python/rollout.py", "--model-path", YARDLING, "--steps", "2", "--pairs", "1",
               "--rollouts", tmp_path / "rollouts.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[1].startswith("step 1: reward ") and lines[1].endswith("weights 6")
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    config = json.loads((YARDLING / "config.json").read_text())
    width = config["num_hidden_layers"] * config["num_experts_per_tok"]
    for row in rows:  # a row of experts for each token except the last one
        meta = row["meta_info"]
        assert [logprob[1] for logprob in meta["output_token_logprobs"]] == row["output_ids"]
        tokens = len(meta["prompt_token_ids"]) + len(row["output_ids"])
        assert len(base64.b64decode(meta["routed_experts"])) == 4 * width * (tokens - 1)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_code_of_the_pages(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    blocks = [block for block in blocks if "import switchyard" in block]
    assert blocks
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout, done.stderr
