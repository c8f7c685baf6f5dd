#!/usr/bin/env python3
"""Compares a running server with the reference outputs of a checkpoint directory (tests/data/fixtures/README.md).

  check_reference.py --url http://127.0.0.1:30000 DIR [--tolerance 2e-3] [--api-key K]

Start the server on DIR with `--dtype float32`. Four groups of checks, each printed as passed/total:
  encode     POST /tokenize   {"prompt": s, "add_special_tokens": false}  -> {"tokens": [...]}, and POST /detokenize {"tokens": [...]} -> {"prompt": s}
  chat       POST /tokenize   {"messages": [...], "add_generation_prompt": b, "tools": [...]} -> {"tokens": [...]}, or a 4xx response that contains the template's error message
  generate   POST /generate   {"input_ids": [...], "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": true}} -> {"output_ids": [...]}
  logprob    the same with "return_logprob": true, "logprob_start_len": 0, "max_new_tokens": 1 -> meta_info.input_token_logprobs [[logprob, id, text], ...]
The exit status is 0 if all checks pass. Uses only the standard library.
"""
import argparse, array, functools, json, math, os, struct, sys, urllib.error, urllib.request

def safetensors(path):
    raw = open(path, "rb").read(); n = struct.unpack("<Q", raw[:8])[0]; head = json.loads(raw[8:8 + n]); out = {}
    for k, v in head.items():
        if k == "__metadata__": continue
        a, b = v["data_offsets"]; x = array.array({"F32": "f", "I64": "q"}[v["dtype"]]); x.frombytes(raw[8 + n + a:8 + n + b]); out[k] = (v["shape"], x)
    return out

@functools.cache
def prompts(folder):
    """Each prompt of the reference: its tokens, the greedy tokens after it, and the log-probabilities of its tokens from the second one on."""
    ref, out = safetensors(os.path.join(folder, "reference.safetensors")), []
    for i in range(sum(k.startswith("prompt.") for k in ref)):
        ids = list(ref[f"prompt.{i}"][1]); (T, V), logits = ref[f"logits.{i}"]; logprobs = []
        for t in range(1, T):
            row = logits[(t - 1) * V:t * V]; m = max(row); logprobs.append(row[ids[t]] - m - math.log(sum(math.exp(x - m) for x in row)))
        out.append((ids, list(ref[f"generated.{i}"][1]), logprobs))
    return out

def compare(url, folder, tolerance, api_key=None, show=3):
    """Returns (whether all checks pass, the report)."""
    def post(path, body):
        h = {"Content-Type": "application/json"}
        if api_key: h["Authorization"] = "Bearer " + api_key
        try:
            with urllib.request.urlopen(urllib.request.Request(url + path, json.dumps(body).encode(), h), timeout=120) as r: return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            t = e.read().decode(errors="replace")
            try: return e.code, json.loads(t)
            except ValueError: return e.code, t
    text = json.load(open(os.path.join(folder, "reference.json")))
    tally, bad = {}, []
    def note(group, ok, what):
        t = tally.setdefault(group, [0, 0]); t[0] += bool(ok); t[1] += 1
        if not ok: bad.append((group, what))
    for c in text["encode"]:
        s, r = post("/tokenize", {"prompt": c["text"], "add_special_tokens": False}); note("encode", s == 200 and r["tokens"] == c["ids"], (c["text"], c["ids"], r))
        s, r = post("/detokenize", {"tokens": c["ids"]}); note("decode", s == 200 and r["prompt"] == c["decoded"], (c["ids"], c["decoded"], r))
    for c in text["encode_special"]:
        s, r = post("/tokenize", {"prompt": c["text"], "add_special_tokens": True}); note("encode", s == 200 and r["tokens"] == c["ids"], (c["text"], c["ids"], r))
    for c in text["chat"]:
        s, r = post("/tokenize", {k: c[k] for k in ("messages", "add_generation_prompt", "tools") if k in c})
        note("chat", (400 <= s < 500 and c["error"] in json.dumps(r, ensure_ascii=False)) if "error" in c else (s == 200 and r["tokens"] == c["ids"]), (c, s, r))
    worst = 0.0
    for i, (ids, generated, logprobs) in enumerate(prompts(str(folder))):
        s, r = post("/generate", {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}})
        note("generate", s == 200 and r["output_ids"] == generated, (i, generated, r if s != 200 else r["output_ids"]))
        s, r = post("/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}})
        if s != 200: note("logprob", False, (i, r)); continue
        got = [x[0] for x in r["meta_info"]["input_token_logprobs"]]
        for t, want in enumerate(logprobs, 1):
            d = abs(want - got[t]) if len(got) > t and got[t] is not None else math.inf; worst = max(worst, d); note("logprob", d <= tolerance, (i, t, want, got[t] if len(got) > t else None))
    lines = [f"  {g}: {json.dumps(w, ensure_ascii=False)[:400]}" for g, w in bad[:show * 4]]
    lines.append(" ".join([os.path.basename(os.path.normpath(folder)), *(f"{g} {x}/{n}" for g, (x, n) in tally.items()), f"largest logprob error {worst:.2e}"]))
    return not bad, "\n".join(lines)

def check(server, folder, *others):
    """For tests: asserts that the server equals the float32 reference and stops cleanly. The error contains the logs of
    the server and of `others`."""
    equal, report = compare(server.url, folder, 2e-4)
    assert equal, report + "\n" + server.text() + "".join(o.text() for o in others)
    assert server.stop() == 0

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir"); p.add_argument("--url", default="http://127.0.0.1:30000"); p.add_argument("--tolerance", type=float, default=2e-3); p.add_argument("--api-key"); p.add_argument("--show", type=int, default=3)
    a = p.parse_args()
    equal, report = compare(a.url, a.dir, a.tolerance, a.api_key, a.show)
    print(report)
    return 0 if equal else 1

if __name__ == "__main__": sys.exit(main())
