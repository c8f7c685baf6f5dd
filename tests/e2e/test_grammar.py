"""Outputs that grammars constrain: random JSON Schemas, regular expressions, EBNF and choices, on the bundled model."""
import concurrent.futures
import datetime
import json
import random
import re
import urllib.request

import jsonschema
import openai
import pytest

from schema_generator import schemas
from server import FIXTURES, ROOT, Server, fails_to_start

YARDLING = ROOT / "models/yardling"
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
COMMON = ["--log-level", "warning", "--device", "cpu"]


FORMATS = jsonschema.FormatChecker(["email", "ipv4", "ipv6", "uuid"])


# The formats below are checked here, because jsonschema checks them differently from RFC 3339, or needs more packages.
@FORMATS.checks("date", ValueError)
@FORMATS.checks("time", ValueError)
@FORMATS.checks("date-time", ValueError)
def is_date_or_time(value):
    if not isinstance(value, str):
        return True
    text = value if "-" in value[:8] else "1970-01-01T" + value
    # RFC 3339 allows the year 0, but Python does not. Both 0 and 2000 are leap years.
    return bool(datetime.datetime.fromisoformat(re.sub("^0000-", "2000-", text)))


@pytest.fixture(scope="module")
def server():
    # Without the last flag, this small model fills most outputs with white space.
    with Server(YARDLING, "--tp", 2, "--ep", 2, "--max-total-tokens", 32768, *COMMON,
                "--constrained-json-disable-any-whitespace") as running:
        yield running


def events_of(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def chat(server, seed, stream=False, max_tokens=160, **more):
    """Text and finish reason of a chat at temperature 1."""
    body = {"messages": [{"role": "user", "content": "Which data do you have?"}], "temperature": 1, "seed": seed,
            "max_tokens": max_tokens, **more}
    if stream:
        choices = [event["choices"][0] for event in events_of(server, CHAT, {**body, "stream": True})]
        return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]
    status, answer = server.request(CHAT, body, timeout=300)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]


def completion(server, seed, max_tokens=160, **more):
    status, answer = server.request(COMPLETIONS, {"prompt": "Data: ", "temperature": 1, "seed": seed,
                                                  "max_tokens": max_tokens, **more}, timeout=300)
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


def generate(server, seed, max_tokens=160, **more):
    params = {"temperature": 1, "sampling_seed": seed, "max_new_tokens": max_tokens, **more}
    status, answer = server.request(GENERATE, {"text": "Data: ", "sampling_params": params}, timeout=300)
    assert status == 200, answer
    return answer["text"], answer["meta_info"]["finish_reason"]["type"]


def in_parallel(calls, threads=32):
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def with_schema(server, i, schema):
    """Sends a request with the schema, by the field and endpoint that `i` selects. Returns text and finish reason."""
    kind = i % 4
    if kind == 0:
        named = {"name": "data", "strict": True, "schema": schema}
        return chat(server, i, stream=i % 8 == 0, response_format={"type": "json_schema", "json_schema": named})
    if kind == 1:
        return completion(server, i, guided_json=schema)
    if kind == 2:
        return generate(server, i, json_schema=json.dumps(schema))
    return chat(server, i, stream=i % 8 == 3, structured_outputs={"json": schema})


def is_valid(schema, text, reason):
    """Returns whether the output ended by itself (not at max_tokens). Asserts that such an output is valid."""
    if reason != "stop":
        assert reason == "length"
        return False
    try:
        value = json.loads(text)
    except ValueError as error:
        raise AssertionError(f"{text!r} is not JSON: {error}; schema {json.dumps(schema)}") from error
    checker = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    errors = [error.message for error in checker.iter_errors(value)]
    assert not errors, (errors, text, json.dumps(schema))
    return True


def compact(text):
    """Returns whether a JSON text has no white space outside of strings."""
    return not re.search(r"\s", re.sub(r'"(?:[^"\\]|\\.)*"', "", text))


def test_random_schemas_give_valid_outputs(server):
    cases = schemas(seed=7, count=320)
    outputs = in_parallel([lambda i=i, s=s: with_schema(server, i, s) for i, s in enumerate(cases)])
    ended = sum(is_valid(schema, *output) for schema, output in zip(cases, outputs))
    assert ended >= 0.6 * len(cases), f"only {ended} of {len(cases)} outputs ended by themselves"


def test_white_space_is_allowed_and_excluded(server):
    cases = schemas(seed=17, count=16)
    for pattern in ("[ \\n\\r\\t]*", ""):
        outputs = in_parallel([lambda i=i, s=s, p=pattern: completion(server, i, guided_json=s, guided_whitespace_pattern=p)
                               for i, s in enumerate(cases)])
        ended = sum(is_valid(schema, *output) for schema, output in zip(cases, outputs))
        if pattern == "":
            assert ended >= 8 and all(compact(text) for text, reason in outputs if reason == "stop")


def random_regex(rng):
    atoms = ["[a-f]", "\\d", "x", "(yes|no)", "[^a-z ]", "é", "\\.", "[A-Z0-9_]", "(a|b[0-9]|cc)"]
    repeats = ["", "", "?", "{2}", "{1,3}", "{0,4}"]
    return "".join(rng.choice(atoms) + rng.choice(repeats) for _ in range(rng.randrange(1, 7)))


def test_random_regexes_are_matched(server):
    rng = random.Random(3)
    cases = [random_regex(rng) for _ in range(64)]
    fields = ["regex", "guided_regex"]
    calls = [lambda i=i, r=r: generate(server, i, regex=r) if i % 3 == 0 else
             completion(server, i, **{fields[i % 2]: r}) if i % 3 == 1 else
             chat(server, i, structured_outputs={"regex": r}) for i, r in enumerate(cases)]
    for regex, (text, reason) in zip(cases, in_parallel(calls)):
        assert reason == "stop" and re.fullmatch(regex, text), (regex, text, reason)


def test_grammars_and_choices(server):
    ebnf = 'root ::= "let " name " = " sum ";"\nname ::= [a-z]{1,5}\nsum ::= term (" + " term){0,3}\nterm ::= [1-9] [0-9]? | "(" sum ")"'
    matches = re.compile(r"let [a-z]{1,5} = [0-9+() ]+;")
    choices = ["first", "second choice", "drei", "四"]
    calls = []
    for seed in range(12):
        calls += [lambda s=seed: generate(server, s, ebnf=ebnf, max_tokens=300),
                  lambda s=seed: completion(server, s, guided_grammar=ebnf, max_tokens=300),
                  lambda s=seed: completion(server, s, guided_choice=choices),
                  lambda s=seed: chat(server, s, stream=True, structured_outputs={"choice": choices})]
    seen = set()
    for i, (text, reason) in enumerate(in_parallel(calls)):
        if i % 4 >= 2:
            assert text in choices and reason == "stop"
            seen.add(text)
        elif reason == "stop":
            assert matches.fullmatch(text) and text.count("(") == text.count(")"), text
    assert len(seen) > 1


def test_any_object_and_structural_tags(server):
    for seed in range(8):
        text, reason = chat(server, seed, response_format={"type": "json_object"}, max_tokens=200)
        if reason == "stop":
            assert isinstance(json.loads(text), dict)
    tag = {"type": "structural_tag", "triggers": ["a"], "structures": [
        {"begin": "a", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": "b"}]}
    for seed in range(8):
        text, _ = generate(server, seed, structural_tag=json.dumps(tag), max_tokens=60)
        assert re.fullmatch(r"([^a]|a\d?b)*(a\d?)?", text, re.S), text


# The output of a request depends on neither the other requests nor their grammars.
def test_a_batch_changes_no_output(server):
    cases = schemas(seed=11, count=24)
    calls = [lambda i=i, s=s: with_schema(server, i, s) for i, s in enumerate(cases)]
    calls += [lambda i=i: completion(server, i, guided_regex="[a-z ]{5,40}") for i in range(4)]
    calls += [lambda i=i: completion(server, i) for i in range(4)]
    assert in_parallel(calls) == [call() for call in calls]


LAYOUTS = {
    "one rank": [],
    "small chunks": ["--chunked-prefill-size", 8],
    "attention groups": ["--tp", 2, "--dp-size", 2, "--ep", 2, "--enable-dp-attention", "--moe-a2a-backend", "deepep",
                         "--check-batches"],
    "retraction": ["--max-total-tokens", 480, "--disable-radix-cache", "--schedule-conservativeness", 0],
}


def test_layouts_give_the_same_outputs():
    cases = schemas(seed=13, count=12)
    outputs = {}
    for name, flags in LAYOUTS.items():
        flags = flags if "--max-total-tokens" in flags else [*flags, "--max-total-tokens", 8192]
        with Server(FIXTURES / "qwen3_moe", "--dtype", "float32", *flags, *COMMON) as running:
            calls = [lambda i=i, s=s: with_schema(running, i, s) for i, s in enumerate(cases)]
            outputs[name] = in_parallel(calls)
            if name == "retraction":  # needs requests that arrive together
                for _ in range(20):
                    if running.state()["retractions"] > 0:
                        break
                    outputs[name] = in_parallel(calls)
                assert running.state()["retractions"] > 0
    for name, got in outputs.items():
        assert got == outputs["one rank"], name


def test_the_openai_client_parses_a_response_format(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
              "required": ["ok", "n"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id, messages=[{"role": "user", "content": "Hello"}], max_tokens=60, n=3,
        response_format={"type": "json_schema", "json_schema": {"name": "flags", "strict": True, "schema": schema}})
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert set(json.loads(choice.message.content)) == {"ok", "n"}


def streamed_call(server, body):
    choices = [event["choices"][0] for event in events_of(server, CHAT, {**body, "stream": True})]
    parts = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", [])]
    names = [part["name"] for part in parts if part.get("name")]
    assert len(names) <= 1
    return (names or [None])[0], "".join(part.get("arguments") or "" for part in parts), choices[-1]["finish_reason"] == "tool_calls"


def forced_call(server, i, tools, name):
    """Forces a call by the API that `i` selects. Returns its name and arguments, and whether the output ended by
    itself."""
    messages = [{"role": "user", "content": "Which data do you have?"}]
    chat_tools = [{"type": "function", "function": tool} for tool in tools]
    if i % 3 == 0:
        body = {"messages": messages, "temperature": 1, "seed": i, "max_tokens": 200, "tools": chat_tools, "parallel_tool_calls": False,
                "tool_choice": {"type": "function", "function": {"name": name}} if name else "required"}
        if i % 2:
            return streamed_call(server, body)
        path = CHAT
    elif i % 3 == 1:
        path, body = "/v1/responses", {
            "input": messages, "temperature": 1, "seed": i, "max_output_tokens": 200, "parallel_tool_calls": False,
            "tools": [{"type": "function", **tool} for tool in tools],
            "tool_choice": {"type": "function", "name": name} if name else "required"}
    else:
        choice = {"type": "tool", "name": name} if name else {"type": "any"}
        path, body = "/v1/messages", {
            "messages": messages, "temperature": 1, "max_tokens": 200, "tool_choice": {**choice, "disable_parallel_tool_use": True},
            "tools": [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]}
    status, answer = server.request(path, body, timeout=300)
    assert status == 200, answer
    if i % 3 == 0:
        choice = answer["choices"][0]
        calls = [call["function"] for call in choice["message"].get("tool_calls") or []]
        ended = choice["finish_reason"] == "tool_calls"
    elif i % 3 == 1:
        calls, ended = answer["output"], answer["status"] == "completed"
    else:
        calls = [{"name": block["name"], "arguments": json.dumps(block["input"])} for block in answer["content"]]
        ended = answer["stop_reason"] == "tool_use"
    assert len(calls) <= 1
    return (calls[0]["name"], calls[0]["arguments"], ended) if calls else (None, "", ended)


def test_forced_calls_have_valid_arguments(server):
    objects = [schema for schema in schemas(seed=23, count=160) if schema.get("type") == "object"][:90]
    cases = []
    for i, schema in enumerate(objects):
        tools = [{"name": "first", "parameters": schema}, {"name": "second", "parameters": objects[i - 1]}]
        cases.append((i, tools, [None, "second", "first"][i // 3 % 3]))
    outputs = in_parallel([lambda case=case: forced_call(server, *case) for case in cases])
    complete, called = 0, set()
    for (_, tools, forced), (name, arguments, ended) in zip(cases, outputs):
        if not ended:  # the limit has cut the call
            continue
        assert name == forced or not forced and name in ("first", "second")
        schema = next(tool["parameters"] for tool in tools if tool["name"] == name)
        assert is_valid(schema, arguments, "stop")
        complete += 1
        called.add(name)
    assert complete >= 0.4 * len(cases), f"only {complete} of {len(cases)} calls are complete"
    assert called == {"first", "second"}


@pytest.mark.parametrize("change, param, words", [
    ({"guided_json": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}, "guided_json",
     "#/properties/a: uniqueItems"),
    ({"guided_json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "guided_json", "oneOf"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "ookahead"),
    ({"ebnf": "root ::= missing"}, "ebnf", "missing"),
    ({"regex": "a", "guided_choice": ["b"]}, "guided_choice", "one constraint"),
    ({"guided_json": {}, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern", "not supported"),
])
def test_constraints_that_cannot_be_honoured(server, change, param, words):
    status, answer = server.request(COMPLETIONS, {"prompt": "x", **change})
    assert status == 400 and answer["error"]["param"] == param and words in answer["error"]["message"], answer


def test_a_minimum_beyond_the_grammar_is_an_error(server):
    status, answer = server.request(COMPLETIONS, {"prompt": "x", "guided_choice": ["a"], "min_tokens": 50, "max_tokens": 60})
    assert status == 400 and "grammar" in answer["error"]["message"], answer


def test_log_probabilities_are_those_of_the_model(server):
    body = {"prompt": "Data: ", "guided_choice": ["zebra"], "logprobs": 3, "temperature": 0, "max_tokens": 20}
    status, answer = server.request(COMPLETIONS, body)
    assert status == 200 and answer["choices"][0]["text"] == "zebra"
    chosen, top = (answer["choices"][0]["logprobs"][key] for key in ("token_logprobs", "top_logprobs"))
    assert any(max(alternatives.values()) > value for value, alternatives in zip(chosen, top))


def test_the_backend_can_be_disabled():
    with Server(YARDLING, "--grammar-backend", "none", "--max-total-tokens", 2048, *COMMON) as running:
        status, answer = running.request(COMPLETIONS, {"prompt": "x", "guided_regex": "a"})
        assert status == 400 and "--grammar-backend none" in answer["error"]["message"]
        assert running.request(COMPLETIONS, {"prompt": "x", "max_tokens": 2})[0] == 200


def test_flags_are_checked():
    for flag, value in (("--grammar-backend", "outlines"), ("--constrained-json-whitespace-pattern", "[x]")):
        code, error = fails_to_start("--model-path", YARDLING, flag, value)
        assert code == 2 and flag in error and value in error
