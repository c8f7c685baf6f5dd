import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
from tool_server import tool_server  # noqa: E402

# litellm has a copy of the list of prices that it would download.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, default=70, help="generated requests per operation")


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "ignore")  # of the clients


@pytest.fixture(scope="module")
def server():
    with tool_server() as server:
        yield server
