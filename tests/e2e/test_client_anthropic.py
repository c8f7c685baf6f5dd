"""The anthropic client: messages, streams, tools and counts."""
import asyncio
from typing import Literal

import anthropic
import pytest

from tool_server import (MODEL, QUESTION, WEATHER, WEATHER_ANSWER, WEATHER_QUESTION, WEATHER_RESULT, Place, is_weather,
                         tool_server)

USER = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": WEATHER, "strict": True}


@pytest.fixture(scope="module")
def client():
    with tool_server() as server, anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        yield client


def ask(client, **fields):
    return client.messages.create(**{"model": MODEL, "messages": USER, "max_tokens": 40, **fields})


def test_messages_have_the_same_text_with_and_without_streaming(client):
    greedy = {"extra_body": {"temperature": 0}}
    whole = ask(client, system="Be brief.", metadata={"user_id": "me"}, **greedy)
    assert whole.type == "message" and whole.role == "assistant" and whole.content[0].text
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens > 0
    with client.messages.stream(model=MODEL, messages=USER, max_tokens=40, system="Be brief.", **greedy) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in ask(client, stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]
    assert ask(client, messages=parts, system=[{"type": "text", "text": "Be brief."}], **greedy).content[0].text == text


def test_a_stop_sequence_ends_the_text(client):
    text = ask(client, extra_body={"temperature": 0}).content[0].text
    stop = text[len(text) // 2:][:3]
    answer = ask(client, extra_body={"temperature": 0}, stop_sequences=[stop])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop
    assert answer.content[0].text == text[:text.index(stop)]


def test_a_last_assistant_message_is_continued(client):
    greedy = {"extra_body": {"temperature": 0}}
    text = ask(client, **greedy).content[0].text
    start = text[:text.index(" ", 10)]
    answer = ask(client, messages=[*USER, {"role": "assistant", "content": start}], **greedy)
    assert text.startswith(start + answer.content[0].text) or (start + answer.content[0].text).startswith(text)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_forced_call_ends_with_a_free_answer(client, choice, stream):
    fields = dict(model=MODEL, messages=USER, max_tokens=200, tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    if stream:
        with client.messages.stream(**fields) as events:
            kinds = {event.type for event in events}
            answer = events.get_final_message()
        assert "input_json" in kinds
    else:
        answer = client.messages.create(**fields)
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert answer.stop_reason == "tool_use" and calls and all(is_weather(call.input) for call in calls)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]} for call in calls]
    messages = [*USER, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert ask(client, messages=messages, tools=[TOOL]).stop_reason in ("end_turn", "max_tokens", "tool_use")
    last = ask(client, messages=messages, tools=[TOOL], tool_choice={"type": "none"})
    assert last.content[0].type == "text"


def test_the_model_calls_a_tool_by_itself_and_answers_with_its_result(client):
    ran = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Current weather of a city."""
        ran.append(city)
        return WEATHER_RESULT

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=[{"role": "user", "content": WEATHER_QUESTION}], tools=[get_weather], thread=False,
        extra_body={"temperature": 0})
    messages = list(runner)
    assert ran == ["Rome"] and [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[-1].content[0].text == WEATHER_ANSWER


def test_the_tool_runner_runs_a_tool(client):
    ran = []

    @anthropic.beta_tool
    def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """Weather.

        Args:
            city: A city.
        """
        ran.append(city)
        return "sunny"

    fields = dict(model=MODEL, max_tokens=100, messages=USER, tools=[get_weather],
                  tool_choice={"type": "any", "disable_parallel_tool_use": True})
    # By default the runner sends only new messages, and expects the server to keep the others.
    with pytest.raises(anthropic.BadRequestError, match="thread is not supported"):
        next(iter(client.beta.messages.tool_runner(**fields)))
    runner = client.beta.messages.tool_runner(**fields, thread=False)
    messages = []
    for message in runner:
        messages.append(message)
        runner.set_messages_params(lambda params: {**params, "tool_choice": {"type": "none"}})
    assert len(ran) == 1 and ran[0] in ("Oslo", "Rome")
    assert [message.stop_reason == "tool_use" for message in messages] == [True, False]


def test_output_is_parsed_into_a_model(client):
    answer = client.messages.parse(model=MODEL, messages=USER, max_tokens=100, output_format=Place)
    assert isinstance(answer.parsed_output, Place)
    answer = client.beta.messages.parse(model=MODEL, messages=USER, max_tokens=100, output_format=Place)
    assert isinstance(answer.parsed_output, Place)


def test_tokens_are_counted(client):
    fields = dict(model=MODEL, messages=USER, tools=[TOOL])
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = ask(client, **fields).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    assert client.beta.messages.count_tokens(**fields).input_tokens == counted


def test_the_asynchronous_client_streams(client):
    async def text():
        async with anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="x", max_retries=0) as many:
            async with many.messages.stream(model=MODEL, messages=USER, max_tokens=20) as stream:
                return "".join([piece async for piece in stream.text_stream])

    assert asyncio.run(text())


def test_errors_and_lists_have_the_client_s_types(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(anthropic.BadRequestError) as error:
        ask(client, messages=[])
    assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other")
