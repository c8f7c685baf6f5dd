"""The disturbances: loads that other clients put on a server while streams are measured. A disturbance runs in a
process of low priority, in rounds.

A disturbance is a function that prepares its requests and returns a second function, the round. A round gets the time
at which it should end, sends the requests, and returns a counter of their outcomes.
"""
import collections
import errno
import json
import multiprocessing
import os
import random
import selectors
import signal
import socket
import struct
import time
import traceback

NICE = 10
MEGABYTE = 1_000_000
ROUND_SECONDS = 60  # requests of a round without a response after this time count as unanswered
WORDS = "dispatch combine router expert token rank yard the of and a cold engine moves along its track ".split()


def post(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def cause(error):
    return errno.errorcode.get(error.errno, str(error)) if isinstance(error, OSError) else str(error)


def connect(address):
    sock = socket.socket()
    sock.settimeout(10)
    sock.connect(address)
    sock.setblocking(False)
    return sock


def reset(sock):
    """Closes with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Exchange:
    """Sends one request and reads the response until the connection closes."""

    def __init__(self, address, request):
        self.rest, self.head = memoryview(request), b""
        self.socket = connect(address)

    def step(self, events):
        """Returns the outcome of the exchange, or None while it continues."""
        try:
            if events & selectors.EVENT_READ:
                data = self.socket.recv(1 << 18)
                if len(self.head) < 12:
                    self.head += data[:12]
                if not data:
                    return self.status()
            if events & selectors.EVENT_WRITE:
                self.rest = self.rest[self.socket.send(self.rest[:1 << 20]):]
        except BlockingIOError:
            return None
        except OSError as error:
            # The server may reject a request before it has received the whole body; sending the rest then fails.
            return self.status() if self.head else cause(error)
        return None

    def status(self):
        return self.head[9:12].decode(errors="replace") or "no answer"

    def wanted(self):
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.rest else 0)


def send_all(address, requests, at_once):
    """Sends `requests`, at most `at_once` concurrently, and counts the outcomes."""
    ends, waiting = collections.Counter(), list(reversed(requests))
    deadline = time.monotonic() + ROUND_SECONDS
    with selectors.DefaultSelector() as selector:
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < at_once:
                try:
                    exchange = Exchange(address, waiting.pop())
                    selector.register(exchange.socket, exchange.wanted(), exchange)
                except OSError as error:
                    ends[cause(error)] += 1
            for key, events in selector.select(1):
                end = key.data.step(events)
                if end is not None:
                    ends[end] += 1
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                elif key.data.wanted() != key.events:
                    selector.modify(key.fileobj, key.data.wanted(), key.data)
            if time.monotonic() > deadline:
                ends["no answer"] += len(selector.get_map()) + len(waiting)
                for key in list(selector.get_map().values()):
                    key.fileobj.close()
                break
    return ends


def together(path, bodies):
    def prepare(address, model):
        requests = [post(path, body(model) if callable(body) else body) for body in bodies]
        return lambda _: send_all(address, requests, len(requests))
    return prepare


def text(size):
    r = random.Random(1)
    return " ".join(r.choice(WORDS) for _ in range(size // 4))[:size]


def long_words(size):
    r = random.Random(2)
    return " ".join("".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=100_000)) for _ in range(size // 100_000))


def noise(size):
    """Random characters of all of Unicode, about `size` bytes in UTF-8."""
    r = random.Random(3)
    points = [p for p in (r.randrange(0x20, 0x110000) for _ in range(size // 4)) if not 0xd800 <= p < 0xe000]
    return "".join(map(chr, points))


def tokenize(count, make, size):
    def prepare(address, model):
        body = json.dumps({"prompt": make(size)}, ensure_ascii=False).encode()
        return together("/tokenize", [body] * count)(address, model)
    return prepare


def zeros(address, model):
    body = b'{"input_ids":[' + b"0," * (30 * MEGABYTE) + b"0]}"
    return together("/generate", [body])(address, model)


def choices(address, model):
    body = {"input_ids": [5, 6, 7], "sampling_params": {"n": 4096, "max_new_tokens": 4}}
    return together("/generate", [body])(address, model)


def prompts(address, model):
    r = random.Random()

    def run(_):  # new prompts in each round, since the server caches prefixes
        bodies = [{"input_ids": [r.randrange(1, 1000) for _ in range(1000)], "sampling_params": {"max_new_tokens": 1}}
                  for _ in range(64)]
        return send_all(address, [post("/generate", body) for body in bodies], 64)
    return run


def hold(address, count, until, feed=None):
    """Keeps `count` connections open. Twice a second, connection i sends the bytes that `feed(i)` returns."""
    ends, held = collections.Counter(), []
    for _ in range(count):
        try:
            held.append(connect(address))
        except OSError as error:
            ends[cause(error)] += 1
    while time.monotonic() < until:
        time.sleep(0.5)
        for i, sock in enumerate(held if feed else []):
            try:
                sock.send(feed(i))
            except OSError:
                pass  # the server has closed the connection; this is counted below
    for sock in held:
        try:
            data = sock.recv(1 << 12)
            ends[data[9:12].decode(errors="replace") or "closed"] += 1
        except BlockingIOError:
            ends["open"] += 1
        except OSError as error:
            ends[cause(error)] += 1
        sock.close()
    return ends


def idle(address, _):
    return lambda until: hold(address, 4096, until)


def slowloris(address, _):
    """Half of the connections never complete a header, the other half never complete a body."""
    def run(until):
        started = set()

        def feed(i):
            if i not in started:
                started.add(i)
                return b"POST /generate HTTP/1.1\r\nHost: a\r\n" + (b"" if i % 2 else b"Content-Length: 100000\r\n\r\n")
            return b"X-%d: a\r\n" % len(started) if i % 2 else b"{"
        return hold(address, 512, until, feed)
    return run


def disconnects(address, model):
    """Disconnects 1000 streams, half immediately and half after their first token, alternately with RST and FIN."""
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "stream": True}
    request = post("/v1/completions", body)

    def run(_):
        ends = collections.Counter()
        for start in range(0, 1000, 50):
            clients = []
            for i in range(start, start + 50):
                try:
                    sock = connect(address)
                    sock.send(request)
                    clients.append((i, sock))
                except OSError as error:
                    ends[cause(error)] += 1
            for i, sock in clients:
                if i % 2:
                    sock.settimeout(10)
                    try:
                        seen = b""
                        while b"data: " not in seen:
                            data = sock.recv(1 << 12)
                            seen += data
                            if not data:
                                break
                        if seen[9:12] != b"200":
                            ends[seen[9:12].decode(errors="replace") or "no answer"] += 1
                            continue
                    except OSError as error:
                        ends[cause(error)] += 1
                        continue
                reset(sock) if i % 4 < 2 else sock.close()
                ends["hung up"] += 1
        return ends
    return run


ALL = {
    "tokenize-1x5MB": tokenize(1, text, 5 * MEGABYTE),
    "tokenize-2x5MB": tokenize(2, text, 5 * MEGABYTE),
    "tokenize-8x5MB": tokenize(8, text, 5 * MEGABYTE),
    "tokenize-2x60MB": tokenize(2, text, 60 * MEGABYTE),
    "long-words": tokenize(2, long_words, 5 * MEGABYTE),
    "noise": tokenize(2, noise, 5 * MEGABYTE),
    "zeros-60MB": zeros,
    "n-4096": choices,
    "prompts-64x1000": prompts,
    "idle-4096": idle,
    "disconnects-1000": disconnects,
    "slowloris": slowloris,
}


def _run(pipe, name, address, model, seconds):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    try:
        disturb = ALL[name](address, model)
        pipe.send("ready")
        pipe.recv()
        ends, rounds, start = collections.Counter(), 0, time.monotonic()
        while True:
            ends += disturb(start + seconds)
            rounds += 1
            if time.monotonic() >= start + seconds:
                break
        pipe.send({"requests": dict(ends), "rounds": rounds, "seconds": time.monotonic() - start})
    except Exception:
        pipe.send({"error": traceback.format_exc()})


class Disturber:
    """The process of one disturbance. Prepares the disturbance, and after go() runs rounds for `seconds`. The last
    round is completed."""

    def __init__(self, name, host, port, model, seconds):
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_run, args=(other, name, (host, port), model, seconds), daemon=True)
        self.process.start()
        other.close()
        self.ready = self.receive()

    def receive(self):
        answer = self.pipe.recv()
        if isinstance(answer, dict) and "error" in answer:
            raise SystemExit(answer["error"])
        return answer

    def go(self):
        self.pipe.send("go")

    def running(self):
        return not self.pipe.poll(0)

    def result(self):
        result = self.receive()
        self.process.join(10)
        self.process.kill()
        return result
