"""Ranks, nodes and links that end while an engine of two nodes serves: all outputs equal those of one node."""
import contextlib
import os
import re
import signal

import pytest

from elastic import FLAGS, YARDLING, bodies, finish, metric, start_batch, state_of, wait_decoding, wait_until
from server import OtherNode, Server, fails_to_start, free_port
from test_hosts import host  # noqa: F401 (a fixture)

RANKS = [*FLAGS, "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"]
BATCHES = [bodies(i, 36) for i in range(4)]


@pytest.fixture(scope="module")
def expected():
    with Server(YARDLING, *RANKS) as server:
        return [finish(start_batch(server, made)) for made in BATCHES]


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text("0123456789abcdef" * 2)
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def two_nodes(address, *more, prefix=()):
    flags = [*RANKS, *more, "--enable-elastic-ep"]
    with OtherNode(YARDLING, address, *flags, prefix=prefix) as node1:
        with Server(YARDLING, *flags, "--nnodes", 2, "--dist-init-addr", address) as node0:
            yield node0, node1


def serve_again(node0, epoch):
    wait_until(lambda: metric(node0, "switchyard_epoch") == epoch)


def test_ranks_and_nodes_come_back(expected, secret, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with two_nodes(address, "--dist-secret-file", secret) as (node0, node1):
        # One rank of each node, ended by SIGKILL or stopped by SIGSTOP.
        disturbances = [lambda: os.kill(node0.ranks()[0], signal.SIGKILL), lambda: os.kill(node1.ranks()[0], signal.SIGKILL),
                        lambda: os.kill(node1.ranks()[0], signal.SIGSTOP)]
        for i, disturb in enumerate(disturbances):
            clients = start_batch(node0, BATCHES[i])
            wait_decoding(clients)
            before = node0.ranks() + node1.ranks()
            disturb()
            assert finish(clients) == expected[i], node0.text() + node1.text()
            serve_again(node0, i + 2)
            assert not any(state_of(pid) for pid in before)
        # Node 1 as a whole. A node with another secret cannot take its place.
        clients = start_batch(node0, BATCHES[3])
        wait_decoding(clients)
        node1.process.kill()
        wait_until(lambda: node0.text().count("waiting for 1 more nodes") == 5)
        other = tmp_path / "other"
        other.write_text("another secret, also long enough")
        other.chmod(0o600)
        flags = [*RANKS, "--enable-elastic-ep"]
        with OtherNode(YARDLING, address, *flags, "--dist-secret-file", other) as stranger:
            assert stranger.wait() == 2
        with OtherNode(YARDLING, address, *flags, "--dist-secret-file", secret) as again:
            assert finish(clients) == expected[3], node0.text() + again.text()
            serve_again(node0, 5)
            assert node0.stop() == 0
            assert again.wait() == 0, again.text()
        firsts = re.findall(r"the first token came (\d+) ms", node0.text())
        print(f"first tokens after {', '.join(firsts)} ms; the last one waited for a node to be started")


def test_a_cut_link_comes_back(expected, host):  # noqa: F811
    address = f"{host.address}:{free_port(host.address)}"
    with two_nodes(address, "--dist-timeout", 5, prefix=host.inside) as (node0, node1):
        clients = start_batch(node0, BATCHES[0])
        wait_decoding(clients)
        host.cut()
        wait_until(lambda: node0.text().count("waiting for 1 more nodes") == 2)
        host.join()
        assert finish(clients) == expected[0], node0.text() + node1.text()
        assert metric(node0, "switchyard_epoch") == 2
        assert node0.stop() == 0
        assert node1.wait() == 0, node1.text()


def test_a_rank_of_another_node_is_named_and_the_end_is_told(tmp_path):
    """A request that makes a rank of node 1 fail each time ends after two failures, as on one host. When node 0 ends the
    engine, node 1 does not try to reach it for a minute."""
    address = f"127.0.0.1:{free_port()}"
    flags = [*RANKS, "--enable-elastic-ep", "--max-rank-deaths", "3/60"]
    with OtherNode(YARDLING, address, *flags, env={"SWITCHYARD_TEST_FAULTS": str(tmp_path)}) as node1:
        with Server(YARDLING, *flags, "--nnodes", 2, "--dist-init-addr", address) as node0:
            poison = {"input_ids": [1999, 6, 7], "sampling_params": {"temperature": 0, "max_new_tokens": 9}}
            (tmp_path / "1.enter.1999").write_text("always segv")
            status, answer = node0.request("/generate", poison)
            assert status >= 500 and "rank 1" in str(answer) and "SIGSEGV" in str(answer) and "alone" in str(answer), answer
            assert metric(node0, "switchyard_rank_deaths_total") == 2, node0.text()
            (tmp_path / "1.enter.1999").unlink()
            assert node0.request("/generate", poison)[0] == 200
            os.kill(node1.ranks()[0], signal.SIGKILL)
            serve_again(node0, 4)
            os.kill(node1.ranks()[0], signal.SIGKILL)
            assert node0.process.wait(30) == 1
            assert node1.process.wait(10) == 1, node1.text()
            assert "node 0 has ended the engine: the ranks ended 4 times" in node1.text(), node1.text()


def test_nodes_need_the_same_flag():
    address = f"127.0.0.1:{free_port()}"
    with OtherNode(YARDLING, address, *RANKS) as node1:
        code, text = fails_to_start("--model-path", YARDLING, *RANKS, "--nnodes", 2, "--dist-init-addr", address,
                                    "--enable-elastic-ep")
        assert code == 2 and "--enable-elastic-ep is set on node 0, but not set on node 1" in text, text
        assert node1.wait() == 2
