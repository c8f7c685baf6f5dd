"""The server under test: starts `switchyard serve`, queries its state, and reads memory and descriptors of processes."""
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("SWITCHYARD", str(ROOT / "build/release/switchyard"))
MODEL = ROOT / "models/yardling"
RANKS = ["--device", "cpu", "--tp", "2", "--ep", "2"]
START_SECONDS = 120


def raise_descriptor_limit():
    """Raises the limit of this process and its children: each connection needs a descriptor."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def process_memory(pid):
    """Resident bytes; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def descriptors(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Served:
    """A server at `host`:`port`. `pid` is its front process, or None if this class did not start the server."""

    def __init__(self, host, port, process=None, log=None):
        self.host, self.port = host, port
        self.process, self.log = process, log
        self.pid = process.pid if process else None

    @classmethod
    def start(cls, program, model, flags=()):
        """Starts a server. The caller must stop it in a `finally` block, which then also runs on SIGTERM."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        log = tempfile.NamedTemporaryFile("w+", prefix="switchyard-", suffix=".log")
        command = [program, "serve", "--model-path", str(model), "--port", "0", *RANKS, *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True)
        server = cls("127.0.0.1", 0, process, log)
        line = process.stdout.readline()  # the server prints one line; empty if the server exits
        found = re.search(r"ready at http://([^:/\s]+):(\d+)", line)
        if not found:
            process.kill()
            process.wait()
            raise SystemExit(f"{' '.join(command)}\nexited before it was ready:\n{server.log_tail()}")
        server.host, server.port = found[1], int(found[2])
        return server

    @classmethod
    def at(cls, url):
        found = re.fullmatch(r"http://([^:/\s]+):(\d+)/?", url)
        if not found:
            raise SystemExit(f"--url {url}: want a URL such as http://127.0.0.1:30000")
        return cls(found[1], int(found[2]))

    def log_tail(self, characters=3000):
        return pathlib.Path(self.log.name).read_text(errors="replace")[-characters:] if self.log else ""

    def running(self):
        return self.process is None or self.process.poll() is None

    def ranks(self):
        """Pids of the rank processes, in the order in which they were started."""
        found = set()
        for task in pathlib.Path(f"/proc/{self.pid}/task").glob("*/children"):
            found.update(int(pid) for pid in task.read_text().split())
        return sorted(found)

    def processes(self):
        """Name and pid of each process; empty if this class did not start the server."""
        if self.pid is None:
            return {}
        return {"front": self.pid, **{f"rank {i}": pid for i, pid in enumerate(self.ranks())}}

    def request(self, method, path, body=None, timeout=60):
        """Returns (status, parsed JSON or text)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def states(self):
        """Returns a dictionary of counters for each attention group."""
        status, answer = self.request("GET", "/get_server_info")
        if status != 200:
            raise OSError(f"/get_server_info returned {status}: {answer}")
        return answer["internal_states"]

    def wait_until_open(self, most, seconds=60):
        """Waits until at most `most` requests are open. Returns False after `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if sum(state["open_requests"] for state in self.states()) <= most:
                    return True
            except OSError:
                pass  # no connection is free yet, or the server is busy
            time.sleep(0.05)
        return False

    def stop(self, seconds=60):
        """Ends a server that start() started. Returns its exit code, or None if it had to be killed."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
