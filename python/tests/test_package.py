"""The installed files: import, console script, program, stubs."""
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
import switchyard

from conftest import FIXTURES, ROOT, SMALL, YARDLING

SCRIPT = pathlib.Path(sys.executable).parent / "switchyard"
PACKAGE = pathlib.Path(switchyard.__file__).parent


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_tests_run_against_the_installed_wheel():
    assert "site-packages" in switchyard.__file__
    assert importlib.metadata.version("switchyard") == switchyard.__version__


def test_the_tag_is_that_of_the_docs_and_auditwheel_agrees():
    distribution = importlib.metadata.distribution("switchyard")
    ((abi, tag),) = re.findall(r"^Tag: (\S+)-(manylinux_\d+_\d+)_x86_64$", distribution.read_text("WHEEL"), re.M)
    number = "".join(map(str, sys.version_info[:2]))
    assert abi == ("cp312-abi3" if sys.version_info >= (3, 12) else f"cp{number}-cp{number}")
    assert re.findall(r"manylinux_\d+_\d+", (ROOT / "docs/install.md").read_text()) == [tag]
    (wheel,) = (ROOT / "dist").glob("switchyard-*.whl")
    shown = subprocess.run([ROOT / "build/wheel/bin/python", "-m", "auditwheel", "show", wheel], capture_output=True, text=True,
                           check=True, env={**os.environ, "PATH": f"{ROOT}/build/wheel/bin:{os.environ['PATH']}"}).stdout
    assert f'"{tag}_x86_64"' in " ".join(shown.split()), shown


def test_import_starts_no_thread_and_imports_no_numpy():
    code = "import os, sys, switchyard; print(len(os.listdir('/proc/self/task')), 'numpy' in sys.modules)"
    assert python(code).split() == ["1", "False"]


def test_the_console_script_is_the_program():
    text = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=True).stdout
    assert text == f"switchyard {switchyard.__version__}\n"
    assert "switchyard serve" in subprocess.run([sys.executable, "-m", "switchyard", "--help"], capture_output=True,
                                                text=True, check=True).stdout


def test_the_program_serves_with_rank_processes():
    command = [SCRIPT, "serve", "--model-path", FIXTURES / "qwen3_moe", "--device", "cpu", "--tp", "2", "--ep", "2",
               "--port", "0", "--max-total-tokens", "1024"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = server.stdout.readline()
        url = line.split()[-1]
        assert line.startswith("Switchyard is ready at http://"), line
        body = {"input_ids": [5, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
        request = urllib.request.Request(url + "/generate", json.dumps(body).encode())
        assert len(json.load(urllib.request.urlopen(request, timeout=60))["output_ids"]) == 4
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()


def test_outputs_are_those_of_the_program():
    flags = ["--model-path", YARDLING, "--device", "cpu", "--cpu-bind", "none", "--log-level", "error"]
    done = subprocess.run([SCRIPT, "generate", *flags, "--prompt", "What is dispatch?", "--max-new-tokens", "12"],
                          capture_output=True, text=True, check=True, timeout=120)
    with switchyard.Engine(model_path=YARDLING, **SMALL) as engine:
        output = engine.generate("What is dispatch?", {"temperature": 0, "max_new_tokens": 12})
    assert done.stdout == "What is dispatch?" + output["text"] + "\n"


def test_stubs_are_installed():
    assert (PACKAGE / "py.typed").exists()
    stub = (PACKAGE / "_core.pyi").read_text()
    assert "class GenerateCall(Call)" in stub and "def shutdown(self)" in stub


def test_the_process_ends_with_an_engine_that_was_not_shut_down():
    code = (f"import switchyard\nengine = switchyard.Engine(model_path={str(FIXTURES / 'qwen3_moe')!r}, **{SMALL!r})\n"
            "stream = engine.generate(input_ids=[5, 6], sampling_params={'max_new_tokens': 500}, stream=True)\n"
            "next(stream)\nprint('end')")
    assert python(code) == "end\n"


def interrupted(code):
    """Runs code that prints a line before it waits, sends SIGINT then, and returns the rest of the output."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 0
        return rest
    finally:
        process.kill()


LONG = "{'max_new_tokens': 4000, 'ignore_eos': True}"
START = f"""
import switchyard
engine = switchyard.Engine(model_path={str(FIXTURES / 'qwen3_moe')!r}, **{SMALL!r})
short = lambda: len(engine.generate(input_ids=[5, 6], sampling_params={{'max_new_tokens': 3, 'ignore_eos': True}})['output_ids'])
print('waits', flush=True)
"""


@pytest.mark.parametrize("wait", [
    f"engine.generate(input_ids=[[5, 6]] * 64, sampling_params={LONG})",
    f"list(engine.generate(input_ids=[[5, 6]] * 64, sampling_params={LONG}, stream=True))",
    f"import asyncio; asyncio.run(engine.async_generate(input_ids=[[5, 6]] * 64, sampling_params={LONG}))",
], ids=["generate", "stream", "async"])
def test_ctrl_c_ends_a_wait_and_the_engine_stays_usable(wait):
    code = START + f"try:\n    {wait}\nexcept KeyboardInterrupt:\n    print('interrupted', short())\n"
    assert interrupted(code) == "interrupted 3\n"


def test_ctrl_c_ends_loading():
    """The generated weights of two layers take seconds to fill."""
    flags = {**SMALL, "tokenizer_path": str(YARDLING), "load_format": "dummy", "json_model_override_args": {"num_hidden_layers": 2}}
    code = f"""
import switchyard, time
print('waits', flush=True)
try:
    switchyard.Engine(model_path={str(ROOT / "bench/models/olmoe-1b-7b")!r}, **{flags!r})
    print('loaded')
except KeyboardInterrupt:
    print('interrupted')
with switchyard.Engine(model_path={str(FIXTURES / 'qwen3_moe')!r}, **{SMALL!r}) as engine:
    print(len(engine.generate(input_ids=[5, 6], sampling_params={{'max_new_tokens': 3, 'ignore_eos': True}})['output_ids']))
"""
    assert interrupted(code) == "interrupted\n3\n"


def test_a_forked_child_may_not_use_the_engine():
    code = START.replace("print('waits', flush=True)", "") + """
import os
child = os.fork()
if child == 0:
    try:
        short()
    except switchyard.UnavailableError as error:
        os._exit(7 if error.hint else 1)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), short())
"""
    assert python(code) == "7 3\n"
