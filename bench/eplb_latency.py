"""Effect of EPLB rebalances on inter-token latency, in alternating phases with and without rebalances.
Starts `switchyard serve` on ranks of this machine with a random checkpoint.

    bench/eplb_latency.py                            # weights in the stored format, mapped from the file
    bench/eplb_latency.py --rebalances 1000          # until 1000 rebalances have completed
    bench/eplb_latency.py -- --quantization int4     # weights that are converted when an expert moves
    bench/eplb_latency.py --ranks 2 -- --device cuda

Each client repeats one request with a seed, with log-probabilities. All its responses must be bitwise equal. Prints how
many differ, and the memory of all processes (and of the GPUs) after the first round and at the end.
Exit status: 0, or 1 if a response differs or a rebalance failed.

Arguments after `--` are passed to the server. SWITCHYARD names the program (default build/release/switchyard).
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import FIXTURES, Server  # noqa: E402


def bfloat16(count):
    """Random numbers of magnitude 2^-7 to 2^-5 with random signs."""
    raw = bytearray(os.urandom(2 * count))
    raw[1::2] = bytes(raw[1::2]).translate(bytes(0x3c if i % 2 else 0xbc for i in range(256)))
    return bytes(raw)


def checkpoint(directory, hidden, intermediate, layers, experts):
    """A Qwen3-MoE of these sizes with random weights."""
    directory.mkdir()
    source = FIXTURES / "qwen3_moe"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(source / name, directory / name)
    config = json.loads((source / "config.json").read_text())
    config.update(hidden_size=hidden, moe_intermediate_size=intermediate, num_hidden_layers=layers,
                  num_experts=experts, max_position_embeddings=4096)
    (directory / "config.json").write_text(json.dumps(config))
    vocabulary, head = config["vocab_size"], config["head_dim"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden], "lm_head.weight": [vocabulary, hidden],
              "model.norm.weight": [hidden]}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes.update({p + "input_layernorm.weight": [hidden], p + "post_attention_layernorm.weight": [hidden],
                       p + "self_attn.q_proj.weight": [q, hidden], p + "self_attn.k_proj.weight": [kv, hidden],
                       p + "self_attn.v_proj.weight": [kv, hidden], p + "self_attn.o_proj.weight": [hidden, q],
                       p + "self_attn.q_norm.weight": [head], p + "self_attn.k_norm.weight": [head],
                       p + "mlp.gate.weight": [experts, hidden]})
        for e in range(experts):
            shapes.update({p + f"mlp.experts.{e}.gate_proj.weight": [intermediate, hidden],
                           p + f"mlp.experts.{e}.up_proj.weight": [intermediate, hidden],
                           p + f"mlp.experts.{e}.down_proj.weight": [hidden, intermediate]})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            one = b"\x80\x3f" * ((end - begin) // 2)  # norms
            file.write(one if "norm" in name else bfloat16((end - begin) // 2))
    return directory


class Clients:
    """Runs streaming requests without pause; records the gaps between their tokens by phase, and compares responses."""

    def __init__(self, server, count, new_tokens):
        self.server, self.new_tokens = server, new_tokens
        self.phase, self.stopped, self.gaps = None, False, {}
        self.equal = self.different = 0
        self.threads = [threading.Thread(target=self.stream, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def stream(self, number):
        r = random.Random(number)
        body = {"input_ids": [r.randrange(500) for _ in range(8)], "stream": True, "return_logprob": True,
                "sampling_params": {"max_new_tokens": self.new_tokens, "ignore_eos": True, "temperature": 1,
                                    "sampling_seed": number}}
        expected = None
        while not self.stopped:
            request = urllib.request.Request(self.server.url + "/generate", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            last, digest = None, hashlib.sha256()
            with urllib.request.urlopen(request) as response:
                for line in response:
                    if not line.startswith(b"data: {"):
                        continue
                    now, phase = time.perf_counter(), self.phase
                    if last and last[1] == phase and phase is not None:
                        self.gaps.setdefault(phase, []).append((now - last[0]) * 1e3)
                    last = now, phase
                    info = json.loads(line[6:])["meta_info"]
                    digest.update(json.dumps(info["output_token_logprobs"]).encode())
                    if self.stopped:
                        return
            if expected is None:
                expected = digest.digest()
            elif expected == digest.digest():
                self.equal += 1
            else:
                self.different += 1

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()


def memory(server):
    """Megabytes: resident memory of all processes, and memory of the GPUs in use."""
    pids = [server.process.pid, *server.ranks()]
    pages = sum(int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    if not shutil.which("nvidia-smi"):
        return pages * os.sysconf("SC_PAGESIZE") >> 20, 0
    listed = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                            capture_output=True, text=True)
    return pages * os.sysconf("SC_PAGESIZE") >> 20, sum(map(int, listed.stdout.split()))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8, help="seconds of each phase")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of one phase without and one with rebalances")
    parser.add_argument("--rebalances", type=int, default=0,
                        help="run further rounds until this many rebalances have completed")
    parser.add_argument("--pause", type=float, default=1, help="seconds between two rebalances; 0: no pause")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("flags", nargs="*", help="further flags of the server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = checkpoint(pathlib.Path(folder) / "model", args.hidden, args.intermediate, args.layers, args.experts)
        # The algorithm deepseek ignores the current placement, so every rebalance moves experts.
        with Server(model, "--tp", args.ranks, "--ep", args.ranks, "--moe-a2a-backend", "deepep", "--enable-eplb",
                    "--ep-num-redundant-experts", args.ranks, "--eplb-algorithm", "deepseek",
                    "--eplb-rebalance-num-iterations", 50, "--eplb-min-rebalancing-utilization-threshold", 0,
                    "--max-total-tokens", 65536, "--stream-output", *args.flags) as server:
            clients = Clients(server, args.clients, new_tokens=1000)
            time.sleep(2)
            print(f"{'phase':>12} {'tokens':>8} {'p50 ms':>8} {'p99 ms':>8} {'rebalances':>10} {'layers':>7} {'busy':>5}")
            i, now, first = -1, None, None
            while i + 1 < 2 * args.rounds or i % 2 == 0 or now["rebalances"] < args.rebalances:
                i += 1
                moves = i % 2 == 1
                before = server.request("/eplb")[1]
                clients.phase = name = i, moves
                end, asked, polls = time.time() + args.seconds, 0.0, []
                while time.time() < end:
                    if moves and time.time() - asked > args.pause:
                        asked = time.time()
                        server.request("/eplb/rebalance", method="POST")
                    polls.append(server.request("/eplb")[1]["state"] not in ("idle", "done"))
                    time.sleep(0.03)
                clients.phase = None
                while server.request("/eplb")[1]["state"] not in ("idle", "done"):
                    time.sleep(0.01)
                now = server.request("/eplb")[1]
                gaps = clients.gaps[name]
                print(f"{'rebalancing' if moves else 'quiet':>12} {len(gaps):8} {percentile(gaps, .5):8.2f} "
                      f"{percentile(gaps, .99):8.2f} {now['rebalances'] - before['rebalances']:10} "
                      f"{now['layers_moved'] - before['layers_moved']:7} "
                      f"{sum(polls) / len(polls):5.0%}", flush=True)
                first = first or (i == 1 and memory(server))
            last = memory(server)
            clients.stop()
            for moves, name in ((False, "quiet"), (True, "rebalancing")):
                p99 = [percentile(g, .99) for (_, m), g in clients.gaps.items() if m == moves]
                p50 = [percentile(g, .5) for (_, m), g in clients.gaps.items() if m == moves]
                print(f"{name}: median over phases of p50 {statistics.median(p50):.2f} ms, "
                      f"of p99 {statistics.median(p99):.2f} ms")
            switch = now["rebalance"]["longest_switch_seconds"] * 1e3
            print(f"the last rebalance: {now['last_result']}; longest switch {switch:.3f} ms; failures {now['failures']}")
            print(f"{now['rebalances']} rebalances, {now['layers_moved']} layers moved; of the repeated responses "
                  f"{clients.equal} are equal and {clients.different} differ; memory {first[0]} MB after the first round, "
                  f"{last[0]} MB at the end; GPUs {first[1]} MB, {last[1]} MB")
            if clients.different or now["failures"]:
                sys.exit(1)


if __name__ == "__main__":
    main()
