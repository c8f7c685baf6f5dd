"""How a served Yardling calls tools, answers from their results, thinks, and fills JSON schemas, on chats that it was not trained on.

Each turn of the assistant in a chat of corpus/mix.py's tests is asked for over HTTP at temperature 0, after the expected turns before
it. It is right where calls, content and reasoning are the expected ones. Texts for JSON are sent with a schema of the expected object.
"""

import http.client
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local

sys.path.insert(0, str(Path(__file__).resolve().parent / "corpus"))
import mix  # noqa: E402
from agents.chats import NONE_FITS  # noqa: E402

MOST_TOKENS = 400
# The least part that is right, of each kind of turn: five points below the figures in README.md, or fewer where they are small.
LEAST = {"one call": 0.54, "two calls": 0.24, "answer from results": 0.66, "fact beside tools": 0.82, "missing value": 0.30,
         "no tool fits": 0.08, "JSON schema": 0.54, "reasoning": 0.55}
SCHEMA_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(held):
    """A JSON schema for an object like `held`, with its keys in its order."""
    def kind(value):
        if isinstance(value, list):
            return {"type": "array", "items": {"type": "string"}}
        return {"type": SCHEMA_TYPES[type(value)]}
    return {"type": "object", "properties": {key: kind(value) for key, value in held.items()}, "required": list(held),
            "additionalProperties": False}


def kind_of(messages, i, tools):
    """What the turn messages[i] shows."""
    turn = messages[i]
    if not tools:
        return "JSON schema"
    if "tool_calls" in turn:
        return "one call" if len(turn["tool_calls"]) == 1 else "two calls"
    if messages[i - 1]["role"] == "tool":
        return "answer from results"
    if turn["content"] == NONE_FITS:
        return "no tool fits"
    return "missing value" if turn["content"].startswith("Please tell me the ") else "fact beside tools"


def cases(records):
    """-> [(kind, request body, expected turn)]"""
    found = []
    for record in records:
        messages, tools = record["messages"], record.get("tools")
        sent = []
        for i, turn in enumerate(messages):
            if turn["role"] == "assistant":
                body = {"model": "default", "messages": list(sent), "temperature": 0, "max_tokens": MOST_TOKENS}
                if tools:
                    body["tools"] = tools
                else:
                    named = {"name": "data", "strict": True, "schema": schema_of(json.loads(turn["content"]))}
                    body["response_format"] = {"type": "json_schema", "json_schema": named}
                if "chat_template_kwargs" in record:
                    body["chat_template_kwargs"] = record["chat_template_kwargs"]
                found.append((kind_of(messages, i, tools), body, turn))
            sent.append(api_message(turn, len(sent)))
    return found


def api_message(turn, index):
    """A message as OpenAI's API has it."""
    message = dict(turn)
    message.pop("reasoning_content", None)  # a client does not send it back
    if "tool_calls" in turn:
        message["tool_calls"] = [{"id": f"call_{index}_{i}", "type": "function", "function": {
            "name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])}}
            for i, call in enumerate(turn["tool_calls"])]
    if turn["role"] == "tool":
        message["tool_call_id"] = f"call_{index}"
    return message


def calls_of(turn):
    """-> [(name, arguments)]; arguments that are not JSON stay text."""
    found = []
    for call in turn.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                pass
        found.append((call["function"]["name"], arguments))
    return found


def is_right(kind, turn, expected):
    if kind == "JSON schema":
        try:
            return json.loads(turn["content"]) == json.loads(expected["content"])
        except ValueError:
            return False
    return calls_of(turn) == calls_of(expected) and (turn["content"] or "") == expected["content"]


def ask_all(address, asked, in_flight=32):
    """-> the assistant's messages, in the order of the cases."""
    own = local()  # a connection for each thread

    def ask(case):
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(*address, timeout=300)
        own.connection.request("POST", "/v1/chat/completions", json.dumps(case[1]), {"Content-Type": "application/json"})
        response = own.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"status {response.status}: {answer}")
        return answer["choices"][0]["message"]

    with ThreadPoolExecutor(in_flight) as pool:
        return list(pool.map(ask, asked))


def evaluate(address, records=None, show=0):
    """-> {kind: (right, asked)}, with one entry for the reasoning of all kinds."""
    asked = cases(mix.tests() if records is None else records)
    figures = {}

    def count(kind, right):
        before = figures.get(kind, (0, 0))
        figures[kind] = (before[0] + right, before[1] + 1)

    for (kind, body, expected), turn in zip(asked, ask_all(address, asked), strict=True):
        right = is_right(kind, turn, expected)
        count(kind, right)
        if "chat_template_kwargs" in body:
            count("reasoning", turn.get("reasoning_content") == expected["reasoning_content"])
        if not right and show > 0:
            show -= 1
            print(f"  {kind}\n  asked    {body['messages'][-1]['content']}\n  answered {turn['content']} {calls_of(turn)}\n"
                  f"  wanted   {expected['content']} {calls_of(expected)}\n")
    return figures


def missed(figures):
    """-> the kinds with fewer right turns than LEAST."""
    return [kind for kind, (right, asked) in figures.items() if right < LEAST[kind] * asked]
