"""Authentication of nodes by a shared secret, and foreign connections to the port of node 0."""
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from server import FIXTURES, PROGRAM, OtherNode, Server, fails_to_start, free_port

MODEL = FIXTURES / "olmoe"
FLAGS = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--mem-fraction-static", 0.2, "--dist-timeout", 90]
MAGIC = b"YARDNET3"


@pytest.fixture
def secrets(tmp_path):
    """Two secret files, each as the flags that select it."""
    flags = []
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_text(f"{name} secret of several nodes\n")
        path.chmod(0o600)
        flags.append(["--dist-secret-file", path])
    return flags


def node0(address, *flags):
    return Server(MODEL, *FLAGS, "--nnodes", 2, "--dist-init-addr", address, *flags)


def generates(server):
    status, answer = server.request("/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}})
    return status == 200 and len(answer["output_ids"]) == 4


def connect(address, seconds=60):
    host, port = address.rsplit(":", 1)
    end = time.time() + seconds
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=30)
        except OSError:
            if time.time() > end:
                raise
            time.sleep(0.02)


def opening(node, has_secret):
    """The first message of a handshake, from node `node` to node 0."""
    return MAGIC + struct.pack("<IiiI", 1, node, 0, has_secret) + os.urandom(32)


class ForeignConnections:
    """Opens foreign connections of each kind, one after another, as soon as a process listens at the address."""

    def __init__(self, address):
        self.address = address
        self.held, self.answers, self.failure = [], {}, None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            for _ in range(20):
                self.held.append(connect(self.address))  # silent
            connect(self.address).close()  # a port scanner
            for name, data in {"http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "noise": os.urandom(4096),
                               "previous version": struct.pack("<Q", 17) + b"switchyard-node-1",
                               "no secret": opening(1, 0), "no proof": opening(1, 1) + bytes(32),
                               "another rank": opening(7, 1) + os.urandom(32)}.items():
                with connect(self.address) as s:
                    with contextlib.suppress(OSError):  # the server may close the connection during the send
                        s.sendall(data)
                    self.answers[name] = self._receive(s)
        except Exception as error:
            self.failure = error

    @staticmethod
    def _receive(s):
        data = b""
        with contextlib.suppress(OSError):
            while piece := s.recv(4096):
                data += piece
        return data

    def finish(self):
        self.thread.join()
        for s in self.held:
            s.close()
        if self.failure:
            raise self.failure
        return self.answers


def test_strangers_neither_end_nor_join_the_engine(secrets):
    address = f"127.0.0.1:{free_port()}"
    foreign = ForeignConnections(address)
    late = {}

    def start_node1():  # after all foreign connections
        foreign.thread.join()
        late["node1"] = OtherNode(MODEL, address, *FLAGS, *secrets[0])

    starter = threading.Thread(target=start_node1)
    starter.start()
    try:
        with node0(address, *secrets[0]) as server:
            assert generates(server)
            answers = foreign.finish()
            text = server.text()
            assert server.stop() == 0
            assert late["node1"].wait() == 0
    finally:
        starter.join()
        late["node1"].__exit__()
    for name in ("http", "noise", "previous version"):
        assert answers[name] == b"", name
    assert struct.unpack_from("<I", answers["no secret"], 8) == (1,)  # kSecretWanted
    for name in ("no proof", "another rank"):
        assert len(answers[name]) == 48 + 36
        assert answers[name][48:] == struct.pack("<I", 3) + bytes(32)  # kWrongSecret, and no proof
    assert "127.0.0.1 sent something other than a handshake of this version" in text
    assert "node 1 (127.0.0.1) and node 0 have different secrets" in text
    assert "nodes are not authenticated" not in text


def test_nodes_with_another_or_no_secret_are_refused_and_the_wait_continues(secrets):
    address = f"127.0.0.1:{free_port()}"
    ends = []

    def start_nodes():
        for flags in (secrets[1], []):
            with OtherNode(MODEL, address, *FLAGS, *flags) as node:
                ends.append((node.wait(), node.text()))
        ends.append(OtherNode(MODEL, address, *FLAGS, *secrets[0]))

    starter = threading.Thread(target=start_nodes)
    starter.start()
    try:
        with node0(address, *secrets[0]) as server:
            assert generates(server)
            assert server.stop() == 0
    finally:
        starter.join()
        with ends[2] as node1:
            assert node1.wait() == 0
    assert ends[0][0] == 2 and f"node 1 and node 0 at {address} have different secrets" in ends[0][1]
    assert ends[1][0] == 2 and f"node 0 at {address} has a secret and node 1 has none" in ends[1][1]
    assert "--dist-secret-file" in ends[1][1]


def test_a_node_with_a_secret_does_not_join_node_0_without_one(secrets):
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(MODEL, address, *FLAGS, *secrets[0]) as node1:
        code, text = fails_to_start("--model-path", MODEL, *FLAGS, "--port", 0, "--nnodes", 2, "--dist-init-addr", address,
                                    "--dist-timeout", 8)
        assert node1.wait() == 2
        assert f"node 1 has a secret and node 0 at {address} has none" in node1.text()
    assert code == 1
    assert "for node 1 of 2; refused: node 1 (127.0.0.1) has a secret and node 0 has none" in text


def test_without_a_secret_there_is_one_warning(secrets):
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(MODEL, address, *FLAGS) as node1, node0(address) as server:
        assert generates(server)
        for text in (server.text(), node1.text()):
            assert text.count("--dist-secret-file") == 1, text
        assert server.stop() == 0 and node1.wait() == 0


def test_a_secret_can_be_required(secrets, tmp_path):
    flags = ["--model-path", MODEL, *FLAGS, "--nnodes", 2, "--dist-init-addr", "127.0.0.1:1", "--require-dist-secret"]
    code, text = fails_to_start(*flags)
    assert code == 2 and "--require-dist-secret: the 2 nodes have no secret" in text
    (tmp_path / "short").write_text("short\n")
    code, text = fails_to_start(*flags, "--dist-secret-file", tmp_path / "short")
    assert code == 2 and "short: has 5 bytes, want at least 16" in text
    code, text = fails_to_start(*flags, "--dist-secret-file", tmp_path / "none")
    assert code == 2 and "none: No such file" in text


@pytest.mark.parametrize("node", [0, 1])
def test_sigterm_ends_the_wait_for_other_nodes(node):
    address = f"127.0.0.1:{free_port()}"
    command = [PROGRAM, "serve", "--model-path", str(MODEL), *map(str, FLAGS), "--port", "0", "--nnodes", "2", "--node-rank",
               str(node), "--dist-init-addr", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "waiting for 1 more nodes" in line or "connects to node 0" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(30) == 128 + signal.SIGTERM


@pytest.mark.parametrize("how", ["signal", "deadline"])
def test_a_wait_in_mpi_init_ends(how, tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun (openmpi-bin)")
    # The other process never calls MPI_Init.
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "1", PROGRAM, "serve", "--model-path", str(MODEL),
               *map(str, FLAGS), "--port", "0", "--dist-timeout", "2" if how == "deadline" else "90",
               ":", "-n", "1", "sleep", "1000"]
    with open(tmp_path / "log", "w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        if how == "signal":
            while not (pid := rank_of(process.pid)):
                time.sleep(0.05)
            time.sleep(1)  # until the rank is in MPI_Init; before that, the signal would end it
            os.kill(pid, signal.SIGTERM)
        assert process.wait(60) != 0
        log.seek(0)
        text = log.read()
    if how == "signal":
        assert "the start was interrupted by signal 15" in text, text
    else:
        assert "rank 0 waited 2 s in MPI_Init for the other 1 processes that mpirun started" in text, text


def rank_of(parent):
    out = subprocess.run(["ps", "--ppid", str(parent), "-o", "pid=,args="], capture_output=True, text=True).stdout
    return next((int(line.split()[0]) for line in out.splitlines() if PROGRAM in line), None)
