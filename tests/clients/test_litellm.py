"""litellm, which sends the same request with the protocols of several providers."""
import json

import litellm
import pytest

from tool_server import MODEL, QUESTION, WEATHER, Place, is_weather

USER = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def provider(request, server):
    base = server.url if request.param == "anthropic" else server.url + "/v1"
    return {"model": f"{request.param}/{MODEL}", "api_base": base, "api_key": "x", "num_retries": 0}


def test_texts_are_the_same_with_and_without_streaming(provider):
    ask = dict(messages=USER, max_tokens=40, temperature=0, **provider)
    whole = litellm.completion(**ask)
    chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
    text = whole.choices[0].message.content
    assert text and text == "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    built = litellm.stream_chunk_builder(chunks, messages=USER)
    assert built.choices[0].message.content == text
    assert built.usage.completion_tokens == whole.usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_with_a_forced_call_ends_with_a_free_answer(provider, stream):
    ask = dict(messages=USER, max_tokens=100, tools=[TOOL], tool_choice=NAMED, parallel_tool_calls=False, **provider)
    if stream:
        answer = litellm.stream_chunk_builder(list(litellm.completion(**ask, stream=True)), messages=USER)
    else:
        answer = litellm.completion(**ask)
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather" and is_weather(json.loads(call.function.arguments))
    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
    last = litellm.completion(messages=[*USER, message.model_dump(exclude_none=True), result], max_tokens=40, tools=[TOOL],
                              tool_choice="none", **provider)
    assert last.choices[0].message.content


def test_output_follows_a_model(provider):
    answer = litellm.completion(messages=USER, max_tokens=100, response_format=Place, **provider)
    message = answer.choices[0].message
    text = message.content or message.tool_calls[0].function.arguments
    assert Place.model_validate_json(text)


def test_responses_are_created(server):
    answer = litellm.responses(model=f"openai/{MODEL}", input=QUESTION, max_output_tokens=20, api_base=server.url + "/v1",
                               api_key="x")
    assert answer.output[0].content[0].text


def test_errors_have_litellm_s_types(provider):
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=USER, max_tokens=-5, **provider)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=USER, max_tokens=5, **{**provider, "model": provider["model"] + "x"})
