"""The measuring process: streams and health probes over raw sockets, in one epoll loop.

    measurer = Measurer(host, port, streams=8)
    measurer.begin()            # starts a measurement window
    figures = measurer.end()    # a dictionary, see Figures
    measurer.stop()

A gap is the time between two arrivals of data in one stream. A gap that has not ended when the window ends is counted
up to the end. The wait for the first token of a request is measured separately, since it may include queueing.
"""
import errno
import gc
import json
import multiprocessing
import random
import select
import signal
import socket
import time

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
HEALTH_SECONDS = 0.02  # between two probes, even if earlier ones have no response yet
MOST_PROBES = 500  # open at the same time
TICK_SECONDS = 0.004  # period of the clock that measures the delay of this process itself
PROMPT_TOKENS, OUTPUT_TOKENS = 24, 900
RETRY_SECONDS = 0.1  # after a stream that failed


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def describe(seconds):
    """Statistics in milliseconds."""
    return {"count": len(seconds), "p50": 1e3 * percentile(seconds, 50), "p99": 1e3 * percentile(seconds, 99),
            "longest": 1e3 * max(seconds, default=0.0)}


class Figures:
    def __init__(self):
        self.gaps, self.first_tokens, self.health, self.lateness = [], [], [], []
        self.failures = {}

    def fail(self, reason):
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def report(self):
        return {"gaps": describe(self.gaps), "first_tokens": describe(self.first_tokens),
                "health": describe(self.health), "client_delay": describe(self.lateness), "failures": self.failures}


class Stream:
    """A client that streams one completion after another over one connection."""

    def __init__(self, loop, number):
        self.loop = loop
        self.random = random.Random(number)
        self.socket = None
        self.waiting = False  # true: the first token has not arrived
        self.since = 0.0  # time of the last arrival, or of sending the request
        self.retry_at = 0.0
        self.ask()

    def ask(self):
        prompt = [self.random.randrange(1, 1000) for _ in range(PROMPT_TOKENS)]
        body = json.dumps({"model": self.loop.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True,
                           "temperature": 1, "seed": self.random.randrange(1 << 30), "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self.seen, self.done, self.retry_at = b"", False, 0.0
        self.waiting, self.since = True, time.monotonic()
        try:
            if self.socket is None:
                self.socket = socket.create_connection(self.loop.address, timeout=10)
                self.socket.setblocking(False)
                self.loop.add(self.socket, self)
            self.socket.sendall(head.encode() + body)
        except OSError as error:
            self.fail(f"stream: {errno.errorcode.get(error.errno, error)}")

    def fail(self, reason):
        self.loop.figures.fail(reason)
        if self.socket is not None:
            self.loop.remove(self.socket)
        self.socket, self.waiting = None, False
        self.retry_at = time.monotonic() + RETRY_SECONDS

    def ready(self, _):
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            return self.fail(f"stream: {errno.errorcode.get(error.errno, error)}")
        now = time.monotonic()
        if not data:
            return self.fail("stream: connection closed")
        figures = self.loop.figures
        if self.waiting:
            self.seen += data
            if b"data: " not in self.seen:
                status = self.seen[9:12]
                if len(status) == 3 and status != b"200":
                    self.fail(f"stream: status {status.decode(errors='replace')}")
                return
            figures.first_tokens.append(now - self.since)
            self.waiting = False
        else:
            figures.gaps.append(now - self.since)
        self.since = now
        # The searched strings may be split between two arrivals.
        tail = self.seen[-16:] + data
        self.seen = tail[-16:]
        if b'{"error"' in tail:
            return self.fail("stream: error event")
        self.done = self.done or b"[DONE]" in tail
        if tail.endswith(b"\r\n0\r\n\r\n"):
            if not self.done:
                return self.fail("stream: ended without [DONE]")
            self.ask()

    def close_gap(self, now):
        """Counts the gap, or wait for a first token, that has not ended."""
        if self.socket is not None:
            (self.loop.figures.first_tokens if self.waiting else self.loop.figures.gaps).append(now - self.since)


class Probe:
    """One GET /health on a separate connection, as orchestrators send them."""

    def __init__(self, loop):
        self.loop, self.answer, self.sent = loop, b"", False
        self.start = time.monotonic()
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(loop.address)
        loop.add(self.socket, self, select.EPOLLOUT)
        loop.probes.add(self)

    def ready(self, events):
        try:
            if not self.sent:
                if events & (select.EPOLLERR | select.EPOLLHUP):
                    raise OSError(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "")
                self.socket.send(HEALTH)
                self.sent = True
                self.loop.epoll.modify(self.socket, select.EPOLLIN)
                return
            data = self.socket.recv(1 << 12)
        except BlockingIOError:
            return
        except OSError as error:
            return self.finish(f"/health: {errno.errorcode.get(error.errno, error)}")
        self.answer += data
        if data and len(self.answer) < 12:
            return
        status = self.answer[9:12].decode(errors="replace")
        self.finish(None if status == "200" else f"/health: status {status or 'none'}")

    def finish(self, failure):
        if failure:
            self.loop.figures.fail(failure)
        self.loop.figures.health.append(time.monotonic() - self.start)
        self.loop.remove(self.socket)
        self.loop.probes.discard(self)


class Loop:
    def __init__(self, pipe, address, model, streams):
        self.pipe, self.address, self.model = pipe, address, model
        self.epoll, self.clients = select.epoll(), {}
        self.figures, self.probes = Figures(), set()
        self.epoll.register(pipe.fileno(), select.EPOLLIN)
        self.streams = [Stream(self, number) for number in range(streams)]

    def add(self, sock, client, events=select.EPOLLIN):
        self.clients[sock.fileno()] = client
        self.epoll.register(sock, events)

    def remove(self, sock):
        del self.clients[sock.fileno()]
        self.epoll.unregister(sock)
        sock.close()

    def run(self):
        tick = probe_at = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= tick:
                self.figures.lateness.append(now - tick)
                tick = now + TICK_SECONDS
            if now >= probe_at:
                if len(self.probes) < MOST_PROBES:
                    Probe(self)
                probe_at = now + HEALTH_SECONDS
                for stream in self.streams:
                    if stream.retry_at and now >= stream.retry_at:
                        stream.ask()
            for descriptor, events in self.epoll.poll(max(0.0, min(tick, probe_at) - time.monotonic())):
                client = self.clients.get(descriptor)
                if client is not None:
                    client.ready(events)
                elif descriptor == self.pipe.fileno() and not self.command(self.pipe.recv()):
                    return

    def command(self, name):
        """Handles a command. Returns False for `stop`."""
        if name == "begin":
            self.figures = Figures()
        elif name == "end":
            now = time.monotonic()
            for stream in self.streams:
                stream.close_gap(now)
            for probe in self.probes:
                self.figures.health.append(now - probe.start)
            figures, self.figures = self.figures, Figures()
            self.pipe.send(figures.report())
        return name != "stop"


def _run(pipe, *arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a garbage collection would be measured as a delay
    Loop(pipe, *arguments).run()


class Measurer:
    """Starts and controls the measuring process."""

    def __init__(self, host, port, model, streams=8):
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_run, args=(other, (host, port), model, streams), daemon=True)
        self.process.start()
        other.close()

    def begin(self):
        self.pipe.send("begin")

    def end(self):
        self.pipe.send("end")
        return self.pipe.recv()

    def stop(self):
        self.pipe.send("stop")
        self.process.join(5)
        self.process.kill()
