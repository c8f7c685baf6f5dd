import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, default=70, help="generated requests per operation")
