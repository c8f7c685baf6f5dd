"""Two-batch overlap: served tokens and log-probabilities equal those of transformers, and requests in flight do not change
them."""
import concurrent.futures
import json

import pytest

from server import FIXTURES, Server
from test_reference import check_reference

LAYOUTS = {
    "none": ["--tp", 2, "--ep", 2],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "two groups": ["--tp", 4, "--ep", 4, "--dp-size", 2, "--enable-dp-attention", "--moe-dense-tp-size", 1,
                   "--moe-a2a-backend", "deepep"],
}
