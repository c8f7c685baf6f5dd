"""GET /openapi.json and /docs: the document is valid, and requests and responses match its schemas."""
import json
import pathlib
import urllib.request

import jsonschema
import openapi_spec_validator
import pytest

from server import Server

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
CHAT = {"messages": [{"role": "user", "content": "What is a router?"}], "max_tokens": 3}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]

# (operation, path or None, body). The path is given only if the operation's path has a parameter.
REQUESTS = [
    ("post /v1/chat/completions", None, CHAT),
    ("post /v1/chat/completions", None, {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, "tools": TOOLS,
                                         "return_token_ids": True, "return_prompt_text": True, "prompt_logprobs": 1}),
    ("post /v1/completions", None, {"prompt": ["a", "b"], "logprobs": 1, "max_tokens": 2, "echo": True}),
    ("post /v1/responses", None, {"input": "Hello", "max_output_tokens": 16}),
    ("post /v1/messages", None, CHAT),
    ("post /v1/messages/count_tokens", None, CHAT),
    ("post /generate", None, {"text": "a", "sampling_params": {"max_new_tokens": 2}, "return_logprob": True,
                              "logprob_start_len": 0, "top_logprobs_num": 1}),
    ("post /generate", None, {"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 2}}),
    ("post /tokenize", None, {"prompt": ["a", "b"], "return_token_strs": True}),
    ("post /v1/tokenize", None, {"messages": CHAT["messages"]}),
    ("post /detokenize", None, {"tokens": [[1, 2], [3]]}),
    ("post /parse_function_call", None, {"text": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
                                         "tools": [{"function": {"name": "f"}}], "tool_call_parser": "qwen25"}),
    ("post /separate_reasoning", None, {"text": "<think>a</think>b", "reasoning_parser": "qwen3", "return_blocks": True}),
    ("post /abort_request", None, {"rid": "none"}),
    ("post /flush_cache", None, None),
    ("get /v1/models", None, None),
    ("get /v1/models/{id}", "/v1/models/small", None),
    ("get /health", None, None),
    ("get /health_generate", None, None),
    ("get /metrics", None, None),
    ("get /version", None, None),
    ("get /get_model_info", None, None),
    ("get /weight_version", None, None),
    ("get /server_info", None, None),
    ("get /openapi.json", None, None),
    ("get /docs", None, None),
]
STREAMS = [("post /v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}),
           ("post /v1/completions", {"prompt": "a", "max_tokens": 3}),
           ("post /v1/responses", {"input": "Hello", "max_output_tokens": 16}),
           ("post /v1/messages", CHAT),
           ("post /generate", {"text": "a", "sampling_params": {"max_new_tokens": 3}})]
ERRORS = [("get", "/v1/models/other", None, 404), ("get", "/v1/responses/other", None, 404),
          ("post", "/v1/chat/completions", {"messages": "x"}, 400), ("post", "/generate", {}, 400),
          ("post", "/v1/completions", {"prompt": "a", "suffix": "b"}, 400), ("get", "/eplb", None, 400)]


@pytest.fixture(scope="module")
def server():
    with Server(YARDLING, "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", "small") as s:
        yield s


@pytest.fixture(scope="module")
def document(server):
    status, document = server.request("/openapi.json")
    assert status == 200
    return document


def check(value, schema, document):
    """Validates `value` against `schema`, whose references point into the document."""
    root = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"], **schema}
    jsonschema.Draft202012Validator(root).validate(value)


def content_of(document, operation):
    method, path = operation.split()
    return document["paths"][path][method]["responses"]["200"]["content"]


def send(server, method, path, body):
    data = None if body is None and method == "get" else json.dumps(body).encode() if body is not None else b""
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method.upper())
    with urllib.request.urlopen(request) as response:
        return response.headers.get_content_type(), response.read().decode()


def test_the_document_is_valid(document):
    openapi_spec_validator.validate(document)
    assert document["openapi"] == "3.1.0"


@pytest.mark.parametrize("operation,path,body", REQUESTS, ids=[f"{i}-{r[0]}" for i, r in enumerate(REQUESTS)])
def test_requests_and_responses_have_their_schemas(server, document, operation, path, body):
    method, described = operation.split()
    if body is not None:
        requested = document["paths"][described][method]["requestBody"]["content"]["application/json"]["schema"]
        check(body, requested, document)
    media, text = send(server, method, path or described, body)
    content = content_of(document, operation)
    assert media in content
    check(json.loads(text) if media == "application/json" else text, content[media]["schema"], document)


@pytest.mark.parametrize("operation,body", STREAMS, ids=[s[0] for s in STREAMS])
def test_events_of_streams_have_their_schemas(server, document, operation, body):
    method, path = operation.split()
    media, text = send(server, method, path, {**body, "stream": True})
    assert media == "text/event-stream"
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    schema = content_of(document, operation)[media]["schema"]["properties"]["data"]
    ends = "anyOf" in schema  # with [DONE]
    assert ends == (data[-1] == "[DONE]")
    for event in data[:-1] if ends else data:
        parsed = json.loads(event)
        assert parsed.get("object") != "error"
        check(parsed, (schema["anyOf"][0] if ends else schema)["contentSchema"], document)


@pytest.mark.parametrize("method,path,body,status", ERRORS, ids=[e[1] for e in ERRORS])
def test_errors_have_their_schema(server, document, method, path, body, status):
    got, error = server.request(path, body, method=method.upper())
    assert got == status
    check(error, document["components"]["responses"]["Error"]["content"]["application/json"]["schema"], document)
    assert error["code"] == status


def test_a_stored_response_has_its_schema(server, document):
    created = server.request("/v1/responses", {"input": "Hello", "max_output_tokens": 16})[1]["id"]
    for operation, path in ("get /v1/responses/{id}", f"/v1/responses/{created}"), (
            "get /v1/responses/{id}/input_items", f"/v1/responses/{created}/input_items"), (
            "delete /v1/responses/{id}", f"/v1/responses/{created}"):
        media, text = send(server, operation.split()[0], path, None)
        check(json.loads(text), content_of(document, operation)[media]["schema"], document)


def test_the_page_needs_only_the_server(server):
    with urllib.request.urlopen(server.url + "/docs") as response:
        policy = response.headers["Content-Security-Policy"]
        page = response.read().decode()
    assert "default-src 'none'" in policy
    assert "openapi.json" in page and "//" not in page.split("<script>")[0]


def test_the_document_names_the_keys():
    with Server(YARDLING, "--max-total-tokens", 4096, "--device", "cpu", "--api-key", "key-1") as s:
        assert s.request("/openapi.json")[0] == 401
        status, document = s.request("/openapi.json", headers={"Authorization": "Bearer key-1"})
        assert status == 200 and "key-1" not in json.dumps(document)
        openapi_spec_validator.validate(document)
        assert document["security"]
