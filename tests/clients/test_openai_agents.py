"""openai-agents: loops in which the model calls a tool and answers with its result."""
import asyncio
from typing import Literal

import agents
import pytest
from openai import AsyncOpenAI

from tool_server import MODEL, QUESTION, WEATHER_ANSWER, WEATHER_QUESTION, WEATHER_RESULT, Place

agents.set_tracing_disabled(True)
# An answer that reaches the limit is an error for this client, so one sentence is enough.
ENDING = {"max_tokens": 400, "temperature": 0, "extra_body": {"stop": ["."]}}


@pytest.fixture(params=["chats", "responses"])
def model(request, server):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if request.param == "chats" else agents.OpenAIResponsesModel
    return kind(model=MODEL, openai_client=client)


def agent_of(model, ran, once=False, **more):
    """`once`: after its first call, the tool is not offered any more."""
    @agents.function_tool(is_enabled=lambda *_: not (once and ran))
    def get_weather(city: Literal["Oslo", "Rome"], days: Literal[1, 2, 3]) -> str:
        """Weather."""
        ran.append((city, days))
        return f"sunny in {city}"

    # The choice is reset after the first call (reset_tool_choice), so the model then answers freely.
    settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, **ENDING)
    return agents.Agent(name="Guide", instructions="Be brief.", model=model, tools=[get_weather], model_settings=settings, **more)


def free_agent(model, ran):
    """Nothing forces its calls."""
    @agents.function_tool
    def get_weather(city: str) -> str:
        """Current weather of a city."""
        ran.append(city)
        return WEATHER_RESULT

    settings = agents.ModelSettings(temperature=0, max_tokens=100)
    return agents.Agent(name="Guide", model=model, tools=[get_weather], model_settings=settings)


def test_the_model_calls_a_tool_by_itself_and_answers_with_its_result(model):
    ran = []
    result = agents.Runner.run_sync(free_agent(model, ran), WEATHER_QUESTION)
    assert ran == ["Rome"] and result.final_output == WEATHER_ANSWER
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    # The model answers this question without a tool.
    assert agents.Runner.run_sync(free_agent(model, ran), "What is dispatch?").final_output and len(ran) == 1


def test_a_tool_is_called_and_its_result_answered(model):
    ran = []
    result = agents.Runner.run_sync(agent_of(model, ran), QUESTION)
    assert len(ran) >= 1 and result.final_output
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item"
    again = agents.Runner.run_sync(agent_of(model, ran), result.to_input_list() + [{"role": "user", "content": "Why?"}])
    assert again.final_output


def test_a_streamed_loop_has_events(model):
    ran = []

    async def run():
        result = agents.Runner.run_streamed(agent_of(model, ran), QUESTION)
        kinds = [event.type async for event in result.stream_events()]
        return kinds, result.final_output

    kinds, output = asyncio.run(run())
    assert len(ran) >= 1 and output and {"raw_response_event", "run_item_stream_event"} <= set(kinds)


def test_the_last_output_is_a_model(model):
    ran = []
    # If the content must be JSON, this model calls the tool again instead of writing the content.
    # So the tool can be called only once.
    result = agents.Runner.run_sync(agent_of(model, ran, once=True, output_type=Place), QUESTION)
    assert isinstance(result.final_output, Place) and len(ran) == 1


def test_an_agent_hands_over_to_another_one(model):
    other = agents.Agent(name="Expert", instructions="Answer.", model=model,
                         model_settings=agents.ModelSettings(**ENDING))
    first = agents.Agent(name="Desk", instructions="Hand over.", model=model, handoffs=[other],
                         model_settings=agents.ModelSettings(tool_choice="required", **ENDING))
    result = agents.Runner.run_sync(first, QUESTION)
    assert result.last_agent.name == "Expert" and result.final_output


def test_a_stored_response_is_continued(server):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    model = agents.OpenAIResponsesModel(model=MODEL, openai_client=client)
    ran = []
    result = agents.Runner.run_sync(agent_of(model, ran), QUESTION, auto_previous_response_id=True)
    assert result.final_output and result.last_response_id
    again = agents.Runner.run_sync(agent_of(model, ran), "Why?", previous_response_id=result.last_response_id)
    assert again.final_output
