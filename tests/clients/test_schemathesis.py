"""Schemathesis sends generated requests, valid and invalid, to every operation of /openapi.json.

No response may be a server error, or differ from its schema.
"""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from server import Server

HERE = pathlib.Path(__file__).resolve().parent
YARDLING = HERE.parents[1] / "models" / "yardling"
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "unsupported_method"]


@pytest.mark.parametrize("flags", [[], ["--reasoning-parser", "qwen3", "--tool-call-parser", "qwen25"]],
                         ids=["plain", "parsers"])
def test_no_response_breaks_its_schema(request, tmp_path, flags):
    examples = request.config.getoption("--examples")
    with Server(YARDLING, "--max-total-tokens", 8192, "--context-length", 256, "--device", "cpu",
                "--served-model-name", "small", *flags,
                env={"SWITCHYARD_TORCH_PROFILER_DIR": str(tmp_path)}) as server:
        command = [pathlib.Path(sys.executable).with_name("schemathesis"), "run", server.url + "/openapi.json",
                   "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-examples", examples,
                   "--exclude-path", "/pause_generation",  # other requests would wait for its end
                   "--seed", 1, "--workers", 2, "--request-timeout", 60, "--no-color", "--continue-on-failure",
                   "--suppress-health-check", "all",
                   "--exclude-path", "/release_memory_occupation"]  # other requests would wait
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, text=True, capture_output=True,
                              env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE),
                                   "PROFILE_DIR": str(tmp_path)})
        print(done.stdout[-20000:], done.stderr[-5000:])
        assert done.returncode == 0
        assert server.process.poll() is None, server.text()
        server.wait_idle()
        assert sum(map(int, re.findall(r"(\d+) generated", done.stdout))) > 10 * examples
