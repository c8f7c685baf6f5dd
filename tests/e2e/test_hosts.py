"""One engine on two hosts (network namespaces), and with ranks started by mpirun."""
import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from server import FIXTURES, MPIRUN, PROGRAM, OtherNode, Server, fails_to_start, free_port, have_ended, mpi_ranks

MODEL = FIXTURES / "olmoe"
FLAGS = ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep", "--mem-fraction-static", 0.2, "--dist-timeout", 60]
# Prompts of 1, 35 and 90 tokens, each generated greedily and with sampling.
PROMPTS = [[3], list(range(5, 40)), [7, 8, 9] * 30]


def answers(server):
    out = []
    for temperature in (0, 0.8):
        body = {"input_ids": PROMPTS, "return_logprob": True,
                "sampling_params": {"temperature": temperature, "sampling_seed": 11, "max_new_tokens": 24,
                                    "ignore_eos": True}}
        status, answer = server.request("/generate", body)
        assert status == 200, answer
        out += [(a["output_ids"], a["meta_info"]["output_token_logprobs"]) for a in answer]
    return out


@pytest.fixture(scope="module")
def on_one_host():
    with Server(MODEL, *FLAGS) as server:
        found = answers(server)
        assert server.stop() == 0
    return found


def sh(command):
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


class OtherHost:
    """A network namespace, connected to this process's namespace by a veth pair."""

    def __init__(self):
        tag = f"{os.getpid() % 100000}"
        self.name, self.here, self.there = f"yard{tag}", f"ya{tag}", f"yb{tag}"
        self.inside = ["ip", "netns", "exec", self.name]  # command prefix
        net = f"10.231.{os.getpid() % 250}"
        self.address, self.peer = f"{net}.1", f"{net}.2"
        sh(f"ip netns add {self.name}")
        sh(f"ip link add {self.here} type veth peer name {self.there} netns {self.name}")
        sh(f"ip addr add {self.address}/24 dev {self.here}")
        sh(f"ip link set {self.here} up")
        for command in (f"addr add {self.peer}/24 dev {self.there}", f"link set {self.there} up", "link set lo up"):
            sh(f"ip -n {self.name} {command}")

    def cut(self):
        sh(f"ip link set {self.here} down")

    def join(self):
        sh(f"ip link set {self.here} up")

    def remove(self):
        subprocess.run(["ip", "link", "del", self.here], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


@pytest.fixture
def host():
    if os.geteuid() != 0:
        pytest.skip("network namespaces require root")
    if not shutil.which("ip"):
        pytest.skip("no ip (iproute2)")
    other = OtherHost()
    yield other
    other.remove()


@contextlib.contextmanager
def two_hosts(host, *more):
    address = f"{host.address}:{free_port(host.address)}"
    with OtherNode(MODEL, address, *FLAGS, *more, prefix=host.inside) as node1:  # starts first and waits for node 0
        with Server(MODEL, *FLAGS, *more, "--nnodes", 2, "--node-rank", 0, "--dist-init-addr", address) as node0:
            assert len(node0.ranks()) == len(node1.ranks()) == 2
            yield node0, node1


def wait_end(server):
    return server.process.wait(60)


def test_two_hosts_answer_as_one_and_end_together(host, on_one_host):
    with two_hosts(host) as (node0, node1):
        assert answers(node0) == on_one_host
        node1.process.send_signal(signal.SIGTERM)  # ignored, because node 0 needs the ranks of node 1
        assert answers(node0) == on_one_host
        assert node0.stop() == 0
        assert node1.wait() == 0
        assert "node 0 has ended the engine" in node1.text()


def test_a_dead_rank_of_the_other_host_is_named(host):
    with two_hosts(host) as (node0, node1):
        os.kill(node1.ranks()[0], signal.SIGKILL)
        assert wait_end(node0) == 1
        assert f"node 1 ({host.peer})" in node0.text() and "rank 2" in node0.text(), node0.text()
        assert node1.wait() == 1
        assert "rank 2" in node1.text() and "SIGKILL" in node1.text()


def test_a_dead_host_is_named(host):
    with two_hosts(host) as (node0, node1):
        node1.process.kill()
        assert wait_end(node0) == 1
        assert f"node 1 ({host.peer})" in node0.text() or f"node 1, {host.peer}" in node0.text(), node0.text()


def test_a_cut_cable_ends_a_step_by_the_deadline(host):
    with two_hosts(host, "--dist-timeout", 8) as (node0, node1):
        host.cut()
        status, _ = node0.request("/generate", {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4}})
        assert status >= 500
        assert wait_end(node0) == 1
        assert "waited 8 s for rank" in node0.text(), node0.text()
        assert node1.wait() == 1


def test_the_death_of_node_0_ends_the_others(host):
    with two_hosts(host) as (node0, node1):
        node0.process.kill()
        assert node1.wait() == 1
        assert f"node 0 ({host.address}) is gone" in node1.text() or "rank" in node1.text()
        assert not node1.ranks()


def test_different_flags_are_refused_by_name(host):
    address = f"{host.address}:{free_port(host.address)}"
    with OtherNode(MODEL, address, *FLAGS, "--ep", 2, prefix=host.inside) as node1:
        code, text = fails_to_start("--model-path", MODEL, *FLAGS, "--port", 0, "--nnodes", 2, "--dist-init-addr", address)
        assert code == 2 and f"--ep-size is 4 on node 0, but 2 on node 1 ({host.peer})" in text
        assert node1.wait() == 2
        assert "--ep-size is 4 on node 0, but 2 on node 1" in node1.text()


def test_a_missing_host_is_named():
    address = f"127.0.0.1:{free_port()}"
    code, text = fails_to_start("--model-path", MODEL, *FLAGS, "--port", 0, "--nnodes", 2, "--dist-init-addr", address,
                                "--dist-timeout", 1)
    assert code == 1 and f"node 0 waited 1 s at {address} for node 1 of 2" in text
    code, text = fails_to_start("--model-path", MODEL, *FLAGS, "--nnodes", 2, "--node-rank", 1, "--dist-init-addr",
                                address, "--dist-timeout", 1)
    assert code == 1 and f"node 1 waited 1 s for node 0 at {address}" in text


@pytest.fixture
def mpirun():
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun (openmpi-bin)")
    return [*MPIRUN, "-n", "4"]


@pytest.mark.parametrize("wire", ["mpi", "tcp"])
def test_ranks_of_mpirun_answer_as_processes_do(mpirun, wire, on_one_host):
    flags = ["--dist-init-addr", f"127.0.0.1:{free_port()}"] if wire == "tcp" else []
    with Server(MODEL, *FLAGS, *flags, prefix=mpirun) as server:
        assert answers(server) == on_one_host
        ranks = mpi_ranks(server)
        assert len(ranks) == 4
        os.kill(ranks[0], signal.SIGTERM)  # not to mpirun, which kills its processes on SIGTERM
        assert wait_end(server) == 0, server.text()


def test_mpirun_ends_all_when_a_rank_dies(mpirun):
    with Server(MODEL, *FLAGS, prefix=mpirun) as server:
        ranks = mpi_ranks(server)
        os.kill(ranks[2], signal.SIGKILL)
        assert wait_end(server) != 0
        assert have_ended(ranks)


def test_mpirun_ranks_refuse_what_needs_shared_memory(mpirun):
    for flags, expected in [(["--moe-a2a-backend", "mooncake"], "--moe-a2a-backend mooncake: supported on ranks that share"),
                            (["--moe-a2a-backend", "deepep"], "")]:
        done = subprocess.run([*mpirun, PROGRAM, "serve", "--model-path", MODEL, "--device", "cpu", "--tp", "4", "--ep", "4",
                               *flags, "--dry-run"], text=True, capture_output=True, timeout=60)
        assert (done.returncode == 0) == (expected == "") and expected in done.stderr, done.stderr


def test_a_world_that_is_not_tp_is_refused(mpirun):
    done = subprocess.run([*MPIRUN, "-n", "2", PROGRAM, "serve", "--model-path", MODEL, "--tp", "4"], text=True,
                          capture_output=True, timeout=60)
    assert done.returncode != 0
    assert "mpirun started 2 processes, but --tp-size is 4" in done.stderr
