"""The openai client: chats, responses, parsed output, tools and streams."""
import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest

from tool_server import (MODEL, QUESTION, WEATHER, WEATHER_ANSWER, WEATHER_QUESTION, WEATHER_RESULT, Place, is_weather,
                         tool_server)

USER = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER, "strict": True}}
RESPONSES_TOOL = {"type": "function", **TOOL["function"]}


class Trip(pydantic.BaseModel):
    places: list[Place] = pydantic.Field(max_length=3)  # the model does not end lists
    note: Literal["short", "long"] | None


@pytest.fixture(scope="module")
def client():
    with tool_server() as server, openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def chat(client, **fields):
    return client.chat.completions.create(model=MODEL, **{"messages": USER, "temperature": 0, "max_tokens": 40, **fields})


def test_chats_have_the_same_text_with_and_without_streaming(client):
    whole = chat(client, seed=1, user="me", metadata={"a": "b"})
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].message.content
    assert whole.model == MODEL and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    several = chat(client, n=2, temperature=1, logprobs=True, top_logprobs=2)
    assert [c.index for c in several.choices] == [0, 1]
    assert all(len(c.logprobs.content[0].top_logprobs) == 2 for c in several.choices)


def test_parts_and_roles_of_messages_are_accepted(client):
    messages = [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "a router?"}], "name": "me"}]
    assert chat(client, messages=messages).choices[0].message.content


def test_output_is_parsed_into_a_model(client):
    answer = client.chat.completions.parse(model=MODEL, messages=USER, response_format=Trip, max_tokens=400)
    assert answer.choices[0].finish_reason in ("stop", "length")
    answer = client.chat.completions.parse(model=MODEL, messages=USER, response_format=Place, max_tokens=100)
    assert isinstance(answer.choices[0].message.parsed, Place)
    with client.chat.completions.stream(model=MODEL, messages=USER, response_format=Place, max_tokens=100) as stream:
        kinds = {event.type for event in stream}
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Place)
    loose = chat(client, response_format={"type": "json_object"}, max_tokens=100)
    assert loose.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_forced_call_ends_with_a_free_answer(client, choice, stream):
    tool = openai.pydantic_function_tool(Place, name="get_weather")
    ask = dict(model=MODEL, messages=USER, tools=[tool], tool_choice=choice, max_tokens=200, parallel_tool_calls=False)
    if stream:
        with client.chat.completions.stream(**ask) as events:
            done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
            message = events.get_final_completion().choices[0].message
        assert [e.arguments for e in done] == [c.function.arguments for c in message.tool_calls]
    else:
        answer = client.chat.completions.parse(**ask)
        assert answer.choices[0].finish_reason == "tool_calls"
        message = answer.choices[0].message
    assert message.tool_calls and not message.content
    results = []
    for call in message.tool_calls:
        assert call.function.name == "get_weather" and isinstance(call.function.parsed_arguments, Place)
        assert is_weather(json.loads(call.function.arguments))
        results.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assistant = message.model_dump(exclude_none=True, exclude={"parsed": True, "tool_calls": {"__all__": {"function": {"parsed_arguments"}}}})
    free = chat(client, messages=[*USER, assistant, *results], tools=[TOOL])
    assert free.choices[0].finish_reason in ("stop", "length", "tool_calls")
    last = chat(client, messages=[*USER, assistant, *results], tools=[TOOL], tool_choice="none")
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls


def test_strict_tools_may_be_offered(client):
    answer = chat(client, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].message.content or calls
    assert all(is_weather(json.loads(call.function.arguments)) for call in calls)


def test_responses_are_parsed_and_continued(client):
    first = client.responses.create(model=MODEL, instructions="Be brief.", input=QUESTION, max_output_tokens=40, temperature=0)
    assert first.status in ("completed", "incomplete") and first.output_text
    second = client.responses.create(model=MODEL, input="Why?", previous_response_id=first.id, max_output_tokens=20)
    assert second.usage.input_tokens > first.usage.input_tokens
    parsed = client.responses.parse(model=MODEL, input=USER, text_format=Place, max_output_tokens=100)
    assert isinstance(parsed.output_parsed, Place)
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=40, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text
    with client.responses.stream(model=MODEL, input=QUESTION, text_format=Place, max_output_tokens=100) as stream:
        list(stream)
        assert isinstance(stream.get_final_response().output_parsed, Place)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_a_loop_of_responses_ends_with_a_free_answer(client, stream, stored):
    ask = dict(model=MODEL, input=USER, tools=[RESPONSES_TOOL], max_output_tokens=200, store=stored, parallel_tool_calls=False,
               tool_choice={"type": "function", "name": "get_weather"})
    if stream:
        with client.responses.stream(**ask) as events:
            kinds = [event.type for event in events]
            answer = events.get_final_response()
        assert "response.function_call_arguments.delta" in kinds and kinds[-1] == "response.completed"
    else:
        answer = client.responses.create(**ask)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls and all(is_weather(json.loads(call.arguments)) for call in calls)
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    more = (dict(input=results, previous_response_id=answer.id) if stored
            else dict(input=[*USER, *(item.model_dump(exclude_none=True) for item in answer.output), *results]))
    last = client.responses.create(model=MODEL, tools=[RESPONSES_TOOL], tool_choice="none", max_output_tokens=40, **more)
    assert last.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_calls_a_tool_by_itself_and_answers_with_its_result(client, stream):
    tool = {"type": "function", "name": "get_weather", "description": "Current weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    ask = dict(model=MODEL, tools=[tool], temperature=0, max_output_tokens=100)

    def respond(**fields):
        if not stream:
            return client.responses.create(**ask, **fields)
        with client.responses.stream(**ask, **fields) as events:
            return events.get_final_response()

    first = respond(input=WEATHER_QUESTION)
    [call] = first.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Rome"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}
    assert respond(input=[result], previous_response_id=first.id).output_text == WEATHER_ANSWER


def test_the_asynchronous_client_runs_requests_at_once(client):
    async def ask():
        async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="x", max_retries=0) as many:
            texts = []

            async def one(i):
                stream = await many.chat.completions.create(model=MODEL, messages=USER, max_tokens=20, temperature=0, stream=True)
                texts.append("".join([c.choices[0].delta.content or "" async for c in stream if c.choices]))

            await asyncio.gather(*(one(i) for i in range(8)))
            return texts

    texts = asyncio.run(ask())
    assert len(texts) == 8 and len(set(texts)) == 1


def test_errors_and_lists_have_the_client_s_types(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    assert client.completions.create(model=MODEL, prompt="A router", max_tokens=5).choices[0].text
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=USER, max_tokens=1)
    assert raw.parse().choices and raw.headers["content-type"].startswith("application/json")
    for field, value in [("temperature", -1), ("tools", [{"type": "function"}]), ("messages", [])]:
        with pytest.raises(openai.BadRequestError) as error:
            chat(client, **{field: value})
        assert error.value.param.startswith(field) and error.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_0")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=USER)
