#!/usr/bin/env python3
"""Writes the Grafana board switchyard.json next to this file: deploy/grafana/board.py [--check].

The JSON file repeats defaults for each panel, so changes are made here. With --check, fails if the file is not current.
"""
import json
import pathlib
import sys

FILE = pathlib.Path(__file__).with_name("switchyard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTED = 'job=~"$job", instance=~"$instance"'
RATE = "[$__rate_interval]"
GRID = 24  # columns of Grafana's grid


def of(name, labels=""):
    """The selected series of a metric."""
    return f"switchyard_{name}{{{SELECTED}{', ' if labels else ''}{labels}}}"


def rate(name, labels="", by=""):
    """Increase per second, summed over all labels except `by`."""
    return f"sum{f' by ({by}) ' if by else ''}(rate({of(name, labels)}{RATE}))"


def total(name, labels="", by="instance"):
    return f"sum by ({by}) ({of(name, labels)})"


def ratio(part, whole):
    return f"{part} / {whole}"


def quantile(q, name):
    return f"histogram_quantile({q}, {rate(name + '_bucket', by='le')})"


def quantiles(*names):
    """p50, p90 and p99 of histograms of seconds; each name is (metric, words before p50)."""
    return [(quantile(q, name), f"{words}p{q * 100:.0f}") for name, words in names for q in (0.5, 0.9, 0.99)]


def steps(first, *limits):
    """Thresholds: the first colour, then (value, colour) pairs."""
    return {"mode": "absolute", "steps": [{"color": first, "value": None}] +
            [{"color": color, "value": value} for value, color in limits]}


def panel(kind, title, about, unit, queries, width, height, defaults, options):
    targets = [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend, "editorMode": "code",
                "range": True} for i, (expr, legend) in enumerate(queries)]
    return {"type": kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets,
            "gridPos": {"w": width, "h": height}, "options": options,
            "fieldConfig": {"defaults": {"unit": unit, **defaults}, "overrides": []}}


def graph(title, about, unit, queries, width=8, limits=None, stack=False, lowest=0, highest=None):
    """A time series. `limits`: thresholds, drawn as dashed lines."""
    defaults = {
        "color": {"mode": "palette-classic"}, "min": lowest, "thresholds": limits or steps("green"),
        "custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 40 if stack else 8, "showPoints": "never",
                   "stacking": {"mode": "normal" if stack else "none", "group": "A"},
                   "thresholdsStyle": {"mode": "dashed" if limits else "off"}}}
    if highest is not None:
        defaults["max"] = highest
    options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, about, unit, queries, width, 8, defaults, options)


def stat(title, about, unit, expr, limits, width=3):
    options = {"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "value",
               "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return panel("stat", title, about, unit, [(expr, "")], width, 4,
                 {"color": {"mode": "thresholds"}, "thresholds": limits}, options)


def heatmap(title, about, name, width=8):
    options = {"calculate": False, "cellGap": 1, "filterValues": {"le": 1e-9}, "legend": {"show": True},
               "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64},
               "rowsFrame": {"layout": "auto"}, "tooltip": {"show": True, "yHistogram": False},
               "yAxis": {"axisPlacement": "left", "unit": "s"}}
    made = panel("heatmap", title, about, "short", [(f"sum by (le) (increase({of(name + '_bucket')}{RATE}))", "{{le}}")],
                 width, 8, {}, options)
    made["targets"][0]["format"] = "heatmap"
    return made


def states(title, about, queries, mappings, width=8):
    options = {"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.9,
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
               "tooltip": {"mode": "single", "sort": "none"}}
    shown = {str(value): {"text": text, "color": color, "index": value} for value, (text, color) in enumerate(mappings)}
    defaults = {"color": {"mode": "thresholds"}, "thresholds": steps("transparent"),
                "mappings": [{"type": "value", "options": shown}], "custom": {"fillOpacity": 80, "lineWidth": 0}}
    return panel("state-timeline", title, about, "none", queries, width, 8, defaults, options)


FIRST_TOKEN, BETWEEN_TOKENS = "time_to_first_token_seconds", "inter_token_latency_seconds"
# The thresholds of latencies, KV pages and balancedness equal the limits in deploy/prometheus/alerts.yaml.
SLOW_FIRST, SLOW_TOKEN = steps("green", (5, "orange"), (10, "red")), steps("green", (0.2, "orange"), (0.5, "red"))
KV_USED = steps("green", (0.8, "orange"), (0.95, "red"))
EVEN = steps("red", (0.7, "orange"), (0.85, "green"))
ANY_BAD = steps("green", (1, "red"))
NEUTRAL = steps("blue")
KV_FRACTION = ratio(total("kv_pages", 'state="used"', "instance, group"), total("kv_pages", by="instance, group"))

OVERVIEW = [
    stat("Servers that serve", "Servers of the job whose last scrape succeeded. A server that loads or drains does not count. "
         "Not limited to the selected instances.", "none", 'sum(up{job=~"$job"})', steps("red", (1, "green"))),
    stat("Servers that do not serve", "Servers of the job whose last scrape failed. Not limited to the selected instances.",
         "none", 'sum(1 - up{job=~"$job"})', ANY_BAD),
    stat("Alerts", "Alerts of deploy/prometheus/alerts.yaml that fire. The alert has the text of its runbook.", "none",
         'count(ALERTS{alertname=~"Switchyard.+", alertstate="firing"}) or vector(0)', ANY_BAD),
    stat("Submitted requests", "Generations submitted per second.", "reqps", rate("requests_total"), NEUTRAL),
    stat("Generated tokens", "Tokens generated per second by all selected servers.", "short", rate("generation_tokens_total"),
         NEUTRAL),
    stat("First token p99", "Time to first token that 1 % of the requests exceed.", "s", quantile(0.99, FIRST_TOKEN), SLOW_FIRST),
    stat("Between tokens p99", "Inter-token latency that 1 % of the tokens exceed.", "s", quantile(0.99, BETWEEN_TOKENS),
         SLOW_TOKEN),
    stat("Fullest KV cache", "Fraction of the KV pages that requests use, in the fullest attention group.", "percentunit",
         f"max({KV_FRACTION})", KV_USED),
]

REQUESTS = [
    graph("Requests by end", "Generations that end per second. stop: the model ended it. length: at its token limit. abort: the "
          "client left or aborted it.", "reqps", [(rate("requests_finished_total", by="reason"), "{{reason}}"),
                                                  (rate("requests_total"), "submitted")]),
    graph("Tokens", "Tokens per second of all selected servers. Cached prompt tokens are not computed.", "short",
          [(rate("generation_tokens_total"), "generated"), (rate("prefill_tokens_total"), "prompt, computed"),
           (rate("cached_prompt_tokens_total"), "prompt, cached")]),
    graph("Generated tokens by server", "Tokens generated per second.", "short",
          [(rate("generation_tokens_total", by="instance"), "{{instance}}")]),
    graph("HTTP responses", "Responses per second by status.", "reqps",
          [(rate("http_responses_total", by="status"), "{{status}}")], stack=True),
    graph("Open HTTP requests", "HTTP requests without a complete response.", "short",
          [(total("http_open_requests"), "{{instance}}")]),
    graph("Size of requests", "Mean tokens of the prompt and of the output. The values count when a generation ends.", "short",
          [(ratio(rate("request_prompt_tokens_sum"), rate("request_prompt_tokens_count")), "prompt"),
           (ratio(rate("request_generation_tokens_sum"), rate("request_generation_tokens_count")), "output")]),
]

LATENCY = [
    graph("Time to first token", "From submission to the first token. Includes the time in the queue.", "s",
          quantiles((FIRST_TOKEN, "")), limits=SLOW_FIRST),
    graph("Inter-token latency", "Time between two tokens of a stream.", "s", quantiles((BETWEEN_TOKENS, "")), limits=SLOW_TOKEN),
    graph("Latency of requests", "From submission to the last token. Aborted requests do not count.", "s",
          quantiles(("request_latency_seconds", ""))),
    heatmap("First tokens", "Requests by their time to first token. Two bands mean two kinds of requests.", FIRST_TOKEN),
    heatmap("Tokens by latency", "Tokens by the time since the previous token.", BETWEEN_TOKENS),
    graph("Queue and prefill", "Parts of the time to first token: in the scheduler's queue, and from admission to the first token.",
          "s", quantiles(("queue_time_seconds", "queue "), ("prefill_time_seconds", "prefill "))),
]

CACHED = rate("cached_prompt_tokens_total", by="instance")
QUEUE = [
    graph("Waiting requests", "Requests in the queue of the scheduler.", "short", [(total("waiting_requests"), "{{instance}}")]),
    graph("Running requests", "Requests in the running set. At most --max-running-requests.", "short",
          [(total("running_requests"), "{{instance}}")]),
    graph("Steps", "Steps per second of an attention group, and tokens per step.", "short",
          [(rate("steps_total", by="instance, group"), "{{instance}} group {{group}}"),
           (ratio(rate("decode_tokens_total"), rate("steps_total")), "generated tokens per step")]),
    graph("KV pages used", "Fraction of the KV pages that requests use. Pages that only cache prefixes do not count.",
          "percentunit", [(KV_FRACTION, "{{instance}} group {{group}}")], limits=KV_USED, highest=1),
    graph("KV pages by state", "used: by requests. cached: prefixes that can be freed. free: empty.", "short",
          [(total("kv_pages", by="state"), "{{state}}")], stack=True),
    graph("Prefix cache hits", "Fraction of the prompt tokens found in the prefix cache.", "percentunit",
          [(ratio(CACHED, f"({CACHED} + {rate('prefill_tokens_total', by='instance')})"), "{{instance}}"),
           (f"avg({of('cache_hit_rate')})", "last 1000 requests")], highest=1),
    graph("Retractions", "Requests per second that lose their KV pages to others, and compute them again later.", "short",
          [(rate("retractions_total", by="instance"), "{{instance}}")], limits=steps("green", (0.1, "red"))),
]

RANKS = [
    graph("Ranks of the layout", "Ranks of the present layout. It changes by POST /scale_elastic_ep.", "none",
          [(total("ranks"), "{{instance}}")]),
    graph("Ends of ranks", "Ends that were not requested, and planned changes, in the last 15 minutes. Requests continue.", "short",
          [(f"sum by (instance) (increase({of('rank_deaths_total')}[15m]))", "{{instance}} ended"),
           (f"sum by (instance) (increase({of('rank_changes_total')}[15m]))", "{{instance}} planned")],
          limits=steps("green", (1, "orange"), (4, "red"))),
    graph("Time without ranks", "Fraction of the time in which no ranks serve, because they start again.", "percentunit",
          [(rate("pause_seconds_total", by="instance"), "{{instance}}")], limits=steps("green", (0.8, "red")), highest=1),
    graph("Starts of the ranks", "Each start begins an epoch. A value of 1 means no restart since the server's start.", "none",
          [(total("epoch"), "{{instance}}")]),
    states("Planned changes", "Time in which POST /scale_elastic_ep runs.", [(total("rank_change_running"), "{{instance}}")],
           [("none", "transparent"), ("running", "blue")]),
]

EXPERTS = [
    graph("Balancedness", "Mean load of the EP ranks divided by the highest load, over the last passes. 1 is even; on R ranks, "
          "1 / R is worst.", "percentunit",
          [(total("eplb_balancedness", 'passes=~"10|100|1000"', "instance, passes"), "{{instance}} last {{passes}}")],
          limits=EVEN, highest=1),
    graph("Balancedness since the last migration", "Load that the next plan of EPLB uses.", "percentunit",
          [(total("eplb_window_balancedness"), "{{instance}}")], limits=EVEN, highest=1),
    graph("Load of the EP ranks", "Token rows per second that the experts of a rank compute.", "short",
          [(rate("eplb_gpu_physical_count_total", by="instance, rank"), "{{instance}} rank {{rank}}")]),
    graph("Migrations", "Since the start of the ranks: layers with a new placement, and experts that rank 0 has loaded or "
          "received.", "short",
          [(total("eplb_layers_moved_total"), "{{instance}} layers"), (total("eplb_experts_loaded_total"), "{{instance}} loaded"),
           (total("eplb_experts_received_total"), "{{instance}} received")]),
    graph("Rebalances", "Since the start of the ranks: plans, completed rebalances, failures and stops by the watchdog.", "short",
          [(total("eplb_plans_total"), "{{instance}} plans"), (total("eplb_rebalances_total"), "{{instance}} completed"),
           (total("eplb_failures_total"), "{{instance}} failed"),
           (total("eplb_watchdog_resets_total"), "{{instance}} stopped")]),
    graph("Layers of the last rebalance", "Layers that the last rebalance moves, and those that it has moved.", "short",
          [(total("eplb_rebalance_layers", by="instance, layers"), "{{instance}} {{layers}}")]),
    states("State of the rebalance", "The state of EPLB, for all selected servers.", [(f"max by (state) ({of('eplb_state')})",
                                                                                   "{{state}}")],
           [("no", "transparent"), ("yes", "blue")]),
    graph("Recorded passes", "Forward passes per second with recorded expert load. No data without the recorder, its metrics and "
          "EPLB.", "short", [(rate("eplb_forward_passes_total", by="instance"), "{{instance}}")]),
]

ACCEPTED = rate("accepted_draft_tokens_total", by="instance")
DRAFTS = [
    graph("Accepted drafts", "Fraction of the draft tokens that equal the sampled tokens. No data without drafts.", "percentunit",
          [(ratio(ACCEPTED, rate("draft_tokens_total", by="instance")), "{{instance}}")], highest=1),
    graph("Tokens per verification", "Tokens that a request gains in a step with drafts: 1 without any accepted draft.", "short",
          [("1 + " + ratio(ACCEPTED, rate("verify_steps_total", by="instance")), "{{instance}}")], lowest=1),
    graph("Accepted drafts by position", "Fraction accepted at each position, of the drafts whose preceding drafts were accepted.",
          "percentunit", [(ratio(rate("accepted_drafts_by_position_total", by="position"),
                                 rate("verified_drafts_by_position_total", by="position")), "position {{position}}")],
          highest=1),
]

def failed(reason):
    return ratio(rate("requests_finished_total", f'reason="{reason}"'), rate("requests_finished_total"))


def responses(status):
    """Responses of these statuses per second; 0 if there was none, because such series then do not exist."""
    return rate("http_responses_total", f'status=~"{status}"', "route, status") + " or on () vector(0)"


ERRORS = [
    graph("Failed generations", "Fraction of the generations that end with an error or at a time limit.", "percentunit",
          [(failed("error"), "error"), (failed("timeout"), "timeout")],
          limits=steps("green", (0.01, "red"))),
    graph("Server errors", "Responses per second with status 500 or more. A server that loads or drains sends 503.", "reqps",
          [(responses("5.."), "{{route}} {{status}}")],
          limits=steps("green", (0.1, "red"))),
    graph("Rejected requests", "Responses per second with status 400 to 499. 429: the queue is full. 401: wrong key. 400: "
          "invalid request.", "reqps", [(responses("4.."), "{{route}} {{status}}")]),
]

ROWS = {"Overview": OVERVIEW, "Requests": REQUESTS, "Latency": LATENCY, "Queue and cache": QUEUE, "Ranks": RANKS,
        "Experts": EXPERTS, "Speculative decoding": DRAFTS, "Errors": ERRORS}


def arrange():
    """All panels with ids and places, row by row."""
    made, y = [], 0
    for title, panels in ROWS.items():
        made.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                     "gridPos": {"x": 0, "y": y, "w": GRID, "h": 1}})
        x, y, high = 0, y + 1, 0
        for p in panels:
            place = p["gridPos"]
            if x + place["w"] > GRID:
                x, y, high = 0, y + high, 0
            place.update(x=x, y=y)
            x, high = x + place["w"], max(high, place["h"])
            made.append(p)
        y += high
    return [{"id": i, **p} for i, p in enumerate(made, 1)]


def variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
            "query": {"query": query, "refId": f"variable-{name}"}, "refresh": 2, "sort": 1, "includeAll": True, "multi": True,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "hide": 0, "options": [], "regex": ""}


def annotation(name, color, expr, title):
    return {"name": name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": color, "expr": expr,
            "titleFormat": title, "textFormat": "{{instance}}", "useValueForTime": False}


# A server serves one model. Only the names of SGLang and vLLM have its name, so it limits the list of instances.
VARIABLES = [
    {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0,
     "includeAll": False, "multi": False, "options": [], "regex": ""},
    variable("job", "Job", "label_values(switchyard_epoch, job)"),
    variable("model", "Model", 'label_values(vllm:num_requests_running{job=~"$job"}, model_name)'),
    variable("instance", "Instance", 'label_values(vllm:num_requests_running{job=~"$job", model_name=~"$model"}, instance)'),
]
ANNOTATIONS = [
    annotation("Alerts", "red", 'ALERTS{alertname=~"Switchyard.+", alertstate="firing"}', "{{alertname}}"),
    annotation("Ends of ranks", "orange", f"increase({of('rank_deaths_total')}{RATE}) > 0", "Rank ended"),
]
BOARD = {
    "uid": "switchyard", "title": "Switchyard", "tags": ["switchyard", "llm"], "schemaVersion": 38, "version": 1,
    "description": "Servers of Switchyard. Made by deploy/grafana/board.py; docs/monitoring.md describes it.",
    "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
    "templating": {"list": VARIABLES}, "annotations": {"list": ANNOTATIONS}, "links": [], "panels": arrange(),
}


def main():
    text = json.dumps(BOARD, indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not FILE.is_file() or FILE.read_text() != text:
            sys.exit(f"{FILE} is not current: run {pathlib.Path(__file__).name}")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
