"""langchain-openai: messages, structured output and tools, over chats and over responses."""
import json
from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tool_server import MODEL, QUESTION, Place, is_weather

USER = [SystemMessage("Be brief."), HumanMessage(QUESTION)]


@tool
def get_weather(city: Literal["Oslo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """Weather."""
    return f"sunny in {city}"


@pytest.fixture(params=[False, True], ids=["chats", "responses"])
def chat(request, server):
    return ChatOpenAI(model=MODEL, base_url=server.url + "/v1", api_key="x", max_retries=0, temperature=0, max_tokens=100,
                      use_responses_api=request.param)


def test_streams_have_the_same_text(chat):
    whole = chat.invoke(USER)
    pieces = list(chat.stream(USER))
    assert whole.text and "".join(piece.text for piece in pieces) == whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    assert len(chat.batch([USER, USER])) == 2


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_output_is_structured(chat, method):
    if method == "json_mode":  # any JSON object; the schema is only in the prompt
        answer = chat.with_structured_output(None if chat.use_responses_api else Place, method=method, include_raw=True)
        text = answer.invoke([HumanMessage("Anna is 31 years old and lives in Rome.")])["raw"].text
        assert isinstance(json.loads(text), dict)
        return
    answer = chat.with_structured_output(Place, method=method, include_raw=True).invoke(USER)
    assert isinstance(answer["parsed"], Place), answer
    streamed = list(chat.with_structured_output(Place, method=method).stream(USER))
    assert isinstance(streamed[-1], Place)


@pytest.mark.parametrize("strict", [None, True])
def test_a_loop_with_a_forced_call_ends_with_a_free_answer(chat, strict):
    forced = chat.bind_tools([get_weather], tool_choice="get_weather", strict=strict, parallel_tool_calls=False)
    message = forced.invoke(USER)
    [call] = message.tool_calls
    assert call["name"] == "get_weather" and is_weather(call["args"])
    streamed = None
    for piece in forced.stream(USER):
        streamed = piece if streamed is None else streamed + piece
    assert [(c["name"], c["args"]) for c in streamed.tool_calls] == [("get_weather", call["args"])]
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    free = chat.bind_tools([get_weather], strict=strict).invoke([*USER, message, result])
    assert free.text or free.tool_calls
    last = chat.bind_tools([get_weather], tool_choice="none").invoke([*USER, message, result])
    assert last.text and not last.tool_calls
