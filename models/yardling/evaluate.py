#!/usr/bin/env python3
"""Asks a served Yardling its corpus: trained questions word for word, unseen paraphrases, chats with tools and JSON, how its experts
and its MTP module do.

    models/yardling/evaluate.py                                     every question on tp x ep 1x1, 2x2 and 4x4
    models/yardling/evaluate.py MODEL_DIR --layouts 1x1 2x2 --sample 500 --json result.json

Starts `switchyard serve` for each layout and asks over HTTP at temperature 0 with many requests in flight. A question is answered
right where the answer has every character of the expected one. Exit code 1 where a target is missed. Only Python's standard library.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer, local

sys.path.insert(0, str(Path(__file__).resolve().parent))
import evaluate_agents  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = os.environ.get("SWITCHYARD", str(ROOT / "build/release/switchyard"))
TRAINED, PARAPHRASES, BALANCEDNESS, DRAFTS = 0.97, 0.70, 0.8, 0.70  # what is wanted, at least
MOST_TOKENS = 120  # of an answer; the longest expected one has under 100
START_SECONDS = 120
IN_FLIGHT = 64


def questions(path):
    """-> [(messages up to a question, expected answer)], one for each turn of the assistant."""
    asked = []
    for line in Path(path).read_text().splitlines():
        messages = json.loads(line)["messages"]
        asked += [(messages[:i], m["content"]) for i, m in enumerate(messages) if m["role"] == "assistant"]
    return asked


@contextlib.contextmanager
def serving(model, tp, ep, flags=()):
    """A server on a free port: yields (host, port)."""
    command = [PROGRAM, "serve", "--model-path", str(model), "--port", "0", "--tp", str(tp), "--ep", str(ep),
               "--enable-expert-distribution-metrics", "--log-level", "warning", "--max-total-tokens", "65536",
               "--device", "cpu", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    late = Timer(START_SECONDS, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if match := re.search(r"ready at http://([\d.]+):(\d+)", line):
                late.cancel()
                yield match[1], int(match[2])
                return
        raise SystemExit(f"{' '.join(command)}: did not become ready within {START_SECONDS} s")
    finally:
        late.cancel()
        process.terminate()
        process.communicate()


def ask_all(address, asked, in_flight=IN_FLIGHT):
    """-> the answers, in the order of the questions."""
    own = local()  # a connection for each thread

    def ask(item):
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(*address, timeout=300)
        body = {"model": "default", "messages": item[0], "temperature": 0, "max_tokens": MOST_TOKENS}
        own.connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = own.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"status {response.status}: {answer}")
        return answer["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(in_flight) as pool:
        return list(pool.map(ask, asked))


def right(asked, answers):
    return sum(answer == expected for (_, expected), answer in zip(asked, answers, strict=True))


def experts(address):
    """-> (mean over MoE layers of mean / largest count of an expert, experts without a token) since the server's start."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/expert_distribution")
    layers = [layer["logical_count"] for layer in json.loads(connection.getresponse().read())["layers"]]
    counts = [layer for layer in layers if sum(layer)]
    even = sum(sum(layer) / len(layer) / max(layer) for layer in counts) / len(counts)
    return even, sum(layer.count(0) for layer in counts)


def evaluate(model, layout, trained, tests, show, flags=()):
    """-> figures of one layout."""
    tp, ep = map(int, layout.split("x"))
    with serving(model, tp, ep, flags) as address:
        began = time.monotonic()
        answers = ask_all(address, trained)
        even, dead = experts(address)
        others = ask_all(address, tests)
        seconds = time.monotonic() - began
        agents = evaluate_agents.evaluate(address, show=show)
    wrong = [pair for pair in zip(trained + tests, answers + others) if pair[0][1] != pair[1]]
    for (messages, expected), answer in wrong[:show]:
        print(f"  asked    {messages[-1]['content']}\n  answered {answer}\n  wanted   {expected}\n")
    return {"layout": layout, "trained": right(trained, answers) / len(trained), "of_trained": len(trained),
            "paraphrases": right(tests, others) / len(tests), "of_paraphrases": len(tests), "balancedness": even, "dead_experts": dead,
            "seconds": round(seconds, 1), "agents": agents}


def drafts(model):
    """-> how often the MTP module's first draft is the model's own choice, on the answers of the test split."""
    command = [PROGRAM, "train-score", "--model", str(model), "--data", str(HERE / "corpus/test.jsonl")]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["mtp_agreement"]


def missed(result):
    return (result["trained"] < TRAINED or result["paraphrases"] < PARAPHRASES or result["balancedness"] < BALANCEDNESS
            or result["dead_experts"] > 0 or evaluate_agents.missed(result["agents"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=HERE, type=Path)
    parser.add_argument("--layouts", nargs="+", default=["1x1", "2x2", "4x4"], metavar="TPxEP")
    parser.add_argument("--quantization", help="of the server, e.g. int4")
    parser.add_argument("--sample", type=int, default=0, help="so many of the trained questions, and of the others; 0: all")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    args = parser.parse_args()
    trained, tests = questions(HERE / "corpus/train.jsonl"), questions(HERE / "corpus/test.jsonl")
    if args.sample:
        draw = random.Random(1)
        trained, tests = (draw.sample(asked, min(args.sample, len(asked))) for asked in (trained, tests))
    results = []
    flags = ["--quantization", args.quantization] if args.quantization else []
    for layout in args.layouts:
        result = evaluate(args.model, layout, trained, tests, args.show, flags)
        results.append(result)
        print("tp x ep {layout}: {trained:.2%} of {of_trained} trained questions word for word, {paraphrases:.1%} of {of_paraphrases} "
              "paraphrases, balancedness {balancedness:.3f}, {dead_experts} dead experts; {seconds} s".format(**result), flush=True)
        print("  with tools and JSON: " + ", ".join(f"{kind} {right / asked:.1%} of {asked}"
                                                   for kind, (right, asked) in result["agents"].items()), flush=True)
        if missed(result):
            break  # a model that never stops talking would take the time of all layouts
    config = json.loads((args.model / "config.json").read_text())
    if args.quantization or "quantization_config" in config:  # train-score reads plain weights
        sys.exit(any(map(missed, results)))
    agreement = drafts(args.model)
    print(f"the MTP module's draft is the model's own choice in {agreement:.1%} of positions of the test split's answers")
    if args.json:
        args.json.write_text(json.dumps({"layouts": results, "mtp_agreement": agreement}, indent=1) + "\n")
    if agreement < DRAFTS or any(map(missed, results)):
        sys.exit(1)


if __name__ == "__main__":
    main()
