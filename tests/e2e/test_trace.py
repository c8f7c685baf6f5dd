"""OpenTelemetry traces: a receiver of OTLP/HTTP joins the spans with log lines and responses."""
import http.server
import json
import re
import threading
import time

from server import FIXTURES, Server, fails_to_start, free_port

MODEL = FIXTURES / "qwen3_moe"
FLAGS = ["--tp", 2, "--ep", 2, "--dtype", "float32", "--max-total-tokens", 4096]
PARAMS = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


class Receiver:
    """Collects spans. With `answers` false, it accepts connections and never responds."""

    def __init__(self, answers=True):
        spans = self.spans = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not answers:
                    time.sleep(60)
                    return
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                for group in body["resourceSpans"]:
                    names = {a["key"]: a["value"]["stringValue"] for a in group["resource"]["attributes"]}
                    assert names["service.name"] == "switchyard"
                    for scope in group["scopeSpans"]:
                        spans.extend(scope["spans"])
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, condition, seconds=30):
        end = time.time() + seconds
        while not condition(self.spans):
            assert time.time() < end, self.spans
            time.sleep(0.02)
        return list(self.spans)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def test_spans_profiles_log_lines_and_responses_join_on_one_id(tmp_path):
    with Receiver() as receiver, Server(MODEL, *FLAGS, "--log-requests", "--enable-trace", "--otlp-traces-endpoint",
                                        receiver.url) as server:
        trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        headers = {"X-Request-Id": "mine-1", "traceparent": f"00-{trace}-{parent}-01"}
        assert server.request("/start_profile", {"output_dir": str(tmp_path), "profile_prefix": "joined"})[0] == 200
        status, answer = server.request("/generate", {"input_ids": [5, 6, 7], "sampling_params": PARAMS}, headers)
        assert status == 200, answer
        assert server.request("/stop_profile", method="POST")[0] == 200
        spans = receiver.wait(lambda all: {s["name"] for s in all if s["traceId"] == trace} >=
                              {"POST /generate", "queue", "prefill", "decode"})
        mine = {s["name"]: s for s in spans if s["traceId"] == trace}
        root = mine["POST /generate"]
        assert root["parentSpanId"] == parent and root["kind"] == 2
        assert attributes(root)["request.id"] == "mine-1"
        assert attributes(root)["gen_ai.response.id"] == answer["meta_info"]["id"]
        assert attributes(root)["gen_ai.usage.output_tokens"] == "6"
        times = []
        for name in ("queue", "prefill", "decode"):
            assert mine[name]["parentSpanId"] == root["spanId"]
            assert attributes(mine[name])["gen_ai.response.id"] == answer["meta_info"]["id"]
            assert attributes(mine[name])["switchyard.generation"] == answer["meta_info"]["id"]
            times += [int(mine[name]["startTimeUnixNano"]), int(mine[name]["endTimeUnixNano"])]
        for rank in range(2):
            events = json.loads((tmp_path / f"joined-TP-{rank}.trace.json").read_text())["traceEvents"]
            of_steps = [event["args"]["generations"] for event in events if "generations" in event.get("args", {})]
            assert of_steps == [[int(answer["meta_info"]["id"])]] * 6
        assert times == sorted(times)
        assert int(root["startTimeUnixNano"]) <= times[0] and times[-1] <= int(root["endTimeUnixNano"])
        assert abs(times[0] / 1e9 - time.time()) < 600
        line = next(line for line in server.text().splitlines() if " mine-1 POST /generate" in line)
        assert f"response {answer['meta_info']['id']}" in line and f"trace {trace}" in line

        # Without these headers, the server makes both ids.
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "n": 2}
        status, answer = server.request("/v1/chat/completions", chat)
        assert status == 200, answer
        spans = receiver.wait(lambda all: any(s["name"] == "POST /v1/chat/completions" for s in all))
        root = next(s for s in spans if s["name"] == "POST /v1/chat/completions")
        assert attributes(root)["gen_ai.response.id"] == answer["id"] and "parentSpanId" not in root
        assert sum(s["name"] == "decode" and s["traceId"] == root["traceId"] for s in spans) == 2
        line = next(line for line in server.text().splitlines() if attributes(root)["request.id"] in line)
        assert answer["id"] in line

        # A trace that its client does not sample is not exported.
        unsampled = {"traceparent": f"00-{'1' * 32}-{parent}-00"}
        assert server.request("/v1/models", headers=unsampled)[0] == 200
        assert server.request("/v1/models")[0] == 200
        spans = receiver.wait(lambda all: any(s["name"] == "GET /v1/models" for s in all))
        assert not any(s["traceId"] == "1" * 32 for s in spans)
        text = server.request("/metrics")[1]
        assert float(re.search(r"^switchyard_trace_spans_exported_total (\S+)", text, re.M)[1]) >= len(spans) - 1
        assert re.search(r"^switchyard_trace_spans_dropped_total 0", text, re.M)


def test_a_receiver_that_hangs_does_not_delay_requests():
    with Receiver(answers=False) as receiver, Server(MODEL, *FLAGS, "--enable-trace", "--otlp-traces-endpoint",
                                                     receiver.url) as server:
        for _ in range(20):
            status, answer = server.request("/generate", {"input_ids": [5], "sampling_params": PARAMS})
            assert status == 200, answer
        assert server.stop() == 0


def test_bad_endpoints_are_refused():
    url = f"http://127.0.0.1:{free_port()}"
    for flags in (["--otlp-traces-endpoint", url], ["--enable-trace", "--otlp-traces-endpoint", "https://a:1"],
                  ["--enable-trace", "--otlp-traces-endpoint", "http://a"]):
        code, text = fails_to_start("--model-path", MODEL, *flags)
        assert code == 2 and "--otlp-traces-endpoint" in text
