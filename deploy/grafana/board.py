#!/usr/bin/env python3
"""Writes the Grafana board of servers, switchyard.json, next to this file: deploy/grafana/board.py [--check].

The JSON file repeats defaults for each panel, so changes are made here. With --check, fails if the file is not current.
"""
from panels import (ANY_BAD, NEUTRAL, RATE, annotation, board, graph, heatmap, of, quantile, quantiles, rate, ratio, stat,
                    states, steps, total, variable, write)

FIRST_TOKEN, BETWEEN_TOKENS = "time_to_first_token_seconds", "inter_token_latency_seconds"
# The thresholds of latencies, KV pages and balancedness equal the limits in deploy/prometheus/alerts.yaml.
SLOW_FIRST, SLOW_TOKEN = steps("green", (5, "orange"), (10, "red")), steps("green", (0.2, "orange"), (0.5, "red"))
KV_USED = steps("green", (0.8, "orange"), (0.95, "red"))
EVEN = steps("red", (0.7, "orange"), (0.85, "green"))
KV_FRACTION = ratio(total("kv_pages", 'state="used"', "instance, group"), total("kv_pages", by="instance, group"))

SERVE = 'sum(switchyard_serving_ranks{job=~"$job"} > bool 0)'
OVERVIEW = [
    stat("Servers that serve", "Servers of the job with ranks that serve, also while they drain. Not limited to the selected "
         "instances.", "none", f"{SERVE} or vector(0)", steps("red", (1, "green"))),
    stat("Servers that do not serve", "Servers of the job that load or have no ranks, or whose last scrape failed. Not limited "
         "to the selected instances.", "none", f'count(up{{job=~"$job"}}) - ({SERVE} or vector(0))', ANY_BAD),
    stat("Alerts", "Alerts of deploy/prometheus/alerts.yaml that fire. The alert has the text of its runbook.", "none",
         'count(ALERTS{alertname=~"Switchyard.+", alertname!~"SwitchyardRoute.+", alertstate="firing"}) or vector(0)', ANY_BAD),
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
    graph("Load", "Running and waiting requests as fractions of their limits. A full queue rejects requests. No data of waiting "
          "requests with --max-queued-requests 0.", "percentunit",
          [(ratio(total("running_requests"), total("max_running_requests")), "{{instance}} running"),
           (ratio(total("waiting_requests"), total("max_waiting_requests")), "{{instance}} waiting")],
          limits=steps("green", (0.8, "orange"), (1, "red"))),
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

# The number of the state in the list of the panel.
STATE = " + ".join([total("state", 'state="ready"')] + [
    f"{number} * {total('state', words)}" for number, words in enumerate(
        ('state="draining"', 'state="restarting"', 'state="lost"'), 2)])
RANKS = [
    graph("Ranks that serve", "Ranks of the present layout, and those that serve now: all or none, because each pass needs all ranks. The "
          "layout changes by POST /scale_elastic_ep.", "none",
          [(total("ranks"), "{{instance}}"), (total("serving_ranks"), "{{instance}} that serve")]),
    states("State of the servers", "starting: the ranks load. restarting: requests wait for new ranks. draining: no new requests. "
           "lost: the server ends.", [(STATE, "{{instance}}")],
           [("starting", "blue"), ("ready", "green"), ("draining", "yellow"), ("restarting", "orange"), ("lost", "red")]),
    graph("Versions and models", "Servers by version and model.", "none",
          [(f"count by (version, model_name) ({of('info')})", "{{model_name}} {{version}}")]),
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
    graph("Time in MoE layers", "Time of a rank in dispatch, experts and combine, per pass. Dispatch and combine include waits "
          "for other ranks. On GPUs one pass in 64 is timed.", "s",
          [(f'{rate("moe_seconds_total", by="instance, rank, stage")} / on (instance) group_left '
            f'{rate("moe_timed_passes_total", by="instance")}', "{{instance}} rank {{rank}} {{stage}}")]),
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
    """Responses of these statuses per second, without those that do not occur; 0 if none occurs."""
    return rate("http_responses_total", f'status=~"{status}"', "route, status") + " > 0 or on () vector(0)"


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

# A server serves one model, so the model limits the list of instances.
VARIABLES = [
    variable("job", "Job", "label_values(switchyard_info, job)"),
    variable("model", "Model", 'label_values(switchyard_info{job=~"$job"}, model_name)'),
    variable("instance", "Instance", 'label_values(switchyard_info{job=~"$job", model_name=~"$model"}, instance)'),
]
ANNOTATIONS = [
    annotation("Alerts", "red", 'ALERTS{alertname=~"Switchyard.+", alertname!~"SwitchyardRoute.+", alertstate="firing"}',
               "{{alertname}}"),
    annotation("Ends of ranks", "orange", f"increase({of('rank_deaths_total')}{RATE}) > 0", "Rank ended"),
]

if __name__ == "__main__":
    write(__file__, board("switchyard", "Switchyard", "Servers of Switchyard. Made by deploy/grafana/board.py; "
                          "docs/monitoring.md describes it.", ROWS, VARIABLES, ANNOTATIONS))
