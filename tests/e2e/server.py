"""Starts the program for a test, and ends its processes after the test."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SWITCHYARD", str(ROOT / "build/release/switchyard"))
FIXTURES = ROOT / "tests/data/fixtures"
START_SECONDS = 120
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl_vader_single_copy_mechanism", "none"]


def shared_memory():
    """Names of the program's files in /dev/shm. Its other temporary files are in TMPDIR, which a test may set."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir() if "switchyard" in path.name}


class Server:
    """A running `switchyard serve` on a free port. `log` receives its standard error. `prefix`: a launcher, e.g. mpirun."""

    def __init__(self, model, *flags, env=None, prefix=()):
        self._start([*prefix, PROGRAM, "serve", "--model-path", str(model), "--port", "0", *map(str, flags)], env)

    def _start(self, command, env=None):
        self.command = command
        self.log = tempfile.NamedTemporaryFile("w+", prefix="switchyard-", suffix=".log")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, **(env or {})})
        self.url = self._wait_ready()

    def _wait_ready(self):
        lines = []
        found = threading.Event()

        def read():
            for line in self.process.stdout:
                lines.append(line)
                if "ready at" in line:
                    found.set()
            found.set()

        threading.Thread(target=read, daemon=True).start()
        found.wait(START_SECONDS)
        match = re.search(r"ready at (http://\S+)", "".join(lines))
        if not match:
            self.process.kill()
            raise AssertionError(f"{' '.join(self.command)}\ndid not become ready:\n{self.text()}")
        return match.group(1)

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def ranks(self):
        """Pids of the rank processes, sorted by process title."""
        out = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid=,args="], capture_output=True,
                             text=True).stdout
        found = sorted((line.split(None, 1)[1], int(line.split()[0])) for line in out.splitlines() if "::rank" in line)
        return [pid for _, pid in found]

    def request(self, path, body=None, headers=None, method=None, timeout=120, raw=None):
        """Returns (status, parsed JSON or text)."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})},
                                         method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read().decode(errors="replace")
        with contextlib.suppress(ValueError):
            return status, json.loads(text)
        return status, text

    def states(self):
        """Counters of each attention group, one dictionary per group."""
        return self.request("/get_server_info")[1]["internal_states"]

    def state(self):
        """Counters summed over the attention groups, without lists of counters."""
        states = self.states()
        return {key: sum(state[key] for state in states) for key, value in states[0].items() if not isinstance(value, list)}

    def wait_busy(self, generations=1, seconds=30):
        """Waits until each attention group has at least `generations` open generations and runs at least one."""
        end = time.time() + seconds
        while not all(s["open_requests"] >= generations and s["running_requests"] > 0 for s in self.states()):
            assert time.time() < end, f"not busy: {self.states()}\n{self.text()}"
            time.sleep(0.005)

    def wait_idle(self, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            s = self.state()
            if s["open_requests"] == s["running_requests"] == s["waiting_requests"] == 0:
                return s
            time.sleep(0.05)
        raise AssertionError(f"still busy: {self.state()}")

    def stop(self, sig=signal.SIGTERM, timeout=60):
        """Sends the signal, waits, and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not exit within {timeout} s:\n{self.text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


class OtherNode:
    """`switchyard serve` as node 1 of 2; node 0 listens at `address` (host:port). `prefix`: see Server."""

    def __init__(self, model, address, *flags, env=None, prefix=()):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="switchyard-", suffix=".log")
        command = [*prefix, PROGRAM, "serve", "--model-path", str(model), *map(str, flags), "--nnodes", "2", "--node-rank", "1",
                   "--dist-init-addr", address]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **(env or {})})

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def ranks(self):
        out = subprocess.run(["ps", "--ppid", str(self.process.pid), "-o", "pid="], capture_output=True, text=True)
        return [int(pid) for pid in out.stdout.split()]

    def wait(self):
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def mpi_ranks(server):
    """Pids of the processes started by mpirun, in rank order."""
    out = subprocess.run(["ps", "--ppid", str(server.process.pid), "-o", "pid="], capture_output=True, text=True).stdout
    found = {}
    for pid in map(int, out.split()):
        with contextlib.suppress(OSError):
            for entry in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                    found[int(entry.split(b"=")[1])] = pid
    return [found[rank] for rank in sorted(found)]


def start_rebalance(server, seconds=30):
    """Starts a rebalance, after those that the count of passes starts."""
    end = time.time() + seconds
    while True:
        status, answer = server.request("/eplb/rebalance", {}, method="POST")
        if status != 409 or time.time() > end:
            assert status == 200, answer
            return
        time.sleep(0.01)


def have_ended(pids, seconds=20):
    """Waits until processes that are not children of this process have ended. Returns whether they have."""
    end = time.time() + seconds
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids) and time.time() < end:
        time.sleep(0.05)
    return not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


def free_port(address="127.0.0.1"):
    with socket.socket() as s:
        s.bind((address, 0))
        return s.getsockname()[1]


def fails_to_start(*flags, timeout=60):
    """Runs `serve` with flags that it must reject. Returns (exit code, standard error)."""
    port = [] if "--port" in flags else ["--port", free_port()]
    done = subprocess.run([PROGRAM, "serve", *map(str, [*flags, *port])], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stderr
