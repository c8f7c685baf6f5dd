"""Notifications for a service manager (sd_notify), and `serve --dry-run` as a command."""
import pathlib
import socket
import subprocess

import pytest

import server
from server import FIXTURES, OtherNode, Server, fails_to_start, free_port

MODEL = FIXTURES / "olmoe"
FLAGS = ["--device", "cpu", "--tp", 2, "--ep", 2, "--max-total-tokens", 1024]


class Manager:
    """The socket of a service manager. `environment`: variables of the service."""

    def __init__(self, path, **variables):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(60)
        self.environment = {"NOTIFY_SOCKET": str(path), **variables}

    def wait_for(self, line):
        """Receives messages until one has the line. Returns the lines of all of them."""
        received = []
        while line not in received:
            received += self.socket.recv(4096).decode().split("\n")
        return received


@pytest.fixture
def manager(tmp_path):
    return Manager(tmp_path / "notify", WATCHDOG_USEC="1000000")


def test_the_states_of_a_server_are_sent(manager):
    with Server(MODEL, *FLAGS, "--served-model-name", "small", env=manager.environment) as running:
        lines = manager.wait_for("READY=1")
        assert "STATUS=loading weights: 0 %" in lines and "WATCHDOG=1" not in lines
        assert f"STATUS=serves small at {running.url}" in lines
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        for pid in running.ranks():  # ranks must not notify in the server's place
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in variables and b"WATCHDOG" not in variables
        assert running.stop() == 0
        assert "STATUS=finishing open requests" in manager.wait_for("STOPPING=1")


def test_another_node_is_ready_when_it_has_joined(manager, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(MODEL, address, *FLAGS, env=manager.environment) as other:
        with Server(MODEL, *FLAGS, "--nnodes", 2, "--node-rank", 0, "--dist-init-addr", address) as running:
            assert "STATUS=node 1 of 2 of an engine" in manager.wait_for("READY=1")
            manager.wait_for("WATCHDOG=1")
            assert running.stop() == 0
        assert other.wait() == 0


def test_an_invalid_socket_is_an_error(monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", "notify")
    code, text = fails_to_start("--model-path", MODEL)
    assert code == 2 and "NOTIFY_SOCKET=notify" in text


def test_a_dry_run_prints_the_layout_and_starts_nothing():
    done = subprocess.run([server.PROGRAM, "serve", "--model-path", MODEL, *map(str, FLAGS), "--dry-run"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["model", "layout", "ranks", "device", "experts", "formats", "memory", "limits", "address"]


@pytest.mark.parametrize("flags, error", [
    (["--tp", 2, "--ep", 3], "--ep 3 does not divide --tp 2"),
    (["--max-total-tokens", 10**12], "--max-total-tokens"),
    (["--tokenizer-path", "/nonexistent"], "/nonexistent"),
    (["--tp", 2, "--nnodes", 2, "--dist-init-addr", "x:1", "--enable-elastic-ep", "--max-rank-deaths", "x"], "x"),
    (["--tp", 2, "--nnodes", 3, "--node-rank", 1, "--dist-init-addr", "x:1", "--pp-size", 2],
     "--nnodes 3 does not divide the 4 ranks of --pp-size 2 and --tp-size 2"),
    (["--tp", 2, "--ep", 2, "--nnodes", 2, "--dist-init-addr", "x:1", "--moe-a2a-backend", "mooncake"],
     "--moe-a2a-backend mooncake: supported on one host only"),
    (["--speculative-moe-a2a-backend", "deepep"], "--speculative-moe-a2a-backend deepep: needs a draft model"),
    (["--elastic-ep-backend", "mooncake", "--disable-elastic-ep"], "exclude each other"),
    (["--expert-distribution-recorder-mode", "stat_approx", "--moe-a2a-backend", "fused"], "want stat"),
    (["--no-such-flag"], "there is no flag --no-such-flag")])
def test_a_dry_run_finds_the_errors_of_the_start(flags, error):
    code, text = fails_to_start("--model-path", MODEL, *flags, "--dry-run")
    assert code == 2 and error in text
