"""Prefill and decode workers and their router, for tests and benchmarks."""
import contextlib

from elastic import YARDLING, wait_until
from server import PROGRAM, Server, free_port

SIZES = ["--max-total-tokens", 16384, "--max-running-requests", 32, "--random-seed", 7]
CPU = ["--device", "cpu"]


class Worker(Server):
    """A prefill or decode worker. `bootstrap`: the port of a prefill worker."""

    def __init__(self, mode, *flags, model=YARDLING, backend="tcp", device=CPU, env=None):
        self.mode, self.bootstrap = mode, free_port()
        port = ["--disaggregation-bootstrap-port", self.bootstrap] if mode == "prefill" else []
        super().__init__(model, *device, *SIZES, "--log-level", "info", "--disaggregation-mode", mode,
                         "--disaggregation-transfer-backend", backend, *port, *flags, env=env)

    def description(self):
        more = {"bootstrap_port": self.bootstrap} if self.mode == "prefill" else {}
        return {"url": self.url, "worker_type": self.mode, **more}


class Router(Server):
    def __init__(self, prefill, decode, *flags):
        words = [w for p in prefill for w in ("--prefill", p.url, p.bootstrap)]
        self._start([PROGRAM, "route", "--port", "0", "--health-check-interval", "0.1", *map(str, words), "--decode",
                     *(d.url for d in decode), *map(str, flags)])
        self.wait_healthy(len(prefill) + len(decode))

    def wait_healthy(self, count, seconds=60):
        wait_until(lambda: sum(w["is_healthy"] for w in self.request("/workers")[1]["workers"]) == count, seconds)


@contextlib.contextmanager
def pair(prefill=(), decode=(), model=YARDLING, backend="tcp", devices=(CPU, CPU), env=None):
    """`devices`: the flags that place each worker."""
    with Worker("prefill", *prefill, model=model, backend=backend, device=devices[0], env=env) as p, \
            Worker("decode", *decode, model=model, backend=backend, device=devices[1], env=env) as d, \
            Router([p], [d]) as router:
        yield p, d, router
        for server in (router, d, p):
            assert server.stop() == 0, server.text()
