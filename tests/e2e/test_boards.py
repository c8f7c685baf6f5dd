"""deploy/grafana and deploy/prometheus: every query of the board and of the alerts returns data of a real Prometheus.

A router is in front of the server. The load runs for --board-seconds, by default 20. Run it for a minute with
`pytest test_boards.py --board-seconds 60`.
"""
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

import prometheus
from server import ROOT, Server, start_rebalance
from test_route import Router

# Slots of two ranks. Rank 1 has few experts, and replicas of them, so the first plan moves experts.
UNEVEN = {"physical_to_logical_map": [[*range(10), *range(10, 16), *range(10, 14)]]}
FLAGS = ["--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--device", "cpu", "--max-total-tokens", 4096,
         "--max-running-requests", 8, "--max-queued-requests", 8, "--ep-num-redundant-experts", 4,
         "--ep-dispatch-algorithm", "balanced", "--enable-eplb", "--eplb-rebalance-num-iterations", 100,
         "--init-expert-location", json.dumps(UNEVEN),
         "--expert-distribution-recorder-mode", "stat", "--enable-expert-distribution-metrics",
         "--speculative-algorithm", "NEXTN", "--speculative-num-steps", 2, "--served-model-name", "yardling (small)"]
CLIENTS = 6
# Expressions that have no data while the servers are sound: no server is missing, and no alert of a router fires.
EMPTY_WITHOUT_FAULTS = {"SwitchyardAbsent", "Alerts of routers"}
BOARDS = {script: json.loads((ROOT / "deploy/grafana" / file).read_text())
          for script, file in (("board.py", "switchyard.json"), ("route_board.py", "switchyard_route.json"))}
RULES = ["alerts", "route_alerts"]
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
needs_prometheus = pytest.mark.skipif(not prometheus.installed(), reason="no prometheus (apt-get install prometheus)")


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("script", BOARDS)
def test_the_board_is_current(script):
    done = subprocess.run([sys.executable, ROOT / "deploy/grafana" / script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@each_board
def test_every_panel_has_a_unit_and_a_description(board):
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles)
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= known, target["expr"]


@each_board
def test_panels_do_not_overlap(board):
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_every_alert_has_a_runbook_a_unit_test_and_a_line_in_the_document():
    every = []
    for rules in RULES:
        text = (prometheus.RULES / f"{rules}.yaml").read_text()
        names = re.findall(r"- alert: (\w+)", text)
        assert names and len(set(names)) == len(names)
        assert text.count("runbook: |") == text.count("summary: ") == text.count("description: ") == len(names)
        tested = set(re.findall(r'alertname="(\w+)"', (prometheus.RULES / f"{rules}_test.yaml").read_text()))
        assert tested == set(names)
        every += names
    listed = re.findall(r"^\| `(Switchyard\w+)` \|", (ROOT / "docs/monitoring.md").read_text(), re.M)
    assert sorted(listed) == sorted(every)


@needs_prometheus
def test_the_rules_pass_their_unit_tests():
    for arguments in (("check", "config", prometheus.RULES / "prometheus.yaml"),
                      *(("test", "rules", prometheus.RULES / f"{rules}_test.yaml") for rules in RULES)):
        code, output = prometheus.promtool(*arguments)
        assert code == 0, output


class Load:
    """Clients that send requests of several kinds to the servers until the context ends."""

    def __init__(self, *servers):
        self.servers, self.ended = servers, threading.Event()
        self.statuses = {}
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(CLIENTS)]

    def run(self, number):
        r = random.Random(number)
        kinds = [self.chat, self.batch, self.burst, self.hang_up, self.wrong]
        while not self.ended.is_set():
            r.choices(kinds, [6, 3, 1, 1, 1])[0](self.servers[number % len(self.servers)], r)

    def count(self, status):
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        if status != 200:
            time.sleep(0.1)  # without a pause, rejected requests would be most of the load

    def chat(self, server, r):
        question = r.choice(["What is dispatch?", "What is EP?", "Hello!", "What is 7 times 8?"])
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": r.choice([8, 40]), "n": r.choice([1, 2])}
        self.count(server.request("/v1/chat/completions", body)[0])

    def generate(self, r, prompts, tokens):
        texts = ["The router sends the tokens to the experts. " * r.choice([1, 4, 12]) for _ in range(prompts)]
        return {"text": texts, "sampling_params": {"temperature": 1, "max_new_tokens": tokens, "ignore_eos": True}}

    def batch(self, server, r):
        self.count(server.request("/generate", self.generate(r, 4, 60))[0])

    def burst(self, server, r):
        """More requests than the queue holds, for status 429."""
        self.count(server.request("/generate", self.generate(r, 24, 20))[0])

    def hang_up(self, server, r):
        body = json.dumps({**self.generate(r, 2, 400), "stream": True}).encode()
        request = urllib.request.Request(server.url + "/generate", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                response.readline()
        except urllib.error.HTTPError as error:
            self.count(error.code)

    def wrong(self, server, r):
        self.count(server.request(r.choice(["/nothing", "/v1/models/absent"]))[0])
        self.count(server.request("/generate", {"sampling_params": {"temperature": -1}})[0])

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(60)


def filled(text, **values):
    """A query of the board with values of its variables, as Grafana inserts them."""
    for name, value in {"__rate_interval": "10s", **values}.items():
        text = re.sub(rf"\$\{{?{name}\b\}}?", lambda _: value.replace("\\", "\\\\"), text)
    assert "$" not in text, text
    return text


def with_values(expression):
    """An alert's expression in which comparisons give 0 or 1 instead of removing series."""
    return re.sub(r" (==|>|<) (?=\d)", r" \1 bool ", expression)


def selected(prom, board):
    """Values of the variables when all are selected, from their own queries."""
    values = {}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = filled(variable["query"]["query"], **values)
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        found = prom.get(f"label/{label}/values", **{"match[]": series})
        assert found, query
        values[variable["name"]] = "|".join(map(re.escape, found)).replace("\\ ", " ")
    return values


def missing(prom, queries):
    """The queries, as (title, expression), that fail or have no number."""
    bad = []
    for title, expression in queries:
        try:
            result = prom.query(expression)
        except AssertionError as error:
            bad.append(f"{title}: {error}")
            continue
        if not any(math.isfinite(value) for _, value in result):
            bad.append(f"{title}: {expression} -> {result}")
    return bad


def queries(prom, board):
    """The queries of a board as (title, expression), with all values of its variables."""
    values = selected(prom, board)
    found = [(panel["title"], filled(target["expr"], **values)) for panel in panels(board) for target in panel["targets"]]
    return found + [(a["name"], filled(a["expr"], __rate_interval="10m", **values)) for a in board["annotations"]["list"]]


@needs_prometheus
def test_every_query_of_the_board_and_of_the_alerts_has_data(request):
    seconds = request.config.getoption("--board-seconds")
    with Server(ROOT / "models/yardling", *FLAGS) as server, Router([server]) as router, \
            prometheus.Prometheus(server, router) as prom:
        with Load(server, router) as load:
            time.sleep(seconds / 4)
            # The next ranks start with the placement that these reach, so they may have nothing to move.
            moved = prom.wait_above("sum(switchyard_eplb_layers_moved_total)", 0)
            os.kill(server.ranks()[1], signal.SIGKILL)
            fired = prom.wait_alert("SwitchyardRankEnded", ["firing"])
            assert fired["labels"]["job"] == "switchyard" and fired["labels"]["severity"] == "ticket", fired
            assert fired["labels"]["instance"] in fired["annotations"]["summary"], fired
            assert "1. The log" in fired["annotations"]["runbook"], fired
            start_rebalance(server)
            time.sleep(seconds * 3 / 4)

            asked = [query for board in BOARDS.values() for query in queries(prom, board)]
            rules = [rule for group in prom.get("rules")["groups"] for rule in group["rules"]]
            assert not [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")], rules
            alerts = [(rule["name"], with_values(rule["query"])) for rule in rules]
            assert EMPTY_WITHOUT_FAULTS <= {name for name, _ in asked + alerts}
            bad = missing(prom, [query for query in asked + alerts if query[0] not in EMPTY_WITHOUT_FAULTS])
            # Those without data must at least be valid.
            for name, expression in asked + alerts:
                if name in EMPTY_WITHOUT_FAULTS:
                    prom.query(expression)
            active = {name: alert["state"] for name, alert in prom.alerts().items()}
        print(f"{len(asked)} queries, {len(alerts)} alerts, responses {load.statuses}, active {active}, moved {moved}")
        assert not bad, "\n".join(bad)
        assert {200, 400, 404, 429} <= set(load.statuses), load.statuses
        assert server.stop() == 0, server.text()
        down = prom.wait_alert("SwitchyardDown", ["pending", "firing"])
        assert down["labels"]["severity"] == "page", down
        alone = prom.wait_alert("SwitchyardRouteNoWorkers", ["pending", "firing"])
        assert alone["labels"]["worker_type"] == "regular", alone
