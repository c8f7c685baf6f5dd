"""Ends ranks in all ways at all points of a step, on all layouts, and prints a table.

Each cell of the table is a failure (HOW) at a point (WHEN) of some ranks (WHO), while 32 mixed requests run.

    build/venv/bin/python tests/e2e/elastic_matrix.py [--layout NAME ...] [--how HOW ...] [--when WHEN ...] [--who WHO ...]

The exit code is 1 if a request was lost, an output differs, or a process or descriptor is left behind.
"""
import argparse
import os
import re
import signal
import sys
import time

from elastic import (FLAGS, YARDLING, Faults, bodies, finish, metric, ready_spares, settled_descriptors, start_batch,
                     state_of, wait_decoding, wait_until)

LAYOUTS = {
    "tp2": ["--tp", 2],
    "tp4-ep2": ["--tp", 4, "--ep", 2],
    "deepep": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep"],
    "deepep-normal": ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep", "--deepep-mode", "normal"],
    "deepep-low-latency": ["--tp", 4, "--ep", 4, "--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency"],
    "flashinfer": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "flashinfer"],
    "fused": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "fused"],
    "mooncake": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "mooncake"],
    "dp2": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dp-size", 2, "--enable-dp-attention"],
    "dp2-dense1": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--dp-size", 2, "--enable-dp-attention",
                   "--moe-dense-tp-size", 1],
    "spares": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--spare-ranks", 1],
    "eplb": ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--enable-eplb", "--eplb-rebalance-num-iterations", 20],
}
WHO = {"first": lambda n: [0], "last": lambda n: [n - 1], "two": lambda n: [0, 1], "all": lambda n: list(range(n))}
HOW = ["kill", "segv", "abort", "bus", "exit", "throw", "stop", "spin"]
# When the ranks fail. "plan", "layer", "post" and "sampled" are points of a step while requests decode. "prefill": in
# the first layer of the first chunk. "idle": by a signal before requests arrive. "loading": a rank is killed while
# requests decode, and the new rank fails while it loads.
WHEN = ["idle", "prefill", "plan", "layer", "post", "sampled", "loading"]
SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT, "bus": signal.SIGBUS, "stop": signal.SIGSTOP}


def exists(name, when, how, who):
    if who == "two" and ranks_of(name) == 2:  # the same as "all"
        return False
    if when in ("idle", "loading"):  # an error of a rank that loads ends the server
        return how in SIGNALS
    # A rank that spins outside of a forward pass is not detected before --watchdog-timeout.
    return how != "spin" or when in ("layer", "prefill")


def ranks_of(name):
    return LAYOUTS[name][LAYOUTS[name].index("--tp") + 1]


def run_cell(faults, when, how, ranks, made):
    server = faults.server
    if when == "idle":
        pids = server.ranks()
        for rank in ranks:
            os.kill(pids[rank], SIGNALS[how])
        return start_batch(server, made)
    point = {"prefill": "layer", "loading": "load"}.get(when, when)
    if when == "prefill":
        for rank in ranks:
            faults.order(f"{rank}.{point}", how)
    clients = start_batch(server, made)
    if when != "prefill":
        wait_decoding(clients)
        for rank in ranks:
            faults.order(f"{rank}.{point}", how)
    if when == "loading":
        pids = server.ranks()
        for rank in ranks:
            os.kill(pids[rank], signal.SIGKILL)
    return clients


def undisturbed(flags, tokens, cells):
    """The results of all batches on a server without faults. Each batch is sent while the previous one runs."""
    with Faults(YARDLING, *flags) as faults:
        results, running = [], []
        for i in range(cells):
            running.append(start_batch(faults.server, bodies(i, tokens)))
            if len(running) == 2:
                results.append(finish(running.pop(0)))
        return results + [finish(clients) for clients in running]


def row(*columns):
    print("| " + " | ".join(str(c) for c in columns) + " |", flush=True)


def run_cells(name, faults, cells, want, tokens):
    """Prints a line for each cell (when, how, who) of a layout. Returns the number of bad cells."""
    server, bad = faults.server, 0
    for i, (when, how, who) in enumerate(cells):
        epoch = metric(server, "switchyard_epoch")
        pids = server.ranks()
        clients = run_cell(faults, when, how, WHO[who](len(pids)), bodies(i, tokens))
        results = finish(clients)
        lost = sum(isinstance(result, str) for result in results)
        wrong = sum(got != expected for got, expected in zip(results, want[i])) - lost
        ended = metric(server, "switchyard_epoch") - epoch
        left = [pid for pid in set(pids) - set(server.ranks()) if state_of(pid)]
        for order in os.listdir(faults.folder.name):  # left over if a failure of another rank ended the rank first
            os.unlink(os.path.join(faults.folder.name, order))
        firsts = re.findall(r"the first token came (\d+) ms", server.text())
        gap = max(c.gap for c in clients)
        row(name, when, how, who, len(results), lost, wrong, int(ended), firsts[-1] if firsts else "-", f"{gap * 1000:.0f}")
        bad += lost + wrong > 0 or ended < 1 or len(left) > 0
    return bad


def run_layout(name, args):
    """Runs all cells of a layout. Returns the number of bad cells."""
    flags = [*FLAGS, *LAYOUTS[name], "--max-rank-deaths", "1000000/60"]
    cells = [(when, how, who) for when in args.when for how in args.how for who in args.who if exists(name, when, how, who)]
    want = undisturbed(flags, args.tokens, len(cells))
    with Faults(YARDLING, *flags) as faults:
        server = faults.server
        if "--spare-ranks" in flags:
            wait_until(lambda: ready_spares(server) == 1)
        before = settled_descriptors(server)
        try:
            bad = run_cells(name, faults, cells, want, args.tokens)
        except Exception:
            print(server.text()[-4000:], file=sys.stderr)
            raise
        if "--spare-ranks" in flags:
            wait_until(lambda: ready_spares(server) == 1)
        after = settled_descriptors(server)
        ranks = server.ranks()
        code = server.stop()
    left = [pid for pid in ranks if state_of(pid)]
    if code != 0 or left or after[1] != before[1] or after[0] > before[0]:
        print(f"{name}: exit code {code}, processes left: {left}, descriptors {before} before and {after} after", flush=True)
        bad += 1
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW)
    parser.add_argument("--when", nargs="+", choices=WHEN, default=WHEN)
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO))
    parser.add_argument("--tokens", type=int, default=45, help="maximum tokens of an output; at least 36")
    args = parser.parse_args()
    row("layout", "when", "how", "who", "requests", "lost", "different", "restarts", "first token, ms", "longest gap, ms")
    row(*["---"] * 10)
    start = time.time()
    bad = sum(run_layout(name, args) for name in args.layout)
    print(f"{bad} bad cells; {time.time() - start:.0f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
