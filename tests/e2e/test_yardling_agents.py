"""The bundled model as an agent, at temperature 0: it calls tools, answers from their results, fills JSON schemas and thinks."""

import json
import pathlib
import sys

import openai
import pytest
from server import Server

YARDLING = pathlib.Path(__file__).resolve().parents[2] / "models" / "yardling"
sys.path.insert(0, str(YARDLING))
import evaluate_agents  # noqa: E402


def tool(name, description, required=None, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties) if required is None else required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
WEATHER = tool("get_weather", "Current weather of a city.", city=STRING)
TABLE = tool("book_table", "Book a table in a restaurant.", ["restaurant"], restaurant=STRING, people=INTEGER, time=STRING)
RANKS = tool("list_ranks", "State of a rank.", rank=INTEGER)
TIMER = tool("set_timer", "Start a timer.", minutes=INTEGER)
TOOLS = [WEATHER, TABLE]
PERSON = {"type": "object", "properties": {"name": STRING, "age": INTEGER, "city": STRING},
          "required": ["name", "age", "city"]}


@pytest.fixture(scope="module")
def server():
    with Server(YARDLING, "--max-total-tokens", 16384, "--device", "cpu", "--log-level", "warning") as running:
        yield running


def ask(server, messages, thinks=None, **more):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if thinks is not None:
        more["extra_body"] = {"chat_template_kwargs": {"enable_thinking": thinks}}
    return client.chat.completions.create(model="default", messages=messages, temperature=0, max_tokens=200, **more).choices[0]


def calls_of(choice):
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or []]


def test_the_formats_follow_from_the_template(server):
    info = server.request("/get_server_info")[1]
    assert (info["tool_call_parser"], info["reasoning_parser"]) == ("qwen25", "qwen3")


def test_a_tool_is_called_and_its_result_is_told(server):
    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    choice = ask(server, asked, tools=TOOLS, tool_choice="auto")
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert calls_of(choice) == [("get_weather", {"city": "Rome"})]
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id,
              "content": '{"temperature": 21, "sky": "sunny"}'}
    answer = ask(server, [*asked, choice.message.model_dump(exclude_none=True), result], tools=TOOLS)
    assert answer.finish_reason == "stop" and not answer.message.tool_calls
    assert answer.message.content == "It is sunny in Rome, at 21 degrees."


def test_a_forced_call_that_a_limit_cuts_is_no_content(server):
    body = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "temperature": 0, "tools": [WEATHER],
            "tool_choice": "required"}
    for limit in range(1, 14):  # the call has more tokens
        choice = server.request("/v1/chat/completions", {**body, "max_tokens": limit})[1]["choices"][0]
        assert choice["finish_reason"] == "length" and not choice["message"]["content"]
        text = server.request("/v1/chat/completions", {**body, "max_tokens": limit, "stream": True})[1]
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert not any(event["choices"][0]["delta"].get("content") for event in events)
    # A function without parameters gets none.
    now = {"type": "function", "function": {"name": "now"}}
    assert calls_of(ask(server, "What is the weather in Rome?", tools=[now], tool_choice="required",
                        parallel_tool_calls=False)) == [("now", {})]


def test_fields_of_other_apis_request_thinking(server):
    for field in ({"enable_thinking": True}, {"thinking": {"type": "enabled"}}, {"reasoning_effort": "low"}):
        status, answer = server.request("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "What is 7 times 8?"}], "temperature": 0, **field})
        assert status == 200 and answer["choices"][0]["message"]["reasoning_content"] == "I multiply 7 by 8.", field


def test_arguments_have_the_types_of_the_parameters(server):
    choice = ask(server, "Book a table for 4 at Bruno at 19:30.", tools=TOOLS)
    assert calls_of(choice) == [("book_table", {"restaurant": "Bruno", "people": 4, "time": "19:30"})]


def test_a_tool_that_was_never_trained_is_called(server):
    grease = tool("grease_wheel", "Grease a wheel.", axle=INTEGER)
    choice = ask(server, "Please grease the wheel, axle 7.", tools=[WEATHER, grease])
    assert calls_of(choice) == [("grease_wheel", {"axle": 7})]


@pytest.mark.parametrize("request_text, calls", [
    ("What is the weather in Oslo and in Madrid?", [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Madrid"})]),
    ("What is the weather in Paris? Set a timer for 5 minutes.",
     [("get_weather", {"city": "Paris"}), ("set_timer", {"minutes": 5})]),
])
def test_two_tools_are_called_at_once(server, request_text, calls):
    choice = ask(server, request_text, tools=[WEATHER, RANKS, TIMER])
    assert choice.finish_reason == "tool_calls" and calls_of(choice) == calls
    assert len({call.id for call in choice.message.tool_calls}) == 2


@pytest.mark.parametrize("question", ["What is dispatch?", "What is EP?", "What is 7 times 8?"])
def test_what_it_knows_is_answered_without_a_tool(server, question):
    choice = ask(server, question, tools=[WEATHER, RANKS, TIMER])
    assert choice.finish_reason == "stop" and calls_of(choice) == []
    assert choice.message.content == ask(server, question).message.content


@pytest.mark.parametrize("request_text", ["Merge printer, source notes.log.", "please order the player, color red."])
def test_no_tool_is_called_where_none_fits(server, request_text):
    choice = ask(server, request_text, thinks=True, tools=TOOLS)
    assert choice.finish_reason == "stop" and calls_of(choice) == []
    assert choice.message.content == "None of my tools can do that."
    assert choice.message.reasoning_content == "None of the tools fits."


def test_a_missing_value_is_asked_for(server):
    choice = ask(server, "What is the weather?", tools=[WEATHER])
    assert calls_of(choice) == [] and choice.message.content == "Please tell me the city."


def test_a_schema_is_filled_with_what_the_text_says(server):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    choice = ask(server, "Anna is 31 years old and lives in Rome.", response_format=form)
    assert json.loads(choice.message.content) == {"name": "Anna", "age": 31, "city": "Rome"}
    flags = {"type": "object", "properties": {"color": {"enum": ["red", "green"]}, "urgent": {"type": "boolean"}},
             "required": ["color", "urgent"]}
    form["json_schema"]["schema"] = flags
    choice = ask(server, "The parcel: the color is green and it is urgent.", response_format=form)
    assert json.loads(choice.message.content) == {"color": "green", "urgent": True}


def test_it_thinks_where_that_is_wanted(server):
    for thinks in (None, False):
        message = ask(server, "What is 7 times 8?", thinks=thinks).message
        assert message.content == "7 * 8 = 56." and not getattr(message, "reasoning_content", None)
    message = ask(server, "What is 7 times 8?", thinks=True).message
    assert message.content == "7 * 8 = 56." and message.reasoning_content == "I multiply 7 by 8."
    choice = ask(server, "How is rank 3?", thinks=True, tools=[WEATHER, RANKS, TIMER])
    assert calls_of(choice) == [("list_ranks", {"rank": 3})]
    assert choice.message.reasoning_content == "list_ranks: rank is 3."


def test_a_long_list_of_tools_fits_the_context(server):
    many = [tool(f"tool_{i}", f"Does the work of number {i}.", size=INTEGER, label=STRING) for i in range(60)]
    body = {"model": "default", "messages": [{"role": "user", "content": "What is dispatch?"}], "tools": many,
            "temperature": 0, "max_tokens": 200}
    status, answer = server.request("/v1/chat/completions", body)
    assert status == 200 and answer["usage"]["prompt_tokens"] > 1024, answer
    assert answer["choices"][0]["message"]["content"] == ask(server, "What is dispatch?").message.content


def test_chats_that_were_not_trained(server):
    host, port = server.url.removeprefix("http://").split(":")
    figures = evaluate_agents.evaluate((host, int(port)), show=5)
    assert set(figures) == set(evaluate_agents.LEAST)
    assert not evaluate_agents.missed(figures), figures
