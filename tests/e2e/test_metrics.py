"""GET /metrics: metrics of requests under the names of this server, SGLang and vLLM."""
import json
import pathlib
import re
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "metrics.md"
YARDLING = ROOT / "models" / "yardling"
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server():
    with Server(YARDLING, "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", "small",
                "--max-running-requests", 2) as s:
        yield s


class Page:
    def __init__(self, server):
        status, text = server.request("/metrics")
        assert status == 200, text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        assert len(self.families) == text.count("# TYPE ")
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __getitem__(self, name):
        """The value of a metric, summed over all its labels."""
        found = [sample.value for sample in self.samples if sample.name == name]
        assert found, name
        return sum(found)

    def of(self, name, **labels):
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())


def chat(server, **fields):
    body = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **GREEDY, **fields}
    return server.request("/v1/chat/completions", body)


def test_a_request_has_the_same_values_under_all_names(server):
    before = Page(server)
    status, answer = chat(server, max_tokens=6)
    assert status == 200, answer
    after = Page(server)

    def grown(name):
        return after[name] - before[name]

    usage = answer["usage"]
    for prefix in ("switchyard_", "sglang:", "vllm:"):
        assert grown(f"{prefix}prompt_tokens_total") == usage["prompt_tokens"]
        assert grown(f"{prefix}generation_tokens_total") == usage["completion_tokens"] == 6
        assert grown(f"{prefix}time_to_first_token_seconds_count") == 1
        assert grown(f"{prefix}time_to_first_token_seconds_sum") > 0
        assert grown(f"{prefix}inter_token_latency_seconds_count") == 5
    for name in ("switchyard_request_latency_seconds", "sglang:e2e_request_latency_seconds",
                 "vllm:e2e_request_latency_seconds", "switchyard_queue_time_seconds", "sglang:queue_time_seconds",
                 "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
                 "vllm:request_time_per_output_token_seconds"):
        assert grown(name + "_count") == 1, name
        assert grown(name + "_sum") >= 0, name
    assert grown("vllm:request_generation_tokens_sum") == 6
    reason = after.of("vllm:request_success_total", finished_reason="length", model_name="small")
    assert reason == before.of("vllm:request_success_total", finished_reason="length") + 1


def test_cached_tokens_raise_the_hit_rate(server):
    text = "A long prompt that the second request repeats, word for word. " * 8
    body = {"prompt": text, "max_tokens": 1, **GREEDY}
    assert server.request("/v1/completions", body)[0] == 200
    before = Page(server)
    cached = server.request("/v1/completions", body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    after = Page(server)
    assert cached > 0
    assert after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"] == cached
    assert after["sglang:cache_hit_rate"] > before["sglang:cache_hit_rate"]


def test_running_waiting_and_aborted_requests_count(server):
    before = Page(server)
    body = {"text": ["a"] * 12, "sampling_params": {**GREEDY, "max_new_tokens": 900}, "stream": True}
    request = urllib.request.Request(server.url + "/generate", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        response.readline()
        end = time.time() + 20
        while (page := Page(server))["vllm:num_requests_running"] != 2:
            assert time.time() < end
        assert page["vllm:num_requests_waiting"] == page["sglang:num_queue_reqs"] > 0
        assert page["sglang:num_running_reqs"] == 2
        assert page["vllm:kv_cache_usage_perc"] > 0
    server.wait_idle()
    after = Page(server)

    def grown(name):
        return after[name] - before[name]

    aborted = grown("sglang:num_aborted_requests_total")
    assert aborted > 0 and grown("sglang:num_requests_total") == 12
    assert grown("vllm:e2e_request_latency_seconds_count") == 12 - aborted


def test_copies_of_a_prompt_are_generations(server):
    before = Page(server)
    status, answer = chat(server, n=3, temperature=1)
    assert status == 200, answer
    after = Page(server)
    assert after["switchyard_requests_total"] - before["switchyard_requests_total"] == 3
    assert after["vllm:request_params_n_sum"] - before["vllm:request_params_n_sum"] == 3
    assert after["vllm:request_params_n_count"] - before["vllm:request_params_n_count"] == 1


def test_responses_count_by_route_and_status(server):
    def count(page, status, route="/v1/models/{id}"):
        return page.of("switchyard_http_responses_total", route=route, method="GET", status=status)

    def grown(page):
        return [count(page, *kind) - count(before, *kind) for kind in (("200",), ("404",), ("404", "unmatched"))]

    before = Page(server)
    assert server.request("/nothing")[0] == 404
    assert server.request("/v1/models/small")[0] == 200
    assert server.request("/v1/models/absent")[0] == 404
    end = time.time() + 20  # a response counts only after it has been sent
    while 0 in grown(page := Page(server)):
        assert time.time() < end
        time.sleep(0.05)
    assert grown(page) == [1, 1, 1]
    assert page.of("sglang:http_responses_total", endpoint="unmatched", status_code="404") > 0


def test_probes_of_the_engine_are_not_requests(server):
    before = Page(server)
    assert server.request("/health_generate")[0] == 200
    assert Page(server)["switchyard_requests_total"] == before["switchyard_requests_total"]


def test_buckets_are_cumulative(server):
    for family in Page(server).families.values():
        if family.type != "histogram":
            continue
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        values = [s.value for s in buckets]
        assert values == sorted(values) and buckets[-1].labels["le"] == "+Inf", family.name
        assert values[-1] == next(s.value for s in family.samples if s.name.endswith("_count"))


def test_the_document_lists_exactly_the_names_of_the_page(server):
    listed = set()
    for row in DOCUMENT.read_text().split("\n"):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("| quantity"):
            prefixes = {i: cell.strip("`") for i, cell in enumerate(cells) if cell.startswith("`")}
        elif row.startswith("|") and not row.startswith("|--"):
            for i, prefix in prefixes.items():
                plain = re.sub(r"\([^)]*\)", "", cells[i])  # labels
                listed |= {prefix + name for name in re.findall(r"`([^`]+)`", plain)}
    # The parser removes `_total` from names of counters.
    assert {name.removesuffix("_total") for name in listed} == set(Page(server).families)
