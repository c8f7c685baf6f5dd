"""Every command of README.md and of the pages for a first start is run.

A command is run with a small model in place of DIR, on free ports, and with small sizes. `serve` for GPUs or several hosts
is run with --dry-run, since one machine without GPUs must suffice. Commands that install something or need another program
(apt-get, systemctl, podman) are run by ./test --packages. A command that no rule covers fails the test.
"""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading

import pytest

import documented
import gguf_file
import server
import test_train
from server import FIXTURES, MPIRUN, ROOT

PROGRAM = os.path.abspath(server.PROGRAM)
YARDLING = ROOT / "models/yardling"
SMALL = "--max-total-tokens 4096"
TINY_OLMOE = {"num_hidden_layers": 1, "num_experts": 8, "hidden_size": 256, "intermediate_size": 64, "vocab_size": 512,
              "eos_token_id": 5}

# Commands that another test runs, by their start.
ELSEWHERE = {
    "cmake --install": "tests/e2e/test_install.py",
    "cmake -S examples/custom_runner": "tests/e2e/test_install.py",
    "ninja -C build/mine": "tests/e2e/test_install.py",
    "kubectl apply -f deploy/kubernetes": "tests/e2e/test_deploy.py",
    "sbatch deploy/slurm.sbatch": "tests/e2e/test_deploy.py",
    "scripts/package": "tests/packages/test_debian.py",
    "sudo ": "tests/packages/test_debian.py",
    "switchyard serve --config /etc/switchyard/": "tests/packages/test_debian.py",
    "scripts/container": "tests/packages/test_container.py",
    "podman ": "tests/packages/test_container.py",
    "import switchyard": "python/tests/test_examples.py",
    "scripts/wheel": "test",
    "pip install dist/": "test",
}


class Run:
    """What the commands of a document share: a folder, and a server of Yardling."""

    def __init__(self, folder, running):
        self.folder, self.running = folder, running
        self.port = running.url.rsplit(":", 1)[1]

    def local(self, text, model=FIXTURES / "olmoe"):
        """The command with paths, ports and addresses of this test."""
        text = re.sub(r"(?<![\w/.-])(?:build/release/)?switchyard(?= )", PROGRAM, text)
        text = re.sub(r"(?<= )(bench/models/|models/yardling)", rf"{ROOT}/\1", text)
        text = re.sub(r"\bDIR\b", str(model), text)
        text = re.sub(r"http://[\d.]+:30000", self.running.url, text)
        return text.replace("--port 30000", f"--port {self.port}")

    def sh(self, text, timeout=120, **env):
        done = subprocess.run(["bash", "-ec", text], cwd=self.folder, capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **env})
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def serves(self, text, cwd=None):
        """Runs a server until it is ready, and stops it."""
        process = subprocess.Popen(["bash", "-c", "exec " + text], cwd=cwd or self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        errors = []
        reader = threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True)
        reader.start()
        try:
            ready = any("is ready at" in line for line in process.stdout)
            assert ready, text + "\n" + "".join(errors)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def dry(run, text):
    text = f"{run.local(text, documented.LAYOUT_MODEL)} {shlex.join(documented.LAYOUT_FLAGS)}"
    if "--dry-run" not in text:
        text += " --dry-run"
    if text.startswith("mpirun"):
        text = " ".join(MPIRUN) + text.removeprefix("mpirun")
    printed = run.sh(text)
    assert printed.startswith("model ") and "\nlayout " in printed, printed


def serve(run, text):
    if re.search(r"--device cuda|--nnodes|--dry-run", text):
        return dry(run, text)
    return run.serves(f"{run.local(text)} --port 0 {SMALL}")


def start_script(run, text):
    """./run: sets up, builds if needed, and serves. It must be the program of this test that it finds."""
    if pathlib.Path(PROGRAM) != ROOT / "build/release/switchyard":
        pytest.skip("./run starts build/release/switchyard, and this test another program")
    text = text.replace("/path/to/Qwen3-30B-A3B", str(FIXTURES / "qwen3_moe"))
    return run.serves(f"{text} --port 0 {SMALL}", cwd=ROOT)


def curl(run, text, output):
    """Requests to a server of Yardling. The documented output is the actual one."""
    printed = run.sh(run.local(text))
    if output:
        assert printed.strip() == output
    else:
        assert json.loads(printed)["choices"], printed


def python(run, text):
    code = re.sub(r"http://127\.0\.0\.1:30000", run.running.url, text)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def one_batch(run, text):
    if "--device cuda" in text:  # flags are read before the GPU is opened
        done = subprocess.run(["bash", "-c", run.local(text)], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        assert done.returncode == 2 and "no GPU was found" in done.stderr, done.stderr
        return
    text = re.sub(r"--input-len \d+", "", text) + " --input-len 16 --output-len 2 --repeat 1 --device cpu"
    if "olmoe-1b-7b" in text:
        text += f" --json-model-override-args {shlex.quote(json.dumps(TINY_OLMOE))}"
    assert "decode" in run.sh(run.local(text))


def train(run, text):
    (run.folder / "config.json").write_text(json.dumps(test_train.CONFIG))
    run.sh(f"{PROGRAM} train-tokenizer {ROOT}/docs/moe.md --output tokenizer --vocab-size 384")
    (run.folder / "train.yaml").write_text(
        f"model: config.json\ntokenizer-path: tokenizer\ndata: [{ROOT}/docs/moe.md]\nlength: 64\nsteps: 2\n"
        "rows-per-step: 4\nrows-per-pass: 2\n")
    run.sh(run.local(text))
    assert (run.folder / "run/final/model.safetensors").exists()


def gguf(run, text):
    """The file of docs/gguf.md and its parts have the weights of a reference checkpoint."""
    parts = 3 if "-of-" in text else 1
    gguf_file.write(run.folder / "model-Q4_K_M.gguf" if parts == 1 else run.folder / "model.gguf",
                    *gguf_file.convert(FIXTURES / "olmoe"), splits=parts)
    return run.serves(f"{run.local(text)} --port 0 {SMALL}")


def configure(run, text):
    """Configures a build folder of its own, and checks there that ninja has the target."""
    folder = pathlib.Path(PROGRAM).parent / "tests/documented"
    if text.startswith("cmake"):
        return run.sh(f"cd {ROOT} && {text} -B {folder}")
    return run.sh(text.replace("build/release", str(folder)).replace("ninja ", "ninja -n "))


def both_nodes(run, text):
    """Two processes of one engine on this machine: the first command ends with &."""
    first, second = text.split("&\n")
    port = server.free_port()
    first, second = (run.local(part).replace("127.0.0.1:5000", f"127.0.0.1:{port}") for part in (first, second))
    other = subprocess.Popen(["bash", "-c", "exec " + first], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run.serves(f"{second} --port 0")
        assert other.wait(30) == 0
    finally:
        other.kill()
        other.wait()


# How the other commands are run, by the first pattern that matches at the start.
RULES = [
    (r"\./run\b", start_script),
    (r"curl ", curl),
    (r"(build/release/)?switchyard serve .*127\.0\.0\.1:5000 &\n", both_nodes),
    (r"build/release/switchyard serve --model-path model-\S+\.gguf", gguf),
    (r"(build/release/)?switchyard serve ", serve),
    (r"mpirun .*switchyard serve ", dry),
    (r"(build/release/)?switchyard bench one-batch ", one_batch),
    (r"build/release/switchyard bench serve ", lambda run, text: run.sh(
        f"{run.local(text)} --num-prompts 4 --random-input-len 8 --random-output-len 4 --request-rate 100".replace(
            "--request-rate 4 ", ""))),
    (r"build/release/switchyard bench kernels", lambda run, text: run.sh(
        f"{run.local(text + ' ')} --device cpu --cpu-threads 1 --filter 'bfloat16 1 x 2048 x 2048'")),
    (r"build/release/switchyard eplb simulate ", lambda run, text: run.sh(
        run.local(text).replace("RECORDING", f"{ROOT}/tests/data/eplb/traces.safetensors") +
        " --tensor shift --nodes 4 --groups 8 --physical 288")),
    (r"build/release/switchyard generate ", lambda run, text: run.sh(f"{run.local(text, YARDLING)} {SMALL}")),
    (r"build/release/switchyard train ", train),
    (r"build/release/switchyard chat", lambda run, text: run.sh(f"{run.local(text)} --once Hello --temperature 0")),
    (r"openssl rand ", lambda run, text: run.sh(text)),
    (r"scripts/setup", lambda run, text: run.sh(f"cd {ROOT} && {text}", timeout=300)),
    (r"cmake --preset release|ninja -C build/release", configure),
]


def gathered():
    """Commands once each. Two commands of which the first ends with & are one."""
    found, seen = [], set()
    for command in documented.all_commands():
        if found and found[-1].text.endswith("&"):
            last = found.pop()
            command = documented.Command(last.page, last.line, "sh", f"{last.text}\n{command.text}")
        if command.text not in seen:
            found.append(command)
            seen.add(command.text)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with server.Server(YARDLING, "--device", "cpu", "--tp", 2, "--ep", 2, "--max-total-tokens", 8192,
                       "--served-model-name", "default") as running:
        yield Run(tmp_path_factory.mktemp("commands"), running)


def rule_of(command):
    for pattern, how in RULES:
        if re.match(pattern, command.text):
            return how
    return None


@pytest.mark.parametrize("command", gathered(), ids=str)
def test_the_command_works(command, run):
    for start, file in ELSEWHERE.items():
        if command.text.startswith(start):
            assert (ROOT / file).exists()
            return
    how = python if command.language == "python" else rule_of(command)
    assert how, f"no rule of this test covers {command}"
    if how is curl:
        curl(run, command.text, command.output)
    else:
        how(run, command.text)


def other_commands():
    """The commands of the other pages that start a server, plan or simulate one."""
    start = re.compile(r"(build/release/)?switchyard (serve|plan|simulate) (?!\.\.\.)")
    found = {c.text: c for page in documented.other_pages() for c in documented.commands(page) if start.match(c.text)}
    return list(found.values())


@pytest.mark.parametrize("command", other_commands(), ids=str)
def test_the_flags_of_the_other_pages_are_accepted(command, run):
    """`serve` runs with --dry-run, which reads no weights and starts no rank."""
    text = re.sub(r"(?<= )(OUT|TARGET|run/final|Qwen/\S+)(?= |$)", "DIR", command.text)
    if "EAGLE3" in text:  # no reference checkpoint has such a head
        done = subprocess.run(["bash", "-c", run.local(text) + " --dry-run"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and re.search("HEAD.*: No such file", done.stderr), done.stderr
    elif " serve " in text:
        (run.folder / "tokens.json").write_text("[1, 2, 3]")  # of --speculative-token-map
        # yardling has a multi-token-prediction layer
        dry(run, text.replace("DIR", "models/yardling") if "NEXTN" in text else text)
    else:
        text = re.sub(r"\bDIR/config.json|\b\w+\.json\b", str(documented.LAYOUT_MODEL), text)
        run.sh(run.local(text, documented.LAYOUT_MODEL))


def test_the_documents_have_commands_of_every_rule():
    texts = [command.text for command in gathered()]
    for pattern, _ in RULES:
        assert any(re.match(pattern, text) for text in texts), f"{pattern}: the rule covers no command"
    for start in ELSEWHERE:
        assert any(text.startswith(start) for text in texts), f"{start}: the rule covers no command"
