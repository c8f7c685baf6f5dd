"""Kills random ranks while 64 clients send requests. Checks that no request fails, outputs are equal and memory is
stable.

    python elastic_soak.py 1000              # kills
    python elastic_soak.py 100 changes       # kills, restarts of ranks and other numbers of ranks, also at the same time
    python elastic_soak.py 300 absent        # kills of ranks that serve or load; the others serve without them
    python elastic_soak.py 300 moving        # the same with EPLB and a draft model
    python elastic_soak.py 300 spares        # the same with spare processes, which are also killed
"""
import os
import pathlib
import random
import signal
import sys
import threading
import time

from elastic import FLAGS, YARDLING, metric, settled_descriptors, spare_pids, wait_until
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


class Clients:
    """Clients that each send the same request again and again."""

    def __init__(self, server):
        self.server = server
        self.want = {c: server.request("/generate", prompt(c))[1]["output_ids"] for c in range(CLIENTS)}
        self.wrong, self.answers, self.done = [], [0] * CLIENTS, threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(c,), daemon=True) for c in range(CLIENTS)]

    def run(self, c):
        while not self.done.is_set():
            status, answer = self.server.request("/generate", prompt(c))
            if status != 200 or answer["output_ids"] != self.want[c]:
                self.wrong.append((c, status, answer))
            self.answers[c] += 1

    def start(self):
        for thread in self.threads:
            thread.start()

    def check(self):
        assert not self.wrong, (self.wrong[0], self.server.text())

    def finish(self):
        self.done.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), self.server.text()
        self.check()


def soak(kills, seed=1):
    r = random.Random(seed)
    with Server(YARDLING, *FLAGS, "--tp", 2, "--ep", 2, "--max-rank-deaths", "1000000/60") as server:
        clients = Clients(server)
        before = settled_descriptors(server)
        clients.start()
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
            clients.check()
            if kill == kills // 5:
                server_before, rank_before = resident(server.process.pid), resident(survivor)
        clients.finish()
        growth = resident(server.process.pid) - server_before
        after = settled_descriptors(server)
        epoch = metric(server, "switchyard_epoch")
        print(f"{kills} kills, {sum(clients.answers)} requests, 0 errors; the server process grew by {growth >> 10} KiB, "
              f"a rank that was not killed by {rank_growth >> 10} KiB; descriptors and memfds of the server process: "
              f"{before} before, {after} after")
        assert growth < MAX_GROWTH and rank_growth < MAX_GROWTH
        os.kill(server.ranks()[0], signal.SIGKILL)  # the number of descriptors must not change
        wait_until(lambda: metric(server, "switchyard_epoch") > epoch)
        assert settled_descriptors(server) == after
        assert after[1] == 1, after  # shared memory: the arena
        assert server.stop() == 0


def soak_changes(steps, seed=1):
    r = random.Random(seed)
    with Server(YARDLING, *FLAGS, "--tp", 2, "--ep", 2, "--dp-size", 2, "--enable-dp-attention", "--moe-a2a-backend",
                "deepep", "--moe-dense-tp-size", 1, "--max-rank-deaths", "1000000/60") as server:
        clients = Clients(server)
        clients.start()
        kills, statuses = 0, {}
        for _ in range(steps):
            killer = None
            if r.random() < 0.5:
                killer = threading.Timer(r.random() * 0.1, kill_one, (server, r.random()))
                killer.start()
                kills += 1
            body = r.choice([{"restart": True}, *({"new_ep_size": size, "load_beside": r.random() < 0.5}
                                                  for size in (1, 2, 3, 4))])
            status, _ = server.request("/scale_elastic_ep", body)
            statuses[status] = statuses.get(status, 0) + 1
            if killer:
                killer.join()
            time.sleep(r.random() * 0.2)
            clients.check()
        clients.finish()
        assert settled_descriptors(server)[1] == 1
        print(f"{steps} changes (statuses {statuses}) with {kills} kills, {sum(clients.answers)} requests, 0 errors")
        assert server.stop() == 0


def soak_absent(kills, seed=1, more=(), also=lambda _: []):
    r = random.Random(seed)
    with Server(YARDLING, *FLAGS, "--tp", 4, "--ep", 4, "--dp-size", 4, "--enable-dp-attention", "--moe-a2a-backend",
                "deepep", "--moe-dense-tp-size", 1, "--elastic-ep-backend", "mooncake", "--max-rank-deaths",
                "1000000/60", *more) as server:
        clients = Clients(server)
        clients.start()
        fewest = 4
        for _ in range(kills):
            kill_one(server, r.random(), also)
            for _ in range(r.choice([1, 1, 20])):  # often before the last rank has loaded
                fewest = min(fewest, metric(server, "switchyard_serving_ranks") or 4)  # 0: in a pause
                time.sleep(0.005)
            clients.check()
        clients.finish()
        wait_until(lambda: metric(server, "switchyard_serving_ranks") == 4)
        deaths = metric(server, "switchyard_rank_deaths_total")
        assert settled_descriptors(server)[1] == 1
        print(f"{kills} kills, {deaths:.0f} ends of epochs, {metric(server, 'switchyard_epoch'):.0f} epochs, at least "
              f"{fewest:.0f} ranks served, {sum(clients.answers)} requests, 0 errors; spares: "
              f"{server.request('/get_server_info')[1]['spare_ranks']}")
        assert server.stop() == 0


def soak_moving(kills):
    soak_absent(kills, more=["--enable-eplb", "--eplb-rebalance-num-iterations", 20, "--ep-num-redundant-experts", 4,
                             "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2])


def soak_spares(kills):
    soak_absent(kills, more=["--spare-ranks", 1], also=spare_pids)


def kill_one(server, which, also=lambda _: []):
    ranks = server.ranks() + also(server)
    try:
        os.kill(ranks[int(which * len(ranks))], signal.SIGKILL)
    except (IndexError, ProcessLookupError):  # none, or it has ended meanwhile
        pass


if __name__ == "__main__":
    {"changes": soak_changes, "absent": soak_absent, "moving": soak_moving,
     "spares": soak_spares}.get("".join(sys.argv[2:]), soak)(int(sys.argv[1]))
