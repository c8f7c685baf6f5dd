"""pydantic-ai: agents over chats, responses and Anthropic's messages."""
import asyncio
from typing import Literal

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tool_server import MODEL, QUESTION, Place


def model_of(name, server):
    if name == "anthropic":
        return AnthropicModel(MODEL, provider=AnthropicProvider(base_url=server.url, api_key="x"))
    provider = OpenAIProvider(base_url=server.url + "/v1", api_key="x")
    return (OpenAIChatModel if name == "chats" else OpenAIResponsesModel)(MODEL, provider=provider)


@pytest.fixture(params=["chats", "responses", "anthropic"])
def model(request, server):
    return model_of(request.param, server)


SETTINGS = {"max_tokens": 100, "parallel_tool_calls": False}


def test_an_agent_answers_with_and_without_streaming(model):
    agent = Agent(model, instructions="Be brief.", model_settings=SETTINGS)
    result = agent.run_sync(QUESTION)
    assert result.output and result.usage.output_tokens > 0

    async def stream():
        async with agent.run_stream(QUESTION) as streamed:
            return [text async for text in streamed.stream_text()][-1]

    assert asyncio.run(stream())
    second = agent.run_sync("Why?", message_history=result.all_messages())
    assert second.output


@pytest.mark.parametrize("output", [ToolOutput, NativeOutput])
def test_an_agent_returns_a_model(model, output):
    if output is NativeOutput and isinstance(model, AnthropicModel):
        pytest.skip("pydantic-ai uses Anthropic's output_config only for models whose name it knows")
    result = Agent(model, output_type=output(Place), model_settings=SETTINGS).run_sync(QUESTION)
    assert isinstance(result.output, Place)


def test_an_agent_runs_a_tool_and_returns_its_output(model):
    ran = []
    # Only tools are allowed with this type of output, so the first calls are forced.
    agent = Agent(model, output_type=ToolOutput(Place), model_settings=SETTINGS, retries=5)

    @agent.tool_plain
    def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """Weather."""
        ran.append(city)
        return "sunny"

    result = agent.run_sync(QUESTION)
    assert isinstance(result.output, Place) and set(ran) <= {"Oslo", "Rome"}
