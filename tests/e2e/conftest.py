import sys
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).parent))


def pytest_addoption(parser):
    parser.addoption("--soak-seconds", type=float, default=15, help="duration of the soak test")
    parser.addoption("--board-seconds", type=float, default=20, help="duration of the load for the board and the alerts")
    parser.addoption("--cycles", type=int, default=20, help="releases and updates in test_weight_updates")
    parser.addoption("--kills", type=int, default=20, help="killed workers in test_disaggregation")
