#!/usr/bin/env python3
"""Writes the Grafana board of routers, switchyard_route.json, next to this file: deploy/grafana/route_board.py [--check].

The JSON file repeats defaults for each panel, so changes are made here. With --check, fails if the file is not current.
"""
from panels import ANY_BAD, NEUTRAL, annotation, board, graph, of, rate, ratio, stat, states, steps, total, variable, write

WORKERS = "instance, worker, worker_type"
WORKER = "{{worker}}"
# The thresholds equal the limits in deploy/prometheus/route_alerts.yaml.
RETRIED = steps("green", (0.1, "red"))
ERRORS = steps("green", (0.05, "red"))

ALERTS = 'ALERTS{alertname=~"SwitchyardRoute.+", alertstate="firing"}'


def recent(name):
    return f"sum(increase({of(name)}[15m]))"


FAILED = ratio(rate("route_http_responses_total", 'status=~"5..", route="/{path}"'),
               rate("route_http_responses_total", 'route="/{path}"'))

OVERVIEW = [
    stat("Routers", "Routers of the job whose last scrape succeeded. Not limited to the selected instances.", "none",
         'sum(up{job=~"$job"})', steps("red", (1, "green"))),
    stat("Healthy workers", "Workers that get requests, over all selected routers.", "none",
         f"sum({of('route_worker_healthy')})", steps("red", (1, "green"))),
    stat("Unhealthy workers", "Workers that get no requests until a health check succeeds.", "none",
         f"sum(1 - {of('route_worker_healthy')})", ANY_BAD),
    stat("Alerts", "Alerts of deploy/prometheus/route_alerts.yaml that fire. The alert has the text of its runbook.", "none",
         f"count({ALERTS}) or vector(0)", ANY_BAD),
    stat("Forwarded requests", "Requests per second to all selected routers, without those about the router itself.", "reqps",
         rate("route_requests_total"), NEUTRAL),
    stat("Open requests", "Requests without a complete response.", "none", f"sum({of('route_http_open_requests')})", NEUTRAL),
    stat("Failed responses", "Fraction of the responses to forwarded requests with status 500 or more.", "percentunit", FAILED,
         ERRORS),
    stat("Cut streams", "Streams that ended without their end in the last 15 minutes, because a worker failed.", "none",
         recent("route_cut_streams_total"), ANY_BAD),
]

REQUESTS = [
    graph("Requests and retries", "Requests per second, and attempts after the first one of a request.", "reqps",
          [(rate("route_requests_total"), "requests"), (rate("route_retries_total"), "retries")]),
    graph("Retries per request", "Attempts after the first one, divided by the requests. Workers that fail or are full cause "
          "them.", "percentunit", [(ratio(rate("route_retries_total", by="instance"), rate("route_requests_total", by="instance")),
                                    "{{instance}}")], limits=RETRIED),
    graph("HTTP responses", "Responses per second by status. The router's own health and metrics count too.", "reqps",
          [(rate("route_http_responses_total", by="status"), "{{status}}")], stack=True),
    graph("Failed responses by router", "Fraction of the responses to forwarded requests with status 500 or more.", "percentunit",
          [(ratio(rate("route_http_responses_total", 'status=~"5..", route="/{path}"', "instance"),
                  rate("route_http_responses_total", 'route="/{path}"', "instance")), "{{instance}}")], limits=ERRORS),
    graph("Open HTTP requests", "HTTP requests without a complete response.", "short",
          [(total("route_http_open_requests"), "{{instance}}")]),
    graph("Attempts without a worker", "Attempts per second that found no healthy worker. The client gets status 503.", "reqps",
          [(rate("route_no_worker_total", by="instance"), "{{instance}}")], limits=steps("green", (0.001, "red"))),
]

WORKER_PANELS = [
    states("Health of the workers", "A worker is unhealthy after failed health checks or requests.",
           [(f"max by ({WORKERS}) ({of('route_worker_healthy')})", WORKER)], [("unhealthy", "red"), ("healthy", "green")]),
    graph("Workers by type", "Healthy workers of each type. Prefill and decode workers need each other.", "none",
          [(total("route_worker_healthy", by="instance, worker_type"), "{{instance}} {{worker_type}}")],
          limits=steps("red", (1, "green"))),
    graph("Requests by worker", "Requests per second sent to each worker, with retries.", "reqps",
          [(rate("route_worker_requests_total", by="worker"), WORKER)]),
    graph("Open requests by worker", "Requests in flight at each worker.", "short",
          [(total("route_worker_open_requests", by="worker"), WORKER)]),
    graph("Failures by worker", "Failed requests and health checks per second.", "short",
          [(rate("route_worker_failures_total", by="worker"), WORKER)]),
    graph("Load of the busiest worker", "Open requests of the busiest worker of a type, divided by the mean. 1 is even. 0 without "
          "open requests.", "short",
          [(ratio(f"max by (instance, worker_type) ({of('route_worker_open_requests')})",
                  f"clamp_min(avg by (instance, worker_type) ({of('route_worker_open_requests')}), 0.001)"),
            "{{instance}} {{worker_type}}")]),
]

STREAMS = [
    graph("Streams of failed workers", "Streams per 15 minutes. cut: the client got an error within the stream. replayed: another "
          "pair of workers continued the stream.", "short",
          [(recent("route_cut_streams_total"), "cut"), (recent("route_replayed_streams_total"), "replayed")], width=12),
    graph("Versions", "Routers by version.", "none", [(f"count by (version) ({of('route_info')})", "{{version}}")], width=12),
]

ROWS = {"Overview": OVERVIEW, "Requests": REQUESTS, "Workers": WORKER_PANELS, "Streams and versions": STREAMS}
VARIABLES = [
    variable("job", "Job", "label_values(switchyard_route_info, job)"),
    variable("instance", "Instance", 'label_values(switchyard_route_info{job=~"$job"}, instance)'),
]
ANNOTATIONS = [annotation("Alerts of routers", "red", ALERTS, "{{alertname}}")]

if __name__ == "__main__":
    write(__file__, board("switchyard_route", "Switchyard routers", "Routers (switchyard route). Made by "
                          "deploy/grafana/route_board.py; docs/monitoring.md describes it.", ROWS, VARIABLES, ANNOTATIONS))
