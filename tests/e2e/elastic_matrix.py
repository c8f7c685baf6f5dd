"""Ends ranks in all ways at all points of a step, on all layouts, under 32 mixed requests, and prints a table.

    build/venv/bin/python tests/e2e/elastic_matrix.py [--layout NAME ...] [--how HOW ...] [--when WHEN ...] [--who WHO ...]

All cells take about an hour on two cores. The exit code is 1 if a request was lost or an output differs.
"""
import argparse
import os
import re
import signal
import sys
import time

from elastic import FLAGS, YARDLING, Client, Faults, bodies, finish, metric, start_batch, wait_decoding

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
}
WHO = {"first": lambda n: [0], "last": lambda n: [n - 1], "two": lambda n: [0, 1], "all": lambda n: list(range(n))}
HOW = ["kill", "segv", "abort", "bus", "exit", "throw", "stop", "spin"]
# Points of a step while requests decode; "prefill": in the first layer of the first chunk; "idle": a signal.
WHEN = ["idle", "prefill", "plan", "layer", "post", "sampled"]
SIGNALS = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT, "bus": signal.SIGBUS, "stop": signal.SIGSTOP}


def exists(when, how):
    """A rank that spins outside of a forward pass is not detected before --watchdog-timeout."""
    if when == "idle":
        return how in SIGNALS
    return how != "spin" or when in ("layer", "prefill")


def run_cell(faults, when, how, ranks, made):
    server = faults.server
    if when == "idle":
        pids = server.ranks()
        for rank in ranks:
            os.kill(pids[rank], SIGNALS[how])
        return start_batch(server, made)
    point = "layer" if when == "prefill" else when
    if when == "prefill":
        for rank in ranks:
            faults.order(f"{rank}.{point}", how)
    clients = start_batch(server, made)
    if when != "prefill":
        wait_decoding(clients)
        for rank in ranks:
            faults.order(f"{rank}.{point}", how)
    return clients


def row(*columns):
    print("| " + " | ".join(str(c) for c in columns) + " |", flush=True)


def run_layout(name, args):
    """Returns the number of bad cells."""
    flags = [*FLAGS, *LAYOUTS[name], "--max-rank-deaths", "1000000/60"]
    cells = [(when, how, who) for when in args.when for how in args.how for who in args.who if exists(when, how)]
    with Faults(YARDLING, *flags) as undisturbed:
        want = [finish(start_batch(undisturbed.server, bodies(i, args.tokens))) for i in range(len(cells))]
    bad = 0
    with Faults(YARDLING, *flags) as faults:
        for i, (when, how, who) in enumerate(cells):
            server = faults.server
            epoch = metric(server, "switchyard_epoch")
            made = bodies(i, args.tokens)
            clients = run_cell(faults, when, how, WHO[who](len(server.ranks())), made)
            results = finish(clients)
            lost = sum(isinstance(result, str) for result in results)
            wrong = sum(got != expected for got, expected in zip(results, want[i])) - lost
            ended = metric(server, "switchyard_epoch") - epoch
            for order in os.listdir(faults.folder.name):  # of a rank that another one has stopped first
                os.unlink(os.path.join(faults.folder.name, order))
            tokens = re.findall(r"the first token came (\d+) ms", server.text())
            gap = max((c.gap for c in clients if isinstance(c, Client)), default=0)
            row(name, when, how, who, len(results), lost, wrong, int(ended), tokens[-1] if tokens else "-", f"{gap * 1000:.0f}")
            bad += lost + wrong > 0 or ended < 1
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW)
    parser.add_argument("--when", nargs="+", choices=WHEN, default=WHEN)
    parser.add_argument("--who", nargs="+", choices=WHO, default=list(WHO))
    parser.add_argument("--tokens", type=int, default=45, help="most tokens of an output, at least 36")
    args = parser.parse_args()
    row("layout", "when", "how", "who", "requests", "lost", "different", "restarts", "first token, ms", "longest gap, ms")
    row(*["---"] * 10)
    start = time.time()
    bad = sum(run_layout(name, args) for name in args.layout)
    print(f"{bad} bad cells; {time.time() - start:.0f} s")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
