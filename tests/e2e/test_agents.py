"""Reasoning and tool calls of chats, with the bundled model and the openai client. Also the endpoints that parse a
text."""
import json
import pathlib
import shutil
import subprocess

import openai
import pytest

import server as programs
from server import FIXTURES, Server

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
HELLO = [{"role": "user", "content": "What is a router?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rom"}}\n</tool_call>'


@pytest.fixture(scope="module")
def plain():
    with Server(YARDLING, "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", "yardling") as s:
        yield s


@pytest.fixture(scope="module")
def reasoning():
    flags = ["--reasoning-parser", "deepseek-r1", "--tool-call-parser", "qwen25"]
    with Server(YARDLING, "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", "yardling", *flags) as s:
        yield s


def client_of(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)


def test_reasoning_is_apart_from_the_content(plain, reasoning):
    ask = dict(model="yardling", messages=HELLO, temperature=0, max_tokens=40)
    text = client_of(plain).chat.completions.create(**ask).choices[0].message.content
    assert text
    client = client_of(reasoning)
    answer = client.chat.completions.create(**ask)
    # This parser takes all text before </think> as reasoning, and Yardling never writes </think>.
    message = answer.choices[0].message
    assert message.content == "" and message.reasoning_content == text and message.reasoning == text
    assert not message.tool_calls
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens <= answer.usage.completion_tokens
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    streamed = [getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices]
    assert "".join(streamed) == text and len([piece for piece in streamed if piece]) > 1
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == details.reasoning_tokens
    joint = client.chat.completions.create(**ask, extra_body={"separate_reasoning": False})
    assert joint.choices[0].message.content == text


def test_offered_tools_change_no_text_without_a_call(plain, reasoning):
    ask = dict(model="yardling", messages=HELLO, temperature=0, max_tokens=40)
    text = client_of(plain).chat.completions.create(**ask).choices[0].message.content
    for parallel in (True, False):
        answer = client_of(reasoning).chat.completions.create(**ask, tools=TOOLS, parallel_tool_calls=parallel,
                                                              extra_body={"separate_reasoning": False})
        assert answer.choices[0].message.content == text and answer.choices[0].finish_reason == "stop"
    named = {"type": "function", "function": {"name": "get_time"}}
    with pytest.raises(openai.BadRequestError) as error:
        client_of(reasoning).chat.completions.create(**ask, tools=TOOLS, tool_choice=named)
    assert error.value.param == "tool_choice"


# The call is forced only after the reasoning. This model never ends its reasoning, so the output has no call.
def test_a_forced_call_leaves_reasoning_free(plain, reasoning):
    ask = dict(model="yardling", messages=HELLO, temperature=0, max_tokens=40)
    text = client_of(plain).chat.completions.create(**ask).choices[0].message.content
    answer = client_of(reasoning).chat.completions.create(**ask, tools=TOOLS, tool_choice="required").choices[0]
    assert answer.finish_reason == "length" and answer.message.reasoning_content.startswith(text)


def test_given_texts_are_parsed(reasoning):
    status, answer = reasoning.request("/parse_function_call", {"text": "Look.\n" + CALL, "tools": TOOLS})
    assert status == 200 and answer["normal_text"] == "Look."
    assert answer["calls"] == [{"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Rom"}'}]
    xml = ("<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n"
           "</function>\n</tool_call>")
    status, answer = reasoning.request("/parse_function_call",
                                       {"text": xml, "tools": TOOLS, "tool_call_parser": "qwen3_coder"})
    assert answer["calls"][0]["parameters"] == '{"city": "12", "days": 12}'
    status, answer = reasoning.request("/separate_reasoning", {"text": "hm</think>\n\nYes", "reasoning_parser": "deepseek-r1"})
    assert status == 200 and answer == {"reasoning_text": "hm", "text": "Yes"}
    info = reasoning.request("/get_server_info")[1]
    assert info["tool_call_parser"] == "qwen25" and info["reasoning_parser"] == "deepseek-r1"


@pytest.mark.parametrize("flag, known", [("--tool-call-parser", "qwen3_coder"), ("--reasoning-parser", "deepseek-r1")])
def test_unknown_parsers_are_refused_with_the_known_names(flag, known):
    done = subprocess.run([programs.PROGRAM, "serve", "--model-path", str(YARDLING), flag, "nonsense"], capture_output=True,
                          text=True)
    assert done.returncode == 2 and "nonsense" in done.stderr and known in done.stderr


def test_the_responses_api_keeps_conversations(reasoning):
    client = client_of(reasoning)
    first = client.responses.create(model="yardling", input="What is a router?", temperature=0, max_output_tokens=40)
    assert first.status == "completed" and first.output[0].type == "reasoning"
    text = first.output[0].content[0].text
    assert text and first.usage.output_tokens_details.reasoning_tokens > 0
    events = list(client.responses.create(model="yardling", input="What is a router?", temperature=0, max_output_tokens=40,
                                          stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert events[-1].response.output[0].content[0].text == text
    second = client.responses.create(model="yardling", input="And an expert?", previous_response_id=first.id,
                                     max_output_tokens=40)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output[0].content[0].text == text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_the_messages_api_gives_the_same_text(plain, reasoning):
    ask = {"model": "yardling", "max_tokens": 40, "temperature": 0, "messages": HELLO}
    text = client_of(plain).chat.completions.create(**ask).choices[0].message.content
    status, answer = plain.request("/v1/messages", ask)
    assert status == 200 and answer["content"] == [{"type": "text", "text": text}]
    assert answer["stop_reason"] == "end_turn"
    answer = reasoning.request("/v1/messages", ask)[1]
    assert answer["content"] == [{"type": "thinking", "thinking": text, "signature": ""}]
    counted = plain.request("/v1/messages/count_tokens", ask)[1]["input_tokens"]
    usage = answer["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_channel_markers_in_the_vocabulary_select_harmony(tmp_path):
    """Special tokens for channels select the formats of gpt-oss, whatever the chat template is."""
    model = tmp_path / "model"
    shutil.copytree(FIXTURES / "gpt_oss", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    used = {*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])}
    for text in ("<|channel|>", "<|message|>"):
        number = next(i for i in range(1000) if i not in used)
        used.add(number)
        tokenizer["added_tokens"].append({"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                                          "normalized": False, "special": True})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Server(model, "--device", "cpu") as server:
        info = server.request("/get_server_info")[1]
        assert (info["tool_call_parser"], info["reasoning_parser"]) == ("gpt-oss", "gpt-oss")
