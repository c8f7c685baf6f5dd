"""Changes to generated requests.

They limit tokens, copies and files, so that a run takes minutes. They also remove contradictions between fields that a
schema cannot express, because the error of such a contradiction would hide the other fields of the request.
"""
import copy
import os

import schemathesis

LIMITS = {"max_tokens": 4, "max_completion_tokens": 4, "max_new_tokens": 4, "max_output_tokens": 16, "n": 3}
# Fields of a request that may be lists, with one value for each prompt.
PER_PROMPT = ["rid", "extra_key", "cache_salt", "sampling_params", "return_logprob", "logprob_start_len",
              "top_logprobs_num"]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def limit(fields):
    for name, most in LIMITS.items():
        if is_number(fields.get(name)) and fields[name] > most:
            fields[name] = most


def settle(body):
    if is_number(body.get("best_of")) and body["best_of"] > 0:
        body["best_of"] = 1
    for name in "min_tokens", "min_new_tokens":
        if is_number(body.get(name)) and body[name] > 0:
            body[name] = 0
    if body.get("stream_options") and isinstance(body.get("stream"), bool):
        body["stream"] = True
    if is_number(body.get("top_logprobs")) and isinstance(body.get("logprobs"), bool):
        body["logprobs"] = True
    if body.get("prompt_logprobs") is not None and isinstance(body.get("stream"), bool):
        body["stream"] = False
        body.pop("stream_options", None)
    if body.get("prompt") in ("", [""]):
        body["prompt"] = "a"
    if body.get("text") is not None and body.get("input_ids") is not None:
        del body["input_ids"]
    for name in PER_PROMPT:
        if isinstance(body.get(name), list):
            body[name] = body[name][0] if body[name] else None


def change(path, body):
    limit(body)
    if path in ("/v1/chat/completions", "/v1/completions"):
        body.setdefault("max_tokens", 4)
    elif path == "/v1/responses":
        body.setdefault("max_output_tokens", 16)
    elif path == "/start_profile" and "output_dir" in body:
        body["output_dir"] = os.environ["PROFILE_DIR"]
    elif path == "/slow_down" and is_number(body.get("forward_sleep_time")) and body["forward_sleep_time"] > 0:
        body["forward_sleep_time"] = 0.001
    elif path == "/configure_logging":
        for name in "dump_requests_folder", "crash_dump_folder":
            if isinstance(body.get(name), str) and body[name].startswith("/"):
                body[name] = os.environ["PROFILE_DIR"]
    if path in ("/v1/chat/completions", "/v1/completions", "/generate"):
        settle(body)
    if path == "/generate":
        params = body.get("sampling_params")
        if params is None:
            params = body["sampling_params"] = {}
        if isinstance(params, dict):
            limit(params)
            params.setdefault("max_new_tokens", 4)
            settle(params)


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        case.body = copy.deepcopy(case.body)
        change(case.operation.path, case.body)
