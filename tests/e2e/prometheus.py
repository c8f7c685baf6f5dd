"""Starts a real Prometheus with the configuration and the alert rules in deploy/prometheus."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from server import ROOT, free_port

RULES = ROOT / "deploy/prometheus"


def installed():
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


def promtool(*arguments):
    """Runs promtool. Returns (exit code, output)."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def configuration(server, router):
    """deploy/prometheus/prometheus.yaml with other targets (host:port), and an interval of one second."""
    text = (RULES / "prometheus.yaml").read_text()
    for old, new in (("localhost:30000", server), ("localhost:8000", router), ("interval: 15s", "interval: 1s"),
                     ("[alerts.yaml, route_alerts.yaml]", f"[{RULES / 'alerts.yaml'}, {RULES / 'route_alerts.yaml'}]")):
        assert old in text, old
        text = text.replace(old, new)
    return text


class Prometheus:
    """A running Prometheus that scrapes a server and a router. Its first scrape is about 5 s after its start."""

    def __init__(self, server, router):
        self.folder = tempfile.TemporaryDirectory(prefix="prometheus-")
        folder = pathlib.Path(self.folder.name)
        (folder / "prometheus.yaml").write_text(configuration(*(target.url.split("//")[1] for target in (server, router))))
        self.log = open(folder / "log", "w+")
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={address}", "--log.level=warn"], stdout=self.log, stderr=self.log)
        end = time.time() + 60
        while not self.ready():
            if self.process.poll() is not None or time.time() > end:
                text = self.text()
                self.__exit__()
                raise AssertionError(f"Prometheus has no data:\n{text}")
            time.sleep(0.1)

    def ready(self):
        """Whether Prometheus has scraped the targets."""
        try:
            return [value for _, value in self.query("up")] == [1, 1]
        except (OSError, ValueError):  # not listening yet, or a response without JSON while it starts
            return False

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def get(self, path, **parameters):
        """The field `data` of a response of the HTTP API. Raises AssertionError if the response is an error."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                body = json.load(response)
        except urllib.error.HTTPError as error:
            body = json.loads(error.read())
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression):
        """Result of a query now: a list of (labels, value)."""
        data = self.get("query", query=expression)
        assert data["resultType"] == "vector", data
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def wait_above(self, expression, bound, seconds=60):
        """Waits until a query with a single result is above `bound`. Returns the value."""
        end = time.time() + seconds
        while not (result := self.query(expression)) or result[0][1] <= bound:
            assert time.time() < end, f"{expression} is {result} after {seconds} s, not above {bound}"
            time.sleep(0.2)
        return result[0][1]

    def alerts(self):
        """Active alerts: {name: alert}."""
        return {alert["labels"]["alertname"]: alert for alert in self.get("alerts")["alerts"]}

    def wait_alert(self, name, states, seconds=20):
        end = time.time() + seconds
        while (alert := self.alerts().get(name)) is None or alert["state"] not in states:
            assert time.time() < end, f"{name} is not {states}: {self.alerts()}"
            time.sleep(0.2)
        return alert

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        self.folder.cleanup()
