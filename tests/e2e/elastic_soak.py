"""Random kills of ranks under 64 clients: no error, equal outputs, and no growth: `python elastic_soak.py KILLS`."""
import os
import pathlib
import random
import signal
import sys
import threading
import time

from elastic import FLAGS, YARDLING, metric, settled_descriptors, wait_until
from server import Server

CLIENTS = 64
MAX_GROWTH = 48 << 20  # bytes of resident memory of a process: caches of the allocator


def prompt(client):
    r = random.Random(client)
    return {"input_ids": [100 + client] + [r.randrange(2, 2000) for _ in range(r.choice([3, 20, 60]))],
            "sampling_params": {"temperature": client % 2, "sampling_seed": client, "ignore_eos": True,
                                "max_new_tokens": 8 + client % 16}}


def resident(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(kills, seed=1):
    r = random.Random(seed)
    with Server(YARDLING, *FLAGS, "--tp", 2, "--ep", 2, "--max-rank-deaths", "1000000/60") as server:
        want = {c: server.request("/generate", prompt(c))[1]["output_ids"] for c in range(CLIENTS)}
        wrong, answers, done = [], [0] * CLIENTS, threading.Event()
        before = settled_descriptors(server)

        def client(c):
            while not done.is_set():
                status, answer = server.request("/generate", prompt(c))
                if status != 200 or answer["output_ids"] != want[c]:
                    wrong.append((c, status, answer))
                answers[c] += 1

        threads = [threading.Thread(target=client, args=(c,), daemon=True) for c in range(CLIENTS)]
        for thread in threads:
            thread.start()
        server_before = rank_before = rank_growth = None
        survivor = server.ranks()[0]
        for kill in range(kills):
            epoch = metric(server, "switchyard_epoch")
            if kill == kills // 2:
                rank_growth = resident(survivor) - rank_before
            ranks = server.ranks()
            os.kill(ranks[1] if kill < kills // 2 else r.choice(ranks), signal.SIGKILL)
            wait_until(lambda: metric(server, "switchyard_epoch") > epoch)
            time.sleep(r.random() * 0.3)
            assert not wrong, (wrong[0], server.text())
            if kill == kills // 5:
                server_before, rank_before = resident(server.process.pid), resident(survivor)
        done.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), server.text()
        assert not wrong, (wrong[0], server.text())
        growth = resident(server.process.pid) - server_before
        after = settled_descriptors(server)
        epoch = metric(server, "switchyard_epoch")
        print(f"{kills} kills, {sum(answers)} requests, 0 errors; the server process grew by {growth >> 10} KiB, "
              f"a rank that was not killed by {rank_growth >> 10} KiB; descriptors and memfds of the server process: "
              f"{before} before, {after} after")
        assert growth < MAX_GROWTH and rank_growth < MAX_GROWTH
        os.kill(server.ranks()[0], signal.SIGKILL)  # descriptors stay as they are
        wait_until(lambda: metric(server, "switchyard_epoch") > epoch)
        assert settled_descriptors(server) == after
        assert after[1] == 1, after  # shared memory: the arena
        assert server.stop() == 0


if __name__ == "__main__":
    soak(int(sys.argv[1]))
