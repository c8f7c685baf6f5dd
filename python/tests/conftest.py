"""Tests of the installed package: ./test --wheel. They never import the sources beside them."""

import pathlib

import pytest

import switchyard

ROOT = pathlib.Path(__file__).resolve().parents[2]
YARDLING = ROOT / "models/yardling"
FIXTURES = ROOT / "tests/data/fixtures"
POOLING = ROOT / "tests/data/pooling"

GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
# Small enough for several engines at once.
SMALL = {"device": "cpu", "cpu_bind": "none", "cpu_threads_per_rank": 1, "max_total_tokens": 4096}


@pytest.fixture(scope="session")
def engine():
    """Yardling on two ranks, half of the experts each."""
    with switchyard.Engine(model_path=YARDLING, tp_size=2, ep_size=2, moe_a2a_backend="deepep", device="cpu",
                           max_total_tokens=16384) as running:
        yield running
